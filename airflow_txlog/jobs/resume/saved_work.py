"""The memory of a job in files, so that a retry or a restarted worker continues the work of the last try.

It is in the job's inputs folder inside the table, next to the materialized inputs that it names. It is written after
every staging and before the commit that may use it. A file's name contains the size and the digest of its bytes and is
signed with the work's key (`seal`), so a file that is torn, too large or another process's is never read. The newest
signed file counts. Only work with an application transaction and a key has such files: the transaction makes two tries
the same work.

The invariant: resumed work was found and staged for the same spec, transaction and table, by the same release and in
the same SQL dialect, and every path in it is confined again. No process deletes a file that saved work names before its
transaction is in the table. Source: docs/decisions/saved-work.md; soundness A17, B1, B2.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa

import airflow_txlog
from airflow_txlog.contract.wording import files_text, plural
from airflow_txlog.datafiles.deletion_vectors.positions import unpack_pairs
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.failures import text_of
from airflow_txlog.datafiles.parquet.output import has_digest
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.engine.commit.content.met import How, Meeting, Meetings
from airflow_txlog.errors import CorruptDeletionVector, LimitExceeded, OutsideTable
from airflow_txlog.jobs.context import JobContext, SavedInputs
from airflow_txlog.jobs.files.staged import confined, may_be_swept
from airflow_txlog.jobs.resume.memory import NOTHING, FileMatches, LiveFile, Memory, Scan, Segment, TableRules
from airflow_txlog.jobs.sql.current_time import CurrentTime, fix_current_time
from airflow_txlog.storage.base import FileInfo
from airflow_txlog.storage.limits import LOG_FILE

_FORMAT = 9
# memory-<job id>-<number>-<size>-<digest>-<signature>.arrow; all but the signature is signed.
_NAME = re.compile(r"(memory-[0-9a-f]+-\d+-(\d{1,18})-([0-9a-f]{64}))-([0-9a-f]{64})\.arrow")
_KIND = "memory"
_DIGESTS_AT_ONCE = 8
_SCANS_AT_ONCE = 16_384
# The errors of decoding content that is not in our form.
_MALFORMED = (
    *(ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError),
    *(msgspec.MsgspecError, pa.ArrowException, CorruptDeletionVector),
)
_HEADER = b"txlog"

# One row per scanned file. `rows` has the bitmap of the rows for each of its `clauses`; the pairs are packed.
_SCANS = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("vector", pa.string()),
        pa.field("deleted", pa.large_binary()),
        pa.field("clauses", pa.list_(pa.int32())),
        pa.field("rows", pa.list_(pa.large_binary())),
        pa.field("pairs", pa.large_binary(), nullable=False),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The facts that must be equal for the memory of another process to be this job's."""

    app_id: str
    version: int
    began_ms: int | None
    digest: str
    release: str
    ansi: bool


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a memory except its scans."""

    format: int
    identity: Identity
    inputs: SavedInputs
    clocks: dict[str, Any]
    rules: TableRules | None
    segments: list[Segment]
    dropped: list[StagedFile]
    met: Meetings


class SavedWork:
    """The place of one job's memory. Does nothing for work without an application transaction or a key."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._store = context.store
        self._number = 0
        self._saved: list[str] = []
        self._left: list[FileInfo] = []
        self._seal = context.seal
        self._has_passed_over = False
        self.is_published = False
        """Whether another try may know of the files that this job has staged."""

    def load(self) -> Memory:
        """Return the memory of an earlier try, whose inputs and current time become this job's, or a new one."""
        for path in self._saved_before():
            try:
                found = self._read(path)
            except FileNotFoundError:
                # Another copy of the work has just written a newer one.
                continue
            except (OutsideTable, LimitExceeded) as error:
                self._pass_over(f"ignored {path}: {error}")
                continue
            if found is None:
                continue
            if not self._is_usable(found):
                self._pass_over(
                    "what an earlier try had saved is too old, no longer there, or not as it was written; starting over"
                )
                break
            self._context.saved_inputs = found.inputs
            self._context.current_time = CurrentTime(self._context.executor.now, found.clocks)
            self._context.texts = fix_current_time(self._context.spec, self._context.current_time)
            self._context.is_resumed = True
            self.is_published = True
            self._is_at(path)
            self._context.log(_resuming(found))
            if not self._context.is_continued:
                found.memory.lost(Meeting(how=How.RESUMED))
            return found.memory
        self._log_lost()
        return Memory()

    def _pass_over(self, why: str) -> None:
        self._has_passed_over = True
        self._context.log(why)

    def _log_lost(self) -> None:
        """Log the work of an earlier try that this one cannot use, and why, unless that was logged already."""
        context = self._context
        if context.is_continued or self._has_passed_over:
            return
        tries, application = context.spec.annotations.get("try_number"), context.spec.application
        # A clear begins new work, and Airflow counts its tries on.
        is_new = application is not None and application.is_first_try
        is_retry = isinstance(tries, int) and tries > 1 and not is_new
        if self._seal is None:
            if is_retry:
                context.log("nothing of an earlier try is reused: this job saves no work for its retries")
            return
        sizes = [info.size_bytes for info in self._left]
        if is_retry or sizes:
            left = f" {files_text(sizes)} that it left in {self._folder} go when this job ends." if sizes else ""
            context.log(
                f"nothing of an earlier try is reused: it ended before it saved any work.{left} Data files that it "
                "staged and did not commit are left to VACUUM"
            )

    def save(self, memory: Memory) -> None:
        """Write the memory and delete earlier files of it. A failure is logged: a retry would start over."""
        seal = self._seal
        if seal is None or self._context.saved_inputs.reads_target or self._context.is_dry_run:
            return
        memory.settle()
        data = encode(memory, self._identity(), self._context.saved_inputs, self._context.current_time.saved)
        if len(data) > LOG_FILE.allowed:
            self._context.log(
                f"what was found is not written down: it takes {len(data)} bytes, and {LOG_FILE.setting} allows "
                f"{LOG_FILE.allowed}; a retry would start over"
            )
            return
        self._number += 1
        digest = hashlib.sha256(data).hexdigest()
        signed = f"memory-{self._context.job_id}-{self._number:04d}-{len(data)}-{digest}"
        name = f"{signed}-{seal.sign(_KIND, signed.encode())}.arrow"
        # Known to others from the moment that writing begins.
        self.is_published = True
        try:
            with self._store.open_new(f"{self._folder}/{name}") as output:
                output.write(data)
        except Exception as error:  # the clients of stores raise their own classes
            self._context.log(f"what was staged could not be written down ({text_of(error)}): a retry would start over")
            return
        earlier = self._saved
        self._is_at(f"{self._folder}/{name}")
        for path in earlier:
            with contextlib.suppress(Exception):
                self._store.delete(path)

    def _is_at(self, path: str) -> None:
        """Remember the file that holds the memory now."""
        source = self._context.saved_inputs.source
        self._saved = [path]
        self._context.saved_files = (path, *(file.store_path for file in (source.files if source else ())))

    @property
    def _folder(self) -> str:
        return self._context.inputs_folder

    def _saved_before(self) -> list[str]:
        if self._seal is None:
            return []
        try:
            self._left = self._store.list(self._folder)
        except OutsideTable as error:
            self._pass_over(f"ignored {self._folder}: {error}")
        found = [info for info in self._left if "/memory-" in info.path]
        ours = [info for info in found if self._is_ours(info)]
        if len(ours) < len(found):
            self._pass_over(
                f"ignored {plural(len(found) - len(ours), 'file')} in {self._folder}: saved work, by the name, that no "
                "try of this task has written in this form"
            )
        return [info.path for info in sorted(ours, key=lambda info: (info.modified_ms, info.path), reverse=True)]

    def _is_ours(self, info: FileInfo) -> bool:
        """Return whether a try of this work gave the file its name, and the file has the size in the name."""
        name = _NAME.fullmatch(info.path.rsplit("/", 1)[-1])
        if name is None or self._seal is None or int(name[2]) != info.size_bytes:
            return False
        return self._seal.is_signed(_KIND, name[1].encode(), name[4])

    def _read(self, path: str) -> _Saved | None:
        """Return a saved file's content; None if it is not for this job, or was changed. Raises FileNotFoundError."""
        data = self._store.read(path)
        name = _NAME.fullmatch(path.rsplit("/", 1)[-1])
        if name is None or hashlib.sha256(data).hexdigest() != name[3]:
            self._pass_over(f"ignored {path}: it does not hold what was saved under this name")
            return None
        try:
            header, scans = decode(data)
            if header.format != _FORMAT or header.identity != self._identity():
                release = header.identity.release
                is_other = release != airflow_txlog.__version__
                why = f"by airflow_txlog {release}" if is_other else "for other arguments, or before a clear"
                self._pass_over(f"ignored {path}: it was saved {why}")
                return None
            inputs = header.inputs
            for schema in (None if inputs.source is None else inputs.source.schema, inputs.source_schema):
                if schema is not None:
                    self._context.executor.check_columns(schema)
            if inputs.source is not None:
                files = tuple(confined(file, self._folder) for file in inputs.source.files)
                inputs = replace(inputs, source=replace(inputs.source, files=files))
            elsewhere = tuple(confined(file, self._folder) for file in inputs.elsewhere)
            inputs = replace(inputs, elsewhere=elsewhere)
            return _Saved(memory=memory_of(header, scans), inputs=inputs, clocks=header.clocks)
        except _MALFORMED as error:
            self._pass_over(f"ignored {path}: it is no saved work of this form ({type(error).__name__})")
            return None

    def _identity(self) -> Identity:
        spec = self._context.spec
        assert spec.application is not None
        return Identity(
            app_id=spec.application.app_id,
            version=spec.application.version,
            # A task cleared before any commit must read its source anew.
            began_ms=spec.application.began_ms,
            digest=spec.digest(),
            release=airflow_txlog.__version__,
            ansi=self._context.is_ansi,
        )

    def _is_usable(self, saved: _Saved) -> bool:
        """Return whether all files are too young for a VACUUM (A16), and the source's bytes are unchanged.

        Segments whose files are gone are dropped: a change that was staged has none of the tiny files that it joined.
        """

        def is_unchanged(file: StagedFile) -> bool:
            return has_digest(self._store, file.store_path, file.size_bytes, file.digest or "")

        files, source = saved.memory.staged_files(), saved.inputs.source
        if may_be_swept(files, self._store.now_ms()):
            return False
        saved.memory.drop_lost({file.store_path for file in files if self._store.stat(file.store_path) is None})
        with ThreadPoolExecutor(_DIGESTS_AT_ONCE) as pool:
            kept = [*(() if source is None else source.files), *saved.inputs.elsewhere]
            return all(pool.map(is_unchanged, kept))


@dataclass(frozen=True, kw_only=True)
class _Saved:
    memory: Memory
    inputs: SavedInputs
    clocks: dict[str, Any]


def _resuming(found: _Saved) -> str:
    memory, source = found.memory, found.inputs.source
    staged = [file.size_bytes for segment in memory.segments for file in segment.files]
    written = "" if source is None else f", source rows in {files_text([file.size_bytes for file in source.files])}"
    return (
        f"resuming an earlier try: {plural(len(memory.scans), 'file')} looked at, {files_text(staged)} staged{written}"
    )


def encode(memory: Memory, identity: Identity, inputs: SavedInputs, clocks: dict[str, Any]) -> pa.Buffer:
    """Return the memory, with the facts that belong to it, as one Arrow file."""
    header = Header(
        format=_FORMAT,
        identity=identity,
        inputs=inputs,
        clocks=clocks,
        rules=memory.rules,
        segments=list(memory.segments),
        dropped=list(memory.dropped),
        met=memory.met,
    )
    text = msgspec.json.encode(header, order="deterministic")
    schema = _SCANS.with_metadata({_HEADER: text})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        scans = iter(memory.scans.items())
        while some := list(islice(scans, _SCANS_AT_ONCE)):
            writer.write_batch(_scan_rows(some, schema))
    return sink.getvalue()


def _scan_rows(scans: Sequence[tuple[str, Scan]], schema: pa.Schema) -> pa.RecordBatch:
    columns: dict[str, list[Any]] = {
        "path": [path for path, _ in scans],
        "vector": [scan.vector for _, scan in scans],
        "deleted": [scan.deleted for _, scan in scans],
        "clauses": [list(scan.matches.rows) for _, scan in scans],
        "rows": [[rows.data for rows in scan.matches.rows.values()] for _, scan in scans],
        "pairs": [scan.matches.pairs for _, scan in scans],
    }
    return pa.record_batch([pa.array(columns[field.name], field.type) for field in _SCANS], schema=schema)


def decode(data: bytes) -> tuple[Header, pa.Table]:
    """Return the header and the scans that `encode` wrote. Raises one of `_MALFORMED` for anything else."""
    table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
    return msgspec.json.decode((table.schema.metadata or {})[_HEADER], type=Header), table


def memory_of(header: Header, table: pa.Table) -> Memory:
    """Return the memory with this header and these scans, its files confined to the table. Raises as `decode` does."""
    memory = Memory(
        rules=header.rules,
        segments=[replace(segment, files=tuple(map(confined, segment.files))) for segment in header.segments],
        dropped=[confined(file) for file in header.dropped],
        met=header.met,
    )
    for batch in table.to_batches(max_chunksize=_SCANS_AT_ONCE):
        for file in batch.to_pylist():
            bitmaps = zip(file.pop("clauses"), file.pop("rows"), strict=True)
            rows = {clause: RowPositions(data, "of saved work") for clause, data in bitmaps}
            pairs = file.pop("pairs")
            unpack_pairs(pairs)
            matches = FileMatches(rows=rows, pairs=pairs) if rows or pairs else NOTHING
            memory.scans[file["path"]] = Scan.of(LiveFile(**file), matches)
    return memory
