"""The forms in which a DAG author may write the arguments of an operator, and personal data among them.

A single column, clause or path means a list of one, and a number or a boolean among options means its text. Any other
form is refused, and the error names a valid one. The records alone decide whether the result is valid. Invariants: an
error names the argument and never a value; every text made of a `Hidden` value is asterisks, and only `revealed`
returns the value.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import PurePath
from typing import Any, get_args

from airflow_txlog.contract.operations import FORMATS, AnySource, TableView
from airflow_txlog.contract.operations.fields import (
    Assignments,
    Clauses,
    ColumnNames,
    Conditions,
    Location,
    Names,
    SomeColumnNames,
    TextMap,
)
from airflow_txlog.contract.parameters import encode_parameter, encode_parameters
from airflow_txlog.contract.wording import handle_of
from airflow_txlog.errors import InvalidJobSpec


class Hidden:
    """A rendered value that is personal data.

    Airflow stores the rendered arguments of each try in its database, for the UI, as `serialize` returns them.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "***"

    serialize = __repr__


def hidden(name: str, value: Any) -> Any:
    """Return the rendered `parameters`, `keys`, `subjects` or `requests` without their values.

    A source of keys or subjects names a place and stays as it is.
    """
    if isinstance(value, Mapping):
        if name in ("keys", "subjects"):
            return value
        inner = "subjects" if name == "requests" else None
        return {key: hidden(inner or key, item) for key, item in value.items()}
    return value if isinstance(value, Hidden) else Hidden(value)


def revealed(value: Any) -> Any:
    """Return the value given to `hidden`."""
    if isinstance(value, Mapping):
        return {name: revealed(item) for name, item in value.items()}
    # Also within a list: a text that the keys have too was hidden as if it were them.
    if isinstance(value, list | tuple):
        return [revealed(item) for item in value]
    return revealed(value.value) if isinstance(value, Hidden) else value


def without_sources(name: str, value: Any) -> Any:
    """Return the rendered value of an argument without the sources of `requests`, which name places."""
    if name == "requests" and isinstance(value, Mapping):
        return {key: item for key, item in value.items() if not isinstance(item, Mapping)}
    return value


def texts_of(value: Any) -> list[Any]:
    """Return the texts among values, at any depth, that Airflow can hide in logs: those of five characters and more."""
    if isinstance(value, str):
        return [value] if len(value) >= 5 else []
    if isinstance(value, Mapping):
        value = list(value.values())
    return [text for item in value for text in texts_of(item)] if isinstance(value, list | tuple) else []


_TEMPLATE_MARKS = ("{{", "{%", "{#")


def has_template(value: Any) -> bool:
    """Return whether a part of the value is known only when the task runs: a template, or another task's XCom."""
    if isinstance(value, str):
        return any(mark in value for mark in _TEMPLATE_MARKS)
    if isinstance(value, Mapping):
        return any(map(has_template, value.values()))
    if isinstance(value, list | tuple | set):
        return any(map(has_template, value))
    return is_output(value)


def is_sql_file(value: Any) -> bool:
    """Return whether a SQL text is the name of a template file instead: one word, `x.sql`."""
    return isinstance(value, str) and value.endswith(".sql") and len(value.split()) == 1


def is_output(value: Any) -> bool:
    """Return whether the value is another task's output, which Airflow resolves when the task runs (XComArg)."""
    return not isinstance(value, PurePath) and hasattr(value, "resolve")


def path_text(value: Any) -> Any:
    """Return a `pathlib` path as its text, and any other value unchanged."""
    return str(value) if isinstance(value, PurePath) else value


def version_number(value: Any) -> Any:
    """Return the text of a version, as a template renders it, as its number, and any other value unchanged."""
    return int(value) if isinstance(value, str) and value.strip().isdecimal() else value


def moment_text(value: Any) -> Any:
    """Return a datetime, which a template in a DAG of native objects renders to, as its text; others unchanged."""
    return value.isoformat() if isinstance(value, dt.datetime) else value


def moment_of(name: str, value: Any) -> dt.datetime:
    """Return a datetime, or one in ISO 8601, in UTC if it names no zone. Raises InvalidJobSpec."""
    try:
        moment = dt.datetime.fromisoformat(str(moment_text(value)))
    except ValueError as error:
        raise InvalidJobSpec(
            f"{name} must be a datetime or a text in ISO 8601. Nothing was read.", argument=name
        ) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)


def column_list(name: str, value: Any) -> list[str] | None:
    """Return column names from a list, or from the text of one name."""
    if value is None:
        return None
    if isinstance(value, str):
        if "," in value:
            raise _refused(name, 'one text with a comma in it; write a list of names, such as ["day", "hour"]')
        return [value]
    if not isinstance(value, Sequence):
        raise _refused(name, f"{_kind(value)}; write a list of column names")
    return list(value)


def place_list(name: str, value: Any) -> list[str]:
    """Return tables or folders by path, URI or name, from a list of at least one, or from the text of one."""
    value = path_text(value)
    places = [value] if isinstance(value, str) else [*map(path_text, value)] if isinstance(value, Sequence) else value
    if not isinstance(places, Sequence) or not places or not all(isinstance(each, str) for each in places):
        found = f"of type {type(value).__name__}" if places or not isinstance(places, Sequence) else "empty"
        raise _refused(name, f"{found}; write the name of a table or a folder, or a list of names")
    return list(places)


def text_map(name: str, value: Any) -> Any:
    """Return settings as texts: `True` becomes "true". Another task's output stays as it is."""
    if value is None:
        return {}
    if is_output(value):
        return value
    if not isinstance(value, Mapping):
        raise _refused(name, f"{_kind(value)}; write a mapping of names to values")
    return {str(key): _setting(f"{name}.{key}", item) for key, item in value.items()}


def _setting(name: str, value: Any) -> Any:
    if isinstance(value, str) or is_output(value):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise _refused(name, f"{_kind(value)}; write a text, a number or a boolean")


def expression_map(name: str, value: Any) -> Any:
    """Return SQL expressions by column. A template or another task's output stays as it is."""
    if is_output(value) or (isinstance(value, str) and has_template(value)):
        return value
    if not isinstance(value, Mapping):
        raise _refused(name, f'{_kind(value)}; write a mapping of columns to SQL, such as {{"email": "NULL"}}')
    for column, expression in value.items():
        if not isinstance(expression, str) and not is_output(expression):
            raise _refused(
                f"{name}.{column}",
                f'{_kind(expression)}; write SQL as a text, such as "NULL" or "1", or ":name" with the value in '
                "parameters",
            )
    return dict(value)


def condition_map(name: str, value: Any) -> Any:
    """Return SQL conditions by name; none without a value. A template or another task's output stays as it is."""
    if value is None:
        return {}
    if is_output(value) or (isinstance(value, str) and has_template(value)):
        return value
    if not isinstance(value, Mapping):
        raise _refused(
            name, f'{_kind(value)}; write a mapping of names to SQL conditions, such as {{"positive": "amount > 0"}}'
        )
    return dict(value)


def clause_list(name: str, value: Any) -> list[Any]:
    """Return the clauses of a merge from a list, or from one clause."""
    if isinstance(value, Mapping):
        return [dict(value)]
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _refused(name, f"{_kind(value)}; write a list, such as [when_matched_update()]")
    for index, clause in enumerate(value):
        if not isinstance(clause, Mapping):
            called = (
                f": call it, {clause.__name__}(…)" if callable(clause) else "; write when_matched_update() or another"
            )
            raise _refused(f"{name}[{index}]", f"{_kind(clause)}{called}")
    return [dict(clause) for clause in value]


def source_of(name: str, value: Any) -> dict[str, Any]:
    """Return a source as a record reads it, from a dict of `operators.sources` or of the author."""
    value = path_text(value)
    if isinstance(value, str):
        mend = f'files(…, format="{_format_of(value)}") for files, table(…) for a Delta table, query(…) for SQL'
        raise _refused(name, f"a text; write {mend}, from airflow_txlog.operators")
    if not isinstance(value, Mapping):
        raise _refused(name, f"{_kind(value)}; make one by airflow_txlog.operators")
    source = dict(value)
    if isinstance(source.get("views"), Mapping):
        source["views"] = {key: source_of(f"{name}.views.{key}", view) for key, view in source["views"].items()}
    if "path" in source:
        path = path_text(source["path"])
        source["path"] = [path_text(item) for item in path] if isinstance(path, list | tuple) else path
    if "table" in source:
        source["table"] = path_text(source["table"])
    if source.get("staged") is not None:
        # A task that had nothing to stage leaves the table as it is.
        handle = handle_of(f"{name}.staged", source["staged"])
        source["staged"] = None if handle is None else {part: handle[part] for part in ("id", "digest")}
    if "options" in source:
        source["options"] = text_map(f"{name}.options", source["options"])
    return source


def keys_of(name: str, column: str | None, keys: Any, source_column: str | None) -> dict[str, Any]:
    """Return keys of a column as a record reads them, from the argument `name`: a list of values, or a source."""
    keys = revealed(keys)
    if isinstance(keys, Mapping):
        return {"column": column, "source": source_of(name, keys), "source_column": source_column}
    if isinstance(keys, str) or not isinstance(keys, Sequence):
        raise InvalidJobSpec(
            f"{name} must be a list of values or a source; found {type(keys).__name__}. A template gives a list where "
            'it is one expression, such as "{{ params.ids }}", and render_template_as_native_obj=True; so does another '
            "task's output. Nothing was read.",
            argument=name,
        )
    return {"column": column, "values": encode_parameter(keys, name)}


def _format_of(path: str) -> str:
    ending = path.rstrip("/").rsplit(".", 1)[-1].lower()
    return ending if ending in FORMATS else "parquet"


# The types of a record's fields, and the readers of the forms in which an author may write them.
_FORMS: tuple[tuple[Any, Callable[[str, Any], Any]], ...] = (
    (AnySource, source_of),
    (TableView, source_of),
    (Clauses, clause_list),
    (Assignments, expression_map),
    (Conditions, condition_map),
    (ColumnNames, column_list),
    (SomeColumnNames, column_list),
    (Names, column_list),
    (TextMap, text_map),
    (Location, lambda name, value: path_text(value)),
)


def as_record_reads(kind: Any, name: str, value: Any) -> Any:
    """Return the value of an argument as a field of the type `kind` reads it. Raises InvalidJobSpec."""
    # An optional one is a union of its type and None.
    kinds = (kind, *get_args(kind))
    form = next((form for type_, form in _FORMS if type_ in kinds), None)
    is_left_out = value is None and kind is not Clauses and Clauses in kinds
    return value if form is None or is_left_out else form(name, value)


def parameter_map(value: Any, nullable: Collection[str] = ()) -> dict[str, Any] | None:
    """Return the values of `:name` as a record reads them. Only a parameter named in `nullable` may be None."""
    value = revealed(value)
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise _refused("parameters", f"{_kind(value)}; write a mapping of names to values")
    for name, item in value.items():
        if name not in nullable and (item is None or (isinstance(item, list | tuple) and None in item)):
            raise InvalidJobSpec(null_refusal(f"parameters.{name}", "is None"), argument="parameters")
    return encode_parameters(value)


def null_refusal(place: str, found: str, undefined: str | None = None) -> str:
    """Return the message that refuses None in a place that needs a value.

    `undefined`: the sentence on a name in its template that is not defined.
    """
    name = place.split("[")[0]
    is_parameter = name.startswith("parameters.")
    if undefined is not None:
        return f"{place} {found}: {undefined} Nothing was read."
    if name.endswith(("_uri", "path")) and not is_parameter:
        return f"{place} {found}, and a place is needed. An XCom that was never pushed is None. Nothing was read."
    name = name.removeprefix("parameters.")
    allow = f' Where null is meant, allow it by nullable_parameters=["{name}"].' if is_parameter else ""
    return (
        f"{place} {found}, and a value is needed: a comparison with null is true of no row. Look at its origin; "
        f"an XCom that was never pushed is None. Nothing was read.{allow}"
    )


def _kind(value: Any) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def _refused(name: str, found: str) -> InvalidJobSpec:
    return InvalidJobSpec(f"{name} is {found}. Nothing was read.", argument=name)
