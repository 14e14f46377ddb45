"""Tables of an unusual shape: 1,500 columns, or 5,000 partitions. Ours and deltalake, each on a table of its own that
holds the same rows, from the same Parquet file. No job here needs Spark.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_txlog.jobs.run import run_job
from tests.benchmarks.timing import Line, measure
from tests.helpers.specs import job_spec

COLUMNS = 1_500
PARTITIONS = 5_000
ROWS = 1_000
CASES = ("wide-append", "wide-delete", "wide-upsert", "partitions-append")


def wide(columns: int) -> pa.Table:
    """Rows of an id and columns that are doubles and texts in turn."""
    kinds = [pa.array([float(n)] * ROWS) if n % 2 else pa.array([f"v{n}"] * ROWS) for n in range(columns)]
    return pa.table({"id": pa.array(range(ROWS), pa.int64()), **{f"c{n}": values for n, values in enumerate(kinds)}})


def scattered(partitions: int) -> pa.Table:
    """Four rows for each partition."""
    ids = range(4 * partitions)
    parts = pa.array([each % partitions for each in ids], pa.int64())
    return pa.table({"id": pa.array(ids, pa.int64()), "p": parts, "v": pa.array(map(str, ids))})


@dataclass(kw_only=True)
class Shape:
    """The rows of a case and how the table is partitioned."""

    case: str
    rows: pa.Table
    folder: Path
    partition_by: list[str] = field(default_factory=list)

    @property
    def source(self) -> Path:
        return self.folder / "source"

    def table(self, side: str) -> Path:
        """The path of one side's table."""
        return self.folder / side

    def prepare(self, side: str) -> None:
        """Make the table with one row, or with all rows for what changes rows."""
        from deltalake import write_deltalake

        shutil.rmtree(self.table(side), ignore_errors=True)
        self.source.mkdir(parents=True, exist_ok=True)
        pq.write_table(self.rows, self.source / "rows.parquet")
        first = self.rows.slice(0, 1) if self.case.endswith("append") else self.rows
        write_deltalake(self.table(side), first, partition_by=self.partition_by or None)

    def result(self, side: str) -> pa.Table:
        """The ids that a side left, in order."""
        from deltalake import DeltaTable

        found = DeltaTable(self.table(side)).to_pyarrow_table(columns=["id"])
        return found.combine_chunks().sort_by("id")


@dataclass(kw_only=True)
class Ours:
    shape: Shape
    name: str = "ours"

    def prepare(self) -> None:
        self.shape.prepare(self.name)

    def run(self) -> None:
        source = {"format": "parquet", "path": str(self.shape.source)}
        operation, arguments = _JOBS[self.shape.case](source)
        spec = job_spec(operation=operation, table_uri=str(self.shape.table(self.name)), arguments=arguments)
        result = run_job(spec, None)
        assert result.status == "committed", result.error

    def result(self) -> pa.Table:
        return self.shape.result(self.name)


_JOBS: dict[str, Callable[[dict[str, Any]], tuple[str, dict[str, Any]]]] = {
    "wide-append": lambda source: ("write", {"source": source}),
    "wide-delete": lambda source: ("delete", {"predicate": "id = 5"}),
    "wide-upsert": lambda source: ("upsert", {"source": source, "keys": ["id"]}),
    "partitions-append": lambda source: ("write", {"source": source}),
}


@dataclass(kw_only=True)
class DeltaLake:
    shape: Shape
    name: str = "deltalake"

    def prepare(self) -> None:
        self.shape.prepare(self.name)

    def run(self) -> None:
        from deltalake import DeltaTable, write_deltalake

        path, case = self.shape.table(self.name), self.shape.case
        if case.endswith("append"):
            write_deltalake(path, pq.read_table(self.shape.source), mode="append")
        elif case == "wide-delete":
            DeltaTable(path).delete("id = 5")
        else:
            merge = DeltaTable(path).merge(
                pq.read_table(self.shape.source), "t.id = s.id", source_alias="s", target_alias="t"
            )
            merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def result(self) -> pa.Table:
        return self.shape.result(self.name)


def measure_wide(case: str, folder: Path, *, rounds: int, scale: float) -> list[Line]:
    """Lines of one of CASES."""
    is_wide = case.startswith("wide")
    rows = wide(max(2, round(COLUMNS * scale))) if is_wide else scattered(max(2, round(PARTITIONS * scale)))
    shape = Shape(case=case, rows=rows, folder=folder / case, partition_by=[] if is_wide else ["p"])
    ids = rows.select(["id"])
    expected = (
        {
            "wide-append": pa.concat_tables([ids.slice(0, 1), ids]),
            "wide-delete": ids.filter(pc.not_equal(ids.column("id"), 5)),
            "wide-upsert": ids,
            "partitions-append": pa.concat_tables([ids.slice(0, 1), ids]),
        }[case]
        .combine_chunks()
        .sort_by("id")
    )

    def check(side: str, found: pa.Table) -> None:
        assert found.column("id").to_pylist() == expected.column("id").to_pylist(), f"{side} left other rows"

    return measure(case, [Ours(shape=shape), DeltaLake(shape=shape)], rounds=rounds, scale=scale, check=check)
