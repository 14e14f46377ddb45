"""delta-spark beside a staged change: it sees nothing of it, commits meanwhile, and reads what is published."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.delta_spark import DeltaSpark
from tests.helpers.jobs import by_id, committed, rows
from tests.helpers.rows import make_table
from tests.helpers.staged import publish, stage

PROPERTIES = {
    "delta.enableDeletionVectors": "true",
    "delta.enableRowTracking": "true",
    "delta.isolationLevel": "WriteSerializable",
}


@pytest.mark.long("other readers and writers than ours are shown in short by delta-rs")
@pytest.mark.parametrize("operation", ["update", "delete"])
def test_a_change_is_staged_rebased_and_published_beside_another_engine(
    delta: DeltaSpark, tmp_path: Path, operation: str
) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=50), properties=PROPERTIES)
    name = f"delta.`{tmp_path / 't'}`"
    change = {"set": {"name": "'x'"}} if operation == "update" else {}
    handle = stage(operation, table, predicate="id < 5", **change)
    before = f"SELECT count(*) AS n, count_if(name = 'x') AS x FROM {name}"
    assert delta.sql(before) == [{"n": 20, "x": 0}]
    delta.run(
        f"INSERT INTO {name} SELECT id + 100 AS id, day, 'new' AS name, amount FROM {name} WHERE id < 3",
        f"DELETE FROM {name} WHERE id = 55",
        f"VACUUM {name}",
    )
    committed(publish(handle))
    expected = {"update": {"n": 22, "x": 5}, "delete": {"n": 17, "x": 0}}[operation]
    assert delta.sql(before) == [expected]
    found = delta.sql(f"SELECT id, name, _metadata.row_id AS row_id FROM {name}")
    assert {row["id"]: row["name"] for row in found} == by_id(table)
    assert len({row["row_id"] for row in found}) == len(found)
    delta.run(f"UPDATE {name} SET name = 'theirs' WHERE id = 9", f"OPTIMIZE {name}")
    assert by_id(table)[9] == "theirs"
