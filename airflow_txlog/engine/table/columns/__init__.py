"""Partition values and statistics as typed columns."""
