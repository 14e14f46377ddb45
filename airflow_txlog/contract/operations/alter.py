"""The record of ALTER: changes of a table's properties, features, columns, rules and clustering."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from airflow_txlog.contract.operations.base import Operation, register
from airflow_txlog.contract.operations.fields import Names, TableText, Text, TextMap
from airflow_txlog.contract.operations.reading import Part, want
from airflow_txlog.contract.operations.records import looks_plain
from airflow_txlog.sql.sql_text import is_constant, sql_text

_JOBS = "airflow_txlog.jobs.operations.alter"


class AddedColumn(Part, frozen=True, kw_only=True):
    """A column to add: its type as DDL, its comment, and SQL for its value in later rows that lack it."""

    type: Text
    comment: str | None = None
    default: Text | None = None


AddedColumns = Annotated[
    dict[Text, Text | AddedColumn],
    Meta(description="a mapping of columns to types, or to mappings with type, comment and default"),
]
Constraints = Annotated[dict[Text, TableText], Meta(description="a mapping of names to SQL")]
Renamed = Annotated[dict[Text, Text], Meta(description="a mapping of columns to their new names")]
Types = Annotated[dict[Text, Text], Meta(description="a mapping of columns to types")]
Comments = Annotated[
    dict[Text, str | None], Meta(description="a mapping of columns to comments, or to None for no comment")
]


@register
class Alter(Operation, frozen=True, kw_only=True, tag="alter"):
    """Change the table in one commit, in the order of the fields. Columns are named by paths, such as `address.city`.

    `cluster_by`: null leaves the clustering as it is, and an empty list ends it. `allow_reader_upgrade`: engines that
    read the table today may not be able to read it any more.
    """

    job = f"{_JOBS}.verification:alter_verified"
    changes_rows = True

    drop_constraints: Names = ()
    unset_properties: Names = ()
    set_properties: TextMap = msgspec.field(default_factory=dict)
    add_features: Names = ()
    drop_columns: Names = ()
    rename_columns: Renamed = msgspec.field(default_factory=dict)
    add_columns: AddedColumns = msgspec.field(default_factory=dict)
    change_types: Types = msgspec.field(default_factory=dict)
    set_comments: Comments = msgspec.field(default_factory=dict)
    drop_not_null: Names = ()
    set_not_null: Names = ()
    add_constraints: Constraints = msgspec.field(default_factory=dict)
    sync_identity: Names = ()
    cluster_by: Names | None = None
    drop_features: Names = ()
    allow_reader_upgrade: bool = False

    def check(self) -> None:
        given = {name: getattr(self, name) for name in self.__struct_fields__ if name != "allow_reader_upgrade"}
        is_any = self.cluster_by is not None or any(given.values())
        want("arguments", is_any, "at least one alteration, such as set_properties", {})
        for name, value in given.items():
            distinct = len({each.lower() for each in value or ()}) == len(value or ())
            want(f"arguments.{name}", distinct, "without a name that is given twice, in any case", value)
        both = {name.lower() for name in self.add_features} & {name.lower() for name in self.drop_features}
        want("arguments.drop_features", not both, "other features than add_features", self.drop_features)
        both = {name.lower() for name in self.set_not_null} & {name.lower() for name in self.drop_not_null}
        want("arguments.set_not_null", not both, "other columns than drop_not_null", self.set_not_null)
        for name, text in self.add_constraints.items():
            place = f"arguments.add_constraints.{name}"
            want(place, not sql_text(text).parameters, "SQL without parameters: the table keeps it as it is", text)

    @property
    def _verifies(self) -> bool:
        """Whether rows are read, or a default is more than a constant."""
        defaults = (each.default for each in self.add_columns.values() if isinstance(each, AddedColumn))
        is_plain = all(text is None or is_constant(text) for text in defaults)
        return bool(self.add_constraints or self.set_not_null or self.sync_identity) or not is_plain

    @property
    def job_here(self) -> str:
        return self.job if self._verifies else f"{_JOBS}.job:alter"

    @property
    def needs_spark(self) -> bool:  # type: ignore[override]
        return self._verifies

    @property
    def may_spare_spark(self) -> bool:
        return True

    def likely_spares_spark(self, *, is_spark_here: bool) -> bool:
        return all(map(looks_plain, self.add_constraints.values()))
