"""Separate executors that die, and tasks that fail after they wrote: rows exact, and no orphan committed.

One Spark `local-cluster` runs all scenarios, one after the other, each on a table of its own. Trouble is ordered for
one task attempt (`executors/faults`); a file that it had written is an orphan, and must be in no commit. Speculation
needs executors on two hosts (tests/cluster/test_moving_executors.py); what two attempts of one task do is in
tests/datafiles/tasks/test_attempts.py.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_txlog.engine import Table
from tests.helpers.jobs import files_on_disk, live_files, rows
from tests.helpers.paths import ROOT
from tests.helpers.rows import make_table

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long("each kill starts an executor anew, which takes seconds"),
    pytest.mark.slow("a Spark local-cluster, whose executors are killed and started again"),
]

DAYS = (dt.date(2024, 1, 1), dt.date(2024, 1, 2))

# What each operation is asked, and which ids with which names it leaves of 0 to 79.
OPERATIONS: dict[str, dict[str, Any]] = {
    # Its rows are shuffled, so that an executor that is lost while it stages takes outputs of the stage before with it.
    "write": {
        "source": {
            "sql": "SELECT DISTINCT id % 30 + 100 AS id, date'2024-01-01' AS day, 'new' AS name, 0D AS amount "
            "FROM range(60)"
        }
    },
    "delete": {"predicate": "pmod(id, 10) = 3"},
    "optimize": {},
    "update": {"set": {"name": "'new'"}, "predicate": "pmod(id, 10) = 3"},
    "merge": {
        "source": {"sql": "SELECT id * 7 AS id, date'2024-01-02' AS day, 'new' AS name FROM range(16)"},
        "on": "t.id = s.id",
        "clauses": [
            {"when": "matched", "condition": "t.id % 2 = 0", "then": "update", "set": {"name": "s.name"}},
            {"when": "matched", "then": "delete"},
            {"when": "not_matched", "then": "insert", "values": {"id": "s.id", "day": "s.day", "name": "s.name"}},
        ],
    },
}


def expected(operation: str) -> Counter[tuple[int, str]]:
    before = {number: f"n{number}" for number in range(80)}
    if operation == "optimize":
        return Counter(before.items())
    if operation == "write":
        return Counter({**before, **{number + 100: "new" for number in range(30)}}.items())
    if operation == "delete":
        return Counter({number: name for number, name in before.items() if number % 10 != 3}.items())
    if operation == "update":
        return Counter({number: "new" if number % 10 == 3 else name for number, name in before.items()}.items())
    source = {number * 7 for number in range(16)}
    kept = {number: name for number, name in before.items() if number not in source}
    return Counter({**kept, **{number: "new" for number in source if number % 2 == 0 or number >= 80}}.items())


ORDERS = [
    *((operation, "staged.kill") for operation in ("write", "delete", "update", "optimize", "merge")),
    *(("delete", "staged.fail"), ("merge", "staged.fail"), ("merge", "scan.kill")),
]
SCENARIOS = {f"{operation}, {order}": (operation, order) for operation, order in ORDERS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("executors")


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> dict[str, tuple[dict[str, Any], Table]]:
    """What came of every scenario, and its table."""
    tables = {}
    for number, name in enumerate(SCENARIOS):
        parts = [rows(20, start=20 * part, day=DAYS[part % 2]) for part in range(4)]
        tables[name] = make_table(folder / f"t{number}", *parts, partition_by=["day"])
    described = [
        (name, operation, OPERATIONS[operation], order, tables[name].uri)
        for name, (operation, order) in SCENARIOS.items()
    ]
    (folder / "scenarios.json").write_text(json.dumps(described))
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/jobs/executors/driver.py"), str(folder), str(ROOT)],
        capture_output=True,
        text=True,
        env=clean,
        cwd=folder,
        timeout=850,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    told = json.loads((folder / "results.json").read_text())
    return {name: (told[name], tables[name]) for name in SCENARIOS}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SCENARIOS)
def test_rows_are_exact_and_no_orphan_is_committed(outcomes: Any, name: str) -> None:
    told, table = outcomes[name]
    operation, order = SCENARIOS[name]
    assert told["status"] == "committed", told
    assert told["obeyed"] == [f"{order}.obeyed"], "the trouble came"
    left = table.to_arrow(columns=["id", "name"]).to_pylist()
    assert Counter((row["id"], row["name"]) for row in left) == expected(operation)
    orphans = files_on_disk(table) - named_in_log(table)
    if order == "staged.kill":
        # A task that fails deletes what it wrote, where its process still can.
        assert orphans, "the attempt had written before it came to grief"
    assert not orphans & live_files(table)


def test_the_code_of_the_tasks_reaches_separate_executors_in_the_zip_alone(outcomes: Any, folder: Path) -> None:
    loaded = json.loads((folder / "loaded.json").read_text())
    assert loaded
    module = ".zip/airflow_txlog/datafiles/tasks/scan_and_write.py"
    assert all("airflow_txlog-" in file and module in file for file in loaded), loaded


def named_in_log(table: Table) -> set[str]:
    """Every path that an add of any commit names."""
    folder = Path(table.uri.removeprefix("file://")) / "_delta_log"
    actions = [json.loads(line) for file in folder.glob("*.json") for line in file.read_text().splitlines()]
    return {action["add"]["path"] for action in actions if "add" in action}
