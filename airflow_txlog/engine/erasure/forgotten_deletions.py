"""Tombstones without a subject: the deletions that a table remembers are written again, and the old files deleted.

The order protects the table from a kill at each step: copies without the subjects, a manifest that lists them, the
commit that names this manifest, the manifests of earlier versions, and only then the deletions. The commit sets the
application transaction that each job which records deletions has read. So a job that began before it loses, and no
version ever names a file that is listed here. What the next try finds is files that hold a subject, wherever a kill
came. Source: docs/decisions/tombstones.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import msgspec

from airflow_txlog.datafiles.parquet.physical import ParquetFormat
from airflow_txlog.datafiles.parquet.reading import DataFile, open_data_file
from airflow_txlog.datafiles.parquet.rewriting import copy_key_values
from airflow_txlog.datafiles.parquet.writing import Layout, PartitionedWriter
from airflow_txlog.engine.commit.content.remembered_deletions import (
    FOLDER,
    Manifest,
    TombstoneFile,
    decoded,
    encoded,
    manifest_path,
    new_number,
)
from airflow_txlog.engine.commit.content.watermarks import NO_TOMBSTONES
from airflow_txlog.engine.commit.content.watermarks import TOMBSTONES as APPLICATION
from airflow_txlog.engine.delta_table import DeltaTable
from airflow_txlog.engine.erasure.object_verdicts import Held, NoteGoing, verdict_on
from airflow_txlog.engine.erasure.parquet_traces import batches_without_values
from airflow_txlog.engine.erasure.values.forms import Forms
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import CommitConflict, LimitExceeded, OutsideTable
from airflow_txlog.storage import StoreReference
from airflow_txlog.storage.base import FileInfo

_MOST_TRIES = 5

Copies = Mapping[str, tuple[TombstoneFile, ...]]
"""What takes the place of a file of tombstones, by its path."""


@dataclass(slots=True)
class ErasedTombstones:
    """The result of an erasure among tombstones."""

    held: dict[str, Held] = field(default_factory=dict)
    """The files that held a subject and are gone, by path."""
    num_records: int = 0
    """The remembered deletions and events that are forgotten. An older event may bring such a row back."""


def remembers_deletions(snapshot: Snapshot) -> bool:
    """Return whether the table remembers deletions of applied changes."""
    named = (each for name, each in snapshot.state.transactions.items() if name.startswith(APPLICATION))
    return any(each.version > NO_TOMBSTONES for each in named)


def erase_tombstones(
    table: DeltaTable,
    forms: Forms,
    note: NoteGoing = lambda going: None,
    tags: Mapping[str, str] | None = None,
) -> ErasedTombstones:
    """Delete the tombstones that hold a subject, with one commit for each kind of keys that has some.

    `note` gets the files with their verdicts before these are deleted. A file that cannot be read stays as long as a
    manifest lists it.

    Raises CommitConflict if jobs that record deletions keep coming first, and the errors of the store.
    """
    found = ErasedTombstones()
    folders = {
        str(PurePosixPath(info.path).parent) for info in table.store.walk(lambda folder: None, prefix=f"{FOLDER}/")
    }
    for folder in sorted(folders):
        for number in range(_MOST_TRIES):
            try:
                _InFolder(table, forms, folder, note, tags).erase(found)
                break
            except CommitConflict:
                if number + 1 == _MOST_TRIES:
                    raise
    return found


class _InFolder:
    def __init__(
        self,
        table: DeltaTable,
        forms: Forms,
        folder: str,
        note: NoteGoing,
        tags: Mapping[str, str] | None,
    ) -> None:
        self._table, self._store, self._forms = table, table.store, forms
        self._folder, self._note, self._tags = folder, note, tags

    def erase(self, found: ErasedTombstones) -> None:
        """Replace the files of tombstones that hold a value by copies without it, and note what went.

        Raises CommitConflict if another job records deletions at the same time.
        """
        store, tx = self._store, self._table.begin()
        application = APPLICATION + self._folder.rpartition("/")[2]
        number = tx.read_application(application)
        # After the transaction has begun: a file that appears later is of a job that may not lose to this one.
        listed = store.list(self._folder)
        verdicts = {info.path: Held(info, verdict_on(store, info, self._forms)) for info in listed}
        held = {path: found for path, found in verdicts.items() if not found.verdict.passes}
        if not held:
            return
        manifests = self._manifests(listed)
        named = None if number is None else manifest_path(self._folder, number)
        if named in verdicts and named not in manifests:
            # What it lists is unknown: the files stay, and the verification finds them.
            return
        copies, num_records = self._copied(manifests, held)
        rewritten = {path: self._replaced(manifest, copies) for path, manifest in manifests.items()}
        if named in rewritten:
            number = new_number(self._table.clock)
            store.put_if_absent(manifest_path(self._folder, number), encoded(rewritten[named]))
        tx.set_application(application, NO_TOMBSTONES if number is None else number)
        tx.commit("ERASE", tags=self._tags, record_empty=True)
        found.num_records += num_records
        for path, manifest in rewritten.items():
            # A restore to an earlier version names it again.
            if manifest != manifests[path]:
                store.put(path, encoded(manifest))
        needed = {self._path_of(file) for manifest in rewritten.values() for file in manifest.files}
        going = {path: held[path] for path in sorted(held.keys() - needed) if path.endswith(".parquet")}
        self._note([*going.values()])
        found.held |= going
        for path in going:
            store.delete(path)

    def _manifests(self, listed: list[FileInfo]) -> dict[str, Manifest]:
        found = {}
        for info in listed:
            if info.path.endswith(".json"):
                # One that cannot be read names nothing for any job.
                try:
                    manifest = decoded(self._store.read(info.path))
                except (msgspec.MsgspecError, FileNotFoundError, LimitExceeded, OutsideTable):
                    continue
                if manifest.is_known:
                    found[info.path] = manifest
        return found

    def _copied(self, manifests: Mapping[str, Manifest], held: Mapping[str, Held]) -> tuple[Copies, int]:
        """Write the files that a manifest lists and that hold a subject again, without it. Count what they lose."""
        copies: dict[str, tuple[TombstoneFile, ...]] = {}
        lost = 0
        for file in {file.name: file for manifest in manifests.values() for file in manifest.files}.values():
            path = self._path_of(file)
            verdict = held[path].verdict if path in held else None
            if verdict is not None and verdict.verdict == "found" and verdict.reason is None:
                copies[path], count = self._copy(file)
                lost += count
        return copies, lost

    def _copy(self, file: TombstoneFile) -> tuple[tuple[TombstoneFile, ...], int]:
        source = DataFile(store=self._store, path=self._path_of(file), size_bytes=file.size_bytes)
        with open_data_file(source) as parquet:
            schema, key_values = parquet.schema_arrow.remove_metadata(), copy_key_values(parquet)
        layout = Layout(
            store=StoreReference.of(self._store),
            folder=self._folder,
            schema=schema,
            partition_columns=(),
            job_id=self._table.clock.unique_id().replace("-", "")[:16],
            indexed_columns=(),
            parquet=ParquetFormat(codec="SNAPPY", with_dictionaries=False),
            key_values=tuple(key_values.items()),
        )
        writer, lost = PartitionedWriter(layout, self._store), 0
        try:
            for batch, count in batches_without_values(source, self._forms):
                lost += count
                writer.write(batch)
            files = writer.finish()
        except BaseException:
            writer.abandon()
            raise
        copies = [
            TombstoneFile(
                name=each.store_path.removeprefix(f"{self._folder}/"),
                size_bytes=each.size_bytes,
                num_records=each.num_records,
                recorded_ms=file.recorded_ms,
            )
            for each in files
        ]
        return tuple(copies), lost

    def _replaced(self, manifest: Manifest, copies: Copies) -> Manifest:
        files = [each for file in manifest.files for each in copies.get(self._path_of(file), (file,))]
        return msgspec.structs.replace(manifest, files=tuple(files))

    def _path_of(self, file: TombstoneFile) -> str:
        return f"{self._folder}/{file.name}"
