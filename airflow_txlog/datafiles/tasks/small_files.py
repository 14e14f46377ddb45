"""Small data files of one writer and schema, read whole and many together.

To open, check and read a small file alone costs many times what its rows cost. Here most footers are checked by the
form of an earlier one (`FooterForm`), and the rows of neighbouring files become one batch. The invariant: a file of
which any check fails, or whose rows might take much memory, is left to `open_data_file`, which reads it or raises.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Generic, Literal, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_txlog.datafiles.deletion_vectors.positions import unpack
from airflow_txlog.datafiles.moved_rows import count_rows
from airflow_txlog.datafiles.parquet.decoded_sizes import BATCH_BYTES, OpenParquet, without_views
from airflow_txlog.datafiles.parquet.footer_forms import FooterForm, FormFooter
from airflow_txlog.datafiles.parquet.reading import (
    ARROW_OPTIONS,
    SMALL_BYTES,
    DataFile,
    calendar_of,
    names_in_file,
    open_data_file,
    with_content,
)
from airflow_txlog.datafiles.tasks.plans import PlannedFile
from airflow_txlog.errors import TxlogError

T = TypeVar("T")

# After so many files without a known form, one is learned. The first one costs a process as much as ten files.
_ALONE_A_FORM = 4
_MOST_FORMS = 16
_MOST_ROWS = 8_192
# The rows and bytes that are joined before they are passed on.
_JOINED_ROWS = 32_768
_JOINED_BYTES = 8 * 1024 * 1024
# The files of a remote store, and their bytes, that are fetched while earlier ones are read. A large one is fetched in
# its turn: two such files would take much memory.
_FETCHED_AT_ONCE = 16
_FETCHED_FILES = 32
_FETCHED_BYTES = 16 * 1024 * 1024
_LARGE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Neighbouring files of a plan, and their rows in order, with the columns as stored; None for a file left alone."""

    files: list[PlannedFile]
    counts: list[int] = dataclasses.field(default_factory=list)
    rows: pa.RecordBatch | None = None

    def wanted(self, rows: Literal["all", "only", "others"]) -> pa.BooleanArray | None:
        """Return which rows are wanted (see `FileScan`); None for all.

        Raises CorruptDeletionVector for a position behind the last row of its file.
        """
        if rows == "all":
            return None
        at, other = (1, b"\0") if rows == "only" else (0, b"\1")
        flags = bytearray()
        for planned, count in zip(self.files, self.counts, strict=True):
            has_all = planned.positions is None
            flags_of_file = bytearray(b"\1" if has_all else other) * count
            positions = unpack(planned.positions)
            positions.check_inside(count)
            for position in positions.positions().to_pylist():
                flags_of_file[position] = at
            flags += flags_of_file
        return pa.Array.from_buffers(pa.uint8(), len(flags), [None, pa.py_buffer(flags)]).cast(pa.bool_())


def in_runs(
    files: Iterable[PlannedFile], schema: pa.Schema, *, reads_all: bool = False, is_read_again: bool = False
) -> Iterator[Run]:
    """Yield all files in order, with the rows of small neighbours of one partition if they can be read together.

    `schema` has the wanted columns of the table. `reads_all` and `is_read_again`: as of `open_data_file`.
    """
    # A file of change rows has a column that is a constant of other files.
    readers: dict[frozenset[str], _Rows] = {}
    waiting: list[tuple[PlannedFile, pa.Table]] = []
    rows = size_bytes = 0
    for planned in fetched_ahead(files, reads_all=reads_all, is_read_again=is_read_again):
        reader = readers.get(given := frozenset(planned.constants))
        if reader is None:
            columns = [field for field in schema if field.name not in given]
            reader = readers.setdefault(given, _Rows(columns, is_read_again))
        found = reader.read(planned.file) if planned.deleted is None and planned.parts == 1 else None
        if waiting and (found is None or _is_full(waiting[-1], planned, found[0], rows, size_bytes)):
            yield _joined(waiting)
            waiting, rows, size_bytes = [], 0, 0
        if found is None:
            yield Run(files=[planned])
            continue
        table = found[0]
        waiting.append((planned, table))
        rows, size_bytes = rows + table.num_rows, size_bytes + found[1]
    if waiting:
        yield _joined(waiting)


def fetched_ahead(files: Iterable[PlannedFile], *, reads_all: bool, is_read_again: bool) -> Iterator[PlannedFile]:
    """Yield the same files; small ones of a remote store are fetched while earlier ones are used, each by one request.

    A file that has its content already is not held back for later ones. An error of a fetch is raised when the turn of
    its file comes.
    """

    def fetch(planned: PlannedFile) -> PlannedFile:
        file = with_content(planned.file, reads_all=reads_all, is_read_again=is_read_again)
        return dataclasses.replace(planned, file=file)

    pool: ThreadPoolExecutor | None = None
    waiting: deque[tuple[int, Callable[[], PlannedFile]]] = deque()
    waiting_bytes = 0
    try:
        for planned in files:
            size_bytes = planned.file.size_bytes or 0
            is_held = planned.file.content is not None
            if is_held or not planned.file.store.is_remote or planned.parts > 1:
                waiting.append((0, partial(_itself, planned)))
            elif size_bytes > _LARGE_BYTES:
                waiting.append((0, partial(fetch, planned)))
            else:
                pool = pool or ThreadPoolExecutor(_FETCHED_AT_ONCE, thread_name_prefix="txlog-fetch")
                waiting.append((size_bytes, pool.submit(fetch, planned).result))
                waiting_bytes += size_bytes
            while waiting and (
                is_held or waiting[0][0] == 0 or len(waiting) > _FETCHED_FILES or waiting_bytes > _FETCHED_BYTES
            ):
                size_bytes, fetched = waiting.popleft()
                waiting_bytes -= size_bytes
                yield fetched()
        while waiting:
            yield waiting.popleft()[1]()
    finally:
        if pool is not None:
            # An interrupted task does not wait for files that it no longer needs.
            pool.shutdown(wait=False, cancel_futures=True)


def _itself(planned: PlannedFile) -> PlannedFile:
    return planned


def _is_full(
    last: tuple[PlannedFile, pa.Table], planned: PlannedFile, found: pa.Table, rows: int, size_bytes: int
) -> bool:
    """Return whether a file with the rows `found` cannot join the run that ends with `last`."""
    is_large = rows >= _JOINED_ROWS or size_bytes >= _JOINED_BYTES
    # As Arrow reads them: one writer's texts may be views, and another's not.
    is_alike = last[1].schema.equals(found.schema, check_metadata=True)
    # A partition that two writers spell in two ways is two to an OPTIMIZE.
    is_spelled_alike = last[0].partition_values == planned.partition_values
    is_of_segment = last[0].segment == planned.segment
    return is_large or not (is_alike and is_spelled_alike and is_of_segment) or last[0].constants != planned.constants


def _joined(waiting: Sequence[tuple[PlannedFile, pa.Table]]) -> Run:
    tables = [table for _, table in waiting]
    rows = pa.concat_tables(tables).combine_chunks()
    batch = rows.to_batches()[0] if rows.num_rows else pa.RecordBatch.from_pylist([], rows.schema)
    return Run(files=[each for each, _ in waiting], counts=[t.num_rows for t in tables], rows=without_views(batch))


@dataclass(frozen=True, slots=True)
class KnownFile(Generic[T]):
    """A file whose footer has a known form: the facts of that form, its bytes (or those at its end), and its footer."""

    facts: T
    data: bytes
    footer: FormFooter


class KnownForms(Generic[T]):
    """Facts about files by the forms of their footers. Several threads may use it."""

    def __init__(self, *, is_read_again: bool = False, reads_ends: bool = False) -> None:
        """`is_read_again`: as of `open_data_file`. `reads_ends`: of large files the end is read; else none of them."""
        self._is_read_again, self._reads_ends = is_read_again, reads_ends
        self._known: list[tuple[FooterForm, T]] = []
        self._misses = self._tries = 0

    def find(self, file: DataFile) -> KnownFile[T] | None:
        """Return what is known about a file; None if its form is unknown or anything about it is not as it should
        be: then `open_data_file` reads it or raises.
        """
        if not self.may_know(file):
            return None
        found = self._find(file) if self._known else None
        self._misses += found is None
        return found

    def may_know(self, file: DataFile) -> bool:
        """Return whether files of this size are looked up."""
        size_bytes = file.size_bytes or 0
        return file.key is None and (0 < size_bytes <= SMALL_BYTES or (self._reads_ends and size_bytes > 0))

    def _find(self, file: DataFile) -> KnownFile[T] | None:
        try:
            data = self._bytes(file, file.size_bytes or 0)
        except (TxlogError, ValueError, OSError, pa.ArrowException):
            return None
        if data is None:
            return None
        for form, facts in self._known:
            footer = form.read(data)
            if footer is not None:
                return KnownFile(facts, data, footer) if file.num_records in (None, footer.num_rows) else None
        return None

    def _bytes(self, file: DataFile, size_bytes: int) -> bytes | None:
        """Return a small file, or the end of a larger one; None if its size is another one."""
        is_whole = size_bytes <= SMALL_BYTES
        source = file.open_whole(is_read_again=self._is_read_again) if is_whole else file.store.open_input(file.path)
        with source:
            # A file of another size may be of any size.
            if source.size() != size_bytes:
                return None
            if not is_whole:
                source.seek(size_bytes - SMALL_BYTES)
            data: bytes = source.read(SMALL_BYTES)
            return data

    @property
    def wants_more(self) -> bool:
        """Whether it is time to learn another form."""
        return self._misses > _ALONE_A_FORM * (self._tries + 1) and self._tries < _MOST_FORMS

    def learn(
        self, parquet: OpenParquet, facts: T | None, is_plain: Callable[[FormFooter], bool] = lambda footer: True
    ) -> None:
        """Remember the form of the footer of an open file, if it has one. None: its facts are not those of others.

        `is_plain` returns whether what the form shows of the file's footer is true.
        """
        self._tries += 1
        if facts is None:
            return
        with contextlib.suppress(ValueError):
            form, footer = FooterForm.of(parquet.source)
            if is_plain(footer):
                self._known.append((form, facts))


class _Rows:
    """Reads the wanted columns of small files."""

    def __init__(self, fields: Sequence[pa.Field], is_read_again: bool) -> None:
        self._fields, self._is_read_again = fields, is_read_again
        self._forms: KnownForms[list[str]] = KnownForms(is_read_again=is_read_again)
        """The names of the wanted columns in files of a form."""

    def read(self, file: DataFile) -> tuple[pa.Table, int] | None:
        """Return the rows of a small file whose footer has a known form, and their bytes; None for any other file."""
        found = self._forms.find(file)
        # The file is read once more, on its own, and the error raised with its name.
        with contextlib.suppress(TxlogError, ValueError, OSError, pa.ArrowException):
            if found is None:
                if self._forms.wants_more and self._forms.may_know(file):
                    self._learn(file)
            elif found.footer.num_rows <= _MOST_ROWS and found.footer.most_bytes() <= BATCH_BYTES:
                parquet = pq.ParquetFile(pa.BufferReader(found.data), **ARROW_OPTIONS)
                table = parquet.read(columns=found.facts, use_threads=False)
                # The footer may understate the bytes. Texts of two gigabytes would make a second batch.
                size_bytes = table.get_total_buffer_size()
                if table.num_rows == found.footer.num_rows and size_bytes <= BATCH_BYTES:
                    count_rows(read=found.footer.num_rows)
                    return table, size_bytes
        return None

    def _learn(self, file: DataFile) -> None:
        with open_data_file(file, is_read_again=self._is_read_again) as parquet:
            names = names_in_file(file, parquet.schema_arrow, self._fields)
            is_plain = bool(names) and not calendar_of(parquet).is_legacy
            self._forms.learn(parquet, names if is_plain else None)
