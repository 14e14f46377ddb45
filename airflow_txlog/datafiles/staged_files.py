"""Files that our tasks have written and no commit names yet: their names, their records, and the rows of change files.

A change file holds change rows: all columns of the table, because a reader of the feed reads only these files, and
one more, `_change_type`. Source: protocol, "Change Data Files".
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields

import pyarrow as pa

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
        return json.dumps({field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def from_json(cls, text: str) -> StagedFile:
        """Return the record that `to_json` wrote."""
        return cls(**json.loads(text))
