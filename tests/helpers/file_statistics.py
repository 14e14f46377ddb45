"""The statistics of rows, as a writer of ours would gather them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from airflow_txlog.datafiles.parquet.statistics import INDEXED_COLUMNS_DEFAULT, StatisticsCollector


def file_statistics(
    table: pa.Table | pa.RecordBatch,
    *,
    indexed_columns: Sequence[str] | None = None,
    num_indexed_columns: int = INDEXED_COLUMNS_DEFAULT,
) -> str:
    """Return `add.stats` of a file with exactly these rows; the arguments are those of `StatisticsCollector`."""
    collector = StatisticsCollector(
        table.schema, indexed_columns=indexed_columns, num_indexed_columns=num_indexed_columns
    )
    collector.update(table)
    return collector.finish()
