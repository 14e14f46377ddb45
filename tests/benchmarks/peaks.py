"""The most memory that a process and its descendants held while something ran, by what they are, in megabytes.

High-water marks of the kernel (`VmHWM`), set back before: nothing is missed between two looks. A worker's is of one
process, pages that it shares with the others included; a worker that ended meanwhile is not counted.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_SET_BACK = "5"


def set_back() -> None:
    """Begin anew for this process and its descendants."""
    for pid in family():
        with contextlib.suppress(OSError):
            (_PROC / str(pid) / "clear_refs").write_text(_SET_BACK)


def peaks_mb() -> dict[str, int]:
    """`driver` (this process), `jvm` and `worker` (the largest one) since `set_back`."""
    found: dict[str, int] = {}
    for pid in family():
        with contextlib.suppress(OSError):
            command = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")[0]
            kind = "driver" if pid == os.getpid() else "jvm" if command.endswith(b"java") else "worker"
            found[kind] = max(found.get(kind, 0), _high_water_mb(pid))
    return found


def _high_water_mb(pid: int) -> int:
    for line in (_PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    return 0


def family() -> Iterator[int]:
    """Yield the ids of this process and of its descendants."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    pending = [os.getpid()]
    while pending:
        pid = pending.pop()
        yield pid
        pending += children.get(pid, [])
