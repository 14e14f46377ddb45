"""The clauses of a MERGE, as its author writes them: when one acts, and what it then does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from airflow_txlog.contract.operations.fields import ClauseAssignments, ClauseText
from airflow_txlog.contract.operations.reading import Part
from airflow_txlog.contract.operations.refusals import want


class UpdateClause(Part, frozen=True, kw_only=True):
    """Gives the row new values: `"*"` is every column from the source."""

    when: Literal["matched", "not_matched_by_source"]
    then: Literal["update"] = "update"
    condition: ClauseText | None = None
    set: ClauseAssignments

    @classmethod
    def fits(cls, given: Mapping[str, Any]) -> bool:
        return given.get("then") == "update" and given.get("when") in ("matched", "not_matched_by_source")

    def check(self, place: str) -> None:
        """Without a source row there is nothing that * could mean."""
        possible = self.set != "*" or self.when == "matched"
        want(f"{place}.set", possible, "a mapping of columns to SQL", self.set)


class DeleteClause(Part, frozen=True, kw_only=True):
    """Removes the row."""

    when: Literal["matched", "not_matched_by_source"]
    then: Literal["delete"] = "delete"
    condition: ClauseText | None = None

    @classmethod
    def fits(cls, given: Mapping[str, Any]) -> bool:
        return given.get("then") == "delete" and given.get("when") in ("matched", "not_matched_by_source")


class InsertClause(Part, frozen=True, kw_only=True):
    """Makes a row of the source a row of the table: `"*"` is every column."""

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
