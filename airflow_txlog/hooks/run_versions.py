"""The versions of tables that a DAG run has pinned, and how its tasks find them.

`PinVersionsOperator` returns one version for each table. A later task needs no name for it: it looks for the pin tasks
among the tasks upstream of it in its own DAG, and reads their XComs of its run. Invariant: only tasks upstream count,
so that a pin is complete before it is read, and a cleared pin task takes its readers with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow_txlog.contract.job import JobSpec
from airflow_txlog.contract.operations import TableView
from airflow_txlog.contract.operations.reading import Part
from airflow_txlog.errors import InvalidJobSpec, TableNotFound, TableReplaced
from airflow_txlog.locations import local_path, split, store_kind

if TYPE_CHECKING:
    from airflow_txlog.hooks.txlog import TxlogHook

_SHOWN = 10


def pin(hook: TxlogHook, tables: Sequence[str]) -> list[dict[str, Any]]:
    """Return the latest version of each table now: `[{"table_uri", "version", "commit_mark"}]`.

    Each costs one listing of its log. Raises TableNotFound, LogGap.
    """
    return [{"table_uri": table, **asdict(_position(hook, table))} for table in tables]


def _position(hook: TxlogHook, table: str) -> Any:
    found = hook.followed(table).follower.look()
    if found.version < 0:
        raise TableNotFound(f"There is no table at {table}, so it has no version to fix.", table=table)
    return found


def at_run_versions(spec: JobSpec, hook: TxlogHook, context: Mapping[str, Any] | None) -> JobSpec:
    """Return the spec with the versions that the run has pinned instead of `as_of="run"`.

    Raises InvalidJobSpec as `pinned_version`, TableReplaced.
    """

    def change(part: Part) -> Part:
        if not isinstance(part, TableView) or part.as_of is None:
            return part
        return TableView(table=part.table, version=pinned_version(hook, part.table, context))

    if not any(isinstance(part, TableView) and part.as_of is not None for _, part in spec.operation.parts()):
        return spec
    return spec.replace(operation=spec.operation.with_parts(change))


def pinned_version(hook: TxlogHook, table_uri: str, context: Mapping[str, Any] | None) -> int:
    """Return the version of the table that this task's run has pinned.

    Raises InvalidJobSpec (`as_of`) without a task, or if no task upstream of it has pinned the table, or two have
    pinned different versions; TableReplaced if the table was dropped and created again since.
    """
    found = pinned_position(table_uri, context)
    mark = hook.followed(table_uri).mark(found["version"])
    # A commit that was cleaned from the log proves nothing; the version is then read from a checkpoint, or refused.
    if mark is not None and found.get("commit_mark") not in (None, mark):
        raise TableReplaced(
            f"{table_uri} was dropped and created again since the run has pinned version {found['version']} of it. "
            "Nothing was read. Clear the task that pins the versions.",
            table=table_uri,
        )
    return int(found["version"])


def pinned_position(table_uri: str, context: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what the run has pinned of the table: `{"table_uri", "version", "commit_mark"}`. Raises InvalidJobSpec."""
    if context is None or "ti" not in context:
        raise _not_pinned(table_uri, "no task of Airflow runs in this process, so there is no run")
    task_ids = list(_pin_tasks_before(context["task"]))
    if not task_ids:
        raise _not_pinned(table_uri, "no task upstream of this one is a PinVersionsOperator")
    # A list of tasks gives the XComs of all their map indexes, also to a mapped task.
    outputs = [each for each in context["ti"].xcom_pull(task_ids=task_ids) or () if isinstance(each, Mapping)]
    pinned = [each for output in outputs for each in output.get("tables", ())]
    found = [each for each in pinned if _place(each["table_uri"]) == _place(table_uri)]
    if not found:
        named = ", ".join(each["table_uri"] for each in pinned[:_SHOWN]) or "no table"
        more = f" and {len(pinned) - _SHOWN} more" if len(pinned) > _SHOWN else ""
        raise _not_pinned(table_uri, f"the tasks {sorted(task_ids)} have pinned {named}{more}")
    versions = {each["version"] for each in found}
    if len(versions) > 1:
        raise _not_pinned(table_uri, f"the tasks {sorted(task_ids)} have pinned the versions {sorted(versions)} of it")
    return dict(found[0])


def _pin_tasks_before(task: Any) -> Iterator[str]:
    before = task.get_flat_relative_ids(upstream=True)
    for task_id in sorted(before):
        found = task.dag.task_dict[task_id]
        # A mapped operator has the class of its tasks in an attribute.
        if getattr(getattr(found, "operator_class", type(found)), "pins_versions", False):
            yield task_id


def _place(uri: str) -> str:
    """Return one text for the spellings of a table's location."""
    path = local_path(uri)
    text = f"{store_kind(uri)}://{split(uri).authority}{split(uri).path}" if path is None else path
    return text.rstrip("/")


def _not_pinned(table_uri: str, why: str) -> InvalidJobSpec:
    return InvalidJobSpec(
        f'{table_uri} cannot be read with as_of="run": {why}. Nothing was read. List the table in a '
        "PinVersionsOperator upstream of this task.",
        argument="as_of",
    )
