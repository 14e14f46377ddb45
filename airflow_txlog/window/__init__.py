"""Pages that show tables, commits and conflicts, in Airflow's UI or stand-alone. Read-only."""
