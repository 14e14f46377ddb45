"""Append of four million rows: our job and plain PySpark in the same session, and deltalake, from the same files.

The plain form is `read.parquet(...).write.parquet(...)`, unpartitioned; it keeps no statistics and commits nothing.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds

from airflow_txlog.engine import Table
from airflow_txlog.jobs.run import run_job
from tests.benchmarks.events import SCHEMA, Events, in_order
from tests.benchmarks.row_cases import DeltaLakeSide, PlainSpark, RowSide
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class AppendSide(RowSide):
    """Writes the rows of the local table into a table of its own, which is not there before."""

    @property
    def uri(self) -> str:
        return str(self.folder / "written") if self.s3 is None else self.s3.uri

    def prepare(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.events.link_table(self.table)
        if self.s3 is not None:
            self.s3.clear()


class OurAppend(AppendSide):
    """A write job that makes the table and appends the rows."""

    name = "ours"
    told = ""

    def __init__(self, events: Events, folder: Path, spark: SparkSession) -> None:
        super().__init__(events=events, folder=folder)
        self._spark = spark

    @property
    def input(self) -> Path:
        """The data files, linked into a folder without a log: a job refuses the raw files of a Delta table."""
        folder = self.folder / "input"
        folder.mkdir(parents=True, exist_ok=True)
        for path in self.table.glob("*.parquet"):
            link = folder / path.name
            if not link.exists():
                os.link(path, link)
        return folder

    def run(self) -> None:
        source = {"format": "parquet", "path": str(self.input)}
        arguments = {"source": source}
        spec = job_spec(operation="write", table_uri=self.uri, arguments=arguments, storage_options=self.options)
        result = run_job(spec, self._spark)
        assert result.status == "committed", result.error
        self.told = f" ({result.files['added']} files)"

    def result(self) -> pa.Table:
        return in_order(Table.open(self.uri, self.options).to_arrow())


class PlainAppend(PlainSpark):
    """What Spark's own writer takes for the same rows."""

    name = "pyspark"

    def run(self) -> None:
        self.target().write.parquet(str(self.output))


class DeltaLakeAppend(AppendSide, DeltaLakeSide):
    """deltalake, batch by batch from the files."""

    def run(self) -> None:
        from deltalake import write_deltalake

        paths = [str(path) for path in sorted(self.table.glob("*.parquet"))]
        rows = ds.dataset(paths, schema=SCHEMA).scanner().to_reader()
        write_deltalake(self.uri, rows, storage_options=None if self.s3 is None else self.s3.peer_options)


def append_sides(events: Events, folder: Path, spark: SparkSession) -> list[RowSide]:
    """Every row of the events, into a table of its own."""
    return [
        OurAppend(events, folder / "ours", spark),
        PlainAppend(events=events, folder=folder / "pyspark", spark=spark),
        DeltaLakeAppend(events=events, folder=folder / "deltalake"),
    ]
