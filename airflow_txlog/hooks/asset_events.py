"""The asset events of a task that changed a table: only if rows changed, with the facts that a consumer needs.

An event is a hint that there is something to read. A consumer learns from the table which versions to read
(`TxlogHook.unprocessed_versions`), because Airflow may merge or drop events. Invariant: a task whose work is done never
fails because of its event. The commit's facts are read from the table's log; if that fails, the event lacks them.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import Asset, AssetAlias

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.operations import OPERATIONS
from airflow_txlog.contract.wording import event_extra

if TYPE_CHECKING:
    from airflow_txlog.engine.table.changes.following import LogFollower

# An event names at most this many partitions; of more, only the number.
MOST_PARTITIONS = 100
ASSET_SCHEME = "txlog"
"""The scheme of the asset of a table's name."""
# Airflow makes one event for each partition, and keeps 250 characters of its key.
MOST_PARTITION_EVENTS, _KEY_CHARACTERS = 1000, 250

log = logging.getLogger(__name__)


def fill_asset_events(
    task: Any, context: Mapping[str, Any], results: Sequence[JobResult], *, without_change: bool, by_partition: bool
) -> None:
    """Fill the events of the outlets, or one per partition; if no row changed, only `without_change`.

    With several tables, an outlet that is the asset of one of them gets that table's event; any other gets all.
    """
    if not task.outlets or "outlet_events" not in context:  # without Airflow no event is needed
        return
    # The event of a staged change is that of its publication.
    without_change = without_change and all(result.status != "staged" for result in results)
    assets = {uri for result in results for uri in _assets_of(task, result)}
    filled: list[Any] = list(task.outlets) if without_change else []
    for result in results:
        others = assets - _assets_of(task, result)
        outlets = [outlet for outlet in task.outlets if getattr(outlet, "uri", None) not in others]
        if outlets and _fill(task, context, result, outlets, without_change=without_change, by_partition=by_partition):
            filled += outlets
    # Airflow makes an event of every asset that a task names as an outlet when it succeeds.
    task.outlets = [outlet for outlet in task.outlets if outlet in filled]


def _fill(
    task: Any,
    context: Mapping[str, Any],
    result: JobResult,
    outlets: Sequence[Any],
    *,
    without_change: bool,
    by_partition: bool,
) -> bool:
    """Fill the events of these outlets of the task. Return False if there are to be none."""
    is_change, found, partitions = _change_of(task, result)
    if not is_change and not without_change:
        return False
    extra = {**event_extra(result), **found}
    if getattr(task, "sensitive", False):
        # Values of a sensitive task may be those of its partitions.
        partitions = []
    if partitions:
        extra["partition_count"] = len(partitions)
        if len(partitions) <= MOST_PARTITIONS:
            extra["partitions"] = partitions
    for outlet in outlets:
        event = context["outlet_events"][outlet] if isinstance(outlet, Asset | AssetAlias) else None
        if isinstance(outlet, AssetAlias) and event is not None:
            event.add(Asset(uri=asset_uri(result.table_uri)), extra=extra)
        elif event is not None:
            event.extra.update(extra)
            if by_partition:
                _add_partitions(event, partitions)
    return True


def asset_uri(table_uri: str) -> str:
    """Return the URI of the asset of a table: the table's own, with `file://` before an absolute path."""
    return f"file://{table_uri}" if table_uri.startswith("/") else table_uri


def named_asset_uri(catalog_conn_id: str, name: str) -> str:
    """Return the URI of the asset of a table by its name in a catalog: `txlog://glue/sales.orders`."""
    return f"{ASSET_SCHEME}://{catalog_conn_id}/{name}"


def _assets_of(task: Any, result: JobResult) -> set[str]:
    """Return the URIs of a table's asset: by its place, and by its name if the task has named it."""
    found = {asset_uri(result.table_uri)}
    if result.table_name is not None and task.hook.catalog_conn_id is not None:
        found.add(named_asset_uri(task.hook.catalog_conn_id, result.table_name))
    return found


def partition_key(values: Mapping[str, str | None]) -> str:
    """Return a partition as Airflow names it: its values in the table's order of columns, joined by `|`."""
    return "|".join("__HIVE_DEFAULT_PARTITION__" if value is None else value for value in values.values())


def _change_of(task: Any, result: JobResult) -> tuple[bool, dict[str, Any], list[dict[str, str | None]]]:
    """Return whether the work changed rows, its commit's position in the log, and the partitions that it changed."""
    operation = OPERATIONS.get(result.operation)
    is_change = result.status in ("committed", "already_done") and operation is not None and operation.changes_rows
    if not is_change or result.version is None:
        return is_change, {}, []
    try:
        follower: LogFollower = task.hook.followed(result.table_uri).follower
        follower.look()
        commit = follower.facts(result.version)
        if commit is None:
            return is_change, {}, []
        where = follower.position_of(result.version)
        return commit.data_change, dataclasses.asdict(where), follower.partitions([commit]) or []
    except Exception as error:
        log.warning("what version %s changed could not be read: %s: %s", result.version, type(error).__name__, error)
        return is_change, {}, []


def _add_partitions(event: Any, partitions: list[dict[str, str | None]]) -> None:
    keys = [partition_key(each) for each in partitions]
    if not hasattr(event, "add_partitions"):
        log.warning("this Airflow has no partitions of assets: one event is made for the whole table")
    elif len(keys) > MOST_PARTITION_EVENTS or any(not 0 < len(key.strip()) <= _KEY_CHARACTERS for key in keys):
        log.warning("the %s partitions are too many, or a name too long: one event is made for all", len(keys))
    elif keys:
        event.add_partitions(keys)
