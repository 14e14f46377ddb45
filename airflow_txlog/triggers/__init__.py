"""Triggers: waiting in the triggerer."""
