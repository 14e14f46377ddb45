"""Rows deleted by vectors: the file stays where it is and comes again with a larger deletion vector.

The invariant: a file that comes again keeps everything that it was added with (size, tags, row ids, statistics word by
word) but the vector, and its statistics say from then on that their bounds are wide. A path is live once (see
`validation.check_paths_are_free`): the commit that adds it with a vector removes it as it was.
Source: protocol, "Deletion Vectors" (writer requirements), "Per-file Statistics" (tightBounds).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from airflow_txlog.engine.commit.content.attempt import Attempt
from airflow_txlog.engine.log.actions import Add, DeletionVector, Metadata, Protocol
from airflow_txlog.engine.log.columns import table_to_adds
from airflow_txlog.engine.log.paths import canonical_path
from airflow_txlog.engine.table.schema.features import reader_features
from airflow_txlog.engine.table.schema.properties import TableProperties

_FEATURE = "deletionVectors"


def deletes_by_vectors(protocol: Protocol, metadata: Metadata, table: str) -> bool:
    """Whether writers of the table delete rows by vectors: the feature is there, and switched on.

    Where it is off, vectors that are there stay until their file is rewritten, and no row is deleted by one any more.
    """
    return _FEATURE in reader_features(protocol) and TableProperties(metadata.configuration, table).deletion_vectors


def adds_with_vectors(files: pa.Table, vectors: Sequence[DeletionVector], num_records: Sequence[int]) -> list[Add]:
    """The files (rows of a table `FILES`) as they come again with these vectors, in order.

    `num_records`: the rows of each data file, deleted ones too.
    """
    adds = table_to_adds(files, data_change=True)
    return [
        msgspec.structs.replace(add, deletion_vector=vector, stats=wide_statistics(add.stats, count))
        for add, vector, count in zip(adds, vectors, num_records, strict=True)
    ]


def wide_statistics(stats: str | None, num_records: int) -> str:
    """The statistics of a file of which rows are deleted: `numRecords` is there, and `tightBounds` is false.

    Every other value stays as it was written, to the letter: a long decimal must not pass through a double. Statistics
    that cannot be read are left out.
    """
    try:
        found = msgspec.json.decode(stats or "{}", type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        found = {}
    found["numRecords"] = msgspec.Raw(str(num_records).encode())
    found["tightBounds"] = msgspec.Raw(b"false")
    return msgspec.json.encode(found).decode()


def paths_that_lost_rows(attempt: Attempt) -> set[str]:
    """Canonical paths of the files that leave, or come again with more rows deleted."""
    again = {canonical_path(add.path, attempt.table): add.deletion_vector for add in attempt.adds}
    lost = set()
    for remove in attempt.removes:
        path = canonical_path(remove.path, attempt.table)
        if path not in again or _num_deleted(again[path]) > _num_deleted(remove.deletion_vector):
            lost.add(path)
    return lost


def _num_deleted(vector: DeletionVector | None) -> int:
    return 0 if vector is None else vector.cardinality
