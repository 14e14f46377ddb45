"""`python -m tests.benchmarks`: see `command`. Arrow is imported as in a job's own process, with the same memory."""

from __future__ import annotations

from airflow_txlog.process.arrow_memory import spare_memory

if __name__ == "__main__":
    spare_memory()
    # It imports Arrow.
    from tests.benchmarks.command import main

    main()
