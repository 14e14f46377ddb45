"""Files of JSON on a disk with several objects where Spark reads one, without Spark."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from airflow_txlog.contract.operations import FileView
from airflow_txlog.errors import InvalidInput
from airflow_txlog.jobs.source import json_on_disk
from airflow_txlog.jobs.source.json_on_disk import check_objects_on_disk

LINE = b'{"a": 1}\n'
# More than the first MiB, with two objects in the last line.
LARGE = LINE * 120_000 + b'{"a": 1}{"a": 2}\n'


def check(path: Path, data: bytes, options: dict[str, str] | None = None) -> None:
    path.write_bytes(data)
    view = FileView(format="json", path=f"{path}", options=options or {})
    check_objects_on_disk(view, [path.with_name("missing.json").as_uri(), path.as_uri()])


def test_the_last_line_of_a_file_is_looked_at(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"/of a\.json has several JSON objects in one line") as found:
        check(tmp_path / "of a.json", LARGE)
    assert found.value.file == f"{tmp_path}/of a.json"


def test_of_a_large_or_a_compressed_file_the_first_lines_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(tmp_path / "a.json.gz", gzip.compress(LARGE))
    with pytest.raises(InvalidInput):
        check(tmp_path / "b.json.gz", gzip.compress(LARGE[-30:]))
    monkeypatch.setattr(json_on_disk, "_MOST_BYTES", len(LARGE) - 1)
    check(tmp_path / "a.json", LARGE)
    with pytest.raises(InvalidInput):
        check(tmp_path / "b.json", LARGE[-30:] + LARGE)


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (LINE * 2, {}),
        (LINE.replace(b"\n", b"\r") * 2, {}),
        (b'[{"a": 1},\n{"a": 2}]', {"multiLine": "true"}),
        (LARGE, {"mode": "PERMISSIVE"}),
        (LARGE, {"mode": "DROPMALFORMED"}),
        (LARGE, {"columnNameOfCorruptRecord": "_bad"}),
        (b'{"a": 1} /* }{ */\n', {"allowComments": "true"}),
        (LARGE.decode().encode("utf-16-le"), {"encoding": "UTF-16LE"}),
        (b'{"a": "' + b"x" * 2_000_000 + b'}{"}', {}),
        (b"\x1f\x8b no gzip }{", {}),
    ],
)
def test_what_spark_reads_as_a_whole_or_was_asked_to_read_passes(
    tmp_path: Path, data: bytes, options: dict[str, str]
) -> None:
    check(tmp_path / "a.json", data, options)
    check(tmp_path / "a.json.snappy", data, options)
