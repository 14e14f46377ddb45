"""DeltaMergeOperator: update, delete and insert rows of a table by the rows of a source; and its clauses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from airflow_txlog.contract.operations import Merge, Operation
from airflow_txlog.operators.arguments.construction import starts_at_caller
from airflow_txlog.operators.arguments.given import expression_map
from airflow_txlog.operators.checked import SourceOperator


@starts_at_caller
def when_matched_update(set: Literal["*"] | Mapping[str, str] = "*", *, condition: str | None = None) -> dict[str, Any]:
    """Update a matched row: every column from the source ("*"), or the named columns from SQL expressions."""
    return {
        "when": "matched",
        "then": "update",
        "condition": condition,
        "set": set if set == "*" else expression_map("when_matched_update: set", set),
    }


def when_matched_delete(*, condition: str | None = None) -> dict[str, Any]:
    """Delete a matched row."""
    return {"when": "matched", "then": "delete", "condition": condition}


@starts_at_caller
def when_not_matched_insert(
    values: Literal["*"] | Mapping[str, str] = "*", *, condition: str | None = None
) -> dict[str, Any]:
    """Insert a source row that matches no row: every column ("*"), or the named columns from SQL expressions."""
    return {
        "when": "not_matched",
        "then": "insert",
        "condition": condition,
        "values": values if values == "*" else expression_map("when_not_matched_insert: values", values),
    }


@starts_at_caller
def when_not_matched_by_source_update(set: Mapping[str, str], *, condition: str | None = None) -> dict[str, Any]:
    """Update a target row that no source row matches: the named columns from SQL expressions over the target alone."""
    return {
        "when": "not_matched_by_source",
        "then": "update",
        "condition": condition,
        "set": expression_map("when_not_matched_by_source_update: set", set),
    }


def when_not_matched_by_source_delete(*, condition: str | None = None) -> dict[str, Any]:
    """Delete a target row that no source row matches. The condition sees the target alone."""
    return {"when": "not_matched_by_source", "then": "delete", "condition": condition}


class DeltaMergeOperator(SourceOperator):
    """Merge the rows of a source into a Delta table, in one commit.

    For each row, the first clause whose condition is true applies. The task fails with AmbiguousMerge if two source
    rows would change the same target row.

    :param source: the rows: `files(…)`, `table(…)` or `query(…)`. (templated)
    :param on: the condition that matches a target row `t` with a source row `s`, as Spark SQL. (templated)
    :param clauses: in order: `when_matched_update(…)`, `when_matched_delete(…)`, `when_not_matched_insert(…)`,
        `when_not_matched_by_source_update(…)`, `when_not_matched_by_source_delete(…)`. (templated)
    :param target_alias: the name of the table in the SQL texts.
    :param source_alias: the name of the source in them.
    :param schema_evolution: add source columns that are missing in the table and that a clause assigns (`"*"`: all of
        them), and widen types, as in DeltaWriteOperator. `"*"` then does not change columns that are missing in the
        source.
    :param require_match: fail with MatchNotFound, without a change, if a row of the source matches no row of the table.
        Cannot be combined with a clause that inserts.

    Example: `DeltaMergeOperator(task_id="correct", table_uri="/lake/users", source=files("/in/corrections"),
    on="t.user_id = s.user_id", clauses=[when_matched_update(), when_not_matched_insert()])`. Other arguments:
    `DataChangingOperator` and `TxlogOperator`.
    """

    operation: ClassVar[type[Operation]] = Merge
    template_fields: Sequence[str] = (*SourceOperator.template_fields, "source", "on", "clauses")

    def __init__(
        self,
        *,
        source: Mapping[str, Any],
        on: str,
        clauses: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        target_alias: str = "t",
        source_alias: str = "s",
        schema_evolution: bool = False,
        require_match: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.on = on
        self.clauses = clauses
        self.target_alias = target_alias
        self.source_alias = source_alias
        self.schema_evolution = schema_evolution
        self.require_match = require_match
        self.check_literals()
