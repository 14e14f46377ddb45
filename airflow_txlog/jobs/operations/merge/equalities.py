"""The equalities that ON is a conjunction of, read out of its text.

The invariant: what is given as an equality is one to Spark, whatever the precedences and names; where that is not
certain, it is not given. Source: soundness A14.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from airflow_txlog.sql.expression import Call, Expression, Name, operands_of
from airflow_txlog.sql.sql_text import sql_text

# A bare column of one of these names cannot be distinguished from the ends of a CASE.
_ENDS_OF_CASE = {"case", "end"}


@dataclass(frozen=True, kw_only=True)
class Equality:
    """`column = sql` or, null-safe, `column <=> sql`: a column of the target, and the SQL on the other side."""

    column: str
    sql: str
    null_safe: bool


def scoping_equalities(
    on: str,
    *,
    target_alias: str,
    columns: Collection[str],
    target_columns: Collection[str],
    source_columns: Collection[str],
) -> list[Equality]:
    """The conjuncts of a condition that compare one of `columns`, bare, for equality; with what, Spark judges.

    Empty where the text or a name in it may mean something else.
    """
    found = conjuncts_as_equalities(
        on,
        target_alias=target_alias,
        columns=columns,
        target_columns=target_columns,
        source_columns=source_columns,
    )
    return [equality for equality in found if equality is not None]


def conjuncts_as_equalities(
    on: str,
    *,
    target_alias: str,
    columns: Collection[str],
    target_columns: Collection[str],
    source_columns: Collection[str],
) -> list[Equality | None]:
    """All conjuncts of a condition in their order, None for one that is no such equality of one of `columns`.

    Empty where the text or a name in it may mean something else.
    """
    others = {name.lower() for name in source_columns}
    every = others | {name.lower() for name in target_columns}
    text = sql_text(on)
    # Spark takes no text that ends in a backslash.
    if text.expression is None or on.endswith("\\") or (_ENDS_OF_CASE | {target_alias.lower()}) & every:
        return []
    named = {name.lower(): name for name in columns}

    def target_column(side: Expression) -> str | None:
        parts = [part.text.lower() for part in side.parts] if isinstance(side, Name) and side.is_certain else []
        if len(parts) == 2 and parts[0] == target_alias.lower():
            return named.get(parts[1])
        return named.get(parts[0]) if len(parts) == 1 and parts[0] not in others else None

    def equality(conjunct: Expression) -> Equality | None:
        if not isinstance(conjunct, Call) or conjunct.operator not in ("=", "<=>"):
            return None
        for one, other in (conjunct.operands, conjunct.operands[::-1]):
            column = target_column(one)
            if column is not None:
                return Equality(column=column, sql=text.part(other.span), null_safe=conjunct.operator == "<=>")
        return None

    return [equality(conjunct) for conjunct in operands_of("and", text.expression)]
