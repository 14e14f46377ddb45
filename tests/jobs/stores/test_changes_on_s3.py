"""Changes that are applied to a table on a real S3 server: its rows, its history and its tombstones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.storage import Access
from tests.helpers import s3
from tests.helpers.jobs import committed, run

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("name", pa.string())])
TIMES = [pa.field("__START_AT", pa.int64()), pa.field("__END_AT", pa.int64())]


@pytest.mark.long("jobs on a real S3 server")
@pytest.mark.parametrize("kind", [1, 2])
def test_late_events_meet_the_tombstones_in_the_store(tmp_path: Path, kind: int) -> None:
    uri = s3.new_folder()
    schema = SCHEMA if kind == 1 else pa.schema([SCHEMA.field(0), SCHEMA.field(2), *TIMES])
    Table.create(uri, schema, storage_options=s3.options())

    def apply(*rows: tuple[int, int, str]) -> Any:
        names = [*SCHEMA.names, "op"]
        events = [dict(zip(names, (*row, "d" if row[2] == "gone" else "u"), strict=True)) for row in rows]
        pq.write_table(pa.Table.from_pylist(events), tmp_path / "events.parquet")
        return run(
            None,
            "apply_changes",
            uri,
            storage_options=s3.plain_options(),
            source={"format": "parquet", "path": str(tmp_path / "events.parquet")},
            keys=["id"],
            sequence_by="at",
            apply_as_deletes="op = 'd'",
            except_column_list=["op"] if kind == 1 else ["op", "at"],
            stored_as_scd_type=kind,
        )

    committed(apply((1, 5, "gone"), (2, 1, "a")))
    late = apply((1, 4, "late"), (2, 3, "a"))
    table = Table.at(uri, Access(storage_options=s3.options()))
    rows = sorted(tuple(row.values()) for row in table.to_arrow().to_pylist())
    if kind == 1:
        assert rows == [(2, 3, "a")]
    else:
        assert rows == [(1, "late", 4, 5), (2, "a", 1, None)]
        committed(apply((2, 2, "b")))
        rows = sorted(tuple(row.values()) for row in table.to_arrow().to_pylist() if row["id"] == 2)
        assert rows == [(2, "a", 1, 2), (2, "a", 3, None), (2, "b", 2, 3)]
    committed(late)
