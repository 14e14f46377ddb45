"""Sensors: wait for a version of a table."""
