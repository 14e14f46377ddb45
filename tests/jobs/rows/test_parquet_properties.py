"""delta.parquet.compression.codec and delta.parquet.format.version: every Parquet file of a table obeys them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.errors import InvalidProperty
from tests.helpers.jobs import committed, error_of, files_on_disk, rows, run
from tests.helpers.rows import make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CODEC, VERSION = "delta.parquet.compression.codec", "delta.parquet.format.version"
SOURCE = {"sql": "SELECT id, DATE'2024-01-01' AS day, 'new' AS name, 0.5D AS amount FROM range(100, 140)"}


def written_as(path: Path) -> set[tuple[str, str]]:
    """Codec and version of the data pages of every column chunk in a Parquet file."""
    metadata, data = pq.read_metadata(path), path.read_bytes()
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    chunks = [group.column(index) for group in groups for index in range(metadata.num_columns)]
    # A page header is Thrift in its compact form; its first field is the kind of page: 0 is DATA_PAGE, 3 DATA_PAGE_V2.
    kinds = {b"\x15\x00": "1", b"\x15\x06": "2"}
    return {(c.compression, kinds[data[c.data_page_offset : c.data_page_offset + 2]]) for c in chunks}


def set_properties(table: Table, **values: str) -> None:
    """As another engine would: without a look at the values."""
    tx = table.begin()
    metadata = table.snapshot().metadata
    names = {"codec": CODEC, "version": VERSION}
    configuration = {**metadata.configuration, **{names[key]: value for key, value in values.items()}}
    tx.set_metadata(msgspec.structs.replace(metadata, configuration=configuration), is_checked=True)
    tx.commit("SET TBLPROPERTIES")


@pytest.mark.parametrize(
    ("text", "arrow"),
    [
        ("uncompressed", "NONE"),
        ("None", "NONE"),
        ("SNAPPY", "SNAPPY"),
        ("gzip", "GZIP"),
        ("lz4_raw", "LZ4"),
        ("zstd", "ZSTD"),
    ],
)
def test_the_codecs_of_the_protocol_are_known(text: str, arrow: str) -> None:
    assert TableProperties({CODEC: text}, "t").parquet.codec == arrow


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (CODEC, "lzo"),
        (CODEC, "lz4"),
        (CODEC, "brotli"),
        (CODEC, ""),
        (VERSION, "1.1.0"),
        (VERSION, "2"),
        (VERSION, "3.0.0"),
    ],
)
def test_what_this_engine_does_not_write_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(InvalidProperty, match=name) as caught:
        TableProperties({name: value}, "t").validate()
    assert caught.value.value == value


@pytest.mark.parametrize("version", ["1.0.0", "2.12.0"])
@pytest.mark.parametrize("policy", ["classic", "v2"])
def test_checkpoints_obey_too(tmp_path: Path, version: str, policy: str) -> None:
    """Protocol: "writers SHOULD use for new Parquet data and checkpoint files"."""
    properties = {"delta.checkpointPolicy": policy, CODEC: "gzip", VERSION: version}
    table = make_table(tmp_path / "t", rows(3), properties=properties)
    table.checkpoint()
    found = list((tmp_path / "t" / "_delta_log").rglob("*.parquet"))
    assert len(found) == (1 if policy == "classic" else 2)
    assert set().union(*map(written_as, found)) == {("GZIP", version[0])}


@pytest.mark.spark
def test_every_job_writes_files_as_the_table_says(tmp_path: Path, spark: SparkSession) -> None:
    folder = tmp_path / "t"
    table = make_table(folder, rows(40), properties={"delta.enableChangeDataFeed": "true"})
    seen = files_on_disk(table)

    def new_files() -> set[tuple[str, str]]:
        nonlocal seen
        before, seen = seen, files_on_disk(table)
        found = [folder / path for path in seen - before if path.endswith(".parquet") and not path.startswith("_txlog")]
        assert found
        return set().union(*map(written_as, found))

    # Where the table does not say, few new rows are SNAPPY, and a rewritten file keeps its codec.
    committed(run(spark, "write", table, source=SOURCE, mode="append"))
    assert new_files() == {("SNAPPY", "1")}
    set_properties(table, codec="gzip", version="2.12.0")
    committed(run(spark, "write", table, source=SOURCE, mode="append"))
    assert new_files() == {("GZIP", "2")}
    # Copies, new images and change files.
    committed(run(spark, "update", table, set={"amount": "1.5"}, predicate="id IN (3, 101)"))
    assert new_files() == {("GZIP", "2")}
    set_properties(table, codec="uncompressed", version="1.0.0")
    committed(run(spark, "optimize", table))
    assert new_files() == {("UNCOMPRESSED", "1")}
    assert table.to_arrow().num_rows == 120


@pytest.mark.spark
def test_a_table_that_asks_for_an_unknown_codec_is_refused_before_anything_is_staged(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = make_table(tmp_path / "t", rows(4), rows(4))
    set_properties(table, codec="lzo")
    before = files_on_disk(table)
    merge = {"source": SOURCE, "on": "t.id = s.id", "clauses": [{"when": "matched", "then": "update", "set": "*"}]}
    for operation, arguments in {
        "write": {"source": SOURCE, "mode": "append"},
        "delete": {"predicate": "id = 1"},
        "optimize": {},
        "merge": merge,
    }.items():
        error = error_of(run(spark, operation, table, **arguments))
        assert (error["type"], CODEC in error["message"]) == ("InvalidProperty", True), (operation, error)
    assert files_on_disk(table) == before
