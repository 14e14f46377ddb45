"""The columns of a Parquet source, by the footers of all its files, and the cost of reading each file.

Spark takes the columns from one file, and fails at another one that has a column in a wider type. Here each column gets
the type in which every file can be read without a loss. The invariant: if Spark can read the source, the rows are those
that it reads. Otherwise they are the values of the files, or an error refuses the source and names a file and a column.
Source: Spark 4.2, ParquetFileFormat.inferSchema, ParquetVectorUpdaterFactory, ResolveDefaultColumns.
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
from airflow_txlog.datafiles.tasks.small_files import KnownForms
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
    walk_types,
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
from airflow_txlog.storage.limits import LOCAL_FILE_BYTES, cost_of

MAX_FILES = 4_000
"""If there are more files, one footer gives the columns, as for Spark, and the other footers are not read."""
_READERS = 8
# Spark reads a file of one type as the other, and Arrow does not.
_ALIKE_TO_SPARK = (
    frozenset((Primitive.STRING, Primitive.BINARY)),
    frozenset((Primitive.TIMESTAMP, Primitive.TIMESTAMP_NTZ)),
)
_WHOLE = (Primitive.INTEGER, Primitive.LONG)
_SUFFIXES = {Primitive.LONG: "L", Primitive.DOUBLE: "D", Primitive.SHORT: "S", Primitive.BYTE: "Y"}


class _Apart(Exception):
    """Two types of which no column can hold all values."""


class _ForSpark(Exception):
    """Two types that Spark reads, or may read, as one in its own way."""


@dataclass(frozen=True, kw_only=True)
class SourceFooter:
    """The footer of one file.

    `columns` is None if only Spark may know them, for the reason `why`. `error`: why there are no columns or no notes.
    `in_nanoseconds`: the columns with such times, in lower case. `names`: of all columns, whatever Spark has noted.
    """

    path: str
    name: str
    """The file's name in errors."""
    columns: StructType | None
    why: str | None = None
    error: Exception | None = None
    notes: Notes | None = None
    num_rows: int = 0
    cost: int = 0
    in_nanoseconds: frozenset[str] = frozenset()
    names: tuple[str, ...] = ()

    def held(self, name: str) -> StructField | None:
        """Return the column of this name, if the file has rows and its columns are known."""
        return None if self.columns is None or not self.num_rows else self.columns.find(name)


@dataclass(frozen=True, kw_only=True)
class SourceColumns:
    """The columns of a source's files, in types in which every file can be read.

    `left`: why the columns or the rows are left to Spark. `only_here`: why Spark does not read the files and this
    package does. If both are None, both read the same. `costs`: of reading each file whose footer was read, by path.
    `padded`: the length of each text of the type `char(n)`. `defaults`: the value of a column in a file that lacks it.
    `lacking`: a column that a file lacks, and whose default only Spark can evaluate. `inferred`: the columns that Spark
    would infer, and can be given; None if it has notes to follow. `error`: of the file that should give the columns.
    `apart`: the error for files of which no type holds all values of a column, unless nothing reads that column.
    """

    columns: StructType = field(default_factory=lambda: StructType(()))
    costs: Mapping[str, int] = field(default_factory=dict)
    padded: Mapping[str, int] = field(default_factory=dict)
    defaults: Mapping[str, pa.Scalar] = field(default_factory=dict)
    left: OnlySpark | None = None
    only_here: str | None = None
    error: TxlogError | None = None
    inferred: StructType | None = None
    lacking: str | None = None
    apart: InvalidJobSpec | None = None


def columns_in_footers(found: SourceFiles, besides: Iterable[str] = ()) -> SourceColumns:
    """Return the columns of a source with files that are not empty; folders name the columns `besides`.

    Raises InvalidJobSpec for a type that no column can have, and the store's errors.
    """
    files = found.sizes
    # Spark takes the columns from a summary file if there is one, or from the first file, as Java orders texts.
    asked = found.summary or min(files, key=lambda path: path.encode("utf-16-be"))
    read = _footers_of(found.store, {**(files if len(files) <= MAX_FILES else {}), asked: files.get(asked)})
    first = next(footer for footer in read if footer.path == asked)
    if first.error is not None or first.columns is None or first.notes is None:
        error = unread(first.name, first.error or NotSpark(), found.argument)
        if isinstance(first.error, NoColumnType):
            raise error
        return SourceColumns(left=OnlySpark(first.why or _odd_notes(first)), error=error)
    footers = [footer for footer in read if footer.path in files]
    reasons = [footer.why for footer in footers if footer.why is not None]
    own, apart = frozenset(name.lower() for name in besides), None
    # A file with the very columns of the first one, known by the form of its footer, has no other types.
    others = [footer for footer in footers if footer.columns is not first.columns]
    fields = []
    for column in first.columns:
        kind = column.type
        for footer in others if others and column.name.lower() not in own else ():
            other = footer.held(column.name)
            if other is None:
                continue
            try:
                kind = _together(kind, other.type)
            except _Apart:
                apart = apart or _do_not_go_together(first, footer, column, other, found.argument)
            except _ForSpark:
                name = footer.name
                reasons.append(f"the file {name} has column {column.name!r} as {other.type}, and another as {kind}")
        fields.append(column if kind is column.type else replace(column, type=kind))
    shown = without_void(StructType(tuple(fields)))
    defaults, unknown = _defaults(first.notes, footers, shown)
    if unknown is not None:
        reasons.append(f"a file lacks column {unknown!r}, whose default only Spark can evaluate")
    if any(_type_in(shown, name) is not Primitive.STRING for name in first.notes.chars):
        reasons.append(_odd_notes(first))
    return SourceColumns(
        columns=shown,
        costs={footer.path: footer.cost for footer in footers},
        padded=first.notes.chars,
        defaults=defaults,
        left=OnlySpark(reasons[0]) if reasons else None,
        only_here=_why_only_here(footers, shown),
        lacking=unknown,
        apart=apart,
        inferred=shown if apart is None and tuple(shown.names) == first.names and not first.notes.is_any else None,
    )


def found_with_columns(context: JobContext, view: FileView, argument: str) -> tuple[SourceFiles, SourceColumns] | None:
    """Return a view's Parquet files and the columns in their footers; None if only Spark can know them.

    Raises InvalidJobSpec (`argument`) for a type that no column can have.
    """
    try:
        found = find_files(context, view, argument)
    except (TxlogError, OSError):
        return None
    if isinstance(found, OnlySpark) or not found.files or found.has_partitions or len(found.filled) < len(found.files):
        return None
    with contextlib.suppress(OSError):
        return found, columns_in_footers(found)
    return None


def columns_as_given(found: SourceFiles, columns: StructType, notes: Notes) -> SourceColumns:
    """Return these columns, in which Spark reads the files; they are left to it if a file has others."""
    footers = _footers_of(found.store, found.sizes)
    for footer in footers:
        held = None if footer.columns is None or footer.why is not None else without_void(footer.columns)
        if held is None or not all(_type_in(held, each.name) == each.type for each in columns):
            return SourceColumns(columns=columns, left=OnlySpark(_not_certain(footer.name)))
    return SourceColumns(columns=columns, costs={each.path: each.cost for each in footers}, padded=notes.chars)


def padded_columns(context: JobContext, chars: Mapping[str, int]) -> Mapping[str, int]:
    """Return the texts of the type `char(n)` that Spark pads, by its settings: all or none."""
    is_padded = context.executor.setting("spark.sql.readSideCharPadding", "true").lower() == "true"
    is_text = context.executor.setting("spark.sql.legacy.charVarcharAsString", "false").lower() == "true"
    return chars if is_padded and not is_text else {}


def _type_in(columns: StructType, name: str) -> DataType | None:
    found = columns.find(name)
    return None if found is None else found.type


def _odd_notes(first: SourceFooter) -> str:
    return f"Spark has noted columns in the file {first.name} that only Spark can read"


def _not_certain(name: str) -> str:
    return f"it is not certain that Arrow reads the file {name} as Spark does"


def _not_read(name: str) -> str:
    """Return the words for a file that Arrow does not read as Parquet: by its name it may be of another format."""
    ending = name.lower().removesuffix(".gz").rpartition(".")[2]
    if ending not in ("csv", "json", "orc"):
        return _not_certain(name)
    return f'the name of the file {name} ends in .{ending}, and the format is parquet: pass format="{ending}"'


def _footers_of(store: Store, sizes: Mapping[str, int | None]) -> list[SourceFooter]:
    """Return the footers of these files, whose sizes may be known, in order. Raises the store's errors."""
    forms: KnownForms[SourceFooter] = KnownForms(is_read_again=True)
    if not store.is_remote:
        # The work is that of the interpreter, and threads would take turns.
        return [_footer_of(store, path, size_bytes, forms) for path, size_bytes in sizes.items()]
    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(lambda path: _footer_of(store, path, sizes[path], forms), sizes))


def _footer_of(store: Store, path: str, size_bytes: int | None, forms: KnownForms[SourceFooter]) -> SourceFooter:
    name, file = readable(store.root, path), DataFile(store=store, path=path, size_bytes=size_bytes)
    alike = forms.find(file)
    if alike is not None:
        cost = cost_of(len(alike.data), alike.footer.most_bytes())
        # No file costs less.
        if cost <= LOCAL_FILE_BYTES:
            return replace(alike.facts, path=path, name=name, num_rows=alike.footer.num_rows, cost=cost)
    try:
        with open_data_file(file) as parquet:
            columns, notes, odd = columns_of_footer(parquet), None, None
            try:
                notes = notes_of(parquet)
            except NotSpark as error:
                odd = error
            held = parquet.schema_arrow
            footer = SourceFooter(
                path=path,
                name=name,
                columns=columns,
                why=_not_certain(name) if calendar_of(parquet).is_legacy else None,
                error=odd,
                notes=notes,
                num_rows=parquet.metadata.num_rows,
                cost=cost_of(parquet.source.size(), decoded_bytes(parquet)),
                in_nanoseconds=frozenset(each.name.lower() for each in held if is_in_nanoseconds(each.type)),
                names=tuple(held.names),
            )
            if alike is None and forms.wants_more:
                forms.learn(parquet, footer if footer.why is None and odd is None else None)
            return footer
    except (TxlogError, NotSpark) as error:
        why = _not_certain(name) if isinstance(error, NotSpark) else _not_read(name)
        return SourceFooter(path=path, name=name, columns=None, why=why, error=error)


def _why_only_here(footers: Sequence[SourceFooter], columns: StructType) -> str | None:
    for footer in footers:
        has_void = footer.columns is not None and any(kind is Primitive.VOID for kind in walk_types(footer.columns))
        for column in columns if has_void or footer.in_nanoseconds else ():
            other = footer.held(column.name)
            if column.name.lower() in footer.in_nanoseconds:
                return f"the file {footer.name} has column {column.name!r} in nanoseconds"
            pairs = () if other is None else pairs_of(column.type, other.type)
            # Spark reads a column of nulls as whole numbers.
            if any(
                held is Primitive.VOID and wanted not in (Primitive.INTEGER, Primitive.LONG) for wanted, held in pairs
            ):
                return f"the file {footer.name} has nothing but null in column {column.name!r}"
    return None


def _together(one: DataType, other: DataType) -> DataType:
    """Return the type in which both types' values are readable, by Spark and here. Raises _Apart, _ForSpark."""
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
        # Spark and this package read both in the wider type if a table may be widened so.
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
    """Return the defaults of columns that a file lacks, and the name of a column whose default is no plain constant."""
    found: dict[str, pa.Scalar] = {}
    read = [{name.lower() for name in footer.names} for footer in footers if footer.columns is not None]
    for name, text in notes.defaults.items():
        column = columns.find(name)
        if column is None or all(name.lower() in names for names in read):
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
    first: SourceFooter, footer: SourceFooter, column: StructField, other: StructField, argument: str
) -> InvalidJobSpec:
    return InvalidJobSpec(
        f"{argument}: the file {footer.name} has column {column.name!r} as {other.type}, and others, such as "
        f"{first.name}, as {column.type}. No type holds the values of all. Have the files written with one type, or "
        "read those of each type by a path of their own. Nothing was read.",
        argument=argument,
    )
