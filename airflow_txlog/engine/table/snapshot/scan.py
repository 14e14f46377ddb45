"""The rows of a snapshot, read in this process: the result of `Table.to_arrow`.

It serves interactive use, sensors and tests; jobs read with Spark. A predicate must be in the engine's closed grammar;
anything else is refused by name, so rows are never chosen by a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.parquet.conversion import nullable_schema
from airflow_txlog.datafiles.parquet.reading import DataFile, open_data_file, read_batches, table_columns
from airflow_txlog.engine.table.columns.partitions import typed_partition_columns
from airflow_txlog.engine.table.predicate import Predicate, rows_matching
from airflow_txlog.engine.table.snapshot.files import record_counts
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import UnknownColumn
from airflow_txlog.errors.names import did_you_mean, shown_names


def read_rows(snapshot: Snapshot, predicate: Predicate | None = None, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows that satisfy the predicate (None: all), with these columns (None: all), in no order.

    Raises UnsupportedPredicate, UnknownColumn, CorruptDataFile, CorruptDeletionVector, UnsupportedFeature.
    """
    wanted = selected(snapshot, columns)
    needed = wanted if predicate is None else _with_columns_of(snapshot, wanted, predicate)
    schema = nullable_schema(needed)
    batches = _read_files(snapshot, snapshot.files(predicate), needed)
    if predicate is not None:
        # One that only Spark evaluates is refused before a file is read.
        rows_matching(predicate, schema.empty_table())
        # Other rows are dropped batch by batch: a table may have many more than there is memory for.
        batches = (batch.filter(rows_matching(predicate, batch)) for batch in batches)
    rows = pa.Table.from_batches([batch for batch in batches if batch.num_rows], schema=schema)
    return rows.select(wanted.names)


def read_row_batches(snapshot: Snapshot, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield all rows with these columns, in no order; of a batch at a time, so that few stay in memory.

    Raises as `read_rows` does.
    """
    return _read_files(snapshot, snapshot.files(None), selected(snapshot, columns))


def selected(snapshot: Snapshot, columns: Sequence[str] | None) -> pa.Schema:
    """Return the columns of these names (None: all) in the snapshot's schema. Raises UnknownColumn."""
    if columns is None:
        return snapshot.schema
    fields, names = [], snapshot.delta_schema.names
    for name in columns:
        found = snapshot.delta_schema.find(name)
        if found is None:
            raise UnknownColumn(
                f"{snapshot.uri} has no column {name!r}.{did_you_mean(name, names)} It has: {shown_names(names)}.",
                column=name,
                columns=names,
            )
        fields.append(snapshot.schema.field(found.name))
    return pa.schema(fields)


def _with_columns_of(snapshot: Snapshot, wanted: pa.Schema, predicate: Predicate) -> pa.Schema:
    if predicate.columns is None:
        return snapshot.schema
    extra = [name for name in snapshot.schema.names if name in predicate.columns and name not in wanted.names]
    return pa.schema([*wanted, *(snapshot.schema.field(name) for name in extra)])


def _read_files(snapshot: Snapshot, files: pa.Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    constants = partition_constants(snapshot, files, schema)
    rows, counts = files.select(["path", "size"]).to_pylist(), record_counts(files)
    deletions = snapshot.deleted_rows(files)
    for index, (row, deleted) in enumerate(zip(rows, deletions, strict=True)):
        values = {name: column[index] for name, column in constants.items()}
        wanted = FileRows(data_file(snapshot, row["path"], row["size"], counts[index]), schema, values)
        yield from read_file(wanted, None if deleted is None else deleted.keep, deleted)


def data_file(snapshot: Snapshot, path: str, size_bytes: int | None, num_records: int | None) -> DataFile:
    """Return the file of an action with this path. Raises OutsideTable."""
    return DataFile(
        store=snapshot.store, path=snapshot.path_to_read(path), size_bytes=size_bytes, num_records=num_records
    )


@dataclass(frozen=True, slots=True)
class FileRows:
    """A file, the wanted columns, and the values of those that it does not hold (partition columns)."""

    file: DataFile
    schema: pa.Schema
    constants: Mapping[str, pa.Scalar]


Keep = Callable[[int, int], pa.BooleanArray | None]
"""Selects rows, by position and count; None for all."""


def read_file(
    rows: FileRows, keep: Keep | None = None, deleted: RowPositions | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one file that `keep` selects (None: all), in order, with every column nullable."""
    target = nullable_schema(rows.schema)
    stored = [field for field in rows.schema if field.name not in rows.constants]
    with open_data_file(rows.file) as parquet:
        if deleted is not None:
            deleted.check_inside(parquet.metadata.num_rows)
        for start, batch in read_batches(rows.file, parquet, stored):
            # A deletion vector counts the rows of the file (soundness A19).
            wanted = None if keep is None else keep(start, batch.num_rows)
            found = batch if wanted is None else batch.filter(wanted)
            columns = table_columns(rows.file, found, target, rows.constants)
            yield pa.RecordBatch.from_arrays(columns, schema=target)


def partition_constants(snapshot: Snapshot, files: pa.Table, schema: pa.Schema) -> dict[str, pa.Array]:
    """Return one value a file for each partition column of the schema. Raises CorruptTable for an unreadable one."""
    typed = typed_partition_columns(
        files, snapshot.delta_schema, snapshot.partition_columns, only=schema.names, time_zone="UTC"
    )
    return {name: column.for_rows(name) for name, column in typed.items()}
