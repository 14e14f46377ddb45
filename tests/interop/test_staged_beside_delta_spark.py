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
def test_changes_are_staged_rebased_and_published_beside_another_engine(delta: DeltaSpark, tmp_path: Path) -> None:
    files = [rows(10, start=start) for start in (0, 50, 80)]
    table = make_table(tmp_path / "t", *files, properties=PROPERTIES)
    name = f"delta.`{tmp_path / 't'}`"
    staged = [
        stage("update", table, predicate="id < 5", set={"name": "'x'"}),
        stage("delete", table, predicate="id >= 85 AND id < 100"),
    ]
    counts = f"SELECT count(*) AS n, count_if(name = 'x') AS x FROM {name}"
    assert delta.sql(counts) == [{"n": 30, "x": 0}]
    delta.run(
        f"INSERT INTO {name} SELECT id + 100 AS id, day, 'new' AS name, amount FROM {name} WHERE id < 3",
        f"DELETE FROM {name} WHERE id = 55",
        f"VACUUM {name}",
    )
    for handle, expected in zip(staged, ({"n": 32, "x": 5}, {"n": 27, "x": 5}), strict=True):
        committed(publish(handle))
        assert delta.sql(counts) == [expected]
    found = delta.sql(f"SELECT id, name, _metadata.row_id AS row_id FROM {name}")
    assert {row["id"]: row["name"] for row in found} == by_id(table)
    assert len({row["row_id"] for row in found}) == len(found)
    delta.run(f"UPDATE {name} SET name = 'theirs' WHERE id = 9", f"OPTIMIZE {name}")
    assert by_id(table)[9] == "theirs"
