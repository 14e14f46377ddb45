"""The deletions that a table remembers, so that an older event does not bring a row back.

Tombstones are Parquet files in a hidden folder of the table, which no reader takes for data and no VACUUM deletes. A
manifest lists the valid ones, and an application transaction of the table names the manifest by its number. The
invariant: the commit that deletes rows also names their tombstones, so that a table never has one without the other.
Source: docs/decisions/tombstones.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace as replace_fields

from airflow_txlog.contract.wording import plural
from airflow_txlog.datafiles.tasks.change_rows import SEQUENCE_COLUMN, greatest_sequence, key_column
from airflow_txlog.datafiles.tasks.rows_without_log import MaterializedScan
from airflow_txlog.datafiles.tasks.scan_and_write import Task
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.commit.content.remembered_deletions import (
    FOLDER,
    NUMBER_BITS,
    Manifest,
    TombstoneFile,
    decoded,
    encoded,
    manifest_path,
    names_of_keys,
    new_number,
)
from airflow_txlog.engine.commit.content.watermarks import NO_TOMBSTONES, TOMBSTONES
from airflow_txlog.errors import CorruptTable, InvalidJobSpec
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import bins_for, plan_of
from airflow_txlog.jobs.files.stage import input_layout, load
from airflow_txlog.locations import readable

_HOUR_MS = 3_600_000
# A file that no manifest lists may belong to a job that runs, or to a version that a RESTORE brings back.
_LEAST_AGE_MS = 8 * 24 * _HOUR_MS
# From this many files on, those of earlier runs become one for each of the shares of their life.
_MOST_FILES = 16
_SHARES_OF_LIFE = 8
# The text of such a sequence is that of its number.
_NUMBERED = {pa.timestamp("us").id: pa.int64(), pa.date32().id: pa.int32()}
# A manifest has some dozen files, and those of one run.
_MOST_MANIFEST_BYTES = 32 * 2**20


@dataclass(frozen=True, kw_only=True)
class Tombstones:
    """The tombstones of a snapshot for certain keys, which `application` stands for.

    `number`: of their manifest; None if there never was one. `folder`: of this manifest and all that it lists. `types`:
    of the keys and of the sequence. `names`: the physical ones of the keys. `values`: the columns with the rest of a
    remembered event, if more than deletions are remembered. `horizon`: as that of a manifest.
    """

    application: str
    folder: str
    number: int | None
    files: tuple[TombstoneFile, ...]
    types: tuple[pa.DataType, ...]
    names: tuple[str, ...]
    values: tuple[pa.Field, ...] = ()
    horizon: bytes | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the keys in the files."""
        return tuple(key_column(number) for number in range(len(self.types) - 1))

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*map(pa.field, [*self.keys, SEQUENCE_COLUMN], self.types), *self.values])

    @property
    def greatest_dropped(self) -> pa.Array | None:
        """The greatest sequence of the tombstones that the table has dropped, alone; None if it has dropped none."""
        if self.horizon is None:
            return None
        text, kind = self.horizon.decode(), self.types[-1]
        number = _NUMBERED.get(kind.id)
        return pa.array([text]).cast(kind) if number is None else pa.array([int(text)], number).cast(kind)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def scans(self, context: JobContext) -> list[MaterializedScan]:
        """Return the scans of all tombstones: one, or none if there are none."""
        return [self.scan(context, self.files)] if self.files else []

    def scan(
        self, context: JobContext, files: Sequence[TombstoneFile], names: Sequence[str] | None = None
    ) -> MaterializedScan:
        """Return the scan of some of the files, and of some of their columns."""
        paths, sizes = [f"{self.folder}/{file.name}" for file in files], [file.size_bytes for file in files]
        schema = self.schema if names is None else pa.schema([self.schema.field(name) for name in names])
        plan = plan_of(context.store, schema, paths, sizes)
        return MaterializedScan(bins=bins_for(context, plan), schema=schema)

    def path_of(self, number: int) -> str:
        """Return the path of a manifest."""
        return manifest_path(self.folder, number)


def check_life(context: JobContext, snapshot: Snapshot, hours: float) -> None:
    """Raise InvalidJobSpec if the table may forget its tombstones earlier than after these hours."""
    retention_ms = snapshot.table_properties.set_transaction_retention_ms
    if retention_ms is not None and hours * _HOUR_MS > retention_ms:
        raise InvalidJobSpec(
            f"{context.root}: tombstone_hours is {hours:g}, and the table forgets application transactions, which name "
            f"its tombstones, after {retention_ms / _HOUR_MS:g} hours (delta.setTransactionRetentionDuration). Raise "
            "that property, or lower tombstone_hours. Nothing was read.",
            argument="tombstone_hours",
        )


def tombstones_of(
    context: JobContext,
    tx: Transaction,
    snapshot: Snapshot,
    keys: Sequence[str],
    kept_sequence: str,
    hours: float,
    values: Sequence[pa.Field] = (),
    kind: str = "",
) -> Tombstones:
    """Return the tombstones of one kind that the snapshot names for these columns of the table.

    A commit that lands first and names others is a conflict. Raises CorruptTable if their manifest or a file in it is
    gone while a tombstone may still count.
    """
    fields = [snapshot.delta_schema.by_name[name.lower()] for name in (*keys, kept_sequence)]
    # A renamed column keeps its physical name, and a clone has another id.
    of = "\0".join([snapshot.metadata.id, *(field.physical_name for field in fields), *filter(None, [kind])])
    digest = hashlib.sha256(of.encode(errors="surrogatepass")).hexdigest()[:32]
    application = TOMBSTONES + digest
    found = Tombstones(
        application=application,
        folder=f"{FOLDER}/{digest}",
        number=tx.read_application(application),
        files=(),
        types=tuple(snapshot.schema.field(field.name).type for field in fields),
        names=tuple(field.physical_name for field in fields[:-1]),
        values=tuple(values),
    )
    # A restore or a rollback to a version without tombstones leaves the number of none.
    if found.number is None or found.number <= NO_TOMBSTONES:
        return found
    may_matter = context.clock.now_ms() - (found.number >> NUMBER_BITS) < hours * _HOUR_MS
    manifest = _listed(context, found, found.path_of(found.number), may_matter=may_matter)
    return replace(found, files=manifest.files, horizon=manifest.horizon)


def _listed(context: JobContext, known: Tombstones, path: str, *, may_matter: bool) -> Manifest:
    sizes = {info.path: info.size_bytes for info in context.store.list(known.folder)}
    if sizes.get(path, 0) > _MOST_MANIFEST_BYTES:
        raise _broken(context, path, "is larger than any that this package writes")
    try:
        found = decoded(context.store.read(path))
    except FileNotFoundError as error:
        if not may_matter:
            return Manifest(files=())
        raise _broken(context, path, "is gone") from error
    except msgspec.MsgspecError as error:
        raise _broken(context, path, "cannot be read") from error
    if not found.is_known:
        raise _broken(context, path, "is not of a form that this release knows")
    if all(sizes.get(f"{known.folder}/{file.name}") == file.size_bytes for file in found.files):
        return found
    if not may_matter:
        return replace_fields(found, files=())
    raise _broken(context, path, "names files that are gone or have changed")


def _broken(context: JobContext, path: str, what: str) -> CorruptTable:
    return CorruptTable(
        f"{context.root}: the table names tombstones, and their list {readable(context.root, path)} {what}. Without "
        "them, an older event could bring a deleted row back. Nothing was changed. Restore the file; "
        "or, if no event older than the deletions can come, let tombstone_hours be 0 for one run.",
        table=context.root,
        path=path,
    )


class Recording:
    """Writes the tombstones of a job before its commit, again in each attempt."""

    def __init__(self, context: JobContext, hours: float) -> None:
        self._context = context
        self._life_ms = int(hours * _HOUR_MS)
        self._written: list[str] = []

    def forget(self, tx: Transaction, known: Tombstones) -> None:
        """Have the commit name no tombstones any more, if they have no life."""
        if not self._life_ms and (known.number or 0) > NO_TOMBSTONES:
            tx.set_application(known.application, NO_TOMBSTONES)

    def begin(self, tx: Transaction, known: Tombstones, new: Task) -> Callable[[], None]:
        """Have the commit name a new manifest; return the step that writes it and the tombstones that `new` yields."""
        number = new_number(self._context.clock)
        tx.set_application(known.application, number)
        return lambda: self._write(number, known, new)

    def _write(self, number: int, known: Tombstones, task: Task) -> None:
        context, now_ms = self._context, self._context.clock.now_ms()
        # An attempt that lost has left these, and no commit names them.
        for path in self._written:
            context.store.delete(path)
        self._written = [known.path_of(number)]
        new = self._staged(known, task, now_ms)
        kept = [file for file in known.files if file.recorded_ms > now_ms - self._life_ms]
        self._log(known, kept, new)
        horizon = self._horizon(known, [file for file in known.files if file not in kept])
        if len(kept) >= _MOST_FILES:
            kept = self._fewer(known, kept)
        manifest = Manifest(files=(*kept, *new), horizon=horizon)
        path, data = known.path_of(number), encoded(manifest)
        if not context.store.put_if_absent(path, data) and context.store.read(path) != data:
            raise _broken(context, path, "is another job's")
        self._sweep(known, manifest, now_ms)

    def _log(self, known: Tombstones, kept: Sequence[TombstoneFile], new: Sequence[TombstoneFile]) -> None:
        before, stay, come = (sum(file.num_records for file in files) for files in (known.files, kept, new))
        hours = self._life_ms / _HOUR_MS
        dropped = f"; {before - stay} have expired and are dropped" if before > stay else ""
        self._context.log(
            f"{plural(come, 'tombstone')} recorded for at least {hours:g} hours{dropped}; the table has {stay + come}"
        )

    def _horizon(self, known: Tombstones, dropped: Sequence[TombstoneFile]) -> bytes | None:
        """Return the horizon of the tombstones without the dropped ones."""
        if not dropped:
            return known.horizon
        scan = known.scan(self._context, dropped, [SEQUENCE_COLUMN])
        task = Task(source=scan, steps=(greatest_sequence,))
        found = self._context.executor.run([task], scan.schema, "read the sequences of expired tombstones")
        before = [] if known.greatest_dropped is None else [known.greatest_dropped]
        greatest = pc.max(pa.chunked_array([*found.column(SEQUENCE_COLUMN).chunks, *before], known.types[-1]))
        if not greatest.is_valid:
            return known.horizon
        number = _NUMBERED.get(greatest.type.id)
        return str((greatest if number is None else greatest.cast(number)).as_py()).encode()

    def _fewer(self, known: Tombstones, kept: Sequence[TombstoneFile]) -> list[TombstoneFile]:
        """Unite the files that were recorded at about the same time, so that old tombstones still expire."""
        share_ms = max(self._life_ms // _SHARES_OF_LIFE, 1)
        fewer: list[TombstoneFile] = []
        for _, found in groupby(
            sorted(kept, key=lambda file: file.recorded_ms), lambda file: file.recorded_ms // share_ms
        ):
            files = list(found)
            if len(files) > 1:
                files = self._staged(known, Task(source=known.scan(self._context, files)), files[-1].recorded_ms)
            fewer += files
        return fewer

    def _staged(self, known: Tombstones, task: Task, recorded_ms: int) -> list[TombstoneFile]:
        """Write the rows of the task as tombstones."""
        context = self._context
        layout = replace(
            input_layout(context, known.schema), folder=known.folder, key_values=names_of_keys(known.names)
        )
        staged = load(context, replace(task, layout=layout), "write tombstones").files
        self._written += [file.store_path for file in staged]
        return [
            TombstoneFile(
                name=file.store_path.removeprefix(f"{known.folder}/"),
                size_bytes=file.size_bytes,
                num_records=file.num_records,
                recorded_ms=recorded_ms,
            )
            for file in staged
        ]

    def _sweep(self, known: Tombstones, manifest: Manifest, now_ms: int) -> None:
        """Delete old files that neither the table's manifest nor the new one lists."""
        store = self._context.store
        listed = {f"{known.folder}/{file.name}" for file in (*known.files, *manifest.files)}
        listed |= {known.path_of(known.number)} if known.number is not None else set()
        old_ms = now_ms - self._life_ms - _LEAST_AGE_MS
        for info in store.list(known.folder):
            if info.path not in listed and info.modified_ms < old_ms:
                store.delete(info.path)
