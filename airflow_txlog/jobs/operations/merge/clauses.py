"""The clauses of a MERGE, or the one of an UPDATE, numbered in the author's order.

For each pair of rows that ON matches, the first WHEN MATCHED clause whose condition is TRUE acts; for each source row
that matches nothing, the first WHEN NOT MATCHED clause; for each target row that no source row matches, the first WHEN
NOT MATCHED BY SOURCE clause. The number travels with the row. Source: delta-spark, MergeIntoCommand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Clause:
    """One clause, by its number in the author's list.

    `values`: SQL for each assigned column of the target, by the table's spelling, cast to its type; empty for DELETE.
    """

    number: int
    action: str
    condition: str | None
    values: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Clauses:
    """All clauses of one merge, checked."""

    matched: tuple[Clause, ...]
    not_matched: tuple[Clause, ...]
    not_matched_by_source: tuple[Clause, ...] = ()

    @property
    def on_target(self) -> tuple[Clause, ...]:
        """The clauses that change or delete rows of the target."""
        return (*self.matched, *self.not_matched_by_source)

    @property
    def updates(self) -> tuple[Clause, ...]:
        return tuple(clause for clause in self.on_target if clause.action == "update")

    @property
    def tolerates_many_matches(self) -> bool:
        """A single unconditional WHEN MATCHED DELETE: it does not matter how many source rows say so."""
        return len(self.matched) == 1 and self.matched[0].action == "delete" and self.matched[0].condition is None

    def conditions_on_target(self) -> list[str]:
        """The conditions that are evaluated where a target row is seen."""
        return [clause.condition for clause in self.on_target if clause.condition is not None]

    def parameters(self) -> dict[str, str]:
        """operationParameters, as delta-spark spells them."""
        return {
            "matchedPredicates": _described(self.matched),
            "notMatchedPredicates": _described(self.not_matched),
            "notMatchedBySourcePredicates": _described(self.not_matched_by_source),
        }


def _described(clauses: Sequence[Clause]) -> str:
    entries = []
    for clause in clauses:
        described = {"actionType": clause.action}
        if clause.condition is not None:
            described = {"predicate": clause.condition, **described}
        entries.append(described)
    return json.dumps(entries, ensure_ascii=False)
