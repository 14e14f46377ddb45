"""Maintenance of a table: vacuum, restore, history, and findings about its health."""
