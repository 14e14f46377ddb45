"""The types that Spark infers for partition columns in the folders of a source's files: `day=2024-01-01/country=NO`.

Spark's own inference reads a folder's name as the first of a row of types that can take it. Here are the spellings that
writers use; the invariant: a name that Spark might read in another way than this module is refused, and the author
gives the column's type in the schema.
Source: Spark, PartitioningUtils.parsePartitions and inferPartitionColumnValue.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Sequence

from pyspark.sql.types import (
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    NullType,
    StringType,
    TimestampType,
)

from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.jobs.source.listing import Values

_WHOLE = re.compile(r"[+-]?[0-9]+")
_FRACTION = re.compile(r"[+-]?[0-9]+\.[0-9]+")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?")
# What Java, or Spark's parsers of dates and times, may take for more than a text: other numbers, dates, times of a day.
_DOUBTFUL = re.compile(
    r"\s.*|.*\s|[+-]?(?:NaN|Infinity|0[xX].*|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?)"
    r"|[+-]?\d+-\d{1,2}-\d{1,2}(?: \d.*|T.*:.*)?|\d{1,2}:\d.*",
    re.DOTALL,
)


def partition_types(
    folders: Iterable[Values], given: dict[str, DataType], argument: str, *, infers: bool = True
) -> dict[str, DataType]:
    """The types of the partition columns of these folders, by name, in order; none where no folder has values.

    `given` are types by the name in small letters. Without `infers` all others are texts. Raises InvalidJobSpec
    (`argument`) for folders that do not agree in their columns, and for values whose type is not certain.
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
    """The type of one value; None where it is not certain."""
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
