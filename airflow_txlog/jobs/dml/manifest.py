"""The memory of a job written down, so that a retry or a restarted worker goes on where the last try ended.

It lies in the job's inputs folder inside the table, beside the pinned inputs that it names, and is written after every
staging and before the commit that may use it. A file appears under a name that holds the digest of its bytes, so a
torn one is never believed; the newest whole one counts. Only work with an application transaction has one: that is
what makes two tries the same work.

The invariant: what is resumed was found and staged for the same spec, the same transaction, the same table, by the same
release and in the same SQL dialect; and a file that a saved manifest names is deleted by nobody before its transaction
is in the table. Source: soundness A17, B1, B2.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

import airflow_txlog
from airflow_txlog.datafiles.locations import exists, open_output
from airflow_txlog.datafiles.masks import MaskedRows
from airflow_txlog.datafiles.output import StagedFile
from airflow_txlog.engine.store import Store, open_store
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.dml.memory import VERDICTS, FileVerdicts, LiveFile, Memory, Scan, Segment
from airflow_txlog.jobs.dml.sameness import TableRules
from airflow_txlog.jobs.schemas import is_ansi
from airflow_txlog.jobs.stage import may_be_swept

_FORMAT = 3
_PREFIX = "memory-"
_HEADER = b"txlog"

# One row a scanned file. Beside each of its `clauses` stands the bitmap of the rows; the pairs of all files lie one
# after another in three columns of lists.
_SCANS = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("vector", pa.string()),
        pa.field("masked", pa.large_binary()),
        pa.field("clauses", pa.list_(pa.int32())),
        pa.field("rows", pa.list_(pa.large_binary())),
        *(pa.field(name, pa.large_list(VERDICTS.field(name).type)) for name in VERDICTS.names),
    ]
)


class Manifest:
    """Where the memory of one job is kept. Does nothing for work without an application transaction."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._store: Store = open_store(context.root)
        self._number = 0
        self._saved: list[str] = []
        self._may_save = context.spec.application is not None
        self.is_published = False
        """Whether another try may know of what this job has staged."""

    def load(self) -> Memory:
        """The memory of an earlier try of the same work, or an empty one. What it had pinned is pinned so again."""
        if not self._may_save:
            return Memory()
        for path in self._saved_before():
            try:
                found = _decode(self._store.read(path), path)
            except FileNotFoundError:
                # Another copy of the work has just written a newer one.
                continue
            if found is None or found[0]["identity"] != self._identity():
                continue
            header, table = found
            memory = _memory(header, table)
            if not (self._are_fresh(memory.staged_files()) and self._inputs_are_there(header["pinned"])):
                self._context.log("what an earlier try had staged is too old, or no longer there; starting over")
                break
            self._context.pinned_inputs.update(header["pinned"])
            self._context.pin_clocks(header["clocks"])
            self.is_published = True
            self._saved.append(path)
            self._context.log(
                f"resuming an earlier try: {len(memory.scans)} files looked at, {len(memory.segments)} pieces staged"
            )
            return memory
        return Memory()

    def save(self, memory: Memory) -> None:
        """Write the memory down; earlier writings of this job go. A memory that cannot be saved is only a loss."""
        if not self._may_save or self._context.pinned_inputs.get("reads_target"):
            return
        header = {
            "format": _FORMAT,
            "identity": self._identity(),
            "pinned": self._context.pinned_inputs,
            "clocks": self._context.pinned.saved,
            "rules": None if memory.rules is None else memory.rules.to_plain(),
            "segments": [_plain_segment(segment) for segment in memory.segments],
            "dropped": [dataclasses.asdict(file) for file in memory.dropped],
        }
        data = _encode(header, memory)
        digest = hashlib.sha256(data).hexdigest()
        self._number += 1
        name = f"{_PREFIX}{self._context.job_id}-{self._number:04d}-{uuid.uuid4().hex[:8]}-{digest}.arrow"
        # Known to others from the moment that writing begins.
        self.is_published = True
        try:
            with open_output(f"{self._context.inputs_location}/{name}") as sink:
                sink.write(data)
        except OSError as error:
            self._context.log(f"what was staged could not be written down ({error}): a retry would start over")
            return
        earlier, self._saved = self._saved, [f"{self._folder}/{name}"]
        for path in earlier:
            with contextlib.suppress(Exception):
                self._store.delete(path)

    @property
    def _folder(self) -> str:
        return self._context.inputs_location.rsplit("/", 1)[-1]

    def _saved_before(self) -> list[str]:
        """Newest first, by the store's clock."""
        with contextlib.suppress(FileNotFoundError):
            found = [info for info in self._store.list(self._folder) if info.path.split("/")[-1].startswith(_PREFIX)]
            return [info.path for info in sorted(found, key=lambda info: (info.modified_ms, info.path), reverse=True)]
        return []

    def _identity(self) -> dict[str, Any]:
        """What must agree for the memory of another process to be this job's."""
        spec = self._context.spec
        assert spec.application is not None
        return {
            "app_id": spec.application.app_id,
            "version": spec.application.version,
            "digest": spec.digest(),
            "release": airflow_txlog.__version__,
            "ansi": is_ansi(self._context.spark),
        }

    def _are_fresh(self, files: Sequence[StagedFile]) -> bool:
        """Whether all files are there, and so young that no VACUUM will come for them soon (soundness A16)."""
        return not may_be_swept(files, self._store.now_ms()) and all(exists(file.location) for file in files)

    @staticmethod
    def _inputs_are_there(pinned: dict[str, Any]) -> bool:
        source = pinned.get("source")
        return source is None or all(exists(file["location"]) for file in source["files"])


def _plain_segment(segment: Segment) -> dict[str, Any]:
    return {
        "kind": segment.kind,
        "inputs": sorted(segment.inputs),
        "fingerprint": segment.fingerprint,
        "files": [dataclasses.asdict(file) for file in segment.files],
    }


def _encode(header: dict[str, Any], memory: Memory) -> bytes:
    scans = list(memory.scans.values())
    columns: dict[str, list[Any]] = {
        "path": [scan.file.path for scan in scans],
        "vector": [scan.file.vector for scan in scans],
        "masked": [scan.file.masked for scan in scans],
        "clauses": [list(scan.verdicts.rows) for scan in scans],
        "rows": [[rows.data for rows in scan.verdicts.rows.values()] for scan in scans],
    }
    arrays = [pa.array(columns[name], _SCANS.field(name).type) for name in columns]
    arrays += [
        _lists([scan.verdicts.pairs.column(name) for scan in scans], VERDICTS.field(name)) for name in VERDICTS.names
    ]
    text = json.dumps(header, sort_keys=True)
    table = pa.table(arrays, schema=_SCANS.with_metadata({_HEADER: text.encode()}))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _lists(columns: list[pa.ChunkedArray], field: pa.Field) -> pa.Array:
    offsets = [0]
    for column in columns:
        offsets.append(offsets[-1] + len(column))
    chunks = [chunk for column in columns for chunk in column.chunks]
    values = pa.concat_arrays(chunks) if chunks else pa.array([], field.type)
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values.cast(field.type))


def _decode(data: bytes, path: str) -> tuple[dict[str, Any], pa.Table] | None:
    """The header and the scans; None for a file that was torn, or that another release wrote."""
    digest = path.rsplit("-", 1)[-1].removesuffix(".arrow")
    if hashlib.sha256(data).hexdigest() != digest:
        return None
    table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
    header: dict[str, Any] = json.loads((table.schema.metadata or {})[_HEADER])
    return (header, table) if header["format"] == _FORMAT else None


def _memory(header: dict[str, Any], table: pa.Table) -> Memory:
    memory = Memory(
        rules=None if header["rules"] is None else TableRules.from_plain(header["rules"]),
        segments=[
            Segment(
                kind=segment["kind"],
                inputs=frozenset(segment["inputs"]),
                fingerprint=segment["fingerprint"],
                files=tuple(StagedFile(**file) for file in segment["files"]),
            )
            for segment in header["segments"]
        ],
        dropped=[StagedFile(**file) for file in header["dropped"]],
    )
    files = table.select(["path", "vector", "masked"]).to_pylist()
    lists = [table.column(name).combine_chunks() for name in VERDICTS.names]
    for number, file in enumerate(files):
        pairs = pa.table([values[number].values for values in lists], schema=VERDICTS)
        bitmaps = zip(*(table.column(name)[number].as_py() for name in ("clauses", "rows")), strict=True)
        rows = {clause: MaskedRows(data, "of saved work") for clause, data in bitmaps}
        memory.scans[file["path"]] = Scan(file=LiveFile(**file), verdicts=FileVerdicts(rows=rows, pairs=pairs))
    return memory
