"""Tables with deletion vectors, read in this process: every kind of vector, predicates, partitions, counts, pruning."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from airflow_txlog import errors
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import DeletionVector
from airflow_txlog.engine.log.columns import table_to_adds
from airflow_txlog.engine.table.snapshot.files import live_row_counts, record_count, vectors_of
from tests.helpers.rows import append
from tests.helpers.vectors import Kind, allow_vectors, bitmap, file_of, inline, mask, stored

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string()), ("score", pa.float64())])


def rows(count: int, start: int = 0, day: str | None = "1") -> pa.Table:
    ids = range(start, start + count)
    return pa.table({"id": ids, "day": [day] * count, "score": [k / 4 for k in ids]}, schema=SCHEMA)


def table_of(folder: Path, *files: pa.Table, partition_by: list[str] | None = None) -> Table:
    table = Table.create(str(folder), SCHEMA, partition_by or [])
    for each in files:
        append(table, each)
    allow_vectors(table)
    return table


def give(table: Table, vector: DeletionVector, **stats: Any) -> None:
    """The one file of the table gets this vector, whatever it says."""
    tx = table.begin()
    files = table.snapshot().files()
    (add,) = table_to_adds(files, data_change=True)
    tx.remove(files)
    known = json.loads(add.stats or "{}") | {"tightBounds": False} | stats
    tx.add(replace(add, deletion_vector=vector, stats=json.dumps(known)))
    tx.commit("DELETE")


def ids(table: Table, predicate: str | None = None, **more: Any) -> list[int]:
    found: list[int] = sorted(table.to_arrow(predicate, columns=["id"], **more).column("id").to_pylist())
    return found


@pytest.mark.parametrize("kind", ["plain", "runs"])
@pytest.mark.parametrize("storage", ["inline", "relative", "prefixed", "absolute", "elsewhere"])
def test_the_rows_that_no_vector_masks_are_read(tmp_path: Path, storage: str, kind: Kind) -> None:
    folder = tmp_path / "t"
    table = table_of(folder, rows(100))
    gone = [0, 7, *range(20, 60), 99]
    if storage == "inline":
        vector = inline(gone, kind)
    elif storage in ("relative", "prefixed"):
        vector = stored(folder, [[5], gone], prefix="x y" if storage == "prefixed" else "", kind=kind)[1]
    else:
        place = (folder if storage == "absolute" else tmp_path) / "a 50%.bin"
        data, offsets = file_of(bitmap(gone, kind))
        place.write_bytes(data)
        vector = DeletionVector(
            storage_type="p",
            path_or_inline_dv=place.as_uri(),
            offset=offsets[0],
            size_in_bytes=len(bitmap(gone, kind)),
            cardinality=len(gone),
        )
    give(table, vector)
    table = Table.open(str(folder), allow_absolute_paths=storage == "elsewhere")
    assert ids(table) == [k for k in range(100) if k not in gone]
    assert live_row_counts(table.snapshot().files()) == [100 - len(gone)]
    # The versions before are as they were, a checkpoint changes nothing, and nor does another process.
    assert ids(table, version=table.snapshot().version - 1) == list(range(100))
    table.checkpoint()
    assert ids(Table.open(str(folder), allow_absolute_paths=storage == "elsewhere")) == ids(table)


def test_a19_a_predicate_and_chosen_columns_see_only_rows_that_are_left(tmp_path: Path) -> None:
    table = table_of(tmp_path / "t", rows(50), rows(50, start=50, day=None), partition_by=["day"])
    mask(table, {0: range(0, 50, 2), 1: range(0, 50, 2)})
    assert ids(table, "id < 10 OR id >= 95") == [1, 3, 5, 7, 9, 95, 97, 99]
    assert ids(table, "day IS NULL") == list(range(51, 100, 2))
    # Of the files nothing but the number of their rows is wanted.
    assert table.to_arrow(columns=["day"]).column("day").to_pylist().count("1") == 25
    assert table.to_arrow(columns=["day"]).num_rows == 50


def test_a_vector_that_grows_masks_what_it_masked_before_and_more(tmp_path: Path) -> None:
    table = table_of(tmp_path / "t", rows(30), rows(30, start=30))
    mask(table, {0: [1, 2], 1: [29]})
    mask(table, {0: [2, 3]})
    snapshot = table.snapshot()
    assert sorted(vector.cardinality for vector in vectors_of(snapshot.files()).values()) == [1, 3]
    assert len(ids(table)) == 56
    assert sum(count or 0 for count in live_row_counts(snapshot.files())) == 56
    assert snapshot.num_files == 2


def test_a_file_of_which_every_row_is_masked_has_no_row(tmp_path: Path) -> None:
    table = table_of(tmp_path / "t", rows(70_000))
    give(table, inline(range(70_000)))
    assert table.to_arrow().num_rows == 0
    assert table.to_arrow("id > 5").num_rows == 0


def test_row_counts_are_unknown_where_the_file_does_not_say(tmp_path: Path) -> None:
    table = table_of(tmp_path / "t", rows(10), rows(10), rows(10))
    mask(table, {0: [1]})
    files = table.snapshot().files().sort_by("path")
    unknown = pa.array([None, "{}", None], pa.string())
    without = files.set_column(files.schema.get_field_index("stats"), "stats", unknown)
    assert live_row_counts(files) == [9, 10, 10]
    assert live_row_counts(without) == [None, None, None]
    assert live_row_counts(files.slice(1)) == [10, 10]


BROKEN = {
    "more rows than the file has": (inline([3, 100]), {}),
    "rows that only the footer denies": (inline([3, 100]), {"numRecords": 101}),
    "another cardinality": (replace(inline([3, 4]), cardinality=1), {}),
    "a file that is not there": (replace(inline([3]), storage_type="u", path_or_inline_dv="0" * 20), {}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_vector_that_cannot_be_believed_gives_no_rows_at_all(tmp_path: Path, name: str) -> None:
    table = table_of(tmp_path / "t", rows(100))
    vector, stats = BROKEN[name]
    give(table, vector, **stats)
    with pytest.raises(errors.CorruptTable) as caught:
        table.to_arrow()
    assert not caught.value.retryable
    # The log can be looked at all the same, and so can the time before.
    assert table.snapshot().num_files == 1
    assert len(ids(table, version=1)) == 100


def test_a5_statistics_of_a_masked_file_are_bounds_and_no_more(tmp_path: Path) -> None:
    """min and max still bound what is left; a count of nulls says something only where it is none or all."""
    table = table_of(tmp_path / "t", rows(100))
    give(table, inline([0, 99]), nullCount={"score": 1, "id": 0})
    assert ids(table, "id >= 99") == []
    assert ids(table, "id <= 1") == [1]
    assert table.snapshot().files("id > 99").num_rows == 0
    assert table.snapshot().files("id >= 99").num_rows == 1
    assert table.snapshot().files("id IS NULL").num_rows == 0
    assert table.snapshot().files("score IS NULL").num_rows == 1


def test_a_copy_of_a_table_reads_its_own_vectors(tmp_path: Path) -> None:
    table = table_of(tmp_path / "t", rows(10))
    mask(table, {0: [1, 2]})
    shutil.copytree(tmp_path / "t", tmp_path / "copy")
    shutil.rmtree(tmp_path / "t")
    assert ids(Table.open(str(tmp_path / "copy"))) == [0, *range(3, 10)]


@pytest.mark.parametrize("count", [0, 1, 2**63 - 1])
def test_the_number_of_rows_is_read(count: int) -> None:
    assert record_count(json.dumps({"numRecords": count}), None) == count


@pytest.mark.parametrize("count", [-1, 2**63, 2**200, 1.5, "1", True, None, [1]])
def test_what_is_no_number_of_rows_is_not_known(count: object) -> None:
    """Another writer's statistics are input: a job that takes them for a number fails on them."""
    assert record_count(json.dumps({"numRecords": count}), None) is None
