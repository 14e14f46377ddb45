"""What each operation does: one module or folder for each."""
