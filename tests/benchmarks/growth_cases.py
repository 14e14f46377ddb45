"""The same work of ours on tables of 1, 4, 16 and 64 million rows: what a byte costs must not grow with the table.

A DELETE of one customer in a thousand and a MERGE of one row in a hundred, both of which rewrite every file, and an
append of the table's files. Then statements on TPC-H lineitem of 6, 12, 24 and 48 million rows. There is no peer; the
rows are compared by their number and their sums.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_txlog.engine import Table
from tests.benchmarks.append_cases import OurAppend
from tests.benchmarks.events import FORGOTTEN_CUSTOMER
from tests.benchmarks.heavy_cases import COMPARED, HeavyEvents, sums
from tests.benchmarks.row_cases import OurJob, our_merge
from tests.benchmarks.statement_cases import statement_sides
from tests.benchmarks.timing import cpu_seconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_txlog.contract.job import JobResult, JobSpec

FILES = (4, 16, 64, 256)
"""Of 250,000 rows each."""
LINEITEM_SIZES = (1, 2, 4, 8)
"""Of six million rows each."""
LINEITEM_CASES = ("tpch-delete-keys", "tpch-update", "tpch-delete-like")
LINEITEM_COMPARED = ["l_orderkey", "l_extendedprice"]


@dataclass(frozen=True)
class GrowingEvents(HeavyEvents):
    """A source that grows with the table: one row for each hundred of its rows, half of them new."""

    @property
    def merged_rows(self) -> int:
        return self.rows_per_file * self.files // 100


def measure_growth(folder: Path, spark: SparkSession, *, rounds: int, scale: float) -> Iterator[dict[str, Any]]:
    """A line for each kind of work and size: the median of its seconds, and of its nanoseconds for each byte of the
    table's files."""
    for files in FILES:
        events = GrowingEvents(folder / f"growth-{files}-{scale}", scale, files)
        events.make()
        for case, side, expected in _work(events, folder / "growth", spark):
            took = [_seconds(side, COMPARED, expected, f"{case}, {files} files") for _ in range(rounds + 1)]
            yield _line(case, took, events.table, events.rows.num_rows) | {"rounds": rounds, "scale": scale}
        shutil.rmtree(folder / "growth", ignore_errors=True)


def measure_lineitem(
    folder: Path, run: Callable[[JobSpec], JobResult], *, rounds: int, scale: float
) -> Iterator[dict[str, Any]]:
    """The same of statements on TPC-H lineitem; each table is deleted after its statements."""
    for size in LINEITEM_SIZES:
        for case in LINEITEM_CASES:
            side = statement_sides(case, folder, size * scale, run, None)[0]
            num_rows, expected = lineitem_after(case, side.input)
            label = f"growth-{case}, {num_rows} rows"
            took = [_seconds(side, LINEITEM_COMPARED, expected, label) for _ in range(rounds + 1)]
            line = _line(f"growth-{case}", took, side.input / "table", num_rows)
            yield line | {"rounds": rounds, "scale": scale}
            shutil.rmtree(folder / case)
        shutil.rmtree(side.input)


def lineitem_after(case: str, made: Path) -> tuple[int, list[int]]:
    """Return the rows of a made table, and the `sums` that the statement must leave, from one file after the other."""
    keys = pq.read_table(made / "keys")["l_orderkey"]
    num_rows, left = 0, [[0, 0, 0]]
    for path in sorted((made / "table").glob("*.parquet")):
        rows = pq.read_table(path, columns=[*LINEITEM_COMPARED, "l_shipdate", "l_comment"])
        num_rows += rows.num_rows
        if case == "tpch-delete-keys":
            rows = rows.filter(pc.invert(pc.is_in(rows["l_orderkey"], value_set=keys)))
        if case == "tpch-delete-like":
            rows = rows.filter(pc.invert(pc.match_like(rows["l_comment"], "%special%requests%")))
        if case == "tpch-update":
            rounded = pc.round(rows["l_extendedprice"], 0, round_mode="half_towards_infinity")
            prices = pc.if_else(pc.equal(pc.year(rows["l_shipdate"]), 1995), rounded, rows["l_extendedprice"])
            rows = rows.set_column(rows.schema.get_field_index("l_extendedprice"), "l_extendedprice", prices)
        left.append(lineitem_sums(rows))
    return num_rows, [sum(each) for each in zip(*left, strict=True)]


def lineitem_sums(rows: pa.Table) -> list[int]:
    """Return how many rows there are, and what their orders and prices in cents come to."""
    orders, prices = (pc.sum(rows[name]).as_py() or 0 for name in LINEITEM_COMPARED)
    return [rows.num_rows, orders, round(prices * 100)]


def _line(case: str, took: list[tuple[float, float]], table: Path, num_rows: int) -> dict[str, Any]:
    mb = sum(path.stat().st_size for path in table.rglob("part-*.parquet")) / 1e6
    # The first one warms up, except where it is all there is.
    median, cpu = (statistics.median(each) for each in zip(*(took[1:] or took), strict=True))
    return {
        "case": case,
        "million_rows": round(num_rows / 1e6, 3),
        "mb": round(mb, 1),
        "ours_s": round(median, 3),
        "ns_per_byte": round(1000 * median / mb, 2),
        "ours_cpu_s": round(cpu, 3),
        "cpu_ns_per_byte": round(1000 * cpu / mb, 2),
    }


def _work(events: GrowingEvents, folder: Path, spark: SparkSession) -> Iterator[tuple[str, Any, list[int]]]:
    """The name of each case, its side and the sums of the rows that it must leave."""
    arguments: dict[str, object] = {"predicate": f"customer_id = {FORGOTTEN_CUSTOMER}"}
    delete = OurJob(events=events, folder=folder, spark=spark, operation="delete", arguments=arguments)
    yield "growth-delete", delete, sums(events.rows_after_delete)
    yield "growth-merge", our_merge(events, folder, spark), sums(events.rows_after_merge)
    yield "growth-append", OurAppend(events=events, folder=folder, spark=spark), sums(events.rows)


def _seconds(side: Any, columns: list[str], expected: list[int], label: str) -> tuple[float, float]:
    """Return the seconds that the work took, and the CPU seconds."""
    side.prepare()
    used, began = cpu_seconds(), time.perf_counter()
    side.run()
    took, used = time.perf_counter() - began, cpu_seconds() - used
    rows = Table.open(str(side.table)).to_arrow(columns=columns)
    left = sums(rows) if columns == COMPARED else lineitem_sums(rows)
    assert left == expected, f"{label}: left rows with {left}, not {expected}"
    print(f"  {label}: {took:.3g} s ({getattr(side, 'told', '').strip(' ()')})", file=sys.stderr, flush=True)
    return took, used
