"""Tables for the pages: one that looks like work, and others that are hostile, long or broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from airflow_txlog.contract.job import ANNOTATION_TAG_PREFIX
from airflow_txlog.engine import Table
from airflow_txlog.engine.commit.content.watermarks import Watermark
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.table.schema.schema import parse_schema, schema_to_json
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType
from airflow_txlog.engine.upkeep.consumers import set_watermark

SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.float64()), ("day", pa.string())])
MINUTE = 60_000
SCRIPT = "<script>alert('hostile')</script>"
SHOPS = ("2026-11-24", "2026-11-25", "2026-11-26")


class Hands:
    """A clock whose hands a test moves."""

    def __init__(self, time_ms: int) -> None:
        self.time_ms = time_ms
        self._ids = 0

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_s(self) -> float:
        return self.time_ms / 1000

    def sleep(self, seconds: float) -> None:
        self.time_ms += int(1000 * seconds)

    def random(self) -> float:
        return 0.5

    def unique_id(self) -> str:
        self._ids += 1
        return f"00000000-0000-4000-8000-{self._ids:012d}"


def tags(dag_id: str, task_id: str, run_id: str = "scheduled__2026-11-26", **more: str) -> dict[str, str]:
    """The tags of a commit by a task."""
    named = {"dag_id": dag_id, "task_id": task_id, "run_id": run_id, "map_index": "-1", "try_number": "1"}
    return {f"{ANNOTATION_TAG_PREFIX}{name}": text for name, text in named.items()} | more


def create(uri: Any, clock: Hands, **more: Any) -> Table:
    """An empty table whose commits have their own times."""
    properties = {"delta.enableInCommitTimestamps": "true", **more.pop("properties", {})}
    given = {"partition_by": ["day"], **more}
    return Table.create(uri, SCHEMA, properties=properties, clock=clock, **given)


def append(
    table: Table, number: int, *, rows: int = 1000, day: str = SHOPS[0], size: int = 20 * 2**20, **more: Any
) -> int:
    """Append one file, which is named and never read."""
    tx = table.begin()
    stats = f'{{"numRecords":{rows}}}'
    tx.add(path=f"day={day}/part-{number}.parquet", partition_values={"day": day}, size=size, stats=stats)
    metrics = {"numFiles": 1, "numOutputRows": rows, "numOutputBytes": size, "executionTimeMs": 800 + 37 * number}
    metrics |= more.pop("metrics", {})
    return tx.commit("WRITE", {"mode": "Append", "partitionBy": ["day"]}, metrics, **more)


def busy_table(uri: str, clock: Hands) -> Table:
    """A table with two writers, a merge, a delete, checks, a new column, a consumer and races."""
    table = create(uri, clock, name="orders", description="Orders of all shops, one row per order.")
    for number in range(24):
        clock.time_ms += 13 * MINUTE
        failed = 3 if number in (9, 17) else 0
        checks = {"expectation.positive amount.passed": 1000, "expectation.positive amount.failed": failed}
        writer = tags("load_orders", "append") if number % 3 else tags("backfill", "rewrite_day", map_index="4")
        append(table, number, rows=900 + 40 * number, day=SHOPS[number % 3], metrics=checks, tags=writer)
        if number == 12:
            _new_column(table, clock)
    clock.time_ms += 40 * MINUTE
    _merge(table, clock)
    clock.time_ms += 5 * MINUTE
    tx = table.begin()
    set_watermark(tx, "orders_by_shop", Watermark(source="s3://lake/raw_orders", table_id="t", version=311))
    tx.commit("WRITE", {"mode": "Append"}, {"numFiles": 0}, tags=tags("load_orders", "consume"))
    return table


def _new_column(table: Table, clock: Hands) -> None:
    clock.time_ms += MINUTE
    tx = table.begin()
    assert tx.metadata is not None
    before = parse_schema(tx.metadata.schema_string)
    after = StructType((*before, StructField(name="shop", type=Primitive.STRING, nullable=True)))
    tx.set_metadata(
        msgspec.structs.replace(
            tx.metadata,
            schema_string=schema_to_json(after),
            configuration={**tx.metadata.configuration, "delta.checkpointInterval": "20"},
        )
    )
    tx.commit("ADD COLUMNS", {"columns": "[shop]"}, tags=tags("schema", "add_shop"))


def _merge(table: Table, clock: Hands) -> None:
    """A merge that loses a race to an append and to a compaction, and is rebased."""
    late = table.begin()
    files = late.read("day = '2026-11-24'")
    other = Table.at(table.uri, table.store.access, clock=clock)
    clock.time_ms += MINUTE
    append(other, 100, day=SHOPS[2], tags=tags("load_orders", "append"))
    clock.time_ms += MINUTE
    tx = other.begin()
    kept = tx.read("day = '2026-11-25'")
    tx.remove(kept.slice(0, 2), data_change=False)
    tx.add(
        path="day=2026-11-25/compacted.parquet",
        partition_values={"day": SHOPS[1]},
        size=40 * 2**20,
        data_change=False,
        stats='{"numRecords":2000}',
    )
    metrics = {"numAddedFiles": 1, "numRemovedFiles": 2, "executionTimeMs": 2400}
    tx.commit("OPTIMIZE", {"predicate": "day = '2026-11-25'"}, metrics, tags=tags("upkeep", "optimize"))
    clock.time_ms += MINUTE
    late.remove(files.slice(0, 1))
    late.add(
        path="day=2026-11-24/merged.parquet",
        partition_values={"day": SHOPS[0]},
        size=21 * 2**20,
        stats='{"numRecords":950}',
    )
    metrics = {
        "numTargetRowsInserted": 20,
        "numTargetRowsUpdated": 310,
        "numTargetRowsDeleted": 4,
        "numTargetFilesAdded": 1,
        "numTargetFilesRemoved": 1,
        "executionTimeMs": 41_200,
    }
    named = tags("nightly", "merge_orders")
    late.commit(
        "MERGE",
        {"predicate": "t.id = s.id AND t.day = '2026-11-24'"},
        metrics,
        tags=named,
    )


def hostile_table(uri: str, clock: Hands) -> Table:
    """A table whose every name is a script."""
    schema = pa.schema([(f"id {SCRIPT}", pa.int64()), (SCRIPT, pa.string())])
    table = Table.create(
        uri,
        schema,
        [SCRIPT],
        {f"x.{SCRIPT}": SCRIPT, "my.secret": "canary", "delta.columnMapping.mode": "name"},
        name=SCRIPT,
        description=f"\u202e{SCRIPT}",
        clock=clock,
    )
    tx = table.begin()
    column = table.snapshot().delta_schema.find(SCRIPT)
    assert column is not None
    tx.add(path="p/part-1.parquet", partition_values={column.physical_name: SCRIPT}, size=1, stats='{"numRecords":1}')
    metrics = {f"expectation.{SCRIPT}.passed": 1, f"expectation.{SCRIPT}.failed": 1, SCRIPT: SCRIPT}
    named = tags(
        SCRIPT,
        SCRIPT,
        SCRIPT,
        **{"txlog.met": json.dumps({"total": 1, "last": [{"version": 0, "operation": SCRIPT, "how": SCRIPT}]})},
    )
    tx.commit(SCRIPT, {SCRIPT: SCRIPT, "mode": SCRIPT}, metrics, tags=named)
    return table


def long_log(folder: Path, versions: int) -> str:
    """The URI of a table with this many commits and checkpoints, written as text."""
    clock = Hands(1_790_000_000_000)
    table = create(str(folder), clock, properties={"delta.checkpointInterval": "100000"})
    append(table, 1)
    text = (folder / commit_name(1)).read_text()
    for version in range(2, versions):
        copied = text.replace("part-1.parquet", f"part-{version}.parquet")
        copied = copied.replace(str(clock.time_ms), str(clock.time_ms + version * MINUTE))
        (folder / commit_name(version)).write_text(copied)
        if version % 2500 == 0 or version == versions - 10:
            Table.open(str(folder), clock=clock).checkpoint()
    return str(folder)
