"""Arguments that an operator or a sensor does not have: the parameter that each one probably means.

Invariant: an error names arguments, and never shows their values.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

from airflow_txlog.errors.names import did_you_mean

# Names in other products and in Airflow, in lower case without underscores, with ours: the first that a class has.
_ELSEWHERE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("automerge", "evolveschema", "mergeschema", "overwriteschema", "schemamode", "withschemaevolution"),
        ("schema_evolution", "on_schema_change"),
    ),
    **dict.fromkeys(("condition", "filter", "filters", "where"), ("predicate", "on", "replace_where", "checks")),
    "predicate": ("on", "replace_where", "partition_predicate"),
    **dict.fromkeys(("mergecondition", "mergeon"), ("on",)),
    **dict.fromkeys(("joinkeys", "key", "mergekeys", "primarykey", "uniquekey"), ("keys", "on")),
    **dict.fromkeys(("data", "dataframe", "df", "query", "rows", "select", "sql"), ("source",)),
    **dict.fromkeys(("location", "path", "tablepath", "target", "targetpath", "uri", "url"), ("table_uri", "tables")),
    **dict.fromkeys(("name", "tablename", "targettable"), ("table", "tables")),
    **dict.fromkeys(("savemode", "writemode"), ("mode",)),
    **dict.fromkeys(("partitioncolumns", "partitioning", "partitions"), ("partition_by", "partition_predicate")),
    **dict.fromkeys(("configuration", "tableproperties", "tblproperties"), ("properties", "set_properties")),
    **dict.fromkeys(
        (
            *("whenmatched", "whenmatchedupdate", "whenmatcheddelete", "whennotmatched", "whennotmatchedinsert"),
            *("whennotmatchedbysource", "whennotmatchedbysourceupdate", "whennotmatchedbysourcedelete"),
        ),
        ("clauses",),
    ),
    **dict.fromkeys(("assignments", "updates", "values"), ("set",)),
    **dict.fromkeys(("startingtimestamp", "startingversion", "startversion"), ("starting", "newer_than", "since")),
    **dict.fromkeys(("alias", "targetname"), ("target_alias",)),
    **dict.fromkeys(("bindings", "queryparams", "sqlparameters"), ("parameters",)),
    **dict.fromkeys(("retention", "retainhours", "retentionperiod"), ("retention_hours",)),
    **dict.fromkeys(("zorder", "zordercolumns"), ("zorder_by",)),
    **dict.fromkeys(("conn", "connection", "connid", "deltaconnid"), ("txlog_conn_id",)),
    **dict.fromkeys(
        ("adlsconnid", "awsconnid", "azureconnid", "gcpconnid", "googlecloudconnid", "storageoptions", "wasbconnid"),
        ("storage_conn_id",),
    ),
}


def parameters_of(kind: type) -> tuple[str, ...]:
    """Return the names of the parameters of a class's constructors, those of the class itself first."""
    found: dict[str, None] = {}
    for each in kind.__mro__:
        if "__init__" in vars(each) and each is not object:
            for name, parameter in inspect.signature(each.__init__).parameters.items():  # type: ignore[misc]
                if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD) and name != "self":
                    found[name] = None
    return tuple(found)


def unknown_among(kind: type, given: Mapping[str, object]) -> TypeError | None:
    """Return the error for those of the arguments that the class does not know; None if it knows all."""
    known = parameters_of(kind)
    unknown = [name for name in given if name not in known and not name.startswith("_")]
    return unknown_arguments(kind.__name__, given.get("task_id"), unknown, known) if unknown else None


def unknown_arguments(kind: str, task_id: object, unknown: Sequence[str], known: Sequence[str]) -> TypeError:
    """Return the error for arguments that the class named `kind` does not know.

    `known`: the names of the parameters that it has.
    """
    parts = [f"{name!r}.{_meant(name, known)}" for name in unknown]
    return TypeError(
        f"{kind} (task_id: {task_id}) has no parameter {' It has no parameter '.join(parts)} "
        "The page of the operator lists all parameters (docs/operators.md)."
    )


def _meant(name: str, known: Sequence[str]) -> str:
    ours = next((each for each in _ELSEWHERE.get(name.replace("_", "").lower(), ()) if each in known), None)
    return did_you_mean(name, known) if ours is None else f" Did you mean {ours!r}?"
