"""Operators that keep tables fast and small, and change no row of them."""
