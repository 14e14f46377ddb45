"""A checkpoint, written: classic in one file, or V2 with its file actions in sidecars.

The invariant: it is written in slices, which bound the memory, and appears whole or not at all. The top level of a V2
checkpoint is written last: a writer that dies before leaves only sidecars that nothing names.
Source: protocol, "Checkpoints", "V2 Spec" and "Checkpoint Schema"; delta-spark for the names of sidecars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_txlog.datafiles.parquet.physical import DEFAULT_FORMAT, ParquetFormat
from airflow_txlog.engine.log.actions import DomainMetadata, Metadata, Protocol, SetTransaction
from airflow_txlog.engine.log.checkpoints.rows import (
    ADD,
    CHECKPOINT,
    CHECKPOINT_METADATA,
    REMOVE,
    SIDECAR,
    SIDECAR_DIRECTORY,
    VECTOR_TYPE,
    CheckpointMetadata,
    Sidecar,
    wire_name,
)
from airflow_txlog.engine.log.names import checkpoint_name, v2_checkpoint_name, version_prefix
from airflow_txlog.engine.log.segment import LastCheckpoint, V2Hint, write_hint
from airflow_txlog.storage.base import FileInfo, Store

# With more actions the hint would cost its readers more than it saves them. Source: delta-spark.
_HINT_ACTIONS = 30

_Action = dict[str, msgspec.Struct]
"""An action under its name."""

# Paths and statistics differ in every row: a dictionary of them is wasted work.
_REPEATING = [
    "add.partitionValues.key_value.key",
    "add.partitionValues.key_value.value",
    "add.tags.key_value.key",
    "add.tags.key_value.value",
    "add.clusteringProvider",
    "remove.partitionValues.key_value.key",
    "remove.partitionValues.key_value.value",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddForm:
    """The members of `add` in a checkpoint."""

    with_json_statistics: bool = True
    """delta.checkpoint.writeStatsAsJson."""
    parsed: Sequence[pa.Field] = ()
    """Further members of `add`: `stats_parsed`, `partitionValues_parsed`."""
    parse: Callable[[pa.RecordBatch], Sequence[pa.Array]] | None = None
    """Returns the values of these members, in their order, for some rows of schema FILES."""

    @property
    def type(self) -> pa.StructType:
        kept = [each for each in ADD if self.with_json_statistics or each.name != "stats"]
        return pa.struct([*kept, *self.parsed])

    def rows(self, files: pa.RecordBatch) -> pa.StructArray:
        """Return rows of schema FILES as add actions."""
        values = self.parse(files) if self.parse is not None else ()
        return _wire_rows(files, self.type, dict(zip((each.name for each in self.parsed), values, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """The part of a version's reconciled state that a checkpoint keeps."""

    version: int
    protocol: Protocol
    metadata: Metadata
    transactions: Mapping[str, SetTransaction]
    domains: Mapping[str, DomainMetadata]
    adds: pa.Table
    """The live files, schema FILES."""
    removes: pa.Table
    """The tombstones that are still kept, schema TOMBSTONES."""
    parquet: ParquetFormat = DEFAULT_FORMAT
    """The table's own Parquet format."""


def write_checkpoint(store: Store, state: CheckpointState, form: AddForm = AddForm()) -> None:
    """Write the classic checkpoint of the state's version, whose commit exists, and then the hint to it.

    Two writers of one version write the same state. If the store raises, the log is unchanged.
    """
    path = checkpoint_name(state.version)
    small = _small_actions(state)
    schema = _schema(form)
    with store.open_output(path) as output, _writer(output, schema, state) as writer:
        writer.write_table(_others(small, schema))
        for name, rows in _files(state, store.limits.checkpoint_group_rows):
            writer.write_table(_file_actions(name, rows, form, schema))
    info = store.stat(path)
    hint = LastCheckpoint(
        version=state.version,
        size=len(small) + state.adds.num_rows + state.removes.num_rows,
        size_in_bytes=None if info is None else info.size_bytes,
        num_of_add_files=state.adds.num_rows,
    )
    write_hint(store, hint)


def write_v2_checkpoint(
    store: Store, state: CheckpointState, unique_id: Callable[[], str], form: AddForm = AddForm()
) -> None:
    """Write a V2 checkpoint of the state's version: sidecars, then the top level, and then the hint to it.

    The protocol must list v2Checkpoint. `unique_id` returns fresh UUIDs. Raises the store's errors, and
    FileNotFoundError if a sidecar was deleted before the end; then only unreferenced sidecars stay, which the log
    cleanup removes.
    """
    sidecars = _write_sidecars(store, state, unique_id, form)
    about: _Action = {"checkpointMetadata": CheckpointMetadata(version=state.version)}
    actions = [about, *_small_actions(state)]
    path = v2_checkpoint_name(state.version, unique_id())
    schema = _schema(form).append(CHECKPOINT_METADATA).append(SIDECAR)
    with store.open_output(path) as output, _writer(output, schema, state) as writer:
        named: list[_Action] = [{"sidecar": each} for each in sidecars]
        writer.write_table(_others([*actions, *named], schema))
    info = store.stat(path)
    if info is None:
        return
    hint = LastCheckpoint(
        version=state.version,
        size=len(actions) + len(sidecars) + state.adds.num_rows + state.removes.num_rows,
        size_in_bytes=info.size_bytes + sum(each.size_in_bytes for each in sidecars),
        num_of_add_files=state.adds.num_rows,
        v2_checkpoint=V2Hint(
            path=_base_name(path),
            size_in_bytes=info.size_bytes,
            modification_time=info.modified_ms,
            non_file_actions=actions if len(actions) <= _HINT_ACTIONS else None,
            sidecar_files=sidecars if len(sidecars) <= _HINT_ACTIONS else None,
        ),
    )
    write_hint(store, hint)


# --- files ----------------------------------------------------------------------------------------------------------


def _write_sidecars(store: Store, state: CheckpointState, unique_id: Callable[[], str], form: AddForm) -> list[Sidecar]:
    """Write all adds and removes in files of about `checkpoint_sidecar_rows`; none without a file action."""
    limits = store.limits
    count = -(-(state.adds.num_rows + state.removes.num_rows) // limits.checkpoint_sidecar_rows)
    schema = _schema(form, ("add", "remove"))
    files = _files(state, limits.checkpoint_group_rows)
    infos: list[FileInfo] = []
    rest = next(files, None)
    while rest is not None:
        number = len(infos) + 1
        # The reference writer's names; the counts are for people.
        name = f"{_base_name(version_prefix(state.version))}.checkpoint.{number:010d}.{max(count, number):010d}"
        path = f"{SIDECAR_DIRECTORY}/{name}.{unique_id()}.parquet"
        with store.open_output(path) as output, _writer(output, schema, state) as writer:
            written = 0
            while rest is not None and (not written or written + len(rest[1]) <= limits.checkpoint_sidecar_rows):
                writer.write_table(_file_actions(*rest, form, schema))
                written += len(rest[1])
                rest = next(files, None)
        info = store.stat(path)
        if info is None:
            raise FileNotFoundError(f"{store.root}/{path}")
        infos.append(info)
    return [
        Sidecar(path=_base_name(info.path), size_in_bytes=info.size_bytes, modification_time=info.modified_ms)
        for info in infos
    ]


def _files(state: CheckpointState, group_rows: int) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield every file action in batches of one row group, removes first, with the name of the action."""
    for name, files in (("remove", state.removes), ("add", state.adds)):
        for start in range(0, files.num_rows, group_rows):
            for rows in files.slice(start, group_rows).combine_chunks().to_batches():
                yield name, rows


def _file_actions(name: str, rows: pa.RecordBatch, form: AddForm, schema: pa.Schema) -> pa.Table:
    actions = form.rows(rows) if name == "add" else _wire_rows(rows, REMOVE, {})
    return _actions(len(rows), {name: actions}, schema)


def _wire_rows(rows: pa.RecordBatch, struct: pa.StructType, more: Mapping[str, pa.Array]) -> pa.StructArray:
    by_name = dict(zip(map(wire_name, rows.schema.names), rows.columns, strict=True))
    by_name["dataChange"] = pa.repeat(pa.scalar(False), len(rows))
    vectors = by_name["deletionVector"]
    by_name["deletionVector"] = pa.StructArray.from_arrays(
        vectors.flatten(), fields=list(VECTOR_TYPE), mask=vectors.is_null()
    )
    by_name.update(more)
    return pa.StructArray.from_arrays([by_name[each.name] for each in struct], fields=list(struct))


# --- everything else ------------------------------------------------------------------------------------------------


def _small_actions(state: CheckpointState) -> list[_Action]:
    """Return all actions but those of files."""
    protocol = msgspec.structs.replace(
        state.protocol,
        # The protocol requires lists in versions with feature lists, and null in others.
        reader_features=(state.protocol.reader_features or []) if state.protocol.min_reader_version >= 3 else None,
        writer_features=(state.protocol.writer_features or []) if state.protocol.min_writer_version >= 7 else None,
    )
    actions: list[_Action] = [{"protocol": protocol}, {"metaData": state.metadata}]
    actions += [{"txn": each} for each in state.transactions.values()]
    actions += [{"domainMetadata": each} for each in state.domains.values() if not each.removed]
    return actions


def _others(actions: Sequence[_Action], schema: pa.Schema) -> pa.Table:
    names = {name for action in actions for name in action}
    rows = [msgspec.to_builtins(action) for action in actions]
    columns = {name: pa.array([row.get(name) for row in rows], schema.field(name).type) for name in names}
    return _actions(len(rows), columns, schema)


# --- Parquet --------------------------------------------------------------------------------------------------------


def _schema(form: AddForm, names: Sequence[str] = tuple(CHECKPOINT.names)) -> pa.Schema:
    return pa.schema([(name, form.type if name == "add" else CHECKPOINT.field(name).type) for name in names])


def _writer(output: object, schema: pa.Schema, state: CheckpointState) -> pq.ParquetWriter:
    options = state.parquet.options()
    return pq.ParquetWriter(output, schema, use_dictionary=_REPEATING, write_page_checksum=True, **options)


def _actions(count: int, columns: Mapping[str, pa.Array], schema: pa.Schema) -> pa.Table:
    """Return rows of the schema, null in all but the given columns."""
    arrays = [columns[each.name] if each.name in columns else pa.nulls(count, each.type) for each in schema]
    return pa.table(arrays, schema=schema)


def _base_name(path: str) -> str:
    return path.rpartition("/")[2]
