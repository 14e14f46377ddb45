"""Waiting for a table: the author's arguments as a condition, and the answer to one.

A condition travels between processes as a small JSON object, so that a deferred task and a restarted triggerer wait for
the same. Invariant: this module imports neither the engine nor the contract, because a triggerer imports it in its
event loop, which it would block. `hooks/followed_table.py` answers.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_txlog.errors import InvalidInput

RANGES = ("version", "newer_than", "since")
# The operations that this package, Spark, Databricks, Trino, Flink, Delta Kernel and delta-rs write into a history.
# A name that resembles none of them may be another writer's.
_OPERATIONS = (
    *("WRITE", "MERGE", "UPDATE", "DELETE", "TRUNCATE", "STREAMING UPDATE", "COPY INTO", "INSERT", "MANUAL UPDATE"),
    *("CREATE TABLE", "CREATE TABLE AS SELECT", "CREATE OR REPLACE TABLE", "CREATE OR REPLACE TABLE AS SELECT"),
    *("REPLACE TABLE", "REPLACE TABLE AS SELECT", "REPLACE COLUMNS", "DROP TABLE", "CLONE", "CONVERT", "FSCK"),
    *("OPTIMIZE", "REORG", "VACUUM START", "VACUUM END", "RESTORE", "ROLLBACK", "ERASE", "COMPUTE STATS"),
    *("SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "ADD CONSTRAINT", "DROP CONSTRAINT", "CLUSTER BY", "SYNC IDENTITY"),
    *("ADD COLUMN", "ADD COLUMNS", "CHANGE COLUMN", "CHANGE COLUMNS", "RENAME COLUMN", "DROP COLUMN", "DROP COLUMNS"),
    *("UPDATE SCHEMA", "UPGRADE PROTOCOL", "ADD FEATURE", "DROP FEATURE", "ALTER TABLE", "DOMAIN METADATA CLEANUP"),
    *("ROW TRACKING BACKFILL", "ROW TRACKING UNBACKFILL", "REMOVE COLUMN MAPPING", "FSCK REPAIR", "RESERVE IDENTITY"),
    *("RESET WATERMARK", "UPDATE COLUMN METADATA", "UPDATE FIELD METADATA", "UPDATE TABLE METADATA", "REFRESH"),
)
# Names of operators, modes and methods that no history has.
_WRITTEN_AS = {"UPSERT": "MERGE", "APPEND": "WRITE", "OVERWRITE": "WRITE"}
# The least likeness of a misspelt name.
_LIKE = 0.85


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
    """Return the condition as JSON, each argument in one form. Raises InvalidInput naming the argument.

    `newer_than`: a version, the text of one, an XCom of an operator or sensor, or "None" if none was seen.
    """
    found = {
        "version": None if version is None else _from_zero("version", version),
        "newer_than": None if newer_than is None else _position("newer_than", newer_than),
        "since": None if since is None else _moment("since", since).isoformat(),
        "operation": _operations(operation),
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
    for name, value in condition.items():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(f"{name} has half of a character in it, a lone surrogate, which no log has.") from error
    return condition


def version_number(name: str, value: Any) -> int:
    """Return a version from a number or its text. Raises InvalidInput."""
    try:
        # `int` would make version 7 of 7.5, and version 1 of True.
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise TypeError
        return int(value)
    except (TypeError, ValueError) as e:
        raise InvalidInput(f"{name} must be a version number; found {value!r}.") from e


def _from_zero(name: str, value: Any) -> int:
    number = version_number(name, value)
    if number < 0:
        raise InvalidInput(f"{name} must be a version, a number from 0 on; found {number}.")
    return number


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


def _operations(value: Any) -> list[str] | None:
    from difflib import get_close_matches  # a trigger imports this module

    texts = _texts("operation", value)
    for text in texts or ():
        written = _WRITTEN_AS.get(text.upper())
        near = [written] if written else get_close_matches(text.upper(), _OPERATIONS, n=1, cutoff=_LIKE)
        if near and text.upper() not in _OPERATIONS:
            raise InvalidInput(
                f"operation must be a name in a table's history; found {text!r}, which no known writer uses. Did you "
                f"mean {near[0]!r}? Nothing was read."
            )
    return texts


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


@dataclass(frozen=True, slots=True)
class WaitAnswer:
    """The answer to one condition."""

    reached: bool
    checked: dict[str, Any]
    """The position up to which the log was checked, as JSON: pass it to the next check of the same condition."""
    report: dict[str, Any]
    """The sensor's result, and the payload of an event."""
