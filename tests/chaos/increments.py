"""Two schedulers that run one increment, are killed at random, and meet everything that may happen to its tables.

python -m tests.chaos.increments --commits 1000 --kills 50 --seed 1

A writer makes source commits of every kind: appends, updates and deletes with and without a change feed, compactions,
schema changes, restores, and one recreation of the table. Each commit sends an event, and half of the events are
dropped; a scheduler runs one task instance for an event, and again if it was killed. The target collects change rows.
It is restored by this package and by another engine, and it forgets each transaction after a second. At the end plain
Spark replays what the commits were meant to do (`replay`), and each version must have exactly the changes that it made.
Prints one JSON line; ends with 1 if a range is missing or doubled.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from airflow_txlog.contract.job import ApplicationTransaction, JobResult
from airflow_txlog.engine import Table
from airflow_txlog.engine.commit.content.watermarks import watermarks_of
from airflow_txlog.engine.table.changes.versions import changes_since
from airflow_txlog.engine.upkeep.consumers import set_watermark
from tests.chaos.replay import Journal, compare, rows_of_versions
from tests.helpers.jobs import run, set_property
from tests.helpers.readers import rows_by_delta_rs
from tests.helpers.rows import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONSUMER = "chaos"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
TRACKED = {"delta.enableRowTracking": "true", "delta.checkpointInterval": "25"}
FORGETFUL = {"delta.setTransactionRetentionDuration": "interval 1 seconds", "delta.checkpointInterval": "10"}
FEED = "delta.enableChangeDataFeed"


def increment(source: str, target: str, **more: Any) -> JobResult:
    """Run the increment once."""
    given = {"consumer": CONSUMER, "changes": True, "on_gap": "full", "on_schema_change": "append_new_columns"}
    return run(None, "incremental", target, source={"table": source}, properties=FORGETFUL, **given, **more)


def work_for_ever(source: str, target: str, slot: int, notes: str) -> None:
    """Run a task instance for each event; the next process begins with the one that was killed."""
    note, running, rng = Path(notes) / f"{slot}", Path(notes) / f"{slot}.running", random.Random(os.getpid())
    while True:
        number = int(note.read_text()) if note.exists() else 1
        if not running.exists():
            if not taken(Path(notes)):
                time.sleep(0.01)
                continue
            running.touch()
        work = ApplicationTransaction(app_id=f"chaos/{slot}/{number}", version=1)
        result = increment(source, target, application=work, max_versions=rng.choice([1, 3, 20, None]))
        with (Path(notes) / "log").open("a") as log:
            log.write(json.dumps([slot, number, result.status, (result.error or {}).get("type")]) + "\n")
        if result.status != "failed":
            (Path(notes) / f"{slot}.new").write_text(str(number + 1))
            os.replace(Path(notes) / f"{slot}.new", note)
        running.unlink()


def send(notes: Path, number: int) -> None:
    (notes / f"event-{number}").touch()


def taken(notes: Path) -> bool:
    """Take one event; those that have come with it are the same run's, as with assets."""
    return sum(_unlinked(each) for each in notes.glob("event-*")) > 0


def _unlinked(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


class Source:
    """The source, and a journal of what its commits were meant to do."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._folder, self._rng = folder, rng
        self.table = Table.create(str(folder), SCHEMA, properties=TRACKED)
        self.journal = Journal()
        self.kinds: Counter[str] = Counter()
        self._next_id, self._next_column = 0, 0

    def commit(self) -> None:
        """Make one commit of a random kind."""
        rng, before = self._rng, self.table.snapshot().version
        kinds = {
            "append": (self._append, 8),
            "update": (self._update, 4),
            "delete": (self._delete, 3),
            "feed": (self._feed, 2),
            "compact": (self._compact, 3),
            "column": (self._column, 0.3),
            "restore": (self._restore, 0.7),
        }
        kind = rng.choices(list(kinds), [weight for _, weight in kinds.values()])[0]
        if self.table.snapshot().num_files < 2:
            kind = "append"
        kinds[kind][0]()
        self.journal.last = self.table.snapshot().version
        if self.journal.last > before:
            self.kinds[kind] += 1

    def recreate(self) -> None:
        """Drop the table, and make it anew."""
        shutil.rmtree(self._folder)
        self.table = Table.create(str(self._folder), SCHEMA, properties=TRACKED)
        self.journal = Journal()
        self.kinds["recreate"] += 1

    def _append(self) -> None:
        count = self._rng.randint(1, 5)
        found = [{"id": self._next_id + k, "name": f"n{self._rng.random()}"} for k in range(count)]
        self._next_id += count
        version = append(self.table, found)
        for row in found:
            self.journal.put(version, row["id"], row["name"])

    def _ids(self) -> list[int]:
        ids = self.table.to_arrow(columns=["id"]).column("id").to_pylist()
        return self._rng.sample(ids, min(len(ids), 2))

    def _update(self) -> None:
        name, ids = f"u{self._rng.random()}", self._ids()
        version = _done(run(None, "update", self.table, set={"name": f"'{name}'"}, predicate=_among(ids)))
        for each in ids:
            self.journal.put(version, each, name)

    def _delete(self) -> None:
        ids = self._ids()
        version = _done(run(None, "delete", self.table, predicate=_among(ids)))
        for each in ids:
            self.journal.delete(version, each)

    def _feed(self) -> None:
        is_on = self.table.snapshot().properties.get(FEED) == "true"
        set_property(self.table, FEED, "false" if is_on else "true")

    def _compact(self) -> None:
        _done(run(None, "optimize", self.table))

    def _column(self) -> None:
        tx = self.table.begin()
        self._next_column += 1
        name = f"c{self._next_column}"
        tx.evolve_schema(pa.schema([(name, pa.int64())]))
        self.journal.columns[name] = tx.commit("ADD COLUMNS")
        version = append(self.table, [{"id": self._next_id, "name": "c", name: 7}])
        self.journal.put(version, self._next_id, "c", name)
        self._next_id += 1

    def _restore(self) -> None:
        head = self.table.snapshot().version
        restored = max(1, head - self._rng.randint(1, 5))
        version = self.table.restore(restored)
        if version > head:
            self.journal.restores[version] = restored


def _among(ids: list[int]) -> str:
    return f"id in ({', '.join(map(str, ids))})"


def _done(result: JobResult) -> int:
    assert result.status in ("committed", "nothing_to_do"), result.error
    assert result.version is not None
    return result.version


def foreign_restore(target: Table, version: int) -> None:
    """RESTORE as another engine makes it, which leaves the domains alone. Raises a conflict if a commit lands first."""
    tx, then = target.begin(), target.snapshot(version)
    now = tx.read_whole_table()
    tx.set_metadata(msgspec.structs.replace(then.metadata), is_checked=True)
    wanted = set(then.files().column("path").to_pylist())
    tx.remove([path for path in now.column("path").to_pylist() if path not in wanted])
    tx.commit("RESTORE", {"version": version, "timestamp": None}, never_rebases=True)


def reset(target: Table, version: int) -> None:
    """What `airflow txlog incremental reset` does, to the watermark of a version of the target."""
    mark = watermarks_of(target.snapshot(version).state.domains)[CONSUMER]
    tx = target.begin()
    set_watermark(tx, CONSUMER, msgspec.structs.replace(mark, added=None))
    tx.commit("RESET WATERMARK")


@dataclass(frozen=True)
class Era:
    """The life of one table of the source, and the change rows that the target had of it then."""

    journal: Journal
    changes: pa.Table
    last: int
    """The watermark: the last version whose changes the target has."""

    @classmethod
    def now(cls, source: Source, target: str) -> Era:
        """Read both of one version of the target."""
        table = Table.open(target)
        while True:
            snapshot, changes = table.snapshot(), rows_by_delta_rs(target)
            if table.latest_version() == snapshot.version:
                assert changes is not None
                return cls(source.journal, changes, watermarks_of(snapshot.state.domains)[CONSUMER].version)


class Schedulers:
    """Two processes, of which one is killed now and then and started again."""

    def __init__(self, source: str, target: str, notes: Path, rng: random.Random) -> None:
        self._given, self._notes, self._rng = (source, target), notes, rng
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.chaos.increments"])
        self._processes = [self._start(slot) for slot in range(2)]
        self.kills = self.kills_at_work = 0

    def _start(self, slot: int) -> Any:
        process = self._context.Process(target=work_for_ever, args=(*self._given, slot, str(self._notes)), daemon=True)
        process.start()
        return process

    def kill_one(self) -> None:
        """Kill one of them while it works, and start it again."""
        deadline, slot = time.monotonic() + 2, 0
        while time.monotonic() < deadline:
            at_work = [each for each in range(2) if (self._notes / f"{each}.running").exists()]
            if at_work:
                slot = self._rng.choice(at_work)
                break
            time.sleep(0.005)
        time.sleep(self._rng.random() * 0.15)
        self._end(slot)
        self.kills += 1
        self.kills_at_work += (self._notes / f"{slot}.running").exists()
        self._processes[slot] = self._start(slot)

    def _end(self, slot: int) -> None:
        os.kill(self._processes[slot].pid, signal.SIGKILL)
        self._processes[slot].join()

    def end(self) -> None:
        for slot in range(2):
            self._end(slot)


def chaos(
    commits: int, kills: int, seed: int, folder: Path, spark: Callable[[], SparkSession]
) -> tuple[dict[str, Any], list[str]]:
    """Run it, and return the figures and the problems."""
    rng = random.Random(seed)
    source, target, notes = Source(folder / "s", rng), str(folder / "t"), folder / "notes"
    notes.mkdir()
    began = time.monotonic()
    schedulers = Schedulers(str(folder / "s"), target, notes, rng)
    wanted_kills = sorted(rng.randrange(commits) for _ in range(kills))
    restores = {commits // 4: "ours", commits // 2: "another engine's"}
    restored: list[str] = []
    eras: list[Era] = []
    dropped = 0
    for number in range(commits):
        source.commit()
        if number == commits // 10:
            eras.append(_settled(source, target))
            source.recreate()
        if number in restores:
            restored += _restored(Table.open(target), restores[number], rng)
        is_killed = number in wanted_kills
        is_dropped = not is_killed and rng.random() < 0.5
        dropped += is_dropped
        if not is_dropped:
            send(notes, number)
        for _ in range(wanted_kills.count(number)):
            schedulers.kill_one()
    schedulers.end()
    last = None
    for _ in range(commits):
        last = increment(source.table.uri, target)
        if last.status != "committed":
            break
    problems = [] if last is not None and last.status == "nothing_to_do" else [f"the last run: {last}"]
    eras.append(Era.now(source, target))
    log = [json.loads(line) for line in (notes / "log").read_text().splitlines()]
    table = Table.open(target)
    figures, found = check(spark(), eras, source, folder)
    return {
        "seed": seed,
        "source_commits": dict(source.kinds),
        "events_dropped": dropped,
        "kills": schedulers.kills,
        "kills_at_work": schedulers.kills_at_work,
        "runs": len(log),
        "outcomes": dict(Counter(f"{status} {error or ''}".strip() for _, _, status, error in log)),
        "restores": restored,
        "ranges": ranges_of(table),
        "transactions_left": sum(app_id.startswith("chaos/") for app_id in table.snapshot().state.transactions),
        **figures,
        "seconds": round(time.monotonic() - began, 1),
    }, problems + found


def _settled(source: Source, target: str) -> Era:
    """The source's era, once a scheduler has brought something of it."""
    deadline = time.monotonic() + 180
    while not Table.exists(target):
        assert time.monotonic() < deadline, "no scheduler has begun"
        time.sleep(0.05)
    return Era.now(source, target)


def _restored(target: Table, whose: str, rng: random.Random) -> list[str]:
    for _ in range(50):
        head = target.snapshot().version
        version = max(1, head - rng.randint(1, 4))
        if version >= head:
            return []
        try:
            if whose == "ours":
                target.restore(version)
            else:
                foreign_restore(target, version)
                time.sleep(0.5)
                reset(target, version)
            return [f"{whose}: from {head} to {version}"]
        except Exception as error:
            if not getattr(error, "retryable", False):
                raise
    return []


def check(spark: SparkSession, eras: Sequence[Era], source: Source, folder: Path) -> tuple[dict[str, int], list[str]]:
    """Compare the change rows of each era with a replay of its commits, and the source with the last of them."""
    problems: list[str] = []
    versions = doubled = skipped = 0
    for number, era in enumerate(eras):
        found = compare(spark, era.journal, era.changes, era.last, folder / f"changes-{number}.parquet")
        versions += found.versions
        doubled, skipped = doubled + len(found.doubled), skipped + len(found.skipped)
        for what, wrong in (("more", found.doubled), ("fewer", found.skipped)):
            problems += [f"version {each} of era {number} has {what} changes: {rows}" for each, rows in wrong.items()]
        if not found.is_whole:
            problems.append(f"the change rows of era {number} are not the rows of version {era.last} in the replay")
    last = eras[-1].journal
    if eras[-1].last != last.last:
        problems.append(f"the watermark is {eras[-1].last}, and the source's last version {last.last}")
    rows = source.table.to_arrow(columns=["id", "name"]).to_pylist()
    replayed = rows_of_versions(spark, last, []).filter(f"version = {last.last}").collect()
    if sorted((row["id"], row["name"]) for row in rows) != sorted(
        (row["id"], row["name"]) for row in (json.loads(each["row"]) for each in replayed)
    ):
        problems.append(f"the replay has other rows than the source: {len(replayed)}, and {len(rows)}")
    return {"versions_compared": versions, "processed_twice": doubled, "skipped": skipped}, problems


def ranges_of(target: Table) -> int:
    """How many commits have moved the watermark."""
    held = len(target.history()) - 1
    return sum(
        any(each.domain.startswith("txlog.incremental.") for each in commit.domains)
        for commit in changes_since(target.snapshot(), target.snapshot().version - held)
    )


def plain_spark() -> SparkSession:
    """A Spark without Delta."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
    }
    return SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a new folder for the tables")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kept = args.keep or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        figures, problems = chaos(args.commits, args.kills, args.seed, kept, plain_spark)
    print(json.dumps({**figures, "problems": problems[:5]}))
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
