"""The two executors of a job: Arrow in this process, and a Spark session."""
