"""Checkpoints: the state of one version in files of their own, read in every shape and written.

`reading` and `writing` do the work over the rows that `schema` states.
Source: protocol, "Checkpoints" and "Checkpoint Schema".
"""
