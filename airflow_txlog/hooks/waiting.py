"""Waiting for a table: the author's arguments as a condition, and the one question that sensors and triggers ask.

A condition travels between processes as a small JSON object, so that a deferred task and a restarted triggerer wait for
what the author wrote. The invariant: `ask_table` is the only caller of the engine's `ask`; a sensor that pokes and a
trigger get their answers here. Importing this module imports neither the engine nor the contract: a triggerer imports
it in its event loop, which waits meanwhile.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_txlog.errors import InvalidInput

if TYPE_CHECKING:
    from airflow_txlog.engine.table.changes.conditions import Condition, ConditionAnswer
    from airflow_txlog.engine.table.changes.following import Position
    from airflow_txlog.hooks.txlog import TxlogHook

RANGES = ("version", "newer_than", "since")


def condition_of(
    *,
    version: Any = None,
    newer_than: Any = None,
    since: Any = None,
    operation: Any = None,
    committed_by_dag: Any = None,
    committed_by_task: Any = None,
    partition: Any = None,
    data_changes_only: bool | None = None,
) -> dict[str, Any]:
    """The condition as JSON: what is given, in one form each. Raises InvalidInput naming the argument.

    `newer_than`: a version, the text of one, an XCom of an operator or sensor, or "None" where none was seen.
    """
    found = {
        "version": None if version is None else version_number("version", version),
        "newer_than": None if newer_than is None else _position("newer_than", newer_than),
        "since": None if since is None else _moment("since", since).isoformat(),
        "operation": _texts("operation", operation),
        "committed_by_dag": _text("committed_by_dag", committed_by_dag),
        "committed_by_task": _text("committed_by_task", committed_by_task),
        "partition": _partition(partition),
        "data_changes_only": data_changes_only,
    }
    given = [name for name in RANGES if found[name] is not None]
    if len(given) > 1:
        raise InvalidInput(f"At most one of version, newer_than and since can be waited for; found {given}.")
    condition = {name: value for name, value in found.items() if value is not None}
    if not condition.keys() - {"data_changes_only"}:
        raise InvalidInput(
            "Nothing to wait for: give one of version, newer_than and since, or operation, committed_by_dag, "
            "committed_by_task or partition."
        )
    return condition


def version_number(name: str, value: Any) -> int:
    """A version from a number or its text. Raises InvalidInput."""
    try:
        # `int` would make version 7 of 7.5, and version 1 of True.
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise TypeError
        return int(value)
    except (TypeError, ValueError) as e:
        raise InvalidInput(f"{name} must be a version number; found {value!r}.") from e


def _position(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        # An XCom: of a sensor with a mark; of a task whose work was done already without the exact version.
        numbers = (value.get(key) for key in ("version", "at_or_before", "read_version"))
        number = next((number for number in numbers if number is not None), None)
        mark = value.get("commit_mark")
        return {"version": version_number(name, number)} | ({} if mark is None else {"commit_mark": str(mark)})
    return {"version": -1 if value == "None" else version_number(name, value)}


def _moment(name: str, value: Any) -> dt.datetime:
    try:
        moment = value if isinstance(value, dt.datetime) else dt.datetime.fromisoformat(str(value))
    except ValueError as e:
        raise InvalidInput(f"{name} must be a time in ISO 8601; found {value!r}.") from e
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)


def _texts(name: str, value: Any) -> list[str] | None:
    texts = [value] if isinstance(value, str) else value
    if texts is None:
        return None
    if not isinstance(texts, Sequence) or not texts or not all(isinstance(each, str) and each for each in texts):
        raise InvalidInput(f'{name} must be one or more texts, such as "MERGE" or ["MERGE", "WRITE"].')
    return list(texts)


def _text(name: str, value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidInput(f"{name} must be a text.")
    return value


def _partition(value: Any) -> dict[str, str | None] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or not value:
        raise InvalidInput('partition must be a mapping of partition columns to values, such as {"day": "{{ ds }}"}.')
    return {str(name): None if item is None else _value_text(name, item) for name, item in value.items()}


def _value_text(name: str, value: Any) -> str:
    if isinstance(value, Mapping | list | tuple | set | bytes | bytearray):
        raise InvalidInput(f"partition.{name} must be one value of the column; found {type(value).__name__}.")
    # As the log writes it: a boolean in lower case, a date in ISO 8601.
    return json.dumps(value) if isinstance(value, bool) else str(value)


# --- the question ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WaitAnswer:
    """The answer to one condition."""

    reached: bool
    checked: dict[str, Any]
    """How far the log was looked at, as JSON: give it back when the same condition is asked again."""
    report: dict[str, Any]
    """What the sensor returns, and what an event carries."""


def ask_table(
    hook: TxlogHook, table: str, questions: Sequence[tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]]
) -> list[WaitAnswer | Exception]:
    """One look at the table's log, and the answer to each question: a condition, and how far it was checked before.

    No condition (None) is never reached; its answer says where the table stands. An error of one question is its
    answer. Raises what the look itself raises: CorruptTable, what the store and the connection raise.
    """
    from airflow_txlog.engine.table.changes.conditions import ask

    follower = hook.follower(table)
    follower.look()
    uri = hook.table_uri(table)
    found: list[WaitAnswer | Exception] = []
    for condition, checked in questions:
        try:
            if condition is None:
                found.append(WaitAnswer(False, position_json(follower.position), {}))
                continue
            before = None if checked is None else position_of(checked)
            answer = ask(engine_condition(condition), follower, hook.table(table).snapshot, before)
            found.append(WaitAnswer(answer.reached, position_json(answer.position), _report(uri, answer)))
        except Exception as error:
            found.append(error)
    return found


def engine_condition(condition: Mapping[str, Any]) -> Condition:
    """The engine's condition from the JSON of `condition_of`."""
    from airflow_txlog.contract.job import ANNOTATION_TAG_PREFIX
    from airflow_txlog.engine.table.changes.conditions import Condition

    newer_than, since = condition.get("newer_than"), condition.get("since")
    by = {"dag_id": condition.get("committed_by_dag"), "task_id": condition.get("committed_by_task")}
    return Condition(
        version=condition.get("version"),
        newer_than=None if newer_than is None else position_of(newer_than),
        since_ms=None if since is None else int(dt.datetime.fromisoformat(since).timestamp() * 1000),
        operations=frozenset(condition.get("operation") or ()),
        tags={f"{ANNOTATION_TAG_PREFIX}{name}": text for name, text in by.items() if text is not None},
        partition=condition.get("partition") or {},
        data_changes_only=condition.get("data_changes_only"),
    )


def position_of(data: Mapping[str, Any]) -> Position:
    """The position from its JSON."""
    from airflow_txlog.engine.table.changes.following import Position

    return Position(version=int(data["version"]), commit_mark=data.get("commit_mark"))


def position_json(position: Position) -> dict[str, Any]:
    """`{"version", "commit_mark"}`."""
    return {"version": position.version, "commit_mark": position.commit_mark}


def _report(uri: str, answer: ConditionAnswer) -> dict[str, Any]:
    match = answer.match
    return {
        "table_uri": uri,
        **position_json(answer.position),
        "from_version": answer.after,
        "matched_version": None if match is None else match.version,
        "operation": None if match is None else match.operation,
        "timestamp_ms": None if match is None else match.timestamp_ms,
        "recreated": answer.is_another_log,
    }
