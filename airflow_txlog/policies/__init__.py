"""Airflow's handling of a job's errors."""
