"""The names of the files in `_delta_log`, made and parsed; nothing else in the engine does either.

An unknown name is no error: other writers keep their files in the log, and readers must skip them.
Source: protocol, "File Types".
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

LOG_DIRECTORY = "_delta_log"
LAST_CHECKPOINT = f"{LOG_DIRECTORY}/_last_checkpoint"
MAX_VERSION = 2**63 - 1


class LogKind(enum.Enum):
    """The kinds of files in the log."""

    COMMIT = "commit"
    CLASSIC_CHECKPOINT = "classic checkpoint"
    MULTIPART_CHECKPOINT = "multi-part checkpoint"
    V2_CHECKPOINT = "v2 checkpoint"
    COMPACTED = "compacted commits"
    CHECKSUM = "checksum"


CHECKPOINTS = (LogKind.CLASSIC_CHECKPOINT, LogKind.MULTIPART_CHECKPOINT, LogKind.V2_CHECKPOINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """A parsed name. Fields that its kind does not have are None."""

    kind: LogKind
    version: int
    """The version of the file; the first one of compacted commits."""
    end_version: int | None = None
    """The last version (inclusive) of compacted commits."""
    part: int | None = None
    """Number of this part of a multi-part checkpoint, from 1."""
    parts: int | None = None
    unique_id: str | None = None
    """The UUID in the name of a v2 checkpoint."""


# ASCII digits only: `\d` would accept digits of other scripts, which int() would then read.
_NAME = re.compile(
    r"""(?P<version>[0-9]{20})\.
    (?: (?P<commit>json)
      | (?P<checksum>crc)
      | (?P<end>[0-9]{20})\.compacted\.json
      | checkpoint\.(?P<classic>parquet)
      | checkpoint\.(?P<part>[0-9]{10})\.(?P<parts>[0-9]{10})\.parquet
      | checkpoint\.(?P<unique_id>[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})\.(?:json|parquet)
    )""",
    re.VERBOSE,
)


def commit_name(version: int) -> str:
    return f"{version_prefix(version)}.json"


def checkpoint_name(version: int) -> str:
    return f"{version_prefix(version)}.checkpoint.parquet"


def v2_checkpoint_name(version: int, unique_id: str) -> str:
    """Return the path of the top level of a V2 checkpoint, in Parquet."""
    return f"{version_prefix(version)}.checkpoint.{unique_id}.parquet"


def checksum_name(version: int) -> str:
    return f"{version_prefix(version)}.crc"


def version_prefix(version: int) -> str:
    """Return the prefix of every file of a version, relative to the table: a listing may start there."""
    if not 0 <= version <= MAX_VERSION:
        raise ValueError(f"a version lies between 0 and {MAX_VERSION}, not {version}")
    return f"{LOG_DIRECTORY}/{version:020d}"


def parse_name(name: str) -> LogFile | None:
    """Parse a base name, or a path relative to the table; None for other files, and in directories below the log."""
    match = _NAME.fullmatch(name.removeprefix(f"{LOG_DIRECTORY}/"))
    if match is None or (version := int(match["version"])) > MAX_VERSION:
        return None
    if match["commit"]:
        return LogFile(kind=LogKind.COMMIT, version=version)
    if match["classic"]:
        return LogFile(kind=LogKind.CLASSIC_CHECKPOINT, version=version)
    if match["part"]:
        part, parts = int(match["part"]), int(match["parts"])
        if not 1 <= part <= parts:
            return None
        return LogFile(kind=LogKind.MULTIPART_CHECKPOINT, version=version, part=part, parts=parts)
    if match["unique_id"]:
        return LogFile(kind=LogKind.V2_CHECKPOINT, version=version, unique_id=match["unique_id"])
    if match["end"]:
        end = int(match["end"])
        return LogFile(kind=LogKind.COMPACTED, version=version, end_version=end) if version < end else None
    return LogFile(kind=LogKind.CHECKSUM, version=version)
