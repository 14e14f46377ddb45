"""What each operation of a job is: its arguments with their defaults and checks, and the rows that its metrics count.

The shapes are described at `contract.JobSpec`. Invariants: what passes here is JSON-plain, and every argument of the
operation is present; a new operation is one record of `OPERATIONS`. Standard library only.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.parameters import is_parameter

_REQUIRED = object()

WRITE_MODES = ("append", "overwrite", "overwrite_partitions")


def is_int(value: Any) -> bool:
    """An integer that is no boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_text(value: Any) -> bool:
    """A text with something in it."""
    return isinstance(value, str) and value.strip() != ""


def is_text_map(value: Any) -> bool:
    """A dict of texts to texts."""
    return isinstance(value, dict) and all(isinstance(k, str) and isinstance(v, str) for k, v in value.items())


# A path is a URI only where a slash follows the scheme: `a:b` is a file name like any other.
_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")


def is_absolute(location: str) -> bool:
    """Whether a text is an absolute path or a URI, and so means the same in every process.

    `~` and a relative path mean another place in a worker, in its child process and on a cluster.
    """
    return _ABSOLUTE.match(location) is not None


def _location(name: str, value: Any) -> None:
    _text(name, value)
    want(name, is_absolute(value), "an absolute path or a URI, since a relative one depends on the worker", value)


def _location_or_null(name: str, value: Any) -> None:
    if value is not None:
        _location(name, value)


def _text(name: str, value: Any) -> None:
    want(name, is_text(value), "a non-empty text", value)


def _text_or_null(name: str, value: Any) -> None:
    want(name, value is None or is_text(value), "a non-empty text or null", value)


def _boolean(name: str, value: Any) -> None:
    want(name, isinstance(value, bool), "true or false", value)


def _mode(name: str, value: Any) -> None:
    want(name, value in WRITE_MODES, " or ".join(f'"{mode}"' for mode in WRITE_MODES), value)


def _on_conflict(name: str, value: Any) -> None:
    want(name, value in ("replan", "fail"), '"replan" or "fail"', value)


def _version_or_null(name: str, value: Any) -> None:
    want(name, value is None or (is_int(value) and value >= 0), "a version from 0 on, or null", value)


def _vacuum_mode(name: str, value: Any) -> None:
    want(name, value in ("full", "lite"), '"full" or "lite"', value)


def _parallelism(name: str, value: Any) -> None:
    want(name, is_int(value) and 1 <= value <= 256, "a whole number from 1 to 256", value)


def _bytes_or_null(name: str, value: Any) -> None:
    want(name, value is None or (is_int(value) and value > 0), "a whole number of bytes above 0, or null", value)


def _columns_or_null(name: str, value: Any) -> None:
    valid = value is None or (isinstance(value, list) and all(is_text(item) for item in value))
    want(name, valid, "a list of column names or null", value)


def _text_map(name: str, value: Any) -> None:
    want(name, is_text_map(value), "a mapping of text to text", value)


def _hours_or_null(name: str, value: Any) -> None:
    valid = value is None or ((is_int(value) or isinstance(value, float)) and value >= 0)
    want(name, valid, "hours from 0 on, or null", value)


def _parameters(name: str, value: Any) -> None:
    if value is None:
        return
    want(name, isinstance(value, dict), "a mapping or null", value)
    for key, item in value.items():
        expected = "a scalar (an integer within 64 bits, a Decimal within 38 digits) or a tagged scalar"
        want(f"{name}.{key}", is_text(key) and is_parameter(item), expected, item)


def _source(name: str, value: Any) -> None:
    want(name, isinstance(value, dict), "a mapping", value)
    if "sql" not in value:
        return _view(name, value)
    _only(name, value, {"sql", "views"})
    _text(f"{name}.sql", value["sql"])
    views = value.get("views", {})
    want(f"{name}.views", isinstance(views, dict), "a mapping of names to views", views)
    for key, view in views.items():
        _view(f"{name}.views.{key}", view)
    return None


def _view(name: str, value: Any) -> None:
    want(name, isinstance(value, dict), "a mapping", value)
    if "table" in value:
        _only(name, value, {"table", "version"})
        _location(f"{name}.table", value["table"])
        version = value.get("version")
        return want(f"{name}.version", version is None or (is_int(version) and version >= 0), "a version", version)
    want(name, "format" in value and "path" in value, "`sql`, `table`, or `format` and `path`", value)
    _only(name, value, {"format", "path", "options", "schema"})
    want(f"{name}.format", value["format"] in FORMATS, f"one of {sorted(FORMATS)}", value["format"])
    paths = value["path"] if isinstance(value["path"], list) else [value["path"]]
    want(f"{name}.path", bool(paths) and all(is_text(p) for p in paths), "a path or a list of them", value["path"])
    for path in paths:
        _location(f"{name}.path", path)
    _text_map(f"{name}.options", value.get("options", {}))
    return _text_or_null(f"{name}.schema", value.get("schema"))


def _keys(name: str, value: Any) -> None:
    if value is None:
        return None
    want(name, isinstance(value, dict), "a mapping or null", value)
    _text(f"{name}.column", value.get("column"))
    one = ("values" in value) != ("source" in value)
    want(name, one, "`column` with either `values` or `source`")
    if "source" in value:
        _only(name, value, {"column", "source", "source_column"})
        _source(f"{name}.source", value["source"])
        return _text_or_null(f"{name}.source_column", value.get("source_column"))
    _only(name, value, {"column", "values"})
    keys = value["values"]
    valid = isinstance(keys, list) and all(is_parameter(key) and not isinstance(key, list) for key in keys)
    return want(f"{name}.values", valid, "a list of scalars or tagged scalars", keys)


FORMATS = frozenset({"parquet", "csv", "json", "orc"})
_CLAUSES = {
    ("matched", "update"): "set",
    ("matched", "delete"): None,
    ("not_matched", "insert"): "values",
    ("not_matched_by_source", "update"): "set",
    ("not_matched_by_source", "delete"): None,
}


def _clauses(name: str, value: Any) -> None:
    want(name, isinstance(value, list) and len(value) > 0, "a non-empty list of clauses", value)
    for index, clause in enumerate(value):
        at = f"{name}[{index}]"
        want(at, isinstance(clause, dict), "a mapping", clause)
        kind = (clause.get("when"), clause.get("then"))
        want(at, kind in _CLAUSES, f"when/then of {sorted(_CLAUSES)}", clause)
        assigned = _CLAUSES[kind]
        _only(at, clause, {"when", "then", "condition"} | ({assigned} if assigned else set()))
        _text_or_null(f"{at}.condition", clause.get("condition"))
        if assigned:
            what = clause.get(assigned)
            # Without a source row there is nothing that * could mean.
            if kind[0] == "not_matched_by_source":
                _assignments(f"{at}.{assigned}", what)
            elif what != "*":
                _assignments(f"{at}.{assigned}", what, '"*" or ')


def _assignments(name: str, value: Any, otherwise: str = "") -> None:
    valid = is_text_map(value) and len(value) > 0 and all(map(is_text, value.values()))
    want(name, valid, f"{otherwise}a mapping of columns to SQL", value)


_SCOPE: dict[str, tuple[Any, Callable[[str, Any], None]]] = {
    "partition_predicate": (None, _text_or_null),
    "parameters": (None, _parameters),
}


def _write_together(arguments: dict[str, Any]) -> None:
    """`replace_where` says what an overwrite replaces, so it means nothing to the other modes."""
    replaces = arguments["replace_where"] is not None
    mode = arguments["mode"]
    want("arguments.replace_where", not replaces or mode == "overwrite", f'null in mode "{mode}"', "text")
    failing = arguments["on_conflict"] == "fail"
    want("arguments.on_conflict", not failing or mode != "append", '"replan" in mode "append", which reads nothing')


def _delete_together(arguments: dict[str, Any]) -> None:
    by_keys = arguments["keys"] is not None
    want("arguments.predicate", not by_keys or arguments["predicate"] is None, "null where keys are given", "text")


def _merge_together(arguments: dict[str, Any]) -> None:
    inserts = any(clause["then"] == "insert" for clause in arguments["clauses"])
    want("arguments.require_match", not (arguments["require_match"] and inserts), "false where a clause inserts", True)


def _restore_together(arguments: dict[str, Any]) -> None:
    one = (arguments["version"] is None) != (arguments["timestamp"] is None)
    want("arguments.version", one, "given, or timestamp is: exactly one of them")


Count = TypeVar("Count", int, str)
Rules = dict[str, tuple[Any, Callable[[str, Any], None]]]

# The rows that an overwrite removed; the rows that it wrote are counted beside them.
REPLACED = "replaced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One kind of job.

    `arguments`: (default, check) by name. `together`: what they demand of each other. `changes_rows`: whether its
    commit carries an application transaction (soundness B5: the others are idempotent by nature). `rows`: for people,
    what became of the rows that a metric of its commit counts, by the metric's name.
    """

    arguments: Rules = field(default_factory=dict)
    together: Callable[[dict[str, Any]], None] = lambda arguments: None
    changes_rows: bool = False
    rows: Mapping[str, str] = field(default_factory=dict)


OPERATIONS: dict[str, Operation] = {
    "write": Operation(
        arguments={
            "source": (_REQUIRED, _source),
            "mode": ("append", _mode),
            "replace_where": (None, _text_or_null),
            "on_conflict": ("replan", _on_conflict),
            "partition_by": (None, _columns_or_null),
            "create": (True, _boolean),
            "properties": ({}, _text_map),
            "schema_evolution": (False, _boolean),
            **_SCOPE,
        },
        together=_write_together,
        changes_rows=True,
        rows={"numOutputRows": "written", "numDeletedRows": REPLACED},
    ),
    "delete": Operation(
        arguments={
            "predicate": (_REQUIRED, _text_or_null),
            "keys": (None, _keys),
            "require_match": (False, _boolean),
            **_SCOPE,
        },
        together=_delete_together,
        changes_rows=True,
        rows={"numDeletedRows": "deleted"},
    ),
    "update": Operation(
        arguments={
            "set": (_REQUIRED, _assignments),
            "predicate": (None, _text_or_null),
            "target_alias": ("t", _text),
            "require_match": (False, _boolean),
            **_SCOPE,
        },
        changes_rows=True,
        rows={"numUpdatedRows": "updated"},
    ),
    "merge": Operation(
        arguments={
            "source": (_REQUIRED, _source),
            "on": (_REQUIRED, _text),
            "clauses": (_REQUIRED, _clauses),
            "target_alias": ("t", _text),
            "source_alias": ("s", _text),
            "schema_evolution": (False, _boolean),
            "require_match": (False, _boolean),
            **_SCOPE,
        },
        together=_merge_together,
        changes_rows=True,
        rows={
            "numTargetRowsUpdated": "updated",
            "numTargetRowsDeleted": "deleted",
            "numTargetRowsInserted": "inserted",
        },
    ),
    "truncate": Operation(changes_rows=True, rows={"numDeletedRows": "deleted"}),
    "restore": Operation(
        arguments={
            "version": (None, _version_or_null),
            "timestamp": (None, _text_or_null),
            "ignore_missing": (False, _boolean),
        },
        together=_restore_together,
        changes_rows=True,
    ),
    "optimize": Operation(
        arguments={
            "zorder_by": (None, _columns_or_null),
            "purge": (False, _boolean),
            "target_bytes": (None, _bytes_or_null),
            "batch_bytes": (32 * 1024**3, _bytes_or_null),
            **_SCOPE,
        },
    ),
    "checkpoint": Operation(),
    "vacuum": Operation(
        arguments={
            "retention_hours": (None, _hours_or_null),
            "dry_run": (False, _boolean),
            "check_retention": (True, _boolean),
            "mode": ("full", _vacuum_mode),
            "inventory": (None, _location_or_null),
            "parallelism": (8, _parallelism),
        },
    ),
}


def row_counts(operation: str, metrics: Mapping[str, Count]) -> dict[str, Count]:
    """The rows that the metrics of a commit count, by what became of them; empty for an operation not known here."""
    known = OPERATIONS.get(operation, Operation())
    return {became: metrics[name] for name, became in known.rows.items() if name in metrics}


def complete_arguments(operation: str, given: Any) -> dict[str, Any]:
    """A validated deep copy of `given` in which every argument of the operation is present.

    Raises InvalidJobSpec naming the first argument that is unknown, missing or of the wrong type.
    """
    want("arguments", isinstance(given, dict), "a mapping", given)
    rules = OPERATIONS[operation].arguments
    for name in given:
        if name not in rules:
            raise unknown(f"arguments.{name}", rules)
    plain("arguments", given)
    complete: dict[str, Any] = {}
    for name, (default, check) in rules.items():
        if name not in given and default is _REQUIRED:
            raise InvalidJobSpec(
                f"Job description: arguments.{name} is missing; {operation} needs it.", argument=f"arguments.{name}"
            )
        complete[name] = copy.deepcopy(given.get(name, default))
        check(f"arguments.{name}", complete[name])
    OPERATIONS[operation].together(complete)
    return complete


def _only(name: str, value: dict[str, Any], allowed: set[str]) -> None:
    for key in value:
        if key not in allowed:
            raise unknown(f"{name}.{key}", allowed)


def plain(name: str, value: Any) -> None:
    """Refuses whatever JSON would change or drop, so that a round trip gives an equal value."""
    if isinstance(value, dict):
        for key, item in value.items():
            want(name, isinstance(key, str), "mappings with text keys", key)
            plain(f"{name}.{key}", item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            plain(f"{name}[{index}]", item)
    else:
        finite = not isinstance(value, float) or math.isfinite(value)
        want(name, finite and (value is None or isinstance(value, bool | int | float | str)), "JSON-plain", value)


def want(name: str, condition: bool, expected: str, found: Any = None) -> None:
    """Raises InvalidJobSpec about `name` unless the condition holds."""
    if not condition:
        raise invalid(name, expected, found)


def unknown(name: str, known: Iterable[str]) -> InvalidJobSpec:
    """The error that refuses a name that means nothing where it stands."""
    return InvalidJobSpec(f"Job description: {name} is unknown; known here: {sorted(known)}.", argument=name)


def invalid(name: str, expected: str, found: Any) -> InvalidJobSpec:
    """The error that says what `name` should have been."""
    # Only the type of what was found is shown: values of a spec may be personal (soundness C8).
    is_small = isinstance(found, bool | int) and -(2**63) <= found < 2**63
    shown = repr(found) if found is None or is_small else type(found).__name__
    return InvalidJobSpec(f"Job description: {name} must be {expected}; found {shown}.", argument=name)
