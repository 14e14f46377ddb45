"""Small data files of one writer and schema, read whole and many together.

To open, check and read a small file alone costs many times what its rows cost. Here most footers are checked by the
form of an earlier one (`FooterForm`), and the rows of neighbouring files become one batch. The invariant: a file of
which any check fails, or whose rows might take much memory, is left to `open_data_file`, which reads it or raises.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_txlog.datafiles.moved_rows import count_rows
from airflow_txlog.datafiles.parquet.decoded_sizes import BATCH_BYTES, without_views
from airflow_txlog.datafiles.parquet.footers import FooterForm
from airflow_txlog.datafiles.parquet.reading import (
    ARROW_OPTIONS,
    SMALL_BYTES,
    DataFile,
    calendar_of,
    names_in_file,
    open_data_file,
)
from airflow_txlog.datafiles.tasks.plans import PlannedFile
from airflow_txlog.errors import TxlogError

# A form pays off only if several files have it, and few writers have written one table.
_FIRST_ALONE = 8
_MOST_FORMS = 16
_MOST_ROWS = 8_192
# The rows and bytes that are joined before they are passed on.
_JOINED_ROWS = 32_768
_JOINED_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Neighbouring files of a plan, and their rows in order, with the columns as stored; None for a file left alone."""

    files: list[PlannedFile]
    counts: list[int] = dataclasses.field(default_factory=list)
    rows: pa.RecordBatch | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    """Files of one form, their schema, and the names of the wanted columns in them."""

    form: FooterForm
    schema: pa.Schema
    names: list[str]


def in_runs(files: Iterable[PlannedFile], schema: pa.Schema) -> Iterator[Run]:
    """Yield all files in order, with the rows of small neighbours of one partition where they can be read together.

    `schema` has the wanted columns of the table.
    """
    forms: _Forms | None = None
    waiting: list[tuple[PlannedFile, _Known, pa.Table]] = []
    rows = size_bytes = 0
    for planned in files:
        if forms is None:
            forms = _Forms([field for field in schema if field.name not in planned.constants])
        found = forms.read(planned.file) if planned.deleted is None and planned.parts == 1 else None
        if waiting and (found is None or _is_full(waiting[-1], planned, found[0], rows, size_bytes)):
            yield _joined(waiting)
            waiting, rows, size_bytes = [], 0, 0
        if found is None:
            yield Run(files=[planned])
            continue
        waiting.append((planned, *found))
        rows, size_bytes = rows + found[1].num_rows, size_bytes + found[1].nbytes
    if waiting:
        yield _joined(waiting)


def _is_full(
    last: tuple[PlannedFile, _Known, pa.Table], planned: PlannedFile, known: _Known, rows: int, size_bytes: int
) -> bool:
    """Return whether a file cannot join the run that ends with `last`."""
    is_large = rows >= _JOINED_ROWS or size_bytes >= _JOINED_BYTES
    is_alike = last[1].schema is known.schema or last[1].schema.equals(known.schema, check_metadata=True)
    return is_large or not is_alike or last[0].constants != planned.constants


def _joined(waiting: Sequence[tuple[PlannedFile, _Known, pa.Table]]) -> Run:
    tables = [table for _, _, table in waiting]
    rows = pa.concat_tables(tables).combine_chunks()
    batch = rows.to_batches()[0] if rows.num_rows else pa.RecordBatch.from_pylist([], rows.schema)
    return Run(files=[each for each, _, _ in waiting], counts=[t.num_rows for t in tables], rows=without_views(batch))


class _Forms:
    """The forms of the footers so far, by which further files are read."""

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self._fields = fields
        self._known: list[_Known] = []
        self._left_alone = self._tries = 0

    def read(self, file: DataFile) -> tuple[_Known, pa.Table] | None:
        """Return the wanted columns of a small file whose footer has a known form; None for any other file."""
        if not 0 < (file.size_bytes or 0) <= SMALL_BYTES or file.key is not None:
            return None
        if not self._known and self._left_alone < _FIRST_ALONE:
            self._left_alone += 1
            return None
        try:
            with file.store.open_whole(file.path, file.size_bytes or 0) as source:
                data = source.read()
            if len(data) != file.size_bytes:
                return None
            for known in self._known:
                found = known.form.most_bytes(data)
                if found is not None:
                    return self._read(file, known, data, *found)
            if self._tries < _MOST_FORMS:
                self._tries += 1
                self._learn(file)
        # The file is read once more, on its own, and the error raised with its name.
        except (TxlogError, ValueError, OSError, pa.ArrowException):
            pass
        return None

    def _read(
        self, file: DataFile, known: _Known, data: bytes, num_rows: int, most_bytes: int
    ) -> tuple[_Known, pa.Table] | None:
        if num_rows > _MOST_ROWS or most_bytes > BATCH_BYTES or file.num_records not in (None, num_rows):
            return None
        parquet = pq.ParquetFile(pa.BufferReader(data), **ARROW_OPTIONS)
        table = parquet.read(columns=known.names, use_threads=False)
        if table.num_rows != num_rows:
            return None
        count_rows(read=num_rows)
        return known, table

    def _learn(self, file: DataFile) -> None:
        with open_data_file(file) as parquet:
            names = names_in_file(file, parquet.schema_arrow, self._fields)
            if names and not calendar_of(parquet).is_legacy:
                self._known.append(_Known(FooterForm.of(parquet.source), parquet.schema_arrow, names))
