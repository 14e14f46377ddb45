"""Names in a footer that look like something else: ordinary files are read, and what is ambiguous is not."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.jobs.source.footers import NotSpark, columns_of_footer, without_void


def schema_of(columns: dict[str, Any], **options: Any) -> str:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, **options)
    return str(without_void(columns_of_footer(pq.ParquetFile(file))))


def test_a_name_that_looks_like_an_annotation_is_a_name() -> None:
    columns = {
        "sizes (cm)": [[1]],
        "price (EUR)": [{"a b": 1, "c (List)": [{"x.y": [1]}]}],
        "of (Map)": pa.array([[("k", {"sum (eur)": 1})]], pa.map_(pa.string(), pa.struct({"sum (eur)": pa.int64()}))),
        "c;d {": [[[1]]],
        "é": [1],
    }
    assert schema_of(columns) == (
        "struct<sizes (cm):array<long>,price (EUR):struct<a b:long,c (List):array<struct<x.y:array<long>>>>,"
        "of (Map):map<string,struct<sum (eur):long>>,c;d {:array<array<long>>,é:long>"
    )


def test_a_name_with_a_dot_is_in_the_way_of_int96_only_where_it_is_that_of_a_member() -> None:
    times = pa.array([1], pa.timestamp("us"))
    as_int96 = {"use_deprecated_int96_timestamps": True}
    assert schema_of({"user.id": [1], "t": times}, **as_int96) == "struct<user.id:long,t:timestamp>"
    inside = pa.StructArray.from_arrays([times], ["id"])
    with pytest.raises(NotSpark, match="INT96"):
        schema_of({"t.id": [1], "t": inside}, **as_int96)
