"""`airflow txlog …`: look at a table and keep it healthy from a shell."""
