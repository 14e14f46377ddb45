"""Eight processes that append to one table as fast as they can, each commit an add of one file that is not written.

Both libraries in turn, each round on a new table. deltalake is brought up to date before each commit: without that it
checks every commit since it was opened. It gives a commit up after 15 lost races, which is counted, and goes on.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from airflow_txlog.engine import Table
from airflow_txlog.errors import CommitConflict, CommitContention
from tests.benchmarks.log_cases import CHECKPOINT_INTERVAL, SCHEMA
from tests.benchmarks.places import S3Folder
from tests.benchmarks.relay import Relay

WRITERS = 8
SECONDS = 10.0
SIDES = ("ours", "deltalake")
_ADD: dict[str, Any] = {
    "partition_values": {},
    "size": 1000,
    "modification_time": 1_700_000_000_000,
    "stats": '{"numRecords":10}',
}


@dataclass
class Written:
    """What one process, or all of a side in one round, came to."""

    in_time: int
    """Commits that were acknowledged before the time was over; the last one of a process is so after it."""
    latencies: list[float]
    """Of every acknowledged commit, in seconds."""
    failed: int
    lost_races: int
    """Of ours; deltalake does not give them."""


def our_commits(uri: str, options: dict[str, Any]) -> Callable[[str], int]:
    table = Table.open(uri, options)

    def commit(path: str) -> int:
        transaction = table.begin()
        transaction.add(path=path, **_ADD)
        transaction.commit("WRITE", {"mode": "Append"})
        assert transaction.outcome is not None
        return transaction.outcome.attempts - 1

    return commit


def deltalake_commits(uri: str, options: dict[str, str]) -> Callable[[str], int]:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

    table = DeltaTable(uri, storage_options=options)

    def commit(path: str) -> int:
        table.update_incremental()
        table.create_write_transaction([AddAction(path=path, data_change=True, **_ADD)], "append", SCHEMA)
        return 0

    return commit


def _join(barrier: Any) -> None:
    global _barrier
    _barrier = barrier


def _write(side: str, uri: str, options: dict[str, Any], number: int, seconds: float) -> Written:
    from deltalake.exceptions import CommitFailedError

    commit = (our_commits if side == "ours" else deltalake_commits)(uri, options)
    given_up = (CommitConflict, CommitContention, CommitFailedError)
    warm = False
    while not warm:
        with suppress(*given_up):
            commit(f"part-{number}-0.parquet")
            warm = True
    written = Written(in_time=0, latencies=[], failed=0, lost_races=0)
    _barrier.wait(300)
    end = time.monotonic() + seconds
    tried = 0
    while (began := time.monotonic()) < end:
        tried += 1
        try:
            written.lost_races += commit(f"part-{number}-{tried}.parquet")
        except given_up:
            written.failed += 1
        else:
            written.latencies.append(time.monotonic() - began)
            written.in_time += time.monotonic() <= end
    return written


def write_at_once(side: str, uri: str, options: dict[str, Any], seconds: float) -> list[Written]:
    """What each process came to; all begin together, when each has committed once."""
    # What they import is imported once: eight that each load pyarrow keep a small machine busy for long.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "airflow_txlog.storage.s3", "deltalake.transaction"])
    barrier = context.Barrier(WRITERS)
    with ProcessPoolExecutor(WRITERS, context, _join, (barrier,)) as pool:
        work = [pool.submit(_write, side, uri, options, number, seconds) for number in range(WRITERS)]
        return [each.result() for each in work]


def _round(side: str, s3: S3Folder | None, seconds: float, relay: Relay | None) -> tuple[list[Written], int]:
    """One round on a new table, and its number of requests; what it left is read by the other library."""
    from deltalake import DeltaTable

    with TemporaryDirectory(prefix="txlog-writers-") as name:
        uri = str(Path(name) / "table") if s3 is None else s3.uri
        ours, peers = ({}, {}) if s3 is None else (s3.options, s3.peer_options)
        Table.create(uri, SCHEMA, properties={"delta.checkpointInterval": CHECKPOINT_INTERVAL}, storage_options=ours)
        if relay is not None:
            relay.take()
        written = write_at_once(side, uri, ours if side == "ours" else peers, seconds)
        sent = 0 if relay is None else relay.take().total()
        if side == "ours":
            table = DeltaTable(uri, storage_options=peers)
            left = table.version(), len(table.file_uris())
        else:
            snapshot = Table.open(uri, ours).snapshot()
            left = snapshot.version, snapshot.num_files
    commits = WRITERS + sum(len(each.latencies) for each in written)
    assert left == (commits, commits), f"{side}: {commits} commits were acknowledged; version, files = {left}"
    return written, sent


def measure_writers(case: str, *, on_s3: bool, rounds: int, scale: float, relay: Relay | None = None) -> dict[str, Any]:
    """The line of a case. `ratio_per_s` is ours / peer. max/min is of the commits of the processes in the worst round,
    None where one had none; p99 is over all rounds. Requests are those of a commit, counted by the relay."""
    seconds = max(SECONDS * scale, 1.0)
    found: dict[str, list[list[Written]]] = {side: [] for side in SIDES}
    requests: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(rounds):
        for side in SIDES[:: -1 if number % 2 else 1]:
            with S3Folder(relay and relay.endpoint) if on_s3 else nullcontext() as s3:
                written, sent = _round(side, s3, seconds, relay)
            found[side].append(written)
            requests[side].append(sent / (WRITERS + sum(len(each.latencies) for each in written)))
            commits = [each.in_time for each in written]
            progress = f"round {number + 1}/{rounds}: {side} {sum(commits) / seconds:.3g} commits/s {sorted(commits)}"
            print(f"  {case}: {progress}", file=sys.stderr, flush=True)
    ours, peer = (_figures(found[side], seconds) for side in SIDES)
    by_round = [a / b for a, b in zip(ours["rates"], peer["rates"], strict=True)]
    return {
        "case": case,
        "ours_per_s": round(ours["per_s"], 1),
        "peer": "deltalake",
        "peer_per_s": round(peer["per_s"], 1),
        "ratio_per_s": round(ours["per_s"] / peer["per_s"], 2),
        "ratio_by_round": round(statistics.median(by_round), 2),
        "ours_max_over_min": ours["max_over_min"],
        "peer_max_over_min": peer["max_over_min"],
        "ours_p50_ms": ours["p50_ms"],
        "peer_p50_ms": peer["p50_ms"],
        "ours_p99_ms": ours["p99_ms"],
        "peer_p99_ms": peer["p99_ms"],
        "ours_lost_races": ours["lost_races"],
        "ours_conflicts": ours["failed"],
        "peer_failed": peer["failed"],
        **({} if relay is None else _sent(requests, relay)),
        "writers": WRITERS,
        "seconds": seconds,
        "rounds": rounds,
        "scale": scale,
    }


def _sent(requests: dict[str, list[float]], relay: Relay) -> dict[str, float]:
    ours, peer = (round(statistics.median(requests[side]), 1) for side in SIDES)
    return {"ours_requests": ours, "peer_requests": peer, "delay_ms": 1000 * relay.delay_s}


def _figures(rounds: list[list[Written]], seconds: float) -> dict[str, Any]:
    """Rates of a side, and the rest over all its rounds."""
    rates = [sum(each.in_time for each in written) / seconds for written in rounds]
    commits = [sorted(len(each.latencies) for each in written) for written in rounds]
    starved = any(counts[0] == 0 for counts in commits)
    processes = [each for written in rounds for each in written]
    latencies = sorted(1000 * latency for each in processes for latency in each.latencies)
    return {
        "rates": rates,
        "per_s": statistics.median(rates),
        "max_over_min": None if starved else round(max(counts[-1] / counts[0] for counts in commits), 2),
        "p50_ms": round(latencies[len(latencies) // 2]),
        "p99_ms": round(latencies[int(len(latencies) * 0.99)]),
        "lost_races": sum(each.lost_races for each in processes),
        "failed": sum(each.failed for each in processes),
    }
