"""RESTORE: make an earlier version the latest one again, by a new commit.

It restores the content (the files that were live, deletion vectors included), the metadata (schema, partitioning,
properties), the clustering columns and the watermarks of incremental consumers, whose rows come and go with the files.
The protocol, application transactions, other domains, the table's id and in-commit timestamps belong to the log and
stay, except that work which a rollback had undone counts as done again when its rows come back. Facts that may only
grow keep the furthest value of both (`commit/content/metadata`). The invariant: no commit names a file that was not
there a moment ago.
Source: delta-spark, RestoreTableCommand; protocol, "Action Reconciliation".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.commit.content.clustering import CLUSTERING_DOMAIN
from airflow_txlog.engine.commit.content.metadata import keep_furthest
from airflow_txlog.engine.commit.content.watermarks import NO_TOMBSTONES, TOMBSTONES, rewound, rewound_text
from airflow_txlog.engine.commit.transaction import Transaction
from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.log.columns import table_to_adds
from airflow_txlog.engine.log.paths import canonical_paths
from airflow_txlog.engine.log.vectors import vector_file
from airflow_txlog.engine.many_files import look_up
from airflow_txlog.engine.table.schema.column_mapping import (
    ID_KEY,
    MAX_ID_PROPERTY,
    MODE_PROPERTY,
    NO_MAPPING,
    assign_existing,
    mapping_mode,
    table_schema,
    with_fields,
)
from airflow_txlog.engine.table.schema.features import (
    check_writable,
    missing_features,
    needed_features,
    reader_features,
    writer_features,
)
from airflow_txlog.engine.table.schema.properties import SHARED_FOLDER
from airflow_txlog.engine.table.schema.schema import schema_to_json
from airflow_txlog.engine.table.schema.types import StructField
from airflow_txlog.engine.table.snapshot.files import file_keys, known_sum, live_row_counts
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.engine.upkeep.running_vacuum import check_no_vacuum_runs
from airflow_txlog.errors import FilesMissing, UnsupportedFeature
from airflow_txlog.storage.base import Store

log = logging.getLogger(__name__)

_PARALLELISM = 16
_EXAMPLES = 5

# Properties that describe the log or the folder: an earlier value would be wrong.
_OF_THE_LOG = (
    "delta.enableInCommitTimestamps",
    "delta.inCommitTimestampEnablementVersion",
    "delta.inCommitTimestampEnablementTimestamp",
    SHARED_FOLDER,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The latest version after a restore, and the metrics of its commit; no metrics if nothing was committed.

    `rewound`: a line for people on each watermark that went back.
    """

    version: int
    metrics: Mapping[str, int] = field(default_factory=dict)
    rewound: Sequence[str] = ()


def restore(
    tx: Transaction,
    target: Snapshot,
    store: Store,
    *,
    timestamp: str | None = None,
    ignore_missing: bool = False,
    tags: Mapping[str, str] | None = None,
) -> Restored:
    """Commit the content and the metadata of `target` on top of the transaction's snapshot.

    If the table is at that version already nothing is committed. Restored files keep their statistics, tags, deletion
    vectors and row ids. `timestamp` is the requested moment, for the history. With `ignore_missing`, missing files are
    left out, and their rows are lost. `tags` go into the commitInfo.

    Raises FilesMissing if a file to restore, or the file of its deletion vector, is gone or has another size;
    UnsupportedFeature if the target needs a feature that the protocol, or this engine, lacks; ConcurrentWrite if any
    commit lands first, and if files come back while a vacuum runs.
    """
    head = tx.snapshot
    assert head is not None
    if target.version == head.version:
        return Restored(version=head.version)
    metrics = fill_restore(tx, target, store, ignore_missing=ignore_missing)
    for app_id, present in head.state.transactions.items():
        then = target.application_version(app_id)
        if app_id.startswith(TOMBSTONES):
            tx.set_application(app_id, then or NO_TOMBSTONES)
        elif present.version < 0 and then is not None and then >= 0 and app_id not in tx.reads.application_ids:
            # A rollback had undone this work. Other transactions stay, because they record work that is done.
            tx.set_application(app_id, then)
    # The version also for a moment, so that later readers of the log need not find out which one it was.
    asked = {"version": target.version, "timestamp": timestamp}
    version = tx.commit("RESTORE", asked, metrics, tags=tags, never_rebases=True)
    watermarks = rewound(head.state.domains, target.state.domains)
    return Restored(version=version, metrics=metrics, rewound=rewound_text(watermarks, head.state.domains))


def fill_restore(tx: Transaction, target: Snapshot, store: Store, *, ignore_missing: bool = False) -> dict[str, int]:
    """Give the content and the metadata of `target` to the transaction; return the metrics of its commit.

    Raises the errors of `restore`.
    """
    head = tx.snapshot
    assert head is not None
    metadata = _metadata(head.metadata, target.metadata, store.root)
    _check_features(head, target, metadata, store.root)
    coming = _without(target.state.live, head.state.live, store.root)
    going = _without(head.state.live, target.state.live, store.root)
    if coming.num_rows and not ignore_missing:
        check_no_vacuum_runs(head)
    missing = missing_files(store, coming)
    if missing and not ignore_missing:
        instead = (
            "Restore a later version, or put the files back. With ignore_missing=True the restored table lacks "
            f"{_rows_in(coming, missing)} of these files, also those that the latest version has in newer files."
        )
        raise files_missing(store.root, target.version, missing, "restored", instead)
    after_files, after_bytes = target.num_files - len(missing), target.size_bytes
    if missing:
        gone = pc.is_in(coming.column("path"), value_set=pa.array(missing, pa.string()))
        after_bytes -= _size(coming.filter(gone))
        coming = coming.filter(pc.invert(gone))
        log.warning("%s: restored without %d missing files: %s", store.root, len(missing), missing[:_EXAMPLES])
    tx.read_whole_table()
    if metadata != head.metadata:
        # The metadata of that version holds the rules under which its rows were written.
        tx.set_metadata(metadata, is_checked=True)
    _restore_clustering(tx, head, target)
    for domain in rewound(head.state.domains, target.state.domains):
        tx.set_domain(domain.domain, domain.configuration, removed=domain.removed)
    tx.add(table_to_adds(coming, data_change=True))
    tx.remove(going)
    return {
        "tableSizeAfterRestore": after_bytes,
        "numOfFilesAfterRestore": after_files,
        "numRemovedFiles": going.num_rows,
        "numRestoredFiles": coming.num_rows,
        "removedFilesSize": _size(going),
        "restoredFilesSize": _size(coming),
    }


def is_restored(head: Snapshot, target: Snapshot) -> bool:
    """Return whether a restore of `target` would change neither the files nor the metadata of `head`."""
    gone = _without(target.state.live, head.state.live, head.uri)
    more = _without(head.state.live, target.state.live, head.uri)
    return not gone.num_rows and not more.num_rows and _has_metadata_of(head, target)


def is_restored_without_rows(head: Snapshot, before: Snapshot, target: Snapshot) -> bool:
    """Return whether the commit from `before` to `head` has brought `target` back, without some rows.

    A restore leaves rows of erased subjects out (`engine.erasure`): instead of a file that it brings back, it adds one
    with fewer rows, or none. A commit that brings nothing back is no such restore.
    """
    root, files, wanted = head.uri, head.state.live, target.state.live
    gone, more = _without(wanted, files, root), _without(files, wanted, root)
    kept = gone.num_rows - _without(gone, before.state.live, root).num_rows
    known = before.state.files.at_paths(set(canonical_paths(more.column("path"), root).to_pylist()))
    if kept or known.num_rows or not _without(files, before.state.live, root).num_rows:
        return False
    rows, rows_before = (known_sum(live_row_counts(each)) for each in (more, gone))
    has_fewer = not more.num_rows or (rows is not None and rows_before is not None and rows < rows_before)
    return has_fewer and _has_metadata_of(head, target)


def _has_metadata_of(head: Snapshot, target: Snapshot) -> bool:
    now, then = head.metadata, _metadata(head.metadata, target.metadata, head.uri)
    if mapping_mode(target.metadata.configuration, head.uri) == NO_MAPPING:
        # Each restore of a version before the columns were mapped gives them other ids.
        now, then = _without_ids(now, head.uri), _without_ids(then, head.uri)
    return now == then


def _without_ids(metadata: Metadata, table: str) -> Metadata:
    def plain(member: StructField) -> StructField:
        return replace(member, metadata={name: value for name, value in member.metadata.items() if name != ID_KEY})

    schema = with_fields(table_schema(metadata, table), plain)
    kept = {name: value for name, value in metadata.configuration.items() if name != MAX_ID_PROPERTY}
    return msgspec.structs.replace(metadata, schema_string=schema_to_json(schema), configuration=kept)


def _restore_clustering(tx: Transaction, head: Snapshot, target: Snapshot) -> None:
    """Restore the clustering columns, which belong to the layout of files; other domains are their owners'."""
    now, then = (each.state.domains.get(CLUSTERING_DOMAIN) for each in (head, target))
    if then is not None and then != now:
        tx.set_domain(CLUSTERING_DOMAIN, then.configuration)
    elif then is None and now is not None:
        tx.set_domain(CLUSTERING_DOMAIN, now.configuration, removed=True)


def _without(files: pa.Table, others: pa.Table, root: str) -> pa.Table:
    """Return the files that are not among the others; with another deletion vector a file is another one."""
    if not files.num_rows or not others.num_rows:
        return files
    return files.filter(pc.invert(pc.is_in(file_keys(files, root), value_set=file_keys(others, root))))


def _size(files: pa.Table) -> int:
    return int(pc.sum(files.column("size"), min_count=0).as_py())


def _metadata(head: Metadata, target: Metadata, table: str) -> Metadata:
    """Return the target's metadata, with the present identity and counters of the table."""
    kept = {name: head.configuration[name] for name in _OF_THE_LOG if name in head.configuration}
    configuration = {name: value for name, value in target.configuration.items() if name not in _OF_THE_LOG}
    restored = msgspec.structs.replace(
        target, id=head.id, created_time=head.created_time, configuration={**configuration, **kept}
    )
    restored = keep_furthest(head, _with_mapping_of(head, restored, table), table)
    if restored.configuration == head.configuration:
        # Order means nothing in a map, so an unchanged map must not look changed.
        restored = msgspec.structs.replace(restored, configuration=head.configuration)
    return restored


def _with_mapping_of(head: Metadata, restored: Metadata, table: str) -> Metadata:
    """Return the metadata of a version before columns were mapped by name, as the mapped table has it.

    Files of that version hold its columns by their names. The mode of a table never goes back.
    """
    modes = [mapping_mode(each.configuration, table) for each in (head, restored)]
    if modes != ["name", NO_MAPPING]:
        return restored
    noted = head.configuration.get(MAX_ID_PROPERTY, "0")
    schema, last = assign_existing(table_schema(restored, table), int(noted) if noted.isdecimal() else 0)
    mapping = {MODE_PROPERTY: "name", MAX_ID_PROPERTY: str(last)}
    return msgspec.structs.replace(
        restored, schema_string=schema_to_json(schema), configuration={**restored.configuration, **mapping}
    )


def _check_features(head: Snapshot, target: Snapshot, metadata: Metadata, table: str) -> None:
    """Raise UnsupportedFeature if the target needs a feature that the present protocol lacks."""
    needs = needed_features(target.delta_schema, metadata.configuration)
    if target.state.live.column("deletion_vector").null_count < target.num_files:
        needs |= {"deletionVectors"}
    listed = sorted(reader_features(head.protocol) | writer_features(head.protocol))
    # A feature that the version's own protocol did not list had no effect then either.
    needs -= frozenset(missing_features(target.protocol, needs))
    for feature in missing_features(head.protocol, needs):
        raise UnsupportedFeature(
            f"UnsupportedFeature: version {target.version} of {table} uses the feature {feature!r}, which the table's "
            f"protocol does not list ({listed}); a restore never changes the protocol. Nothing was restored. "
            "Add the feature to the table first, or restore another version.",
            table=table,
            feature=feature,
            needed_to="restore",
        )
    check_writable(head.protocol, metadata, target.delta_schema, table)


# --- are the files still there? -------------------------------------------------------------------------------------


def missing_files(store: Store, files: pa.Table) -> list[str]:
    """Return, ordered, the wire paths of files that are gone or have another size, or whose vector's file is gone."""
    paths = canonical_paths(files.column("path"), store.root).to_pylist()
    sizes = files.column("size").to_pylist()
    looked = look_up(store, paths, _PARALLELISM)
    is_there = [info is not None and info.size_bytes == size for info, size in zip(looked, sizes, strict=True)]
    places = {
        number: vector_file(vector["storage_type"], vector["path_or_inline_dv"], store.root)
        for number, vector in enumerate(files.column("deletion_vector").to_pylist())
        if vector is not None
    }
    vectors = sorted({place for place in places.values() if place is not None})
    gone = {place for place, info in zip(vectors, look_up(store, vectors, _PARALLELISM), strict=True) if info is None}
    for number, place in places.items():
        is_there[number] &= place not in gone
    wire = files.column("path").to_pylist()
    return sorted(path for path, found in zip(wire, is_there, strict=True) if not found)


def _rows_in(files: pa.Table, missing: list[str]) -> str:
    """Return how many rows the missing ones of some files have, for people."""
    gone = files.filter(pc.is_in(files.column("path"), value_set=pa.array(missing, pa.string())))
    counts = live_row_counts(gone)
    rows = sum(count or 0 for count in counts)
    return f"{rows} row{'' if rows == 1 else 's'}{' or more' if None in counts else ''}"


def files_missing(
    table: str,
    version: int,
    missing: list[str],
    to_be: str,
    instead: str = "Take a later version, or put the files back.",
) -> FilesMissing:
    """Return the error of a version that cannot be restored or cloned: `to_be`."""
    shown = ", ".join(missing[:_EXAMPLES])
    more = f" and {len(missing) - _EXAMPLES} more" if len(missing) > _EXAMPLES else ""
    return FilesMissing(
        f"FilesMissing: version {version} of {table} cannot be {to_be}: {len(missing)} of its files are gone or have "
        f"another size ({shown}{more}), deleted by an erasure or a VACUUM. Nothing was committed. {instead}",
        table=table,
        version=version,
        count=len(missing),
        examples=missing[:_EXAMPLES],
    )
