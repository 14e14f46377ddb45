"""What the fields of a record hold: types with their constraints, described for the author of a wrong one.

A SQL text is a type of its own, which states what the text may name (`Sees`). Invariant: whatever these types admit is
the same after a round trip through JSON.
"""

from __future__ import annotations

import enum
import math
from typing import Annotated, Any, Literal

from msgspec import Meta

from airflow_txlog.contract.parameters import is_parameter
from airflow_txlog.locations import ABSOLUTE


class Sees(enum.Enum):
    """What a SQL text may name."""

    VIEWS = "the views beside it"
    PARTITIONS = "the table's partition columns"
    TABLE = "the table's columns"
    TABLE_AND_SOURCE = "the columns of the table and of the source"
    CLAUSE = "what the clause's `when` leaves: the table, the source, or both"

    @property
    def is_evaluated_again(self) -> bool:
        """Whether the text is evaluated more than once in a job; a source's query is not: its rows are written down."""
        return self is not Sees.VIEWS


_TEXT = "a non-empty text"

Text = Annotated[str, Meta(pattern=r"\S", description=_TEXT)]
Location = Annotated[
    str,
    Meta(
        pattern=ABSOLUTE,
        description="an absolute path or a URI, since a relative one depends on the worker",
        extra={"is_shown": True},
    ),
]
Version = Annotated[int, Meta(ge=0, description="a version from 0 on")]
ColumnNames = Annotated[tuple[Text, ...], Meta(description="a list of column names")]
SomeColumnNames = Annotated[tuple[Text, ...], Meta(min_length=1, description="a non-empty list of column names")]
TextMap = Annotated[dict[str, str], Meta(description="a mapping of text to text")]
Hours = Annotated[float, Meta(ge=0, description="hours from 0 on", extra={"holds": math.isfinite})]
Bytes = Annotated[int, Meta(gt=0, description="a whole number of bytes above 0")]

Query = Annotated[str, Meta(pattern=r"\S", description=_TEXT, extra={"sees": Sees.VIEWS})]
PartitionText = Annotated[str, Meta(pattern=r"\S", description=_TEXT, extra={"sees": Sees.PARTITIONS})]
TableText = Annotated[str, Meta(pattern=r"\S", description=_TEXT, extra={"sees": Sees.TABLE})]
PairText = Annotated[str, Meta(pattern=r"\S", description=_TEXT, extra={"sees": Sees.TABLE_AND_SOURCE})]
ClauseText = Annotated[str, Meta(pattern=r"\S", description=_TEXT, extra={"sees": Sees.CLAUSE})]

_ASSIGNMENTS = Meta(min_length=1, description="a non-empty mapping of columns to SQL")
Assignments = Annotated[dict[str, TableText], _ASSIGNMENTS]
ClauseAssignments = Literal["*"] | Annotated[dict[str, ClauseText], _ASSIGNMENTS]

Parameter = Annotated[
    Any,
    Meta(
        description="a scalar (an integer within 64 bits, a Decimal within 38 digits) or a tagged scalar",
        extra={"holds": is_parameter},
    ),
]
Parameters = Annotated[dict[Text, Parameter], Meta(description="a mapping")]


def _are_keys(values: tuple[Any, ...]) -> bool:
    return all(is_parameter(value) and not isinstance(value, list) for value in values)


KeyList = Annotated[
    tuple[Any, ...], Meta(description="a list of scalars or tagged scalars", extra={"holds": _are_keys})
]
