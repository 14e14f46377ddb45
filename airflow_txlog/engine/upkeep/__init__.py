"""What keeps a table healthy and changes no row of it: vacuum, history."""
