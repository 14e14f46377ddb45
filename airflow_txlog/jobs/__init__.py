"""The Spark side: what runs on a driver. Knows nothing of Airflow.

`run.run_job` is the way in. `dml`, `write` and `optimize` are the jobs with folders of their own; `truncate`, `restore`
and `maintenance` need no Spark. All stand over shared steps: `inputs` pins, `sql` and `clocks` judge texts, `scan` and
`find` read, `rules` and `stage` write files that no commit names yet, `commit` makes them count, and `rounds` goes on
after a conflict. This level imports nothing.
"""
