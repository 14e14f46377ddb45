"""Files that our tasks have written and no commit names yet: their names, their records, and the rows of change files.

A change file holds change rows: all columns of the table, because a reader of the feed reads only these files, and
one more, `_change_type`. Source: protocol, "Change Data Files".
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from operator import attrgetter

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.partitioning import decode_add_path

CHANGE_TYPE_COLUMN = "_change_type"
CHANGE_DIRECTORY = "_change_data"

INSERT = "insert"
DELETE = "delete"
UPDATE_PREIMAGE = "update_preimage"
UPDATE_POSTIMAGE = "update_postimage"

CHANGE_TYPE_FIELD = pa.field(CHANGE_TYPE_COLUMN, pa.string())

UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

DATA_FILE = re.compile(rf"(part|cdc)-[0-9a-f]{{16}}-{UUID}\.c\d+(?:-\d+)?(?:\.[a-z0-9_]+)?\.parquet")
"""kind-<job id>-<attempt>.c<number>[-<part>][.codec].parquet: no other Delta writer uses names of this form."""

VECTOR_FILE = re.compile(rf"deletion_vector_{UUID}\.bin")
_TEMPORARY = re.compile(rf"\.{UUID}\.tmp\Z")


def is_staged_name(path: str) -> bool:
    """Return whether the last part of the path is a name that our tasks give to new files of a table.

    That is also the temporary name of a file whose copying was cut off.
    """
    name = _TEMPORARY.sub("", path.rpartition("/")[2])
    return (DATA_FILE.fullmatch(name) or VECTOR_FILE.fullmatch(name)) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """The facts about a staged data file that its add action needs.

    `path` is relative to the table and percent-encoded, as `add.path`. `source` is the index of the file that this one
    copies, None for new rows. `segment` numbers the segment of new rows, if they have one. `num_kept` is set if a copy
    has new images of rows in their places: the number of its other rows. `is_change` marks a file of change rows, which
    is no file of the table. `digest` is the hexadecimal SHA-256 of the bytes, if the layout requires it.
    """

    path: str
    partition_values: dict[str, str | None]
    size_bytes: int
    modification_time_ms: int
    num_records: int
    stats: str
    source: int | None = None
    segment: int | None = None
    num_kept: int | None = None
    is_change: bool = False
    digest: str | None = None

    @property
    def store_path(self) -> str:
        """The file's path in the table's store."""
        return decode_add_path(self.path)

    def to_json(self) -> str:
        return json.dumps(dict(zip(_NAMES, _values(self), strict=True)))

    @classmethod
    def from_json(cls, text: str) -> StagedFile:
        """Return the record that `to_json` wrote."""
        return cls(**json.loads(text))


_NAMES = tuple(field.name for field in fields(StagedFile))
_values = attrgetter(*_NAMES)


def routed(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """Split rows that may have a change type into rows of the table and change rows, None without such a column.

    A row without a type goes only to the table, an inserted row or a new image to both, and a deleted row or an old
    image only to the change rows.
    """
    index = batch.schema.get_field_index(CHANGE_TYPE_COLUMN)
    if index < 0:
        return batch, None
    types = batch.column(index)
    rows = batch.select([name for name in batch.schema.names if name != CHANGE_TYPE_COLUMN])
    # Rows that the table held and does not hold any more; the other two types are in the table now.
    is_gone = pc.is_in(types, value_set=pa.array((DELETE, UPDATE_PREIMAGE)))
    if is_gone.true_count:
        rows = rows.filter(pc.invert(is_gone))
    return rows, batch if types.null_count == 0 else batch.filter(pc.is_valid(types))


class FirstOfTypes:
    """Chooses the first `most` change rows of each type from a stream of rows."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: Counter[str] = Counter()

    def of(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Return the chosen rows among the next rows of the stream."""
        types = changes.column(CHANGE_TYPE_COLUMN)
        chosen = [pa.array([], pa.uint64())]
        for name in pc.unique(types).to_pylist():
            found = pc.indices_nonzero(pc.equal(types, name))
            chosen.append(found.slice(0, max(0, self._most - self._seen[name])))
            self._seen[name] += len(found)
        return changes.take(pa.concat_arrays(chosen).sort())


def first_of_types(most: int, changes: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the first `most` change rows of each type; a step of a task."""
    return map(FirstOfTypes(most).of, changes)
