"""Checkpoints: the state of one version in separate files. Reads every shape; writes classic and V2.

`reading` and `writing` do the work over the rows that `schema` states.
Source: protocol, "Checkpoints" and "Checkpoint Schema".
"""
