"""One process: does its pieces of work until it is killed, and goes on where it stood when it is started again.

python -m tests.chaos.process TABLE FOLDER NAME PROCESS SEED engine|jobs
"""

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
from tests.chaos.work import ENGINE, JOBS, WITHOUT_TRANSACTION, Journal, Piece, new_rows
from tests.helpers.rows import stage

CONFLICTS = (errors.CommitConflict, errors.CommitContention, errors.CommitStateUnknown)
PAUSE_S = 3.0
FORTY_DAYS_MS = 40 * 24 * 3600 * 1000


def main() -> None:
    uri, folder, name, process, seed, kind = sys.argv[1:]
    journal = Journal(Path(folder) / f"{name}.jsonl")
    work = Jobs(uri, name) if kind == "jobs" else Engine(uri, name, Path(folder) / "archive")
    kinds = JOBS if kind == "jobs" else ENGINE
    rng = random.Random()
    if kind == "engine":
        os.nice(10)  # a job of Spark needs more of the machine than eight of these
    while True:
        piece = journal.next_piece(int(seed), kinds, int(process))
        while True:
            try:
                version = work.do(piece)
            except CONFLICTS:
                journal.count("conflict")
            else:
                journal.acknowledge(piece, version)
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


class Engine:
    """Work through the engine alone."""

    def __init__(self, uri: str, name: str, archive: Path) -> None:
        self._store = open_store(uri, Access(storage_options=options()))
        self._table, self._name, self._archive = Table.open(self._store), name, archive

    def do(self, piece: Piece) -> int | None:
        kind, table = piece["kind"], self._table
        if kind == "checkpoint":
            table.checkpoint()
        elif kind == "clean":
            Table(Archive(self._store, self._archive), clock=LaterClock()).clean_log()  # type: ignore[arg-type]
        elif kind == "vacuum":
            table.vacuum(0, check_retention=False)
        else:
            return self._commit(piece)
        return None

    def _commit(self, piece: Piece) -> int | None:
        table, number = self._table, piece["piece"] + 1
        tx = table.begin()
        if (tx.read_application(self._name) or 0) >= number:
            return None
        tx.set_application(self._name, number)
        if piece["kind"] == "append":
            tx.add(stage(table, new_rows(piece), tx=tx))
            return tx.commit("WRITE", record_empty=True)
        condition = f"bucket = {piece['bucket']}"
        tx.remove(tx.read(condition))
        if piece["kind"] == "update":
            assert tx.snapshot is not None
            try:
                rows = table.to_arrow(condition, version=tx.snapshot.version)
            except errors.CorruptDataFile as error:
                # Another process has removed the file since, and vacuumed it: what a retry is for.
                raise errors.CommitContention(f"overtaken: {error}") from error
            columns = {"id": rows["id"], "n": pa.compute.add(rows["n"], 1), "bucket": rows["bucket"]}
            if rows.num_rows:
                tx.add(stage(table, pa.table(columns).cast(rows.schema), tx=tx))
        return tx.commit("UPDATE" if piece["kind"] == "update" else "DELETE", record_empty=True)


class Jobs:
    """Work through Spark jobs, as an operator's child process runs them."""

    def __init__(self, uri: str, name: str) -> None:
        from pyspark.sql import SparkSession

        self._uri, self._name = uri, name
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        self._spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.driver.memory", "1g")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .getOrCreate()
        )
        self._spark.sparkContext.setLogLevel("OFF")

    def do(self, piece: Piece) -> int | None:
        from airflow_txlog.contract import ApplicationTransaction
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
        )
        if result.status == "failed":
            assert result.error is not None
            if result.error["retryable"]:
                raise errors.CommitContention(str(result.error["type"]))
            raise SystemExit(f"{piece}: {result.error}")
        return result.version if result.status == "committed" else None

    def _described(self, piece: Piece) -> tuple[str, dict[str, Any]]:
        bucket, by = piece["bucket"], piece["by"]
        values = ", ".join(f"({each}L)" for each in piece["ids"])
        query = f"SELECT id, 0L AS n, {bucket} AS bucket FROM VALUES {values} AS t(id)"
        if piece["kind"] == "write":
            return "write", {"source": {"sql": query}}
        if piece["kind"] == "delete rows":
            return "delete", {"predicate": f"bucket = {bucket} AND id % {by} = 0"}
        if piece["kind"] == "update rows":
            return "update", {"predicate": f"bucket = {bucket} AND id % {by} = 1", "set": {"n": "n + 100"}}
        if piece["kind"] == "merge":
            clauses = [
                {"when": "matched", "then": "update", "set": {"n": "t.n + 10000"}},
                {"when": "not_matched", "then": "insert", "values": {"id": "s.id", "n": "7L", "bucket": "s.bucket"}},
            ]
            return "merge", {"source": {"sql": query}, "on": "t.id = s.id", "clauses": clauses}
        return "optimize", {}


if __name__ == "__main__":
    main()
