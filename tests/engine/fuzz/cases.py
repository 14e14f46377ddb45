"""One fuzzed case: a sound table, damaged in one place by a seed, and everything that may be asked of it.

A case ends with an answer or with a TxlogError; anything else escapes, and is a failure.
"""

from __future__ import annotations

import io
import json
import random
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_txlog import errors
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import DeletionVector
from airflow_txlog.engine.log.names import LAST_CHECKPOINT, commit_name
from airflow_txlog.engine.log.vectors import read_vectors
from airflow_txlog.engine.table.changes.versions import changes_since
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot, load_snapshot
from airflow_txlog.storage import MemoryStore
from tests.engine.fuzz import mutations
from tests.engine.fuzz.tables import Files, table
from tests.helpers.vectors import bitmap, decode_vector, file_of, read_vector, z85

VERSION = 4
CLASSIC = f"_delta_log/{VERSION:020d}.checkpoint.parquet"
PREDICATES = ["id = 5", "x > 2.5 OR price <= 1", "day = '3' AND n IS NULL", "at < '2024-01-15'", "day LIKE '2%'"]


def run(kind: str, seed: int) -> str:
    """`answered`, or the name of the typed error."""
    chance = random.Random(f"{kind} {seed}")
    try:
        KINDS[kind](chance)
    except errors.TxlogError as error:
        return type(error).__name__
    return "answered"


def _open(files: Files, chance: random.Random) -> None:
    store = MemoryStore("memory://damaged")
    try:
        for path, data in files.items():
            store.put(path, data)
        snapshot = load_snapshot(store)
        # Most of the time of a case is what is asked of a table that opened; a few questions find as much.
        if chance.random() < 0.4:
            _ask(snapshot, store, chance)
    finally:
        for info in list(store.walk()):
            store.delete(info.path)


def _ask(snapshot: Snapshot, store: MemoryStore, chance: random.Random) -> None:
    _answered(lambda: snapshot.schema)
    _answered(lambda: snapshot.files(chance.choice(PREDICATES)))
    _answered(lambda: snapshot.timestamp_ms)
    _answered(lambda: snapshot.table_properties.validate())
    question = chance.randrange(6)
    if question == 0:
        _answered(lambda: read_vectors(store, _vectors(snapshot)))
    elif question == 1:
        _answered(lambda: Table(store).history())
    elif question == 2:
        _answered(lambda: _commit(store))
    elif question == 3:
        _answered(lambda: changes_since(snapshot, 2))
    elif question == 4:
        _answered(lambda: (Table(store).checkpoint(), load_snapshot(store)))
    else:
        _answered(lambda: snapshot.state.tombstones.num_rows)


def _answered(ask: Callable[[], Any]) -> None:
    with suppress(errors.TxlogError):
        ask()


def _commit(store: MemoryStore) -> None:
    tx = Table(store).begin()
    tx.add(path="new", partition_values=dict.fromkeys(tx.snapshot.partition_columns if tx.snapshot else []), size=1)
    tx.remove(tx.read(PREDICATES[0]))
    tx.commit("WRITE")


def _vectors(snapshot: Snapshot) -> list[tuple[DeletionVector, int | None]]:
    rows = snapshot.state.live.column("deletion_vector").to_pylist()
    return [(DeletionVector(**row), 10) for row in rows if row is not None]


# --- kinds ----------------------------------------------------------------------------------------------------------


def _commit_bytes(chance: random.Random) -> None:
    path = commit_name(chance.randrange(7))
    sound = table("plain")
    _open(sound | {path: mutations.damaged_bytes(sound[path], chance)}, chance)


def _commit_lines(chance: random.Random) -> None:
    path = commit_name(chance.randrange(7))
    sound = table("plain")
    _open(sound | {path: mutations.damaged_lines(sound[path], chance)}, chance)


def _strings_of(kind: str, name: str) -> Callable[[random.Random], None]:
    """Only one field is damaged: a string that is JSON itself, or a map of strings."""

    def case(chance: random.Random) -> None:
        sound = table("plain")
        path = commit_name(chance.randrange(7))
        lines = []
        for line in sound[path].decode().splitlines():
            action = json.loads(line)
            if kind in action and name in action[kind]:
                value = action[kind][name]
                action[kind][name] = (
                    mutations.damaged_json(value, chance)
                    if isinstance(value, str) and value[:1] == "{"
                    else mutations.damaged_value(value, chance)
                )
            lines.append(json.dumps(action))
        _open(sound | {path: "\n".join(lines).encode()}, chance)

    return case


def _hint(chance: random.Random) -> None:
    sound = table("classic")
    damage = chance.choice([mutations.damaged_bytes, mutations.damaged_lines])
    _open(sound | {LAST_CHECKPOINT: damage(sound[LAST_CHECKPOINT], chance)}, chance)


def _checksum(chance: random.Random) -> None:
    files = dict(table("plain"))
    first = [json.loads(line) for line in files[commit_name(0)].decode().splitlines()]
    sound = {"tableSizeBytes": 9000, "numFiles": 9, "numMetadata": 1, "numProtocol": 1}
    sound |= {"setTransactions": [{"appId": "etl", "version": 2}], "domainMetadata": [], "allFiles": []}
    for line in first:
        sound |= {
            name: line[wire] for wire, name in (("metaData", "metadata"), ("protocol", "protocol")) if wire in line
        }
    damage = mutations.damaged_bytes if chance.random() < 0.3 else mutations.damaged_lines
    store = MemoryStore("memory://checksums")
    for path, data in files.items():
        store.put(path, data)
    store.put(commit_name(6).replace(".json", ".crc"), damage(json.dumps(sound).encode(), chance))
    load_snapshot(store).verify_checksum()


def _names(chance: random.Random) -> None:
    """Files of the log are missing, doubled under other names, empty, or of other versions."""
    files = dict(table(chance.choice(["classic", "v2"])))
    for _ in range(chance.randint(1, 3)):
        path = chance.choice(sorted(files))
        match chance.randrange(4):
            case 0:
                del files[path]
            case 1:
                files[path] = b""
            case 2:
                version = chance.choice([0, 3, 5, 9, 2**63 - 1, 10**19])
                files[f"_delta_log/{version:020d}" + path[len("_delta_log/") + 20 :]] = files[path]
            case 3:
                files[f"{path}.crc"] = b"{}"
        if not files:
            break
    _open(files, chance)


def _parquet_bytes(chance: random.Random) -> None:
    sound = table("classic")
    _open(_without_commits(sound | {CLASSIC: mutations.damaged_bytes(sound[CLASSIC], chance)}, chance), chance)


def _parquet_columns(chance: random.Random) -> None:
    """A checkpoint that is good Parquet and no good checkpoint: columns dropped, renamed, retyped, rows doubled."""
    sound = table("classic")
    buffer = io.BytesIO()
    pq.write_table(_restructured(pq.read_table(io.BytesIO(sound[CLASSIC])), chance), buffer)
    _open(_without_commits(sound | {CLASSIC: buffer.getvalue()}, chance), chance)


def _v2_bytes(chance: random.Random) -> None:
    sound = table("v2")
    path = chance.choice([each for each in sorted(sound) if "checkpoint" in each or "sidecar" in each])
    whole = _with_sizes(sound | {path: mutations.damaged_bytes(sound[path], chance)}, chance)
    if chance.random() < 0.5:
        whole = _with_sizes(dict(sound), chance)
        (top,) = [each for each in whole if f"{VERSION:020d}.checkpoint." in each and "_sidecars" not in each]
        damage = mutations.damaged_lines if top.endswith(".json") else mutations.damaged_bytes
        whole[top] = damage(whole[top], chance)
    _open(_without_commits(whole, chance), chance)


def _v2_columns(chance: random.Random) -> None:
    sound = table("v2")
    path = chance.choice([each for each in sorted(sound) if each.endswith(".parquet")])
    buffer = io.BytesIO()
    pq.write_table(_restructured(pq.read_table(io.BytesIO(sound[path])), chance), buffer)
    _open(_without_commits(_with_sizes(sound | {path: buffer.getvalue()}, chance), chance), chance)


def _with_sizes(files: Files, chance: random.Random) -> Files:
    """Mostly the sizes of the sidecars are put right, so that more than the size of what is damaged is looked at; and
    the top level is JSON in half of the cases."""
    (top,) = [path for path in files if f"{VERSION:020d}.checkpoint." in path and "_sidecars" not in path]
    try:
        found = pq.read_table(io.BytesIO(files[top]))
        rows = [{name: row[name] for name in row if row[name] is not None} for row in found.to_pylist()]
        for row in rows:
            if "sidecar" in row and chance.random() < 0.9:
                row["sidecar"]["sizeInBytes"] = len(files[f"_delta_log/_sidecars/{row['sidecar']['path']}"])
        if chance.random() < 0.5:
            lines = "\n".join(json.dumps(row, default=dict) for row in map(_with_maps, rows))
            return {path: data for path, data in files.items() if path != top} | {
                top.removesuffix("parquet") + "json": lines.encode()
            }
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows, schema=found.schema), buffer)
        return files | {top: buffer.getvalue()}
    except (KeyError, TypeError, ValueError, OSError, pa.ArrowException):
        # The top level itself is what was damaged.
        return files


def _with_maps(node: Any) -> Any:
    """Maps, which Arrow gives as lists of pairs, as objects."""
    if isinstance(node, dict):
        return {name: _with_maps(value) for name, value in node.items() if value is not None}
    if isinstance(node, list) and node and all(isinstance(each, tuple) for each in node):
        return dict(node)
    return node


def _without_commits(files: Files, chance: random.Random) -> Files:
    """Mostly the log before the checkpoint is cleaned, so that nothing can be read around what is damaged."""
    if chance.random() < 0.2:
        return files
    cleaned = {commit_name(version) for version in range(VERSION + 1)}
    return {path: data for path, data in files.items() if path not in cleaned}


def _restructured(found: pa.Table, chance: random.Random) -> pa.Table:
    name = chance.choice(found.column_names)
    at = found.column_names.index(name)
    column = found.column(name).combine_chunks()
    match chance.randrange(8):
        case 0:
            return found.drop_columns([name])
        case 1:
            return found.rename_columns([each if each != name else name + "x" for each in found.column_names])
        case 2:
            return pa.concat_tables([found, found.take(pa.array([chance.randrange(found.num_rows)]))])
        case 3:
            return found.take(pa.array(sorted(chance.sample(range(found.num_rows), found.num_rows // 2))))
        case 4:
            return found.set_column(at, name, pa.array([chance.choice(["x", None])] * found.num_rows, pa.string()))
        case 5:
            return found.set_column(at, name, pa.nulls(found.num_rows, column.type))
    if not pa.types.is_struct(column.type) or not column.type.num_fields:
        return found
    return found.set_column(at, name, _member_changed(column, chance))


_STRANGE_TYPES = [
    pa.string(),
    pa.int8(),
    pa.float64(),
    pa.binary(),
    pa.list_(pa.string()),
    pa.timestamp("ns"),
    pa.null(),
]


def _member_changed(column: pa.StructArray, chance: random.Random) -> pa.StructArray:
    members = [column.field(index) for index in range(column.type.num_fields)]
    names = [each.name for each in column.type]
    at = chance.randrange(len(names))
    match chance.randrange(4):
        case 0:
            members[at] = pa.nulls(len(column), members[at].type)
        case 1:
            members[at] = pa.nulls(len(column), chance.choice(_STRANGE_TYPES))
        case 2:
            names[at] = names[at] + "X"
        case 3:
            value = chance.choice([-1, 2**62, "\x00", "x" * 1000, 1.5, True])
            members[at] = pa.array([value] * len(column))
    fields = [pa.field(name, member.type) for name, member in zip(names, members, strict=True)]
    return pa.StructArray.from_arrays(members, fields=fields, mask=pc.is_null(column))


# --- deletion vectors -----------------------------------------------------------------------------------------------

_POSITIONS = [[], [0], [1, 5, 9], list(range(0, 9000, 2)), [3, 70_000, 2**33], list(range(100, 300))]


def _bitmap(chance: random.Random) -> None:
    """A serialized bitmap, damaged: counts and sizes that promise more than there is."""
    data = bitmap(chance.choice(_POSITIONS), chance.choice(["plain", "runs"]))
    if chance.random() < 0.3 and len(data) > 16:
        at = chance.randrange(4, len(data) - 4)
        data = data[:at] + struct.pack("<I", chance.choice([0, 1, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF])) + data[at + 4 :]
    else:
        data = mutations.damaged_bytes(data, chance)
    rows = chance.choice([None, 10, 10_000])
    found = decode_vector(data, cardinality=chance.choice([None, None, 3]), num_records=rows)
    assert found.null_count == 0
    assert rows is None or len(found) <= rows


def _vector(chance: random.Random) -> None:
    """A whole vector, inline or in a file with a right or a wrong checksum, and a descriptor that lies."""
    positions = chance.choice(_POSITIONS[1:4])
    data = bitmap(positions)
    damaged = mutations.damaged_bytes(data, chance) if chance.random() < 0.6 else data
    sizes = chance.choice([len(data), len(damaged), 0, 1, 2**31 - 1, len(data) + 4])
    count = chance.choice([len(positions), len(positions), 0, 2**62])
    store = MemoryStore("memory://vectors")
    if chance.random() < 0.4:
        text = (
            z85(damaged)
            if chance.random() < 0.7
            else mutations.damaged_bytes(z85(data).encode(), chance).decode("latin1")
        )
        vector = DeletionVector(storage_type="i", path_or_inline_dv=text, size_in_bytes=sizes, cardinality=count)
    else:
        file, (offset,) = file_of(damaged)
        if chance.random() < 0.5:
            file = mutations.damaged_bytes(file, chance)
        elif chance.random() < 0.5:
            file = b"\x01" + struct.pack(">I", sizes) + damaged + struct.pack(">I", zlib.crc32(damaged))
        store.put("deletion_vector_00000000-0000-0000-0000-00000000002a.bin", file)
        place = chance.choice([z85((0x2A).to_bytes(16, "big"))] * 4 + ["", "x", "é" * 20, "a" * 20, "../" + "0" * 20])
        offset = chance.choice([offset, offset, None, -1, 0, 2**31 - 1])
        vector = DeletionVector(
            storage_type=chance.choice("uuuuupix"),
            path_or_inline_dv=place,
            offset=offset,
            size_in_bytes=sizes,
            cardinality=count,
        )
    found = read_vector(store, vector, chance.choice([None, 10, 20_000]))
    assert len(found) == vector.cardinality


KINDS: dict[str, Callable[[random.Random], None]] = {
    "commit-bytes": _commit_bytes,
    "commit-lines": _commit_lines,
    "schemas": _strings_of("metaData", "schemaString"),
    "properties": _strings_of("metaData", "configuration"),
    "statistics": _strings_of("add", "stats"),
    "partition-values": _strings_of("add", "partitionValues"),
    "descriptors": _strings_of("add", "deletionVector"),
    "infos": _strings_of("commitInfo", "inCommitTimestamp"),
    "hints": _hint,
    "checksums": _checksum,
    "names": _names,
    "parquet-bytes": _parquet_bytes,
    "parquet-columns": _parquet_columns,
    "v2-bytes": _v2_bytes,
    "v2-columns": _v2_columns,
    "bitmaps": _bitmap,
    "vectors": _vector,
}
