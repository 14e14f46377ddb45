"""Data files, opened and read in order: every row with its position, nothing skipped or reordered.

A *position* is a row's ordinal in its file, over all row groups, before any filter. So everything here goes through
`ParquetFile.iter_batches`: never a filter, which shifts positions by the pages it skips, nor a dataset scan, which is
unordered. A file is checked against its add action before a row of it is used. Source: soundness A7, A8, A19.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_txlog.datafiles.moved_rows import count_rows
from airflow_txlog.datafiles.parquet.conversion import ColumnMismatch, columns_of_file, leaves
from airflow_txlog.datafiles.parquet.decoded_sizes import OpenParquet, rows_at_once
from airflow_txlog.datafiles.parquet.encryption import reading_options
from airflow_txlog.datafiles.parquet.footers import check_footer
from airflow_txlog.datafiles.parquet.physical import FileFields, columns_of_leaf, has_field_ids, is_found_by_id
from airflow_txlog.errors import CorruptDataFile, UnsupportedFeature
from airflow_txlog.locations import readable
from airflow_txlog.storage import Store
from airflow_txlog.storage.base import is_about_bytes, is_about_name

# Below 32k rows a batch costs up to 60 % more on the way to the JVM; above 128k it only costs memory.
BATCH_ROWS = 131_072

# A smaller file is fetched in one request, and one of which all is read up to the second size, or the third from a
# remote store. If a job reads some columns now and all of it afterwards, one up to the last size is fetched whole and
# kept for that.
SMALL_BYTES = 64 * 1024
_WHOLE_BYTES = 8 * 1024 * 1024
_WHOLE_REMOTE_BYTES = 32 * 1024 * 1024
_KEPT_BYTES = 4 * 1024 * 1024

ARROW_OPTIONS: dict[str, Any] = {"coerce_int96_timestamp_unit": "us"}

_ENCRYPTED_FOOTER = b"PARE"
# Arrow's words for a footer that names a type of later Parquet.
_NEW_TYPE = "Logical type Undefined"


FIRST_SAFE_DAY = -141_427  # 1582-10-15, in days since the epoch
FIRST_SAFE_MICROSECOND = -2_208_988_800_000_000  # 1900-01-01T00:00:00Z

_VERSION = b"org.apache.spark.version"
_LEGACY_DATETIME = b"org.apache.spark.legacyDateTime"
_LEGACY_INT96 = b"org.apache.spark.legacyINT96"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A data file as its add action describes it; None for facts that the action omits.

    `path` is relative to the root of `store`, or the absolute URI that a shallow clone names. `key` belongs to a file
    that a job has encrypted for itself. `content`: the bytes of the file, if they were fetched ahead.
    """

    store: Store
    path: str
    size_bytes: int | None = None
    num_records: int | None = None
    key: bytes | None = dataclasses.field(default=None, repr=False)
    content: bytes | pa.Buffer | None = dataclasses.field(default=None, repr=False, compare=False)

    def open_whole(self, *, is_read_again: bool) -> pa.NativeFile:
        """Open the file, whose size is known, by one request. Raises as `Store.open_input` does."""
        if self.content is not None:
            return pa.BufferReader(self.content)
        return self.store.open_whole(self.path, self.size_bytes or 0, is_read_again=is_read_again)

    @property
    def name(self) -> str:
        """The file's place, for people."""
        return readable(self.store.root, self.path)


@contextlib.contextmanager
def open_data_file(
    file: DataFile,
    *,
    dictionaries: Callable[[OpenParquet], list[str]] | None = None,
    reads_all: bool = False,
    is_read_again: bool = False,
) -> Iterator[OpenParquet]:
    """Yield the open Parquet file, INT96 read as microseconds. `dictionaries` names columns to read as dictionaries.

    `reads_all`: the caller reads all columns and rows, so that a small file is fetched by one request.
    `is_read_again`: the same job will probably read all of it later.
    Before any row is read, raises CorruptDataFile for a file that is missing, is not Parquet, or has another size or
    row count than `file`, and UnsupportedFeature for an encrypted one.
    """
    is_whole = _is_fetched_whole(file, reads_all=reads_all, is_read_again=is_read_again)
    try:
        source = file.open_whole(is_read_again=is_read_again) if is_whole else file.store.open_input(file.path)
        size_bytes = source.size()
    except FileNotFoundError as error:
        raise _missing(file) from error
    except (OSError, ValueError) as error:
        # A name that no file can have: too long, with a NUL in it, or of an unknown scheme.
        if not is_about_name(error):
            raise
        raise _corrupt(file, f"it cannot be opened: {error}") from error
    with source:
        if file.size_bytes is not None and size_bytes != file.size_bytes:
            raise _corrupt(file, f"its add action says {file.size_bytes} bytes, and it has {size_bytes}")
        if size_bytes >= 4:
            source.seek(size_bytes - 4)
            is_encrypted = source.read(4) == _ENCRYPTED_FOOTER
            if is_encrypted and file.key is None:
                raise _encrypted(file)
            # Arrow would read such a file without an error.
            if file.key is not None and not is_encrypted:
                raise _corrupt(file, "it is not encrypted")
            source.seek(0)
        # A pre-buffer holds the wanted columns of a whole row group, and reads neighbouring ones in one request. On a
        # local disk the pages are read as they are needed.
        options = {**ARROW_OPTIONS, "pre_buffer": file.store.is_remote and not is_whole}
        if file.key is not None:
            options |= reading_options(file.key)
        with _reading(file):
            parquet = OpenParquet(source, **options)
            # An encrypted footer is authenticated: a process that has the key wrote it.
            parquet.source, parquet.text_bytes = source, check_footer(source, parquet) if file.key is None else {}
            names = [] if dictionaries is None else dictionaries(parquet)
            if names:
                first = parquet
                parquet = OpenParquet(source, metadata=first.metadata, read_dictionary=names, **options)
                parquet.source, parquet.text_bytes = source, first.text_bytes
                parquet.dictionaries = frozenset(names)
        if file.num_records is not None and parquet.metadata.num_rows != file.num_records:
            raise _corrupt(
                file,
                f"its statistics say {file.num_records} rows, and its footer {parquet.metadata.num_rows}",
                remedy="Where the file has a deletion vector, its writer has counted other rows than the file's: "
                "rewrite it with that engine (OPTIMIZE, or REORG TABLE … APPLY (PURGE)). Otherwise another file is in "
                "its place: restore the file.",
            )
        with parquet:
            yield parquet


def _is_fetched_whole(file: DataFile, *, reads_all: bool, is_read_again: bool) -> bool:
    is_kept = is_read_again and file.store.keeps_files
    most_bytes = _WHOLE_REMOTE_BYTES if file.store.is_remote else _WHOLE_BYTES
    whole_bytes = most_bytes if reads_all else _KEPT_BYTES if is_kept else SMALL_BYTES
    return 0 < (file.size_bytes or 0) <= whole_bytes


def with_content(file: DataFile, *, reads_all: bool, is_read_again: bool) -> DataFile:
    """Return the file with its content, if `open_data_file` with these arguments fetches it by one request.

    Without it if there is no such file: `open_data_file` then raises the error. Other errors of the store are raised.
    """
    is_whole = _is_fetched_whole(file, reads_all=reads_all, is_read_again=is_read_again)
    if not is_whole or file.content is not None:
        return file
    try:
        with file.open_whole(is_read_again=is_read_again) as source:
            # A file of another size may be of any size.
            if source.size() == file.size_bytes:
                return dataclasses.replace(file, content=source.read_buffer())
    except (OSError, ValueError) as error:
        if not (isinstance(error, FileNotFoundError) or is_about_name(error)):
            raise
    return file


def read_batches(
    file: DataFile,
    parquet: OpenParquet,
    fields: Iterable[pa.Field] | None = None,
    *,
    row_groups: Sequence[int] | None = None,
    batch_rows: int = BATCH_ROWS,
    keeps_dictionaries: bool = False,
    use_threads: bool = False,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield batches in file order, each with the position of its first row; a batch never crosses a row group.

    `fields` are the wanted fields of the table, None for all columns of the file. Fields that the file lacks are left
    out, so a batch may have rows and no columns. `row_groups` are ascending indexes, None for all. A batch has at most
    `batch_rows`, and fewer if they would take much memory (`decoded_sizes`). `keeps_dictionaries`: the caller spells
    out no column that was read as a dictionary. `use_threads`: decode the columns in Arrow's threads.

    Raises CorruptDataFile, and UnsupportedFeature for encrypted columns and for values in a legacy calendar.
    """
    metadata = parquet.metadata
    wanted = range(metadata.num_row_groups) if row_groups is None else row_groups
    names = None if fields is None else names_in_file(file, parquet.schema_arrow, fields)
    calendar = calendar_of(parquet)
    starts = row_group_starts(parquet)
    for group in wanted:
        position = starts[group]
        with _reading(file):
            at_once = rows_at_once(parquet, group, names, batch_rows, keeps_dictionaries=keeps_dictionaries)
            batches = parquet.iter_batches(at_once, row_groups=[group], columns=names, use_threads=use_threads)
        while True:
            with _reading(file):
                batch = next(batches, None)
            if batch is None:
                break
            calendar.check(batch, file.name)
            count_rows(read=batch.num_rows)
            yield position, batch
            position += batch.num_rows
        expected = starts[group] + metadata.row_group(group).num_rows
        if position != expected:
            raise _corrupt(file, f"row group {group} ends at row {position}, and the footer says {expected}")


def names_in_file(file: DataFile, schema: pa.Schema, wanted: Iterable[pa.Field]) -> list[str]:
    """Return the file's own names of the table's fields `wanted`, in order, without those that it lacks.

    `schema` is the file's. Raises CorruptDataFile if fields are found by id and the file has no ids: every column would
    read as null. Source: protocol, "Reader Requirements for Column Mapping".
    """
    members, names, fields = FileFields(schema), schema.names, list(wanted)
    if any(map(is_found_by_id, fields)) and not has_field_ids(schema):
        raise _corrupt(file, "the table finds its columns by field id (column mapping), and the file has no ids")
    return [names[found] for found in map(members.find, fields) if found is not None]


def row_group_starts(parquet: pq.ParquetFile) -> list[int]:
    """Return the position of the first row of each row group, followed by the number of rows."""
    starts = [0]
    for group in range(parquet.metadata.num_row_groups):
        starts.append(starts[-1] + parquet.metadata.row_group(group).num_rows)
    return starts


def table_columns(
    file: DataFile, batch: pa.RecordBatch, schema: pa.Schema, constants: Mapping[str, pa.Scalar] | None = None
) -> list[pa.Array]:
    """Return rows of the file as `columns_of_file` does. Raises the errors of `corrupt_column`."""
    try:
        return columns_of_file(batch, schema, constants)
    except ColumnMismatch as error:
        raise corrupt_column(file, error) from error


def corrupt_column(file: DataFile, error: Exception) -> CorruptDataFile:
    """Return the error of a column that cannot be taken as the table's type."""
    return _corrupt(file, str(error))


@contextlib.contextmanager
def _reading(file: DataFile) -> Iterator[None]:
    """Turn the errors of pyarrow and of `check_footer` for bad bytes into ours."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise _missing(file) from error  # an object store opens a file by reading of it
        if not is_about_bytes(error):
            raise
        if file.key is None and "crypt" in str(error).lower():
            raise _encrypted(file) from error
        if _NEW_TYPE in str(error):
            raise _too_new(file, error) from error
        raise _corrupt(file, f"it cannot be read as Parquet: {error}") from error


def _missing(file: DataFile) -> CorruptDataFile:
    return _corrupt(file, "the table names it, and it is not there", is_missing=True)


_RESTORE = "Restore the file, or repair the table with the engine that wrote it."


def _corrupt(file: DataFile, reason: str, *, remedy: str = _RESTORE, **facts: Any) -> CorruptDataFile:
    return CorruptDataFile(f"Data file {file.name}: {reason}. Nothing was changed. {remedy}", path=file.name, **facts)


def _too_new(file: DataFile, error: Exception) -> UnsupportedFeature:
    return UnsupportedFeature(
        f"Data file {file.name} has a column of a type that pyarrow {pa.__version__} does not know: {error}. Nothing "
        "was changed. Install a newer pyarrow where this ran (VARIANT needs 22); where it is the newest, the file is "
        "damaged, or its type newer still.",
        feature="a type of a Parquet column",
        needed_to="read",
        path=file.name,
    )


def _encrypted(file: DataFile) -> UnsupportedFeature:
    return UnsupportedFeature(
        f"Data file {file.name} is encrypted (Parquet modular encryption), which this engine does not read. "
        "Nothing was changed.",
        feature="modular encryption",
        needed_to="read",
        path=file.name,
    )


# --- calendars ------------------------------------------------------------------------------------------------------
# Spark before 3.0, and Spark since with `datetimeRebaseModeInWrite=LEGACY`, stored old dates in the hybrid Julian
# calendar, as another day count, and shows them rebased; Arrow shows them as they are stored, days apart. From
# 1582-10-15 on (dates) and 1900-01-01 on (timestamps: the last local mean times of cities) both agree.
# Source: soundness A8; Spark's DataSourceUtils.datetimeRebaseSpec and int96RebaseSpec.


@dataclass(frozen=True, slots=True, kw_only=True)
class Calendar:
    """Which values of a file may be in the hybrid Julian calendar, by its footer."""

    legacy_dates: bool
    legacy_int96: bool
    int96_columns: frozenset[str]
    """Top-level columns with an INT96 leaf."""

    @property
    def is_legacy(self) -> bool:
        return self.legacy_dates or self.legacy_int96

    def check(self, batch: pa.RecordBatch, location: str) -> None:
        """Raise UnsupportedFeature for a batch of the file with a value that the two calendars show differently."""
        if not self.is_legacy:
            return
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            is_legacy = self.legacy_int96 if name in self.int96_columns else self.legacy_dates
            for leaf in leaves(column):
                # A struct may mix INT96 with other timestamps: then either flag counts.
                nested = leaf is not column
                if (is_legacy or nested) and _has_old_value(leaf):
                    raise UnsupportedFeature(
                        f"{location}: column {name!r} holds dates before 1582-10-15 or timestamps before 1900-01-01 "
                        "in the Julian calendar of old Spark versions, which this engine does not convert. Rewrite "
                        "the file with a Spark since 3.0 (datetimeRebaseModeInWrite=CORRECTED). Nothing was changed.",
                        feature="legacy calendar",
                        needed_to="read",
                        path=location,
                    )


def calendar_of(file: pq.ParquetFile) -> Calendar:
    """Return the calendar of an open file."""
    footer: Mapping[bytes, bytes] = file.metadata.metadata or {}
    version = _spark_version(footer.get(_VERSION))
    schema = file.schema
    columns = [schema.column(index) for index in range(len(schema))]
    int96 = {name for leaf in columns if leaf.physical_type == "INT96" for name in columns_of_leaf(leaf.path)}
    # A file without Spark's version is another writer's, and those have always used the calendar of today.
    return Calendar(
        legacy_dates=version is not None and (version < (3, 0) or _LEGACY_DATETIME in footer),
        legacy_int96=version is not None and (version < (3, 1) or _LEGACY_INT96 in footer),
        int96_columns=frozenset(file.schema_arrow.names) & int96,
    )


def _spark_version(text: bytes | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = re.match(rb"(\d+)\.(\d+)", text)
    # A version that cannot be read may be any: the values decide.
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _has_old_value(leaf: pa.Array) -> bool:
    if pa.types.is_date(leaf.type):
        limit, values = FIRST_SAFE_DAY, leaf.cast(pa.date32()).cast(pa.int32())
    elif pa.types.is_timestamp(leaf.type):
        values = leaf.cast(pa.timestamp("us", tz=leaf.type.tz), safe=False).cast(pa.int64())
        limit = FIRST_SAFE_MICROSECOND
    else:
        return False
    least = pc.min(values).as_py()
    return least is not None and least < limit
