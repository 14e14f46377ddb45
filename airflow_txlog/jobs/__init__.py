"""The Spark side: what runs on a driver. Knows nothing of Airflow.

`run.run_job` is the way in: a JobSpec in, a JobResult out. Below it each folder answers one question, and imports only
those below it: `operations` (what does each operation do?), `rows` (how do rows leave and enter files?), `resume` (what
is kept over conflicts, retries and deaths?), `files` (how does Spark read and write data files?), `sql` (what do texts
mean, and what may they call?), `context` (what one job carries), `spark` (how is Spark driven?). This level imports
nothing.
"""
