"""What does a job's work: Arrow in this process, or a Spark session."""
