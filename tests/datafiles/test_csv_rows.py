"""Which lines of CSV have certain values; tests/jobs/source/test_csv_here.py compares them with Spark's."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_txlog.datafiles.text_lines import CsvFormat, Uncertain, UnfitRow, rows_of_csv

COLUMNS = pa.schema([("t", pa.string()), ("n", pa.int32())])


def rows(lines: list[str], **csv: str) -> list[tuple[object, object]]:
    found = rows_of_csv(pa.array(lines), COLUMNS, CsvFormat(**csv))
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))


def test_values_without_or_in_whole_quotes_are_certain() -> None:
    assert rows(["a,1", '"b,c","2"', ",", '"",']) == [("a", 1), ("b,c", 2), (None, None), (None, None)]
    assert rows(["NA;-7", '"NA";', ";NA"], delimiter=";", null="NA") == [(None, -7), (None, None), (None, None)]


def test_a_doubled_quote_is_a_quote_if_that_is_the_escape() -> None:
    lines = ['"6"" nails",1', '"""a,""",2', '"""","3"', '"",4', "a\\b,5", '"a\\",6']
    expected = [('6" nails', 1), ('"a,"', 2), ('"', 3), (None, 4), ("a\\b", 5), ("a\\", 6)]
    assert rows(lines, escape='"') == expected
    for line in ('"a"b",1', 'a""b,1', '"a"",1', ' "a""b",1', '"a\\"b",1'):
        with pytest.raises(Uncertain, match="quote"):
            rows([line], escape='"')


def test_a_line_that_ends_inside_of_quotes_is_an_error_unless_spark_s_own_reading_is_chosen() -> None:
    columns = pa.schema([("t", pa.string()), ("u", pa.string())])
    for escape, line in ((None, 'x,"a'), ('"', 'x,"a'), ('"', 'x,"a\\b')):
        with pytest.raises(UnfitRow):
            rows_of_csv(pa.array([line]), columns, CsvFormat(escape=escape, is_strict=True))
    for escape, line in (("\\", '1,"6"",z'), ("\\", 'x,"a""'), (None, 'x,"a\\b')):
        with pytest.raises(Uncertain):
            rows_of_csv(pa.array([line]), columns, CsvFormat(escape=escape, is_strict=True))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('"a""b",1', "quote"),
        ('a"b,1', "quote"),
        ('"a" ,1', "quote"),
        ('"a,1', "quote"),
        ("a\\b,1", "backslash"),
        *((f"a{character}b,1", "control") for character in "\x00\x08\x0b\x0c\r\x1f"),
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


@pytest.mark.parametrize(
    ("kind", "certain", "uncertain"),
    [
        # Arrow takes most of the uncertain ones for values, and Spark does not, or for others.
        (pa.int64(), ["0", "-007", "9223372036854775807"], ["0x1F", "-0x1", "1.0", "9223372036854775808", "٣"]),
        (pa.float32(), ["1.5", "1E-5", "3.4e8"], ["nan", "1e39", "1e10", "5.", ".5", "1f"]),
        (
            pa.float64(),
            ["-0.0", "1E-5", "7", "1e10", "1e-05"],
            ["NaN", "inf", "-Infinity", "1e400", "1e100", ".5", "5."],
        ),
        (pa.bool_(), ["true", "false"], ["True", "FALSE", "1", "0", "yes"]),
        (pa.date32(), ["1000-01-01", "2024-02-29", "9999-12-31"], ["0999-12-31", "0000-01-01", "2024-02-30"]),
        (pa.date32(), [], ["2024-1-5", "20240105", "10000-01-01", "2024-01-05T00:00:00", " 2024-01-05"]),
        (pa.decimal128(6, 2), ["12.50", "-1", "9999.99", "0012.3"], ["1e2", "+1", ".5", "1.", "12345.6", "1.230"]),
        (pa.decimal128(2, 2), ["0.25"], ["10.0", "1.250"]),
        (pa.decimal128(3, 0), ["123"], ["123.0", "1234"]),
    ],
    ids=str,
)
def test_a_number_a_date_and_a_boolean_are_certain_in_one_spelling(
    kind: pa.DataType, certain: list[str], uncertain: list[str]
) -> None:
    columns = pa.schema([("v", kind)])
    if certain:
        found = rows_of_csv(pa.array(certain), columns, CsvFormat())
        assert found.column(0).equals(pa.array(certain).cast(kind))
    for text in uncertain:
        with pytest.raises(Uncertain, match="column 'v' has a value"):
            rows_of_csv(pa.array([*certain, text]), columns, CsvFormat())


@pytest.mark.parametrize("line", ['"",1', 'a,""', ',""'])
def test_an_empty_text_in_quotes_is_certain_only_where_it_is_the_null(line: str) -> None:
    with pytest.raises(Uncertain, match="empty value in quotes"):
        rows([line], null="NA")
