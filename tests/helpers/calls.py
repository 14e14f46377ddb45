"""How much work something is, as a number of calls: neither the machine nor its load has a part in it.

Neither has what other tests of the process did: both counters begin with empty caches.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count the calls of Python's functions and of functions in C, in this thread and in those that it starts."""
    _forget()
    calls = [0]

    def count(_frame: Any, event: str, _argument: Any) -> None:
        if event in ("call", "c_call"):
            calls[0] += 1

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


@contextmanager
def counted_steps() -> Iterator[list[int]]:
    """Count the instructions of Python's interpreter in this thread: also those of loops that call nothing."""
    _forget()
    steps = [0]

    def trace(frame: Any, event: str, _argument: Any) -> Any:
        frame.f_trace_opcodes = True
        if event == "opcode":
            steps[0] += 1
        return trace

    sys.settrace(trace)
    try:
        yield steps
    finally:
        sys.settrace(None)


def _forget() -> None:
    # Not by `gc.get_objects()`, which finds nothing that was there at a `gc.freeze()`.
    modules = [module for name, module in sys.modules.items() if name.startswith("airflow_txlog.")]
    for value in [value for module in modules for value in vars(module).values()]:
        if type(value) is functools._lru_cache_wrapper:
            value.cache_clear()
