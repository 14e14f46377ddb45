"""DELETE: by a condition, and by a list of keys."""
