"""The same work of ours on tables of 1, 4, 16 and 64 million rows: what a byte costs must not grow with the table.

A DELETE of one customer in a thousand and a MERGE of one row in a hundred, both of which rewrite every file, and an
append of the table's files. There is no peer; the rows are compared by their number and their sums.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_txlog.engine import Table
from tests.benchmarks.append_cases import OurAppend
from tests.benchmarks.events import FORGOTTEN_CUSTOMER
from tests.benchmarks.heavy_cases import COMPARED, HeavyEvents, sums
from tests.benchmarks.row_cases import OurJob, our_merge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = (4, 16, 64, 256)
"""Of 250,000 rows each."""


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
        mb = sum(path.stat().st_size for path in events.table.rglob("part-*.parquet")) / 1e6
        for case, side, expected in _work(events, folder / "growth", spark):
            seconds = [_seconds(side, expected, f"{case}, {files} files") for _ in range(rounds + 1)]
            # The first one warms up, except where it is all there is.
            median = statistics.median(seconds[1:] or seconds)
            yield {
                "case": case,
                "million_rows": round(events.rows.num_rows / 1e6, 3),
                "mb": round(mb, 1),
                "ours_s": round(median, 3),
                "ns_per_byte": round(1000 * median / mb, 2),
                "rounds": rounds,
                "scale": scale,
            }
        shutil.rmtree(folder / "growth", ignore_errors=True)


def _work(events: GrowingEvents, folder: Path, spark: SparkSession) -> Iterator[tuple[str, Any, list[int]]]:
    """The name of each case, its side and the sums of the rows that it must leave."""
    arguments: dict[str, object] = {"predicate": f"customer_id = {FORGOTTEN_CUSTOMER}"}
    delete = OurJob(events=events, folder=folder, spark=spark, operation="delete", arguments=arguments)
    yield "growth-delete", delete, sums(events.rows_after_delete)
    yield "growth-merge", our_merge(events, folder, spark), sums(events.rows_after_merge)
    yield "growth-append", OurAppend(events=events, folder=folder, spark=spark), sums(events.rows)


def _seconds(side: Any, expected: list[int], label: str) -> float:
    side.prepare()
    began = time.perf_counter()
    side.run()
    took = time.perf_counter() - began
    left = sums(Table.open(side.uri).to_arrow(columns=COMPARED))
    assert left == expected, f"{label}: left rows with {left}, not {expected}"
    print(f"  {label}: {took:.3g} s ({getattr(side, 'told', '').strip(' ()')})", file=sys.stderr, flush=True)
    return took
