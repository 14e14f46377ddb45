"""The rows of a checkpoint: actions as Arrow structs, one column per action; and the sidecars of a V2 checkpoint.

Two invariants. Every field of FILES and TOMBSTONES has its member here under its name on the wire, so that a snapshot
is written and read back without loss. And a sidecar lies in `_delta_log/_sidecars/` of the same table: a name outside
of it is corrupt, and its file is neither read nor deleted.
Source: protocol, "Checkpoint Schema", "V2 Spec", "Sidecar File Information" and "Checkpoint Metadata".
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from airflow_txlog.engine.log.actions import Int64
from airflow_txlog.engine.log.columns import DELETION_VECTOR, FILES, STRING_MAP, TOMBSTONES
from airflow_txlog.engine.log.names import LOG_DIRECTORY
from airflow_txlog.engine.log.paths import canonical_path

SIDECAR_DIRECTORY = f"{LOG_DIRECTORY}/_sidecars"


def wire_name(name: str) -> str:
    """Return the wire's spelling of a field name: `base_row_id` is `baseRowId`."""
    head, *rest = name.split("_")
    return head + "".join(map(str.capitalize, rest))


def _struct(**members: pa.DataType) -> pa.StructType:
    return pa.struct(list(members.items()))


def _wire_struct(schema: Iterable[pa.Field], **more: pa.DataType) -> pa.StructType:
    types = {wire_name(each.name): VECTOR_TYPE if each.type == DELETION_VECTOR else each.type for each in schema}
    return _struct(**types, **more)


_TEXT, _LONG = pa.string(), pa.int64()
_TEXTS = pa.list_(_TEXT)
VECTOR_TYPE = _struct(**{wire_name(each.name): each.type for each in DELETION_VECTOR})
# FILES has no dataChange: it belongs to a commit, and is false in every checkpoint.
ADD = _wire_struct(FILES, dataChange=pa.bool_())
REMOVE = _wire_struct(TOMBSTONES)

CHECKPOINT = pa.schema(
    {
        "txn": _struct(appId=_TEXT, version=_LONG, lastUpdated=_LONG),
        "add": ADD,
        "remove": REMOVE,
        "metaData": _struct(
            id=_TEXT,
            name=_TEXT,
            description=_TEXT,
            format=_struct(provider=_TEXT, options=STRING_MAP),
            schemaString=_TEXT,
            partitionColumns=_TEXTS,
            configuration=STRING_MAP,
            createdTime=_LONG,
        ),
        "protocol": _struct(
            minReaderVersion=pa.int32(), minWriterVersion=pa.int32(), readerFeatures=_TEXTS, writerFeatures=_TEXTS
        ),
        "domainMetadata": _struct(domain=_TEXT, configuration=_TEXT, removed=pa.bool_()),
    }
)
# Only in the top level of a V2 checkpoint.
CHECKPOINT_METADATA = pa.field("checkpointMetadata", _struct(version=_LONG, tags=STRING_MAP))
SIDECAR = pa.field("sidecar", _struct(path=_TEXT, sizeInBytes=_LONG, modificationTime=_LONG, tags=STRING_MAP))


class CheckpointMetadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The version of a V2 checkpoint."""

    version: Int64


class Sidecar(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A sidecar as the top level names it: `path` is URL-encoded, a name in the directory or an absolute URI."""

    path: str
    size_in_bytes: Int64
    modification_time: Int64


def sidecar_path(sidecar: Sidecar, root: str) -> str:
    """Return the path of the sidecar, relative to the table. Raises ValueError if it is not in the directory."""
    name = unquote(sidecar.path)
    # Only a bare name is relative to the directory; resolving would turn `/x` and `<table>/x` into bare names.
    found = f"{SIDECAR_DIRECTORY}/{name}" if "/" not in name else canonical_path(sidecar.path, root)
    directory, _, base = found.rpartition("/")
    if directory != SIDECAR_DIRECTORY or base in ("", ".", ".."):
        raise ValueError(f"it names the sidecar {sidecar.path!r}, which is not in {SIDECAR_DIRECTORY}")
    return found
