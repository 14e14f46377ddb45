"""Decide whether a piece of work is done already, and sign the records that prove it."""
