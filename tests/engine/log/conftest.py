"""Settings of the properties of the log."""

from __future__ import annotations

from hypothesis import settings

# The machine that runs the tests may be busy; how long one example takes says nothing about it.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
