"""What we write, `deltalake` reads row for row."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from airflow_txlog.engine import Table
from tests.helpers.readers import assert_both_read, rows_by_deltalake
from tests.helpers.rows import append, bag, overwrite, stage, stage_changes

UTC = dt.UTC
PEOPLE = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])

NESTED = pa.struct([pa.field("city", pa.string()), pa.field("codes", pa.list_(pa.int32()))])
ALL_TYPES = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("a_boolean", pa.bool_()),
        pa.field("a_byte", pa.int8()),
        pa.field("a_short", pa.int16()),
        pa.field("an_integer", pa.int32()),
        pa.field("a_long", pa.int64()),
        pa.field("a_float", pa.float32()),
        pa.field("a_double", pa.float64()),
        pa.field("a_decimal", pa.decimal128(10, 2)),
        pa.field("a_long_decimal", pa.decimal128(38, 18)),
        pa.field("a_string", pa.string()),
        pa.field("a_binary", pa.binary()),
        pa.field("a_date", pa.date32()),
        pa.field("a_timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("a_struct", NESTED),
        pa.field("an_array", pa.list_(pa.string())),
        pa.field("a_map", pa.map_(pa.string(), pa.int64())),
    ]
)
ALL_TYPES_ROWS = [
    {
        "id": 1,
        "a_boolean": True,
        "a_byte": -128,
        "a_short": 32767,
        "an_integer": -(2**31),
        "a_long": 2**63 - 1,
        "a_float": 0.1,
        "a_double": float("nan"),
        "a_decimal": decimal.Decimal("12345678.90"),
        "a_long_decimal": decimal.Decimal("12345678901234567.890000000000000001"),
        "a_string": 'Zoë O\'Brien \\ "quoted" \n 🚀',
        "a_binary": b"\x00\xff",
        "a_date": dt.date(1582, 10, 4),
        "a_timestamp": dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        "a_struct": {"city": "Oslo", "codes": [1, None, 3]},
        "an_array": ["a", None, ""],
        "a_map": [("k", 1), ("l", None)],
    },
    {"id": 2, "a_double": -0.0, "a_timestamp": dt.datetime(1, 1, 1, tzinfo=UTC), "an_array": [], "a_map": []},
    {"id": 3, "a_double": float("inf"), "a_struct": {"city": None, "codes": None}, "a_string": ""},
]


def people(*names: str, start: int = 0) -> pa.Table:
    return pa.Table.from_pylist([{"id": start + i, "name": name} for i, name in enumerate(names)], schema=PEOPLE)


def delete_commits(uri: str, up_to: int) -> None:
    """Leave the log with what a cleanup leaves: the checkpoint at `up_to`, and no commit up to it but its own."""
    for path in (Path(uri) / "_delta_log").glob("*.json"):
        if path.stem.isdigit() and int(path.stem) < up_to:
            path.unlink()


def test_every_type_is_read_back(uri: str) -> None:
    rows = pa.Table.from_pylist(ALL_TYPES_ROWS, schema=ALL_TYPES)
    append(Table.create(uri, ALL_TYPES), rows)
    assert_both_read(uri, rows)
    assert json.loads(DeltaTable(uri).schema().to_json()) == json.loads(
        Table.open(uri).snapshot().metadata.schema_string
    )


def test_a_timestamp_without_zone_is_read_back(uri: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("at", pa.timestamp("us"))])
    times = [dt.datetime(1900, 1, 1), None, dt.datetime(2262, 4, 12, 0, 0, 0, 1), dt.datetime(9999, 12, 31)]
    rows = pa.table({"id": range(4), "at": times}, schema=schema)
    append(Table.create(uri, schema), rows)
    assert_both_read(uri, rows)


def test_append_overwrite_and_removed_files(uri: str) -> None:
    table = Table.create(uri, PEOPLE)
    append(table, people("ann", "bob"))
    append(table, people("cid", start=2))
    assert_both_read(uri, people("ann", "bob", "cid"))
    overwrite(table, people("dot"))
    assert_both_read(uri, people("dot"))
    transaction = table.begin()
    transaction.remove(transaction.read_whole_table())
    transaction.commit("DELETE", {"predicate": "[]"})
    assert_both_read(uri, people())
    assert_both_read(uri, people("ann", "bob", "cid"), version=2)


def test_history_is_read_with_operation_and_parameters(uri: str) -> None:
    append(Table.create(uri, PEOPLE), people("ann"), metrics={"numFiles": 1, "numOutputRows": 1})
    newest = DeltaTable(uri).history(1)[0]
    assert newest["operation"] == "WRITE"
    assert newest["version"] == 1
    assert newest["operationParameters"]["mode"] in ("Append", '"Append"')


def test_an_application_transaction_is_read(uri: str) -> None:
    append(Table.create(uri, PEOPLE), people("ann"), application=("nightly/load", 7))
    assert DeltaTable(uri).transaction_version("nightly/load") == 7


@pytest.mark.parametrize("partitioned", [False, True], ids=["unpartitioned", "partitioned"])
def test_the_checkpoint_alone_is_enough(uri: str, partitioned: bool) -> None:
    table = Table.create(uri, PEOPLE, ["name"] if partitioned else [], {"delta.appendOnly": "false"})
    append(table, people("ann", "bob"))
    overwrite(table, people("cid", "dot"))
    version = append(table, people("eve", start=2), application=("nightly/load", 7))
    assert table.checkpoint() == version
    delete_commits(uri, version + 1)
    assert_both_read(uri, people("cid", "dot", "eve"))
    assert DeltaTable(uri).transaction_version("nightly/load") == 7
    assert DeltaTable(uri).metadata().configuration["delta.appendOnly"] == "false"
    # Both go on from there.
    append(Table.open(uri), people("fay", start=3))
    assert_both_read(uri, people("cid", "dot", "eve", "fay"))


def test_checkpoints_come_by_themselves_and_carry_on(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = Table.create(uri, PEOPLE)
    for number in range(23):
        append(table, people(f"p{number}", start=number))
    log = tmp_path / "t" / "_delta_log"
    assert [path.name for path in sorted(log.glob("*.checkpoint.parquet"))] == [
        f"{version:020d}.checkpoint.parquet" for version in (10, 20)
    ]
    delete_commits(uri, 20)
    assert_both_read(uri, people(*(f"p{number}" for number in range(23))))


PARTITION_STRINGS = [
    "plain",
    "with space",
    "percent%25",
    "a:b",
    "a/b",
    "a=b",
    "it's",
    'quo"te',
    "back\\slash",
    "star*",
    "quest?",
    "hash#",
    "bra[ck]et",
    "cur{l}y",
    "caret^",
    "bar+%21",
    "tab\tnew\nline",
    "Zoë 🚀",
    "__HIVE_DEFAULT_PARTITION__x",
    " leading",
    "dot.",
    None,
]


def test_partition_values_with_anything_in_them(uri: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("Part-Öne", pa.string())])
    rows = pa.table({"id": range(len(PARTITION_STRINGS)), "Part-Öne": PARTITION_STRINGS}, schema=schema)
    table = Table.create(uri, schema, ["Part-Öne"])
    append(table, rows)
    assert_both_read(uri, rows)
    version = table.checkpoint()
    delete_commits(uri, version + 1)
    assert_both_read(uri, rows)


PARTITION_TYPES = {
    "boolean": (pa.bool_(), [True, False, None]),
    "byte": (pa.int8(), [-128, 127, None]),
    "short": (pa.int16(), [-32768, 5, None]),
    "integer": (pa.int32(), [-(2**31), 7, None]),
    "long": (pa.int64(), [2**63 - 1, 0, None]),
    "float": (pa.float32(), [0.5, -2.25, None]),
    "double": (pa.float64(), [0.1, 1e300, None]),
    "decimal": (pa.decimal128(10, 2), [decimal.Decimal("1.50"), decimal.Decimal("-0.01"), None]),
    "string": (pa.string(), ["a", "01", None]),
    "date": (pa.date32(), [dt.date(2013, 1, 31), dt.date(1, 1, 1), None]),
    "timestamp": (
        pa.timestamp("us", tz="UTC"),
        [dt.datetime(2024, 11, 3, 1, 30, tzinfo=UTC), dt.datetime(2024, 1, 1, 0, 0, 0, 123456, tzinfo=UTC), None],
    ),
    "timestamp_ntz": (pa.timestamp("us"), [dt.datetime(2024, 1, 1, 10, 0, 0, 120000), dt.datetime(1950, 1, 1), None]),
}


def rows_by_type(instead: Mapping[str, list[object]] = MappingProxyType({})) -> pa.Table:
    """Rows with a column of every type of PARTITION_TYPES, and its values, or those in `instead`."""
    columns = {kind: pa.array(instead.get(kind, values), of) for kind, (of, values) in PARTITION_TYPES.items()}
    return pa.table({"id": pa.array(range(3), pa.int64()), **columns})


def test_partition_values_of_every_type(uri: str) -> None:
    rows = rows_by_type()
    table = Table.create(uri, rows.schema, list(PARTITION_TYPES))
    append(table, rows)
    assert_both_read(uri, rows)
    version = table.checkpoint()
    delete_commits(uri, version + 1)
    assert_both_read(uri, rows)


def test_several_partition_columns_with_nulls(uri: str) -> None:
    schema = pa.schema([pa.field("day", pa.date32()), pa.field("id", pa.int64()), pa.field("country", pa.string())])
    rows = pa.table(
        {
            "day": [dt.date(2025, 1, 1), None, dt.date(2025, 1, 1), None],
            "id": range(4),
            "country": ["NO", "NO", None, None],
        },
        schema=schema,
    )
    append(Table.create(uri, schema, ["day", "country"]), rows)
    assert_both_read(uri, rows)
    selected = DeltaTable(uri).to_pyarrow_table(partitions=[("country", "=", "NO")])
    assert sorted(selected["id"].to_pylist()) == [0, 1]


def test_statistics_are_read_as_we_wrote_them(uri: str) -> None:
    append(Table.create(uri, PEOPLE), people("ann", "bob", "cid"))
    actions = pa.table(DeltaTable(uri).get_add_actions(flatten=True)).to_pylist()[0]
    assert actions["num_records"] == 3
    assert (actions["min.id"], actions["max.id"], actions["null_count.id"]) == (0, 2, 0)
    assert (actions["min.name"], actions["max.name"]) == ("ann", "cid")


def test_deltalake_changes_a_table_of_ours_and_we_go_on(uri: str) -> None:
    table = Table.create(uri, PEOPLE, ["name"])
    append(table, people("ann", "bob", "cid"))
    DeltaTable(uri).delete("name = 'bob'")
    append(table, people("dot", start=3))
    DeltaTable(uri).update({"id": "id + 10"}, predicate="name = 'ann'")
    expected = pa.Table.from_pylist(
        [{"id": 10, "name": "ann"}, {"id": 2, "name": "cid"}, {"id": 3, "name": "dot"}], schema=PEOPLE
    )
    assert_both_read(uri, expected)


def test_every_version_is_read_alike(uri: str) -> None:
    table = Table.create(uri, PEOPLE)
    for number in range(12):
        (overwrite if number % 4 == 3 else append)(table, people(f"p{number}", start=number))
    for version in range(13):
        ours = Table.open(uri).to_arrow(version=version)
        assert bag(rows_by_deltalake(uri, version), *PEOPLE.names) == bag(ours, *PEOPLE.names)


# --- the change feed ------------------------------------------------------------------------------------------------


SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


def comparable(rows: pa.Table) -> list[tuple[Any, ...]]:
    """Without the moments: deltalake takes them from commitInfo, and not from the commit's file."""
    names = ("_commit_version", "_change_type", "id", "day")
    return sorted((tuple(row[name] for name in names) for row in rows.to_pylist()), key=repr)


def test_deltalake_reads_the_change_feed_as_we_do(uri: str) -> None:
    table = Table.create(uri, SCHEMA, ["day"], {"delta.enableChangeDataFeed": "true"})
    append(table, [{"id": k, "day": f"d{k % 2}"} for k in range(6)])
    tx = table.begin()
    tx.remove(tx.read("day = 'd1'"))
    tx.add(stage(table, pa.table({"id": [1, 30], "day": ["d1", None]}, schema=SCHEMA)))
    changes = [
        {"id": 3, "day": "d1", "_change_type": "update_preimage"},
        {"id": 30, "day": None, "_change_type": "update_postimage"},
        {"id": 5, "day": "d1", "_change_type": "delete"},
    ]
    tx.add_changes(stage_changes(table, changes))
    tx.commit("MERGE")
    tx = table.begin()
    tx.remove(tx.read("day = 'd0'"))
    tx.commit("DELETE")
    theirs = pa.table(DeltaTable(uri).load_cdf(starting_version=0).read_all())
    ours = table.changes(0)
    assert ours.num_rows == 6 + 3 + 3
    assert comparable(theirs) == comparable(ours)
