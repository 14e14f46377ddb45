"""One look at the log: the commits, whole checkpoints and compactions that a listing names, from some version on.

Only names and sizes are looked at; nothing is opened. The invariant: a checkpoint that is not complete by its names
(parts are missing, or it has no bytes) is not in a listing, and one that is complete is in it beside every other of
its version: which of them can be read is found out by reading.
Source: protocol, "File Types".
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from airflow_txlog.engine.log.names import LOG_DIRECTORY, MAX_VERSION, LogFile, LogKind, parse_name, version_prefix
from airflow_txlog.storage.base import FileInfo, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFiles:
    """A checkpoint that is complete by its names: one file, or all the parts in their order.

    The file of a V2 checkpoint is its top level; which sidecars belong to it stands inside.
    """

    version: int
    files: tuple[FileInfo, ...]

    @property
    def path(self) -> str:
        """The path of the (first) file, relative to the table: no two checkpoints share one."""
        return self.files[0].path


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedFile:
    """One file that holds the reconciled actions of the commits `start` to `end`, both inclusive."""

    start: int
    end: int
    info: FileInfo


@dataclass(slots=True)
class Listing:
    """What one listing of the log names."""

    commits: dict[int, FileInfo] = field(default_factory=dict)
    checkpoints: dict[int, list[CheckpointFiles]] = field(default_factory=dict)
    """By version; those of one version in the order in which a reader should try them."""
    compactions: list[CompactedFile] = field(default_factory=list)

    @property
    def latest(self) -> int:
        """The last version that any file of the log names, or -1."""
        return max([*self.commits, *self.checkpoints], default=-1)

    @property
    def earliest(self) -> int | None:
        """The first version that can be rebuilt, as far as is known without looking for gaps."""
        return 0 if 0 in self.commits else min(self.checkpoints, default=None)


def look(store: Store, start: int) -> Listing:
    """What the log names of version `start` and later, from one request."""
    listing = Listing()
    if start > MAX_VERSION:
        return listing
    parts: dict[tuple[int, int], dict[int, FileInfo]] = defaultdict(dict)
    singles: dict[int, list[tuple[LogKind, FileInfo]]] = defaultdict(list)
    first = version_prefix(start).removeprefix(f"{LOG_DIRECTORY}/")
    for info in store.list(LOG_DIRECTORY, start_from=first):
        name = parse_name(info.path)
        if name is None:
            continue
        if name.kind is LogKind.COMMIT:
            listing.commits[name.version] = info
        # What has no bytes was left by a writer on a store where half a file can be seen.
        elif info.size_bytes == 0:
            continue
        elif name.kind is LogKind.COMPACTED and name.end_version is not None:
            listing.compactions.append(CompactedFile(start=name.version, end=name.end_version, info=info))
        elif name.kind is LogKind.MULTIPART_CHECKPOINT:
            _add_part(parts, name, info)
        elif name.kind in (LogKind.CLASSIC_CHECKPOINT, LogKind.V2_CHECKPOINT):
            singles[name.version].append((name.kind, info))
    listing.checkpoints = _checkpoints(singles, parts)
    return listing


def _add_part(parts: dict[tuple[int, int], dict[int, FileInfo]], name: LogFile, info: FileInfo) -> None:
    if name.part is not None and name.parts is not None:
        parts[name.version, name.parts][name.part] = info


def _checkpoints(
    singles: dict[int, list[tuple[LogKind, FileInfo]]], parts: dict[tuple[int, int], dict[int, FileInfo]]
) -> dict[int, list[CheckpointFiles]]:
    """By version: a classic one first (one request reads it), then V2, then those in parts."""
    found: dict[int, list[CheckpointFiles]] = defaultdict(list)
    for version, files in singles.items():
        for _, info in sorted(files, key=lambda each: (each[0] is not LogKind.CLASSIC_CHECKPOINT, each[1].path)):
            found[version].append(CheckpointFiles(version=version, files=(info,)))
    # Two writers may cut one version differently; only a set that is whole counts.
    for (version, count), by_number in sorted(parts.items()):
        if len(by_number) == count:
            ordered = tuple(by_number[part] for part in range(1, count + 1))
            found[version].append(CheckpointFiles(version=version, files=ordered))
    return dict(found)
