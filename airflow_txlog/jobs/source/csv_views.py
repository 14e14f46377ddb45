"""The schema and the options of a view of CSV files that this process reads as Spark does.

The invariant: an option, a setting or a type that is not listed here leaves the view to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_txlog.datafiles.csv_rows import DELIMITERS, CsvFormat
from airflow_txlog.datafiles.text_lines import CODECS, INFLATED, OTHER_CODECS, TextFormat
from airflow_txlog.engine.table.schema.ddl import DECIMALS, PLAIN_TYPES
from airflow_txlog.engine.table.schema.types import (
    MAX_DECIMAL_PRECISION,
    DataType,
    DecimalType,
    StructField,
    StructType,
)
from airflow_txlog.errors import SchemaMismatch
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.source.listing import LOOKUP_OPTIONS, OnlySpark, SourceFiles, options_of

_COLUMN = re.compile(
    r"\s*(?:`([^`]+)`|([A-Za-z_]\w*))\s+(\w+)(?:\s*\(\s*(\d+)\s*,\s*(\d+)\s*\))?\s*(?:,(?!\s*\Z)|\Z)", re.ASCII
)
# The values of options that are read here. The modes differ only in rows that Spark cannot read.
_VALUES = {
    "header": "true|false",
    "inferschema": "true|false",
    "multiline": "false",
    "enforceschema": "true",
    "mode": "permissive|dropmalformed|failfast",
    "quote": '"',
    "escape": r"\\",
    "nullvalue": r"[\w./-]{0,40}",
}
_SEPARATORS = ("sep", "delimiter")
_ENCODINGS = ("encoding", "charset")
# Settings that change the reading of CSV.
_SETTINGS = ("spark.sql.csv.", "spark.sql.legacy.", "spark.sql.files.", "spark.sql.columnNameOfCorruptRecord")
_CORRUPT_RECORD = "_corrupt_record"


@dataclass(frozen=True, kw_only=True)
class CsvView:
    """How the files of a view are cut into lines and values, and their columns."""

    columns: StructType
    text: TextFormat
    csv: CsvFormat
    costs: Mapping[str, int]
    """About the bytes of text in each compressed file, by path."""


def csv_view(context: JobContext, found: SourceFiles) -> CsvView | OnlySpark:
    """Return how this process reads CSV files, or why only Spark does."""
    columns = columns_of_ddl(found.view.schema or "")
    if columns is None or columns.find(_CORRUPT_RECORD) is not None:
        return OnlySpark("the schema of the source has more than names and plain types")
    if any(name.startswith(_SETTINGS) for name in context.spec.spark_conf):
        return OnlySpark("a setting of the job may change how CSV is read")
    if any(file.name.rpartition(".")[2] in (CODECS.keys() | OTHER_CODECS) - {"gz"} for file in found.files):
        return OnlySpark("a file of the source is compressed, and not with gzip")
    options = {name: value for name, value in options_of(found.view).items() if name not in LOOKUP_OPTIONS}
    separators = [options.pop(name) for name in _SEPARATORS if name in options]
    encodings = [options.pop(name) for name in _ENCODINGS if name in options]
    delimiter = (separators or [","])[0].replace("\\t", "\t")
    if len(separators) > 1 or delimiter not in DELIMITERS or any(each.lower() != "utf-8" for each in encodings):
        return OnlySpark("the CSV files have another separator or encoding than this process reads")
    for name, value in options.items():
        if name not in _VALUES or not re.fullmatch(_VALUES[name], value, re.IGNORECASE | re.ASCII):
            return OnlySpark(f"the option {name} of the source is for Spark's own reader of CSV")
    has_header = options.get("header", "false").lower() == "true"
    return CsvView(
        columns=columns,
        text=TextFormat(drops_blank=True, drops_header=has_header),
        csv=CsvFormat(delimiter=delimiter, null=options.get("nullvalue", "")),
        costs={path: INFLATED * size for path, size in found.sizes.items() if path.endswith(".gz")},
    )


def columns_of_ddl(text: str) -> StructType | None:
    """Return the columns of a schema such as `id BIGINT, price DECIMAL(10, 2)`; None for any other form of schema."""
    fields, at = [], 0
    while at < len(text):
        found = _COLUMN.match(text, at)
        if found is None:
            return None
        quoted, bare, name, precision, scale = found.groups()
        kind: DataType | None = PLAIN_TYPES.get(name.upper())
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
