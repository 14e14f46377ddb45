"""What a task read and wrote, in OpenLineage's terms. Only Airflow's listener for OpenLineage asks for it."""
