"""How many files a small change leaves beside delta-spark: live ones in each partition, and files of change rows.

Skipped where delta-spark's jars are not there.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.table.changes.versions import changes_since
from tests.helpers.delta_spark import DeltaSpark
from tests.helpers.jobs import committed, run

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow("delta-spark in a JVM of its own"),
]

CHANGED = "1, 2, 21, 22, 41, 42"
NEW = "SELECT * FROM VALUES (1L, 'p1'), (2L, 'p0'), (21L, 'p1'), (22L, 'p0'), (101L, 'p1'), (102L, 'p0') AS s(id, p)"
CLAUSES = [
    {"when": "matched", "then": "update", "set": {"name": "'new'"}},
    {"when": "not_matched", "then": "insert", "values": {"id": "s.id", "p": "s.p", "name": "'new'"}},
]


def counts(uri: str) -> tuple[dict[str, int], int]:
    """Live files by partition, and the change files of the last commit."""
    snapshot = Table.open(uri).snapshot()
    (commit,) = changes_since(snapshot, snapshot.version - 1)
    values = snapshot.files().column("partition_values").to_pylist()
    return dict(Counter(dict(each)["p"] for each in values)), len(commit.cdc)


@pytest.fixture(scope="module", params=[1, 3])
def made(request: pytest.FixtureRequest, delta: DeltaSpark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of so many files in each partition, to copy."""
    place = tmp_path_factory.mktemp("made") / "t"
    delta.run(
        f"CREATE TABLE delta.`{place}` (id BIGINT, p STRING, name STRING) USING delta PARTITIONED BY (p) "
        "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
        *(
            f"INSERT INTO delta.`{place}` SELECT /*+ COALESCE(1) */ id, 'p' || id % 2, 'old' "
            f"FROM range({first}, {first + 20})"
            for first in range(0, 20 * request.param, 20)
        ),
    )
    return place


@pytest.mark.long("delta-spark takes seconds for each of its own statements")
@pytest.mark.parametrize("operation", ["update", "merge"])
def test_a_small_change_leaves_no_more_files_than_delta_spark(
    delta: DeltaSpark, tmp_path: Path, made: Path, operation: str
) -> None:
    theirs, ours, here = (str(tmp_path / name) for name in ("theirs", "ours", "here"))
    for uri in (theirs, ours, here):
        shutil.copytree(made, uri)
    arguments: dict[str, Any] = {"predicate": f"id IN ({CHANGED})", "set": {"name": "'new'"}}
    statement = f"UPDATE delta.`{theirs}` SET name = 'new' WHERE id IN ({CHANGED})"
    if operation == "merge":
        arguments = {"source": {"sql": NEW}, "on": "t.id = s.id", "clauses": CLAUSES}
        statement = (
            f"MERGE INTO delta.`{theirs}` t USING ({NEW}) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = 'new' "
            "WHEN NOT MATCHED THEN INSERT (id, p, name) VALUES (s.id, s.p, 'new')"
        )
    delta.run(statement)
    result = delta.job(operation=operation, table_uri=ours, arguments=arguments)
    assert result["status"] == "committed", result["error"]
    found = [ours]
    if operation == "update":
        # A plain update needs no Spark.
        committed(run(None, operation, here, **arguments))
        found.append(here)
    live, changes = counts(theirs)
    rows = delta.read(theirs)["rows"]
    for uri in found:
        ours_live, ours_changes = counts(uri)
        assert ours_live.keys() == live.keys()
        assert all(ours_live[partition] <= live[partition] for partition in live)
        assert ours_changes <= changes
        assert delta.read(uri)["rows"] == rows
