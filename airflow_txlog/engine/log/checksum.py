"""`N.crc`: the totals and the metadata of a version as its writer states them, read only on request.

Nothing in it ever decides what a table holds. The invariant: a malformed file is distinguished from a missing one, and
never passes for an agreement.
Source: protocol, "Version Checksum File".
"""

from __future__ import annotations

import msgspec

from airflow_txlog.engine.log.actions import UNREADABLE, DomainMetadata, Int64, Metadata, Protocol, SetTransaction
from airflow_txlog.engine.log.names import checksum_name
from airflow_txlog.errors import CorruptTable
from airflow_txlog.storage.base import Store


class Checksum(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The known fields of the file; None for those that its writer left out."""

    table_size_bytes: Int64 | None = None
    num_files: Int64 | None = None
    metadata: Metadata | None = None
    protocol: Protocol | None = None
    in_commit_timestamp_opt: Int64 | None = None
    set_transactions: list[SetTransaction] | None = None
    domain_metadata: list[DomainMetadata] | None = None
    num_deleted_records_opt: Int64 | None = None
    num_deletion_vectors_opt: Int64 | None = None


_decoder = msgspec.json.Decoder(Checksum)


def read_checksum(store: Store, version: int) -> Checksum | None:
    """Return the checksum of the version, None without one. Raises CorruptTable (path) for a malformed file."""
    path = checksum_name(version)
    try:
        return _decoder.decode(store.read(path))
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        raise CorruptTable(
            f"CorruptTable: {path} of {store.root} is no checksum of a version: {error}. It says nothing about the "
            "table, which can be read without it; the file may be deleted.",
            table=store.root,
            path=path,
        ) from error
