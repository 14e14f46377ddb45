"""The benchmark: runs the cases, prints one JSON line for each peer, and keeps them in build/bench.json.

Progress goes to standard error. A case whose rows are wrong ends the run: a fast wrong answer is no result.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import os
import shutil
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.places import NO_SERVER, S3Folder, has_server, set_keys
from tests.benchmarks.statements import LINEITEM, NO_GENERATOR, STATEMENTS, generator
from tests.benchmarks.timing import Line, measure
from tests.helpers import s3
from tests.helpers.paths import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_txlog.contract.job import JobResult, JobSpec
    from tests.benchmarks.relay import Relay
    from tests.helpers.delta_spark import DeltaSpark

# Of the log alone.
LOG_CASES = (
    "open",
    "commit",
    "convert",
    "list-partition",
    "list-pruned",
    "prune",
    "refresh",
    "commit-large",
    "checkpoint",
)
CASES = (
    "delete",
    "update",
    "merge",
    "append",
    "append-query",
    "append-partitioned",
    "append-checked",
    "append-staged",
    "delete-vectors",
    "update-vectors",
    "merge-vectors",
    "append-large",
    "delete-large",
    "merge-large",
    "merge-partition",
    "optimize",
    "z-order",
    "cluster",
    "apply-changes",
    *LOG_CASES,
    "memory",
    "ten-million",
    "plan",
    "task",
    "task-eight",
    "operations",
    "parse",
    "names",
    "window",
    *STATEMENTS,
    "writers",
    "s3-writers",
    "s3-open",
    "s3-list",
    "s3-append",
    "s3-delete",
    "s3-update",
    "s3-merge",
    "s3-optimize",
)
# Run where they are asked for, each alone or all as "heavy": they take minutes.
HEAVY_CASES = (
    "heavy-delete-all",
    "heavy-delete-half",
    "heavy-delete-half-vectors",
    "heavy-update-all",
    "heavy-update-plain",
    "heavy-merge",
)
HEAVY = "heavy"
# Ours alone, on tables of growing size; run where they are asked for.
GROWTH, GROWTH_LINEITEM = "growth", "growth-tpch"
# Ours alone too: an erasure and its verification.
ERASURE = "erasure"
OPEN_FILES = 300_000
CHECKPOINT_FILES = 1_000_000
MOST_FILES = 10_000_000
# On S3 every request costs milliseconds whatever it brings: smaller tables tell as much.
S3_FILES = 3_000
S3_COMMITS = 10
S3_ROWS = 0.25


class Bench:
    """What the cases share: where they work, how large they are, and one Spark session for those that need it."""

    def __init__(
        self, folder: Path, scale: float, rounds: int, workers: int = 0, delay_ms: float | None = None
    ) -> None:
        """`workers`: how many of a cluster's workers, of one core each, a Spark has; 0: none, it has this process.

        `delay_ms`: requests to S3 pass through a relay that counts them, and take this much longer.
        """
        self.folder = folder
        self.scale = scale
        self.rounds = rounds
        self.workers = workers
        self.delay_ms = delay_ms
        self._spark: SparkSession | None = None
        self._open = contextlib.ExitStack()

    @property
    def spark(self) -> SparkSession:
        """The session of our own jobs, with what a careful user of plain PySpark sets too: few shuffle partitions for
        few cores, and timestamps written as microseconds."""
        if self._spark is None:
            from airflow_txlog.jobs.spark.session import local_session

            settings = {
                "spark.driver.memory": "4g",
                "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
                "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
            }
            if self._on_cluster:
                from pyspark.sql import SparkSession

                from airflow_txlog.jobs.spark.launch import LOCAL_DEFAULTS

                on_cluster = {**LOCAL_DEFAULTS, **settings, **self._on_cluster}
                self._spark = SparkSession.builder.config(map=on_cluster).getOrCreate()
            else:
                self._spark = local_session(settings)
        return self._spark

    @cached_property
    def _on_cluster(self) -> dict[str, str]:
        """The settings by which a Spark works on the cluster: it holds its workers until it ends, so each of the two
        that a case may have, ours and delta-spark's, has its own."""
        if not self.workers:
            return {}
        from tools.standalone_cluster import StandaloneCluster

        started = StandaloneCluster(self.folder / "cluster", workers=2 * self.workers, worker_memory="3g")
        cluster = self._open.enter_context(started)
        return {
            "spark.master": cluster.master,
            "spark.cores.max": str(self.workers),
            "spark.executor.cores": "1",
            "spark.executor.memory": "2g",
        }

    @cached_property
    def delta_spark(self) -> DeltaSpark | None:
        """A warm delta-spark for all cases that have it as a peer, until `close`; None where its jars are not there."""
        from tests.helpers.delta_spark import AT_FULL_SPEED, jars, running

        return self._open.enter_context(running({**AT_FULL_SPEED, **self._on_cluster})) if jars() else None

    def run_spec(self, spec: JobSpec) -> JobResult:
        """Run a job of ours. Without a cluster, Spark starts only if a job needs it."""
        from airflow_txlog.jobs.run import run_job

        # As in a job's own process.
        gc.freeze()
        return run_job(spec, self.spark) if self.workers else run_job(spec, None, start=lambda: self.spark)

    def close(self) -> None:
        """End what runs beside us."""
        if self._spark is not None and self.workers:
            self._spark.stop()
        self._open.close()

    def run(self, case: str) -> list[dict[str, Any]]:
        """The lines of one case, ready to be printed."""
        if case in HEAVY_CASES:
            from tests.benchmarks.heavy_cases import measure_heavy

            return measure_heavy(case, self.folder, rounds=self.rounds, scale=self.scale)
        if case == GROWTH_LINEITEM:
            from tests.benchmarks.growth_cases import measure_lineitem

            if generator() is None:
                return _skipped(case, NO_GENERATOR)
            return list(measure_lineitem(self.folder, self.run_spec, rounds=self.rounds, scale=self.scale))
        if case == GROWTH:
            from tests.benchmarks.growth_cases import measure_growth

            return list(measure_growth(self.folder, self.spark, rounds=self.rounds, scale=self.scale))
        if case == ERASURE:
            from tests.benchmarks.erasure_cases import measure_erasure

            return list(measure_erasure(self.folder / ERASURE, scale=self.scale))
        if case == "task":
            from tests.benchmarks.task_cases import measure_task

            return measure_task(self.folder, rounds=self.rounds)
        if case == "task-eight":
            from tests.benchmarks.task_cases import measure_eight

            return measure_eight(self.folder, rounds=self.rounds)
        if case == "operations":
            from tests.benchmarks.task_cases import measure_operations

            return measure_operations(self.folder, rounds=self.rounds)
        if case == "parse":
            from tests.benchmarks.parse_cases import measure_parse

            return measure_parse(self.folder / "parse", rounds=self.rounds)
        if case == "names":
            from tests.benchmarks.name_cases import measure_names

            return measure_names(rounds=self.rounds)
        if case == "window":
            from tests.benchmarks.window_cases import measure_window

            return measure_window(self.folder / "window", rounds=self.rounds, scale=self.scale)
        if case in STATEMENTS and STATEMENTS[case].shape is LINEITEM and generator() is None:
            return _skipped(case, NO_GENERATOR)
        if case in ("memory", "ten-million"):
            return self.memory() if case == "memory" else self.ten_million()
        if case == "plan":
            return self.plan()
        if case.startswith("s3-") and not has_server():
            return _skipped(case, NO_SERVER)
        if case in ("writers", "s3-writers"):
            from tests.benchmarks.writer_cases import measure_writers

            rounds = min(self.rounds, 3)
            on_s3 = case == "s3-writers"
            relay = self.relay if on_s3 else None
            return [measure_writers(case, on_s3=on_s3, rounds=rounds, scale=self.scale, relay=relay)]
        cases: dict[str, Callable[[], list[Line]]] = {
            "append": lambda: self.append("append"),
            "append-query": lambda: self.append("append-query"),
            "append-partitioned": lambda: self.append("append-partitioned"),
            "append-checked": lambda: self.append_by_us("append-checked"),
            "append-staged": lambda: self.append_by_us("append-staged"),
            "append-large": lambda: self.append("append", files=80),
            "delete": lambda: self.copying("delete"),
            "update": lambda: self.copying("update"),
            "merge": lambda: self.copying("merge"),
            "delete-vectors": lambda: self.masking("delete"),
            "update-vectors": lambda: self.masking("update"),
            "merge-vectors": lambda: self.masking("merge"),
            "delete-large": lambda: self.copying("delete", partitioned=True),
            "merge-large": lambda: self.copying("merge", partitioned=True),
            "merge-partition": self.merge_partition,
            "optimize": lambda: self.optimize("optimize"),
            "z-order": lambda: self.optimize("z-order"),
            "cluster": lambda: self.optimize("cluster"),
            "apply-changes": self.apply_changes,
            "open": self.open,
            "commit": self.commit,
            "convert": self.convert,
            "list-partition": self.list_partition,
            "list-pruned": self.list_pruned,
            "prune": self.prune,
            "refresh": self.refresh,
            "commit-large": self.commit_large,
            "checkpoint": self.checkpoint,
            "s3-open": self.s3_open,
            "s3-list": self.s3_list,
            "s3-append": lambda: self.s3_rows("append"),
            "s3-delete": lambda: self.s3_rows("delete"),
            "s3-update": lambda: self.s3_rows("update"),
            "s3-merge": lambda: self.s3_rows("merge"),
            "s3-optimize": lambda: self.s3_rows("optimize"),
        }
        lines = self.statement(case) if case in STATEMENTS else cases[case]()
        return [dataclasses.asdict(line) for line in lines]

    def statement(self, case: str) -> list[Line]:
        from tests.benchmarks.statement_cases import equal_sides, statement_sides

        sides = statement_sides(case, self.folder, self.scale, self.run_spec, self.delta_spark)
        return self._measure(case, sides, equal_sides(self.folder / case / "first"))

    def copying(self, kind: str, *, partitioned: bool = False) -> list[Line]:
        from tests.benchmarks.delta_spark_cases import copying_sides

        case = f"{kind}-large" if partitioned else kind
        events = self._partitioned() if partitioned else self._events()
        sides = copying_sides(kind, events, self.folder / case, self.spark, self.delta_spark)
        return self._measure(case, sides, equal_tables(getattr(events, f"rows_after_{kind}")))

    def masking(self, kind: str) -> list[Line]:
        from tests.benchmarks.delta_spark_cases import masking_sides

        case, events = f"{kind}-vectors", self._events()
        sides = masking_sides(kind, events, self.folder / case, self.spark, self.delta_spark)
        return self._measure(case, sides, equal_tables(getattr(events, f"rows_after_{kind}")))

    def merge_partition(self) -> list[Line]:
        from tests.benchmarks.delta_spark_cases import partition_sides

        events = self._partitioned(range(24, 32))
        sides = partition_sides(events, self.folder / "merge-partition", self.spark, self.delta_spark)
        expected = {side.name: side.events.rows_after_merge for side in sides}

        def check(side: str, found: Any) -> None:
            equal_tables(expected[side])(side, found)

        return self._measure("merge-partition", sides, check)

    def append(self, kind: str, *, files: int | None = None) -> list[Line]:
        from tests.benchmarks.append_cases import append_sides
        from tests.benchmarks.events import Events

        case = kind if files is None else f"{kind}-large"
        events = self._events() if files is None else Events(self.folder / f"large-{self.scale}", self.scale, files)
        events.make()
        sides = append_sides(kind, events, self.folder / case, self.spark, self.delta_spark)
        return self._measure(case, sides, equal_tables(events.rows))

    def append_by_us(self, case: str) -> list[Line]:
        from tests.benchmarks.append_cases import checked_sides, staged_sides

        events, make = self._events(), checked_sides if case == "append-checked" else staged_sides
        return self._measure(case, make(events, self.folder / case, self.spark), equal_tables(events.rows))

    def optimize(self, case: str) -> list[Line]:
        from tests.benchmarks.optimize_cases import Z_ORDER, optimize_sides

        events = self._events()
        columns = () if case == "optimize" else Z_ORDER
        clusters = case == "cluster"
        with optimize_sides(events, self.folder / case, self.spark, columns, clusters=clusters) as sides:
            return self._measure(case, sides, equal_tables(events.rows))

    def open(self) -> list[Line]:
        from tests.benchmarks.scale_cases import DeltaLakeListing, OurListing

        table, files = self._json_log()
        return self._measure("open", [OurListing(table), DeltaLakeListing(table)], equal_paths(files))

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

    def convert(self) -> list[Line]:
        from tests.benchmarks.convert_cases import FILES, DeltaLakeConvert, OurConvert, parquet_folder

        count = max(int(FILES * self.scale), 20)
        folder = self.folder / "convert"
        parquet_folder(folder, count)

        def check(side: str, files: int) -> None:
            assert files == count, f"{side} left {files} files"

        return self._measure("convert", [OurConvert(folder), DeltaLakeConvert(folder)], check)

    def apply_changes(self) -> list[Line]:
        from tests.benchmarks.changes_cases import ROWS, OurChanges, OurUpsert, table_and_changes

        folder, left = self.folder / "changes", set[tuple[int, int]]()
        table_and_changes(folder, max(int(ROWS * self.scale), 1000))

        def check(side: str, found: tuple[int, int]) -> None:
            left.add(found)
            assert len(left) == 1, f"{side} left {found}"

        sides = {
            "apply-changes": [OurChanges(folder), OurUpsert(folder)],
            "apply-changes-history": [OurChanges(folder, keeps_history=True), OurUpsert(folder, keeps_history=True)],
        }
        return [line for case, of_case in sides.items() for line in self._measure(case, of_case, check)]

    def list_partition(self) -> list[Line]:
        from tests.benchmarks.scale_cases import DeltaLakeListing, OurListing

        table, files = self._checkpointed()
        expected = files_of_partition(files)
        sides = [OurListing(table, PARTITION), DeltaLakeListing(table, PARTITION)]
        return self._measure("list-partition", sides, equal_paths(expected))

    def list_pruned(self) -> list[Line]:
        from tests.benchmarks.scale_cases import DeltaLakeListing, OurListing

        table, files = self._checkpointed()
        condition, expected = data_condition(files)
        return self._measure(
            "list-pruned", [OurListing(table, condition), DeltaLakeListing(table, condition)], equal_paths(expected)
        )

    def prune(self) -> list[Line]:
        from tests.benchmarks.scale_cases import DeltaLakePruning, OurPruning

        table, files = self._checkpointed()
        condition, expected = data_condition(files)
        sides = [
            OurPruning(table, condition, asked_before="id < 0"),
            OurPruning(table, condition, asked_before=None, name="our first question"),
            DeltaLakePruning(table, condition),
        ]
        return self._measure("prune", sides, equal_paths(expected))

    def refresh(self) -> list[Line]:
        from tests.benchmarks.large_tables import ADDS_PER_COMMIT
        from tests.benchmarks.scale_cases import REPEATS, WARM, FreshOpen, deltalake_refresh, our_refresh

        table, files = self._checkpointed()
        small, few = self._checkpointed(10)
        sides = [
            our_refresh("ours", table, files),
            our_refresh("ours on 10 files", small, few),
            FreshOpen(table, files),
            deltalake_refresh(table, files),
        ]
        return self._measure("refresh", sides, equal_to((WARM + REPEATS) * ADDS_PER_COMMIT))

    def commit_large(self) -> list[Line]:
        from tests.benchmarks.scale_cases import REPEATS, WARM, Committing

        table, files = self._checkpointed(commit_ready=True)
        small, few = self._checkpointed(10, commit_ready=True)
        # Beside ourselves only: deltalake's commits to a table of this size would take most of a full run.
        sides = [Committing("ours", table, files), Committing("ours on 10 files", small, few)]
        return self._measure("commit-large", sides, equal_to(WARM + REPEATS))

    def checkpoint(self) -> list[Line]:
        from tests.benchmarks.scale_cases import checkpoint_sides

        table, files = self._checkpointed()
        return self._measure("checkpoint", checkpoint_sides(table), equal_paths(files))

    def s3_open(self) -> list[Line]:
        from tests.benchmarks.large_tables import make_json_log

        files = max(int(S3_FILES * self.scale), S3_COMMITS)
        table = self.folder / f"s3-json-log-{files}"
        make_json_log(table, files, files_per_commit=files // S3_COMMITS)
        return self._s3_listing("s3-open", table, None, files)

    def s3_list(self) -> list[Line]:
        table, files = self._checkpointed(max(int(S3_FILES * self.scale), 10))
        return self._s3_listing("s3-list", table, PARTITION, files_of_partition(files))

    def _s3_listing(self, case: str, table: Path, predicate: str | None, expected: int) -> list[Line]:
        from tests.benchmarks.scale_cases import DeltaLakeListing, OurListing

        with S3Folder(self._endpoint) as s3:
            s3.put(table)
            ours = OurListing(s3.uri, predicate, s3.options)
            sides = [ours, DeltaLakeListing(s3.uri, predicate, s3.peer_options)]
            return self._measure(case, sides, equal_paths(expected), relay=self.relay)

    def s3_rows(self, kind: str) -> list[Line]:
        """The local case of this kind, with a quarter of its rows, and without the sides that need Hadoop's jars."""
        from tests.benchmarks.append_cases import append_sides
        from tests.benchmarks.optimize_cases import optimize_sides
        from tests.benchmarks.row_cases import delete_sides, merge_sides, update_sides

        case, events = f"s3-{kind}", self._events(self.scale * S3_ROWS)
        folder, spark = self.folder / case, self.spark if self.workers else None
        rewriting = {"delete": delete_sides, "update": update_sides, "merge": merge_sides}
        with contextlib.ExitStack() as folders:
            if kind == "append":
                made = append_sides("append", events, folder, spark)
            elif kind == "optimize":
                made = folders.enter_context(optimize_sides(events, folder, spark, ()))
            else:
                made = rewriting[kind](events, folder, spark)
            sides = [side for side in made if side.name in ("ours", "deltalake")]
            for side in sides:
                side.s3 = folders.enter_context(S3Folder(self._endpoint))
            left = kind in rewriting
            expected = getattr(events, f"rows_after_{kind}") if left else events.rows
            return self._measure(case, sides, equal_tables(expected), relay=self.relay)

    @cached_property
    def relay(self) -> Relay | None:
        """The relay to the S3 server, until `close`."""
        from tests.benchmarks.relay import Relay

        if self.delay_ms is None:
            return None
        return self._open.enter_context(Relay(str(s3.options()["endpoint_url"]), self.delay_ms / 1000))

    @property
    def _endpoint(self) -> str | None:
        return None if self.relay is None else self.relay.endpoint

    def memory(self) -> list[dict[str, Any]]:
        from tests.benchmarks.memory_cases import measure_memory

        log, in_log = self._json_log()
        table, files = self._checkpointed()
        options: dict[str, Any] = {"rounds": min(self.rounds, 3), "scale": self.scale}
        return [
            measure_memory("memory-open", log, None, files=in_log, **options),
            measure_memory("memory-list-partition", table, PARTITION, files=files_of_partition(files), **options),
        ]

    def ten_million(self) -> list[dict[str, Any]]:
        """A checkpoint of ten parts and ten million files: what our engine needs to open it, in one fresh process."""
        from tests.benchmarks.large_tables import make_multipart
        from tests.benchmarks.memory_cases import measure_child

        files = max(int(MOST_FILES * self.scale), 100)
        table = self.folder / f"multipart-{self.scale}"
        make_multipart(table, files, 10)
        # As docs/settings.md asks of a table with so many files.
        found = measure_child("ours", table, PARTITION, TXLOG_MAX_CHECKPOINT_BYTES=str(max(2**31, 800 * files)))
        assert found["files"] == files_of_partition(files), f"{found['files']} files of the partition"
        line = {"case": "ten-million", "ours_mb": round(found["peak_mb"], 1), "ours_s": round(found["seconds"], 3)}
        return [line | {"files": files, "rounds": 1, "scale": self.scale}]

    def plan(self) -> list[dict[str, Any]]:
        """The driver's memory while it plans over a tenth of the files, and over all of them."""
        from tests.benchmarks.plan_cases import measure_plan

        tables = [self._checkpointed(max(int(CHECKPOINT_FILES * self.scale) // share, 10)) for share in (10, 1)]
        return [measure_plan(*table) | {"rounds": 1, "scale": self.scale} for table in tables]

    def _json_log(self) -> tuple[Path, int]:
        from tests.benchmarks.large_tables import make_json_log

        files = max(int(OPEN_FILES * self.scale), 1)
        table = self.folder / f"json-log-{self.scale}"
        make_json_log(table, files)
        return table, files

    def _checkpointed(self, files: int | None = None, *, commit_ready: bool = False) -> tuple[Path, int]:
        """A checkpoint and ten commits after it, and how many files they make. One that is committed to never
        comes to a version at which a checkpoint is due."""
        from tests.benchmarks.large_tables import ADDS_PER_COMMIT, COMMITS_AFTER, make_checkpointed

        held = max(int(CHECKPOINT_FILES * self.scale), 10) if files is None else files
        kind = "never-due" if commit_ready else "checkpointed"
        table = self.folder / f"{kind}-{held}"
        make_checkpointed(table, held, interval=1_000_000 if commit_ready else 10)
        return table, held + COMMITS_AFTER * ADDS_PER_COMMIT

    def _events(self, scale: float | None = None) -> Any:
        from tests.benchmarks.events import Events

        scale = self.scale if scale is None else scale
        events = Events(self.folder / f"rows-{scale}", scale)
        events.make()
        return events

    def _partitioned(self, merged_from: range | None = None) -> Any:
        """80 files in ten months; `merged_from` is as in `Events`."""
        from tests.benchmarks.events import Events

        folder = self.folder / f"partitioned-{self.scale}"
        events = Events(folder, self.scale, files=80, partitions=10, merged_from=merged_from)
        events.make()
        return events

    def _measure(
        self, case: str, sides: Any, check: Callable[[str, Any], None], relay: Relay | None = None
    ) -> list[Line]:
        lines = measure(case, sides, rounds=self.rounds, scale=self.scale, check=check, relay=relay)
        shutil.rmtree(self.folder / case, ignore_errors=True)
        return lines


def _skipped(case: str, why: str) -> list[dict[str, Any]]:
    print(f"  {case}: skipped: {why}", file=sys.stderr, flush=True)
    return [{"case": case, "skipped": why}]


PARTITION = "day = '2025-03-05'"


def files_of_partition(files: int) -> int:
    """How many of the first `files` files lie in that partition."""
    from tests.benchmarks.large_tables import day_of

    return sum(day_of(number) == "2025-03-05" for number in range(files))


def data_condition(files: int) -> tuple[str, int]:
    """A condition on ids that 100 files in the middle of the table may satisfy (fewer in a small table)."""
    from tests.benchmarks.large_tables import ROWS_PER_FILE

    wanted = min(100, files // 2)
    start = files // 2 * ROWS_PER_FILE
    return f"id >= {start} AND id < {start + wanted * ROWS_PER_FILE}", wanted


def equal_paths(count: int) -> Callable[[str, set[str]], None]:
    """A check that every side finds so many files, and the same ones."""
    seen: dict[str, set[str]] = {}

    def check(side: str, paths: set[str]) -> None:
        assert len(paths) == count, f"{side} lists {len(paths)} of {count} files"
        assert paths == seen.setdefault("paths", paths), f"{side} lists other paths"

    return check


def equal_to(expected: int) -> Callable[[str, int], None]:
    def check(side: str, found: int) -> None:
        assert found == expected, f"{side} came to {found}, not {expected}"

    return check


def equal_tables(expected: Any) -> Callable[[str, Any], None]:
    """A check that a side left exactly these rows."""

    def check(side: str, found: Any) -> None:
        assert found.num_rows == expected.num_rows, f"{side} left {found.num_rows} rows, not {expected.num_rows}"
        assert found.equals(expected), f"{side} left other rows"

    return check


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "--cases",
        nargs="+",
        choices=[*CASES, HEAVY, *HEAVY_CASES, GROWTH, GROWTH_LINEITEM, ERASURE],
        default=list(CASES),
    )
    parser.add_argument("--scale", type=float, default=1.0, help="1 is the full size; 0.1 a tenth of the rows")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds after the warm-up; 0 for it alone")
    parser.add_argument("--workers", type=int, default=0, help="of a Spark cluster on loopback, a core each; 0: none")
    parser.add_argument("--delay", type=float, help="ms that each request to S3 takes longer; a relay counts them")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench", help="where the tables are made")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench.json", help="where the lines are kept")
    options = parser.parse_args()

    if has_server():
        set_keys()
    bench = Bench(options.folder.resolve(), options.scale, options.rounds, options.workers, options.delay)
    options.folder.mkdir(parents=True, exist_ok=True)
    lines = []
    with contextlib.closing(bench):
        for case in [each for asked in options.cases for each in (HEAVY_CASES if asked == HEAVY else (asked,))]:
            for line in bench.run(case):
                lines.append(json.dumps(line | ({"workers": options.workers} if options.workers else {})))
                print(lines[-1], flush=True)
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text("\n".join(lines) + "\n")
