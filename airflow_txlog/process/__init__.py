"""What a process of ours has to itself: a private folder, and the memory of Arrow."""
