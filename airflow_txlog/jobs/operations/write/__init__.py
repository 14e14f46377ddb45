"""Append and overwrite: a source's rows become new files, in the place of what they replace."""
