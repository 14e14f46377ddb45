"""The Spark side: the code that runs on a driver. Independent of Airflow.

`run.run_job` is the entry point: a JobSpec in, a JobResult out. docs/architecture.md shows the folders and their order.
This level imports nothing.
"""
