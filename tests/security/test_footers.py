"""No footer of a checkpoint or a data file ends the process: where Arrow would abort, an error comes first."""

from __future__ import annotations

import contextlib
import io
import pickle
import random
import struct
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.parquet import footers
from airflow_txlog.datafiles.parquet.footers import check_footer
from airflow_txlog.datafiles.parquet.reading import open_data_file
from airflow_txlog.datafiles.parquet.thrift import Compact
from airflow_txlog.engine import Table
from airflow_txlog.errors import CorruptDataFile
from tests.helpers.files import data_file
from tests.helpers.paths import ROOT
from tests.helpers.rows import make_table

ROWS = pa.table({"id": [1, 2, None], "list": [[1], [2, 3], None]})


def written(rows: pa.Table = ROWS) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, row_group_size=2, store_schema=False, compression="snappy")
    return buffer.getvalue()


def footer_of(data: bytes) -> int:
    """Where the footer begins."""
    return len(data) - 8 - int(struct.unpack("<I", data[-8:-4])[0])


def with_long_histogram(data: bytes) -> bytes:
    """A file with a histogram of one level more than its column has, in an otherwise whole footer."""
    start = footer_of(data)
    for at in range(start, len(data) - 8):
        # A list of two or three 64-bit numbers in the compact protocol, made a list of one more.
        if data[at] in (0x26, 0x36):
            longer = data[:at] + bytes([data[at] + 0x10]) + data[at + 1 : at + 2] + b"\0" + data[at + 2 :]
            longer = longer[:-8] + struct.pack("<I", len(longer) - 8 - start) + b"PAR1"
            try:
                refused(longer)
            except ValueError as error:
                if "histogram" in str(error):
                    return longer
    raise AssertionError("no histogram found")


def refused(data: bytes) -> None:
    try:
        parquet = pq.ParquetFile(pa.BufferReader(data))
    except (OSError, pa.ArrowException):
        return
    check_footer(io.BytesIO(data), parquet)


@pytest.mark.parametrize("compression", ["snappy", "zstd", "none"])
@pytest.mark.parametrize("version", ["1.0", "2.6"])
def test_a_whole_footer_passes(compression: str, version: str) -> None:
    rows = pa.table({f"c{number}": [[{"a": "x", "b": None}], None] for number in range(20)})
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, compression=compression, version=version, row_group_size=1)
    check_footer(buffer, pq.ParquetFile(pa.BufferReader(buffer.getvalue())))
    assert buffer.tell() == 0


def test_a_bad_footer_is_refused_each_time_and_few_good_ones_are_remembered() -> None:
    data = with_long_histogram(written())
    for _ in range(2):
        with pytest.raises(ValueError, match="histogram"):
            refused(data)
    for number in range(100):
        buffer = io.BytesIO()
        pq.write_table(pa.table({f"c{number}": ["a"]}), buffer)
        parquet = pq.ParquetFile(pa.BufferReader(buffer.getvalue()))
        assert check_footer(buffer, parquet) == check_footer(buffer, parquet) == {(0, 0): 1}
    assert len(footers._checked) <= 64


def test_a_data_file_whose_footer_would_end_the_process_is_damaged(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", ROWS)
    [file] = (tmp_path / "t").glob("*.parquet")
    file.write_bytes(with_long_histogram(written()))
    with pytest.raises(CorruptDataFile):
        table.to_arrow()
    # Its size shows that already. The footer alone does too.
    with pytest.raises(CorruptDataFile, match="histogram"), open_data_file(data_file(file)):
        pass


def test_a_checkpoint_whose_footer_would_end_the_process_is_passed_over(tmp_path: Path) -> None:
    make_table(tmp_path / "t", ROWS).checkpoint()
    [checkpoint] = (tmp_path / "t" / "_delta_log").glob("*.checkpoint*.parquet")
    checkpoint.write_bytes(with_long_histogram(checkpoint.read_bytes()))
    assert Table.open(str(tmp_path / "t")).snapshot().num_files == 1


@pytest.mark.parametrize("item", [1, 3, 7])
def test_a_list_that_claims_more_items_than_there_are_bytes_is_refused_at_once(item: int) -> None:
    """Booleans, bytes and doubles, which are passed over without being looked at."""
    footer = bytes([0x19, 0xF0 | item, *[0xFF] * 8, 0x0F]) + bytes(20)
    data = b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1"
    with pytest.raises(ValueError, match="ends within a field"):
        check_footer(io.BytesIO(data), pq.ParquetFile(pa.BufferReader(written())))


_ASK_FOR_EVERYTHING = """
import io, pickle, sys
import pyarrow as pa, pyarrow.parquet as pq
from airflow_txlog.datafiles.parquet.footers import check_footer
for one in pickle.load(sys.stdin.buffer):
    try:
        parquet = pq.ParquetFile(pa.BufferReader(one))
        check_footer(io.BytesIO(one), parquet)
        for group in range(parquet.metadata.num_row_groups):
            for index in range(parquet.metadata.num_columns):
                parquet.metadata.row_group(group).column(index).to_dict()
    except Exception:
        pass
print("alive")
"""


def assert_harmless(files: list[bytes]) -> None:
    """That none ends the process, which is one of their own."""
    done = subprocess.run(
        [sys.executable, "-c", _ASK_FOR_EVERYTHING],
        input=pickle.dumps(files), capture_output=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, b"alive\n"), done.stderr[-500:]


def test_every_chunk_of_a_footer_that_passes_can_be_asked_for_anything() -> None:
    """Three thousand footers with one to three bytes changed."""
    chance, good = random.Random(11), written()
    start, damaged = footer_of(good), []
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(start, len(data) - 8)] = chance.randrange(256)
        damaged.append(bytes(data))
    assert_harmless(damaged)


# A field whose number Thrift keeps 16 bits of: 16, which is that of size statistics. And size statistics whose first
# list says that its items are texts: Thrift reads numbers, and then a list of five, where a text would be passed over.
_NUMBERED_BEYOND = b"\x0c\xa0\x80\x08"
_OF_TEXTS = bytes([0x29, 0x28, 0, 7, 0x19, 0x56, 0, 0, 0, 0, 0, 0])


def _statistics(data: bytes) -> list[tuple[int, int]]:
    """Where a struct that may be size statistics has its header, and where it ends."""
    found = []
    for at in range(footer_of(data), len(data) - 8):
        if data[at] & 0x0F == 12 and data[at] >> 4:
            struct_reader = Compact(data[at + 1 : -8])
            with contextlib.suppress(ValueError, IndexError):
                struct_reader.skip(12)
                found.append((at, at + 1 + struct_reader.position))
    return found


def test_a_footer_that_arrow_would_read_in_another_way_is_refused() -> None:
    good, long = written(), with_long_histogram(written())
    files = [(footer_of(long), long[:at] + _NUMBERED_BEYOND + long[at + 1 :]) for at, _ in _statistics(long)]
    files += [(footer_of(good), good[: at + 1] + _OF_TEXTS + good[end:]) for at, end in _statistics(good)]
    assert_harmless([data[:-8] + struct.pack("<I", len(data) - 8 - start) + b"PAR1" for start, data in files])
