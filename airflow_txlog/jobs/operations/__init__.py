"""The operations of a job: one module or folder for each."""
