"""Files of the job's inputs folder: rows that were evaluated once, written down with a number each, and read back.

Keys of a DELETE are encrypted: a process that is killed deletes nothing, and they may name the persons that the table
is to forget. Rows of other sources are not, as the data files that they become are not. The invariant: they are read by
the same task wherever it runs, so that a file that is not what the job has written is found out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from airflow_txlog.datafiles.parquet.output import ParquetFormat, StagedFile
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.tasks.rows_without_log import MaterializedTask
from airflow_txlog.datafiles.tasks.scan_and_write import PART_COLUMN, ROW_ID_COLUMN, WriteTask
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.here import bin_number, run_here
from airflow_txlog.jobs.files.scan import FilePlan, bins_for, plan_of
from airflow_txlog.jobs.files.stage import staged_here
from airflow_txlog.storage import StoreReference


def input_layout(context: JobContext, schema: pa.Schema) -> Layout:
    """How rows with these columns, ROW_ID_COLUMN among them, are written down."""
    return Layout(
        store=StoreReference.of(context.store),
        folder=context.inputs_folder,
        schema=schema,
        partition_columns=(),
        job_id=context.job_id,
        indexed_columns=(),
        # These files are read back at once and then deleted: small is not worth slow. Without dictionaries the footers
        # say how many bytes the values take, however often they repeat.
        parquet=ParquetFormat(codec="SNAPPY", with_dictionaries=False),
        with_digests=context.seal is not None,
    )


def write_input(context: JobContext, rows: pa.Table, what: str) -> tuple[StagedFile, ...]:
    """Files with keys that this process has, numbered from 0 in their order; none where there is no key."""
    if not rows.num_rows:
        return ()
    schema = rows.schema.append(pa.field(ROW_ID_COLUMN, pa.int64()))
    one_part = rows.append_column(PART_COLUMN, pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows))
    (batch,) = one_part.combine_chunks().to_batches()
    layout = replace(input_layout(context, schema), key=context.input_key)
    task = WriteTask(layout=layout, numbers_rows=True)
    return tuple(staged_here(context, task, batch, what))


def read_input(
    context: JobContext, files: Sequence[StagedFile], schema: pa.Schema, what: str, key: bytes | None = None
) -> pa.Table:
    """The rows of these files, with these columns and ROW_ID_COLUMN, in this process. Raises JobError, retryable."""
    _, task = input_scan(context, files, schema.append(pa.field(ROW_ID_COLUMN, pa.int64())), key)
    return run_here([(task, bin_number(number)) for number in range(len(task.bins))], task.output_schema, what)


def input_scan(
    context: JobContext, files: Sequence[StagedFile], schema: pa.Schema, key: bytes | None = None
) -> tuple[FilePlan, MaterializedTask]:
    """What reads these files, which were encrypted with the key, and its plan."""
    plan = plan_of(context.store, schema, [file.store_path for file in files], [file.size_bytes for file in files])
    return plan, MaterializedTask(bins=bins_for(context, plan), schema=schema, key=key)
