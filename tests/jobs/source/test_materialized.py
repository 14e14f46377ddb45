"""What a materialized source says its columns take, by which a task's memory is bounded."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.errors import JobError
from airflow_txlog.jobs.source.materialized import MaterializedSource
from airflow_txlog.storage import LocalStore
from tests.security.test_footers import with_long_histogram, written

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
    assert source_of(tmp_path / "f.parquet", ROWS).bytes_of(["v"]) >= 0.95 * table.nbytes


def source_of(path: Path, rows: int) -> MaterializedSource:
    """A source of so many rows in one file."""
    size_bytes = path.stat().st_size
    file = StagedFile(
        path=path.name,
        partition_values={},
        size_bytes=size_bytes,
        modification_time_ms=0,
        num_records=rows,
        stats="{}",
    )
    store = LocalStore(str(path.parent))
    return MaterializedSource(files=(file,), store=store, described={}, stored=pa.schema([]))


def test_a_file_whose_footer_would_end_the_process_is_not_what_the_job_has_written(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    path.write_bytes(with_long_histogram(written()))
    source = source_of(path, 3)
    for read in (lambda: source.bytes_of(["id"]), lambda: source.distinct("id", 3)):
        with pytest.raises(JobError, match="is not what the job has written") as error:
            read()
        assert error.value.retryable
