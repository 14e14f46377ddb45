"""One process: does its pieces of work until it is killed, and goes on where it stood when it is started again."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_txlog import errors
from airflow_txlog.clock import SystemClock
from airflow_txlog.engine import Table
from airflow_txlog.storage import Access, open_store
from tests.chaos.work import (
    BUCKETS_OF_AN_OPTIMIZE,
    ENGINE,
    IDS_OF_A_PIECE,
    JOBS,
    PROPERTY,
    WITHOUT_TRANSACTION,
    Journal,
    Piece,
    new_rows,
)
from tests.helpers.java import JAVA_OPTIONS, PLAIN_QUERIES
from tests.helpers.rows import stage

CONFLICTS = (errors.CommitConflict, errors.CommitContention, errors.CommitStateUnknown)
PAUSE_S = 2.0
FORTY_DAYS_MS = 40 * 24 * 3600 * 1000

Done = tuple[str, int | None]
"""The status and the version that are acknowledged."""


def work_for_ever(uri: str, folder: Path, name: str, process: int, seed: int, kind: str, keys: dict[str, str]) -> None:
    """Work until this process is killed. `keys`: what of the environment opens the store.

    A process group of its own, so that it can be killed with its JVM. Jobs have a session of their own too: Linux
    divides the processors among sessions, and one with Spark needs more of the machine than eight of the others.
    """
    if kind == "jobs":
        os.setsid()
    else:
        os.setpgid(0, 0)
        os.nice(10)
    os.environ.update(keys)
    output = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    parent = os.getppid()
    journal = Journal(folder / f"{name}.jsonl")
    work = Jobs(uri, name, journal) if kind == "jobs" else Engine(uri, name, folder / "archive")
    kinds = JOBS if kind == "jobs" else ENGINE
    rng = random.Random()
    # Where the run itself was killed, there is none left to end this process.
    while os.getppid() == parent:
        piece = journal.next_piece(seed, kinds, process)
        while True:
            try:
                done = work.do(piece)
            except CONFLICTS as error:
                journal.lost(type(error).__name__)
            else:
                journal.acknowledge(piece, *done)
                break
        if kind == "engine":
            # As writers do; without it eight of them leave a machine of two cores no time for a job of Spark.
            time.sleep(rng.uniform(0, PAUSE_S))


def options() -> dict[str, Any]:
    """`storage_options` of an S3 server; its keys are in the environment."""
    endpoint = os.environ.get("TXLOG_CHAOS_ENDPOINT")
    return {"endpoint_url": endpoint, "region": "us-east-1"} if endpoint else {}


class Archive:
    """A store that keeps a copy of each commit before it deletes it: the checker replays them all."""

    def __init__(self, store: Any, folder: Path) -> None:
        self._store, self._folder = store, folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def delete_many(self, paths: Sequence[str]) -> dict[str, Exception]:
        for path in paths:
            name = path.rpartition("/")[2]
            if len(name) == 25 and name.endswith(".json"):
                making = self._folder / f"{name}.{os.getpid()}"
                making.write_bytes(self._store.read(path))
                making.rename(self._folder / name)
        failures: dict[str, Exception] = self._store.delete_many(paths)
        return failures


class LaterClock(SystemClock):
    """So late that every commit before the last checkpoint may be cleaned away."""

    def now_ms(self) -> int:
        return super().now_ms() + FORTY_DAYS_MS


class LaterStore:
    """A store so late that a VACUUM takes what no commit names: now, it may be what a process is about to commit."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def now_ms(self) -> int:
        return int(self._store.now_ms()) + FORTY_DAYS_MS


class Engine:
    """Work through the engine alone."""

    def __init__(self, uri: str, name: str, archive: Path) -> None:
        self._store = open_store(uri, Access(storage_options=options()))
        self._table, self._name, self._archive = Table.open(self._store), name, archive

    def do(self, piece: Piece) -> Done:
        kind, table = piece["kind"], self._table
        if kind == "checkpoint":
            table.checkpoint()
        elif kind == "clean":
            Table(Archive(self._store, self._archive), clock=LaterClock()).clean_log()  # type: ignore[arg-type]
        elif kind == "vacuum":
            table.vacuum(0, check_retention=False)
        else:
            return self._commit(piece)
        return "done", None

    def _commit(self, piece: Piece) -> Done:
        table, number = self._table, piece["piece"] + 1
        tx = table.begin()
        if (tx.read_application(self._name) or 0) >= number:
            return "already_done", None
        tx.set_application(self._name, number)
        if piece["kind"] == "append":
            tx.add(stage(table, new_rows(piece), tx=tx))
            return "committed", tx.commit("WRITE", record_empty=True)
        condition = f"bucket = {piece['bucket']}"
        tx.remove(tx.read(condition))
        if piece["kind"] == "update":
            assert tx.snapshot is not None
            try:
                rows = table.to_arrow(condition, version=tx.snapshot.version)
            except (errors.FilesMissing, errors.VersionNotFound) as error:
                # Others have removed a file since and vacuumed it, or cleaned the version away: what a retry is for.
                raise errors.CommitContention(f"overtaken: {error}") from error
            columns = {"id": rows["id"], "n": pa.compute.add(rows["n"], 1), "bucket": rows["bucket"]}
            if rows.num_rows:
                tx.add(stage(table, pa.table(columns).cast(rows.schema), tx=tx))
        return "committed", tx.commit("UPDATE" if piece["kind"] == "update" else "DELETE", record_empty=True)


class Jobs:
    """Work through Spark jobs, as an operator's child process runs them."""

    def __init__(self, uri: str, name: str, journal: Journal) -> None:
        from pyspark.sql import SparkSession

        self._uri, self._name, self._journal = uri, name, journal
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("JDK_JAVA_OPTIONS", JAVA_OPTIONS)
        self._spark = (
            SparkSession.builder.master("local[1]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "1")
            .config("spark.driver.memory", "1g")
            .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.python.daemon.module", "loaded_daemon")
            .config("spark.executorEnv.PYTHONPATH", str(Path(__file__).parents[1] / "helpers" / "daemon"))
            .config(map=PLAIN_QUERIES)
            .getOrCreate()
        )
        self._spark.sparkContext.setLogLevel("OFF")

    def do(self, piece: Piece) -> Done:
        from airflow_txlog.contract.job import ApplicationTransaction
        from airflow_txlog.jobs.run import run_job
        from tests.helpers.jobs import KEY
        from tests.helpers.specs import job_spec

        operation, arguments = self._described(piece)
        application = ApplicationTransaction(app_id=self._name, version=piece["piece"] + 1)
        with_work = piece["kind"] not in WITHOUT_TRANSACTION
        result = run_job(
            job_spec(
                operation=operation,
                table_uri=self._uri,
                arguments=arguments,
                application=application if with_work else None,
                saved_work_key=KEY if with_work else None,
                storage_options=options(),
            ),
            self._spark,
            log=self._journal.log,
        )
        if result.status == "failed":
            assert result.error is not None
            if result.error["retryable"]:
                raise errors.CommitContention(str(result.error["type"]))
            raise SystemExit(f"{piece}: {result.error}")
        return result.status, result.version

    def _described(self, piece: Piece) -> tuple[str, dict[str, Any]]:
        # Spark alone computes pmod and greatest.
        bucket, by = piece["bucket"], piece["by"]
        values = ", ".join(f"({each}L)" for each in piece["ids"])
        query = f"SELECT id, 0L AS n, {bucket} AS bucket FROM VALUES {values} AS t(id)"
        if piece["kind"] == "write":
            return "write", {"source": {"sql": query}}
        if piece["kind"] == "delete rows":
            return "delete", {"predicate": f"bucket = {bucket} AND pmod(id, {by}) = 0"}
        if piece["kind"] == "update rows":
            return "update", {
                "predicate": f"bucket = {bucket} AND pmod(id, {by}) = 1",
                "set": {"n": "array_max(array(n, n)) + 100"},
            }
        if piece["kind"] == "merge":
            clauses = [
                {"when": "matched", "then": "update", "set": {"n": "array_max(array(t.n, t.n)) + 10000"}},
                {"when": "not_matched", "then": "insert", "values": {"id": "s.id", "n": "7L", "bucket": "s.bucket"}},
            ]
            on = f"t.bucket = {bucket} AND pmod(t.id, {IDS_OF_A_PIECE}) = pmod(s.id, {IDS_OF_A_PIECE})"
            return "merge", {"source": {"sql": query}, "on": on, "clauses": clauses}
        if piece["kind"] == "alter":
            return "alter", {"set_properties": {PROPERTY: str(piece["piece"])}}
        return "optimize", {"partition_predicate": f"bucket BETWEEN {bucket} AND {bucket + BUCKETS_OF_AN_OPTIMIZE - 1}"}
