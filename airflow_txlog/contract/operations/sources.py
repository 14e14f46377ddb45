"""Where the rows of a job come from: a view, a query over views; and the keys of a DELETE.

On the wire each is a mapping without a tag: which record it is follows from the names in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from airflow_txlog.contract.operations.fields import KeyList, Location, Query, Text, TextMap, Version
from airflow_txlog.contract.operations.reading import Part

FileFormat = Literal["csv", "json", "orc", "parquet"]
FORMATS: frozenset[str] = frozenset(get_args(FileFormat))


Paths = Annotated[
    Location | Annotated[tuple[Location, ...], Meta(min_length=1)],
    Meta(
        description="an absolute path or a URI, or a list of them, since a relative path depends on the worker",
        extra={"is_shown": True},
    ),
]


class TableView(Part, frozen=True, kw_only=True):
    """One of our tables, at a version or at its latest one."""

    table: Location
    version: Version | None = None

    @classmethod
    def fits(cls, given: Mapping[str, Any]) -> bool:
        return "table" in given


class FileView(Part, frozen=True, kw_only=True):
    """Files as Spark reads them. `schema` is a DDL text; without it Spark finds the schema out."""

    format: FileFormat
    path: Paths
    options: TextMap = msgspec.field(default_factory=dict)
    schema: Text | None = None

    @classmethod
    def fits(cls, given: Mapping[str, Any]) -> bool:
        return "format" in given and "path" in given

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths, also where there is only one."""
        return (self.path,) if isinstance(self.path, str) else self.path

    @property
    def may_be_plain(self) -> bool:
        """Whether Arrow may read what Spark would: Parquet, with the columns and types that the files have."""
        return self.format == "parquet" and self.schema is None


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


AnySource = Annotated[
    QuerySource | TableView | FileView, Meta(description="a mapping with `sql`, `table`, or `format` and `path`")
]


class KeyValues(Part, frozen=True, kw_only=True):
    """Keys that the author names; `column` is the table's."""

    column: Text
    values: KeyList

    @classmethod
    def fits(cls, given: Mapping[str, Any]) -> bool:
        return "values" in given and "source" not in given


class KeySource(Part, frozen=True, kw_only=True):
    """Keys that a source holds. `source_column`: null for its only column, or the one that is named as `column`."""

    column: Text
    source: AnySource
    source_column: Text | None = None

    @classmethod
    def fits(cls, given: Mapping[str, Any]) -> bool:
        return "source" in given and "values" not in given


AnyKeys = Annotated[KeyValues | KeySource, Meta(description="a mapping with `column` and either `values` or `source`")]
