"""Jobs that change very many rows: seconds and the most memory of driver, worker and JVM, beside plain PySpark.

Every measurement is a process of its own with a Spark of its own, of the default heap, warmed up by the same work on a
small table: what a process holds is then what this work took. The rows are compared by their number and their sums.

As a program (`python -m tests.benchmarks.heavy_cases CASE SIDE FOLDER SCALE`) this is the child.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_txlog.storage.limits import SMALL_JOB
from tests.benchmarks.events import Events, make_events
from tests.benchmarks.peaks import peaks_mb, set_back
from tests.benchmarks.row_cases import (
    CHANGES,
    OurJob,
    PlainDelete,
    PlainMergeFullOuter,
    PlainUpdate,
    RowSide,
    our_merge,
)
from tests.helpers.paths import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = 80
WARM_UP_FILES = 4
COMPARED = ["event_id", "customer_id", "amount"]
# Both are of data columns, and neither can be answered by statistics alone. Spark evaluates the first.
EVERY_ROW, HALF = "pmod(customer_id, 1000) >= 0", "customer_id < 500"


@dataclass(frozen=True)
class HeavyEvents(Events):
    """20 million events in 80 files; results are not sorted, because only sums are taken of them."""

    files: int = FILES

    @property
    def compared(self) -> list[str]:
        return COMPARED

    def in_order(self, rows: pa.Table) -> pa.Table:
        return rows.select(self.compared)


@dataclass(frozen=True)
class MatchingEvents(HeavyEvents):
    """The same with a source of a quarter of its rows: 5 million that all match."""

    @property
    def merged_rows(self) -> int:
        return self.rows_per_file * self.files // 4

    @property
    def source(self) -> Path:
        return self.folder / "source-matching" / "part-0.parquet"

    def _source_rows(self) -> pa.Table:
        chosen = np.random.default_rng(self.files).choice(
            self.rows_per_file * self.files, self.merged_rows, replace=False
        )
        return make_events(chosen.astype(np.int64), self.files + 1)


@dataclass(frozen=True, kw_only=True)
class HeavyCase:
    """One kind of work. `sides` gives ours first; `expected` takes the table's rows to those that must be left."""

    sides: Callable[[Events, Path, SparkSession], list[RowSide]]
    expected: Callable[[pa.Table, Events], pa.Table]
    events: type[HeavyEvents] = HeavyEvents


def _deletes(condition: str, *, masking: bool = False) -> Callable[[Events, Path, SparkSession], list[RowSide]]:
    def sides(events: Events, folder: Path, spark: SparkSession) -> list[RowSide]:
        arguments: dict[str, object] = {"predicate": condition}
        return [
            OurJob(events=events, folder=folder, spark=spark, operation="delete", arguments=arguments, masking=masking),
            PlainDelete(events=events, folder=folder, spark=spark, condition=condition),
        ]

    return sides


def _updates(condition: str) -> Callable[[Events, Path, SparkSession], list[RowSide]]:
    def sides(events: Events, folder: Path, spark: SparkSession) -> list[RowSide]:
        arguments: dict[str, object] = {"predicate": condition, "set": CHANGES}
        return [
            OurJob(events=events, folder=folder, spark=spark, operation="update", arguments=arguments),
            PlainUpdate(events=events, folder=folder, spark=spark, condition=condition),
        ]

    return sides


def _merges(events: Events, folder: Path, spark: SparkSession) -> list[RowSide]:
    return [our_merge(events, folder, spark), PlainMergeFullOuter(events=events, folder=folder, spark=spark)]


def _none(rows: pa.Table, events: Events) -> pa.Table:
    return rows.slice(0, 0)


def _merged(rows: pa.Table, events: Events) -> pa.Table:
    source = pq.read_table(events.source, columns=COMPARED)
    kept = rows.filter(pc.invert(pc.is_in(rows["event_id"], value_set=source["event_id"])))
    return pa.concat_tables([kept, source])


def _without_half(rows: pa.Table, events: Events) -> pa.Table:
    return rows.filter(pc.greater_equal(rows["customer_id"], 500))


def _changed(rows: pa.Table, events: Events) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index("amount"), "amount", pc.add(rows["amount"], 1.0))


CASES = {
    "heavy-delete-all": HeavyCase(sides=_deletes(EVERY_ROW), expected=_none),
    "heavy-delete-half": HeavyCase(sides=_deletes(HALF), expected=_without_half),
    "heavy-delete-half-vectors": HeavyCase(sides=_deletes(HALF, masking=True), expected=_without_half),
    "heavy-update-all": HeavyCase(sides=_updates(EVERY_ROW), expected=_changed),
    "heavy-update-plain": HeavyCase(sides=_updates("customer_id >= 0"), expected=_changed),
    "heavy-merge": HeavyCase(sides=_merges, expected=_merged, events=MatchingEvents),
}


def measure_heavy(case: str, folder: Path, *, rounds: int, scale: float) -> list[dict[str, Any]]:
    """Medians of the seconds and the largest peaks of our side, with one line for each peer; the sides in turn."""
    events = _events(case, folder, scale)
    expected = sums(CASES[case].expected(_rows(events), events))
    names = side_names(case, events, folder)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names[:: 1 if number % 2 else -1]:
            run = measure_child(case, name, folder, scale)
            assert run["sums"] == expected, f"{case}: {name} left rows with {run['sums']}, not {expected}"
            found[name].append(run)
            told = ", ".join(f"{kind} {peak} MB" for kind, peak in run["peak_mb"].items())
            progress = f"  {case}: round {number + 1}/{rounds}: {name} {run['seconds']:.3g} s ({told}){run['told']}"
            print(progress, file=sys.stderr, flush=True)
    seconds = {name: statistics.median(run["seconds"] for run in runs) for name, runs in found.items()}
    return [
        {
            "case": case,
            "ours_s": round(seconds["ours"], 3),
            "peer": peer,
            "peer_s": round(seconds[peer], 3),
            "ratio": round(seconds["ours"] / seconds[peer], 3),
            "ours_peak_mb": _largest(found["ours"]),
            "peer_peak_mb": _largest(found[peer]),
            "rounds": rounds,
            "scale": scale,
        }
        for peer in names
        if peer != "ours"
    ]


def sums(rows: pa.Table) -> list[int]:
    """How many rows there are, and what their ids, customers and amounts in cents come to."""
    cents = pc.cast(pc.round(pc.multiply(rows["amount"], 100.0)), pa.int64())
    totals = (pc.sum(column).as_py() or 0 for column in (rows["event_id"], rows["customer_id"], cents))
    return [rows.num_rows, *totals]


def side_names(case: str, events: Events, folder: Path) -> list[str]:
    """Of the sides of a case, ours first. No Spark is needed to say what they are called."""
    spark: Any = None
    return [side.name for side in CASES[case].sides(events, folder, spark)]  # type: ignore[attr-defined]


def _events(case: str, folder: Path, scale: float) -> HeavyEvents:
    events = CASES[case].events(folder / f"heavy-{scale}", scale)
    events.make()
    return events


def _rows(events: Events) -> pa.Table:
    paths = sorted(events.table.rglob("part-*.parquet"))
    return pa.concat_tables([pq.read_table(path, columns=COMPARED, partitioning=None) for path in paths])


def _largest(runs: list[dict[str, Any]]) -> dict[str, int]:
    kinds = sorted({kind for run in runs for kind in run["peak_mb"]})
    return {kind: max(run["peak_mb"].get(kind, 0) for run in runs) for kind in kinds}


def measure_child(case: str, side: str, folder: Path, scale: float) -> dict[str, Any]:
    """`seconds`, `peak_mb` by kind of process, `told` and `sums` of one run in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.heavy_cases", case, side, str(folder), str(scale)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{side} of {case} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _child(case: str, name: str, folder: Path, scale: float) -> None:
    from airflow_txlog.jobs.spark.session import local_session

    settings = {
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    }
    spark = local_session(settings)

    def side_of(events: Events) -> Any:
        sides = CASES[case].sides(events, folder / f"{case}-{name}", spark)
        return next(side for side in sides if side.name == name)  # type: ignore[attr-defined]

    small = CASES[case].events(folder / "heavy-warm-up", 0.01, WARM_UP_FILES)
    small.make()
    warm_up = side_of(small)
    warm_up.prepare()
    # By Spark's workers, as the large table: a small one is read in this process.
    os.environ[SMALL_JOB.setting] = "1"
    warm_up.run()
    del os.environ[SMALL_JOB.setting]
    side = side_of(_events(case, folder, scale))
    side.prepare()
    set_back()
    began = time.perf_counter()
    side.run()
    seconds = time.perf_counter() - began
    peaks, told = peaks_mb(), getattr(side, "told", "")
    print(json.dumps({"seconds": seconds, "peak_mb": peaks, "told": told, "sums": sums(side.result())}))
    spark.stop()


if __name__ == "__main__":
    _child(sys.argv[1], sys.argv[2], Path(sys.argv[3]), float(sys.argv[4]))
