"""Seeded schedules of concurrent transactions, interleaved at every store call, with faults before and after each put.

One thread a task, and only ever one of them runs: before each call of the store a task hands over to the next that the
seed chooses. So a seed replays exactly. After the run the log is judged: what committed must equal a serial order (at
WriteSerializable: one in which blind appends may stand later), nothing acknowledged may be missing, nothing may be
there that was refused, and no task may be there twice.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table, Transaction
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.log.wire import decode_commit
from airflow_txlog.engine.store import MemoryStore
from tests.conftest import ManualClock

SEEDS = 400
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])
DAYS = ("1", "2")


class Scheduler:
    """Lets one task run at a time; which one goes on is drawn from the seed."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._turns: dict[int, threading.Semaphore] = {}
        self._waiting: list[int] = []
        self._done = threading.Semaphore(0)

    def run(self, tasks: list[Callable[[], None]]) -> None:
        threads = []
        for number, task in enumerate(tasks):
            self._turns[number] = threading.Semaphore(0)
            self._waiting.append(number)
            threads.append(threading.Thread(target=self._life, args=(number, task), daemon=True))
        for thread in threads:
            thread.start()
        self._hand_over()
        assert self._done.acquire(timeout=60), "the schedule does not end"
        for thread in threads:
            thread.join(10)

    def _life(self, number: int, task: Callable[[], None]) -> None:
        _current.number = number
        self._turns[number].acquire()
        try:
            task()
        finally:
            self._hand_over()

    def step(self) -> None:
        number = getattr(_current, "number", None)
        if number is None:
            return
        self._waiting.append(number)
        self._hand_over()
        self._turns[number].acquire()

    def _hand_over(self) -> None:
        if not self._waiting:
            self._done.release()
            return
        self._waiting.sort()
        chosen = self._waiting.pop(self._chance.randrange(len(self._waiting)))
        self._turns[chosen].release()


_current = threading.local()


class SteppedStore(MemoryStore):
    """Hands over before every call, and loses some puts before and some answers after they landed."""

    scheduler: Scheduler | None = None
    chance = random.Random(0)
    fault_rate = 0.0

    def _step(self) -> None:
        if self.scheduler is not None:
            self.scheduler.step()

    def read(self, path: str) -> bytes:
        self._step()
        if self.scheduler is not None and path.endswith(".json") and self.chance.random() < self.fault_rate / 4:
            raise TimeoutError("a read that was not answered")
        return super().read(path)

    def list(self, directory: str, *, start_from: str | None = None) -> Any:
        self._step()
        return super().list(directory, start_from=start_from)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self._step()
        fault = self.chance.random() / self.fault_rate if self.scheduler is not None and self.fault_rate else 1.0
        if fault < 0.3:
            raise ConnectionResetError("lost before the put")
        made = super().put_if_absent(path, data)
        self._step()
        if fault < 0.6:
            raise ConnectionResetError("lost after the put")
        return made and fault >= 0.8


@dataclass
class Work:
    """One task: what it does, and what came of it."""

    name: str
    kind: str
    day: str
    tx: Transaction | None = None
    version: int | None = None
    error: errors.TxlogError | None = None
    copies_of: str | None = None
    staged: list[str] = field(default_factory=list)

    def run(self, table: Table) -> None:
        try:
            # A read that was not answered fails the task before anything is staged; it starts again.
            while self.tx is None:
                try:
                    self.tx = table.begin()
                except TimeoutError:
                    continue
            self.plan(self.tx)
            if self.tx.outcome is None:
                self.version = self.tx.commit(self.operation)
                if self.tx.outcome is not None and not self.tx.outcome.committed:
                    self.version = None
        except errors.TxlogError as error:
            self.error = error
        except TimeoutError:
            # Reading a winner was not answered. The put before it had been read as another's, so nothing is there.
            self.error = errors.JobError("not answered")

    @property
    def operation(self) -> str:
        return {"compact": "OPTIMIZE", "delete": "DELETE"}.get(self.kind, "WRITE")

    def plan(self, tx: Transaction) -> None:
        if self.copies_of is not None:
            if tx.read_application(self.copies_of) is not None:
                self.error = errors.ConcurrentTransaction("already done")
                raise self.error
            tx.set_application(self.copies_of, 1)
        match self.kind:
            case "append":
                self._add(tx, self.day)
            case "overwrite":
                tx.remove(tx.read_whole_table())
                self._add(tx, self.day)
            case "delete":
                tx.remove(tx.read("day = :day", parameters={"day": self.day}))
            case "replace":
                # Dynamic partition overwrite: registers the partition, and no file.
                tx.remove(tx.read_partitions([{"day": self.day}]))
                self._add(tx, self.day)
            case "copy":
                # Writes as many rows as it read: an INSERT … SELECT from the table itself.
                read = tx.read("day = :day", parameters={"day": self.day})
                for _ in range(read.num_rows):
                    self._add(tx, self.day)
            case "compact":
                files = tx.read("day = :day", parameters={"day": self.day})
                tx.remove(files, data_change=False)
                if files.num_rows:
                    self._add(tx, self.day, data_change=False)

    def _add(self, tx: Transaction, day: str, data_change: bool = True) -> None:
        path = f"{self.name}-{len(self.staged)}"
        self.staged.append(path)
        tx.add(path=path, partition_values={"day": day}, size=1, data_change=data_change)


def draw_works(chance: random.Random) -> list[Work]:
    works = []
    for number in range(chance.randint(2, 6)):
        kind = chance.choice(["append", "append", "delete", "overwrite", "replace", "copy", "compact"])
        works.append(Work(name=f"w{number}", kind=kind, day=chance.choice(DAYS)))
    if chance.random() < 0.4:
        day = chance.choice(DAYS)
        works += [Work(name=f"c{copy}", kind="append", day=day, copies_of="task") for copy in range(2)]
    return works


@dataclass
class Landed:
    """A version of the log, with the work that made it."""

    version: int
    work: Work
    adds: dict[str, str]
    removes: set[str]
    is_blind: bool


@pytest.mark.parametrize("isolation", ["Serializable", "WriteSerializable"])
@pytest.mark.parametrize("block", range(4))
def test_what_commits_equals_a_serial_order(isolation: str, block: int) -> None:
    for seed in range(block * SEEDS // 4, (block + 1) * SEEDS // 4):
        try:
            play(seed, isolation)
        except BaseException as failure:
            failure.add_note(f"seed {seed}, {isolation}")
            raise


def play(seed: int, isolation: str) -> None:
    chance = random.Random(seed)
    store = SteppedStore(f"memory://simulation-{uuid.uuid4().hex}")
    clock = ManualClock()
    properties = {"delta.isolationLevel": isolation, "delta.checkpointInterval": str(chance.choice([2, 3, 1000]))}
    table = Table.create(store, SCHEMA, ["day"], properties, clock=clock)
    tx = table.begin()
    initial = {f"initial-{number}": chance.choice(DAYS) for number in range(chance.randint(0, 4))}
    for path, day in initial.items():
        tx.add(path=path, partition_values={"day": day}, size=1)
    tx.commit("WRITE", record_empty=True)

    works = draw_works(chance)
    store.chance = random.Random(seed + 1)
    store.fault_rate = chance.choice([0.0, 0.2])
    store.scheduler = Scheduler(chance)
    store.scheduler.run([lambda work=work: work.run(table) for work in works])  # type: ignore[misc]
    store.scheduler = None
    judge(table, initial, works, isolation)


def judge(table: Table, initial: dict[str, str], works: list[Work], isolation: str) -> None:
    log = read_log(table, works)
    by_work = {landed.work.name: landed for landed in log}
    assert len(by_work) == len(log), "a task is in the log twice"
    for work in works:
        if work.version is not None:
            assert by_work[work.name].version == work.version, "what was acknowledged is not there"
        else:
            assert work.name not in by_work, "what was refused is there"
    assert sum(landed.work.copies_of is not None for landed in log) <= 1, "two copies of one task committed"

    states = [dict(initial)]
    for landed in log:
        assert landed.work.tx is not None
        read_version = landed.work.tx.read_version
        before = states[-1]
        seen = dict(before)
        if isolation == "WriteSerializable":
            # Blind appends that landed since it read may be ordered after it.
            for other in log:
                if read_version < other.version < landed.version and other.is_blind:
                    for path in other.adds:
                        seen.pop(path, None)
        expect(landed, seen, before)
        states.append({path: day for path, day in before.items() if path not in landed.removes} | landed.adds)
    live = table.snapshot().files()
    days = [dict(values)["day"] for values in live.column("partition_values").to_pylist()]
    assert dict(zip(live.column("path").to_pylist(), days, strict=True)) == states[-1]


def read_log(table: Table, works: list[Work]) -> list[Landed]:
    by_path = {path: work for work in works for path in work.staged}
    by_version = {work.version: work for work in works if work.version is not None}
    log = []
    for version in range(2, table.snapshot().version + 1):
        path = commit_name(version)
        commit = decode_commit(version, table.store.read(path), path)
        assert commit.info is not None
        work = by_path[commit.adds[0].path] if commit.adds else by_version[version]
        adds = {add.path: str(add.partition_values["day"]) for add in commit.adds}
        removes = {remove.path for remove in commit.removes}
        log.append(Landed(version, work, adds, removes, commit.info["isBlindAppend"]))
    return log


def expect(landed: Landed, seen: dict[str, str], before: dict[str, str]) -> None:
    """The commit must be what its task would have done had it run alone on the state that it is ordered after."""
    work = landed.work
    of_day = {path for path, day in seen.items() if day == work.day}
    assert landed.removes <= before.keys(), "a file was removed twice"
    match work.kind:
        case "append":
            assert not landed.removes
        case "overwrite":
            assert landed.removes == set(seen)
        case "delete" | "replace":
            assert landed.removes == of_day
        case "copy":
            assert len(landed.adds) == len(of_day)
        case "compact":
            # Moves rows, reads none for what it decides: files that arrived since are simply not part of it.
            assert landed.removes <= of_day


def test_a_seed_replays_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = []

    def keep(table: Table, initial: dict[str, str], works: list[Work], isolation: str) -> None:
        logs.append([(landed.work.name, landed.adds, landed.removes) for landed in read_log(table, works)])

    monkeypatch.setattr("tests.engine.commit.test_simulation.judge", keep)
    for seed in range(20):
        play(seed, "Serializable")
        play(seed, "Serializable")
        assert logs[-1] == logs[-2]
