"""The row groups that no row leaves are copied as bytes, and the copy is the one that is made without that."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.deletion_vectors.positions import pack
from airflow_txlog.datafiles.parquet.statistics import file_statistics
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.datafiles.tasks.copies import CopyTask, ImageTask
from airflow_txlog.datafiles.tasks.row_values import NewImages, RowValues
from airflow_txlog.datafiles.tasks.scan_and_write import report_of
from airflow_txlog.errors import CorruptDataFile, TxlogError
from airflow_txlog.sql.expression import Values
from tests.helpers.files import bins_of, place_of, plan_of_files, store_of
from tests.helpers.spliced_files import KINDS, WRITERS, chunks, rows

COUNT, GROUP = 300, 50


def layout_in(folder: Path, least_bytes: int = 0) -> Layout:
    folder.mkdir(exist_ok=True)
    return Layout(
        store=store_of(folder, changed_in_place_bytes=least_bytes),
        schema=pa.schema(list(KINDS.items())),
        partition_columns=(),
        job_id="job",
    )


def ran(task: CopyTask) -> list[Any]:
    numbers = pa.RecordBatch.from_pydict({"id": pa.array([0], pa.int64())})
    return [report_of(text) for batch in task(iter([numbers])) for text in batch.column(0).to_pylist()]


def copied(
    root: Path, leaving: list[int], *, least_bytes: int = 0, deleted: list[int] | None = None, is_spliced: bool = True
) -> Path:
    """The copy of `root/old.parquet`, whose record is true. Raises its error."""
    folder = root / f"table-{least_bytes}"
    layout = layout_in(folder, least_bytes)
    plan = plan_of_files(
        {
            "path": "old.parquet",
            "positions": pack(leaving) if leaving else None,
            "deleted": None if deleted is None else pack(deleted),
        }
    )
    (file,) = ran(CopyTask(bins=bins_of(root, plan), layout=layout))
    if isinstance(file, TxlogError):
        assert list(folder.iterdir()) == []
        raise file
    assert isinstance(file, StagedFile)
    place = place_of(layout, file)
    content = pq.ParquetFile(place).read()
    assert (file.size_bytes, file.num_records) == (place.stat().st_size, content.num_rows)
    # The footer does not give the null count of a list or a map.
    is_spliced = is_spliced and least_bytes == 0 and bool(untouched({*leaving, *(deleted or [])}))
    counted = [name for name in KINDS if name in content.column_names and not (is_spliced and name in ("list", "map"))]
    assert file.stats == file_statistics(content.select(counted))
    return place


def untouched(gone: set[int]) -> list[int]:
    return [n for n in range(COUNT // GROUP) if gone.isdisjoint(range(n * GROUP, (n + 1) * GROUP))]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("options", WRITERS.values(), ids=WRITERS)
def test_a_copy_is_the_same_with_and_without_whole_row_groups(
    tmp_path: Path, options: dict[str, Any], seed: int
) -> None:
    old = rows(COUNT, seed)
    pq.write_table(old, tmp_path / "old.parquet", **{**options, "row_group_size": GROUP})
    draw = random.Random(seed)
    touched = draw.sample(range(COUNT // GROUP), draw.randrange(1, COUNT // GROUP))
    leaving = {n * GROUP + at for n in touched for at in draw.sample(range(GROUP), draw.choice([1, 20, GROUP]))}
    deleted = {n * GROUP + 3 for n in draw.sample(range(COUNT // GROUP), draw.randrange(3))} - leaving
    found = copied(tmp_path, sorted(leaving), deleted=sorted(deleted) or None)
    rewritten = copied(tmp_path, sorted(leaving), deleted=sorted(deleted) or None, least_bytes=10**9)
    gone = leaving | deleted
    expected = old.take(pa.array([row for row in range(COUNT) if row not in gone]))
    for place in (found, rewritten):
        content = pq.ParquetFile(place).read()
        assert content.schema.equals(old.schema)
        assert repr(content.to_pylist()) == repr(expected.to_pylist())
    for name in KINDS:
        before = chunks(tmp_path / "old.parquet", name)
        after = set(chunks(found, name))
        for number in untouched(gone):
            leaves = len(before) // (COUNT // GROUP)
            assert after >= set(before[number * leaves : (number + 1) * leaves])


UNFIT: dict[str, tuple[pa.Table, dict[str, Any]]] = {
    "an old form of timestamps": (rows(COUNT), {"use_deprecated_int96_timestamps": True}),
    "milliseconds": (rows(COUNT).set_column(6, "at", pa.array(range(COUNT), pa.timestamp("ms", "UTC"))), {}),
    "a narrower type": (rows(COUNT).set_column(0, "id", pa.array(range(COUNT), pa.int32())), {}),
    "other names in a list": (rows(COUNT), {"use_compliant_nested_type": False}),
}


@pytest.mark.parametrize(("old", "options"), UNFIT.values(), ids=UNFIT)
def test_a_file_of_another_form_is_decoded(tmp_path: Path, old: pa.Table, options: dict[str, Any]) -> None:
    """Its rows take another form in the copy, and a file has one form."""
    pq.write_table(old, tmp_path / "old.parquet", row_group_size=GROUP, store_schema=False, **options)
    place = copied(tmp_path, [2, 3], is_spliced=False)
    found, kept = pq.ParquetFile(place).read(), pq.ParquetFile(tmp_path / "old.parquet").read()
    for name in ("id", "text", "at"):
        values = kept[name].cast(found[name].type).to_pylist()
        assert found[name].to_pylist() == [*values[:2], *values[4:]]


def test_columns_that_the_file_lacks_and_that_the_table_lacks_stay_so(tmp_path: Path) -> None:
    old = rows(COUNT).drop_columns(["text"]).append_column("dropped", pa.array(range(COUNT)))
    pq.write_table(old, tmp_path / "old.parquet", row_group_size=GROUP)
    found = pq.ParquetFile(copied(tmp_path, [60])).read()
    assert found.equals(old.take(pa.array([row for row in range(COUNT) if row != 60])))


@pytest.mark.parametrize("leaving", [range(50, 100), range(250, 300)], ids=str)
def test_a_row_group_that_leaves_whole_is_left_out(tmp_path: Path, leaving: range) -> None:
    old = rows(COUNT)
    pq.write_table(old, tmp_path / "old.parquet", row_group_size=GROUP)
    place = copied(tmp_path, list(leaving))
    assert pq.read_metadata(place).num_row_groups == 5
    assert pq.ParquetFile(place).read().equals(pa.concat_tables([old[: leaving.start], old[leaving.stop :]]))


def test_a_chunk_that_is_not_what_its_pages_are_fails_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "old.parquet"
    pq.write_table(rows(COUNT), path, row_group_size=GROUP, use_dictionary=False)
    data, chunk = path.read_bytes(), pq.read_metadata(path).row_group(3).column(0)
    place = chunk.data_page_offset
    path.write_bytes(data[:place] + bytes(8) + data[place + 8 :])
    with pytest.raises(CorruptDataFile, match="column chunk"):
        copied(tmp_path, [1])


def test_new_images_are_made_of_the_rows_that_leave(tmp_path: Path) -> None:
    old = rows(COUNT)
    pq.write_table(old, tmp_path / "old.parquet", row_group_size=GROUP)
    planned = {"path": "old.parquet", "positions": pack([55, 56]), "leaving": pack([7, 55, 56])}
    plan = plan_of_files(planned | {"is_copied": True, "segment": 1})
    values = NewImages(clauses={0: RowValues(values={"text": Values(pa.array(["new"]))})})
    layout = layout_in(tmp_path / "table")
    found = ran(ImageTask(bins=bins_of(tmp_path, plan), layout=layout, values=values, change_type="update_postimage"))
    kept, images, changes = (
        pa.concat_tables([pq.ParquetFile(place_of(layout, file)).read() for file in found if is_wanted(file)])
        for is_wanted in (
            lambda file: file.source == 0,
            lambda file: file.source is None and not file.is_change,
            lambda file: file.is_change,
        )
    )
    assert repr(kept.to_pylist()) == repr([row for n, row in enumerate(old.to_pylist()) if n not in (7, 55, 56)])
    assert repr(images.to_pylist()) == repr([row | {"text": "new"} for row in old.slice(55, 2).to_pylist()])
    assert repr(changes.drop_columns(["_change_type"]).to_pylist()) == repr(images.to_pylist())
    new = set(chunks(place_of(layout, next(file for file in found if file.source == 0)), "text"))
    assert new >= set(chunks(tmp_path / "old.parquet", "text")[2:])
