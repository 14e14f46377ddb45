"""What a materialized source says its columns take, by which a task's memory is bounded."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.jobs.source.materialized import MaterializedSource
from airflow_txlog.storage import LocalStore

ROWS = 10_000
KINDS = (pa.int32(), pa.int64(), pa.string(), pa.decimal128(5, 2), pa.timestamp("us"), pa.struct([("v", pa.float64())]))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("is_null", [True, False])
def test_a_column_takes_what_arrow_holds_of_it_also_where_it_is_null(
    tmp_path: Path, kind: pa.DataType, is_null: bool
) -> None:
    """Parquet has no bytes for a null: a task held many times what the footers of a sparse source say."""
    values = {pa.string(): "", KINDS[3]: Decimal("1.00"), KINDS[5]: {"v": 1.0}}
    value = None if is_null else values.get(kind, 0)
    table = pa.table({"v": pa.array([value] * ROWS, kind)})
    pq.write_table(table, tmp_path / "f.parquet", use_dictionary=False)
    file = StagedFile(
        path="f.parquet", partition_values={}, size_bytes=0, modification_time_ms=0, num_records=ROWS, stats="{}"
    )
    store = LocalStore(str(tmp_path))
    source = MaterializedSource(files=(file,), store=store, described={}, stored=pa.schema([]))
    assert source.bytes_of(["v"]) >= 0.95 * table.nbytes
