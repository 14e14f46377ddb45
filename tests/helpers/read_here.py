"""The rows of a source as this process reads them, without the job around it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from airflow_txlog.contract.operations import FileView
from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidInput
from airflow_txlog.jobs.executor.local import LocalExecutor
from airflow_txlog.jobs.planner import begin_job
from airflow_txlog.jobs.source.listing import OnlySpark
from airflow_txlog.jobs.source.rows_here import rows_here
from airflow_txlog.storage import PLAIN
from tests.helpers.specs import job_spec


def rows_read_here(
    folder: Path, view: FileView, conf: Mapping[str, str] | None = None, time_zone: str = "UTC"
) -> pa.Table | str:
    """The rows of a view, or why it is left to Spark. Raises the error of a row that Spark would refuse too."""
    spec = job_spec(
        operation="write",
        table_uri=str(folder / "t"),
        arguments={"source": {"sql": "SELECT 1"}},
        spark_conf=dict(conf or {}),
        time_zone=time_zone,
    )
    context = begin_job(spec, LocalExecutor(spec), Table.at(spec.table_uri, PLAIN), print)
    found = rows_here(context, view, "source", None)
    if isinstance(found, OnlySpark):
        return found.why
    scan = found.scan(context)
    store, batches = scan.bins.store.open(), list[pa.RecordBatch]()
    try:
        for number in range(len(scan.bins)):
            for planned in scan.bins.files(number, store):
                batches += scan.rows_of(planned)
    except InvalidInput as error:
        if "only_spark" not in error.facts:
            raise
        return str(error.facts["only_spark"])
    return pa.Table.from_batches(batches, scan.output_schema)
