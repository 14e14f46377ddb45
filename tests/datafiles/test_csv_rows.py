"""Which lines of CSV have certain values; tests/jobs/source/test_csv_here.py compares them with Spark's."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_txlog.datafiles.csv_rows import CsvFormat, Uncertain, rows_of_csv

COLUMNS = pa.schema([("t", pa.string()), ("n", pa.int32())])


def rows(lines: list[str], **csv: str) -> list[tuple[object, object]]:
    found = rows_of_csv(pa.array(lines), COLUMNS, CsvFormat(**csv))
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))


def test_values_without_or_in_whole_quotes_are_certain() -> None:
    assert rows(["a,1", '"b,c","2"', ",", '"",']) == [("a", 1), ("b,c", 2), (None, None), (None, None)]
    assert rows(["NA;-7", '"NA";', ";NA"], delimiter=";", null="NA") == [(None, -7), (None, None), (None, None)]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('"a""b",1', "quote"),
        ('a"b,1', "quote"),
        ('"a" ,1', "quote"),
        ('"a,1', "quote"),
        ("a\\b,1", "backslash"),
        ("a\x00,1", "control"),
        ("\ufeffa,1", "byte order mark"),
        ("qz", "another number of values"),
        ("a,1,2", "another number of values"),
        ("a, 1", "column 'n'"),
        ("a,+1", "column 'n'"),
        ("a,2147483648", "column 'n'"),
        ("a,1.0", "column 'n'"),
    ],
)
def test_a_line_that_spark_may_read_in_another_way_is_refused_without_its_value(line: str, why: str) -> None:
    with pytest.raises(Uncertain) as caught:
        rows(["ok,1", line])
    assert why in caught.value.args[0]
    assert line not in str(caught.value)


def test_an_empty_text_in_quotes_is_certain_only_where_it_is_the_null() -> None:
    with pytest.raises(Uncertain, match="empty value in quotes"):
        rows(['"",1'], null="NA")
