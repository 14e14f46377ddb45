"""delta-spark reads what we write, writes on, and we read that: both ways, on the same tables.

Skipped where delta-spark's jars are not there; `tools/ensure_delta_spark.sh` fetches them, and nothing here asks a
network.
"""

from __future__ import annotations

import datetime as dt
import json
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.table.schema.schema import schema_to_json
from airflow_txlog.engine.table.snapshot.files import vectors_of
from tests.helpers.delta_spark import DeltaSpark
from tests.helpers.depth import LONG
from tests.helpers.rows import append
from tests.helpers.vectors import mask_by_us
from tests.interop.reference.plain import plain_rows, plain_type
from tests.interop.test_deltalake_reads_ours import (
    ALL_TYPES,
    ALL_TYPES_ROWS,
    PARTITION_STRINGS,
    PARTITION_TYPES,
    PEOPLE,
    delete_commits,
    people,
)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow("delta-spark in a JVM of its own"),
]

UTC = dt.UTC


def assert_both_read(
    delta: DeltaSpark, uri: str, expected: pa.Table | list[dict[str, Any]] | None = None, version: int | None = None
) -> None:
    """Both sides read the same rows and the same schema, and where rows are given, these."""
    table = Table.open(uri)
    ours = plain_rows(table.to_arrow(version=version))
    theirs = delta.read(uri, version)
    assert ours == theirs["rows"]
    assert plain_type(json.loads(schema_to_json(table.snapshot(version).delta_schema))) == theirs["schema"]
    if expected is not None:
        rows = expected if isinstance(expected, pa.Table) else pa.Table.from_pylist(expected)
        assert ours == plain_rows(rows)


# --- delta-spark reads ours ------------------------------------------------------------------------------------------


@pytest.mark.long("statements of delta-spark, seconds each; deltalake reads every type in make test")
def test_every_type_is_read_as_we_wrote_it(delta: DeltaSpark, uri: str) -> None:
    schema = ALL_TYPES.append(pa.field("a_timestamp_ntz", pa.timestamp("us")))
    values = [dt.datetime(1900, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999), None]
    rows = [row | {"a_timestamp_ntz": value} for row, value in zip(ALL_TYPES_ROWS, values, strict=True)]
    table = Table.create(uri, schema)
    append(table, rows)
    assert_both_read(delta, uri, pa.Table.from_pylist(rows, schema=schema))
    delete_commits(uri, table.checkpoint())
    assert_both_read(delta, uri, pa.Table.from_pylist(rows, schema=schema))


@pytest.mark.long("statements of delta-spark, seconds each")
def test_partition_values_of_every_type(delta: DeltaSpark, uri: str) -> None:
    fields = [pa.field(kind, arrow_type) for kind, (arrow_type, _) in PARTITION_TYPES.items()]
    schema = pa.schema([pa.field("id", pa.int64()), *fields])
    rows = [
        {"id": index} | {kind: values[index] for kind, (_, values) in PARTITION_TYPES.items()} for index in range(3)
    ]
    table = Table.create(uri, schema, list(PARTITION_TYPES))
    append(table, rows)
    assert_both_read(delta, uri, pa.Table.from_pylist(rows, schema=schema))
    chosen = " AND ".join(
        [
            "boolean AND byte = -128 AND long = 9223372036854775807 AND float = 0.5F AND double = 0.1D",
            "decimal = 1.50 AND string = 'a' AND date = DATE'2013-01-31'",
            "timestamp = TIMESTAMP'2024-11-03 01:30:00Z' AND timestamp_ntz = TIMESTAMP_NTZ'2024-01-01 10:00:00.12'",
        ]
    )
    assert delta.sql(f"SELECT id FROM delta.`{uri}` WHERE {chosen}") == [{"id": 0}]
    delete_commits(uri, table.checkpoint())
    assert_both_read(delta, uri, pa.Table.from_pylist(rows, schema=schema))


@pytest.mark.long("statements of delta-spark, seconds each; deltalake reads odd partition values in make test")
def test_partition_values_with_anything_in_them(delta: DeltaSpark, uri: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("part:1%", pa.string())])
    rows = pa.table({"id": range(len(PARTITION_STRINGS)), "part:1%": PARTITION_STRINGS}, schema=schema)
    append(Table.create(uri, schema, ["part:1%"]), rows)
    assert_both_read(delta, uri, rows)
    delta.run(f"DELETE FROM delta.`{uri}` WHERE id % 2 = 0", f"OPTIMIZE delta.`{uri}`")
    assert_both_read(delta, uri, rows.filter(pa.array([k % 2 == 1 for k in range(rows.num_rows)])))


@pytest.mark.long("delta-spark takes seconds for each of its own statements")
def test_every_version_and_the_history_are_read_alike(delta: DeltaSpark, uri: str) -> None:
    table = Table.create(uri, PEOPLE, ["name"], {"delta.checkpointInterval": "4"})
    append(table, people("ann", "bob"))
    tx = table.begin()
    tx.remove(tx.read("name = 'ann'"))
    tx.set_application("nightly", 3)
    tx.commit("DELETE", {"predicate": "[\"name = 'ann'\"]"}, {"numRemovedFiles": 1})
    append(table, people("cid", "dot", "eve", start=2))
    tx = table.begin()
    tx.remove(tx.read_whole_table())
    tx.commit("WRITE", {"mode": "Overwrite"})
    append(table, people("fay", start=9))
    table.restore(3)
    assert (Path(uri) / "_delta_log" / "00000000000000000004.checkpoint.parquet").exists()
    for version in range(7):
        assert_both_read(delta, uri, version=version)
    told = sorted(delta.sql(f"DESCRIBE HISTORY delta.`{uri}`"), key=lambda line: int(line["version"]))
    fields = ("version", "operation", "isBlindAppend", "isolationLevel", "readVersion")
    ours = [{field: info.get(field) for field in fields} for info in reversed(table.history())]
    assert [{field: line[field] for field in fields} for line in told] == ours
    assert len(told) == 7
    assert all("txlog" in line["engineInfo"] for line in told)


@pytest.mark.long("delta-spark takes seconds for each of its own statements")
def test_vectors_of_ours_are_read_grown_purged_and_spared_by_delta_spark(delta: DeltaSpark, uri: str) -> None:
    properties = {
        "delta.enableDeletionVectors": "true",
        "delta.randomizeFilePrefixes": "true",
        "delta.enableRowTracking": "true",
    }
    table = Table.create(uri, pa.schema([("id", pa.int64())]), properties=properties)
    count = 200_000
    append(table, pa.table({"id": pa.array(range(count), pa.int64())}))
    append(table, pa.table({"id": pa.array(range(count, count + 100), pa.int64())}))

    def check(expected: set[int]) -> None:
        ours = table.to_arrow().column("id").to_pylist()
        assert len(ours) == len(expected)
        assert set(ours) == expected
        (theirs,) = delta.sql(f"SELECT count(*) AS n, sum(id) AS total, sum(id * id) AS squares FROM delta.`{uri}`")
        assert theirs == {
            "n": len(expected),
            "total": sum(expected),
            "squares": sum(key * key for key in expected),
        }

    left = set(range(count + 100))
    files = table.snapshot().files().sort_by("path").column("stats").to_pylist()
    large = next(number for number, stats in enumerate(files) if json.loads(stats)["numRecords"] == count)
    # A part as bits, one as positions, one as runs; and a second vector in the same file.
    mask_by_us(
        table, {large: [*range(0, 65_536, 3), *range(70_000, 70_100, 7), *range(131_072, count)], 1 - large: [5]}
    )
    left -= {*range(0, 65_536, 3), *range(70_000, 70_100, 7), *range(131_072, count), count + 5}
    check(left)
    delta.run(f"DELETE FROM delta.`{uri}` WHERE id % 1000 = 1")
    left -= set(range(1, count + 100, 1000))
    check(left)
    mask_by_us(table, {large: range(100_000, 131_072)})
    left -= set(range(100_000, 131_072))
    check(left)
    delta.run(f"VACUUM delta.`{uri}` RETAIN 0 HOURS")
    check(left)
    delta.run(f"REORG TABLE delta.`{uri}` APPLY (PURGE)")
    check(left)
    assert not vectors_of(table.snapshot().files())


@pytest.mark.long("statements of delta-spark, seconds each")
def test_a_vacuum_of_ours_leaves_what_delta_spark_needs(delta: DeltaSpark, uri: str) -> None:
    table = Table.create(uri, PEOPLE)
    append(table, people("ann", "bob"))
    tx = table.begin()
    tx.remove(tx.read_whole_table())
    tx.commit("WRITE", {"mode": "Overwrite"})
    append(table, people("cid"))
    removed = table.vacuum(0, check_retention=False, orphan_retention=timedelta(days=7))
    assert removed.deleted_files == 1
    assert_both_read(delta, uri, people("cid"))


EDGES: list[dict[str, Any]] = [
    {"d": 1.0, "f": 0.1, "e": Decimal("12345678901234567.8900000000"), "s": "a" * 40, "n": 1},
    {"d": float("nan"), "f": float("nan"), "e": Decimal("-0.0000000001"), "s": "\U0001f680" * 40, "n": 2},
    {"d": float("inf"), "f": float("-inf"), "e": Decimal("9" * 28 + "." + "9" * 10), "s": "", "n": 3},
    {"d": -0.0, "f": 0.0, "e": None, "s": None, "n": None},
    {"d": 0.0, "f": -0.0, "e": Decimal(0), "s": "a" * 31 + "\U0010ffff" * 9, "n": 2**63 - 1},
]
MOMENTS = [
    dt.datetime(2024, 1, 1, 0, 0, 0, 123999, UTC),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
    dt.datetime(1, 1, 1, tzinfo=UTC),
    None,
]
PREDICATES = [
    "d > 5", "d >= 'NaN'", "d = double('NaN')", "d != 1", "NOT (d <= 1)", "d = 0", "d = -0.0D", "d < 0", "isnan(d)",
    "f > 5", "f = 0.1F", "f > 0.1D", "f = 0", "f < -1000",
    "e = 12345678901234567.89", "e > 12345678901234567.88", "e < 0", "e > 9e27", "e IS NULL", "e <=> NULL",
    f"s = '{'a' * 40}'", f"s > '{'a' * 39}'", f"s >= '{'a' * 31}b'", f"s LIKE '{'a' * 35}%'", "s = ''", "s > 'b'",
    "s < ' '", "s IS NOT NULL", "s = repeat('\U0001f680', 40)", "n >= 9223372036854775807", "n = 9223372036854775806",
    "t = TIMESTAMP'2024-01-01 00:00:00.123999Z'", "t > TIMESTAMP'2024-01-01 00:00:00.123Z'",
    "t >= TIMESTAMP'9999-12-31 23:59:59.999999Z'", "t < TIMESTAMP'0001-01-02 00:00:00Z'",
    "t > TIMESTAMP'1969-12-31 23:59:59.999Z' AND t < TIMESTAMP'1970-01-01 00:00:00Z'", "t IS NULL",
    "z = TIMESTAMP_NTZ'2024-01-01 00:00:00.123999'", "z < TIMESTAMP_NTZ'0001-01-02 00:00:00'", "x.y = 2", "x.y IS NULL",
]  # fmt: skip


@pytest.mark.seeded
@pytest.mark.long("thirteen queries of delta-spark")
def test_a6_a5_delta_spark_skips_no_file_of_ours_that_holds_a_row(delta: DeltaSpark, uri: str) -> None:
    """One row a file, so that a statistic which excludes a row loses it; every row is asked first, by no filter."""
    rows = [
        {"id": index, **edge, "t": moment, "z": moment and moment.replace(tzinfo=None), "x": {"y": edge["n"]}}
        for index, (edge, moment) in enumerate(zip(EDGES, MOMENTS, strict=True))
    ]
    instant, wall = pa.timestamp("us", "UTC"), pa.timestamp("us")
    types = {"id": pa.int64(), "d": pa.float64(), "f": pa.float32(), "e": pa.decimal128(38, 10), "s": pa.string()}
    types |= {"n": pa.int64(), "t": instant, "z": wall, "x": pa.struct([("y", pa.int64())])}
    table = Table.create(uri, pa.schema(list(types.items())))
    for row in rows:
        append(table, [row])
    stats = [json.loads(text) for text in table.snapshot().files()["stats"].to_pylist()]
    assert all(set(types) - {"id"} <= set(found["nullCount"]) and "id" in found["minValues"] for found in stats)
    # Each is a scan of its own by delta-spark, half a second. The third part has every column but x.
    predicates = PREDICATES if LONG else PREDICATES[2::3]
    query = " UNION ALL ".join(
        f"SELECT {index} AS q, id FROM delta.`{uri}` WHERE {predicate}" for index, predicate in enumerate(predicates)
    )
    answers = ", ".join(f"({predicate}) AS q{index}" for index, predicate in enumerate(predicates))
    asked = delta.sql(f"SELECT id, {answers} FROM delta.`{uri}`")
    without = plain_rows(
        pa.Table.from_pylist(
            [{"q": index, "id": row["id"]} for index in range(len(predicates)) for row in asked if row[f"q{index}"]]
        )
    )
    # By the dictionary of a Parquet column, Spark takes 0.0 and -0.0 apart, in files of its own too.
    pushdown = "SET spark.sql.parquet.filterPushdown ="
    found = {row["q"] for row in without}
    assert len(found) > len(predicates) * 0.8
    assert delta.sql(f"{pushdown} false", query) == without
    delete_commits(uri, table.checkpoint())
    assert delta.sql(query) == without
    delta.run(f"{pushdown} true")


@pytest.mark.long("three jobs, each read by both in a session of delta-spark")
def test_tables_of_our_jobs_are_read_alike(delta: DeltaSpark, uri: str) -> None:
    """Write, delete and merge as Airflow runs them, here in the session that has delta-spark beside."""
    source = "SELECT id, DATE'2024-01-01' AS day, concat('n', id) AS name FROM range({}, {})"
    steps: list[tuple[str, dict[str, Any]]] = [
        ("write", {"source": {"sql": source.format(0, 20)}, "mode": "append"}),
        ("delete", {"predicate": "id % 5 = 0"}),
        (
            "merge",
            {
                "source": {"sql": source.format(15, 25)},
                "on": "t.id = s.id",
                "clauses": [
                    {"when": "matched", "then": "update", "set": {"name": "upper(s.name)"}},
                    {"when": "not_matched", "then": "insert", "values": "*"},
                ],
            },
        ),
    ]
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("name", pa.string())])
    Table.create(uri, schema, ["day"])
    for operation, arguments in steps:
        result = delta.job(operation=operation, table_uri=uri, arguments=arguments, time_zone="UTC")
        assert result["status"] == "committed", result
        assert_both_read(delta, uri)
    assert Table.open(uri).to_arrow().num_rows == 22


@pytest.mark.long("delta-spark takes seconds for each of its own statements")
def test_the_rules_of_a_table_of_delta_spark_are_kept_and_its_schema_grows(delta: DeltaSpark, uri: str) -> None:
    """Delta-spark makes the rules and judges what our jobs wrote under them, types that we widened included."""
    place = f"delta.`{uri}`"
    delta.run(
        f"CREATE TABLE {place} (id INT, c CHAR(3), at TIMESTAMP, day DATE GENERATED ALWAYS AS (CAST(at AS DATE)), "
        "n INT DEFAULT 7, s STRUCT<a: SMALLINT>, l ARRAY<INT>) USING delta TBLPROPERTIES ("
        "'delta.feature.allowColumnDefaults' = 'supported', 'delta.enableTypeWidening' = 'true')",
        f"ALTER TABLE {place} ADD CONSTRAINT small CHECK (n < 100)",
        f"INSERT INTO {place} (id, c, at, s, l) VALUES (1, 'x', TIMESTAMP'2024-01-01 10:00:00', struct(2S), array(3))",
    )
    wider = "named_struct('a', 70000, 'b', 'new') AS s, array(6000000000L) AS l, map('k', 1.5D) AS extra"
    source = {"sql": f"SELECT 5000000000L AS id, 'y' AS c, TIMESTAMP'2024-02-02 10:00:00' AS at, {wider}"}
    for arguments, status in (
        ({"source": {"sql": "SELECT 9 AS id, 100 AS n"}}, "failed"),
        ({"source": {"sql": "SELECT 9 AS id, 'abcd' AS c"}}, "failed"),
        ({"source": source, "schema_evolution": True}, "committed"),
    ):
        result = delta.job(operation="write", table_uri=uri, arguments=arguments)
        assert result["status"] == status, result
    updated = {"set": {"at": "TIMESTAMP'2025-05-05 00:00:00'", "c": "'z'", "n": "DEFAULT"}, "predicate": "id = 1"}
    result = delta.job(operation="update", table_uri=uri, arguments=updated)
    assert result["status"] == "committed", result
    assert_both_read(delta, uri)
    # What delta-spark would have refused, or computed otherwise, is not there; and it goes on writing.
    (row,) = delta.sql(
        f"SELECT count(*) AS n FROM {place} WHERE n = 7 AND day <=> CAST(at AS DATE) AND length(c) = 3 AND id > 0"
    )
    assert row == {"n": 2}
    delta.run(f"INSERT INTO {place} (id, n, s) VALUES (6000000000, 8, struct(80000, 'both'))")
    assert_both_read(delta, uri)


UPSERT = {
    "source": {"sql": "SELECT * FROM VALUES (1L, 'one'), (2L, 'two'), (30L, 'new') AS s(id, name)"},
    "on": "t.id = s.id",
    "clauses": [
        {"when": "matched", "condition": "s.id = 1", "then": "update", "set": {"name": "s.name", "day": "NULL"}},
        {"when": "matched", "then": "delete"},
        {"when": "not_matched", "then": "insert", "values": {"id": "s.id", "name": "s.name"}},
    ],
}


@pytest.mark.long("delta-spark takes seconds for each of its own statements")
@pytest.mark.parametrize(
    "properties",
    [{"delta.columnMapping.mode": "id"}, {"delta.enableDeletionVectors": "true"}],
    ids=["mapped by id", "with vectors"],
)
def test_the_change_feed_is_read_alike_whoever_wrote_it(
    delta: DeltaSpark, uri: str, properties: dict[str, str]
) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("name", pa.string())])
    table = Table.create(uri, schema, ["day"], {"delta.enableChangeDataFeed": "true", **properties})
    for day in (1, 2):
        append(table, [{"id": k, "day": dt.date(2024, 1, k % 2 + 1), "name": f"n{k}"} for k in range(day * 10)])
    for operation, arguments in (
        ("delete", {"predicate": "id = 3"}),
        ("update", {"predicate": "id = 4", "set": {"name": "'u'"}}),
        ("merge", UPSERT),
        ("delete", {"predicate": "day = DATE'2024-01-02'"}),
    ):
        result = delta.job(operation=operation, table_uri=uri, arguments=arguments, time_zone="UTC")
        assert result["status"] == "committed", result
    delta.run(
        f"UPDATE delta.`{uri}` SET name = 'theirs' WHERE id = 6",
        f"DELETE FROM delta.`{uri}` WHERE id = 8",
        f"MERGE INTO delta.`{uri}` t USING (SELECT 6L AS id UNION ALL SELECT 60L) s ON t.id = s.id "
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)",
    )
    ours = plain_rows(Table.open(uri).changes(0))
    assert ours == plain_rows_of(delta.sql(f"SELECT * FROM table_changes_by_path('{uri}', 0)"))
    kinds = {(row["_commit_version"], row["_change_type"]) for row in ours}
    assert {kind for version, kind in kinds if version == 5} == {
        "delete", "insert", "update_preimage", "update_postimage"
    }  # fmt: skip
    assert_both_read(delta, uri)


def plain_rows_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that are plain already, in the order of `plain_rows`."""
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


# --- delta-spark changes ours, and we go on --------------------------------------------------------------------------


@pytest.mark.long("delta-spark takes seconds for each of its own statements")
def test_both_commit_in_turn(delta: DeltaSpark, uri: str) -> None:
    """Twenty versions and two checkpoints, ours and theirs, each on top of the other's."""
    table = Table.create(uri, PEOPLE, properties={"delta.checkpointInterval": "6"})
    names: list[str] = []
    for number in range(0, 20, 2):
        append(table, people(f"ours {number}", start=number))
        names.append(f"ours {number}")
        if number == 10:
            delta.run(f"DELETE FROM delta.`{uri}` WHERE id = 4")
            names.remove("ours 4")
        else:
            delta.run(f"INSERT INTO delta.`{uri}` VALUES ({number + 1}, 'theirs {number + 1}')")
            names.append(f"theirs {number + 1}")
    assert sorted(table.to_arrow()["name"].to_pylist()) == sorted(names)
    assert table.snapshot().version == 20
    assert_both_read(delta, uri)
    tx = table.begin()
    tx.remove(tx.read_whole_table())
    tx.commit("WRITE", {"mode": "Overwrite"})
    assert_both_read(delta, uri, PEOPLE.empty_table())


@pytest.mark.long("delta-spark takes seconds for each of its own statements")
def test_delta_spark_alters_optimizes_and_restores_a_table_of_ours(delta: DeltaSpark, uri: str) -> None:
    table = Table.create(uri, PEOPLE, ["name"])
    append(table, people("ann", "bob", "ann"))
    delta.run(f"ALTER TABLE delta.`{uri}` ADD COLUMNS (born DATE)")
    append(table, [{"id": 5, "name": "eve", "born": dt.date(1999, 1, 1)}])
    delta.run(f"OPTIMIZE delta.`{uri}`", f"UPDATE delta.`{uri}` SET id = id + 10 WHERE name = 'bob'")
    assert_both_read(delta, uri)
    delta.run(f"RESTORE TABLE delta.`{uri}` TO VERSION AS OF 1")
    assert_both_read(delta, uri, people("ann", "bob", "ann"))
    append(table, people("dot", start=7))
    delta.run(f"VACUUM delta.`{uri}` RETAIN 0 HOURS")
    assert_both_read(delta, uri)


@pytest.mark.long("delta-spark takes seconds for each of its own statements")
def test_a_mapped_table_of_ours_is_renamed_and_widened_by_delta_spark(delta: DeltaSpark, uri: str) -> None:
    properties = {"delta.columnMapping.mode": "name", "delta.enableInCommitTimestamps": "true"}
    schema = pa.schema([("an id", pa.int32()), ("part, one", pa.string()), ("x", pa.struct([("y", pa.int16())]))])
    table = Table.create(uri, schema, ["part, one"], properties)
    append(table, [{"an id": 1, "part, one": "a/b", "x": {"y": 1}}])
    assert_both_read(delta, uri)
    delta.run(
        f"ALTER TABLE delta.`{uri}` RENAME COLUMN `part, one` TO part",
        f"ALTER TABLE delta.`{uri}` RENAME COLUMN x.y TO z",
        f"ALTER TABLE delta.`{uri}` SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
        f"ALTER TABLE delta.`{uri}` ALTER COLUMN `an id` TYPE BIGINT",
    )
    append(table, [{"an id": 2**40, "part": "a=b", "x": {"z": 2}}])
    assert_both_read(delta, uri)
    delta.run(f"ALTER TABLE delta.`{uri}` DROP COLUMN x", f"ALTER TABLE delta.`{uri}` ADD COLUMNS (x INT)")
    append(table, [{"an id": 3, "part": None, "x": 7}])
    delete_commits(uri, table.checkpoint())
    rows = [
        {"an id": 1, "part": "a/b", "x": None},
        {"an id": 2**40, "part": "a=b", "x": None},
        {"an id": 3, "part": None, "x": 7},
    ]
    assert_both_read(delta, uri, rows)


@pytest.mark.long("delta-spark takes seconds for each of its own statements")
def test_both_write_a_table_with_vectors_and_row_ids(delta: DeltaSpark, uri: str) -> None:
    delta.run(
        f"CREATE TABLE delta.`{uri}` (id BIGINT, name STRING) USING delta TBLPROPERTIES ("
        "'delta.enableDeletionVectors' = 'true', 'delta.enableRowTracking' = 'true', 'delta.checkpointPolicy' = 'v2', "
        "'delta.enableInCommitTimestamps' = 'true')",
        f"INSERT INTO delta.`{uri}` SELECT id, concat('n', id) FROM range(10)",
        f"DELETE FROM delta.`{uri}` WHERE id IN (2, 3)",
    )
    table = Table.open(uri)
    append(table, people("ann", "bob", "cid", start=20))
    assert_both_read(delta, uri)
    delta.run(f"DELETE FROM delta.`{uri}` WHERE id IN (4, 21)")
    table.checkpoint()
    append(table, people("dot", start=30))
    assert_both_read(delta, uri)
    delta.run(f"OPTIMIZE delta.`{uri}`")
    (ids,) = delta.sql(f"SELECT count(*) AS n, count(DISTINCT _metadata.row_id) AS ids FROM delta.`{uri}`")
    assert ids == {"n": 10, "ids": 10}
    assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 1, 5, 6, 7, 8, 9, 20, 22, 30]
    version = table.checkpoint()
    # A V2 checkpoint of ours, by its name, is all that is left.
    assert len(list((Path(uri) / "_delta_log").glob(f"{version:020d}.checkpoint.????????-*"))) == 1
    delete_commits(uri, version)
    assert_both_read(delta, uri)


@pytest.mark.long("statements of delta-spark, seconds each")
def test_a_source_reads_the_target_through_delta_spark_and_never_its_raw_files(delta: DeltaSpark, uri: str) -> None:
    delta.run(
        f"CREATE TABLE delta.`{uri}` (id BIGINT, name STRING) USING delta "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        f"INSERT INTO delta.`{uri}` SELECT id, concat('n', id) FROM range(10)",
        f"DELETE FROM delta.`{uri}` WHERE id > 1",
    )

    def write(relation: str) -> dict[str, Any]:
        arguments = {"source": {"sql": f"SELECT id + 10 AS id, name FROM {relation}"}}
        return delta.job(operation="write", table_uri=uri, arguments=arguments, unrestricted=["query"])

    refused = write(f"parquet.`{uri}`")
    assert refused["error"]["type"] == "InvalidJobSpec"
    assert write(f"delta.`{uri}`")["status"] == "committed"
    assert sorted(Table.open(uri).to_arrow()["id"].to_pylist()) == [0, 1, 10, 11]
