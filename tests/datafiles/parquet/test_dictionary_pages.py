"""How long the longest text of a dictionary is, from the dictionary's page alone."""

from __future__ import annotations

import io
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.parquet import decoded_sizes
from tests.helpers.depth import in_long

TEXTS = ["a", "", "é" * 40, "b" * 33] * 20


def _written(texts: list[str | None], **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    pq.write_table(pa.table({"n": list(range(len(texts))), "t": pa.array(texts, pa.string())}), file, **options)
    return file


def _chunks(file: io.BytesIO) -> list[Any]:
    metadata = pq.ParquetFile(file).metadata
    return [metadata.row_group(number).column(1) for number in range(metadata.num_row_groups)]


def longest_texts(file: io.BytesIO, chunks: list[Any]) -> list[int | None]:
    return decoded_sizes.longest_texts(pa.PythonFile(file, mode="r"), chunks)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "zstd"])
def test_the_longest_text_is_found_whatever_the_codec(codec: str, version: Any) -> None:
    file = _written(TEXTS, compression=codec, data_page_version=version, row_group_size=41)
    assert longest_texts(file, _chunks(file)) == [80, 80]


def test_what_pyarrow_calls_lz4_is_not_looked_at() -> None:
    file = _written(TEXTS, compression="lz4")
    assert longest_texts(file, _chunks(file)) == [None]


def test_texts_beside_the_dictionary_do_not_count() -> None:
    texts = ["short", *(f"{number:0300}" for number in range(9000)), "long" * 200]
    file = _written([*texts], dictionary_pagesize_limit=1 << 20)
    assert longest_texts(file, _chunks(file)) == [300]


def test_a_dictionary_without_a_text_has_length_zero() -> None:
    file = _written([None, None])
    assert longest_texts(file, _chunks(file)) == [0]


def test_a_dictionary_that_is_too_large_is_not_looked_at() -> None:
    file = _written(["x" * (20 << 20)], compression="zstd", dictionary_pagesize_limit=1 << 30)
    assert longest_texts(file, _chunks(file)) == [None]


def test_chunks_that_share_a_page_are_looked_at_so_many_times_only() -> None:
    """Else a page of a few bytes, decoded for each of ten thousand chunks, takes hours."""
    file = _written([f"{number:05}" for number in range(100_000)], dictionary_pagesize_limit=1 << 30)
    (chunk,) = _chunks(file)
    found = longest_texts(file, [chunk] * 41)
    assert found.count(5) == 40
    assert found.count(None) == 1


def test_pages_near_to_each_other_are_not_read_all_at_once() -> None:
    texts = [f"{number:0100000}" for number in range(400)]
    file = _Reads(_written([*texts], compression="none", row_group_size=4).getvalue())
    assert longest_texts(file, _chunks(file)) == [100_000] * 100
    assert file.longest <= 16 << 20


class _Reads(io.BytesIO):
    longest = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.longest = max(self.longest, size or 0)
        return super().read(size)


@pytest.mark.parametrize("codec", ["none", *in_long("damaged pages of two codecs", "snappy", "zstd")])
def test_a_damaged_page_never_has_a_shorter_text_than_arrow_reads(codec: str) -> None:
    sound = _written([f"text {number}" * (number % 9) for number in range(50)], compression=codec).getvalue()
    (chunk,) = _chunks(io.BytesIO(sound))
    start, end = chunk.dictionary_page_offset, chunk.data_page_offset
    chance, judged = random.Random(7), 0
    for _ in range(3000):
        data = bytearray(sound)
        data[chance.randrange(start, end)] = chance.randrange(256)
        (longest,) = longest_texts(io.BytesIO(data), [chunk])
        try:
            read = pq.read_table(io.BytesIO(data), columns=["t"])["t"].cast(pa.binary()).to_pylist()
        except (OSError, pa.ArrowException):
            continue
        if longest is not None:
            judged += 1
            assert longest >= max(map(len, read))
    assert judged > 100
