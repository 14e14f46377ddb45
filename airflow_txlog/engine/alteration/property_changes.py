"""Changes of table properties: which names exist, and which of them only the engine may set.

The invariant: no property of Delta's is written that Delta does not know, or in another case than it has there, because
engines look it up by its exact name. Source: delta-spark 4.4, DeltaConfigs and AlterTableSetPropertiesDeltaCommand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_txlog.engine.commit.content.property_names import (
    KEPT_BY_TABLE,
    NAMES,
    OWN_PREFIX,
    PREFIX,
    check_has_prefix,
    spelled,
)
from airflow_txlog.engine.table.schema.column_mapping import MODE_PROPERTY, NO_MAPPING
from airflow_txlog.engine.table.schema.features import FEATURE_PREFIX
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.schema.rules import CONSTRAINT_PREFIX
from airflow_txlog.errors import InvalidProperty


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyChanges:
    """The table's properties afterwards, the table's new comment if there is one, and the features that were named."""

    configuration: dict[str, str]
    comment: str | None = None
    features: tuple[str, ...] = ()


def changed_properties(
    before: Mapping[str, str], to_set: Mapping[str, str], to_unset: Iterable[str], table: str
) -> PropertyChanges:
    """Return the properties with these set and those removed; a property that is not set may be removed.

    `comment` is the table's, and `delta.feature.<name>` = `supported` names a feature. A property that another engine
    has set may be removed even if Delta does not know it. Raises InvalidProperty for any other name that Delta does not
    know, for one that only the engine may set, or that is given twice, and for a malformed value.
    """
    given: dict[str, str | None] = {}
    for name, value in [*((name, None) for name in to_unset), *to_set.items()]:
        known = name if value is None and name in before and _is_unknown(name) else _known(name, table)
        if value is not None:
            check_has_prefix(known, table)
        if known in given:
            raise _refused(table, known, value, "is named twice in one alteration: once is enough")
        given[known] = value
    features = {name: value for name, value in given.items() if name.startswith(FEATURE_PREFIX)}
    for name, value in features.items():
        if value is None or value.lower() not in ("supported", "enabled"):
            raise _refused(table, name, value, "may be supported; a feature is removed by drop_features")
    _check_mode(before, given, table)
    left = {name: value for name, value in given.items() if name not in features and name != "comment"}
    configuration = {name: value for name, value in before.items() if name not in left}
    configuration |= {name: value for name, value in left.items() if value is not None}
    # Another writer may have spelled a name in another case: it would stay, and engines would read either of the two.
    for name in [name for name in configuration if name not in left and NAMES.get(name.lower()) in left]:
        del configuration[name]
    TableProperties({name: value for name, value in left.items() if value is not None}, table).validate()
    _check_retentions(configuration, left, table)
    return PropertyChanges(
        configuration=configuration,
        comment=(given["comment"] or "") if "comment" in given else None,
        features=tuple(name.removeprefix(FEATURE_PREFIX) for name in features),
    )


def _known(name: str, table: str) -> str:
    """Return the name as Delta spells it."""
    lower = name.lower()
    if lower in ("location", "provider", "external", "owner"):
        raise _refused(table, name, None, "is no property of a Delta table")
    if lower.startswith(CONSTRAINT_PREFIX):
        raise _refused(table, name, None, "is a constraint: write add_constraints or drop_constraints")
    if lower.startswith(FEATURE_PREFIX):
        return FEATURE_PREFIX + name[len(FEATURE_PREFIX) :]
    if not lower.startswith((PREFIX, OWN_PREFIX)):
        return lower if lower == "comment" else name
    known = spelled(name, table)
    if known in KEPT_BY_TABLE:
        raise _refused(table, known, None, f"is kept by the table itself: {KEPT_BY_TABLE[known]}")
    return known


def _is_unknown(name: str) -> bool:
    """Return whether a name is like Delta's, but of no property, feature or constraint that we know."""
    lower = name.lower()
    return lower.startswith(PREFIX) and not lower.startswith((FEATURE_PREFIX, CONSTRAINT_PREFIX)) and lower not in NAMES


def _check_mode(before: Mapping[str, str], given: Mapping[str, str | None], table: str) -> None:
    """Raise InvalidProperty if column mapping would change in another way than from none to name."""
    if MODE_PROPERTY not in given:
        return
    now = before.get(MODE_PROPERTY, NO_MAPPING).lower()
    wanted = (given[MODE_PROPERTY] or NO_MAPPING).lower()
    if wanted != now and (now, wanted) != (NO_MAPPING, "name"):
        raise _refused(
            table,
            MODE_PROPERTY,
            given[MODE_PROPERTY],
            f"may change from none to name only, and is {now}: files that exist are found by the names in them",
        )


def _check_retentions(after: Mapping[str, str], given: Mapping[str, str | None], table: str) -> None:
    """Raise InvalidProperty if the log would be cleaned before the files of its versions."""
    properties = TableProperties(after, table)
    log, files = "delta.logRetentionDuration", "delta.deletedFileRetentionDuration"
    if {log, files} & given.keys() and properties.log_retention_ms < properties.deleted_file_retention_ms:
        raise _refused(table, log, after.get(log), f"must be no shorter than {files}")


def _refused(table: str, name: str, value: str | None, why: str) -> InvalidProperty:
    return InvalidProperty(
        f"{table}: the property {name} {why}. Nothing was changed.", table=table, name=name, value=value
    )
