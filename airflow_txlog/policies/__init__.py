"""How Airflow judges what a job raised."""
