"""What a version's checksum file says against what replaying the log gave.

The invariant: only what is sure to be the same is compared. A checkpoint may have dropped expired application
transactions, so of these only what both know is; what the checksum leaves out is not compared at all.
Source: protocol, "Version Checksum File".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.log.actions import Metadata, Protocol
from airflow_txlog.engine.log.checksum import Checksum
from airflow_txlog.engine.log.names import checksum_name
from airflow_txlog.engine.table.snapshot.state import TableState
from airflow_txlog.errors import CorruptTable


def check_against(state: TableState, checksum: Checksum, table: str) -> None:
    """Raises CorruptTable, naming every field that differs with what both sides say, unless the two agree."""
    differences = [
        f"{name} is {ours!r}, and the checksum says {theirs!r}" for name, ours, theirs in _differences(state, checksum)
    ]
    if differences:
        path = checksum_name(state.version)
        raise CorruptTable(
            f"CorruptTable: version {state.version} of {table} is not what {path} says that it is: "
            f"{'; '.join(differences)}. Nothing was changed. Either a file of the log was lost, damaged or replaced, "
            "or the writer of the checksum was wrong; compare with another reader before you write to the table.",
            table=table,
            path=path,
        )


def _differences(state: TableState, checksum: Checksum) -> Iterator[tuple[str, Any, Any]]:
    live = state.live
    vectors = live.column("deletion_vector")
    ours: dict[str, Any] = {
        "numFiles": live.num_rows,
        "tableSizeBytes": _sum(live.column("size")),
        "numDeletionVectorsOpt": len(vectors) - vectors.null_count,
        "numDeletedRecordsOpt": _sum(pc.struct_field(vectors, "cardinality")),
    }
    theirs: dict[str, Any] = {
        "numFiles": checksum.num_files,
        "tableSizeBytes": checksum.table_size_bytes,
        "numDeletionVectorsOpt": checksum.num_deletion_vectors_opt,
        "numDeletedRecordsOpt": checksum.num_deleted_records_opt,
    }
    if checksum.metadata is not None:
        ours |= _metadata_facts(state.metadata)
        theirs |= _metadata_facts(checksum.metadata)
    if checksum.protocol is not None:
        ours |= _protocol_facts(state.protocol)
        theirs |= _protocol_facts(checksum.protocol)
    if checksum.in_commit_timestamp_opt is not None:
        ours["inCommitTimestampOpt"] = state.in_commit_ms
        theirs["inCommitTimestampOpt"] = checksum.in_commit_timestamp_opt
    if checksum.domain_metadata is not None:
        ours["domainMetadata"] = _domains({name: each.configuration for name, each in state.domains.items()})
        theirs["domainMetadata"] = _domains(
            {each.domain: each.configuration for each in checksum.domain_metadata if not each.removed}
        )
    for transaction in checksum.set_transactions or ():
        known = state.transactions.get(transaction.app_id)
        if known is not None:
            ours[f"setTransactions[{transaction.app_id}]"] = known.version
            theirs[f"setTransactions[{transaction.app_id}]"] = transaction.version
    for name, value in ours.items():
        if theirs[name] is not None and theirs[name] != value:
            yield name, value, theirs[name]


def _sum(column: pa.ChunkedArray) -> int:
    return int(pc.sum(column, min_count=0).as_py())


def _metadata_facts(metadata: Metadata) -> dict[str, Any]:
    return {
        "metadata.id": metadata.id,
        "metadata.schemaString": metadata.schema_string,
        "metadata.partitionColumns": metadata.partition_columns,
        "metadata.configuration": dict(metadata.configuration),
    }


def _protocol_facts(protocol: Protocol) -> dict[str, Any]:
    return {
        "protocol.minReaderVersion": protocol.min_reader_version,
        "protocol.minWriterVersion": protocol.min_writer_version,
        "protocol.readerFeatures": sorted(protocol.reader_features or ()),
        "protocol.writerFeatures": sorted(protocol.writer_features or ()),
    }


def _domains(configurations: Mapping[str, str]) -> dict[str, str]:
    return dict(sorted(configurations.items()))
