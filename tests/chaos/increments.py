"""Two schedulers that run one increment, are killed at random, and meet everything that may happen to its tables.

python -m tests.chaos.increments --commits 1000 --kills 50 --seed 1

A writer makes source commits of every kind: appends, updates and deletes with and without a change feed, compactions,
schema changes, restores, and one recreation of the table. The target collects change rows. It is restored by this
package and by another engine, and it forgets its transactions after a second. At the end each version's change rows are
compared with the difference of the source's rows before and after it, and the replay of all with the source. Prints one
JSON line; ends with 1 if a range is missing or doubled.
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
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from airflow_txlog.contract.job import ApplicationTransaction, JobResult
from airflow_txlog.engine import Table
from airflow_txlog.engine.commit.content.watermarks import watermarks_of
from airflow_txlog.engine.table.changes.versions import changes_since
from airflow_txlog.engine.upkeep.consumers import set_watermark
from tests.helpers.jobs import run, set_property
from tests.helpers.rows import append

CONSUMER = "chaos"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
TRACKED = {"delta.enableRowTracking": "true", "delta.checkpointInterval": "25"}
FORGETFUL = {"delta.setTransactionRetentionDuration": "interval 1 seconds", "delta.checkpointInterval": "10"}
FEED = "delta.enableChangeDataFeed"
Rows = Counter[tuple[Any, ...]]
_PLUS, _MINUS = ("insert", "update_postimage"), ("delete", "update_preimage")


def increment(source: str, target: str, **more: Any) -> JobResult:
    """Run the increment once."""
    given = {"consumer": CONSUMER, "changes": True, "on_gap": "full", "on_schema_change": "append_new_columns"}
    return run(None, "incremental", target, source={"table": source}, properties=FORGETFUL, **given, **more)


def work_for_ever(source: str, target: str, slot: int, notes: str) -> None:
    """Run one task instance after another; the next process continues with the number of the one that was killed."""
    note, rng = Path(notes) / f"{slot}", random.Random(os.getpid())
    while True:
        number = int(note.read_text()) if note.exists() else 1
        work = ApplicationTransaction(app_id=f"chaos/{slot}", version=number)
        result = increment(source, target, application=work, max_versions=rng.choice([1, 3, 20, None]))
        with (Path(notes) / "log").open("a") as log:
            log.write(json.dumps([slot, number, result.status, (result.error or {}).get("type")]) + "\n")
        if result.status != "failed":
            (Path(notes) / f"{slot}.new").write_text(str(number + 1))
            os.replace(Path(notes) / f"{slot}.new", note)
        time.sleep(rng.random() * 0.1)


class Source:
    """The source, and the rows that each of its versions has added (+) and removed (-)."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._folder, self._rng = folder, rng
        self.table = Table.create(str(folder), SCHEMA, properties=TRACKED)
        self.changes: dict[int, Rows] = {0: Counter()}
        self.kinds: Counter[str] = Counter()
        self.recreated_at: int | None = None
        self._next_id, self._next_column, self._before = 0, 0, Counter[tuple[Any, ...]]()

    def rows(self) -> Rows:
        """The rows of the newest version."""
        return as_rows(self.table.to_arrow())

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
        if self.table.snapshot().version > before:
            self.kinds[kind] += 1
            self._note()

    def recreate(self) -> None:
        """Drop the table, and make it anew."""
        shutil.rmtree(self._folder)
        self.table = Table.create(str(self._folder), SCHEMA, properties=TRACKED)
        self.changes, self._before = {0: Counter()}, Counter()
        self.kinds["recreate"] += 1

    def _note(self) -> None:
        now = self.rows()
        change: Rows = Counter(now)
        change.subtract(self._before)
        self.changes[self.table.snapshot().version] = Counter({row: n for row, n in change.items() if n})
        self._before = now

    def _append(self) -> None:
        count = self._rng.randint(1, 5)
        found = [{"id": self._next_id + k, "name": f"n{self._rng.random()}"} for k in range(count)]
        self._next_id += count
        append(self.table, found)

    def _ids(self) -> str:
        ids = self.table.to_arrow(columns=["id"]).column("id").to_pylist()
        return ", ".join(map(str, self._rng.sample(ids, min(len(ids), 2))))

    def _update(self) -> None:
        text = f"'u{self._rng.random()}'"
        _done(run(None, "update", self.table, set={"name": text}, predicate=f"id in ({self._ids()})"))

    def _delete(self) -> None:
        _done(run(None, "delete", self.table, predicate=f"id in ({self._ids()})"))

    def _feed(self) -> None:
        is_on = self.table.snapshot().properties.get(FEED) == "true"
        set_property(self.table, FEED, "false" if is_on else "true")

    def _compact(self) -> None:
        _done(run(None, "optimize", self.table))

    def _column(self) -> None:
        tx = self.table.begin()
        self._next_column += 1
        tx.evolve_schema(pa.schema([(f"c{self._next_column}", pa.int64())]))
        tx.commit("ADD COLUMNS")
        row = {"id": self._next_id, "name": "c", f"c{self._next_column}": 7}
        self._next_id += 1
        self._note()
        append(self.table, [row])

    def _restore(self) -> None:
        head = self.table.snapshot().version
        self.table.restore(max(1, head - self._rng.randint(1, 5)))


def _done(result: JobResult) -> None:
    assert result.status in ("committed", "nothing_to_do"), result.error


def as_rows(table: pa.Table) -> Rows:
    """The rows without the values that are null, so that a new column changes no row."""
    return Counter(_key(row) for row in table.to_pylist())


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted((name, value) for name, value in row.items() if value is not None and name[0] != "_"))


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


def chaos(commits: int, kills: int, seed: int, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Run it, and return the figures and the problems."""
    rng = random.Random(seed)
    source, target, notes = Source(folder / "s", rng), str(folder / "t"), folder / "notes"
    notes.mkdir()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.chaos.increments"])
    began, killed = time.monotonic(), 0

    def start(slot: int) -> Any:
        given = (source.table.uri.removeprefix("file://"), target, slot, str(notes))
        process = context.Process(target=work_for_ever, args=given, daemon=True)
        process.start()
        return process

    workers = [start(slot) for slot in range(2)]
    wanted_kills = sorted(rng.randrange(commits) for _ in range(kills))
    restores = {commits // 4: "ours", commits // 2: "another engine's"}
    restored: list[str] = []
    for number in range(commits):
        source.commit()
        if number == commits // 10:
            source.recreate()
        if number in restores and Table.exists(target):
            restored += _restored(Table.open(target), restores[number], rng)
        while wanted_kills and wanted_kills[0] <= number:
            wanted_kills.pop(0)
            time.sleep(rng.random() * 0.15)
            slot = rng.randrange(2)
            os.kill(workers[slot].pid, signal.SIGKILL)
            workers[slot].join()
            killed += 1
            workers[slot] = start(slot)
    for worker in workers:
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
    last = None
    for _ in range(commits):
        last = increment(source.table.uri, target)
        if last.status != "committed":
            break
    problems = [] if last is not None and last.status == "nothing_to_do" else [f"the last run: {last}"]
    figures, found = check(source, Table.open(target))
    log = [json.loads(line) for line in (notes / "log").read_text().splitlines()]
    outcomes = Counter(f"{status} {error or ''}".strip() for _, _, status, error in log)
    return {
        "seed": seed,
        "source_commits": dict(source.kinds),
        "kills": killed,
        "runs": len(log),
        "outcomes": dict(outcomes),
        "restores": restored,
        **figures,
        "seconds": round(time.monotonic() - began, 1),
    }, problems + found


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


def check(source: Source, target: Table) -> tuple[dict[str, int], list[str]]:
    """Compare the change rows of each version with what it changed, and the replay of all with the source."""
    problems: list[str] = []
    found: dict[int, Rows] = {}
    total: Rows = Counter()
    for row in target.to_arrow().to_pylist():
        sign = 1 if row["_change_type"] in _PLUS else -1
        assert row["_change_type"] in (*_PLUS, *_MINUS)
        found.setdefault(row["_commit_version"], Counter())[_key(row)] += sign
        total[_key(row)] += sign
    # A rebuild begins with all rows of one version.
    first = min(found, default=0)
    doubled = skipped = 0
    for version in range(first + 1, source.table.snapshot().version + 1):
        net = {row: n for row, n in found.get(version, Counter()).items() if n}
        wanted = dict(source.changes.get(version, Counter()))
        if net != wanted:
            more = sum(max(0, abs(n) - abs(wanted.get(row, 0))) for row, n in net.items())
            doubled, skipped = doubled + bool(more), skipped + (not more)
            problems.append(f"version {version} has {net}, and changed {wanted}")
    if {row: n for row, n in total.items() if n} != dict(source.rows()):
        problems.append("the replay of the change rows is not the source")
    ranges = sum(
        any(each.domain.startswith("txlog.incremental.") for each in commit.domains)
        for commit in changes_since(target.snapshot(), target.snapshot().version - _held(target))
    )
    figures = {
        "versions_compared": max(0, source.table.snapshot().version - first),
        "ranges": ranges,
        "processed_twice": doubled,
        "skipped": skipped,
    }
    return figures, problems


def _held(target: Table) -> int:
    return len(target.history()) - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures, problems = chaos(args.commits, args.kills, args.seed, Path(folder))
    print(json.dumps({**figures, "problems": problems[:5]}))
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
