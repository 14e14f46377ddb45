"""Sound tables to be damaged, one of each shape that a log may have: as files in a dict, made once a process."""

from __future__ import annotations

import functools
import json
from typing import Any

import pyarrow as pa

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.storage import MemoryStore
from tests.conftest import ManualClock
from tests.helpers.vectors import bitmap, file_of, z85

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("x", pa.float64()),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.map_(pa.string(), pa.list_(pa.int32()))),
        ("st", pa.struct([("a", pa.date32()), ("b", pa.string())])),
        ("day", pa.string()),
        ("n", pa.int32()),
    ]
)
Files = dict[str, bytes]


@functools.cache
def table(shape: str) -> Files:
    """`plain`: commits alone; `classic`, `v2`: with checkpoints at version 3, and two commits after it."""
    properties = {
        "delta.enableDeletionVectors": "true",
        "delta.enableInCommitTimestamps": "true",
        "delta.enableRowTracking": "true",
        "delta.checkpointInterval": "1000",
        "delta.checkpoint.writeStatsAsStruct": "true",
        "delta.checkpointPolicy": "v2" if shape == "v2" else "classic",
    }
    clock = ManualClock()
    store = MemoryStore(f"memory://sound-{shape}", clock=clock)
    made = Table.create(store, SCHEMA, ["day", "n"], properties, clock=clock)
    for number in range(3):
        tx = made.begin()
        for file in range(3):
            tx.add(**_file(number * 3 + file))
        if number:
            tx.remove("day=1/f%201.parquet" if number == 1 else "day=4/f%204.parquet")
        tx.set_application("etl", number)
        tx.set_domain("mine", json.dumps({"number": number}))
        tx.commit("WRITE", {"mode": "Append"})
    _mask(store, made)
    if shape != "plain":
        made.checkpoint(4)
    for number in (20, 21):
        tx = made.begin()
        tx.add(**_file(number))
        tx.commit("WRITE")
    files = {info.path: store.read(info.path) for info in store.walk()}
    for path in files:
        store.delete(path)
    return files


def _file(number: int) -> dict[str, Any]:
    stats = {
        "numRecords": 10,
        "minValues": {
            "id": number,
            "x": -1.5,
            "price": 0.5,
            "at": "2024-01-01T00:00:00.000Z",
            "st": {"a": "2024-01-01"},
        },
        "maxValues": {"id": number + 9, "x": 3.0, "price": 12.25, "at": "2024-02-01T00:00:00.000Z", "st": {"b": "zz"}},
        "nullCount": {"id": 0, "x": 1, "price": 10, "st": {"a": 0, "b": 3}},
    }
    return {
        "path": f"day={number}/f%20{number}.parquet",
        "partition_values": {"day": str(number), "n": None if number % 2 else str(number)},
        "size": 1000 + number,
        "modification_time": 1_700_000_000_000,
        "stats": json.dumps(stats),
        "tags": {"k": "v"},
    }


def _mask(store: MemoryStore, made: Table) -> None:
    """Version 4, as another engine would write it: two files get deletion vectors, one inline and one in a file."""
    name = "00000000-0000-0000-0000-00000000002a"
    data, (offset,) = file_of(bitmap([1, 5, 6]))
    store.put(f"deletion_vector_{name}.bin", data)
    inside = bitmap([0, 3])
    at = {"offset": offset, "sizeInBytes": len(bitmap([1, 5, 6])), "cardinality": 3}
    place = z85(bytes.fromhex(name.replace("-", "")))
    vectors = [
        {"storageType": "i", "pathOrInlineDv": z85(inside), "sizeInBytes": len(inside), "cardinality": 2},
        {"storageType": "u", "pathOrInlineDv": place, **at},
    ]
    last = store.read(commit_name(3)).decode().splitlines()
    adds = [json.loads(line)["add"] for line in last if '"add"' in line[:8]]
    info = json.loads(last[0])["commitInfo"]
    lines = [{"commitInfo": {**info, "inCommitTimestamp": info["inCommitTimestamp"] + 1}}]
    for add, vector in zip(adds, vectors, strict=False):
        lines.append({"remove": {"path": add["path"], "dataChange": True, "deletionTimestamp": 2**50}})
        lines.append({"add": {**add, "deletionVector": vector}})
    store.put(commit_name(4), "\n".join(map(json.dumps, lines)).encode())
