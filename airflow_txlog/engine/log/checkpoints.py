"""Classic checkpoints: the reconciled actions of one version as Parquet, read and written as columns.

The invariant: what is read back equals what was written, field by field, and a million files never become a million
Python objects. Statistics that a checkpoint holds only as structs are left unknown, which prunes nothing.
Source: protocol, "Checkpoints" and "Checkpoint Schema".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_txlog.engine.log.actions import DomainMetadata, Metadata, Protocol, SetTransaction
from airflow_txlog.engine.log.columns import DELETION_VECTOR, FILES, STRING_MAP, TOMBSTONES
from airflow_txlog.engine.log.last_checkpoint import LastCheckpoint, write_hint
from airflow_txlog.engine.log.names import checkpoint_name
from airflow_txlog.engine.log.segment import CheckpointFiles
from airflow_txlog.engine.store.base import FileInfo, Store
from airflow_txlog.errors import CorruptCheckpoint

# Rows of one row group: what is held in memory beside the state itself while a checkpoint is written.
SLICE_ROWS = 100_000

T = TypeVar("T")


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


_VECTOR_TYPE = pa.struct([pa.field(_camel(field.name), field.type) for field in DELETION_VECTOR])


def _wire_struct(schema: pa.Schema) -> pa.StructType:
    """A table's columns as the struct of one action, in the protocol's spelling."""
    return pa.struct(
        [
            pa.field(_camel(field.name), _VECTOR_TYPE if field.type == DELETION_VECTOR else field.type)
            for field in schema
        ]
    )


# dataChange of an add is not part of the state; it is false in every checkpoint.
_ADD = pa.struct([*_wire_struct(FILES), pa.field("dataChange", pa.bool_())])
_REMOVE = _wire_struct(TOMBSTONES)
_METADATA = pa.struct(
    [
        ("id", pa.string()),
        ("name", pa.string()),
        ("description", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", STRING_MAP)])),
        ("schemaString", pa.string()),
        ("partitionColumns", pa.list_(pa.string())),
        ("configuration", STRING_MAP),
        ("createdTime", pa.int64()),
    ]
)
_PROTOCOL = pa.struct(
    [
        ("minReaderVersion", pa.int32()),
        ("minWriterVersion", pa.int32()),
        ("readerFeatures", pa.list_(pa.string())),
        ("writerFeatures", pa.list_(pa.string())),
    ]
)
_TXN = pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])
_DOMAIN = pa.struct([("domain", pa.string()), ("configuration", pa.string()), ("removed", pa.bool_())])

SCHEMA = pa.schema(
    [
        ("txn", _TXN),
        ("add", _ADD),
        ("remove", _REMOVE),
        ("metaData", _METADATA),
        ("protocol", _PROTOCOL),
        ("domainMetadata", _DOMAIN),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointContent:
    """What a checkpoint holds. Removed domains are not in it."""

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    transactions: Mapping[str, SetTransaction] = field(default_factory=dict)
    domains: Mapping[str, DomainMetadata] = field(default_factory=dict)
    adds: pa.Table
    """Schema `FILES`."""
    removes: pa.Table
    """Schema `TOMBSTONES`."""


# --- reading --------------------------------------------------------------------------------------------------------


def read_checkpoint(store: Store, files: CheckpointFiles) -> CheckpointContent:
    """The content of a complete checkpoint, classic or in parts.

    Columns that the writer left out read as null. Raises CorruptCheckpoint where a part is not Parquet, or where the
    checkpoint holds no protocol or no metadata.
    """
    parts = [_read_part(store, info) for info in files.files]
    try:
        return _content(parts)
    except (msgspec.ValidationError, pa.ArrowException) as error:
        raise _corrupt(store, files.files[0], str(error)) from error
    except LookupError as error:
        raise _corrupt(store, files.files[0], f"it holds no {error.args[0]} action") from error


def _content(parts: list[pa.Table]) -> CheckpointContent:
    """Raises LookupError naming the action that every checkpoint must hold."""
    protocols = [row for part in parts for row in _rows(part, "protocol", _PROTOCOL)]
    metadata = [row for part in parts for row in _rows(part, "metaData", _METADATA)]
    if not protocols or not metadata:
        raise LookupError("protocol" if not protocols else "metaData")
    transactions = [_convert(row, SetTransaction) for part in parts for row in _rows(part, "txn", _TXN)]
    domains = [_convert(row, DomainMetadata) for part in parts for row in _rows(part, "domainMetadata", _DOMAIN)]
    return CheckpointContent(
        protocol=_convert(protocols[-1], Protocol),
        metadata=_convert(metadata[-1], Metadata),
        transactions={transaction.app_id: transaction for transaction in transactions},
        domains={domain.domain: domain for domain in domains if not domain.removed},
        adds=pa.concat_tables([_columns(part, "add", FILES) for part in parts]),
        removes=pa.concat_tables([_columns(part, "remove", TOMBSTONES) for part in parts]),
    )


def _read_part(store: Store, info: FileInfo) -> pa.Table:
    """The actions of one file, without columns that we would not use."""
    try:
        with store.open_input(info.path) as source, pq.ParquetFile(source) as parquet:
            # Parsed statistics and partition values say nothing that the strings do not, and are most of a file.
            wanted = [
                column.path
                for column in map(parquet.schema.column, range(len(parquet.schema)))
                if _is_wanted(column.path)
            ]
            return parquet.read(columns=wanted, use_threads=True)
    except (pa.ArrowException, OSError) as error:
        raise _corrupt(store, info, str(error)) from error


def _is_wanted(path: str) -> bool:
    action, *rest = path.split(".")
    if action not in SCHEMA.names or not rest:
        return False
    return any(member.name == rest[0] for member in SCHEMA.field(action).type)


def _rows(part: pa.Table, action: str, struct: pa.StructType) -> Iterator[dict[str, Any]]:
    """The rows of a small action, maps as dicts, absent values left out."""
    if action not in part.schema.names:
        return
    column = part.column(action)
    for row in column.filter(pc.is_valid(column)).to_pylist():
        yield _plain(row, struct)


def _plain(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):
        known = {member.name: member.type for member in kind}
        return {name: _plain(item, known[name]) for name, item in value.items() if name in known and item is not None}
    return dict(value) if pa.types.is_map(kind) else value


def _convert(row: dict[str, Any], kind: type[T]) -> T:
    return msgspec.convert(row, kind)


def _columns(part: pa.Table, action: str, schema: pa.Schema) -> pa.Table:
    """A column of structs as a table of their members, in our spelling and types, null where the file has none."""
    if action not in part.schema.names:
        return schema.empty_table()
    column = part.column(action)
    structs = column.filter(pc.is_valid(column)).combine_chunks()
    present = {member.name: index for index, member in enumerate(structs.type)}
    arrays = []
    for wanted in schema:
        index = present.get(_camel(wanted.name))
        if index is None:
            arrays.append(pa.nulls(len(structs), wanted.type))
        else:
            arrays.append(_member(structs.field(index), wanted.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _member(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if wanted == DELETION_VECTOR:
        return _deletion_vectors(array)
    return array if array.type == wanted else array.cast(wanted)


def _deletion_vectors(array: pa.StructArray) -> pa.Array:
    present = {member.name: index for index, member in enumerate(array.type)}
    arrays = []
    for wanted in DELETION_VECTOR:
        index = present.get(_camel(wanted.name))
        found = pa.nulls(len(array), wanted.type) if index is None else array.field(index).cast(wanted.type)
        arrays.append(found)
    return pa.StructArray.from_arrays(arrays, fields=list(DELETION_VECTOR), mask=array.is_null())


def _corrupt(store: Store, info: FileInfo, reason: str) -> CorruptCheckpoint:
    return CorruptCheckpoint(
        f"{store.root}: the checkpoint {info.path} cannot be used: {reason}. Nothing was changed. Delete it to "
        "have the table read from an earlier checkpoint or from its commits, where they still exist.",
        table=store.root,
        path=info.path,
    )


# --- writing --------------------------------------------------------------------------------------------------------


def write_checkpoint(
    store: Store,
    *,
    version: int,
    protocol: Protocol,
    metadata: Metadata,
    transactions: Mapping[str, SetTransaction],
    domains: Mapping[str, DomainMetadata],
    adds: pa.Table,
    removes: pa.Table,
) -> None:
    """Write the classic checkpoint of a version, and point the hint at it.

    The caller leaves out expired tombstones and transactions. Written slice by slice; it appears whole or not at all,
    and the hint moves only after it.
    """
    path = checkpoint_name(version)
    small = _small_actions(protocol, metadata, transactions, domains)
    with store.open_output(path) as sink, pq.ParquetWriter(sink, SCHEMA, compression="snappy") as writer:
        writer.write_table(small)
        for action, files, struct in (("add", adds, _ADD), ("remove", removes, _REMOVE)):
            for start in range(0, files.num_rows, SLICE_ROWS):
                writer.write_table(_file_actions(action, files.slice(start, SLICE_ROWS), struct))
    info = store.stat(path)
    write_hint(
        store,
        LastCheckpoint(
            version=version,
            size=small.num_rows + adds.num_rows + removes.num_rows,
            size_in_bytes=None if info is None else info.size_bytes,
            num_of_add_files=adds.num_rows,
        ),
    )


def _small_actions(
    protocol: Protocol,
    metadata: Metadata,
    transactions: Mapping[str, SetTransaction],
    domains: Mapping[str, DomainMetadata],
) -> pa.Table:
    rows: list[dict[str, Any]] = [
        {"protocol": msgspec.to_builtins(protocol)},
        {"metaData": msgspec.to_builtins(metadata)},
    ]
    rows += [{"txn": msgspec.to_builtins(transaction)} for transaction in transactions.values()]
    rows += [{"domainMetadata": msgspec.to_builtins(domain)} for domain in domains.values()]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _file_actions(action: str, files: pa.Table, struct: pa.StructType) -> pa.Table:
    """One action a row: the struct of that action from the table's columns, and null for every other action."""
    arrays = [_written(files.column(name).combine_chunks()) for name in files.schema.names]
    if action == "add":
        arrays.append(pa.repeat(pa.scalar(False), files.num_rows))
    else:
        # Source: protocol, a checkpoint's removes carry dataChange = false.
        arrays[files.schema.get_field_index("data_change")] = pa.repeat(pa.scalar(False), files.num_rows)
    structs = pa.StructArray.from_arrays(arrays, fields=list(struct))
    return pa.Table.from_arrays(
        [structs if member.name == action else pa.nulls(files.num_rows, member.type) for member in SCHEMA],
        schema=SCHEMA,
    )


def _written(array: pa.Array) -> pa.Array:
    if array.type != DELETION_VECTOR:
        return array
    return pa.StructArray.from_arrays(array.flatten(), fields=list(_VECTOR_TYPE), mask=array.is_null())
