"""Lines of text files: cut as Spark cuts them, and each in one part of a file however it is divided."""

from __future__ import annotations

import gzip
import io
import re
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_txlog.datafiles.tasks.plans import Bins, in_parts, planned_files
from airflow_txlog.datafiles.tasks.rows_without_log import LinesScan
from airflow_txlog.datafiles.text_lines import TextFormat, encoding_named, lines_of
from airflow_txlog.storage import PLAIN, LocalStore, StoreReference
from tests.helpers.files import plan_of_files


def lines(data: bytes, text: TextFormat, start: int = 0, end: int | None = None, block: int = 100) -> list[str]:
    source = pa.PythonFile(io.BytesIO(data), mode="r")
    return [line for lines in lines_of(source, None, text, start, end, block) for line in lines.to_pylist()]


@given(
    pieces=st.lists(st.sampled_from(["a", "b", "\n", "\r", "\r\n", "é", " "]), max_size=25),
    cuts=st.lists(st.integers(0, 30), max_size=3),
    block=st.integers(1, 9),
)
def test_a_line_is_in_exactly_one_part_of_a_file(pieces: list[str], cuts: list[int], block: int) -> None:
    data = "".join(pieces).encode()
    expected = re.split(r"\r\n|\n|\r", data.decode())
    if not expected[-1]:
        expected.pop()
    ends = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    spans = list(zip(ends, [*ends[1:-1], None], strict=False)) or [(0, None)]
    found = [line for start, end in spans for line in lines(data, TextFormat(), start, end, block)]
    assert found == expected


def test_a_task_reads_the_part_of_a_file_that_is_its_work(tmp_path: Path) -> None:
    expected = [f"line {number}" for number in range(40)]
    (tmp_path / "f").write_text("head\n" + "\n".join(expected))
    (tmp_path / "f.gz").write_bytes(gzip.compress((tmp_path / "f").read_bytes()))
    task = LinesScan(
        bins=Bins(store=StoreReference(root="", access=PLAIN)), text=TextFormat(drops_header=True), kind="CSV"
    )
    for name in ("f", "f.gz"):
        plan = in_parts(plan_of_files({"path": name}), [3])
        parts = [list(task.rows_of(each)) for each in planned_files(plan, LocalStore(str(tmp_path)))]
        assert [line for part in parts for batch in part for line in batch.column(0).to_pylist()] == expected
        assert [bool(part) for part in parts] == [True, name == "f", name == "f"]


def test_headers_blanks_and_comments_are_no_lines() -> None:
    text = TextFormat(drops_blank=True, comment="#", drops_header=True)
    data = b"\xef\xbb\xbf\n \t\r\n#c\nhead\n1\n\x01\n 2\nhead\n"
    assert lines(data, text) == ["1", " 2", "head"]
    assert lines(b"#c\n", text) == []
    # A mark is one at the start of the file, also if only blank lines come before the header.
    assert lines(b"\n\n\xef\xbb\xbf\na\n", TextFormat(drops_blank=True, drops_header=True), block=1) == ["a"]
    assert lines(b"a|b\n|", TextFormat(line_end="|")) == ["a", "b\n"]
    assert lines(b"a\r\nb", TextFormat(is_whole=True)) == ["a\r\nb"]


def test_what_is_no_text_is_an_error() -> None:
    for data, text in ((b"\xff", TextFormat()), (b"\xe9", TextFormat(encoding="ascii"))):
        with pytest.raises(UnicodeDecodeError):
            lines(data, text)
    assert lines(b"\xe9", TextFormat(encoding="latin-1")) == ["é"]
    with pytest.raises(pa.ArrowException):
        lines("{}".encode("utf-16-le"), TextFormat(is_whole=True))


@pytest.mark.parametrize(
    ("name", "as_spark", "with_aliases"),
    [
        ("UTF-8", "utf-8", "utf-8"),
        ("us-ascii", "ascii", "ascii"),
        ("Iso-8859-1", "latin-1", "latin-1"),
        # Spark refuses these as INVALID_PARAMETER_VALUE.CHARSET, but for its legacy setting.
        ("UTF8", None, "utf-8"),
        ("ascii", None, "ascii"),
        ("latin1", None, "latin-1"),
        ("UTF-16", None, None),
        ("windows-1252", None, None),
        ("none", None, None),
    ],
)
def test_an_encoding_has_the_names_that_spark_knows(name: str, as_spark: str | None, with_aliases: str | None) -> None:
    assert encoding_named(name) == as_spark
    assert encoding_named(name, with_aliases=True) == with_aliases
