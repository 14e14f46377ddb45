"""Buttons of a task in Airflow's UI."""
