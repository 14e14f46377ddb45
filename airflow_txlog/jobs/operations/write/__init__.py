"""Append and overwrite: a source's rows become new files, and an overwrite removes the files that they replace."""
