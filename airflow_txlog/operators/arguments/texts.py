"""Checks of an author's SQL texts by their tokens alone, when the DAG is parsed, without a table or Spark.

They refuse only texts that are wrong for every table. The job checks a text that cannot be cut into tokens with
certainty, and all that needs a grammar or a schema. Invariant: an error names arguments and parameters, never a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from airflow_txlog.contract.operations import Operation, Sees
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.operators.arguments.given import has_template, is_sql_file
from airflow_txlog.sql.certain_mistakes import parameters_of, why_no_expression, why_not_cut
from airflow_txlog.sql.lexer import Token
from airflow_txlog.sql.sql_text import quoted_hint, sql_text


def check_texts(operation: Operation) -> None:
    """Raise InvalidJobSpec for a text that cannot be an expression, and for parameters that do not fit the texts."""
    values = operation.bound_parameters
    texts = list(operation.texts())
    used: set[str] = set()
    for name, text, sees in texts:
        if has_template(text) or is_sql_file(text):
            return
        mistake = _mistake(text, values, is_query=sees is Sees.VIEWS)
        if mistake is not None:
            raise InvalidJobSpec(f"{name} {mistake} Nothing was read.", argument=f"arguments.{name}")
        used |= {token.text for token in sql_text(text).tokens if token.kind == "parameter"}
    spare = sorted(values.keys() - used)
    if spare and all(sql_text(text).tokens for _, text, _ in texts):
        raise InvalidJobSpec(
            f"parameters has a value for {spare[0]}, and no SQL of this operator has :{spare[0]}."
            f"{quoted_hint((text for _, text, _ in texts), spare[0])} A misspelt parameter is refused rather than "
            "ignored. Nothing was read.",
            argument="arguments.parameters",
        )


def check_time_zone(name: str) -> None:
    """Raise InvalidJobSpec for a name of the form Area/City that no time zone has. Spark knows the other forms."""
    if isinstance(name, str) and "/" in name:
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError):
            raise InvalidJobSpec(
                f"time_zone: there is no time zone {name!r}. Write one such as Europe/Berlin.", argument="time_zone"
            ) from None


def _mistake(text: str, values: Mapping[str, Any], *, is_query: bool) -> str | None:
    why = why_not_cut(text) if is_query else why_no_expression(text)
    if why is not None:
        return f"is no {'query' if is_query else 'SQL expression'}: {why}."
    tokens = sql_text(text).tokens
    for name in dict.fromkeys(parameters_of(tokens)):
        if name not in values:
            given = f"it has {', '.join(sorted(values))}" if values else "it has none"
            return f"has the parameter :{name}, and parameters has no value for it ({given})."
    listed = next(_lists_in_in(tokens, values), None)
    if listed is not None:
        negation, name = listed
        return (
            f"has {negation}IN (:{name}), and the value of {name} is a list: to SQL that is one value, an array. Write "
            f"{negation}array_contains(:{name}, column), or, where the column itself holds arrays, column "
            f"{'<>' if negation else '='} :{name}."
        )
    return None


def _lists_in_in(tokens: Sequence[Token], values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each parameter that is a list and a whole element of an IN, with the NOT before the IN."""
    words = [token.text.upper() if token.kind == "word" else "" for token in tokens]
    for at, word in enumerate(words):
        if word != "IN":
            continue
        negation = "NOT " if at and words[at - 1] == "NOT" else ""
        following = tokens[at + 1] if at + 1 < len(tokens) else Token("symbol", "")
        if following.kind == "parameter" and isinstance(values.get(following.text), list):
            yield negation, following.text
        if following != Token("symbol", "("):
            continue
        depth = 0
        for here in range(at + 1, len(tokens)):
            token = tokens[here]
            if token.kind == "symbol" and token.text in "()":
                depth += 1 if token.text == "(" else -1
            if depth == 0:
                break
            beside = {tokens[here - 1].text, tokens[here + 1].text if here + 1 < len(tokens) else ""}
            is_element = depth == 1 and token.kind == "parameter" and beside <= {"(", ",", ")"}
            if is_element and isinstance(values.get(token.text), list):
                yield negation, token.text
