"""Files of a source that Spark itself cannot open, read in its Python workers without a Hadoop connector.

Arrow reads Parquet and ORC. For CSV and JSON the workers cut the lines, and Spark's own readers parse them, with their
options, modes and inference. The invariant: the rows and the schema are those that Spark would read from the same files
on a local disk. A source for which that is not possible is refused, with the reason.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce

import pyarrow as pa
import pyspark
from pyspark.sql import Column, DataFrame, DataFrameReader
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from airflow_txlog.datafiles.failures import Misfit
from airflow_txlog.datafiles.tasks.rows_without_log import LINE_SCHEMA, LinesScan, OrcScan, ParquetScan
from airflow_txlog.datafiles.tasks.scan_and_write import FileScan, Task
from airflow_txlog.datafiles.text_lines import ENCODINGS, OTHER_CODECS, TextFormat, encoding_named
from airflow_txlog.engine.table.schema.types import CHAR_VARCHAR_KEY
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.frames import over_bins, scan_frame
from airflow_txlog.jobs.files.scan import bins_for, plan_of
from airflow_txlog.jobs.source.columns import (
    SourceColumns,
    columns_in_footers,
    padded_columns,
)
from airflow_txlog.jobs.source.footers import orc_schema
from airflow_txlog.jobs.source.headers import check_headers, given_encoding, has_checked_header, names_in_files
from airflow_txlog.jobs.source.json_on_disk import reads_one_object
from airflow_txlog.jobs.source.listing import (
    LOOKUP_OPTIONS,
    WITHOUT_EFFECT,
    SourceFile,
    SourceFiles,
    is_true,
    options_of,
    refused,
)
from airflow_txlog.jobs.source.partition_folders import Values
from airflow_txlog.jobs.source.strict_values import given_columns, own_options, strict_columns
from airflow_txlog.jobs.spark.causes import mark_of
from airflow_txlog.jobs.sql.gate import quoted
from airflow_txlog.jobs.sql.schemas import as_spark_schema, without_metadata

# Each partition folder of a CSV or JSON source is a part of Spark's plan.
MAX_TEXT_PARTITIONS = 200
# Text takes long to parse and can be cut anywhere: a task is worth starting for less text than a row group.
TEXT_PIECE_BYTES = 16 * 1024 * 1024
# The first whose readers take a frame of lines.
FIRST_SPARK_FOR_TEXT = (4, 2)

_WHOLE = re.compile(r"[+-]?[0-9]+")
_FRACTION = re.compile(r"[+-]?[0-9]+\.[0-9]+")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?")
# Texts that Java, or Spark's parsers of dates and times, may read as other numbers, dates or times of a day.
_DOUBTFUL = re.compile(
    r"\s.*|.*\s|[+-]?(?:NaN|Infinity|0[xX].*|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?)"
    r"|[+-]?\d+-\d{1,2}-\d{1,2}(?: \d.*|T.*:.*)?|\d{1,2}:\d.*",
    re.DOTALL,
)

_FILE_FUNCTIONS = re.compile(r"\binput_file_(?:name|block_start|block_length)\b", re.IGNORECASE)


def read_files(
    context: JobContext, found: SourceFiles, source: SourceColumns | None = None
) -> tuple[DataFrame, FileScan | None]:
    """Return the rows of a view's files as a frame that is not evaluated yet, and the scan that gives the same rows, or
    None.

    `source`: the columns in the files' footers, if known. Raises InvalidJobSpec, SourceNotFound if no file can give a
    schema, and PySparkException if Spark refuses an option or the schema.
    """
    read = _Read(context, found)
    return read.columns(source) if found.view.format in ("parquet", "orc") else (read.texts(), None)


def check_no_file_functions(sql: str, argument: str) -> None:
    """Raise InvalidJobSpec for a query that reads a row's file name from Spark, if this package reads some files."""
    found = _FILE_FUNCTIONS.search(sql)
    if found is not None:
        raise InvalidJobSpec(
            f"{argument}: the query asks for {found[0]}(), and Spark does not know the files of a view in an object "
            "store, which this package reads. Read the folders of interest as views of their own. Nothing was read.",
            argument=argument,
        )


def _marked(schema: pa.Schema, padded: Mapping[str, int]) -> pa.Schema:
    """Return the schema with marks that make Spark compare padded texts as its own."""
    marks = {name: {CHAR_VARCHAR_KEY: f"char({length})"} for name, length in padded.items()}
    return pa.schema([each.with_metadata(marks[each.name]) if each.name in marks else each for each in schema])


def _as_partition(text: Column, field: StructField) -> Column:
    """Return a folder's text as its column. Without the check, Spark would cast it by a setting of its session."""
    if isinstance(field.dataType, NullType | StringType):
        return (F.lit(None) if isinstance(field.dataType, NullType) else text.cast(field.dataType)).alias(field.name)
    value, kind = text.try_cast(field.dataType), field.dataType.simpleString().upper()
    refusal = F.raise_error(F.lit(f"{mark_of(Misfit(column=field.name, kind=kind, is_folder=True))} "))
    return F.when(text.isNull() | value.isNotNull(), value).otherwise(refusal).alias(field.name)


def _nullable(text: str | None) -> Column:
    """Return a constant that Spark considers nullable, like the values of folders."""
    return F.nullif(F.lit(text), F.lit(None).cast("string"))


class _Read:
    """One view being read: its options, its files that are not empty, and the types of its partition columns."""

    def __init__(self, context: JobContext, found: SourceFiles) -> None:
        self._context, self._view, self._found, self._argument = context, found.view, found, found.argument
        self._options, self._files = options_of(found.view), found.filled
        self._given: StructType | None = None
        if found.view.schema is not None:
            self._given = without_metadata(given_columns(found.view.schema, found.argument), nullable=True)
        elif not found.files:
            raise found.no_rows()
        infers = context.spark.conf.get("spark.sql.sources.partitionColumnTypeInference.enabled", "true") == "true"
        types = {field.name.lower(): field.dataType for field in self._given or ()}
        self._types = _partition_types((file.values for file in found.files), types, found.argument, infers=infers)

    # --- Parquet and ORC --------------------------------------------------------------------------------------------

    def columns(self, source: SourceColumns | None) -> tuple[DataFrame, FileScan | None]:
        """Return the rows of Parquet or ORC files; see `read_files`."""
        if source is None:
            source = self._in_footers() if self._given is None else SourceColumns()
        columns = self._with_partitions(as_spark_schema(source.columns) if self._given is None else self._given)
        of_folders = {field.name: folder for field, folder in columns if folder is not None}
        # A partition's value has the folder's spelling, and Spark's own cast converts it to its type.
        stored = [StructField(f.name, StringType()) if f.name in of_folders else f for f, _ in columns]
        padded = padded_columns(self._context, source.padded)
        padded = {f.name: padded[f.name] for f, folder in columns if folder is None and f.name in padded}
        files = self._files
        plan = plan_of(
            self._found.store,
            _marked(to_arrow_schema(StructType(stored), timezone="UTC"), padded),
            [file.path for file in files],
            [file.size_bytes for file in files],
            {name: [dict(file.values)[folder] for file in files] for name, folder in of_folders.items()},
            [source.costs.get(file.path, 0) for file in files],
        )
        bins = bins_for(self._context, plan, in_pieces=True)
        task: FileScan
        if self._view.format == "parquet":
            defaults = {name: value for name, value in source.defaults.items() if name not in of_folders}
            task = ParquetScan(bins=bins, schema=plan.schema, padded=padded, defaults=defaults)
        else:
            task = OrcScan(bins=bins, schema=plan.schema)
        frame = scan_frame(self._context, task)
        if not of_folders:
            return frame, task
        found = [(frame[quoted(field.name)], field) for field, _ in columns]
        return frame.select(*(_as_partition(c, f) if f.name in of_folders else c for c, f in found)), None

    def _in_footers(self) -> SourceColumns:
        if not self._files:
            raise self._found.no_rows()
        if self._view.format == "orc":
            return SourceColumns(columns=orc_schema(self._found.store, self._files[0].path, self._argument))
        source = columns_in_footers(self._found, self._types)
        if source.error is not None:
            raise source.error
        if source.apart is not None:
            raise source.apart
        if source.lacking is not None:
            what = f"the default of column {source.lacking!r}, which a file lacks and only Spark can evaluate,"
            raise refused(self._argument, what, "Have the column written")
        return source

    def _with_partitions(self, schema: StructType) -> list[tuple[StructField, str | None]]:
        """Return the columns of files (with None) and of folders (with the name there), in Spark's order."""
        folders = {name.lower(): name for name in self._types}
        of_folders = {name: StructField(folder, self._types[folder]) for name, folder in folders.items()}
        columns: list[tuple[StructField, str | None]] = []
        for field in schema:
            found = of_folders.get(field.name.lower())
            if found is None:
                columns.append((field, None))
            elif self._given is not None:
                # Spark removes the column from the given ones, and appends it to them.
                of_folders[field.name.lower()] = field
            else:
                columns.append((of_folders.pop(field.name.lower()), folders[field.name.lower()]))
        return [*columns, *((field, folders[name]) for name, field in of_folders.items())]

    # --- CSV and JSON -----------------------------------------------------------------------------------------------

    def texts(self) -> DataFrame:
        """Return the rows of CSV or JSON files, whose lines Spark parses."""
        if tuple(map(int, pyspark.__version__.split(".")[:2])) < FIRST_SPARK_FOR_TEXT:
            what = f"{self._view.format} by PySpark {pyspark.__version__}"
            raise refused(self._argument, what, "Install PySpark 4.2 or later")
        by_values: dict[Values, list[SourceFile]] = {}
        # Spark names the columns by the first line of its first task, which begins with the largest file.
        files = sorted(self._files, key=lambda file: -file.size_bytes)
        for file in files:
            by_values.setdefault(file.values, []).append(file)
        if len(by_values) > MAX_TEXT_PARTITIONS:
            what = f"{self._view.format} in {len(by_values)} partition folders (at most {MAX_TEXT_PARTITIONS})"
            raise refused(self._argument, what, "Name fewer folders, or set recursiveFileLookup=true")
        text = self._text_format()
        schema = self._given
        if schema is None:
            schema = self._parsed(self._reader(), self._lines(files, text)).schema
        # The workers remove each file's header: Spark would look for the first file's header in all of them.
        has_header = self._view.format == "csv" and is_true(self._options, "header")
        text = replace(text, drops_header=has_header)
        columns = self._with_partitions(schema)
        in_files = schema
        if self._given is not None:
            in_files = StructType([field for field, folder in columns if folder is None])
        if has_checked_header(self._view):
            expected = None if self._given is None else names_in_files(self._view, in_files.names)
            opener, paths = self._found.store.open_input, [file.path for file in files]
            if check_headers(self._view, paths, opener, expected, only_here=True) is not None:
                advice = "Correct the file, set enforceSchema=true to take the columns by position"
                raise refused(self._argument, "a header that cannot be found and compared", advice)
        strict = strict_columns(self._view, None if self._given is None else in_files, has_bytes=False)
        frames = []
        for values, members in (by_values or {(): []}).items():
            reader = self._reader(header="false").schema(strict.read_as(in_files))
            rows = strict.converted(self._parsed(reader, self._lines(members, text)), names_files=False)
            texts = dict(values)
            shown = [
                rows[quoted(field.name)] if folder is None else _as_partition(_nullable(texts.get(folder)), field)
                for field, folder in columns
            ]
            frames.append(rows.select(*shown))
        return reduce(DataFrame.union, frames)

    def _reader(self, **more: str) -> DataFrameReader:
        left_out = LOOKUP_OPTIONS | {"encoding", "charset", "multiline", "enforceschema", *WITHOUT_EFFECT, *more}
        own = {name: value for name, value in self._options.items() if name not in left_out}
        own |= own_options(self._view)
        return self._context.spark.read.options(**own, **(more if self._view.format == "csv" else {}))

    def _parsed(self, reader: DataFrameReader, lines: DataFrame) -> DataFrame:
        return reader.csv(lines) if self._view.format == "csv" else reader.json(lines)

    def _lines(self, files: Sequence[SourceFile], text: TextFormat) -> DataFrame:
        paths, sizes = [file.path for file in files], [file.size_bytes for file in files]
        plan = plan_of(self._found.store, LINE_SCHEMA, paths, sizes)
        bins = bins_for(self._context, plan, in_pieces=True, piece_bytes=TEXT_PIECE_BYTES)
        one = reads_one_object(self._view)
        lines = LinesScan(bins=bins, text=text, kind=self._view.format.upper(), is_one_object=one)
        return over_bins(self._context.spark, Task(source=lines), lines.output_schema)

    def _text_format(self) -> TextFormat:
        """Return how the files are cut into lines. Raises InvalidJobSpec for a way that is not read here."""
        options = self._options
        asked = given_encoding(options)
        with_aliases = self._context.executor.setting("spark.sql.legacy.javaCharsets", "false").lower() == "true"
        encoding, line_end = encoding_named(asked, with_aliases=with_aliases), options.get("linesep")
        if encoding is None:
            names = ", ".join(ENCODINGS)
            raise refused(self._argument, f"the encoding {asked}", f"Have the files written in one of {names}")
        if line_end is not None and line_end != "\r\n" and not (len(line_end) == 1 and line_end.isascii()):
            raise refused(self._argument, "a lineSep of several characters", "Leave it out")
        for file in self._files:
            if file.path.rpartition(".")[2] in OTHER_CODECS:
                raise refused(self._argument, f"the compression of {file.path}", "Have it compressed with gzip")
        is_csv = self._view.format == "csv"
        return TextFormat(
            encoding=encoding,
            line_end=line_end,
            drops_blank=is_csv,
            comment=(options.get("comment") or None) if is_csv else None,
            is_whole=is_true(options, "multiline"),
        )


# --- partition columns in the names of folders ------------------------------------------------------------------------
# Spark's own inference reads a folder's name as the first type of a sequence that can take it. Here are the spellings
# that writers use. A name that Spark might read in another way is refused, and the author gives the column's type.
# Source: Spark, PartitioningUtils.parsePartitions and inferPartitionColumnValue.


def _partition_types(
    folders: Iterable[Values], given: dict[str, DataType], argument: str, *, infers: bool = True
) -> dict[str, DataType]:
    """Return the types of the partition columns of these folders, by name, in order.

    `given`: types by lower-case name. Without `infers` all others are texts. Raises InvalidJobSpec (`argument`).
    """
    distinct = list(dict.fromkeys(folders))
    names = {tuple(name for name, _ in values) for values in distinct}
    if len(names) > 1:
        raise InvalidJobSpec(
            f"{argument}: the files lie in folders with different partition columns: "
            f"{'; '.join(sorted(', '.join(each) or 'none' for each in names))}. Name the folders of one kind, or set "
            "the option recursiveFileLookup, which reads no columns from folders. Nothing was read.",
            argument=argument,
        )
    columns = names.pop() if names else ()
    types = {}
    for number, name in enumerate(columns):
        texts = [text for values in distinct if (text := values[number][1]) is not None]
        if name.lower() in given:
            types[name] = given[name.lower()]
        else:
            types[name] = _inferred(name, texts, argument) if infers else StringType()
    return types


def _inferred(name: str, texts: Sequence[str], argument: str) -> DataType:
    if not texts:
        return NullType()
    kinds = {_kind(text) for text in texts}
    if None in kinds or (LongType in kinds and DoubleType in kinds and StringType not in kinds):
        raise InvalidJobSpec(
            f"{argument}: it is not certain as which type Spark would read the partition column {name!r}, by the names "
            "of its folders. Give the column a type in schema. Nothing was read.",
            argument=argument,
        )
    for wider in (
        [IntegerType],
        [IntegerType, LongType],
        [IntegerType, DoubleType],
        [DateType],
        [DateType, TimestampType],
    ):
        if kinds <= set(wider):
            return wider[-1]()
    return StringType()


def _kind(text: str) -> type[DataType] | None:
    """Return the type of one value; None if it is not certain."""
    if _WHOLE.fullmatch(text):
        number = int(text)
        if -(2**31) <= number < 2**31:
            return IntegerType
        return LongType if -(2**63) <= number < 2**63 else None
    if _FRACTION.fullmatch(text):
        return DoubleType
    if _DATE.fullmatch(text) or _TIMESTAMP.fullmatch(text):
        try:
            dt.datetime.fromisoformat(text[:19])
        except ValueError:
            return None
        return DateType if _DATE.fullmatch(text) else TimestampType
    return None if _DOUBTFUL.fullmatch(text) else StringType
