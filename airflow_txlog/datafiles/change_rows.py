"""Change rows: rows of the table with one column more, `_change_type`, in files beside the table's own.

The invariant: a change row has all columns of the table, because a reader of the feed has nothing else to look at.
Source: protocol, "Change Data Files".
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

CHANGE_TYPE_COLUMN = "_change_type"
CHANGE_DIRECTORY = "_change_data"

INSERT = "insert"
DELETE = "delete"
UPDATE_PREIMAGE = "update_preimage"
UPDATE_POSTIMAGE = "update_postimage"

CHANGE_TYPE_FIELD = pa.field(CHANGE_TYPE_COLUMN, pa.string())

# Rows that the table held and does not hold any more; the other two are in the table now.
_GONE = (DELETE, UPDATE_PREIMAGE)


def routed(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """Split rows that may have a change type into rows of the table and change rows, None without such a column.

    A row without a type goes to the table alone, an inserted row or a new image to both, a deleted row or an old image
    to the change rows alone.
    """
    index = batch.schema.get_field_index(CHANGE_TYPE_COLUMN)
    if index < 0:
        return batch, None
    types = batch.column(index)
    names = [name for name in batch.schema.names if name != CHANGE_TYPE_COLUMN]
    rows = batch.select(names)
    is_gone = pc.is_in(types, value_set=pa.array(_GONE))
    if is_gone.true_count:
        rows = rows.filter(pc.invert(is_gone))
    return rows, batch if types.null_count == 0 else batch.filter(pc.is_valid(types))
