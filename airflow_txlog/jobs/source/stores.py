"""Files of a source that Spark cannot open by itself, read in its Python workers: no connector of Hadoop's is needed.

Parquet and ORC are read by Arrow. Of CSV and JSON the workers cut the lines, and Spark's own readers parse them, with
their options, modes and inference. The invariant: the rows and the schema are those that Spark would read from the same
files on a local disk; where that cannot be had, the source is refused by the name of what is in the way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

import pyarrow as pa
import pyspark
from pyspark.sql import Column, DataFrame, DataFrameReader
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import NullType, StringType, StructField, StructType

from airflow_txlog.contract.operations import FileView
from airflow_txlog.datafiles.tasks.rows_without_log import LINE_SCHEMA, LinesScan, OrcScan, ParquetScan
from airflow_txlog.datafiles.tasks.scan_and_write import FileScan, Task
from airflow_txlog.datafiles.text_lines import OTHER_CODECS, TextFormat, encoding_named
from airflow_txlog.engine.table.schema.rules import CHAR_VARCHAR_KEY
from airflow_txlog.errors import InvalidJobSpec, SourceNotFound
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import bins_for, over_bins, plan_of, scan_frame
from airflow_txlog.jobs.source.columns import (
    SourceColumns,
    columns_in_footers,
    padded_columns,
)
from airflow_txlog.jobs.source.footers import orc_schema
from airflow_txlog.jobs.source.listing import (
    LOOKUP_OPTIONS,
    WITHOUT_EFFECT,
    SourceFile,
    SourceFiles,
    Values,
    is_true,
    options_of,
    refused,
)
from airflow_txlog.jobs.source.partition_folders import partition_types
from airflow_txlog.jobs.sql.gate import quoted
from airflow_txlog.jobs.sql.schemas import as_spark_schema, spark_schema, without_metadata

# Each partition of a CSV or JSON source is a part of Spark's plan.
MAX_TEXT_PARTITIONS = 200
# Text takes long to parse, and is cut anywhere: a task is worth it for less than a row group has.
TEXT_PIECE_BYTES = 16 * 1024 * 1024
# The first whose readers take a frame of lines.
FIRST_SPARK_FOR_TEXT = (4, 2)
LINES = spark_schema(LINE_SCHEMA)

_FILE_FUNCTIONS = re.compile(r"\binput_file_(?:name|block_start|block_length)\b", re.IGNORECASE)


def read_files(
    context: JobContext, view: FileView, found: SourceFiles, argument: str, source: SourceColumns | None = None
) -> tuple[DataFrame, FileScan | None]:
    """The rows of a view's files, as a frame that was not evaluated yet, and the scan that alone gives the same rows.

    There is none where Spark computes some of them. `source`: the columns in the files' footers, where they are known.

    Raises InvalidJobSpec (`argument`) for what cannot be read as Spark would read it, SourceNotFound where there is no
    file to infer a schema from, and PySparkException where Spark refuses an option or the schema.
    """
    read = _Read(context, view, found, argument)
    return read.columns(source) if view.format in ("parquet", "orc") else (read.texts(), None)


def check_no_file_functions(sql: str, argument: str) -> None:
    """Raises InvalidJobSpec for a query that asks Spark which file a row is of, where some files are read here."""
    found = _FILE_FUNCTIONS.search(sql)
    if found is not None:
        raise InvalidJobSpec(
            f"{argument}: the query asks for {found[0]}(), and Spark does not know the files of a view in an object "
            "store, which this package reads. Read the folders of interest as views of their own. Nothing was read.",
            argument=argument,
        )


def _marked(schema: pa.Schema, padded: Mapping[str, int]) -> pa.Schema:
    """The schema with the marks by which Spark compares padded texts as those of its own."""
    marks = {name: {CHAR_VARCHAR_KEY: f"char({length})"} for name, length in padded.items()}
    return pa.schema([each.with_metadata(marks[each.name]) if each.name in marks else each for each in schema])


def _as_partition(text: Column, field: StructField) -> Column:
    """The value of a folder, as its column's type."""
    return (F.lit(None) if isinstance(field.dataType, NullType) else text.cast(field.dataType)).alias(field.name)


def _nullable(text: str | None) -> Column:
    """A constant that Spark takes for one that may be null, as it does with what folders say."""
    return F.nullif(F.lit(text), F.lit(None).cast("string"))


class _Read:
    """One view being read: its options by their names in small letters, its files and the types of its partitions."""

    def __init__(self, context: JobContext, view: FileView, found: SourceFiles, argument: str) -> None:
        self._context, self._view, self._found, self._argument = context, view, found, argument
        self._options = options_of(view)
        # Spark passes over files without a byte.
        self._files = [file for file in found.files if file.size_bytes]
        self._given: StructType | None = None
        if view.schema is not None:
            frame = context.spark.createDataFrame([], view.schema)
            self._given = without_metadata(frame.schema, nullable=True)
        elif not found.files:
            raise SourceNotFound(
                f"{argument}: there are no files at {', '.join(view.paths)} (yet) from which a schema could be "
                "inferred. Nothing was changed.",
                argument=argument,
            )
        infers = context.spark.conf.get("spark.sql.sources.partitionColumnTypeInference.enabled", "true") == "true"
        types = {field.name.lower(): field.dataType for field in self._given or ()}
        self._types = partition_types((file.values for file in found.files), types, argument, infers=infers)

    # --- Parquet and ORC --------------------------------------------------------------------------------------------

    def columns(self, source: SourceColumns | None) -> tuple[DataFrame, FileScan | None]:
        """Rows of Parquet or ORC files; see `read_files`."""
        if source is None:
            source = self._in_footers() if self._given is None else SourceColumns()
        columns = self._with_partitions(as_spark_schema(source.columns) if self._given is None else self._given)
        # A partition's value is brought as the folder has it, and becomes its type by Spark's own cast.
        stored = to_arrow_schema(
            StructType(
                [field if folder is None else StructField(field.name, StringType()) for field, folder in columns]
            ),
            timezone="UTC",
        )
        in_file = [field.name for field, folder in columns if folder is None]
        padded = padded_columns(self._context, source.padded)
        padded = {name: length for name, length in padded.items() if name in in_file}
        plan = plan_of(
            self._found.store,
            _marked(stored, padded),
            [file.path for file in self._files],
            [file.size_bytes for file in self._files],
            {
                field.name: [dict(file.values)[folder] for file in self._files]
                for field, folder in columns
                if folder is not None
            },
            [source.costs.get(file.path, 0) for file in self._files],
        )
        bins = bins_for(self._context, plan, in_pieces=True)
        task: FileScan
        if self._view.format == "parquet":
            defaults = {name: value for name, value in source.defaults.items() if name in in_file}
            task = ParquetScan(bins=bins, schema=plan.schema, padded=padded, defaults=defaults)
        else:
            task = OrcScan(bins=bins, schema=plan.schema)
        frame = scan_frame(self._context, task)
        if all(folder is None for _, folder in columns):
            return frame, task
        typed = frame.select(
            *(
                frame[quoted(field.name)] if folder is None else _as_partition(frame[quoted(field.name)], field)
                for field, folder in columns
            )
        )
        return typed, None

    def _in_footers(self) -> SourceColumns:
        if not self._files:
            raise SourceNotFound(
                f"{self._argument}: the files at {', '.join(self._view.paths)} are empty (yet). Nothing was changed.",
                argument=self._argument,
            )
        store, argument = self._found.store, self._argument
        if self._view.format == "orc":
            return SourceColumns(columns=orc_schema(store, self._files[0].path, argument))
        source = columns_in_footers(self._found, argument, self._types)
        if source.error is not None:
            raise source.error
        if source.apart is not None:
            raise source.apart
        if source.lacking is not None:
            what = f"the default of column {source.lacking!r}, which a file lacks and only Spark can evaluate,"
            raise refused(argument, what, "Have the column written")
        return source

    def _with_partitions(self, schema: StructType) -> list[tuple[StructField, str | None]]:
        """The columns of the files and those of their folders, in Spark's order; beside these their folders' name."""
        folders = {name.lower(): name for name in self._types}
        of_folders = {name: StructField(folder, self._types[folder]) for name, folder in folders.items()}
        columns: list[tuple[StructField, str | None]] = []
        for field in schema:
            found = of_folders.get(field.name.lower())
            if found is None:
                columns.append((field, None))
            elif self._given is not None:
                # Spark takes it out of what was given, and puts it behind that.
                of_folders[field.name.lower()] = field
            else:
                columns.append((of_folders.pop(field.name.lower()), folders[field.name.lower()]))
        return [*columns, *((field, folders[name]) for name, field in of_folders.items())]

    # --- CSV and JSON -----------------------------------------------------------------------------------------------

    def texts(self) -> DataFrame:
        """Rows of CSV or JSON files, whose lines Spark parses."""
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
        # The header of each file is taken away with its lines: Spark would look for the first one's in all of them.
        has_header = self._view.format == "csv" and is_true(self._options, "header")
        text = replace(text, drops_header=has_header)
        columns = self._with_partitions(schema)
        in_files = schema
        if self._given is not None:
            in_files = StructType([field for field, folder in columns if folder is None])
        frames = []
        for values, members in (by_values or {(): []}).items():
            rows = self._parsed(self._reader(header="false").schema(in_files), self._lines(members, text))
            texts = dict(values)
            frames.append(
                rows.select(
                    *(
                        rows[quoted(field.name)]
                        if folder is None
                        else _as_partition(_nullable(texts.get(folder)), field)
                        for field, folder in columns
                    )
                )
            )
        return reduce(DataFrame.union, frames)

    def _reader(self, **more: str) -> DataFrameReader:
        left_out = LOOKUP_OPTIONS | {"encoding", "charset", "multiline", *WITHOUT_EFFECT, *more}
        own = {name: value for name, value in self._options.items() if name not in left_out}
        return self._context.spark.read.options(**own, **(more if self._view.format == "csv" else {}))

    def _parsed(self, reader: DataFrameReader, lines: DataFrame) -> DataFrame:
        return reader.csv(lines) if self._view.format == "csv" else reader.json(lines)

    def _lines(self, files: Sequence[SourceFile], text: TextFormat) -> DataFrame:
        paths, sizes = [file.path for file in files], [file.size_bytes for file in files]
        plan = plan_of(self._found.store, LINE_SCHEMA, paths, sizes)
        bins = bins_for(self._context, plan, in_pieces=True, piece_bytes=TEXT_PIECE_BYTES)
        lines = LinesScan(bins=bins, text=text, kind=self._view.format.upper())
        return over_bins(self._context.spark, Task(source=lines), lines.output_schema)

    def _text_format(self) -> TextFormat:
        """How the files are cut into lines. Raises InvalidJobSpec for a way that is not read here."""
        options = self._options
        asked = options.get("encoding", options.get("charset", "UTF-8"))
        encoding, line_end = encoding_named(asked), options.get("linesep")
        if encoding is None:
            raise refused(self._argument, f"the encoding {asked}", "Have the files written in UTF-8")
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
