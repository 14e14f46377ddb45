"""Arrow in a process that is ours from start to end: a job's, or a command's.

In a process with other code these settings would change the results that it gets from Arrow.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

# Read once, when numpy and pyarrow are imported.
BLAS_THREADS = "OPENBLAS_NUM_THREADS"
MEMORY_POOL = "ARROW_DEFAULT_MEMORY_POOL"


class _NoPandas:
    """Among the finders of modules: there is no pandas."""

    def find_spec(self, name: str, *more: Any) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not looked for here", name=name)


def spare_memory() -> None:
    """Make Arrow use less memory and time. Call it before anything imports Arrow.

    pyarrow imports an installed pandas with the first array that it makes of a list: a third of a second and 40 MB, for
    nothing. It looks for pandas once; later uses find it. It also imports numpy, whose OpenBLAS starts a thread for
    each core; they wait busily for a tenth of a second, and a job has no work for them. jemalloc keeps less freed
    memory than Arrow's own choice: a checkpoint of a million files takes 100 MB less, and a MERGE on S3 takes 4 % less
    time. The user's ARROW_DEFAULT_MEMORY_POOL has precedence. If a build lacks jemalloc, Arrow prints a warning.
    """
    is_chosen = bool(os.environ.get(MEMORY_POOL))
    wanted = {BLAS_THREADS: "1", **({} if is_chosen else {MEMORY_POOL: "jemalloc"})}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        import pyarrow as pa  # noqa: PLC0415 - where nothing is to be run, nothing is imported
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    if not is_chosen:
        # In case it was imported before: then a part of its memory comes from elsewhere.
        with contextlib.suppress(NotImplementedError):  # a build without it
            pa.set_memory_pool(pa.jemalloc_memory_pool())
    blocked: Any = _NoPandas()
    sys.meta_path.insert(0, blocked)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(blocked)
