"""The health of a table: one sentence, signs with numbers, and the engine's findings with advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.log.names import CHECKPOINTS, LogKind, parse_name
from airflow_txlog.engine.table.schema.properties import DAY_MS
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.engine.upkeep.checks import TINY_FILE_BYTES, Finding
from airflow_txlog.storage.base import FileInfo
from airflow_txlog.storage.limits import MIB, Limit
from airflow_txlog.window.facts.version_lines import clipped

HEALTHY, ATTENTION, BROKEN = "healthy", "attention", "broken"
READ_LOG = Limit("TXLOG_WINDOW_LOG_BYTES", 256 * MIB)
"""The newest checkpoint and the commits after it: enough for about two million files, which take 1.5 GiB of memory."""
_MOST_MESSAGE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """One measure of a table, with a sentence about its meaning now."""

    name: str
    value: str
    sentence: str
    needs_attention: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The state of a table in words."""

    state: str
    """HEALTHY, ATTENTION or BROKEN."""
    sentence: str
    findings: tuple[Finding, ...] = ()
    signs: tuple[Sign, ...] = ()


def check_log_size(listed: Sequence[FileInfo], table: str) -> None:
    """Raise LimitExceeded if the newest version needs more of the log than a window reads. `listed`: the log."""
    names = [(info.size_bytes, name) for info in listed if (name := parse_name(info.path)) is not None]
    newest = max((name.version for _, name in names if name.kind in CHECKPOINTS), default=-1)
    needed = sum(
        size
        for size, name in names
        if (name.kind in CHECKPOINTS and name.version == newest)
        or (name.kind is LogKind.COMMIT and name.version > newest)
    )
    READ_LOG.check(needed, "the log from the newest checkpoint on", table=table)


def small_files(snapshot: Snapshot) -> int:
    """Return the number of live files that are smaller than TINY_FILE_BYTES."""
    sizes = snapshot.files(columns=["size"]).column("size")
    return pc.sum(pc.less(sizes, TINY_FILE_BYTES)).as_py() or 0


def health_of(snapshot: Snapshot, findings: Sequence[Finding], listed: Sequence[FileInfo], now_ms: int) -> Health:
    """Return the health of a table that can be read. `listed`: the files of its log."""
    codes = {each.code for each in findings}
    signs = (
        _sign_of_files(snapshot, codes),
        _sign_of_vectors(snapshot),
        *_signs_of_log(snapshot, listed, codes, now_ms),
        _sign_of_removed_files(snapshot, codes),
    )
    findings = [replace(each, message=clipped(each.message, _MOST_MESSAGE)) for each in findings]
    if findings:
        count = "One thing needs" if len(findings) == 1 else f"{len(findings)} things need"
        sentence = f"{count} attention: {findings[0].message}"
        return Health(state=ATTENTION, sentence=sentence, findings=tuple(findings), signs=signs)
    return Health(state=HEALTHY, sentence="The table can be read, and nothing needs attention.", signs=signs)


def _sign_of_files(snapshot: Snapshot, codes: set[str]) -> Sign:
    small, count = small_files(snapshot), snapshot.num_files
    share = f"{small / count:.0%} of all files" if count else "The table has no files"
    advice = "OPTIMIZE would compact them" if "too_many_small_files" in codes else "no reason to compact yet"
    return Sign(
        name="small files",
        value=f"{small:,} of {count:,}",
        sentence=f"{share}; {advice}." if count else f"{share}.",
        needs_attention="too_many_small_files" in codes,
    )


def vector_files(snapshot: Snapshot) -> int:
    """Return the number of live files that have a deletion vector."""
    column = snapshot.files(columns=["deletion_vector"]).column("deletion_vector")
    return len(column) - int(column.null_count)


def _sign_of_vectors(snapshot: Snapshot) -> Sign:
    column = snapshot.files(columns=["deletion_vector"]).column("deletion_vector")
    files = vector_files(snapshot)
    if not files:
        return Sign(name="deletion vectors", value="none", sentence="No file has deleted rows next to it.")
    chunks = [pc.struct_field(chunk, "cardinality") for chunk in column.chunks]
    rows = pc.sum(pa.chunked_array(chunks)).as_py() or 0
    return Sign(
        name="deletion vectors",
        value=f"{files:,} files",
        sentence=f"They hide {rows:,} deleted rows. OPTIMIZE rewrites such files.",
    )


def _signs_of_log(snapshot: Snapshot, listed: Sequence[FileInfo], codes: set[str], now_ms: int) -> list[Sign]:
    names = [(info, name) for info in listed if (name := parse_name(info.path)) is not None]
    size_bytes = sum(info.size_bytes for info in listed)
    checkpoints = [(name.version, info) for info, name in names if name.kind in CHECKPOINTS]
    newest = max((version for version, _ in checkpoints), default=None)
    late = snapshot.version - newest if newest is not None else snapshot.version + 1
    found = [
        Sign(
            name="log",
            value=f"{len(listed):,} files",
            sentence=f"{size_bytes / 2**20:,.1f} MiB in _delta_log.",
            needs_attention="log_large" in codes,
        )
    ]
    if newest is None:
        sentence = f"Every reader reads all {late:,} commits."
        return [
            *found,
            Sign(name="checkpoint", value="none yet", sentence=sentence, needs_attention="checkpoint_late" in codes),
        ]
    oldest = min(info.modified_ms for _, info in checkpoints)
    days = max(0.0, (now_ms - oldest) / DAY_MS)
    bad = {"checkpoint_late", "checkpoint_unreadable", "checkpoint_torn"} & codes
    return [
        *found,
        Sign(
            name="checkpoint",
            value=f"version {newest}",
            sentence=f"{late:,} commits after the newest one. The oldest one is {days:,.0f} days old.",
            needs_attention=bool(bad),
        ),
    ]


def _sign_of_removed_files(snapshot: Snapshot, codes: set[str]) -> Sign:
    count = snapshot.state.removed_files.count
    days = snapshot.table_properties.readable()[0].deleted_file_retention_ms / DAY_MS
    return Sign(
        name="removed files",
        value=f"{count:,}",
        sentence=f"A vacuum may delete them after {days:g} days.",
        needs_attention="too_many_tombstones" in codes,
    )
