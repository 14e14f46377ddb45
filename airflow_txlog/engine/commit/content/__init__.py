"""What a commit says: its attempt, its actions, and what each of them must satisfy."""
