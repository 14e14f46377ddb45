"""What an erasure takes of Airflow: its checks before the first delete, and its signed report."""
