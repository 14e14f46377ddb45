"""Random histories that come out of order, applied by both executors, and compared with a plain reference in Python.

python -m tests.chaos.histories --histories 10000 --seed 1

A history is what happens to one key: events that come late, repeated and mixed with others, or its row in one snapshot
after another. Each subject applies all histories in a few runs. After each run the rows of the table, and the rows of
its last version with the changes that the change feed shows, must be those of the reference, which looks at one key
after another. Prints one JSON line for each subject and executor; ends with 1 if any history differs.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.helpers.jobs import run
from tests.helpers.rows import make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = tuple[Any, ...]
Rows = Counter[Row]
Step = tuple[pa.Table, dict[str, Any], Rows]
"""A source, the other arguments of its job, and the rows that the table then has."""

VALUES = [("a", pa.string()), ("b", pa.float64())]
EVENTS = pa.schema([("id", pa.int64()), ("at", pa.int32()), *VALUES, ("op", pa.string())])
FEED = {"delta.enableChangeDataFeed": "true"}
_GONE = ("delete", "update_preimage")


def table_of(rows: Iterable[Row], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema)


# --- events ---------------------------------------------------------------------------------------------------------


def batches_of_events(rng: random.Random, histories: int) -> list[list[Row]]:
    batches: list[list[Row]] = [[] for _ in range(4)]
    for key in range(histories):
        history = [
            (key, at, rng.choice([None, "x", "y"]), rng.choice([None, 1.5, float(at)]), rng.choice("uuuud"))
            for at in rng.sample(range(12), rng.randint(1, 6))
        ]
        for event in (*history, *rng.choices(history, k=rng.randint(0, 3))):
            rng.choice(batches).append(event)
    for batch in batches:
        rng.shuffle(batch)
    return batches


def periods(events: Iterable[Row], *, keeps_nulls: bool) -> list[list[Any]]:
    """The times in which the values of one key were the same: values, start, end and newest sequence."""
    found: list[list[Any]] = []
    for _, at, *new, op in sorted(set(events), key=lambda event: event[1]):
        present = found[-1] if found and found[-1][2] is None else None
        if op == "d":
            if present is not None:
                present[2] = at
            continue
        if present is not None and keeps_nulls:
            new = [old if value is None else value for old, value in zip(present[0], new, strict=True)]
        if present is not None and present[0] == new:
            present[3] = at
            continue
        if present is not None:
            present[2] = at
        found.append([new, at, None, at])
    return found


def events(scd_type: int, *, keeps_nulls: bool) -> Callable[[random.Random, int], tuple[pa.Schema, Iterator[Step]]]:
    """The steps of a table to which events are applied."""
    at = pa.int32()
    times = [("at", at)] if scd_type == 1 else [("__START_AT", at), ("__END_AT", at)]
    more = {
        "keys": ["id"],
        "sequence_by": "at",
        "apply_as_deletes": "op = 'd'",
        "except_column_list": ["op", "at"][:scd_type],
        "stored_as_scd_type": scd_type,
        "ignore_null_updates": keeps_nulls,
    }

    def steps(rng: random.Random, histories: int) -> Iterator[Step]:
        known: dict[int, list[Row]] = defaultdict(list)
        for batch in batches_of_events(rng, histories):
            for event in batch:
                known[event[0]].append(event)
            wanted: Rows = Counter()
            for key, history in known.items():
                for values, start, end, newest in periods(history, keeps_nulls=keeps_nulls):
                    if scd_type == 2:
                        wanted[(key, *values, start, end)] += 1
                    elif end is None:
                        wanted[(key, *values, newest)] += 1
            yield table_of(batch, EVENTS), more, wanted

    return lambda rng, histories: (pa.schema([("id", pa.int64()), *VALUES, *times]), steps(rng, histories))


# --- snapshots ------------------------------------------------------------------------------------------------------


def snapshots(rng: random.Random, histories: int) -> Iterator[dict[int, Row]]:
    before: dict[int, Row] = {}
    for _ in range(4):
        new = {key: (key, rng.choice([None, "x", "y"]), rng.choice([None, 1.5])) for key in range(histories)}
        before = {key: before[key] if key in before and rng.random() < 0.5 else row for key, row in new.items()}
        before = {key: row for key, row in before.items() if rng.random() < 0.8}
        yield before


def snapshots_alone(rng: random.Random, histories: int) -> tuple[pa.Schema, Iterator[Step]]:
    schema, more = pa.schema([("id", pa.int64()), *VALUES]), {"keys": ["id"], "max_deleted_fraction": 1}
    found = snapshots(rng, histories)
    return schema, ((table_of(rows.values(), schema), more, Counter(rows.values())) for rows in found)


def snapshots_with_history(rng: random.Random, histories: int) -> tuple[pa.Schema, Iterator[Step]]:
    """Gone rows are marked, and only `a` begins a new version."""
    source, moment = pa.schema([("id", pa.int64()), *VALUES]), pa.timestamp("us", tz="UTC")
    times = [("__START_AT", moment), ("__END_AT", moment), ("__IS_DELETED", pa.bool_())]

    def steps() -> Iterator[Step]:
        versions: dict[int, list[Row]] = defaultdict(list)
        for day, rows in enumerate(snapshots(rng, histories), 1):
            at = dt.datetime(2026, 1, day, tzinfo=dt.UTC)
            for key in {*versions, *rows}:
                of_key, new = versions[key], rows.get(key)
                if of_key:
                    _, a, b, start, _, is_gone = of_key[-1]
                    if (new is None and is_gone) or (new is not None and not is_gone and new[1] == a):
                        of_key[-1] = (*(new or (key, a, b)), start, None, is_gone)
                        continue
                    of_key[-1] = (key, a, b, start, at, is_gone)
                    of_key.append((*(new or (key, a, b)), at, None, new is None))
                elif new is not None:
                    of_key.append((*new, at, None, False))
            more = {
                "keys": ["id"],
                "max_deleted_fraction": 1,
                "stored_as_scd_type": 2,
                "hard_deletes": "new_record",
                "track_history_column_list": ["a"],
                "snapshot_at": at.isoformat(),
            }
            yield table_of(rows.values(), source), more, Counter(row for each in versions.values() for row in each)

    return pa.schema([*source, *map(pa.field, *zip(*times, strict=True))]), steps()


# --- one row of each key --------------------------------------------------------------------------------------------


def deduplicated(rng: random.Random, histories: int) -> tuple[pa.Schema, Iterator[Step]]:
    """Upserts of batches that have several rows of a key, of which the newest counts."""
    schema = pa.schema([("id", pa.int64()), *VALUES, ("at", pa.int32())])

    def steps() -> Iterator[Step]:
        table: dict[int, Row] = {}
        for _ in range(4):
            keys = rng.sample(range(histories), histories // 2)
            rows = [
                (key, rng.choice([None, "x", "y"]), rng.choice([None, 1.5]), at)
                for key in keys
                for at in rng.sample(range(100), rng.randint(1, 4))
            ]
            rng.shuffle(rows)
            table |= {row[0]: row for row in sorted(rows, key=lambda row: row[3])}
            more = {"keys": ["id"], "deduplicate_by": ["id"], "deduplicate_order_by": ["at DESC"]}
            yield table_of(rows, schema), more, Counter(table.values())

    return schema, steps()


SUBJECTS: dict[str, tuple[str, Callable[[random.Random, int], tuple[pa.Schema, Iterator[Step]]]]] = {
    "SCD type 1": ("apply_changes", events(1, keeps_nulls=False)),
    "SCD type 1, NULL ignored": ("apply_changes", events(1, keeps_nulls=True)),
    "SCD type 2": ("apply_changes", events(2, keeps_nulls=False)),
    "SCD type 2, NULL ignored": ("apply_changes", events(2, keeps_nulls=True)),
    "snapshots, type 1": ("apply_snapshot", snapshots_alone),
    "snapshots, type 2": ("apply_snapshot", snapshots_with_history),
    "deduplication": ("upsert", deduplicated),
}


def rows_of(found: pa.Table) -> Rows:
    return Counter(zip(*(column.to_pylist() for column in found.columns), strict=True))


def check(subject: str, histories: int, seed: int, folder: Path, spark: SparkSession | None) -> dict[str, Any]:
    """Apply the histories of one subject by one executor; the figures, with the number of rows that differ."""
    operation, make = SUBJECTS[subject]
    schema, steps = make(random.Random(seed), histories)
    table = make_table(folder / "t", schema.empty_table(), properties=FEED)
    shown: Rows = Counter()
    figures: Counter[str] = Counter(rows_given=0, rows_wrong=0, feed_wrong=0, changes_in_feed=0)
    began, version = time.perf_counter(), table.latest_version()
    for number, (source, more, wanted) in enumerate(steps):
        path = folder / f"{number}.parquet"
        pq.write_table(source, path)
        result = run(spark, operation, table, source={"format": "parquet", "path": str(path)}, **more)
        assert result.status in ("committed", "nothing_to_do"), result.error
        newest = table.latest_version()
        if newest > version:
            feed = table.changes(version + 1, newest)
            for name, sign in zip(feed.column("_change_type").to_pylist(), rows_of_feed(feed, schema), strict=True):
                shown[sign] += -1 if name in _GONE else 1
            figures["changes_in_feed"] += feed.num_rows
        version = newest
        figures["rows_given"] += source.num_rows
        figures["rows_wrong"] += differing(rows_of(table.to_arrow().select(schema.names)), wanted)
        figures["feed_wrong"] += differing(shown, wanted)
    return {
        "subject": subject,
        "executor": "local" if spark is None else "Spark",
        "histories": histories,
        **figures,
        "rows_left": sum(wanted.values()),
        "seconds": round(time.perf_counter() - began, 1),
    }


def rows_of_feed(feed: pa.Table, schema: pa.Schema) -> Iterator[Row]:
    return zip(*(feed.column(name).to_pylist() for name in schema.names), strict=True)


def differing(one: Rows, other: Rows) -> int:
    """How many rows only one of both has."""
    return sum(abs(one[row] - other[row]) for row in one.keys() | other.keys())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--local", action="store_true", help="only without Spark")
    args = parser.parse_args()
    executors: list[SparkSession | None] = [None]
    if not args.local:
        from pyspark.sql import SparkSession

        conf = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"}
        executors.append(SparkSession.builder.master("local[2]").config(map=conf).getOrCreate())
        session = executors[-1]
        assert session is not None
        session.sparkContext.setLogLevel("ERROR")
    is_wrong = False
    for subject in SUBJECTS:
        for spark in executors:
            with tempfile.TemporaryDirectory() as folder:
                figures = check(subject, args.histories, args.seed, Path(folder), spark)
            is_wrong |= bool(figures["rows_wrong"] or figures["feed_wrong"])
            print(json.dumps(figures), flush=True)
    sys.exit(is_wrong)


if __name__ == "__main__":
    main()
