"""State that survives conflicts, retries and deaths of the driver: attempts, saved work, and the commit itself."""
