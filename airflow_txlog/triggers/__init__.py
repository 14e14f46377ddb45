"""Triggers: what is waited for in the triggerer."""
