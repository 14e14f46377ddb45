"""Alone in showing that a person leaves tables of every shape: no byte of them is left, and the report is complete."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.exceptions import AirflowRescheduleException
from deltalake import DeltaTable, write_deltalake

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import Add
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.operators import DeltaEraseOperator
from tests.helpers import staged
from tests.helpers.byte_search import holding
from tests.helpers.jobs import application, committed, run
from tests.helpers.rows import append, overwrite, stage

pytestmark = pytest.mark.airflow

VECTORS = {"delta.enableDeletionVectors": "true"}
FEED = {"delta.enableChangeDataFeed": "true"}
V2 = {"delta.checkpointPolicy": "v2", "delta.checkpointInterval": "3"}
EACH = {"delta.checkpointInterval": "1", "delta.checkpoint.writeStatsAsStruct": "true"}
ROW_IDS = {"delta.enableRowTracking": "true"}
IN_COMMIT = {"delta.enableInCommitTimestamps": "true"}
BY_NAME = {"delta.columnMapping.mode": "name"}
BY_ID = {"delta.columnMapping.mode": "id"}
NO_STATS = {"delta.dataSkippingNumIndexedCols": "0"}


@dataclasses.dataclass(frozen=True)
class Key:
    """A column that identifies people: its type, the value of the one who goes, and those of two who stay."""

    kind: pa.DataType
    subject: Any
    others: Sequence[Any]
    column: str = "key"

    @property
    def schema(self) -> pa.Schema:
        top, _, member = self.column.partition(".")
        kind = pa.struct([(member, self.kind), ("rank", pa.int32())]) if member else self.kind
        return pa.schema([(top, kind), ("number", pa.int64()), ("day", pa.string())])

    def rows(self, *values: Any) -> pa.Table:
        top, _, member = self.column.partition(".")
        keys = [{member: each, "rank": 1} for each in values] if member else list(values)
        data = {top: keys, "number": list(range(len(keys))), "day": ["monday"] * len(keys)}
        return pa.table(data, schema=self.schema)


TEXT = Key(pa.string(), "canary.person@example.org", ["bob.other@example.org", "carol@example.org"])
UNICODE = Key(pa.string(), "zoë.canary@exämple.org", ["bob.other@example.org", "çarol@example.org"])
QUOTED = Key(pa.string(), 'O\'Canary \\ "ü" 100%@example.org', ["O'Brien", "%"])
LONG_TEXT = Key(pa.string(), "canary" * 20 + "@example.org", ["b" * 130, "z"])
NUMBER = Key(pa.int64(), 731_955_201_993, [5, 731_955_201_994])
SMALL = Key(pa.int32(), 1_731_955_201, [5, 1_731_955_202])
AMOUNT = Key(pa.decimal128(20, 2), Decimal("731955201771.57"), [Decimal("1.00"), Decimal("731955201771.58")])
DATE = Key(pa.date32(), dt.date(1931, 5, 7), [dt.date(2000, 1, 1), dt.date(1931, 5, 9)])
BINARY = Key(
    pa.binary(), uuid.UUID(int=0xC0FFEE_5EED_0F_CA7 << 60 | 0xBEEF).bytes, [b"\0" * 16, uuid.UUID(int=7).bytes]
)
UUID_TEXT = Key(pa.string(), "6f1c2f8e-51d3-4a0e-9b0a-c0ffee5eed01", ["0f1c2f8e-51d3-4a0e-9b0a-c0ffee5eed01", "x"])
NESTED = dataclasses.replace(UNICODE, column="customer.mail")
NESTED_NUMBER = dataclasses.replace(NUMBER, column="customer.id")

# --- what befalls a table ---------------------------------------------------------------------------------------------

Step = Callable[[Table, Key], object]


def folder_of(table: Table) -> Path:
    return Path(table.uri.removeprefix("file://"))


def updated(table: Table, key: Key) -> None:
    committed(run(None, "update", table, set={"number": "number + 10"}, predicate="number = 2"))


def hidden(table: Table, key: Key) -> None:
    """Rows of the subject go, into deletion vectors where the table has them."""
    committed(run(None, "delete", table, predicate="number = 0"))
    append(table, key.rows(*key.others, key.subject))


def long_log(table: Table, key: Key) -> None:
    for number in range(25):
        append(table, key.rows(key.subject if number % 4 == 0 else key.others[0]))


def checkpointed(table: Table, key: Key) -> None:
    table.checkpoint()
    append(table, key.rows(*key.others))


def compacted(table: Table, key: Key) -> None:
    log = folder_of(table)
    commits = [(log / commit_name(version)).read_text() for version in (0, 1, 2)]
    whole = log / "_delta_log" / f"{0:020}.{2:020}.compacted.json"
    whole.write_text("".join(commits))


def replaced(table: Table, key: Key) -> None:
    overwrite(table, key.rows(*key.others))


def restored(table: Table, key: Key) -> None:
    overwrite(table, key.rows(*key.others))
    table.restore(version=2)


def upserted(table: Table, key: Key) -> None:
    new = folder_of(table).parent / f"new-{uuid.uuid4().hex}.parquet"
    pq.write_table(key.rows(key.subject, key.others[0]).slice(0, 1), new)
    source = {"format": "parquet", "path": str(new)}
    run(None, "upsert", table, application=application(3), source=source, keys=[key.column])


def in_flight(table: Table, key: Key) -> None:
    """A staged change, with its handle and its saved work, and the files of a killed job."""
    new = folder_of(table).parent / "new.parquet"
    pq.write_table(key.rows(key.subject, *key.others), new)
    source = {"format": "parquet", "path": str(new)}
    staged.stage("write", table, mode="append", source=source)
    staged.stage("update", table, set={"day": "'tuesday'"}, work=application(2))
    stage(table, key.rows(key.subject))


def named(table: Table, key: Key) -> None:
    """A condition, metadata of a commit, and a comment with the subject."""
    tx = table.begin()
    tx.commit("WRITE", {"predicate": json.dumps([f"(key = '{key.subject}')"])}, user_metadata=str(key.subject))


def foreign(**layout: Any) -> Step:
    """Files of another writer, without statistics in the log."""

    def written(table: Table, key: Key) -> None:
        path = folder_of(table) / f"foreign-{uuid.uuid4().hex}.parquet"
        pq.write_table(key.rows(*key.others, *[key.subject] * 3), path, **layout)
        size, at = path.stat().st_size, int(path.stat().st_mtime * 1000)
        tx = table.begin()
        tx.add(
            [Add(path=path.name, partition_values={}, size=size, modification_time=at, data_change=True, stats=None)]
        )
        tx.commit("WRITE", {"mode": "Append"})

    return written


def by_delta_rs(table: Table, key: Key) -> None:
    write_deltalake(table.uri, key.rows(*key.others, key.subject), mode="append")
    DeltaTable(table.uri).delete("number = 1")
    DeltaTable(table.uri).create_checkpoint()


BLOOMED = foreign(bloom_filter_options={"key": {"ndv": 100, "fpp": 0.01}}, write_page_index=True)
CODECS = tuple(
    foreign(compression=codec, data_page_version=version, write_page_index=version == "2.0")
    for codec, version in (("snappy", "2.0"), ("gzip", "1.0"), ("brotli", "2.0"), ("zstd", "1.0"), ("lz4", "2.0"))
)
PLAIN_PAGES = foreign(use_dictionary=False, column_encoding={"key": "DELTA_BYTE_ARRAY"}, compression="zstd")


@dataclasses.dataclass(frozen=True)
class Shape:
    key: Key
    steps: Sequence[Step] = ()
    properties: Mapping[str, str] = dataclasses.field(default_factory=dict)
    partition_by: Sequence[str] = ()


FOLDERS = ("key",)
AT_EVERY_DEPTH = {
    "unicode key, vectors, feed, sidecars": Shape(UNICODE, (updated, hidden, checkpointed), VECTORS | FEED | V2),
    "folders, handles and saved work": Shape(UNICODE, (hidden, in_flight), VECTORS, FOLDERS),
    "identifier as bytes, mapped by name": Shape(BINARY, (updated, checkpointed), VECTORS | BY_NAME),
    "nested key, mapped by id": Shape(NESTED, (hidden,), VECTORS | BY_ID | FEED),
    "other writers' codecs and filters": Shape(TEXT, (BLOOMED, *CODECS, PLAIN_PAGES), VECTORS),
}
SHAPES = AT_EVERY_DEPTH | {
    "text": Shape(TEXT),
    "text, vectors": Shape(TEXT, (updated, hidden), VECTORS),
    "text, feed": Shape(TEXT, (updated, hidden), FEED),
    "text, vectors, feed": Shape(TEXT, (updated, hidden), VECTORS | FEED),
    "text, long log": Shape(TEXT, (long_log,), VECTORS),
    "text, long log, sidecars": Shape(TEXT, (long_log, hidden), VECTORS | V2),
    "text, a checkpoint of each version": Shape(TEXT, (hidden,), EACH | FEED),
    "text, compacted commits": Shape(TEXT, (compacted, updated), VECTORS),
    "text, overwritten": Shape(TEXT, (replaced,)),
    "text, restored": Shape(TEXT, (restored,), VECTORS),
    "text, a condition and metadata": Shape(TEXT, (named, hidden), VECTORS),
    "text, row ids": Shape(TEXT, (updated, hidden), VECTORS | ROW_IDS),
    "text, times in commits": Shape(TEXT, (updated, checkpointed), VECTORS | IN_COMMIT),
    "text, no statistics": Shape(TEXT, (updated, checkpointed), NO_STATS),
    "text, folders": Shape(TEXT, (hidden, checkpointed), FEED, FOLDERS),
    "text, folders, vectors, sidecars": Shape(TEXT, (updated, hidden), VECTORS | FEED | V2, FOLDERS),
    "text, folders, mapped by name": Shape(TEXT, (updated, hidden), VECTORS | BY_NAME, FOLDERS),
    "text, folders of days": Shape(TEXT, (updated, hidden), VECTORS | FEED, ("day",)),
    "text, mapped by id, feed": Shape(TEXT, (updated, hidden), VECTORS | FEED | BY_ID),
    "text, handles and saved work": Shape(TEXT, (in_flight,), VECTORS | FEED | V2),
    "text, upserts": Shape(TEXT, (upserted, in_flight, hidden), FEED),
    "text, delta-rs": Shape(TEXT, (by_delta_rs, by_delta_rs)),
    "unicode, folders, long log": Shape(UNICODE, (long_log, hidden), VECTORS, FOLDERS),
    "unicode, delta-rs and folders": Shape(UNICODE, (by_delta_rs,), {}, FOLDERS),
    "unicode, a condition and metadata": Shape(UNICODE, (named, checkpointed), VECTORS),
    "quotes": Shape(QUOTED, (updated, hidden, checkpointed), VECTORS | FEED),
    "quotes, folders": Shape(QUOTED, (hidden,), VECTORS | FEED, FOLDERS),
    "shortened statistics": Shape(LONG_TEXT, (updated, hidden, checkpointed), VECTORS),
    "number": Shape(NUMBER, (updated, hidden), VECTORS | FEED),
    "number, folders, sidecars": Shape(NUMBER, (long_log,), VECTORS | V2, FOLDERS),
    "small number, mapped by name": Shape(SMALL, (hidden, checkpointed), VECTORS | BY_NAME),
    "decimal": Shape(AMOUNT, (updated, hidden, checkpointed), VECTORS | FEED),
    "date, folders": Shape(DATE, (hidden, checkpointed), VECTORS, FOLDERS),
    "identifier as text, handles": Shape(UUID_TEXT, (in_flight, checkpointed), VECTORS | V2),
    "nested number, feed, sidecars": Shape(NESTED_NUMBER, (hidden, checkpointed), VECTORS | FEED | V2),
}
LONG = pytest.mark.long("another shape of the table")


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in AT_EVERY_DEPTH else LONG) for name in SHAPES])
def test_a_person_leaves_a_table_of_this_shape_without_a_byte(
    tmp_path: Path, airflow_home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SIGNER", json.dumps({"conn_type": "generic", "password": bytes(range(32)).hex()}))
    shape = SHAPES[name]
    key, folder = shape.key, tmp_path / "table"
    table = Table.create(str(folder), key.schema, shape.partition_by, dict(shape.properties))
    append(table, key.rows(key.subject, *key.others, None))
    append(table, key.rows(*key.others, key.subject))
    for step in shape.steps:
        step(Table.open(table.uri), key)
    stays = _rows_of_others(Table.open(table.uri), key)
    assert stays
    held = holding(folder, key.subject)
    assert held
    assert {path.name for path in folder.glob("foreign-*")} <= set(held)

    erase = DeltaEraseOperator(
        task_id="erase",
        tables={table.uri: key.column},
        subjects=[key.subject],
        request_id="r-17",
        report_uri=str(tmp_path / "reports"),
        signing_conn_id="signer",
        runner="in_process",
        writer_hours=0,
    )
    if in_flight in shape.steps:
        with pytest.raises(AirflowRescheduleException):
            erase.execute({})  # type: ignore[typeddict-item]
        for path in folder.rglob("*"):
            os.utime(path, (time.time() - 8 * 86_400,) * 2)
    assert erase.execute({})["complete"]  # type: ignore[typeddict-item]

    assert holding(folder, key.subject) == holding(tmp_path / "reports", key.subject) == []
    assert not list(folder.glob("foreign-*"))
    assert _rows_of_others(Table.open(table.uri), key) == stays


def _rows_of_others(table: Table, key: Key) -> list[str]:
    top, _, member = key.column.partition(".")
    rows = table.to_arrow().to_pylist()
    return sorted(repr(row) for row in rows if (row[top][member] if member else row[top]) != key.subject)
