"""Values of CSV and JSON files that Spark's readers would change when they read them: errors in the mode FAILFAST.

Without an option for the escape, Spark keeps a doubled quote in a text of CSV. Without one for the encoding, it
replaces bytes that are not UTF-8. It removes commas from the text of a DECIMAL, cuts its decimals, and drops the time
of day from the text of a DATE. Here it reads such columns as texts, and its own cast converts the texts that keep their
meaning. Where it has no text of a number of JSON, it reads a VARIANT, which keeps the number. The invariant: the rows
are those that Spark's reader gives, or the job fails. Values inside of structs, arrays and maps are left to Spark's
reader.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from airflow_txlog.contract.operations import FileView
from airflow_txlog.datafiles.failures import Misfit, row_does_not_fit
from airflow_txlog.datafiles.text_lines import encoding_named, exact_date, exact_decimal
from airflow_txlog.engine.table.schema.ddl import column_names
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.jobs.source.headers import checked_quote, given_encoding, given_separator
from airflow_txlog.jobs.source.listing import CORRUPT_RECORD, is_strict, is_true, options_of
from airflow_txlog.jobs.spark.causes import mark_of
from airflow_txlog.jobs.sql.gate import quoted

# The types of CSV whose values can have a quote.
_TEXTS = (StringType, BinaryType, VariantType)

# Between the values of a row whose quotes are checked. A text may have any other character, also NUL.
_BETWEEN = "\uffff"
# In place of bytes that are not in the encoding of a file.
_REPLACEMENT = "\ufffd"

# In a schema as JSON. A name or a comment has no quote that is not escaped.
_PADDED = re.compile(r'"(?:type|elementType|keyType|valueType)":"(?:var)?char\(')


def text_options(view: FileView) -> dict[str, str]:
    """Return the options of a view with the mode that it has without one.

    Spark counts the values of a row of CSV only if it reads all columns, also those that a query leaves out.
    """
    pruning = {"columnPruning": "false"} if view.format == "csv" and is_strict(view) else {}
    return {**view.options, **own_options(view), **pruning}


def own_options(view: FileView) -> dict[str, str]:
    """Return the options with which Spark's reader refuses values that do not fit, and drops no character.

    They also name the column for rows that it cannot read: a setting of the session may name another.
    """
    options = options_of(view)
    has_corrupt = view.format in ("csv", "json") and CORRUPT_RECORD in column_names(view.schema or "")
    named = "columnnameofcorruptrecord"
    corrupt = {named: CORRUPT_RECORD} if has_corrupt and named not in options else {}
    if not is_strict(view):
        return corrupt
    is_doubled = view.format == "csv" and options.get("escape") == options.get("quote", '"')
    # Spark would drop each NUL in quotes: it is the escape of a doubled quote that Spark has without this option.
    is_dropped = is_doubled and "chartoescapequoteescaping" not in options
    return {"mode": "FAILFAST", **corrupt, **({"charToEscapeQuoteEscaping": _BETWEEN} if is_dropped else {})}


def check_shows_quotes(view: FileView, argument: str) -> None:
    """Raise InvalidJobSpec (`argument`) for options under which no value shows that it had a doubled quote."""
    options, quote = options_of(view), checked_quote(view)
    if quote is not None and ("singlevariantcolumn" in options or quote in options.get("nullvalue", "")):
        raise InvalidJobSpec(
            f"{argument}: doubled quotes cannot be found with the option singleVariantColumn or a nullValue that "
            'has a quote. Set the option "escape" too: "\\"" if a quote in a text is written twice, "\\\\" otherwise. '
            "Nothing was read.",
            argument=f"{argument}.options",
        )


def check_cuts_lines(view: FileView, argument: str) -> None:
    """Raise InvalidJobSpec (`argument`) for an encoding in which Spark would cut lines of CSV inside of a character, or
    cuts no lines of JSON.
    """
    options = options_of(view)
    encoding = given_encoding(options).upper()
    # Spark looks for a line end byte by byte, and for one of an encoding with a mark only after a mark.
    has_mark, is_wide = encoding in ("UTF-16", "UTF-32"), encoding.startswith(("UTF-16", "UTF-32"))
    is_cut = has_mark or (is_wide and "linesep" not in options)
    if view.format == "csv" and is_strict(view) and is_cut and not is_true(options, "multiline"):
        raise InvalidJobSpec(
            f"{argument}: Spark would cut lines of CSV in {encoding} inside of a character. Set the option "
            '"multiLine": "true". Nothing was read.',
            argument=f"{argument}.options",
        )
    is_utf_8 = encoding_named(encoding, with_aliases=True) == "utf-8"
    is_in_lines = view.format == "json" and not is_true(options, "multiline")
    if is_in_lines and not is_utf_8 and (has_mark or "linesep" not in options):
        # Not multiLine: of a file with several rows Spark would read the first.
        advice = "Have the files written in UTF-8." if has_mark else 'Set the option "lineSep": "\\n".'
        raise InvalidJobSpec(
            f"{argument}: Spark does not find the line ends of JSON in {encoding}. {advice} Nothing was read.",
            argument=f"{argument}.options",
        )


@dataclass(frozen=True)
class StrictColumns:
    """The columns that Spark reads as texts, by name, with the types that they become.

    `has_texts`: Spark has the texts of numbers; otherwise it reads those of a DECIMAL as VARIANT, which keeps them.
    `quote`: the quote that no other text of the files may hold twice in a row, next to one of its ends. `separator`:
    the characters between values of CSV. `has_lines`: a value may have a line end. `may_replace`: Spark may replace
    bytes of texts without an option that allows it. `shows_names`: the columns have the author's names, and none from a
    file's first line, which may be a row. `folders`: the columns of folders, by lower-case name.
    """

    fields: Mapping[str, StructField]
    has_texts: bool = True
    quote: str | None = None
    separator: str = ","
    has_lines: bool = False
    may_replace: bool = False
    shows_names: bool = False
    folders: frozenset[str] = frozenset()

    def read_as(self, schema: StructType) -> StructType:
        """Return the columns for Spark's reader."""
        return StructType([self._read_as(each) if each.name in self.fields else each for each in schema])

    def _read_as(self, field: StructField) -> StructField:
        is_text = self.has_texts or not isinstance(field.dataType, DecimalType)
        return StructField(field.name, StringType() if is_text else VariantType(), field.nullable, field.metadata)

    def without(self, names: Collection[str]) -> StrictColumns:
        """Return the columns without those that folders name, by lower-case name."""
        kept = {name: each for name, each in self.fields.items() if name.lower() not in names}
        return replace(self, fields=kept, folders=frozenset(names))

    @property
    def checks_any(self) -> bool:
        """Whether a value is checked."""
        return bool(self.fields) or self._checks_texts

    @property
    def _checks_texts(self) -> bool:
        return self.quote is not None or self.may_replace

    def converted(self, frame: DataFrame, *, names_files: bool) -> DataFrame:
        """Return the rows with the values. `names_files`: Spark knows the file of a row.

        Raises InvalidInput if Spark has replaced bytes in the name of a column.
        """
        if not self.checks_any:
            return frame
        if self.may_replace and any(_REPLACEMENT in name for name in frame.columns):
            raise row_does_not_fit(None, Misfit(is_replaced=True))
        # No filter passes below an expression that is not deterministic, such as input_file_name().
        is_hidden = "_metadata" not in map(str.lower, frame.columns)
        path = F.col("_metadata.file_path") if is_hidden else F.input_file_name()
        file = path if names_files else F.lit("")
        texts = [each.name for each in frame.schema if isinstance(each.dataType, _TEXTS)]
        if self._checks_texts and texts:
            # A filter, so that a query that leaves the column out does not leave the check out.
            frame = frame.where(self._is_right(frame, texts, file))
        return frame.select(*(self._column(frame, name, file) for name in frame.columns))

    def _is_right(self, frame: DataFrame, names: list[str], file: Column) -> Column:
        """Return True for a row whose texts, in these columns, pass the checks. For any other one it raises."""
        right = F.lit(True)
        if self.quote is not None:
            # Of such files the check refuses also texts without a doubled quote.
            is_unclear = self.has_lines or len(self.separator) > 1
            misfit = Misfit(quote="unclear" if is_unclear else "doubled")
            refusal = F.raise_error(F.concat(F.lit(f"{mark_of(misfit)} "), file))
            right = F.when(self._has_doubled_quote(frame, self.quote), refusal).otherwise(right)
        names = [name for name in names if name.lower() not in self.folders]
        if self.may_replace and names:
            texts = [frame[quoted(name)].cast("string") for name in names]
            shown = [name if self.shows_names else None for name in names]
            marks = " ".join(mark_of(Misfit(column=name, is_replaced=True)) for name in shown)
            # Without a lambda: Spark compiles no filter that has one.
            place = F.array_position(F.array(*(text.contains(_REPLACEMENT) for text in texts)), True)
            mark = F.split_part(F.lit(marks), F.lit(" "), place.cast("int"))
            refusal = F.raise_error(F.concat(mark, F.lit(" "), file))
            right = F.when(F.concat_ws("", *texts).contains(_REPLACEMENT), refusal).otherwise(right)
        return right

    def _column(self, frame: DataFrame, name: str, file: Column) -> Column:
        text, field = frame[quoted(name)], self.fields.get(name)
        if field is None and not self._checks_texts:
            return text
        if field is None:
            # Of a column in a condition Spark infers that it is not NULL, and would leave out rows for that before
            # they are checked. It infers nothing through this function.
            return F.coalesce(text, text).alias(name, metadata=frame.schema[name].metadata)
        given, text = text, text.cast("string")
        value = text.try_cast(field.dataType)
        is_kept = text.rlike(f"^(?:{_pattern(field)})$") & value.isNotNull()
        if isinstance(frame.schema[name].dataType, VariantType):
            # Spark has read it as a DOUBLE: it has an exponent, or more than 38 digits.
            is_kept &= F.schema_of_variant(given) != "DOUBLE"
        refusal = F.raise_error(F.concat(F.lit(f"{mark_of(Misfit(column=name, kind=_shown(field)))} "), file))
        return F.when(text.isNull() | is_kept, value).otherwise(refusal).alias(name, metadata=field.metadata)

    def _has_doubled_quote(self, frame: DataFrame, quote: str) -> Column:
        """Return whether a row may hold a value that Spark has read otherwise than its writer meant.

        With the default escape, Spark keeps a doubled quote and one of the quotes around the value, or both. It may cut
        the value `6",` at its doubled quote. Then the first part ends with a quote, and a later one begins with a
        separator, or with a quote and a separator; or a line end follows, where values may have one. All columns are in
        one expression: Spark takes long to plan one for each of many.
        """
        names = [name for name in frame.columns if name.lower() not in self.folders]
        row = F.concat_ws(_BETWEEN, *(frame[quoted(name)].cast("string") for name in names))
        if len(self.separator) > 1:
            # Spark's reader also removes some of the quotes.
            return row.contains(quote)
        one, mark, end = re.escape(quote), re.escape(self.separator), _BETWEEN
        # Possessive and atomic: a row of a megabyte with 100,000 quotes is read once, and not once for each quote.
        doubled = rf"[^{end}{one}]*+(?:{one}[^{end}{one}]++)*+{one}{one}"
        in_value = rf"(?:\A|{end})(?:(?={one}){doubled}|{doubled}[^{end}]*+(?<={one}))"
        is_cut = rf"\A(?>.*?{one}{end})(?:.*{end})?(?:{one})?{mark}"
        if self.has_lines:
            is_cut = rf"{one}(?:{end}|\z)"
        return row.contains(quote) & row.rlike(rf"(?s){in_value}|{is_cut}")


def strict_columns(view: FileView, schema: StructType | None, *, has_bytes: bool) -> StrictColumns:
    """Return the columns of a view that are converted here. An option for their format leaves them to Spark.

    `schema` is the given one. `has_bytes`: Spark's reader has the bytes of the files, and not their lines as texts.
    """
    options = options_of(view)
    kinds: list[type] = []
    # Without the bytes of a line, Spark has no text of a number in JSON.
    has_texts = view.format == "csv" or (has_bytes and not {"encoding", "charset", "multiline"} & options.keys())
    if is_strict(view):
        kinds += [] if "locale" in options else [DecimalType]
        kinds += [] if {"dateformat", "locale"} & options.keys() else [DateType]
    fields = {each.name: each for each in schema or () if isinstance(each.dataType, tuple(kinds))}
    is_csv = view.format == "csv" and is_strict(view)
    return StrictColumns(
        fields,
        has_texts,
        checked_quote(view),
        given_separator(options),
        has_lines=is_true(options, "multiline"),
        may_replace=is_csv and has_bytes and not {"encoding", "charset"} & options.keys(),
        shows_names=schema is not None,
    )


def given_columns(schema: str, argument: str) -> StructType:
    """Return the columns of a DDL text. Raises InvalidJobSpec (`argument`), and PySparkException for another text."""
    given = DataType.fromDDL(schema)
    if _PADDED.search(given.json()):
        raise InvalidJobSpec(
            f"{argument}: the schema of files has no CHAR and VARCHAR. Write STRING. Nothing was read.",
            argument=argument,
        )
    return given if isinstance(given, StructType) else StructType([StructField("value", given)])


def _pattern(field: StructField) -> str:
    kind = field.dataType
    return exact_decimal(kind.precision, kind.scale) if isinstance(kind, DecimalType) else exact_date()


def _shown(field: StructField) -> str:
    kind = field.dataType
    return f"DECIMAL({kind.precision}, {kind.scale})" if isinstance(kind, DecimalType) else "DATE"
