"""The types of the records' fields: texts, numbers, sources, keys and the clauses of a MERGE.

A type holds its constraint and its description for the author of a wrong value. A SQL text is a separate type, which
states the names that the text may use (`Sees`). A source, keys and a clause are records; on the wire they are mappings
without a tag, and the names in one decide which record it is.

Invariant: whatever these types admit is the same after a round trip through JSON.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from airflow_txlog.contract.operations.reading import Part, Sees, want
from airflow_txlog.contract.parameters import is_parameter
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.locations import ABSOLUTE
from airflow_txlog.sql.certain_mistakes import wrong_type

_TEXT = "a non-empty text"


def _is_moment(text: str) -> bool:
    try:
        datetime.fromisoformat(text.strip())
    except ValueError:
        return False
    return True


Text = Annotated[str, Meta(pattern=r"\S", description=_TEXT)]
SecretKey = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z", description="64 hexadecimal digits")]
ChangeId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z", description="32 hexadecimal digits")]
Location = Annotated[
    str,
    Meta(
        pattern=ABSOLUTE,
        description="an absolute path or a URI, since a relative one depends on the worker",
        extra={"is_place": True},
    ),
]
Version = Annotated[int, Meta(ge=0, description="a version from 0 on")]
Moment = Annotated[str, Meta(description="a date or time in ISO 8601", extra={"holds": _is_moment, "is_shown": True})]
ColumnNames = Annotated[tuple[Text, ...], Meta(description="a list of column names")]
Names = Annotated[tuple[Text, ...], Meta(description="a list of names")]
SomeColumnNames = Annotated[tuple[Text, ...], Meta(min_length=1, description="a non-empty list of column names")]
TextMap = Annotated[dict[str, str], Meta(description="a mapping of text to text")]
Hours = Annotated[float, Meta(ge=0, description="a number of hours from 0 on", extra={"holds": math.isfinite})]
Minutes = Annotated[float, Meta(gt=0, description="minutes above 0", extra={"holds": math.isfinite})]
Share = Annotated[float, Meta(ge=0, le=1, description="a share from 0 to 1", extra={"holds": math.isfinite})]
Bytes = Annotated[int, Meta(gt=0, description="a whole number of bytes above 0")]
Count = Annotated[int, Meta(ge=0, description="a whole number from 0 on")]

Query = Annotated[str, Meta(pattern=r"\S", description=_TEXT, extra={"sees": Sees.VIEWS})]
Queries = Annotated[dict[Text, Query], Meta(description="a mapping of names to SQL")]
PartitionText = Annotated[str, Meta(pattern=r"\S", description=_TEXT, extra={"sees": Sees.PARTITIONS})]
TableText = Annotated[str, Meta(pattern=r"\S", description=_TEXT, extra={"sees": Sees.TABLE})]
PairText = Annotated[str, Meta(pattern=r"\S", description=_TEXT, extra={"sees": Sees.TABLE_AND_SOURCE})]
ClauseText = Annotated[str, Meta(pattern=r"\S", description=_TEXT, extra={"sees": Sees.CLAUSE})]

_ASSIGNMENTS = Meta(min_length=1, description="a non-empty mapping of columns to SQL")
Assignments = Annotated[dict[str, TableText], _ASSIGNMENTS]
Conditions = Annotated[dict[Text, TableText], Meta(description="a mapping of names to SQL conditions")]
ClauseAssignments = Literal["*"] | Annotated[dict[str, ClauseText], _ASSIGNMENTS]

Parameter = Annotated[
    Any,
    Meta(
        description="a scalar (an integer within 64 bits, a Decimal within 38 digits) or a tagged scalar",
        extra={"holds": is_parameter},
    ),
]
Parameters = Annotated[dict[Text, Parameter], Meta(description="a mapping")]


# --- sources --------------------------------------------------------------------------------------------------------

FileFormat = Literal["csv", "json", "orc", "parquet"]
FORMATS: frozenset[str] = frozenset(get_args(FileFormat))

Paths = Annotated[
    Location | Annotated[tuple[Location, ...], Meta(min_length=1)],
    Meta(
        description="an absolute path or a URI, or a list of them, since a relative path depends on the worker",
        extra={"is_shown": True},
    ),
]


class StagedView(Part, frozen=True, kw_only=True):
    """A staged change, by its id and the digest of its document."""

    id: ChangeId
    digest: Text


class RangeView(Part, frozen=True, kw_only=True):
    """The rows that the versions after `after` have added; null: all rows of the last version.

    `changes`: change rows, with their type, version and time. `skip_change_commits`: leave out commits that change or
    remove rows.
    """

    after: Annotated[int, Meta(ge=-1, description="a version, or -1 for the start")] | None = None
    changes: bool = False
    skip_change_commits: bool = False


class TableView(Part, frozen=True, kw_only=True):
    """A Delta table: at a version, as a staged change would leave it, or at its latest version.

    `range`: some rows of the versions up to `version` instead. `as_of` "run": the version that the run has pinned; the
    task replaces it before the job begins.
    """

    table: Location
    version: Version | None = None
    staged: StagedView | None = None
    range: RangeView | None = None
    as_of: Literal["run"] | None = None

    @classmethod
    def fits(cls, given: Mapping[str, Any]) -> bool:
        return "table" in given

    @property
    def names_version(self) -> bool:
        """Whether the rows are fixed: by a version, by a staged change or by the run."""
        return any(each is not None for each in (self.version, self.staged, self.as_of))

    def check(self, place: str) -> None:
        want(f"{place}.version", None in (self.version, self.staged), "None with a staged change", self.version)
        fits = self.range is None or (self.version is not None and (self.range.after or 0) <= self.version)
        want(f"{place}.version", fits, "the last version of the range", self.version)
        one = self.as_of is None or (self.version is None and self.staged is None)
        want(f"{place}.as_of", one, "None with a version or a staged change", self.as_of, is_shown=True)


class FileView(Part, frozen=True, kw_only=True):
    """Files as Spark reads them. `schema` is a DDL text; without it Spark infers the schema."""

    format: FileFormat
    path: Paths
    options: TextMap = msgspec.field(default_factory=dict)
    schema: Text | None = None

    @classmethod
    def fits(cls, given: Mapping[str, Any]) -> bool:
        return "format" in given and "path" in given

    def check(self, place: str) -> None:
        wrong = None if self.schema is None else wrong_type(self.schema)
        if wrong is not None:
            place = f"{place}.schema"
            raise InvalidJobSpec(f"{place.removeprefix('arguments.')}: {wrong} Nothing was read.", argument=place)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths, also if there is only one."""
        return (self.path,) if isinstance(self.path, str) else self.path

    @property
    def may_be_plain(self) -> bool:
        """Whether Arrow may replace Spark as the reader: Parquet with its files' types, CSV or JSON with a schema."""
        return self.format in (("parquet",) if self.schema is None else ("csv", "json"))


View = Annotated[TableView | FileView, Meta(description="`table`, or `format` and `path`")]


class QuerySource(Part, frozen=True, kw_only=True):
    """The rows of a query over named views."""

    sql: Query
    views: Annotated[dict[str, View], Meta(description="a mapping of names to views")] = msgspec.field(
        default_factory=dict
    )

    @classmethod
    def fits(cls, given: Mapping[str, Any]) -> bool:
        return "sql" in given


class RowsInProcess(Part, frozen=True, kw_only=True):
    """Rows that the caller of the job holds as an Arrow stream. Only the process that holds them can run such a job."""

    rows: Literal["in_process"] = "in_process"

    @classmethod
    def fits(cls, given: Mapping[str, Any]) -> bool:
        return "rows" in given


AnySource = Annotated[
    QuerySource | TableView | FileView | RowsInProcess,
    Meta(description="a mapping with `sql`, `table`, or `format` and `path`"),
]


# --- keys of a DELETE -----------------------------------------------------------------------------------------------


def _are_keys(values: tuple[Any, ...]) -> bool:
    return all(is_parameter(value) and not isinstance(value, list) for value in values)


KeyList = Annotated[
    tuple[Any, ...], Meta(description="a list of scalars or tagged scalars", extra={"holds": _are_keys})
]


class KeyValues(Part, frozen=True, kw_only=True):
    """Keys that the author lists; `column` is the table's."""

    column: Text
    values: KeyList

    @classmethod
    def fits(cls, given: Mapping[str, Any]) -> bool:
        return "values" in given and "source" not in given


class KeySource(Part, frozen=True, kw_only=True):
    """Keys from a source. `source_column` null: the source's only column, or the one named as `column`.

    A CSV file with a header and without a schema needs the name, because its first line may be a row.
    """

    column: Text
    source: AnySource
    source_column: Text | None = None

    @classmethod
    def fits(cls, given: Mapping[str, Any]) -> bool:
        return "source" in given and "values" not in given


AnyKeys = Annotated[KeyValues | KeySource, Meta(description="a mapping with `column` and either `values` or `source`")]


# --- clauses of a MERGE ---------------------------------------------------------------------------------------------


class UpdateClause(Part, frozen=True, kw_only=True):
    """Assign new values to the row: `"*"` takes every column from the source."""

    when: Literal["matched", "not_matched_by_source"]
    then: Literal["update"] = "update"
    condition: ClauseText | None = None
    set: ClauseAssignments

    @classmethod
    def fits(cls, given: Mapping[str, Any]) -> bool:
        return given.get("then") == "update" and given.get("when") in ("matched", "not_matched_by_source")

    def check(self, place: str) -> None:
        possible = self.set != "*" or self.when == "matched"  # otherwise no source row supplies the columns
        want(f"{place}.set", possible, "a mapping of columns to SQL", self.set)


class DeleteClause(Part, frozen=True, kw_only=True):
    """Delete the row."""

    when: Literal["matched", "not_matched_by_source"]
    then: Literal["delete"] = "delete"
    condition: ClauseText | None = None

    @classmethod
    def fits(cls, given: Mapping[str, Any]) -> bool:
        return given.get("then") == "delete" and given.get("when") in ("matched", "not_matched_by_source")


class InsertClause(Part, frozen=True, kw_only=True):
    """Insert a row of the source: `"*"` takes every column."""

    when: Literal["not_matched"] = "not_matched"
    then: Literal["insert"] = "insert"
    condition: ClauseText | None = None
    values: ClauseAssignments

    @classmethod
    def fits(cls, given: Mapping[str, Any]) -> bool:
        return given.get("then") == "insert" and given.get("when") == "not_matched"


AnyClause = Annotated[
    UpdateClause | DeleteClause | InsertClause,
    Meta(
        description="a clause: `when` is matched or not_matched_by_source and `then` is update or delete, or `when` is "
        "not_matched and `then` is insert"
    ),
]
Clauses = Annotated[tuple[AnyClause, ...], Meta(min_length=1, description="a non-empty list of clauses")]
