"""The report on an erasure: what it contains, its page for people, and its check."""
