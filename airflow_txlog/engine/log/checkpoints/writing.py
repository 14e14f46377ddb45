"""A classic checkpoint, written.

The invariant: it goes in slices, so that memory is bounded by the slice, and it appears whole or not at all.
Source: protocol, "Checkpoints" and "Checkpoint Schema".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_txlog.engine.log.actions import DomainMetadata, Metadata, Protocol, SetTransaction
from airflow_txlog.engine.log.checkpoints.schema import ADD, CHECKPOINT, REMOVE, VECTOR_TYPE, wire_name
from airflow_txlog.engine.log.last_checkpoint import LastCheckpoint, write_hint
from airflow_txlog.engine.log.names import checkpoint_name
from airflow_txlog.engine.store.base import Store

_ROW_GROUP_ROWS = 65_536

_SMALL = ["protocol", "metaData", "txn", "domainMetadata"]

# Paths and statistics are different in every row: a dictionary of them is work for nothing.
_REPEATING = [
    "add.partitionValues.key_value.key",
    "add.partitionValues.key_value.value",
    "add.tags.key_value.key",
    "add.tags.key_value.value",
    "add.clusteringProvider",
    "remove.partitionValues.key_value.key",
    "remove.partitionValues.key_value.value",
]


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
    """Write the classic checkpoint of `version`, and then the hint to it.

    `adds` (schema FILES) are the live files; `removes` (schema TOMBSTONES) the tombstones that the caller still keeps.
    The commit of the version exists already. Two writers may write one version at the same time: both write the same
    state, and one of the two files stays, whole. Raises what the store raises; then the old state of the log stands.
    """
    kept = [domain for domain in domains.values() if not domain.removed]
    path = checkpoint_name(version)
    with (
        store.open_output(path) as output,
        pq.ParquetWriter(output, CHECKPOINT, compression="snappy", use_dictionary=_REPEATING) as writer,
    ):
        writer.write_table(_small_actions(protocol, metadata, list(transactions.values()), kept))
        for rows in _slices(removes):
            writer.write_table(_actions(len(rows), remove=_wire_rows(rows, REMOVE)))
        for rows in _slices(adds):
            writer.write_table(_actions(len(rows), add=_wire_rows(rows, ADD)))
    info = store.stat(path)
    hint = LastCheckpoint(
        version=version,
        size=2 + len(transactions) + len(kept) + adds.num_rows + removes.num_rows,
        size_in_bytes=None if info is None else info.size_bytes,
        num_of_add_files=adds.num_rows,
    )
    write_hint(store, hint)


def _small_actions(
    protocol: Protocol, metadata: Metadata, transactions: list[SetTransaction], domains: list[DomainMetadata]
) -> pa.Table:
    """Everything but the files, one row each."""
    table = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
        # Lists where the version has feature lists, null where it does not: the protocol demands both.
        "readerFeatures": (protocol.reader_features or []) if protocol.min_reader_version >= 3 else None,
        "writerFeatures": (protocol.writer_features or []) if protocol.min_writer_version >= 7 else None,
    }
    rows = [
        {"protocol": table},
        {"metaData": msgspec.to_builtins(metadata)},
        *({"txn": msgspec.to_builtins(each)} for each in transactions),
        *({"domainMetadata": msgspec.to_builtins(each)} for each in domains),
    ]
    columns = {name: pa.array([row.get(name) for row in rows], CHECKPOINT.field(name).type) for name in _SMALL}
    return _actions(len(rows), **columns)


def _slices(files: pa.Table) -> Iterator[pa.RecordBatch]:
    """The rows in batches of one row group each, however small the chunks are that commits left in the table."""
    for start in range(0, files.num_rows, _ROW_GROUP_ROWS):
        yield from files.slice(start, _ROW_GROUP_ROWS).combine_chunks().to_batches()


def _wire_rows(rows: pa.RecordBatch, struct: pa.StructType) -> pa.StructArray:
    by_name = dict(zip(map(wire_name, rows.schema.names), rows.columns, strict=True))
    by_name["dataChange"] = pa.repeat(pa.scalar(False), len(rows))
    vectors = by_name["deletionVector"]
    by_name["deletionVector"] = pa.StructArray.from_arrays(
        vectors.flatten(), fields=list(VECTOR_TYPE), mask=vectors.is_null()
    )
    return pa.StructArray.from_arrays([by_name[each.name] for each in struct], fields=list(struct))


def _actions(count: int, **columns: pa.Array) -> pa.Table:
    """Rows of the checkpoint's schema, all columns null but those given."""
    arrays = [columns[each.name] if each.name in columns else pa.nulls(count, each.type) for each in CHECKPOINT]
    return pa.table(arrays, schema=CHECKPOINT)
