"""The rows of a source without Spark: files of Parquet, CSV or JSON, or a version of one of our tables.

With Spark, the rows of such files need not cross the JVM either. The invariant: the rows are those that Spark would
read. If that is not certain of every file, Spark reads all of them. An option, a setting or a type of CSV and JSON that
is not listed here leaves them to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import unquote

import pyarrow as pa

from airflow_txlog.contract.operations import AnySource, FileView, TableView
from airflow_txlog.datafiles.json_rows import rows_of_json
from airflow_txlog.datafiles.tasks.plans import Bins
from airflow_txlog.datafiles.tasks.rows_without_log import ParquetScan, TextScan
from airflow_txlog.datafiles.tasks.scan_and_write import FileScan
from airflow_txlog.datafiles.text_lines import (
    CODECS,
    DELIMITERS,
    INFLATED,
    OTHER_CODECS,
    CsvFormat,
    TextFormat,
    rows_of_csv,
)
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.table.schema.ddl import DECIMALS, PLAIN_TYPES, TIMES
from airflow_txlog.engine.table.schema.schema import to_arrow
from airflow_txlog.engine.table.schema.types import (
    MAX_DECIMAL_PRECISION,
    DataType,
    DecimalType,
    Primitive,
    StructField,
    StructType,
    walk_fields,
)
from airflow_txlog.errors import SchemaMismatch, SourceNotFound
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import FilePlan, bins_for, plan_of, sent_bins
from airflow_txlog.jobs.source.columns import MAX_FILES, SourceColumns, columns_in_footers, padded_columns
from airflow_txlog.jobs.source.headers import check_headers, given_encoding, given_separator, has_checked_header
from airflow_txlog.jobs.source.listing import (
    CORRUPT_RECORD,
    LOOKUP_OPTIONS,
    OnlySpark,
    SourceFiles,
    find_files,
    is_strict,
    options_of,
)
from airflow_txlog.jobs.source.tables import check_no_table, snapshot_of_view
from airflow_txlog.jobs.source.view_rows import rows_of_view
from airflow_txlog.storage.limits import cost_of, weight_of


@dataclass(frozen=True, kw_only=True)
class RowsHere:
    """The rows of a source as tasks read them without Spark. `reads_target`: a row may be the target's.

    `make_scan` makes the scan that reads the files of `plan`, given their bins.
    """

    columns: StructType
    plan: FilePlan
    make_scan: Callable[..., FileScan]
    in_pieces: bool
    reads_target: bool = False

    def scan(self, context: JobContext, *, in_one: bool = False) -> FileScan:
        """Return the scan of all rows; with `in_one`, as the work of one task."""
        if in_one:
            bins: Bins = sent_bins(context, self.plan, [list(range(self.plan.num_files))])
        else:
            bins = bins_for(context, self.plan, in_pieces=self.in_pieces)
        return self.make_scan(bins=bins, schema=self.plan.schema)


def rows_here(
    context: JobContext, described: AnySource, argument: str, target: Snapshot | None, *, reads_all: bool = True
) -> RowsHere | OnlySpark:
    """Return the rows of a source as this process reads them, or why only Spark can.

    `reads_all`: the caller reads every column. `target`: the version of the job's table that a source reading it sees.
    Raises InvalidJobSpec (`argument`), SourceNotFound, NeedsSpark for too many bytes, and the errors of opening a
    table.
    """
    context.lineage.forget_source()
    if isinstance(described, TableView):
        rows = _rows_of_table(context, described, target)
    elif isinstance(described, FileView):
        rows = _rows_of_view(context, described, argument, reads_all=reads_all)
    else:
        return OnlySpark("the source is a query")
    if isinstance(rows, RowsHere):
        context.lineage.views[""], context.lineage.sizes[""] = rows.columns.names, dict(rows.plan.size)
        context.executor.admit(rows.plan.reading_costs(), rows.plan.store)
    return rows


def _rows_of_table(context: JobContext, view: TableView, target: Snapshot | None) -> RowsHere | OnlySpark:
    snapshot, reads_target = snapshot_of_view(context, view, target)
    found = rows_of_view(context, view, snapshot)
    plan, columns = found.plan, found.columns
    if any(field.type is Primitive.VOID for field in walk_fields(columns)):
        return OnlySpark("the source has a column of the type void, which no file holds")
    plan = replace(plan, costs=_costs_by_rows(plan, columns))
    if context.columns_taken is not None:
        columns = StructType(tuple(field for field in columns if field.name.lower() in context.columns_taken))
        plan = replace(plan, schema=pa.schema([field for field in plan.schema if columns.find(field.name) is not None]))
    make_scan = partial(FileScan, rows=found.rows)
    return RowsHere(columns=columns, plan=plan, make_scan=make_scan, in_pieces=False, reads_target=reads_target)


def _costs_by_rows(plan: FilePlan, columns: StructType) -> dict[int, int]:
    """Return the cost of reading each file by the rows that the log counts: a file of a million equal keys is small."""
    row_bytes = sum(map(_fixed_bytes, to_arrow(columns).types))
    found = (plan.table.column(name).to_pylist() for name in ("index", "size_bytes", "num_records"))
    return {index: cost_of(size or 0, row_bytes * (rows or 0)) for index, size, rows in zip(*found, strict=True)}


def _fixed_bytes(kind: pa.DataType) -> int:
    """Return the bytes that Arrow holds for each value of a type; of texts and lists, those of an offset."""
    if pa.types.is_struct(kind):
        return sum(_fixed_bytes(kind.field(number).type) for number in range(kind.num_fields))
    is_fixed = pa.types.is_primitive(kind) or pa.types.is_decimal(kind)
    return max(1, kind.bit_width // 8) if is_fixed else 4


def _rows_of_view(context: JobContext, view: FileView, argument: str, *, reads_all: bool) -> RowsHere | OnlySpark:
    if not view.may_be_plain:
        return OnlySpark("the source is other files than Parquet without a schema, and CSV and JSON with one")
    try:
        found = find_files(context, view, argument)
        if isinstance(found, OnlySpark):
            return found
        check_no_table(found, context.root)
        if not found.filled:
            raise found.no_rows()
    except SourceNotFound:
        if view.schema is None:
            raise
        return OnlySpark("the source has no rows, or a folder of it may be empty")
    refusal = why_spark_reads(found)
    if refusal is not None:
        return refusal
    context.executor.admit(list(found.sizes.values()), found.store)
    if view.format in _FORMATS:
        return _rows_of_text(context, found)
    # Small files are read once, for their footers and for their rows.
    found.store.keeps_files = True
    source = columns_in_footers(found)
    if source.left is None and source.apart is not None and reads_all:
        raise source.apart
    return rows_of_files(context, found, source)


def why_spark_reads(found: SourceFiles) -> OnlySpark | None:
    """Return why only Spark reads such files, whatever their columns."""
    number = len(found.filled)
    if found.has_partitions or number > MAX_FILES or len(found.sizes) < number:
        return OnlySpark("the source has columns that folders name, or very many files, or files that are named twice")
    return None


def rows_of_files(context: JobContext, found: SourceFiles, source: SourceColumns) -> RowsHere | OnlySpark:
    """Return the rows of Parquet files in these columns, or why only Spark reads them."""
    if source.left is not None:
        return source.left
    if source.apart is not None:
        return OnlySpark("a column of the source is not of one type in all files")
    make_scan = partial(ParquetScan, padded=padded_columns(context, source.padded), defaults=source.defaults)
    return _planned(found, source.columns, source.costs, make_scan, in_pieces=True)


def _rows_of_text(context: JobContext, found: SourceFiles) -> RowsHere | OnlySpark:
    view = text_view(context, found)
    if isinstance(view, OnlySpark):
        return view
    weight = weight_of(
        [max(size, view.costs.get(path, 0)) for path, size in found.sizes.items()], is_remote=found.store.is_remote
    )
    # A file may have more text than was foreseen, but all of them together no more than a job reads at once.
    most_weights = max(1, context.executor.bytes_allowed // weight)
    make_scan = partial(
        TextScan,
        columns=to_arrow(view.columns),
        text=view.text,
        kind=found.view.format.upper(),
        parse=view.parse,
        most_weights=most_weights,
    )
    rows = _planned(found, view.columns, view.costs, make_scan, in_pieces=False)
    if isinstance(rows, OnlySpark) or not has_checked_header(found.view):
        return rows
    return check_headers(found.view, list(found.sizes), found.store.open_input, view.columns.names) or rows


def _planned(
    found: SourceFiles,
    columns: StructType,
    costs: Mapping[str, int],
    make_scan: Callable[..., FileScan],
    *,
    in_pieces: bool,
) -> RowsHere | OnlySpark:
    files = found.sizes
    # Only Spark knows the values of folders and texts with a collation.
    names = {field.name.lower() for field in columns}
    folders = {part for path in files for part in path.split("/")[:-1] if "=" in part}
    of_folders = {unquote(part.partition("=")[0]).lower() for part in folders}
    if not names or names & of_folders or any(field.is_collated for field in walk_fields(columns)):
        return OnlySpark("a folder of the source may name one of its columns, or a column has a collation")
    plan = plan_of(
        found.store, to_arrow(columns), list(files), list(files.values()), costs=[costs.get(path, 0) for path in files]
    )
    return RowsHere(columns=columns, plan=plan, make_scan=make_scan, in_pieces=in_pieces)


# --- CSV and JSON files -----------------------------------------------------------------------------------------------

_COLUMN = re.compile(
    r"\s*(?:`([^`]+)`|([A-Za-z_]\w*))\s+(\w+)(?:\s*\(\s*(\d+)\s*,\s*(\d+)\s*\))?\s*(?:,(?!\s*\Z)|\Z)", re.ASCII
)
# The values of options that are read here. The modes differ only in rows that Spark cannot read.
_OF_BOTH = {
    "multiline": "false",
    "mode": "permissive|dropmalformed|failfast",
    # By `given_encoding`.
    **dict.fromkeys(("encoding", "charset"), ".*"),
}
_FORMATS = {
    "csv": {
        **_OF_BOTH,
        "header": "true|false",
        "inferschema": "true|false",
        "enforceschema": "true|false",
        "quote": '"',
        "escape": r'["\\]',
        "nullvalue": r"[\w./-]{0,40}",
        # By `given_separator`.
        **dict.fromkeys(("sep", "delimiter"), ".*"),
    },
    "json": _OF_BOTH,
}
# Settings that change the reading of text files, next to those of their format.
_SETTINGS = ("spark.sql.legacy.", "spark.sql.files.", "spark.sql.columnNameOfCorruptRecord")


@dataclass(frozen=True, kw_only=True)
class TextView:
    """How the files of a view are cut into lines and values, and their columns."""

    columns: StructType
    text: TextFormat
    parse: Callable[[pa.StringArray, pa.Schema], pa.RecordBatch]
    costs: Mapping[str, int]
    """About the bytes of text in each compressed file, by path."""


def text_view(context: JobContext, found: SourceFiles) -> TextView | OnlySpark:
    """Return how this process reads CSV or JSON files, or why only Spark does."""
    is_csv, kind = found.view.format == "csv", found.view.format.upper()
    columns = columns_of_ddl(found.view.schema or "", {} if is_csv else TIMES)
    if columns is None or columns.find(CORRUPT_RECORD) is not None:
        return OnlySpark("the schema of the source has more than names and plain types")
    if any(name.startswith((*_SETTINGS, f"spark.sql.{found.view.format}.")) for name in context.spec.spark_conf):
        return OnlySpark(f"a setting of the job may change how {kind} is read")
    if any(file.name.rpartition(".")[2] in (CODECS.keys() | OTHER_CODECS) - {"gz"} for file in found.files):
        return OnlySpark("a file of the source is compressed, and not with gzip")
    options = {name: value for name, value in options_of(found.view).items() if name not in LOOKUP_OPTIONS}
    known, delimiter = _FORMATS[found.view.format], given_separator(options)
    if (is_csv and delimiter not in DELIMITERS) or given_encoding(options).lower() != "utf-8":
        return OnlySpark(f"the {kind} files have another separator or encoding than this process reads")
    for name, value in options.items():
        if name not in known or not re.fullmatch(known[name], value, re.IGNORECASE | re.ASCII):
            return OnlySpark(f"the option {name} of the source is for Spark's own reader of {kind}")
    if is_csv:
        csv = CsvFormat(
            delimiter=delimiter,
            null=options.get("nullvalue", ""),
            escape=options.get("escape"),
            is_strict=is_strict(found.view),
        )
        parse = partial(rows_of_csv, csv=csv)
    else:
        parse = partial(rows_of_json, is_utc=context.spec.time_zone == "UTC")
    return TextView(
        columns=columns,
        # A line of blanks is no row of JSON either, but one of control characters is an error.
        text=TextFormat(drops_blank=is_csv, drops_header=options.get("header", "false").lower() == "true"),
        parse=parse,
        costs={path: INFLATED * size for path, size in found.sizes.items() if path.endswith(".gz")},
    )


def columns_of_ddl(text: str, more: Mapping[str, DataType] | None = None) -> StructType | None:
    """Return the columns of a schema such as `id BIGINT, price DECIMAL(10, 2)`; None for any other form of schema.

    `more`: types of one word, next to those of every format.
    """
    kinds = {**PLAIN_TYPES, **(more or {})}
    fields, at = [], 0
    while at < len(text):
        found = _COLUMN.match(text, at)
        if found is None:
            return None
        quoted, bare, name, precision, scale = found.groups()
        kind = kinds.get(name.upper())
        if precision is not None:
            is_decimal = name.upper() in DECIMALS and int(scale) <= int(precision) <= MAX_DECIMAL_PRECISION
            kind = DecimalType(int(precision), int(scale)) if is_decimal else None
        if kind is None:
            return None
        fields.append(StructField(quoted or bare, kind))
        at = found.end()
    try:
        return StructType(tuple(fields)) if fields else None
    except SchemaMismatch:
        return None
