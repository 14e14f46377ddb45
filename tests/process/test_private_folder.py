"""What a process has for itself: its folder for what is temporary, and a small Arrow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FORK = """
import json, os, sys
from airflow_txlog.process.private_folder import temporary_folder
ours = temporary_folder()
child = os.fork()
if child == 0:
    sys.exit(0 if temporary_folder() != ours else 1)
_, status = os.waitpid(child, 0)
print(json.dumps([status, os.path.isdir(ours), ours]))
"""


def test_a_forked_process_neither_uses_nor_deletes_its_parents_folder_which_goes_with_the_parent(
    tmp_path: Path,
) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", FORK], env=environment, capture_output=True, text=True, check=True)
    status, is_there, folder = json.loads(done.stdout)
    assert (status, is_there) == (0, True)
    assert folder.startswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


# --- Arrow ----------------------------------------------------------------------------------------------------------


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


def test_all_of_arrows_memory_is_jemallocs() -> None:
    code = """
import pyarrow.compute as pc, pyarrow.parquet as pq
rows = pa.table({"a": range(100_000), "b": [f"text {n}" for n in range(100_000)]})
sink = pa.BufferOutputStream()
pq.write_table(rows.filter(pc.greater(rows["a"], 10)), sink)
read = pq.read_table(pa.BufferReader(sink.getvalue()))
found = {name: getattr(pa, f"{name}_memory_pool")().max_memory() > 0 for name in ("jemalloc", "mimalloc", "system")}
"""
    assert found_in_a_process(code) == {"jemalloc": True, "mimalloc": False, "system": False}


@pytest.mark.parametrize("module", ["jobs.__main__", "jobs.submitted_main", "cli.definition"])
def test_a_process_of_ours_imports_arrow_after_it_is_told_where_to_take_memory(module: str) -> None:
    code = f"import sys, airflow_txlog.{module}; sys.exit('pyarrow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_choice_of_the_users_stands() -> None:
    assert found_in_a_process("", ARROW_DEFAULT_MEMORY_POOL="system")["pool"] == "system"


def test_arrow_starts_no_thread_of_numpys_and_leaves_the_environment_as_it_was() -> None:
    code = """
import os
from pathlib import Path
names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
found = {"is set": "OPENBLAS_NUM_THREADS" in os.environ, "threads": [n for n in names if not n.startswith("jemalloc")]}
"""
    found = found_in_a_process(code)
    assert found["is set"] is ("OPENBLAS_NUM_THREADS" in os.environ)
    assert len(found["threads"]) == 1
