"""How large a Spark is that is started here, and whether this machine has the memory for it.

A JVM takes more than its heap, and the kernel ends what takes more than there is, without a word in any log of ours. So
what is asked for is compared with what there is before anything starts. Only Linux says what a cgroup may take.
Source: Linux, "Control Group v2", memory.max; Spark, "Configuration", spark.driver.memoryOverhead.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from airflow_txlog.jobs.spark.installation import LOCAL_DEFAULTS

_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
# What Spark itself counts beside the heap of a driver.
_LEAST_OVERHEAD, _OVERHEAD = 384 * 1024**2, 0.1

log = logging.getLogger(__name__)


def log_start(spark_conf: Mapping[str, str], say: Callable[[str], None], note: str = "") -> None:
    """Say what starts with these settings, and warn where the machine has less memory than it may take."""
    conf = {**LOCAL_DEFAULTS, **spark_conf}
    heap = conf["spark.driver.memory"]
    say(f"starting Spark: {conf['spark.master']}, {heap} of heap{note}")
    asked, found = size_bytes(heap), memory_bytes()
    needed = None if asked is None else asked + max(_LEAST_OVERHEAD, int(asked * _OVERHEAD))
    if needed is not None and found is not None and found < needed:
        log.warning(
            "a Spark with %s of heap can take %s of memory, and there are %s here: the kernel ends it where it does. "
            "Give it less heap ([txlog] heap, or spark.driver.memory), or the worker more memory",
            heap,
            _megabytes(needed),
            _megabytes(found),
        )


def size_bytes(text: str) -> int | None:
    """A size of memory as Spark reads it (`512m`, `2g`, a bare number is MiB); None for what it refuses."""
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", text.strip().lower())
    # `2b` is two bytes, and a number alone MiB.
    return None if found is None else int(found[1]) * (_UNITS[found[2]] if not text.strip().isdecimal() else 1024**2)


def memory_bytes(root: Path = Path("/")) -> int | None:
    """The memory of this machine, or less where a cgroup of this process may take less; None where it is not known."""
    found = list(_limits(root))
    with contextlib.suppress(OSError, ValueError):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(found, default=None)


def _limits(root: Path) -> Iterator[int]:
    """The limit of each cgroup that this process is in, and of those around it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container the path may be the machine's, where only its own end is to be seen: at the base.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            # A file that is not there, and the word `max`, are no limit.
            with contextlib.suppress(OSError, ValueError):
                yield int((base.joinpath(*parts[:depth]) / name).read_text())


def _megabytes(size: int) -> str:
    return f"{size // 1024**2} MiB"
