"""What the scheduler's side and a job agree on: what to do, what came of it, and how both are worded."""
