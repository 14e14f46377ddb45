"""Catalogs: services that turn the name of a table into its place, and that show the table to other engines."""
