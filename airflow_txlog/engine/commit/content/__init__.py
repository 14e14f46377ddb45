"""The content of a commit: its attempt, its actions, and the rules that they must satisfy."""
