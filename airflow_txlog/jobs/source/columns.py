"""The columns of a Parquet source, by the footers of all its files, and what reading each file costs.

Spark takes the columns from one file, and fails at another one that has a column in a wider type. Here each column gets
the type in which every file can be read without a loss. The invariant: where Spark reads the source by itself, the rows
are those that it reads; where it does not, they are the values of the files, or the source is refused by the names of a
file and a column. Source: Spark 4.2, ParquetFileFormat.inferSchema, ParquetVectorUpdaterFactory, ResolveDefaultColumns.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pyarrow as pa

from airflow_txlog.contract.operations import FileView
from airflow_txlog.datafiles.parquet.decoded_sizes import decoded_bytes
from airflow_txlog.datafiles.parquet.reading import DataFile, calendar_of, open_data_file
from airflow_txlog.engine.table.schema.evolution import is_widening
from airflow_txlog.engine.table.schema.types import (
    MAX_DECIMAL_PRECISION,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    Primitive,
    StructField,
    StructType,
)
from airflow_txlog.errors import InvalidJobSpec, TxlogError
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.source.footers import (
    NoColumnType,
    Notes,
    NotSpark,
    columns_of_footer,
    is_in_nanoseconds,
    notes_of,
    pairs_of,
    unread,
    without_void,
)
from airflow_txlog.jobs.source.listing import OnlySpark, SourceFiles, find_files
from airflow_txlog.jobs.sql.plain_values import plain_values
from airflow_txlog.locations import readable
from airflow_txlog.sql.expression import Values
from airflow_txlog.storage import Store
from airflow_txlog.storage.limits import cost_of

MAX_FILES = 2_000
"""The footers of more files are not looked at: by one of them the columns are known, as Spark knows them."""
_READERS = 8
# Which of the two a file holds makes no difference to Spark, and to Arrow it does.
_ALIKE_TO_SPARK = (
    frozenset((Primitive.STRING, Primitive.BINARY)),
    frozenset((Primitive.TIMESTAMP, Primitive.TIMESTAMP_NTZ)),
)
_SUFFIXES = {Primitive.LONG: "L", Primitive.DOUBLE: "D", Primitive.SHORT: "S", Primitive.BYTE: "Y"}


class _Apart(Exception):
    """Two types of which no column can hold all values."""


class _ForSpark(Exception):
    """Two types that Spark reads as one in a way of its own, or of which it is not known whether it does."""


@dataclass(frozen=True, kw_only=True)
class SourceFooter:
    """What the footer of one file says. `columns` is None where only Spark may know them, for the reason `why`."""

    path: str
    columns: StructType | None
    why: str | None = None
    error: Exception | None = None
    """Why there are no columns, or no notes: the file cannot be opened, or only Spark knows how to read it."""
    notes: Notes | None = None
    num_rows: int = 0
    cost: int = 0
    in_nanoseconds: frozenset[str] = frozenset()
    """The names in small letters of the columns that hold such times."""
    names: tuple[str, ...] = ()
    """The columns that the file has, whatever Spark has noted of it."""

    def has(self, name: str) -> bool:
        """Whether the file has a column of this name, in any case."""
        return name.lower() in map(str.lower, self.names)


@dataclass(frozen=True, kw_only=True)
class SourceColumns:
    """The columns of a source's files, in types in which every file can be read.

    `left`: why the columns or the rows are left to Spark. `only_here`: why Spark does not read the files,
    and this package does. Neither: both read the same. `padded` are texts of the type `char(n)`, with n.
    `defaults`: what a column has where a file lacks it. `costs`: of reading each file whose footer was read, by path.
    """

    columns: StructType = field(default_factory=lambda: StructType(()))
    costs: Mapping[str, int] = field(default_factory=dict)
    padded: Mapping[str, int] = field(default_factory=dict)
    defaults: Mapping[str, pa.Scalar] = field(default_factory=dict)
    left: OnlySpark | None = None
    only_here: str | None = None
    error: TxlogError | None = None
    """Of the file that has the columns: it cannot be opened, or has columns or notes that only Spark can read."""
    inferred: StructType | None = None
    """The columns that Spark would infer, and may be given; None where it has notes to go by, and looks itself."""
    lacking: str | None = None
    """A column that a file lacks, and whose default only Spark can evaluate."""
    apart: InvalidJobSpec | None = None
    """The error for files of which no type holds all values of a column, unless nothing reads that column."""


def columns_in_footers(found: SourceFiles, argument: str, besides: Iterable[str] = ()) -> SourceColumns:
    """Return the columns of a source with files that are not empty; `besides`: names of those that folders name.

    Raises InvalidJobSpec (`argument`) for a type that no column can have, and what the store raises.
    """
    files = found.sizes
    # Spark takes the columns from the summary beside the files, or from the first file, as Java orders texts.
    asked = found.summary or min(files, key=lambda path: path.encode("utf-16-be"))
    footers = _footers_of(found.store, {**(files if len(files) <= MAX_FILES else {}), asked: files.get(asked)})
    first = next(footer for footer in footers if footer.path == asked)
    return _columns_of(found.store, [footer for footer in footers if footer.path in files], first, argument, besides)


def found_with_columns(context: JobContext, view: FileView, argument: str) -> tuple[SourceFiles, SourceColumns] | None:
    """Return a view's Parquet files and the columns in their footers, which Spark would start a job to look into.

    None where only Spark can say which files or columns there are. Raises InvalidJobSpec (`argument`) for a type that
    no column can have.
    """
    try:
        found = find_files(context, view, argument)
    except (TxlogError, OSError):
        return None
    if (
        isinstance(found, OnlySpark)
        or not found.files
        or any(each.values or not each.size_bytes for each in found.files)
    ):
        return None
    with contextlib.suppress(OSError):
        return found, columns_in_footers(found, argument)
    return None


def columns_as_given(found: SourceFiles, columns: StructType, notes: Notes) -> SourceColumns:
    """Return these columns, in which Spark reads the files; they are left to it where a file has others."""
    footers = _footers_of(found.store, found.sizes)
    for footer in footers:
        held = None if footer.columns is None or footer.why is not None else without_void(footer.columns)
        if held is None or not all(_type_in(held, each.name) == each.type for each in columns):
            return SourceColumns(columns=columns, left=OnlySpark(_not_certain(found.store, footer.path)))
    costs = {footer.path: footer.cost for footer in footers}
    return SourceColumns(columns=columns, costs=costs, padded=notes.chars)


def _footers_of(store: Store, files: Mapping[str, int | None]) -> list[SourceFooter]:
    """The footers of these files, of which the sizes are given as far as they are known, in their order.

    A file that cannot be opened, and one that only Spark reads, has no columns. Raises what the store raises.
    """
    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(lambda path: _footer_of(store, path, files[path]), files))


def padded_columns(context: JobContext, chars: Mapping[str, int]) -> Mapping[str, int]:
    """Those of the texts of the type `char(n)` that Spark pads, by its settings: all or none."""
    is_padded = context.executor.setting("spark.sql.readSideCharPadding", "true").lower() == "true"
    is_text = context.executor.setting("spark.sql.legacy.charVarcharAsString", "false").lower() == "true"
    return chars if is_padded and not is_text else {}


def _columns_of(
    store: Store, footers: Sequence[SourceFooter], first: SourceFooter, argument: str, besides: Iterable[str]
) -> SourceColumns:
    """The columns of `first` as all files can be read."""
    if first.error is not None or first.columns is None or first.notes is None:
        error = unread(readable(store.root, first.path), first.error or NotSpark(), argument)
        if isinstance(first.error, NoColumnType):
            raise error
        left = OnlySpark(first.why or _odd_notes(store, first))
        return SourceColumns(left=left, error=error)
    reasons = [footer.why for footer in footers if footer.why is not None]
    own, apart = frozenset(name.lower() for name in besides), None
    fields = []
    for column in first.columns:
        kind = column.type
        for footer in footers if column.name.lower() not in own else ():
            other = None if footer.columns is None or not footer.num_rows else footer.columns.find(column.name)
            if other is None:
                continue
            try:
                kind = _together(kind, other.type)
            except _Apart:
                apart = apart or _do_not_go_together(store, first, footer, column, other, argument)
            except _ForSpark:
                name = readable(store.root, footer.path)
                reasons.append(f"the file {name} has column {column.name!r} as {other.type}, and another as {kind}")
        fields.append(replace(column, type=kind))
    shown = without_void(StructType(tuple(fields)))
    defaults, unknown = _defaults(first.notes, footers, shown)
    if unknown is not None:
        reasons.append(f"a file lacks column {unknown!r}, whose default only Spark can evaluate")
    if any(_type_in(shown, name) is not Primitive.STRING for name in first.notes.chars):
        reasons.append(_odd_notes(store, first))
    return SourceColumns(
        columns=shown,
        costs={footer.path: footer.cost for footer in footers},
        padded=first.notes.chars,
        defaults=defaults,
        left=OnlySpark(reasons[0]) if reasons else None,
        only_here=_why_only_here(store, footers, shown),
        lacking=unknown,
        apart=apart,
        inferred=shown if apart is None and tuple(shown.names) == first.names and not first.notes.is_any else None,
    )


def _type_in(columns: StructType, name: str) -> DataType | None:
    found = columns.find(name)
    return None if found is None else found.type


def _odd_notes(store: Store, first: SourceFooter) -> str:
    return f"Spark has noted columns in the file {readable(store.root, first.path)} that only Spark can read"


def _footer_of(store: Store, path: str, size_bytes: int | None) -> SourceFooter:
    try:
        with open_data_file(DataFile(store=store, path=path, size_bytes=size_bytes)) as parquet:
            size_bytes = parquet.source.size()
            columns, notes, odd = columns_of_footer(parquet), None, None
            try:
                notes = notes_of(parquet)
            except NotSpark as error:
                odd = error
            held = parquet.schema_arrow
            is_legacy = calendar_of(parquet).is_legacy
            return SourceFooter(
                path=path,
                columns=columns,
                why=_not_certain(store, path) if is_legacy else None,
                error=odd,
                notes=notes,
                num_rows=parquet.metadata.num_rows,
                cost=cost_of(size_bytes, decoded_bytes(parquet)),
                in_nanoseconds=frozenset(each.name.lower() for each in held if is_in_nanoseconds(each.type)),
                names=tuple(held.names),
            )
    except (TxlogError, NotSpark) as error:
        return SourceFooter(path=path, columns=None, why=_not_certain(store, path), error=error)


def _not_certain(store: Store, path: str) -> str:
    return f"it is not certain that Arrow reads the file {readable(store.root, path)} as Spark does"


def _why_only_here(store: Store, footers: Sequence[SourceFooter], columns: StructType) -> str | None:
    for footer in footers:
        for column in columns:
            name = column.name
            other = None if footer.columns is None or not footer.num_rows else footer.columns.find(name)
            if name.lower() in footer.in_nanoseconds:
                return f"the file {readable(store.root, footer.path)} has column {name!r} in nanoseconds"
            if other is not None and any(_is_null_of_another_type(*pair) for pair in pairs_of(column.type, other.type)):
                return f"the file {readable(store.root, footer.path)} has nothing but null in column {name!r}"
    return None


def _is_null_of_another_type(wanted: DataType, held: DataType) -> bool:
    # Spark takes a column of nulls for whole numbers.
    return held is Primitive.VOID and wanted not in (Primitive.INTEGER, Primitive.LONG)


def _together(one: DataType, other: DataType) -> DataType:
    """The type in which values of both can be read as they are, by Spark and here. Raises _Apart, _ForSpark."""
    if one == other or other is Primitive.VOID:
        return one
    if one is Primitive.VOID:
        return other
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return replace(one, element=_together(one.element, other.element))
    if isinstance(one, MapType) and isinstance(other, MapType):
        return replace(one, key=_together(one.key, other.key), value=_together(one.value, other.value))
    if isinstance(one, StructType) and isinstance(other, StructType):
        if [each.name for each in one] != [each.name for each in other]:
            raise _ForSpark
        pairs = zip(one, other, strict=True)
        return StructType(tuple(replace(left, type=_together(left.type, right.type)) for left, right in pairs))
    if frozenset((one, other)) in _ALIKE_TO_SPARK:
        raise _ForSpark
    for narrow, wide in ((one, other), (other, one)):
        # Spark and this package read in the wider type what a table may be widened from.
        if is_widening(narrow, wide):
            return wide
    if isinstance(one, DecimalType) and isinstance(other, DecimalType):
        scale = max(one.scale, other.scale)
        precision = max(one.precision - one.scale, other.precision - other.scale) + scale
        if precision <= MAX_DECIMAL_PRECISION:
            return DecimalType(precision, scale)
        raise _Apart
    is_known = Primitive.STRING in (one, other) or {one, other} == {Primitive.LONG, Primitive.DOUBLE}
    nested = (ArrayType, MapType, StructType)
    raise _Apart if is_known or isinstance(one, nested) or isinstance(other, nested) else _ForSpark


def _defaults(
    notes: Notes, footers: Sequence[SourceFooter], columns: StructType
) -> tuple[dict[str, pa.Scalar], str | None]:
    """The defaults of columns that a file lacks, as values, and the name of a column whose default is no plain one."""
    found: dict[str, pa.Scalar] = {}
    for name, text in notes.defaults.items():
        column = columns.find(name)
        if column is None or all(each.has(name) for each in footers if each.columns is not None):
            continue
        value = default_value(text, column)
        if value is None:
            return found, name
        if value.is_valid:
            found[column.name] = value
    return found, None


def default_value(text: str, column: StructField) -> pa.Scalar | None:
    """Return the value of a default that is a plain constant; None for another text, which only Spark can evaluate."""
    suffix = _SUFFIXES.get(column.type) if isinstance(column.type, Primitive) else None
    if suffix is not None and re.fullmatch(rf"-?[0-9.]+{suffix}", text, re.IGNORECASE):
        text = text[:-1]
    given = plain_values({"c": text}, StructType((StructField("c", column.type),)), {}, alias="", is_ansi=True)
    value = None if isinstance(given, str) else given.values["c"]
    return value.array[0] if isinstance(value, Values) else None


def _do_not_go_together(
    store: Store, first: SourceFooter, footer: SourceFooter, column: StructField, other: StructField, argument: str
) -> InvalidJobSpec:
    return InvalidJobSpec(
        f"{argument}: the file {readable(store.root, footer.path)} has column {column.name!r} as {other.type}, and "
        f"others, such as {readable(store.root, first.path)}, as {column.type}. No type holds the values of all. Have "
        "the files written with one type, or read those of each type by a path of their own. Nothing was read.",
        argument=argument,
    )
