"""`python -m tests.benchmarks`: runs the cases, prints one JSON line for each peer, and keeps them in build/bench.json.

Progress goes to standard error. A case whose rows are wrong ends the run: a fast wrong answer is no result.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.timing import Line, measure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
CASES = ("delete", "merge", "open", "commit")


class Bench:
    """What the cases share: where they work, how large they are, and one Spark session for those that need it."""

    def __init__(self, folder: Path, scale: float, rounds: int) -> None:
        self.folder = folder
        self.scale = scale
        self.rounds = rounds
        self._spark: SparkSession | None = None

    @property
    def spark(self) -> SparkSession:
        """The session of our own jobs, with what a careful user of plain PySpark sets too: few shuffle partitions for
        few cores, and timestamps written as microseconds."""
        if self._spark is None:
            from airflow_txlog.jobs.session import local_session

            self._spark = local_session(
                {
                    "spark.driver.memory": "4g",
                    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
                    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
                }
            )
        return self._spark

    def run(self, case: str) -> list[Line]:
        return {"delete": self.delete, "merge": self.merge, "open": self.open, "commit": self.commit}[case]()

    def delete(self) -> list[Line]:
        from tests.benchmarks.row_cases import delete_sides

        events = self._events()
        sides = delete_sides(events, self.folder / "delete", self.spark)
        return self._measure("delete", sides, equal_tables(events.rows_after_delete))

    def merge(self) -> list[Line]:
        from tests.benchmarks.row_cases import merge_sides

        events = self._events()
        sides = merge_sides(events, self.folder / "merge", self.spark)
        return self._measure("merge", sides, equal_tables(events.rows_after_merge))

    def open(self) -> list[Line]:
        from tests.benchmarks.log_cases import OPEN_FILES, DeltaLakeOpen, OurOpen, make_large_log

        table = self.folder / f"large-log-{self.scale}"
        files = max(int(OPEN_FILES * self.scale), 1)
        make_large_log(table, files)

        def check(side: str, paths: set[str]) -> None:
            assert len(paths) == files, f"{side} lists {len(paths)} of {files} files"
            assert paths == seen.setdefault("paths", paths), f"{side} lists other paths"

        seen: dict[str, set[str]] = {}
        return self._measure("open", [OurOpen(table), DeltaLakeOpen(table)], check)

    def commit(self) -> list[Line]:
        from tests.benchmarks.log_cases import COMMITS, DeltaLakeCommits, OurCommits

        count = max(int(COMMITS * self.scale), 12)
        folder = self.folder / "commit"

        def check(side: str, left: tuple[int, int]) -> None:
            assert left == (count, count), f"{side} left version, files = {left}"

        sides = [OurCommits(folder / "ours", count), DeltaLakeCommits(folder / "deltalake", count)]
        lines = self._measure("commit", sides, check)
        for line in lines:
            rates = f"ours {count / line.ours_s:.0f}/s, {line.peer} {count / line.peer_s:.0f}/s"
            print(f"  commit: {rates}", file=sys.stderr, flush=True)
        return lines

    def _events(self) -> Any:
        from tests.benchmarks.events import Events

        events = Events(self.folder / f"events-{self.scale}", self.scale)
        events.make()
        return events

    def _measure(self, case: str, sides: Any, check: Callable[[str, Any], None]) -> list[Line]:
        lines = measure(case, sides, rounds=self.rounds, scale=self.scale, check=check)
        shutil.rmtree(self.folder / case, ignore_errors=True)
        return lines


def equal_tables(expected: Any) -> Callable[[str, Any], None]:
    """A check that a side left exactly these rows."""

    def check(side: str, found: Any) -> None:
        assert found.num_rows == expected.num_rows, f"{side} left {found.num_rows} rows, not {expected.num_rows}"
        assert found.equals(expected), f"{side} left other rows"

    return check


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--scale", type=float, default=1.0, help="1 is the full size; 0.1 a tenth of the rows")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds after the warm-up")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench", help="where the tables are made")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench.json", help="where the lines are kept")
    options = parser.parse_args()

    bench = Bench(options.folder, options.scale, options.rounds)
    options.folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for case in options.cases:
        for line in bench.run(case):
            lines.append(json.dumps(dataclasses.asdict(line)))
            print(lines[-1], flush=True)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
