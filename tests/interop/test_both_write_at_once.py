"""Writers at work on one table at the same time: no commit is lost, none is doubled, every row is accounted for."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from airflow_txlog.engine import Table
from airflow_txlog.errors import CommitContention
from tests.helpers.depth import depth
from tests.helpers.readers import assert_both_read
from tests.helpers.rows import append

SCHEMA = pa.schema([pa.field("writer", pa.string()), pa.field("number", pa.int64())])
THREADS_A_SIDE = depth(4, 8)
COMMITS_A_THREAD = depth(6, 10)


def row(writer: str, number: int) -> pa.Table:
    return pa.Table.from_pylist([{"writer": writer, "number": number}], schema=SCHEMA)


def rows(writers: list[str], numbers: int) -> pa.Table:
    return pa.Table.from_pylist([{"writer": w, "number": n} for w in writers for n in range(numbers)], schema=SCHEMA)


def append_until_committed(table: Table, data: pa.Table) -> int:
    """What a job does: a commit that lost all of its races, which wrote nothing, is made again."""
    while True:
        try:
            return append(table, data)
        except CommitContention:
            continue


def commits_of(uri: str) -> list[dict[str, object]]:
    """commitInfo of every commit from version 1 on; the versions have no gap."""
    paths = sorted((Path(uri) / "_delta_log").glob("*.json"))
    assert [int(path.stem) for path in paths] == list(range(len(paths)))
    return [json.loads(path.read_text().splitlines()[0])["commitInfo"] for path in paths[1:]]


@pytest.mark.seeded
def test_threads_of_both_append_and_no_commit_is_lost(uri: str) -> None:
    Table.create(uri, SCHEMA)
    start = threading.Barrier(2 * THREADS_A_SIDE)
    patient = CommitProperties(max_commit_retries=1000)
    versions: list[int] = []

    def we_write(writer: str) -> None:
        table = Table.open(uri)
        start.wait()
        for number in range(COMMITS_A_THREAD):
            versions.append(append_until_committed(table, row(writer, number)))

    def deltalake_writes(writer: str) -> None:
        start.wait()
        for number in range(COMMITS_A_THREAD):
            write_deltalake(uri, row(writer, number), mode="append", commit_properties=patient)

    ours = [f"ours {number}" for number in range(THREADS_A_SIDE)]
    theirs = [f"deltalake {number}" for number in range(THREADS_A_SIDE)]
    with ThreadPoolExecutor(2 * THREADS_A_SIDE) as pool:
        running = [pool.submit(we_write, writer) for writer in ours]
        running += [pool.submit(deltalake_writes, writer) for writer in theirs]
        for future in running:
            future.result()

    assert_both_read(uri, rows(ours + theirs, COMMITS_A_THREAD))
    assert DeltaTable(uri).version() == 2 * THREADS_A_SIDE * COMMITS_A_THREAD
    # The versions that we were told are ours are ours, each once.
    assert len(set(versions)) == len(versions) == THREADS_A_SIDE * COMMITS_A_THREAD
    engines = [str(info["engineInfo"]) for info in commits_of(uri)]
    assert all("txlog" in engines[version - 1] for version in versions)
    assert sum("delta-rs" in engine for engine in engines) == THREADS_A_SIDE * COMMITS_A_THREAD


def test_two_tasks_create_one_table_and_both_append(uri: str) -> None:
    """A race to create is lost by all but one, and the losers find the table usable."""
    from airflow_txlog.errors import TableAlreadyExists

    start = threading.Barrier(6)

    def create_and_append(writer: str) -> bool:
        start.wait()
        try:
            table, created = Table.create(uri, SCHEMA), True
        except TableAlreadyExists:
            table, created = Table.open(uri), False
        append_until_committed(table, row(writer, 0))
        return created

    writers = [f"thread {number}" for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        created = list(pool.map(create_and_append, writers))
    assert created.count(True) == 1
    assert_both_read(uri, rows(writers, 1))
