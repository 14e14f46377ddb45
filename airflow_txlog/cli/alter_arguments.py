"""The arguments of `airflow txlog alter` as the fields of the job's record, and pairs of names and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_txlog.engine.table.schema.types import parse_paths, path_text

if TYPE_CHECKING:
    from argparse import Namespace

# The fields that are lists of names, and those that map names to values.
LISTS = (
    *("unset_properties", "add_features", "drop_features", "drop_columns", "drop_constraints"),
    *("set_not_null", "drop_not_null", "sync_identity"),
)
MAPS = ("set_properties", "add_columns", "rename_columns", "change_types", "set_comments", "add_constraints")

# The others are NAME=VALUE.
_FORMS = {
    "add_columns": "NAME=TYPE",
    "rename_columns": "OLD=NEW",
    "change_types": "NAME=TYPE",
    "set_comments": "NAME=TEXT",
    "add_constraints": "NAME=SQL",
}


def alteration_of(args: Namespace) -> dict[str, Any]:
    """Return the fields that were given. Raises ValueError, with a message for people."""
    found: dict[str, Any] = {name: getattr(args, name) for name in LISTS if getattr(args, name)}
    for name in MAPS:
        pairs = pairs_of(name, getattr(args, name))
        if pairs:
            found[name] = {key: None if name == "set_comments" and not value else value for key, value in pairs.items()}
    if args.cluster_by is not None:
        found["cluster_by"] = [path_text(path) for path in parse_paths(args.cluster_by)]
    if not found:
        raise ValueError("alter needs something to change, such as --set-property NAME=VALUE.")
    return found | ({"allow_reader_upgrade": True} if args.allow_reader_upgrade else {})


def pairs_of(field: str, texts: Sequence[str]) -> dict[str, str]:
    """Return the NAME=VALUE of a flag that may be repeated. Raises ValueError, with a message for people."""
    pairs = [_pair(field, text) for text in texts]
    if len({key.lower() for key, _ in pairs}) < len(pairs):
        raise ValueError(f"--{_flag(field)} names one thing twice.")
    return dict(pairs)


def _pair(field: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ValueError(f"--{_flag(field)} is {_FORMS.get(field, 'NAME=VALUE')}, not {text!r}.")
    return name.strip(), value.strip()


def _flag(field: str) -> str:
    """Return the flag of a field: one name or pair is given by each."""
    singular = {"set_properties": "set-property", "unset_properties": "unset-property"}
    return singular.get(field, field.replace("_", "-").removesuffix("s"))
