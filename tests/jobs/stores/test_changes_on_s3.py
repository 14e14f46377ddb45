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
@pytest.mark.parametrize(("kind", "ignores"), [(1, False), (1, True), (2, False)])
def test_late_events_meet_the_tombstones_in_the_store(tmp_path: Path, kind: int, *, ignores: bool) -> None:
    uri = s3.new_folder()
    schema = SCHEMA if kind == 1 else pa.schema([SCHEMA.field(0), SCHEMA.field(2), *TIMES])
    Table.create(uri, schema, storage_options=s3.options())

    def apply(*rows: tuple[int, int, str | None]) -> Any:
        given = SCHEMA.append(pa.field("op", pa.string()))
        events = [dict(zip(given.names, (*row, "d" if row[2] == "gone" else "u"), strict=True)) for row in rows]
        pq.write_table(pa.Table.from_pylist(events, given), tmp_path / "events.parquet")
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
            ignore_null_updates=ignores,
        )

    committed(apply((1, 5, "gone"), (2, 1, "a")))
    late = apply((1, 4, "late"), (2, 3, "a"))
    table = Table.at(uri, Access(storage_options=s3.options()))
    rows = sorted(tuple(row.values()) for row in table.to_arrow().to_pylist())
    if kind == 1:
        assert rows == [(2, 3, "a")]
        if ignores:
            committed(apply((2, 5, None)))
            committed(apply((2, 4, "b")))
            assert table.to_arrow().to_pylist() == [{"id": 2, "at": 5, "name": "b"}]
    else:
        assert rows == [(1, "late", 4, 5), (2, "a", 1, None)]
        committed(apply((2, 2, "b")))
        rows = sorted(tuple(row.values()) for row in table.to_arrow().to_pylist() if row["id"] == 2)
        assert rows == [(2, "a", 1, 2), (2, "a", 3, None), (2, "b", 2, 3)]
    committed(late)
