"""The commands of `airflow txlog`: open the table, call the engine, print.

Every command returns a document, printed verbatim with `--json`, and its form for people. Documented keys stay. Exit
codes: 0 done, 1 failed (the message on standard error, and with `--json` the error as the document), 2 used wrongly. A
TxlogError never shows a traceback; a bug in this program does.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException

from airflow_txlog.cli import catalog_entries, ledgers, printing
from airflow_txlog.cli.changing import alter, clone, convert, rollback
from airflow_txlog.cli.erasure import digest_subjects, show_public_key, verify_report
from airflow_txlog.cli.increments import reset_watermark, show_watermarks
from airflow_txlog.cli.keeping import staged, traces, upkeep
from airflow_txlog.cli.printing import Answer, ShownColumn, confirm
from airflow_txlog.cli.usage import UsageError, hook_of, moment_of, named_in_a_catalog, uri_of
from airflow_txlog.contract.job import ANNOTATION_TAG_PREFIX
from airflow_txlog.contract.wording import commit_rows, size_text
from airflow_txlog.engine import Table
from airflow_txlog.engine.commit.content.met import meetings_of, met_text
from airflow_txlog.engine.log.actions import DeletionVector
from airflow_txlog.engine.table.schema.column_mapping import partition_keys
from airflow_txlog.engine.table.snapshot.files import live_row_counts, record_count
from airflow_txlog.errors import TxlogError

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_txlog.engine import Snapshot
    from airflow_txlog.engine.table.predicate import Predicate


def run(name: str, args: Namespace) -> None:
    """Run a command by its name and end the process with its exit code if it failed."""
    printing.logs_to_stderr()
    with printing.closed_pipe_ends_quietly():
        _run(name, args)


def _run(name: str, args: Namespace) -> None:
    try:
        if args.conn_id or getattr(args, "catalog_conn_id", None) or name in _OF_NO_TABLE:
            # A shell command of Airflow may read connections from the database, as the scheduler does. The SDK under
            # the hooks does so only in a process with this variable.
            os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
        answer = _OF_NO_TABLE[name](args) if name in _OF_NO_TABLE else _COMMANDS[name](_open(name, args), args)
    except UsageError as error:
        printing.say(error)
        if args.as_json:
            printing.print_json({"error": {"type": "UsageError", "message": str(error)}})
        sys.exit(2)
    except (TxlogError, AirflowException, OSError) as error:
        printing.fail(named_in_a_catalog(error, args), args.as_json)
    if args.as_json:
        printing.print_json(answer.document)
    else:
        answer.show()
    if answer.has_failed:
        sys.exit(1)


def history(table: Table, args: Namespace) -> Answer:
    """Show the commits of a table, the newest first, and with `--check` what is wrong with its log.

    JSON: `{"table", "commits": [commitInfo + version, timestamp (ms)], "truncated"}`, with `--check` also `findings`.
    """
    # One more than shown, to detect that there are more.
    found = table.history(None if args.limit is None else args.limit + 1)
    commits = found[: args.limit]
    truncated = len(found) > len(commits)
    document: dict[str, Any] = {"table": table.uri, "commits": commits, "truncated": truncated}
    if args.check:
        document["findings"] = [finding.to_dict() for finding in table.check()]

    def show() -> None:
        if args.met:
            printing.print_rows(_MET_COLUMNS, [_met_row(commit) for commit in commits], wide=args.wide)
        else:
            printing.print_rows(_COMMIT_COLUMNS, [_commit_row(commit) for commit in commits], wide=args.wide)
        if truncated:
            print(f"\nthe newest {len(commits)} commits are shown, and the log holds older ones (--limit)")
        if args.check:
            _show_findings(document["findings"])

    return Answer(document, show)


def files(table: Table, args: Namespace) -> Answer:
    """List the files of a version. The numbers count all files that match, also those that `--limit` hides.

    JSON: `{"table", "version", "num_files", "size_bytes", "files": […], "truncated"}`.
    """
    snapshot = _snapshot(table, args)
    found = snapshot.files(_predicate(snapshot, args))
    columns = snapshot.partition_columns
    names = dict(zip(partition_keys(snapshot.delta_schema, columns), columns, strict=True))
    rows = [_file(row, names) for row in found.slice(0, args.limit).to_pylist()]
    total = sum(found.column("size").to_pylist())
    document = {
        "table": table.uri,
        "version": snapshot.version,
        "num_files": found.num_rows,
        "size_bytes": total,
        "truncated": len(rows) < found.num_rows,
        "files": rows,
    }

    def show() -> None:
        columns = [
            ShownColumn(name="path"),
            ShownColumn(name="size", right=True),
            ShownColumn(name="rows", right=True),
            ShownColumn(name="modified"),
            ShownColumn(name="deletion vector"),
        ]
        cells = [
            (
                row["path"],
                size_text(row["size_bytes"]),
                row["num_records"],
                printing.moment(row["modification_time"]),
                f"deletes {row['deletion_vector']['cardinality']} of them" if row["deletion_vector"] else "",
            )
            for row in rows
        ]
        printing.print_rows(columns, cells)
        more = f", of which {len(rows)} are shown (--limit)" if document["truncated"] else ""
        print(f"\n{found.num_rows} files, {size_text(total)}, at version {snapshot.version}{more}")

    return Answer(document, show)


def snapshot(table: Table, args: Namespace) -> Answer:
    """Describe one version: numbers, schema (the protocol's JSON), partitioning, properties, protocol."""
    found = _snapshot(table, args)
    counts = live_row_counts(found.files(columns=["stats", "deletion_vector"]))
    unknown = counts.count(None)
    protocol, schema = found.protocol, found.metadata.schema_string
    document = {
        "table": table.uri,
        "version": found.version,
        "timestamp": found.timestamp_ms,
        "num_rows": None if unknown else sum(count or 0 for count in counts),
        "num_files": found.num_files,
        "size_bytes": found.size_bytes,
        "num_tombstones": found.state.tombstones.num_rows,
        "num_application_transactions": len(found.state.transactions),
        "id": found.metadata.id,
        "name": found.metadata.name,
        "description": found.metadata.description,
        "partition_columns": found.partition_columns,
        "properties": found.properties,
        "protocol": {
            "min_reader_version": protocol.min_reader_version,
            "min_writer_version": protocol.min_writer_version,
            "reader_features": sorted(protocol.reader_features or ()),
            "writer_features": sorted(protocol.writer_features or ()),
        },
        "schema": None if schema is None else json.loads(schema),
    }

    def show() -> None:
        facts: dict[str, object] = {name: value for name, value in document.items() if value is not None}
        if unknown:
            facts["num_rows"] = f"not known: {unknown} of {len(counts)} files have no statistics of it"
        facts["timestamp"] = f"{printing.moment(found.timestamp_ms)} ({found.timestamp_ms})"
        facts["size"] = size_text(facts.pop("size_bytes"))  # type: ignore[arg-type]
        facts["partition_columns"] = ", ".join(found.partition_columns)
        if schema is not None:
            facts["schema"] = [f"{field.name}: {field.type}" for field in found.schema]
        printing.print_facts(facts)

    return Answer(document, show)


def vacuum(table: Table, args: Namespace) -> Answer:
    """Delete the files that no version within the retention needs.

    JSON: `{"table", "mode", "dry_run", "num_files", "size_bytes", "deleted_files", "deleted_directories", "files"}`.
    """
    if not args.dry_run:
        confirm(f"Delete files of {table.uri} that no kept version needs?", args.yes)
    hours = args.orphan_retention_hours
    more: dict[str, Any] = {} if hours is None else {"orphan_retention": hours}
    result = table.vacuum(
        args.retention_hours,
        dry_run=args.dry_run,
        check_retention=not args.no_check_retention,
        mode=args.mode,
        inventory=args.inventory,
        include_foreign=args.include_foreign,
        parallelism=args.parallelism,
        on_progress=printing.say,
        **more,
    )
    document = {
        "table": table.uri,
        "mode": result.mode,
        "dry_run": result.dry_run,
        "num_files": len(result.files),
        "size_bytes": result.size_bytes,
        "deleted_files": result.deleted_files,
        "deleted_directories": result.deleted_directories,
        "files": result.files,
    }

    def show() -> None:
        if result.dry_run:
            for path in result.files:
                print(printing.printable(path))
        verb = "would be deleted" if result.dry_run else f"to delete, {result.deleted_files} deleted"
        print(f"{len(result.files)} files ({size_text(result.size_bytes)}) {verb}")

    return Answer(document, show)


def checkpoint(table: Table, args: Namespace) -> Answer:
    """Write a checkpoint. JSON: `{"table", "version"}`."""
    version = table.checkpoint()
    return Answer({"table": table.uri, "version": version}, lambda: print(version))


def restore(table: Table, args: Namespace) -> Answer:
    """Answer with `{"table", "version", "committed"}`: the latest version now, and whether it is new."""
    moment = moment_of(args)
    if args.table_version is None and moment is None:
        raise UsageError("restore needs --version or --timestamp.")
    asked = f"version {args.table_version}" if moment is None else args.timestamp
    before = table.snapshot().version
    confirm(f"Restore {table.uri}, now at version {before}, to {asked}?", args.yes)
    version = table.restore(args.table_version, moment, ignore_missing=args.ignore_missing)
    if version > before:
        hook_of(args).keep_entry(uri_of(hook_of(args), args.table, args))
    document = {"table": table.uri, "version": version, "committed": version > before}
    answer = f"restored by version {version}" if version > before else f"already at version {version}: nothing to do"
    return Answer(document, lambda: print(answer))


_COMMANDS: dict[str, Callable[[Table, Namespace], Answer]] = {
    "history": history,
    "files": files,
    "snapshot": snapshot,
    "vacuum": vacuum,
    "checkpoint": checkpoint,
    "restore": restore,
    "rollback": rollback,
    "alter": alter,
    "upkeep": upkeep,
    "convert": convert,
    "clone": clone,
    "staged": staged,
    "traces": traces,
    "ledger create": ledgers.create,
    "ledger show": ledgers.show,
    "ledger check": ledgers.check,
    "ledger rotate": ledgers.rotate,
    "incremental show": show_watermarks,
    "incremental reset": reset_watermark,
}
# What these change is not changed by a job, which would get its own credentials.
_WRITERS = frozenset({"vacuum", "checkpoint", "restore", "incremental reset", "ledger create", "ledger rotate"})
_OF_NO_TABLE: dict[str, Callable[[Namespace], Answer]] = {
    "erasure digest": digest_subjects,
    "erasure public-key": show_public_key,
    "erasure verify": verify_report,
    "catalog sync": catalog_entries.sync,
    "catalog check": catalog_entries.check,
}


# --- arguments ------------------------------------------------------------------------------------------------------


def _open(name: str, args: Namespace) -> Table:
    hook = hook_of(args)
    hook.writes_by_name = name in _WRITERS
    uri = uri_of(hook, args.table, args, may_create=name in ("convert", "clone"))
    if name in ("history", "upkeep", "convert", "clone", "rollback", "ledger create"):
        # A history can be shown even if this engine cannot read the rows; the others may get a folder, or make a table.
        return hook.table(uri)
    return hook.open(uri)


def _snapshot(table: Table, args: Namespace) -> Snapshot:
    return table.snapshot(args.table_version, moment_of(args))


def _predicate(snapshot: Snapshot, args: Namespace) -> Predicate | None:
    """Return `--where` with its `--param`, each JSON or text as its column takes it.

    Standard error names a comparison that rules out no file.
    """
    if args.where is None:
        if args.params:
            raise UsageError("--param gives a value to --where, which is missing.")
        return None
    texts: dict[str, str] = {}
    for name, text in map(_named, args.params):
        if name in texts:
            raise UsageError(f"--param gives {name} two values.")
        texts[name] = text
    values = {name: _json_or_text(text) for name, text in texts.items()}

    def read(bound: Mapping[str, object]) -> tuple[Predicate, list[str]]:
        predicate = snapshot.read_predicate(args.where, parameters=bound or None)
        return predicate, predicate.unknown

    predicate, unknown = read(values)
    for name, text in texts.items():
        if unknown and not isinstance(values[name], str):
            as_text, left = read({**values, name: text})
            if len(left) < len(unknown):
                predicate, unknown, values = as_text, left, {**values, name: text}
    for reason in dict.fromkeys(unknown):
        printing.say(f"--where rules out no file by {reason}.")
    return predicate


def _named(given: str) -> tuple[str, str]:
    name, equals, text = given.partition("=")
    if not equals or not name:
        raise UsageError(f"--param is NAME=VALUE, not {given!r}.")
    return name, text


def _json_or_text(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


# --- output for people ----------------------------------------------------------------------------------------------


_TASK = ("dag_id", "task_id", "run_id", "map_index", "map_label", "try_number")
# Version, time and try are never cut. Ids keep their end, as most begin alike.
_COMMIT_COLUMNS = (
    ShownColumn(name="version", right=True),
    ShownColumn(name="time"),
    ShownColumn(name="operation", keeps="start", at_least=9),
    ShownColumn(name="rows", keeps="start", at_least=12),
    ShownColumn(name="DAG or engine", keeps="end", at_least=13),
    ShownColumn(name="task", keeps="end", at_least=12),
    ShownColumn(name="run", keeps="end", at_least=len("…2026-11-23T00:00:00+00:00")),
    ShownColumn(name="try", right=True),
    ShownColumn(name="parameters", keeps="start", at_least=20, optional=True, at_most=60),
)


_MET_COLUMNS = (
    *(ShownColumn(name=name, right=True) for name in ("version", "read")),
    ShownColumn(name="operation", keeps="start", at_least=9),
    ShownColumn(name="met", right=True),
    ShownColumn(name="resolved", keeps="start", at_least=30),
)


def _met_row(commit: Mapping[str, Any]) -> tuple[object, ...]:
    met = meetings_of(commit)
    cells = (commit["version"], commit.get("readVersion"), commit.get("operation"))
    return (*cells, met.total or None, met_text(met))


def _commit_row(commit: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the cells of `_COMMIT_COLUMNS`; those of a task are empty if no task of Airflow made the commit."""
    task = {name: _tags(commit).get(f"{ANNOTATION_TAG_PREFIX}{name}") for name in _TASK}
    index = task["map_label"] or task["map_index"]
    return (
        commit["version"],
        printing.moment(commit["timestamp"]),
        commit.get("operation"),
        commit_rows(commit.get("operation"), commit.get("operationMetrics")),
        task["dag_id"] or commit.get("engineInfo") or commit.get("clientVersion"),
        task["task_id"] if index in (None, "-1") else f"{task['task_id']}[{index}]",
        task["run_id"],
        task["try_number"],
        _pairs(commit.get("operationParameters")),
    )


def _tags(commit: Mapping[str, Any]) -> Mapping[str, Any]:
    tags = commit.get("tags")
    return tags if isinstance(tags, Mapping) else {}


def _pairs(values: object) -> str:
    """Return a mapping as `name=value` pairs without empty values, and any other value as text."""
    if not isinstance(values, Mapping):
        return "" if values is None else str(values)
    given = {name: value for name, value in values.items() if value not in (None, "", "[]", "{}", "null", [], {})}
    return ", ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value, default=str)}" for name, value in given.items()
    )


def _file(row: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a file as JSON. `names` has the logical names of partition columns, by their names in partition values."""
    vector = row["deletion_vector"]
    return {
        "path": row["path"],
        "size_bytes": row["size"],
        "num_records": record_count(row["stats"], None if vector is None else DeletionVector(**vector)),
        "modification_time": row["modification_time"],
        "partition_values": {names.get(key, key): value for key, value in row["partition_values"] or ()},
        "deletion_vector": None if vector is None else {"cardinality": vector["cardinality"]},
    }


def _show_findings(findings: list[dict[str, Any]]) -> None:
    print()
    if not findings:
        print("Nothing unhealthy was found.")
    for finding in findings:
        print(f"{finding['code']}: {finding['message']}\n    {finding['advice']}")
