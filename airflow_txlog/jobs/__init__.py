"""The Spark side: what runs on a driver. Knows nothing of Airflow.

`run.run_job` is the way in: a JobSpec in, a JobResult out. docs/architecture.md shows the folders and their order. This
level imports nothing.
"""
