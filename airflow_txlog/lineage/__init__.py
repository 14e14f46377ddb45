"""The data that a task read and wrote, in OpenLineage's terms. Only Airflow's listener for OpenLineage uses it."""
