"""The sources of a job: their files, their columns, and the readers of their rows."""
