"""Which files a MERGE reads for the keys of its source, and which commits of others are then a conflict (A14)."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.storage.limits import Limits
from tests.helpers.jobs import committed, run
from tests.helpers.racing import winning
from tests.helpers.rows import append, bag, make_table

ALL: list[dict[str, Any]] = [
    {"when": "matched", "then": "update", "set": "*"},
    {"when": "not_matched", "then": "insert", "values": "*"},
]


def keyed(keys: list[Any], value: str, kind: pa.DataType | None = None) -> pa.Table:
    return pa.table({"k": pa.array(keys, kind), "v": pa.array([value] * len(keys), pa.string())})


def merged(table: Table, source: pa.Table, *, on: str = "t.k = s.k", clauses: Any = None, **more: Any) -> JobResult:
    path = Path(table.uri.removeprefix("file://")).parent / "source.parquet"
    pq.write_table(source, path)
    view = {"format": "parquet", "path": str(path)}
    return committed(run(None, "merge", table, source=view, on=on, clauses=clauses or ALL, **more))


KINDS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), list(range(12))),
    (pa.int8(), list(range(12))),
    (pa.string(), [f"name-{n:02d}" for n in range(12)]),
    (pa.string(), ["é" * 40 + chr(0x1F600 + n) for n in range(12)]),
    (pa.date32(), [dt.date(2024, 1, 1) + dt.timedelta(n) for n in range(12)]),
    (pa.timestamp("us", tz="UTC"), [dt.datetime(2024, 1, 1, 0, 0, 0, n, tzinfo=dt.UTC) for n in range(12)]),
    (pa.timestamp("us"), [dt.datetime(2024, 1, 1, 0, 0, n) for n in range(12)]),
]


@pytest.mark.parametrize("most", [Limits().delete_keys, 1], ids=["a list", "a range"])
@pytest.mark.parametrize(
    ("kind", "keys"), KINDS, ids=lambda value: str(value) if isinstance(value, pa.DataType) else "keys"
)
def test_each_row_with_a_key_of_the_source_is_found(
    tmp_path: Path, kind: pa.DataType, keys: list[Any], most: int
) -> None:
    files = [keyed(keys[start : start + 3], "old", kind) for start in (0, 3, 6)]
    table = make_table(tmp_path / "t", *files, keyed([None], "null", kind))
    source = keyed([keys[4], keys[5], None, keys[11]], "new", kind)
    result = merged(table, source, limits=Limits(delete_keys=most))
    expected = [(key, "new" if key in keys[4:6] else "old") for key in keys[:9]]
    expected += [(None, "null"), (None, "new"), (keys[11], "new")]
    assert bag(table.to_arrow()) == bag(
        pa.table({"k": pa.array([k for k, _ in expected], kind), "v": [v for _, v in expected]})
    )
    assert result.files["considered"] == 4
    # Bounds of long texts and of microseconds are wider than their values.
    assert result.files["pruned"] >= 1


def test_a_commit_that_adds_a_key_of_the_source_is_a_conflict_and_any_other_is_none(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", keyed([1, 2], "old"), keyed([11, 12], "old"))
    log = winning("staged", lambda: append(table, keyed([20, 21], "other")))
    assert merged(table, keyed([2, 30], "new"), log=log).attempts == 1
    log = winning("staged", lambda: append(table, keyed([40, 41], "other")))
    assert merged(table, keyed([2, 40], "newer"), log=log).attempts == 2
    values = {1: "old", 2: "newer", 11: "old", 12: "old", 20: "other", 21: "other", 30: "new", 40: "newer", 41: "other"}
    assert bag(table.to_arrow()) == bag(pa.table({"k": list(values), "v": list(values.values())}))


def test_rows_that_no_source_row_matches_are_looked_for_in_all_files(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", keyed([1, 2], "old"), keyed([11, None], "old", pa.int64()))
    gone = [*ALL, {"when": "not_matched_by_source", "then": "delete"}]
    result = merged(table, keyed([2], "new"), clauses=gone)
    assert (result.files["pruned"], bag(table.to_arrow())) == (0, bag(keyed([2], "new")))


def test_a_condition_on_rows_that_no_source_row_matches_adds_the_files_that_may_satisfy_it(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", keyed([1, 2], "old"), keyed([11, 12], "old"), keyed([21, 22], "old"))
    gone = [*ALL, {"when": "not_matched_by_source", "then": "delete", "condition": "t.k > 20"}]
    result = merged(table, keyed([2, 21], "new"), clauses=gone)
    values = {1: "old", 2: "new", 11: "old", 12: "old", 21: "new"}
    assert bag(table.to_arrow()) == bag(pa.table({"k": list(values), "v": list(values.values())}))
    assert result.files["pruned"] == 1


def test_random_merges_leave_what_a_dictionary_leaves(tmp_path: Path) -> None:
    rng = random.Random(7)
    held = dict.fromkeys(rng.sample(range(200), 60), "old")
    keys = list(held)
    table = make_table(tmp_path / "t", *(keyed(keys[start : start + 6], "old") for start in range(0, 60, 6)))
    for number in range(15):
        given = rng.sample(range(-20, 220), rng.randrange(1, 12))
        merged(table, keyed(given, f"new {number}"), limits=Limits(delete_keys=rng.choice([3, 10_000])))
        held |= dict.fromkeys(given, f"new {number}")
        assert bag(table.to_arrow()) == bag(pa.table({"k": list(held), "v": list(held.values())}))
