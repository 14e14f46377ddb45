"""`N.crc`: what the writer of a version believed that the table held, as a check on request.

No one reads it unasked, and nothing in it ever decides what a table holds. The invariant: a file that makes no sense
is distinguished from one that is not there, and never passes for an agreement.
Source: protocol, "Version Checksum File".
"""

from __future__ import annotations

import msgspec

from airflow_txlog.engine.log.actions import DomainMetadata, Int64, Metadata, Protocol, SetTransaction
from airflow_txlog.engine.log.names import checksum_name
from airflow_txlog.errors import CorruptTable
from airflow_txlog.storage.base import Store


class Checksum(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the file says; None for what its writer left out. Fields that we do not know are stepped over."""

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
    """The checksum of the version, or None where it has none.

    Raises CorruptTable (path) for a file that is no checksum.
    """
    path = checksum_name(version)
    try:
        return _decoder.decode(store.read(path))
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptTable(
            f"CorruptTable: {path} of {store.root} is no checksum of a version: {error}. It says nothing about the "
            "table, which can be read without it; the file may be deleted.",
            table=store.root,
            path=path,
        ) from error
