"""New images of rows: computed columns come from Spark, all others from the row's own file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.deletion_vectors.positions import addresses_of, pack
from airflow_txlog.datafiles.parquet import rewriting
from airflow_txlog.datafiles.parquet.judging import VIOLATION_COLUMN
from airflow_txlog.datafiles.parquet.physical import FIELD_ID_KEY, MODE_KEY, PHYSICAL_NAME_KEY
from airflow_txlog.datafiles.parquet.reading import DataFile, open_data_file
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.datafiles.tasks import scan_and_write
from airflow_txlog.datafiles.tasks.copies import ImageTask, SentColumns
from airflow_txlog.datafiles.tasks.plans import Bins
from airflow_txlog.datafiles.tasks.row_values import NewImages, RowValues
from airflow_txlog.datafiles.tasks.scan_and_write import (
    ADDRESS_COLUMN,
    FileScan,
    Task,
    report_of,
)
from airflow_txlog.errors import ConstraintViolation, CorruptDataFile, JobError, TxlogError
from airflow_txlog.sql.expression import Values
from tests.helpers.files import bins_of, plan_of_files, store_of

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("score", pa.float64()), ("day", pa.string())])
POSITIONS = [[1, 2, 9], [0], [4, 5]]


@pytest.fixture
def bins(tmp_path: Path) -> Bins:
    """Three files of ten rows in one bin, the first two of one segment; files count from 7, and 1000 rows apart."""
    rows = []
    for number, positions in enumerate(POSITIONS):
        start = number * 1000
        stored = pa.table({"id": range(start, start + 10), "name": [f"old {start + row}" for row in range(10)]})
        pq.write_table(stored, tmp_path / f"{number}.parquet", row_group_size=4)
        path = f"{number}.parquet"
        rows.append({"index": 7 + number, "path": path, "positions": pack(positions), "segment": number // 2})
    return bins_of(tmp_path, plan_of_files(*rows, day=pa.array(["mon", "tue", None])))


def task(root: Path, bins: Bins, *computed: str, **options: Any) -> ImageTask:
    folder = root / "table"
    folder.mkdir(exist_ok=True)
    must_check = options.pop("must_check", False)
    layout = Layout(
        store=store_of(folder), schema=SCHEMA, partition_columns=("day",), job_id="job", must_check=must_check
    )
    sent = SentColumns(names=(*computed, ADDRESS_COLUMN), first_files=(7,))
    return ImageTask(bins=bins, layout=layout, values=sent, **options)


def all_addresses() -> pa.Array:
    of_files = [addresses_of(7 + number, pa.array(rows, pa.int64())) for number, rows in enumerate(POSITIONS)]
    return pa.concat_arrays(of_files)


def batches(rows: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    return iter([rows.slice(start, size) for start in range(0, rows.num_rows, size)])


def ran(task: ImageTask, rows: pa.RecordBatch, size: int = 100) -> list[StagedFile | TxlogError]:
    texts = [text for record in task(batches(rows, size)) for text in record.column(0).to_pylist()]
    return [report_of(text) for text in texts]


def stored(root: Path, found: list[StagedFile | TxlogError], *, is_change: bool = False) -> dict[int, tuple[Any, ...]]:
    files = [file for file in found if isinstance(file, StagedFile) and file.is_change == is_change]
    return {
        row["id"]: (row["name"], row["score"], file.partition_values["day"], file.segment)
        for file in files
        for row in pq.ParquetFile(root / "table" / file.store_path).read().to_pylist()
    }


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_computed_values_stand_beside_what_the_rows_file_holds(tmp_path: Path, bins: Bins, size: int) -> None:
    scores = pa.array([0.5, 1.5, 2.5, 3.5, None, 5.5])
    sent = pa.RecordBatch.from_arrays([scores, all_addresses()], names=["c0", "c1"])
    found = ran(task(tmp_path, bins, "score"), sent, size)
    # A column that the file lacks is computed, another comes from its partition.
    assert stored(tmp_path, found) == {
        1: ("old 1", 0.5, "mon", 0),
        2: ("old 2", 1.5, "mon", 0),
        9: ("old 9", 2.5, "mon", 0),
        1000: ("old 1000", 3.5, "tue", 0),
        2004: ("old 2004", None, None, 1),
        2005: ("old 2005", 5.5, None, 1),
    }


def test_a_computed_partition_column_moves_the_row_and_images_may_be_change_rows_too(
    tmp_path: Path, bins: Bins
) -> None:
    days = pa.array(["mon", "sun", "sun", "sun", "tue", None])
    sent = pa.RecordBatch.from_arrays([days, all_addresses()], names=["c0", "c1"])
    found = ran(task(tmp_path, bins, "day", change_type="update_postimage"), sent)
    images = stored(tmp_path, found)
    assert [images[key][2] for key in sorted(images)] == days.to_pylist()
    assert stored(tmp_path, found, is_change=True) == images


def test_all_columns_may_be_computed_and_then_no_file_is_opened(tmp_path: Path, bins: Bins) -> None:
    for path in tmp_path.glob("*.parquet"):
        path.unlink()
    ids = pa.array(range(6), pa.int64())
    columns = [ids, ids.cast(pa.string()), ids.cast(pa.float64()), all_addresses()]
    sent = pa.RecordBatch.from_arrays(columns, names=["c0", "c1", "c2", "c3"])
    assert sorted(stored(tmp_path, ran(task(tmp_path, bins, "id", "name", "score"), sent, 4))) == [0, 1, 2, 3, 4, 5]
    numbers = iter([pa.RecordBatch.from_pydict({"id": [0]})])
    scanned = Task(source=FileScan(bins=bins, schema=pa.schema([]), rows="only", with_address=True))(numbers)
    assert pa.concat_arrays([batch.column(0) for batch in scanned]) == all_addresses()


@pytest.mark.parametrize("is_copied", [False, True])
def test_images_that_need_no_column_of_a_file_are_as_many_as_its_rows(
    tmp_path: Path, bins: Bins, is_copied: bool
) -> None:
    constants = {"id": pa.array([5], pa.int64()), "name": pa.array(["x"]), "score": pa.array([0.5])}
    values = {name: Values(array) for name, array in (constants | {"day": pa.array(["sun"])}).items()}
    (plan,) = bins.inline
    assert isinstance(plan, pa.Table)
    number = plan.schema.get_field_index("is_copied")
    plan = plan.set_column(number, plan.schema.field(number), pa.array([is_copied] * 3))
    images = replace(task(tmp_path, bins_of(tmp_path, plan)), values=NewImages(clauses={0: RowValues(values=values)}))
    found = ran(images, pa.record_batch({"id": [0]}))
    new = [file for file in found if isinstance(file, StagedFile) and file.source is None]
    assert sum(file.num_records for file in new) == 6
    assert stored(tmp_path, list(new)) == {5: ("x", 0.5, "sun", 1)}


@pytest.mark.parametrize("order", [[0, 2, 1, 3, 4, 5], [0, 1, 2, 3, 4], [0, 1, 2, 4, 5], [0, 1, 2, 3, 4, 5, 5]])
def test_a_row_out_of_order_missing_or_too_many_fails_the_task_and_leaves_nothing(
    tmp_path: Path, bins: Bins, order: list[int]
) -> None:
    sent = pa.RecordBatch.from_arrays([pa.array([0.0] * 6), all_addresses()], names=["c0", "c1"]).take(pa.array(order))
    (error,) = ran(task(tmp_path, bins, "score"), sent, 2)
    assert isinstance(error, JobError)
    assert list((tmp_path / "table").rglob("*.parquet")) == []


def test_an_image_that_breaks_a_rule_leaves_nothing(tmp_path: Path, bins: Bins) -> None:
    told = '{"constraint": "small", "column": null, "what": "the CHECK constraint \'small\'", "columns": ["score"]}'
    violations = pa.array([None] * 5 + [told])
    columns = [pa.array([0.0] * 6), violations, all_addresses()]
    sent = pa.RecordBatch.from_arrays(columns, names=["c0", "c1", "c2"])
    checked = task(tmp_path, bins, "score", VIOLATION_COLUMN, must_check=True)
    (error,) = ran(checked, sent, 2)
    assert isinstance(error, ConstraintViolation)
    assert list((tmp_path / "table").rglob("*.parquet")) == []


def test_rows_that_stay_are_copied_by_the_same_reading(
    tmp_path: Path, bins: Bins, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def opening(file: DataFile, **options: Any) -> Any:
        opened.append(file.path)
        return open_data_file(file, **options)

    monkeypatch.setattr(scan_and_write, "open_data_file", opening)
    monkeypatch.setattr(rewriting, "open_data_file", opening)
    (plan,) = bins.inline
    assert isinstance(plan, pa.Table)
    number = plan.schema.get_field_index("is_copied")
    plan = plan.set_column(number, plan.schema.field(number), pa.array([True, None, True]))
    copying = task(tmp_path, bins_of(tmp_path, plan), "score")
    sent = pa.RecordBatch.from_arrays([pa.array([0.5] * 6), all_addresses()], names=["c0", "c1"])
    found = ran(copying, sent, 4)
    copies = {file.source: file for file in found if isinstance(file, StagedFile) and file.source is not None}
    copied = {source: pq.read_table(tmp_path / "table" / file.store_path) for source, file in copies.items()}
    ids = {source: rows["id"].to_pylist() for source, rows in copied.items()}
    assert ids == {7: [0, 3, 4, 5, 6, 7, 8], 9: [2000, 2001, 2002, 2003, 2006, 2007, 2008, 2009]}
    # A copy has its file's own columns.
    assert {tuple(rows.schema.names) for rows in copied.values()} == {("id", "name")}
    images = [file for file in found if isinstance(file, StagedFile) and file.source is None]
    assert stored(tmp_path, list(images)) == stored(tmp_path, ran(task(tmp_path, bins, "score"), sent))
    assert opened[:3] == ["0.parquet", "1.parquet", "2.parquet"]
    assert len(opened) == 6


def test_a_file_without_the_ids_that_columns_are_found_by_is_refused_where_it_is_copied_too(
    tmp_path: Path, bins: Bins
) -> None:
    (plan,) = bins.inline
    assert isinstance(plan, pa.Table)
    number = plan.schema.get_field_index("is_copied")
    plan = plan.set_column(number, plan.schema.field(number), pa.array([True] * 3))
    copying = task(tmp_path, bins_of(tmp_path, plan), "score")
    marks = {PHYSICAL_NAME_KEY: b"col-1", FIELD_ID_KEY: b"7", MODE_KEY: b"id"}
    schema = pa.schema([pa.field("id", pa.int64(), metadata=marks), *list(SCHEMA)[1:]])
    copying = replace(copying, layout=replace(copying.layout, schema=schema))
    sent = pa.RecordBatch.from_arrays([pa.array([0.5] * 6), all_addresses()], names=["c0", "c1"])
    (error,) = ran(copying, sent)
    assert isinstance(error, CorruptDataFile)
    assert list((tmp_path / "table").rglob("*.parquet")) == []
