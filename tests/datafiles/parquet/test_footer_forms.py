"""Footers that are read by the form of another one: their statistics are those that Arrow reads."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.parquet.footer_forms import FooterForm
from airflow_txlog.datafiles.parquet.footer_statistics import are_plain, chunks_of, chunks_of_form, leaves_of_footer
from airflow_txlog.datafiles.parquet.reading import DataFile, open_data_file
from airflow_txlog.datafiles.parquet.statistics import StatisticsCollector
from airflow_txlog.datafiles.tasks.small_files import KnownForms
from airflow_txlog.locations import PLAIN
from airflow_txlog.storage import open_store
from tests.helpers.depth import depth

VALUES: dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    "byte": (pa.int8(), lambda r: r.randint(-128, 127)),
    "int": (pa.int32(), lambda r: r.randint(-(2**31), 2**31 - 1)),
    "long": (pa.int64(), lambda r: r.choice([0, -1, 2**63 - 1, r.randint(-100, 100)])),
    "float": (pa.float32(), lambda r: r.choice([0.5, -0.0, float("inf"), r.uniform(-1, 1)])),
    "double": (pa.float64(), lambda r: r.choice([0.0, -0.0, r.uniform(-1e9, 1e9)])),
    "text": (pa.string(), lambda r: r.choice(["", "é", "x" * 39, "y" * 200, "z" * 2_000, "a\nb", str(r.random())])),
    "bytes": (pa.binary(), lambda r: r.randbytes(r.randint(0, 50))),
    "flag": (pa.bool_(), lambda r: r.random() < 0.5),
    "day": (pa.date32(), lambda r: dt.date(1600, 1, 1) + dt.timedelta(days=r.randint(0, 10**5))),
    "instant": (pa.timestamp("us", "UTC"), lambda r: dt.datetime(2024, 1, 1) + dt.timedelta(microseconds=r.random())),
    "wall": (pa.timestamp("ms"), lambda r: dt.datetime(1969, 1, 1) + dt.timedelta(seconds=r.randint(0, 10**8))),
    "price": (pa.decimal128(9, 2), lambda r: decimal.Decimal(r.randint(-(10**8), 10**8)) / 100),
    "long_price": (pa.decimal128(38, 10), lambda r: decimal.Decimal(r.randint(-(10**30), 10**30)) / 10**10),
}
FEW = ["int", "double", "day", "wall"]
NESTED = pa.struct([("n", pa.int64()), ("words", pa.list_(pa.string()))])


def rows_of(chance: random.Random) -> pa.Table:
    size = chance.choice([0, 0, 1, 4, 300])

    def column(kind: pa.DataType, value: Callable[[random.Random], Any]) -> pa.Array:
        # A column of nulls alone has no bounds, and so another form.
        share = chance.choice([0, 0.5])
        return pa.array(
            [value(chance), *(None if chance.random() < share else value(chance) for _ in range(size))], kind
        )

    columns = {name: column(kind, value) for name, (kind, value) in VALUES.items()}
    columns["nested"] = column(NESTED, lambda r: {"n": r.randint(-5, 300), "words": ["w"] * r.randint(0, 3)})
    return pa.table(columns)


def arrow(rows: pa.Table, path: Path) -> None:
    pq.write_table(rows, path)


def arrow_with_indexes(rows: pa.Table, path: Path) -> None:
    pq.write_table(rows, path, write_page_index=True, store_schema=False, compression="zstd", use_dictionary=False)


def large(rows: pa.Table, path: Path) -> None:
    """Of such a file the end is read."""
    blobs = pa.array([random.Random(path.name).randbytes(70_000) for _ in range(rows.num_rows)], pa.binary())
    pq.write_table(rows.append_column("blob", blobs).slice(0, 2), path)


def by_pandas(rows: pa.Table, path: Path) -> None:
    frame = pd.DataFrame({name: rows[name].to_pandas() for name in ("double", "text")})
    frame.to_parquet(path)


def by_polars(rows: pa.Table, path: Path) -> None:
    """It chooses the encoding of each column by its values, and so one of several forms."""
    pl.from_arrow(rows.select(FEW).slice(0, 5)).write_parquet(path)


def by_duckdb(rows: pa.Table, path: Path) -> None:
    duckdb.from_arrow(rows.select(FEW).slice(0, 5)).write_parquet(str(path))


@pytest.mark.seeded
@pytest.mark.parametrize("write", [arrow, arrow_with_indexes, large, by_pandas, by_polars, by_duckdb])
def test_statistics_by_a_form_are_those_that_arrow_reads(
    tmp_path: Path, write: Callable[[pa.Table, Path], None]
) -> None:
    chance, store = random.Random(5), open_store(str(tmp_path), PLAIN)
    forms: KnownForms[Any] = KnownForms(reads_ends=True)
    by_form = 0
    for number in range(depth(80, 300)):
        path = tmp_path / f"{number}.parquet"
        write(rows_of(chance), path)
        file = DataFile(store=store, path=path.name, size_bytes=path.stat().st_size)
        found = forms.find(file)
        with open_data_file(file) as parquet:
            leaves, schema = leaves_of_footer(parquet), parquet.schema_arrow
            of_arrow = StatisticsCollector(schema).of_footer(parquet.metadata.num_rows, chunks_of(parquet), leaves)
            if found is None and forms.wants_more:
                forms.learn(parquet, "facts", lambda footer, at=parquet, of=leaves: are_plain(at, footer, of))  # type: ignore[misc]
        if found is not None:
            by_form += 1
            chunks = chunks_of_form(found.footer)
            assert StatisticsCollector(schema).of_footer(found.footer.num_rows, chunks, leaves) == of_arrow
    assert by_form > depth(12, 45)


def footer_bytes(rows: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, **options)
    return sink.getvalue().to_pybytes()


def test_texts_of_any_length_and_pandas_notes_have_one_form() -> None:
    def file(rows: int, text: str) -> bytes:
        note = {b"pandas": b'{"stop": %d}' % rows}
        return footer_bytes(pa.table({"text": [text] * rows}).replace_schema_metadata(note), store_schema=False)

    form, _ = FooterForm.of(pa.BufferReader(file(1, "a")))
    for rows, text in ((5, "b"), (1000, "c" * 127), (3, "d" * 128), (3, "e" * 4_000)):
        footer = form.read(file(rows, text))
        assert footer is not None
        assert (footer.num_rows, footer.statistics(0).bounds) == (rows, (text.encode(), text.encode()))


def test_a_footer_with_other_columns_notes_or_row_groups_has_another_form() -> None:
    rows = pa.table({"id": [1, 2], "text": ["a", "b"]})
    form, _ = FooterForm.of(pa.BufferReader(footer_bytes(rows)))
    assert form.read(footer_bytes(rows.slice(1))) is not None
    others = [
        rows.rename_columns(["id", "next"]),
        rows.set_column(0, "id", rows["id"].cast(pa.int32())),
        rows.select(["id"]),
        rows.replace_schema_metadata({"note": "x"}),
    ]
    assert [form.read(footer_bytes(other)) for other in others] == [None] * 4
    assert form.read(footer_bytes(rows, row_group_size=1)) is None
    with pytest.raises(ValueError, match="row group"):
        FooterForm.of(pa.BufferReader(footer_bytes(rows, row_group_size=1)))


@pytest.mark.parametrize(
    ("by", "is_taken"), [("parquet-cpp-arrow version 9.0.0", True), ("parquet-cpp version 1.2.0", False)]
)
def test_bounds_that_arrow_takes_for_their_values_alone_are_not_read_by_a_form(by: str, is_taken: bool) -> None:
    """Of such a writer Arrow takes equal bounds of texts, and no others: one file with them proves nothing."""
    data = footer_bytes(pa.table({"text": ["a", "a"]}))
    made_by = pq.ParquetFile(pa.BufferReader(data)).metadata.created_by.encode()
    parquet = pq.ParquetFile(pa.BufferReader(data.replace(made_by, by.encode().ljust(len(made_by)))))
    _, footer = FooterForm.of(pa.BufferReader(data))
    assert are_plain(parquet, footer, leaves_of_footer(parquet)) is is_taken


def test_a_field_of_another_type_in_the_place_of_a_number_is_part_of_the_form() -> None:
    """Thrift would take more bytes for it than a number has, and all that follows for something else."""
    metadata = b"\x15\x04\x46\x02\x16\x10\x00"

    def file(field: bytes) -> bytes:
        chunk = b"\x3c" + metadata + field + b"\x00"
        footer = b"\x36\x02\x19\x1c\x19\x1c" + chunk + b"\x26\x02\x00\x00"
        return b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"

    number, text = b"\x25", b"\x28"
    form, _ = FooterForm.of(pa.BufferReader(file(number + b"\x00")))
    assert form.read(file(number + b"\x01")) is not None
    form, _ = FooterForm.of(pa.BufferReader(file(text + b"\x00")))
    assert form.read(file(text + b"\x00")) is not None
    assert form.read(file(text + b"\x01")) is None
