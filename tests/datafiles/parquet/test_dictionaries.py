"""Alone in showing which columns of a new file have no dictionary."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.dictionaries import repeated_columns, without_unique_columns

ROWS = 100_000
FEW = 20_000
RNG = np.random.default_rng(3)


def texts(numbers: np.ndarray) -> pa.Array:
    return pc.binary_join_element_wise("text", pa.array(numbers).cast(pa.string()), "-")


UNIQUE = {
    "numbers in order": pa.array(range(ROWS)),
    "doubles": pa.array(RNG.random(ROWS)),
    "texts": texts(RNG.permutation(ROWS)),
    "decimals": pa.array(RNG.integers(0, 10**12, ROWS)).cast(pa.decimal128(19, 0)),
    "a third is null": pa.array(range(ROWS), mask=np.arange(ROWS) % 3 == 0),
    "times": pa.array(RNG.integers(0, 10**15, ROWS)).cast(pa.timestamp("us", "UTC")),
}
REPEATED = {
    "booleans": pa.array(np.arange(ROWS) % 2 == 0),
    "few in cycles": pa.array(np.arange(ROWS) % 10_000),
    "each four times in order": pa.array(np.arange(ROWS) // 4),
    "few at random": texts(RNG.integers(0, 20_000, ROWS)),
    "the second half repeats the first": pa.array(np.arange(ROWS) % (ROWS // 2) // 2),
    "nulls": pa.nulls(ROWS, pa.int64()),
    "most are null": pa.array(range(ROWS), mask=np.arange(ROWS) % 3 > 0),
    "lists": pa.array([[number] for number in range(ROWS)]),
    "one decimal": pa.array([Decimal("1.5")] * ROWS),
}


@pytest.mark.parametrize("name", [*UNIQUE, *REPEATED])
def test_a_column_of_values_that_nearly_all_differ_has_no_dictionary(name: str) -> None:
    values = {**UNIQUE, **REPEATED}[name]
    beside = pa.array(np.arange(ROWS) % 7)
    path = f"{name}.list.element" if name == "lists" else name
    inner = pa.StructArray.from_arrays([values, beside], names=[name, "few"])
    rows = pa.table({name: values, "few": beside, "s": inner})
    has_dictionary = without_unique_columns(rows)
    if name in UNIQUE:
        assert has_dictionary == ["few", "s.few"]
    else:
        assert has_dictionary is True
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, rows.schema, use_dictionary=has_dictionary) as writer:
        writer.write_table(rows, row_group_size=ROWS)
    group = pq.ParquetFile(pa.BufferReader(sink.getvalue())).metadata.row_group(0)
    chunks = {group.column(index).path_in_schema: group.column(index) for index in range(group.num_columns)}
    assert chunks["few"].has_dictionary_page
    assert chunks["s.few"].has_dictionary_page
    assert chunks[path].has_dictionary_page == (name in REPEATED and name != "booleans")
    assert pq.read_table(pa.BufferReader(sink.getvalue())).equals(rows)


@pytest.mark.parametrize("name", [*UNIQUE, "each four times in order", "nulls", "one decimal"])
def test_a_file_of_some_rows_is_judged_by_an_eighth_of_them(name: str) -> None:
    rows = pa.table({name: {**UNIQUE, **REPEATED}[name].slice(0, FEW), "few": np.arange(FEW) % 7})
    assert without_unique_columns(rows) == (["few"] if name in UNIQUE else True)


def test_a_file_of_few_rows_is_not_judged() -> None:
    assert without_unique_columns(pa.table({"id": range(1_000)})) is True


def test_views_whose_values_arrow_cannot_count_are_not_judged() -> None:
    values = UNIQUE["texts"]
    views = {"texts": values.cast(pa.string_view()), "bytes": values.cast(pa.binary()).cast(pa.binary_view())}
    assert without_unique_columns(pa.table({**views, "few": np.arange(ROWS) % 7})) is True


@pytest.mark.parametrize("name", [*UNIQUE, *REPEATED, "seldom at random", "often in a part"])
def test_samples_say_what_all_rows_say_of_the_values_that_occur_three_times(name: str) -> None:
    more = {
        "seldom at random": pa.array(RNG.integers(0, ROWS // 2, ROWS)),
        "often in a part": pa.array(np.concatenate([np.arange(ROWS // 4) % 100, np.arange(ROWS - ROWS // 4)])),
    }
    values = {**UNIQUE, **REPEATED, **more}[name]
    found = repeated_columns(pa.RecordBatch.from_arrays([values], names=["v"]))
    if name == "lists":
        assert found == ["v.list.element"]
    else:
        is_repeated = name != "booleans" and 3 * pc.count_distinct(values).as_py() <= ROWS
        assert found == (["v"] if is_repeated else [])
