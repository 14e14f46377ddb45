"""OPTIMIZE beside delta-spark: what it wrote we compact, and it reads the very same rows, ids and changes.

Skipped where delta-spark's jars are not there. One child process runs delta-spark and our jobs alike.
"""

from __future__ import annotations

from typing import Any

import pytest

from airflow_txlog.engine import Table
from tests.helpers.delta_spark import DeltaSpark
from tests.interop.reference.plain import plain_rows

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow("delta-spark in a JVM of its own"),
]


def optimize(delta: DeltaSpark, uri: str, **arguments: Any) -> dict[str, Any]:
    result = delta.job(operation="optimize", table_uri=uri, arguments=arguments)
    assert result["status"] == "committed", result["error"]
    return result


@pytest.mark.long("delta-spark takes seconds for each of its own statements")
def test_rows_and_their_ids_are_those_of_before_and_the_history_says_what(delta: DeltaSpark, uri: str) -> None:
    name = f"delta.`{uri}`"
    properties = ["enableRowTracking", "enableDeletionVectors"]
    delta.run(
        f"CREATE TABLE {name} (id BIGINT, p STRING, x INT) USING delta PARTITIONED BY (p) TBLPROPERTIES ("
        + ", ".join(f"'delta.{key}' = 'true'" for key in properties)
        + ", 'delta.columnMapping.mode' = 'name')",
        *(
            f"INSERT INTO {name} SELECT id, if(id % 3 = 0, NULL, 'p' || id % 2), CAST(id % 7 AS INT) "
            f"FROM range({start}, {start + 20})"
            for start in range(0, 100, 20)
        ),
        f"DELETE FROM {name} WHERE id % 10 = 4",
        # Rows that were updated have their ids in the file.
        f"UPDATE {name} SET x = -1 WHERE id % 10 = 5",
    )
    ids = f"SELECT id, p, x, _metadata.row_id AS rid, _metadata.row_commit_version AS rv FROM {name} ORDER BY id"
    before = delta.sql(ids)
    assert len(before) == 90
    compacted = optimize(delta, uri, partition_predicate="p IS NOT NULL")
    assert compacted["metrics"]["numAddedFiles"] == 2
    assert compacted["metrics"]["numDeletionVectorsRemoved"] > 0
    assert delta.sql(ids) == before
    optimize(delta, uri, zorder_by=["x", "id"])
    assert delta.sql(ids) == before
    delta.run(f"DELETE FROM {name} WHERE id % 10 = 7")
    purged = optimize(delta, uri, purge=True)
    assert delta.sql(ids) == [row for row in before if row["id"] % 10 != 7]
    assert Table.open(uri).snapshot().files().column("deletion_vector").null_count == 3
    history = delta.sql(f"DESCRIBE HISTORY {name}")
    told = {row["version"]: row for row in history}
    assert [told[result["version"]]["operation"] for result in (compacted, purged)] == ["OPTIMIZE", "REORG"]
    # It goes on from there: numbers new rows, compacts what we compacted.
    delta.run(f"INSERT INTO {name} VALUES (1000, 'p1', 1)", f"OPTIMIZE {name}")
    rows = delta.sql(ids)
    assert len({row["rid"] for row in rows}) == len(rows) == 81
    assert plain_rows(Table.open(uri).to_arrow()) == delta.read(uri)["rows"]


@pytest.mark.long("delta-spark takes seconds for each of its own statements")
def test_files_of_before_and_after_changes_of_the_schema_become_one(delta: DeltaSpark, uri: str) -> None:
    name = f"delta.`{uri}`"
    delta.run(
        f"CREATE TABLE {name} (a INT, gone STRING, s STRUCT<x: SMALLINT>, t TIMESTAMP, d DECIMAL(5, 2)) USING delta "
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.enableTypeWidening' = 'true', "
        "'delta.enableChangeDataFeed' = 'true')",
        f"INSERT INTO {name} VALUES (1, 'old', named_struct('x', 1S), TIMESTAMP'9999-12-31 12:00:00Z', 1.25), "
        "(NULL, NULL, NULL, NULL, NULL)",
        f"ALTER TABLE {name} ALTER COLUMN a TYPE BIGINT",
        f"ALTER TABLE {name} ALTER COLUMN s.x TYPE INT",
        f"ALTER TABLE {name} ALTER COLUMN d TYPE DECIMAL(10, 3)",
        f"ALTER TABLE {name} DROP COLUMN gone",
        f"ALTER TABLE {name} ADD COLUMNS (gone ARRAY<STRING>, s.y STRING)",
        f"ALTER TABLE {name} RENAME COLUMN a TO `a b`",
        f"INSERT INTO {name} VALUES (9999999999, named_struct('x', 100000, 'y', 'é'), "
        "TIMESTAMP'0001-01-01 00:00:00Z', 1234567.125, array('new', NULL))",
    )
    before = delta.read(uri)
    version = optimize(delta, uri)["version"]
    assert Table.open(uri).snapshot().num_files == 1
    assert delta.read(uri) == before
    assert plain_rows(Table.open(uri).to_arrow()) == before["rows"]
    changes = f"SELECT count(*) AS n FROM table_changes('{uri}', {version})"
    assert delta.sql(changes.replace(f"table_changes('{uri}'", f"table_changes_by_path('{uri}'")) == [{"n": 0}]
