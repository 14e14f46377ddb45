"""The column that identifies subjects: one of single values, which are compared character by character."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from airflow_txlog.engine.table.schema.types import (
    CHAR_VARCHAR_KEY,
    DecimalType,
    Primitive,
    StructField,
    StructType,
)
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import InvalidInput, UnknownColumn, UnsupportedFeature
from airflow_txlog.errors.names import did_you_mean, shown_names

_LONGEST_CHAR, _MOST_DIGITS = 4_096, 9
_CHAR = re.compile(r"(?<!var)char\((\d+)\)")


def key_path(snapshot: Snapshot, column: str) -> tuple[StructField, ...]:
    """Return the fields that lead to the column of subjects, or to a member of a struct.

    Raises UnknownColumn; InvalidInput for a column of nested values; UnsupportedFeature for a collation.
    """
    uri, names = snapshot.uri, snapshot.delta_schema.names
    found = snapshot.delta_schema.find_path((column,)) or snapshot.delta_schema.find_path(tuple(column.split(".")))
    if found is None:
        raise UnknownColumn(
            f"{uri} has no column {column!r}.{did_you_mean(column, names)} It has: {shown_names(names)}.",
            column=column,
            columns=names,
        )
    if not isinstance(found[-1].type, Primitive | DecimalType):
        raise InvalidInput(
            f"{uri}: the column {column!r} is {found[-1].type}. Subjects are found by a column of single values. "
            "Name such a column, or a member of the struct as `struct.member`."
        )
    if found[-1].is_collated:
        raise UnsupportedFeature(
            f"{uri}: the column {column!r} has a collation, so that different texts are equal. Subjects are "
            "compared character by character. Nothing was searched. Name another column.",
            table=uri,
            feature="subjects by a column with a collation",
            needed_to="find subjects",
        )
    return found


def char_lengths(uri: str, column: str, path: Sequence[StructField]) -> frozenset[int]:
    """Return the lengths of a CHAR column, at its path. Raises UnsupportedFeature for a long one."""
    marks = " ".join(str(field.metadata.get(CHAR_VARCHAR_KEY, "")) for field in path)
    lengths = frozenset(int(each[:_MOST_DIGITS]) for each in _CHAR.findall(marks))
    if lengths and max(lengths) > _LONGEST_CHAR:
        raise UnsupportedFeature(
            f"{uri}: the column {column!r} is a CHAR of more than {_LONGEST_CHAR:,} characters. Each subject would "
            "be padded with as many spaces. Nothing was searched. Name another column.",
            table=uri,
            feature=f"subjects by a CHAR of more than {_LONGEST_CHAR:,} characters",
            needed_to="find subjects",
        )
    return lengths


def dotted(path: Sequence[StructField]) -> tuple[str, str]:
    """Return the logical and the physical path of a column or of a member of a struct, with dots."""
    return ".".join(each.name for each in path), ".".join(each.physical_name for each in path)


def paths_of_others(snapshot: Snapshot, path: Sequence[StructField]) -> frozenset[str]:
    """Return the physical paths of the table's other columns, in lower case."""
    paths = {dotted(each)[1].lower() for each in struct_paths(snapshot.delta_schema)}
    return frozenset(paths - {dotted(path)[1].lower()})


def struct_paths(columns: StructType, above: tuple[StructField, ...] = ()) -> Iterator[tuple[StructField, ...]]:
    """Yield the path of each column and of each member of a struct."""
    for column in columns:
        yield (*above, column)
        if isinstance(column.type, StructType):
            yield from struct_paths(column.type, (*above, column))
