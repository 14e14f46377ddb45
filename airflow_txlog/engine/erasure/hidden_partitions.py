"""Files whose partition alone shows a subject: those of a table with mapped columns show it in no path and no column.

Tombstones name the partitions of old data files, and commits those of change files. A checkpoint drops a tombstone
after the retention, and a log is cleaned, while the file may still be there: its partition is unknown then, and may be
the subject's. The invariant: a file of a table that is partitioned by the key stays only if its partition is known, and
is another one. Source: protocol, "Add CDC File", "Action Reconciliation".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from airflow_txlog.engine.erasure.values.forms import Forms
from airflow_txlog.engine.log.actions import UNREADABLE, Add, Cdc, decode_commit
from airflow_txlog.engine.log.names import LOG_DIRECTORY, commit_name
from airflow_txlog.engine.log.paths import canonical_path, canonical_paths
from airflow_txlog.engine.log.segment import look
from airflow_txlog.engine.staged_changes import waiting_files
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import TxlogError
from airflow_txlog.locations import PRIVATE_PREFIX

_Partition = tuple[tuple[str, str | None], ...]


def in_hidden_partitions(snapshot: Snapshot, forms: Forms, unneeded: Iterable[str]) -> Collection[str]:
    """Return the paths of files whose partition holds a value, or is unknown and may hold one.

    `unneeded`: the files below the table that the latest version does not name.
    """
    if not snapshot.partition_columns:
        return ()
    store, tombstones = snapshot.store, snapshot.state.tombstones
    paths = canonical_paths(tombstones.column("path"), store.root).to_pylist()
    values = tombstones.column("partition_values").to_pylist()
    partitions: dict[str, _Partition] = {path: tuple(each or ()) for path, each in zip(paths, values, strict=True)}
    own = {name.lower() for name in forms.paths}
    if any(name.lower() in own for name in snapshot.partition_columns):

        def is_shown(path: str) -> bool:
            return any(f"{name}=" in path.lower() for name in own)

        hidden = {path for path in unneeded if _is_data_file(path) and not is_shown(path)}
        if not hidden <= partitions.keys():
            partitions = {**dict(_in_commits(snapshot)), **partitions}
            # A staged change names the partitions of its files, and waits as a whole.
            staged = {path for change in waiting_files(store) for path in change.paths or ()}
            partitions |= dict.fromkeys(hidden - partitions.keys() - staged, ())
        # The removes of other writers may lack them. The value is unknown then, unless the path shows it.
        unknown = {path for path, partition in partitions.items() if not partition and not is_shown(path)}
    else:
        unknown = set()
    holds = {
        partition: any(forms.in_text(value or "", name) for name, value in partition)
        for partition in set(partitions.values())
    }
    return unknown | {path for path, partition in partitions.items() if holds[partition]}


def _is_data_file(path: str) -> bool:
    # The rows that a job has saved show the key in a column.
    return path.endswith(".parquet") and not path.startswith((f"{LOG_DIRECTORY}/", PRIVATE_PREFIX))


def _in_commits(snapshot: Snapshot) -> Iterator[tuple[str, _Partition]]:
    """Yield the path and the partition of each file that a commit names."""
    store = snapshot.store
    for version in look(store, 0).commits:
        name = commit_name(version)
        try:
            commit = decode_commit(version, store.read(name), name)
        except (TxlogError, FileNotFoundError, *UNREADABLE):
            # The partitions of its files stay unknown.
            continue
        named: Iterable[Add | Cdc] = (*commit.adds, *commit.cdc)
        for file in named:
            yield canonical_path(file.path, store.root), tuple(file.partition_values.items())
