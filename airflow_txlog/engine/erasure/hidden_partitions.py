"""Files whose partition is the only sign of a subject. With mapped columns, no path and no column shows the subject.

Tombstones name the partitions of old data files, and commits name those of change files. A file may outlive both: a
checkpoint drops a tombstone after the retention, and old commits are deleted. Its partition is then unknown, and may be
the subject's, even if the table now has other partition columns. The invariant: a file without a column of the key
stays only if its partition is known, and is not a subject's.
Source: protocol, "Add CDC File", "Action Reconciliation".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from airflow_txlog.datafiles.parquet.reading import DataFile
from airflow_txlog.engine.erasure.object_verdicts import is_of_machine
from airflow_txlog.engine.erasure.parquet_traces import has_key
from airflow_txlog.engine.erasure.values.forms import Forms
from airflow_txlog.engine.log.actions import UNREADABLE, Add, Cdc, Remove, decode_commit
from airflow_txlog.engine.log.names import LOG_DIRECTORY, commit_name
from airflow_txlog.engine.log.paths import canonical_path, canonical_paths
from airflow_txlog.engine.log.segment import look
from airflow_txlog.engine.staged_changes import waiting_files
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import TxlogError
from airflow_txlog.locations import PRIVATE_PREFIX
from airflow_txlog.storage.base import Store, side_by_side

_Partition = tuple[tuple[str, str | None], ...]


def in_hidden_partitions(snapshot: Snapshot, forms: Forms, unneeded: Iterable[str]) -> Collection[str]:
    """Return the paths of files whose partition holds a value, or is unknown and may hold one.

    `unneeded`: the files below the table that the latest version does not name.
    """
    store = snapshot.store
    own = {name.lower() for name in forms.paths}
    shown = tuple(f"/{name}=" for name in own)
    hidden = {
        path for path in unneeded if _is_data_file(path) and not any(each in f"/{path.lower()}" for each in shown)
    }
    partitions = _of_tombstones(snapshot, own)
    unknown = hidden - partitions.keys()
    if unknown:
        partitions |= _in_commits(store, unknown)
        # A staged change names the partitions of its files, and waits as a whole.
        staged = {path for change in waiting_files(store) for path in change.paths or ()}
        unknown = set(_without_key(store, forms, sorted(unknown - partitions.keys() - staged)))
    pairs = list({pair for partition in partitions.values() for pair in partition})
    held = zip(pairs, forms.holding([value or "" for _, value in pairs]), strict=True)
    holding = {pair for pair, holds in held if holds or forms.in_named_text(pair[1] or "", pair[0])}
    return unknown | {path for path, partition in partitions.items() if not holding.isdisjoint(partition)}


def _is_data_file(path: str) -> bool:
    # The rows that a job has saved show the key in a column.
    return path.endswith(".parquet") and not path.startswith((f"{LOG_DIRECTORY}/", PRIVATE_PREFIX))


def _of_tombstones(snapshot: Snapshot, own: set[str]) -> dict[str, _Partition]:
    """Return the partitions that tombstones name. `own`: the names of the key."""
    tombstones = snapshot.state.tombstones
    paths = canonical_paths(tombstones.column("path"), snapshot.store.root).to_pylist()
    values = tombstones.column("partition_values").to_pylist()
    names = {*snapshot.partition_columns, *(name for each in values for name, _ in each or ())}
    # The removes of other writers may lack them, or have none.
    has_none = own.isdisjoint(name.lower() for name in names)
    named = zip(paths, values, strict=True)
    return {path: tuple(each) for path, each in named if each or (each is not None and has_none)}


def _in_commits(store: Store, wanted: Collection[str]) -> dict[str, _Partition]:
    """Return the partitions of the wanted files, as far as commits name them."""

    def named_in(version: int) -> Mapping[str, _Partition]:
        name = commit_name(version)
        try:
            commit = decode_commit(version, store.read(name), name)
        except (TxlogError, FileNotFoundError, *UNREADABLE):
            # The partitions of its files stay unknown.
            return {}
        # A remove may lack them.
        removes = (each for each in commit.removes if each.partition_values)
        named: Iterable[Add | Cdc | Remove] = (*removes, *commit.adds, *commit.cdc)
        of_files = ((canonical_path(file.path, store.root), file.partition_values or {}) for file in named)
        return {path: tuple(partition.items()) for path, partition in of_files if path in wanted}

    found: dict[str, _Partition] = {}
    versions = sorted(look(store, 0).commits)
    for each in side_by_side(named_in, versions) if store.is_remote else map(named_in, versions):
        found |= each
    return found


def _without_key(store: Store, forms: Forms, paths: Sequence[str]) -> Iterator[str]:
    """Yield the files without a column of the key, and those that cannot be read."""

    def lacks_key(path: str) -> bool:
        try:
            return not has_key(DataFile(store=store, path=path), forms)
        except Exception as error:
            if is_of_machine(error):
                raise
            # As in the search itself: a damaged file raises whatever its bytes lead to.
            return True

    answers = side_by_side(lacks_key, paths) if store.is_remote else map(lacks_key, paths)
    return (path for path, lacks in zip(paths, answers, strict=True) if lacks)
