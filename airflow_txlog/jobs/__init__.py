"""The Spark side: what runs on a driver. Knows nothing of Airflow.

`run.run_job` is the way in. One job a module (`write`, `delete`, `merge`, `maintenance`), over shared steps kept
apart: `find` says which rows, `stage` writes files that no commit names yet, `commit` makes them count, `rounds` plans
afresh after a conflict. This level imports nothing.
"""
