"""Increments beside delta-spark: it writes to tables with watermarks, and its RESTORE and CLONE are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_txlog.engine import Table
from tests.helpers.delta_spark import DeltaSpark
from tests.helpers.depth import by_hand
from tests.helpers.jobs import committed, error_of, ids, read_alike, rows, run
from tests.helpers.rows import append, make_table

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long("delta-spark in a JVM of its own"),
    by_hand("twenty seconds of delta-spark"),
]


def test_delta_spark_writes_beside_watermarks_and_its_restore_is_found(delta: DeltaSpark, tmp_path: Path) -> None:
    tracked = {"delta.enableRowTracking": "true"}
    source, folder = make_table(tmp_path / "s", rows(3), properties=tracked), tmp_path / "t"
    given = {"source": {"table": source.uri}, "consumer": "c", "changes": True}
    committed(run(None, "incremental", folder, **given))
    # Copies of rows that did not change keep their ids.
    delta.run(f"UPDATE delta.`{tmp_path / 's'}` SET name = 'x' WHERE id = 1")
    delta.run(f"DELETE FROM delta.`{folder}` WHERE id = 0")
    committed(run(None, "incremental", folder, **given))
    target = Table.open(str(folder))
    assert ids(target) == [1, 1, 1, 2]
    read_alike(target)
    delta.run(f"RESTORE TABLE delta.`{folder}` TO VERSION AS OF 1")
    append(source, rows(1, start=9))
    error = error_of(run(None, "incremental", folder, **given))
    assert (error["type"], error["facts"]["restored_version"]) == ("WatermarkLost", 1)
    delta.run(f"CREATE TABLE delta.`{tmp_path / 'k'}` SHALLOW CLONE delta.`{folder}`")
    assert error_of(run(None, "incremental", tmp_path / "k", **given))["type"] == "WatermarkLost"
