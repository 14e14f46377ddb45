"""What Arrow does in a process that is ours alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

BEGIN = """
import json, sys
from airflow_txlog.process.arrow_memory import spare_memory
spare_memory()
import pyarrow as pa
pa.array(["x"])
found = {"pandas": "pandas" in sys.modules, "pool": pa.default_memory_pool().backend_name}
"""


def found_in_a_process(code: str, **environment: str) -> dict[str, Any]:
    kept = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    command = [sys.executable, "-c", f"{BEGIN}{code}\nprint(json.dumps(found))"]
    done = subprocess.run(command, env=kept | environment, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_arrow_takes_less_memory_and_what_wants_pandas_gets_it() -> None:
    found = found_in_a_process('found["rows"] = len(pa.table({"a": [1, 2]}).to_pandas())')
    assert found == {"pandas": False, "pool": "jemalloc", "rows": 2}


def test_a_choice_of_the_users_stands() -> None:
    assert found_in_a_process("", ARROW_DEFAULT_MEMORY_POOL="system")["pool"] == "system"
