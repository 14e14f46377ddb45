"""The shape of a table: its columns, with the version that changed each; properties; features; partitions.

A property or a feature comes with a plain explanation. Values of properties that look like secrets are left out. The
invariant: each text and each list is bounded, because any writer of the table chooses them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.table.schema.features import READABLE, WRITABLE, reader_features, writer_features
from airflow_txlog.engine.table.schema.schema import parse_schema
from airflow_txlog.engine.table.schema.types import StructType
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import TxlogError
from airflow_txlog.window.facts.terms import FEATURES, PROPERTIES
from airflow_txlog.window.facts.version_lines import clipped

MOST_COLUMNS = 500
MOST_COMPARED_COLUMNS = 20_000
MOST_PARTITIONS = 50
MOST_CHANGES = 20
"""Versions whose changes of metadata are compared: the newest ones."""
MOST_COMPARED_CHARS = 4_000_000
"""Their schemas have no more characters in all, apart from the two newest ones."""
MOST_NAMES = 100
_MOST_PROPERTIES, _MOST_FEATURES, _MOST_KEYS = 200, 100, 20
_MOST_NAME, _MOST_VALUE = 200, 300
_SECRET = re.compile(r"secret|password|token|credential|connection_string|(^|[._])(key|sas)$", re.IGNORECASE)
_DEEPEST = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownField:
    """A column, or a member of a struct; `change` is that of a version in the timeline."""

    path: str
    depth: int
    type: str
    nullable: bool
    is_partition: bool = False
    comment: str = ""
    change: str = ""
    """"added", "changed" or "removed"; empty for neither."""
    was: str = ""
    """The type before a change."""
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """The changes of one version to columns, properties and names."""

    version: int
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()
    more: int = 0
    """Further changes, which are not named."""
    is_first: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.changed or self.properties)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A property or a feature, with its meaning."""

    name: str
    value: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSize:
    """The live files of one partition."""

    values: Mapping[str, str | None]
    files: int
    size_bytes: int
    share: float
    """The share of the table's bytes, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSizes:
    """The largest partitions, and the sums of the others."""

    columns: tuple[str, ...]
    count: int
    largest: tuple[PartitionSize, ...]
    other_files: int
    other_bytes: int


def fields_of(schema_text: str | None, partition_columns: Sequence[str] = ()) -> list[ShownField]:
    """Return the columns and the members of structs in order, at most MOST_COMPARED_COLUMNS. Raises TxlogError."""
    found: list[ShownField] = []
    _collect(parse_schema(schema_text), "", 0, set(partition_columns), found)
    return found


def _collect(struct: StructType, prefix: str, depth: int, partitions: set[str], found: list[ShownField]) -> None:
    for member in struct:
        if len(found) >= MOST_COMPARED_COLUMNS:
            return
        path = f"{prefix}{member.name}"
        comment = member.metadata.get("comment", "") if isinstance(member.metadata, Mapping) else ""
        found.append(
            ShownField(
                path=clipped(path, _MOST_NAME),
                depth=depth,
                type=_type_name(member.type),
                nullable=member.nullable,
                is_partition=depth == 0 and member.name in partitions,
                comment=clipped(comment, _MOST_NAME) if isinstance(comment, str) else "",
            )
        )
        if isinstance(member.type, StructType) and depth < _DEEPEST:
            _collect(member.type, f"{path}.", depth + 1, partitions, found)


def _type_name(data_type: object) -> str:
    if isinstance(data_type, StructType):
        return "struct"
    return clipped(str(data_type), 120)


def schema_changes(written: Sequence[tuple[int, Metadata]]) -> list[SchemaChange]:
    """Return how each version that wrote metadata differs from the one before it, newest first."""
    found = []
    for number, (version, metadata) in enumerate(written):
        if number == 0:
            if version == 0:
                found.append(SchemaChange(version=version, is_first=True))
            continue
        change = compared(version, written[number - 1][1], metadata)
        if not change.is_empty:
            found.append(change)
    return found[::-1]


def compared(version: int, before: Metadata, after: Metadata) -> SchemaChange:
    """Return the difference of the metadata of a version from that of an earlier one."""
    old, new = _types(before), _types(after)
    names = {*before.configuration, *after.configuration}
    changed = [name for name in sorted(names) if before.configuration.get(name) != after.configuration.get(name)]
    added, removed = [name for name in new if name not in old], [name for name in old if name not in new]
    other = [f"{name}: {old[name]} → {new[name]}" for name in new if name in old and old[name] != new[name]]
    return SchemaChange(
        version=version,
        added=tuple(added[:MOST_NAMES]),
        removed=tuple(removed[:MOST_NAMES]),
        changed=tuple(other[:MOST_NAMES]),
        properties=tuple(_property_change(name, before, after) for name in changed[:MOST_NAMES]),
        more=sum(max(0, len(each) - MOST_NAMES) for each in (added, removed, other, changed)),
    )


def newest_changes(written: Sequence[tuple[int, Metadata]]) -> list[tuple[int, Metadata]]:
    """Return the newest of these versions that are compared with one another, oldest first."""
    found, chars = list[tuple[int, Metadata]](), 0
    for each in reversed(written[-(MOST_CHANGES + 1) :]):
        chars += len(each[1].schema_string or "")
        if len(found) >= 2 and chars > MOST_COMPARED_CHARS:
            break
        found.append(each)
    return found[::-1]


def _property_change(name: str, before: Metadata, after: Metadata) -> str:
    shown = (
        _value(name, each.configuration[name]) if name in each.configuration else "not set" for each in (before, after)
    )
    return f"{clipped(name, _MOST_NAME)}: {' → '.join(shown)}"


def _types(metadata: Metadata) -> Mapping[str, str]:
    return _types_in(metadata.schema_string)


@lru_cache(maxsize=4)
def _types_in(schema_text: str | None) -> Mapping[str, str]:
    """Return the types by path. Neighbouring versions, and most versions of a table, have the same schema."""
    try:
        found = fields_of(schema_text)
    except TxlogError:
        return {}
    return {each.path: f"{each.type}{'' if each.nullable else ' NOT NULL'}" for each in found}


def columns_of(snapshot: Snapshot, written: Sequence[tuple[int, Metadata]]) -> list[ShownField]:
    """Return the table's columns, marked with the newest change in these versions; removed ones come last."""
    current = fields_of(snapshot.metadata.schema_string, snapshot.metadata.partition_columns)
    changes: dict[str, tuple[str, str, int]] = {}
    for (_, before), (version, after) in itertools.pairwise(written):
        if before.schema_string == after.schema_string:
            continue
        old, new = _types(before), _types(after)
        changes |= {name: ("added", "", version) for name in new if name not in old}
        changes |= {name: ("removed", old[name], version) for name in old if name not in new}
        changes |= {name: ("changed", old[name], version) for name in new if name in old and old[name] != new[name]}
    shown = []
    for each in current[:MOST_COLUMNS]:
        change, was, at = changes.pop(each.path, ("", "", None))
        shown.append(
            ShownField(
                path=each.path,
                depth=each.depth,
                type=each.type,
                nullable=each.nullable,
                is_partition=each.is_partition,
                comment=each.comment,
                change="" if change == "removed" else change,
                was=was,
                version=at,
            )
        )
    gone = [(name, was, at) for name, (change, was, at) in changes.items() if change == "removed"][:MOST_NAMES]
    return shown + [
        ShownField(path=name, depth=0, type=was, nullable=True, change="removed", version=at) for name, was, at in gone
    ]


def column_count(snapshot: Snapshot) -> int:
    """Return the number of all columns and members of structs. Raises TxlogError."""
    return len(_types(snapshot.metadata))


def properties_of(metadata: Metadata) -> list[Explained]:
    """Return the properties that are set, by name."""
    return [
        Explained(name=clipped(name, _MOST_NAME), value=_value(name, value), meaning=_meaning(name))
        for name, value in sorted(metadata.configuration.items())[:_MOST_PROPERTIES]
    ]


def _value(name: str, value: str) -> str:
    if _SECRET.search(name):
        return "(not shown)"
    return clipped(value, _MOST_VALUE)


def _meaning(name: str) -> str:
    if name in PROPERTIES:
        return PROPERTIES[name]
    return next((text for prefix, text in PROPERTIES.items() if prefix.endswith(".") and name.startswith(prefix)), "")


def features_of(snapshot: Snapshot) -> list[Explained]:
    """Return the table's features, those of older version numbers included, by name."""
    readers, writers = reader_features(snapshot.protocol), writer_features(snapshot.protocol)
    found = []
    for name in sorted(readers | writers)[:_MOST_FEATURES]:
        who = "readers and writers" if name in readers else "writers"
        known = name in (READABLE if name in readers else WRITABLE)
        meaning = FEATURES.get(name, "" if known else "This engine does not know the feature.")
        found.append(Explained(name=clipped(name, _MOST_NAME), value=who, meaning=meaning))
    return found


def partitions_of(snapshot: Snapshot) -> PartitionSizes | None:
    """Return the partitions by size; None if the table has none. A million files take well under a second."""
    columns = snapshot.partition_columns
    if not columns:
        return None
    files = snapshot.files(columns=["partition_values", "size"])
    physical = [_physical(snapshot, name) for name in columns]
    keys = [_values_of(files.column("partition_values"), name) for name in physical]
    names = [f"c{number}" for number in range(len(columns))]
    table = pa.table([*keys, files.column("size")], names=[*names, "size"])
    grouped = (
        table.group_by(names).aggregate([("size", "sum"), ("size", "count")]).sort_by([("size_sum", "descending")])
    )
    total = pc.sum(grouped.column("size_sum")).as_py() or 0
    largest = tuple(
        PartitionSize(
            values=shown_values({name: row[key] for name, key in zip(columns, names, strict=True)}),
            files=row["size_count"],
            size_bytes=row["size_sum"],
            share=row["size_sum"] / total if total else 0.0,
        )
        for row in grouped.slice(0, MOST_PARTITIONS).to_pylist()
    )
    rest = grouped.slice(MOST_PARTITIONS)
    return PartitionSizes(
        columns=tuple(clipped(name, _MOST_NAME) for name in columns[:_MOST_KEYS]),
        count=grouped.num_rows,
        largest=largest,
        other_files=pc.sum(rest.column("size_count")).as_py() or 0,
        other_bytes=pc.sum(rest.column("size_sum")).as_py() or 0,
    )


def _values_of(maps: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Return the value under this name of each map."""
    return pa.chunked_array([_values_in(chunk, name) for chunk in maps.chunks], type=maps.type.item_type)


def _values_in(maps: pa.MapArray, name: str) -> pa.Array:
    """Return the value under this name of each map; quickly if all maps have the same keys in the same order."""
    count = len(maps)
    width = len(maps.keys) // count if count and not maps.offset and not maps.null_count else 0
    if width and pc.all(pc.equal(pc.subtract(maps.offsets[1:], maps.offsets[:-1]), width)).as_py():
        first = maps.keys[:width].to_pylist()
        if name in first:
            places = pa.array(range(first.index(name), width * count, width), pa.int64())
            if pc.all(pc.equal(maps.keys.take(places), name)).as_py():
                return maps.items.take(places)
    return pc.map_lookup(maps, pa.scalar(name), "first")


def shown_values(values: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the values of a partition, bounded."""
    return {
        clipped(name, _MOST_NAME): None if value is None else clipped(value, _MOST_NAME)
        for name, value in itertools.islice(values.items(), _MOST_KEYS)
    }


def _physical(snapshot: Snapshot, name: str) -> str:
    member = snapshot.delta_schema.find(name)
    return name if member is None else member.physical_name
