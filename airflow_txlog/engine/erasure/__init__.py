"""Erasure: find every trace of some subjects in the objects of a table."""
