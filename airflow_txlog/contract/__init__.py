"""The contract between the scheduler's side and a job: the description, the result, and their wording."""
