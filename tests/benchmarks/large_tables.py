"""Logs of very many files, written as text and as Parquet by neither engine: reading them is what is measured.

The same generator serves every size: file `n` has the same name, partition, size and statistics wherever it stands, so
that what a case must find follows from arithmetic. Tables are kept between runs, a marker beside each says that it
is whole.
"""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROWS_PER_FILE = 1000
DAYS = 336
CHECKPOINT_VERSION = 50
COMMITS_AFTER = 10
ADDS_PER_COMMIT = 100
_GROUP = 100_000

_MAP = pa.map_(pa.string(), pa.string())
_METADATA = pa.struct(
    [
        ("id", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", _MAP)])),
        ("schemaString", pa.string()),
        ("partitionColumns", pa.list_(pa.string())),
        ("configuration", _MAP),
        ("createdTime", pa.int64()),
    ]
)
_PROTOCOL = pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())])
_ADD = pa.struct(
    [
        ("path", pa.string()),
        ("partitionValues", _MAP),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("stats", pa.string()),
    ]
)
CHECKPOINT = pa.schema([("add", _ADD), ("metaData", _METADATA), ("protocol", _PROTOCOL)])

_COLUMNS = [("id", "long"), ("name", "string"), ("day", "date")]
_SCHEMA_STRING = json.dumps(
    {
        "type": "struct",
        "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in _COLUMNS],
    }
)
_METADATA_ACTION = {
    "id": "b5f4b5a8-0000-4000-8000-000000000001",
    "format": {"provider": "parquet", "options": {}},
    "schemaString": _SCHEMA_STRING,
    "partitionColumns": ["day"],
    "configuration": {},
    "createdTime": 1_700_000_000_000,
}
_PROTOCOL_ACTION = {"minReaderVersion": 1, "minWriterVersion": 2}


def day_of(number: int) -> str:
    """The partition of file `number`: the days come in turn."""
    return f"2025-{number % 12 + 1:02d}-{number // 12 % 28 + 1:02d}"


def path_of(number: int) -> str:
    return f"day={day_of(number)}/part-{number:08d}-c000.snappy.parquet"


def add_action(number: int) -> dict[str, object]:
    """The add of file `number`, whose ids are the thousand from `number * 1000` on."""
    statistics = {
        "numRecords": ROWS_PER_FILE,
        "minValues": {"id": number * ROWS_PER_FILE, "name": f"name {number:08d} a"},
        "maxValues": {"id": number * ROWS_PER_FILE + ROWS_PER_FILE - 1, "name": f"name {number:08d} z"},
        "nullCount": {"id": 0, "name": number % 7},
    }
    return {
        "path": path_of(number),
        "partitionValues": {"day": day_of(number)},
        "size": 100_000 + number,
        "modificationTime": 1_700_000_000_000 + number,
        "dataChange": True,
        "stats": json.dumps(statistics, separators=(",", ":")),
    }


def make_json_log(table: Path, files: int, files_per_commit: int = ROWS_PER_FILE) -> None:
    """A table of `files` adds in JSON commits, and no checkpoint; version 0 creates it."""
    with _Made(table) as made:
        if made.is_whole:
            return
        write_first_commit(table)
        for version, start in enumerate(range(0, files, files_per_commit), 1):
            write_commit(table, version, range(start, min(start + files_per_commit, files)))


def make_checkpointed(table: Path, files: int, interval: int = 10) -> None:
    """A table with a classic checkpoint of `files` adds at version 50 and ten commits of 100 adds after it.

    `interval` is its delta.checkpointInterval.
    """
    with _Made(table) as made:
        if made.is_whole:
            return
        write_commit(table, CHECKPOINT_VERSION, range(0))
        write_checkpoint_part(
            table / "_delta_log" / f"{CHECKPOINT_VERSION:020d}.checkpoint.parquet", 0, files, interval
        )
        write_hint(table, files)
        for number in range(COMMITS_AFTER):
            start = files + number * ADDS_PER_COMMIT
            write_commit(table, CHECKPOINT_VERSION + 1 + number, range(start, start + ADDS_PER_COMMIT))


def make_multipart(table: Path, files: int, parts: int) -> None:
    """A table with a checkpoint of `files` adds in `parts` files, each made and written by itself."""
    with _Made(table) as made:
        if made.is_whole:
            return
        write_commit(table, CHECKPOINT_VERSION, range(0))
        edges = [files * number // parts for number in range(parts + 1)]
        for number, (start, end) in enumerate(pairwise(edges), 1):
            name = f"{CHECKPOINT_VERSION:020d}.checkpoint.{number:010d}.{parts:010d}.parquet"
            write_checkpoint_part(table / "_delta_log" / name, start, end)
        write_hint(table, files, parts)


def cut_log(table: Path, last_version: int) -> None:
    """Take away what a round wrote after `last_version`."""
    for file in (table / "_delta_log").iterdir():
        if file.name[:20].isdigit() and int(file.name[:20]) > last_version:
            file.unlink()


def write_first_commit(table: Path) -> None:
    lines = [{"protocol": _PROTOCOL_ACTION}, {"metaData": _METADATA_ACTION}]
    _write_lines(table, 0, lines)


def write_commit(table: Path, version: int, numbers: range) -> None:
    """A commit that adds the files of these numbers."""
    info = {"commitInfo": {"timestamp": 1_700_000_000_000 + version, "operation": "WRITE"}}
    _write_lines(table, version, [info, *({"add": add_action(number)} for number in numbers)])


def write_hint(table: Path, files: int, parts: int | None = None) -> None:
    hint = {"version": CHECKPOINT_VERSION, "size": files + 2} | ({} if parts is None else {"parts": parts})
    (table / "_delta_log" / "_last_checkpoint").write_text(json.dumps(hint))


def write_checkpoint_part(path: Path, start: int, end: int, interval: int = 10) -> None:
    """The adds from `start` up to `end`, and with file 0 the protocol and the metadata, in groups of 100,000 rows."""
    with pq.ParquetWriter(path, CHECKPOINT, compression="snappy") as writer:
        if start == 0:
            metadata = _METADATA_ACTION | {"configuration": {"delta.checkpointInterval": str(interval)}}
            rows = [{"metaData": metadata}, {"protocol": _PROTOCOL_ACTION}]
            columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in CHECKPOINT]
            writer.write_table(pa.table(columns, schema=CHECKPOINT))
        for first in range(start, end, _GROUP):
            adds = _adds(np.arange(first, min(first + _GROUP, end)))
            others = [pa.nulls(len(adds), field.type) for field in CHECKPOINT if field.name != "add"]
            writer.write_table(pa.table([adds, *others], schema=CHECKPOINT))


def _adds(numbers: np.ndarray) -> pa.StructArray:
    """The same as `add_action` of every number, column by column."""
    count = len(numbers)
    months, days = _padded(numbers % 12 + 1, 2), _padded(numbers // 12 % 28 + 1, 2)
    day = _joined("2025-", months, "-", days)
    padded = _padded(numbers, 8)
    ids = numbers * ROWS_PER_FILE
    stats = _joined(
        f'{{"numRecords":{ROWS_PER_FILE},"minValues":{{"id":',
        _text(ids),
        ',"name":"name ',
        padded,
        ' a"},"maxValues":{"id":',
        _text(ids + ROWS_PER_FILE - 1),
        ',"name":"name ',
        padded,
        ' z"},"nullCount":{"id":0,"name":',
        _text(numbers % 7),
        "}}",
    )
    partitions = pa.MapArray.from_arrays(
        pa.array(np.arange(count + 1), pa.int32()), pa.repeat("day", count), day.cast(pa.string())
    )
    columns = {
        "path": _joined("day=", day, "/part-", padded, "-c000.snappy.parquet"),
        "partitionValues": partitions,
        "size": pa.array(100_000 + numbers),
        "modificationTime": pa.array(1_700_000_000_000 + numbers),
        "dataChange": pa.repeat(True, count),
        "stats": stats,
    }
    return pa.StructArray.from_arrays([columns[field.name] for field in _ADD], fields=list(_ADD))


def _text(numbers: np.ndarray) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


def _padded(numbers: np.ndarray, width: int) -> pa.Array:
    return pc.utf8_lpad(_text(numbers), width, "0")


def _joined(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _write_lines(table: Path, version: int, lines: list[dict[str, object]]) -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (table / "_delta_log" / f"{version:020d}.json").write_text(text)


class _Made:
    """A folder that counts as made only when everything in it was written."""

    def __init__(self, table: Path) -> None:
        self.table = table
        self.marker = table.parent / f"{table.name}.finished"
        self.is_whole = self.marker.exists()

    def __enter__(self) -> _Made:
        if not self.is_whole:
            shutil.rmtree(self.table, ignore_errors=True)
            (self.table / "_delta_log").mkdir(parents=True)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.marker.touch()
