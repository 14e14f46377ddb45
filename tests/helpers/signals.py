"""Signals whose effect a test waits for: one that was sent has yet to arrive."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.helpers.submitting import eventually


def hold_still(pid: int) -> None:
    """Stop a process by SIGSTOP; at the return none of its threads runs."""
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: _states(pid) == {"T"}, f"process {pid} has stopped")


def _states(pid: int) -> set[str]:
    found = set()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            found.add(stat.read_text().rsplit(")", 1)[1].split()[0])
        except OSError:
            found.add("gone")  # meanwhile, so the others are asked again
    return found
