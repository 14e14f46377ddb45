"""The driver of a job on a cluster, which `spark-submit` runs: `spark-submit … submitted_main.py SPEC_FILE`.

Spark's JVM is between the submitter and this process: it copies its output, mixes standard error into it, and keeps the
files that it inherited. So this process takes the submitter's files and pipes from its parent, the JVM. The invariant:
it ends with the JVM, and with the process that started `spark-submit`, whichever ends first.
"""

from __future__ import annotations

import os
import stat
import sys
import threading

# Python searches a script's folder first, whose modules are not top-level modules.
sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != os.path.dirname(os.path.abspath(__file__))]

from airflow_txlog.contract.job import OPEN_FILES  # noqa: E402
from airflow_txlog.jobs.__main__ import leave_at_end_of, main  # noqa: E402


def take_from_parent() -> None:
    """Take the parent's standard streams if they are pipes; the end of its input ends this process."""
    for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            found = f"/proc/{os.getppid()}/fd/{number}"
            if not stat.S_ISFIFO(os.stat(found).st_mode):
                continue
            taken = os.open(found, flags)
        except OSError:
            # No Linux, or the JVM is gone, which the end of standard input shows.
            continue
        if number == 0:
            threading.Thread(target=leave_at_end_of, args=(taken,), name="submitter", daemon=True).start()
        else:
            os.dup2(taken, number)
            os.close(taken)


def opened(path: str) -> str:
    """Return a copy of an open file of the parent, which outlives it; return any other path unchanged."""
    if not path.startswith(OPEN_FILES):
        return path
    return f"{OPEN_FILES}{os.open(f'/proc/{os.getppid()}/fd/{path.removeprefix(OPEN_FILES)}', os.O_RDWR)}"


if __name__ == "__main__":
    # Submitted by hand, it has the usual streams of a driver: a pipe at the JVM's input may end at once.
    if sys.argv[-1].startswith(OPEN_FILES):
        take_from_parent()
    sys.exit(main(["--session", "submitted", *sys.argv[1:]], opened))
