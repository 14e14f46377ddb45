"""What the texts of an author and of a table mean, and what they may call."""
