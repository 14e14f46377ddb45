"""The bounds of texts that Arrow compares while it writes them: those that a comparison of the values gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.datafiles.parquet.footer_forms import ChunkStatistics
from airflow_txlog.datafiles.parquet.halves import FEWEST_ROWS, HalvesWriter
from airflow_txlog.datafiles.parquet.output import RowGroupWriter
from airflow_txlog.datafiles.parquet.statistics import StatisticsCollector, _Column, file_statistics
from airflow_txlog.storage import LocalStore

ROWS = FEWEST_ROWS + 3
Texts = Callable[[int], str | bytes | None]


def column(text: Texts, rows: int = ROWS) -> pa.Array:
    values = [text(number) for number in range(rows)]
    if any(isinstance(value, bytes) for value in values):
        # Bytes that are no text, as another engine may have written them.
        return pa.array(values, pa.binary()).view(pa.string())
    return pa.array(values, pa.string())


def record(folder: Path, kind: type[RowGroupWriter], groups: list[pa.Table]) -> str | None:
    statistics, schema = StatisticsCollector(groups[0].schema), groups[0].schema
    writer = kind(LocalStore(str(folder)), "a.parquet", schema, options={}, statistics=statistics)
    for group in groups:
        for batch in group.to_batches(max_chunksize=5_000):
            writer.write(batch)
        writer.end_row_group()
    staged = writer.close({})
    assert staged is not None
    return staged.stats


TEXTS: dict[str, list[Texts]] = {
    "plain": [lambda n: f"n{n * 7919 % ROWS}"],
    "with nulls": [lambda n: None if n % 3 else f"é{n}"],
    "empty": [lambda n: ""],
    "null": [lambda n: None],
    "null, then not": [lambda n: None, lambda n: f"a{n}"],
    "not, then null": [lambda n: f"a{n}", lambda n: None],
    "one wider than the other": [lambda n: f"b{n}", lambda n: f"a{n}", lambda n: f"c{n}"],
    "as long as a bound may be": [lambda n: "z" * 4096 if n == 5 else f"a{n}"],
    "longer": [lambda n: "z" * 4097 if n == 5 else f"a{n}"],
    "longer, and the least": [lambda n: "A" * 4097 if n == 5 else f"a{n}"],
    "longer in one row group": [lambda n: f"a{n}", lambda n: "z" * 5000 if n == 5 else f"a{n}", lambda n: f"0{n}"],
    "no UTF-8": [lambda n: b"\xff\xfe" if n == 5 else b"a"],
}


@pytest.mark.parametrize("kind", [RowGroupWriter, HalvesWriter])
@pytest.mark.parametrize("texts", TEXTS.values(), ids=TEXTS)
def test_bounds_are_those_of_the_values(tmp_path: Path, kind: type[RowGroupWriter], texts: list[Texts]) -> None:
    groups = [pa.table({"id": range(ROWS), "text": column(text)}) for text in texts]
    assert record(tmp_path, kind, groups) == file_statistics(pa.concat_tables(groups))


@pytest.mark.parametrize("kind", [RowGroupWriter, HalvesWriter])
def test_a_column_with_a_dot_in_its_name_is_none_of_the_members_beside_it(
    tmp_path: Path, kind: type[RowGroupWriter]
) -> None:
    high, low, middle = (column(lambda n, first=first: f"{first}{n}") for first in "zam")
    structs = pa.StructArray.from_arrays([high, low], ["b", "text"])
    rows = pa.table({"a": structs, "a.b": low, "text": middle, "b": high})
    assert record(tmp_path, kind, [rows]) == file_statistics(rows)


def test_small_and_large_row_groups_of_one_file_have_one_pair_of_bounds(tmp_path: Path) -> None:
    large, small = column(lambda n: f"m{n}"), pa.array(["a", "z"])
    groups = [pa.table({"text": each}) for each in (small.slice(0, 1), large, small.slice(1))]
    assert record(tmp_path, RowGroupWriter, groups) == file_statistics(pa.concat_tables(groups))


def test_texts_are_not_compared_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    update = _Column.update

    def watched(self: _Column, values: Any, *, is_compared: bool = True) -> None:
        compared.extend(self.path if is_compared else ())
        update(self, values, is_compared=is_compared)

    monkeypatch.setattr(_Column, "update", watched)
    rows = pa.table({"id": range(ROWS), "text": column(lambda n: f"n{n}"), "long": column(lambda n: f"{n}" * 2000)})
    record(tmp_path, RowGroupWriter, [rows])
    assert sorted(compared) == ["id", "long"]


def test_without_the_bounds_that_are_due_a_column_has_none_whatever_follows() -> None:
    groups = [pa.table({"text": column(lambda n, first=first: f"{first}{n}")}) for first in "ab"]
    collector = StatisticsCollector(groups[0].schema)
    for group in groups:
        collector.update(group, is_group=True)
    known = [ChunkStatistics(ROWS, 0, (b"b0", b"b9"))]
    collector.add_bounds([lambda _: [ChunkStatistics(ROWS, 0)], lambda _: known])
    found = json.loads(collector.finish())
    assert (found["minValues"], found["maxValues"], found["nullCount"]) == ({}, {}, {"text": 0})


def test_a_footer_with_other_row_groups_gives_no_bounds() -> None:
    collector = StatisticsCollector(pa.schema([("text", pa.string())]))
    collector.update(pa.table({"text": column(lambda n: f"a{n}")}), is_group=True)
    with pytest.raises(ValueError, match="zip"):
        collector.add_bounds([])
