"""What the rows of a checkpoint are: the wire's actions as Arrow structs, one column an action.

The invariant: every field of FILES and TOMBSTONES has its place here under the name of the wire, so that what a
snapshot holds can be written and read back without a loss.
Source: protocol, "Checkpoint Schema".
"""

from __future__ import annotations

from urllib.parse import unquote

import msgspec
import pyarrow as pa

from airflow_txlog.engine.log.actions import Int64
from airflow_txlog.engine.log.columns import DELETION_VECTOR, FILES, STRING_MAP, TOMBSTONES
from airflow_txlog.engine.log.names import LOG_DIRECTORY
from airflow_txlog.engine.log.paths import canonical_path


def wire_name(name: str) -> str:
    """The spelling on the wire of one of our field names: `base_row_id` is `baseRowId`."""
    head, *rest = name.split("_")
    return head + "".join(map(str.capitalize, rest))


STRINGS = pa.list_(pa.string())
VECTOR_TYPE = pa.struct([(wire_name(each.name), each.type) for each in DELETION_VECTOR])


def _wire_fields(schema: pa.Schema) -> list[pa.Field]:
    """The columns of a table of files as the fields of an action."""
    types = [VECTOR_TYPE if each.type == DELETION_VECTOR else each.type for each in schema]
    return [pa.field(wire_name(name), type_) for name, type_ in zip(schema.names, types, strict=True)]


# FILES has no dataChange: it belongs to a commit, and is false in every checkpoint.
ADD = pa.struct([*_wire_fields(FILES), ("dataChange", pa.bool_())])
REMOVE = pa.struct(_wire_fields(TOMBSTONES))

CHECKPOINT = pa.schema(
    [
        ("txn", pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])),
        ("add", ADD),
        ("remove", REMOVE),
        (
            "metaData",
            pa.struct(
                [
                    ("id", pa.string()),
                    ("name", pa.string()),
                    ("description", pa.string()),
                    ("format", pa.struct([("provider", pa.string()), ("options", STRING_MAP)])),
                    ("schemaString", pa.string()),
                    ("partitionColumns", STRINGS),
                    ("configuration", STRING_MAP),
                    ("createdTime", pa.int64()),
                ]
            ),
        ),
        (
            "protocol",
            pa.struct(
                [
                    ("minReaderVersion", pa.int32()),
                    ("minWriterVersion", pa.int32()),
                    ("readerFeatures", STRINGS),
                    ("writerFeatures", STRINGS),
                ]
            ),
        ),
        (
            "domainMetadata",
            pa.struct([("domain", pa.string()), ("configuration", pa.string()), ("removed", pa.bool_())]),
        ),
    ]
)

# Only in the top level of a V2 checkpoint.
CHECKPOINT_METADATA = pa.field("checkpointMetadata", pa.struct([("version", pa.int64()), ("tags", STRING_MAP)]))
SIDECAR = pa.field(
    "sidecar",
    pa.struct(
        [
            ("path", pa.string()),
            ("sizeInBytes", pa.int64()),
            ("modificationTime", pa.int64()),
            ("tags", STRING_MAP),
        ]
    ),
)


SIDECAR_DIRECTORY = f"{LOG_DIRECTORY}/_sidecars"


class CheckpointMetadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Which version a V2 checkpoint is of."""

    version: Int64


class Sidecar(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One sidecar as the top level names it: `path` is URL-encoded, a name in the directory or an absolute URI."""

    path: str
    size_in_bytes: Int64
    modification_time: Int64


def sidecar_path(sidecar: Sidecar, root: str) -> str:
    """Where the sidecar lies, relative to the table. Raises ValueError where that is not among its sidecars."""
    name = unquote(sidecar.path)
    # Only a bare name is relative to the directory; `/x` and `<table>/x` would come out as bare once they are resolved.
    found = f"{SIDECAR_DIRECTORY}/{name}" if "/" not in name else canonical_path(sidecar.path, root)
    directory, _, base = found.rpartition("/")
    if directory != SIDECAR_DIRECTORY or base in ("", ".", ".."):
        raise ValueError(f"it names the sidecar {sidecar.path!r}, which is not in {SIDECAR_DIRECTORY}")
    return found
