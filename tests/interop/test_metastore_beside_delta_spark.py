"""delta-spark and we on one Hive Metastore: each finds by name what the other has registered."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_txlog.catalogs.describe import describe
from airflow_txlog.catalogs.hive import HiveCatalog
from airflow_txlog.engine import Table
from airflow_txlog.errors import NotADeltaTable
from tests.helpers.delta_spark import DeltaSpark, jars, running
from tests.helpers.metastore import Metastore
from tests.helpers.rows import append

pytestmark = [pytest.mark.spark, pytest.mark.long("delta-spark in a JVM of its own, with a metastore in another")]


@pytest.fixture(scope="module")
def delta(metastore: Metastore) -> Iterator[DeltaSpark]:
    """delta-spark whose catalog is the metastore."""
    if not jars():
        pytest.skip("delta-spark's jars are not here: run tools/ensure_delta_spark.sh, or set TXLOG_DELTA_JARS")
    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.hive.metastore.uris": f"thrift://{metastore.host}:{metastore.port}",
    }
    with running(settings) as child:
        yield child


@pytest.fixture
def catalog(metastore: Metastore) -> HiveCatalog:
    return HiveCatalog("hive_test", [(metastore.host, metastore.port)])


@pytest.fixture
def database(delta: DeltaSpark, tmp_path: Path) -> str:
    name = f"lake_{uuid.uuid4().hex}"
    delta.run(f"CREATE DATABASE {name} LOCATION '{tmp_path}/{name}.db'")
    return name


def test_delta_spark_reads_and_writes_by_name_what_we_have_registered(
    delta: DeltaSpark, catalog: HiveCatalog, database: str, tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.int64()), ("Day", pa.string())])
    table = Table.create(str(tmp_path / "ours"), schema, ["Day"], {"delta.columnMapping.mode": "name"})
    append(table, [{"id": 1, "Day": "a"}, {"id": 2, "Day": "b"}])
    catalog.register(describe(f"{database}.ours", table.snapshot()))
    assert delta.sql(f"SELECT id FROM {database}.ours WHERE Day = 'b'") == [{"id": 2}]
    delta.run(f"INSERT INTO {database}.ours VALUES (3, 'c')", f"DELETE FROM {database}.ours WHERE id = 1")
    assert sorted(table.to_arrow()["id"].to_pylist()) == [2, 3]
    # What the catalog has of us stays, and is right still.
    entry = catalog.find(f"{database}.ours")
    assert entry.uri == str(tmp_path / "ours")
    assert entry.properties["txlog.table_id"] == table.snapshot().metadata.id
    # After a new column, too.
    delta.run(f"ALTER TABLE {database}.ours ADD COLUMNS (note STRING)")
    assert catalog.update(describe(f"{database}.ours", table.snapshot()))
    assert delta.sql(f"SELECT note FROM {database}.ours WHERE id = 3") == [{"note": None}]


@pytest.mark.parametrize("field", ["a b", "a:b", "größe", "a,b>"])
def test_delta_spark_reads_by_name_a_table_with_a_field_of_any_name(
    delta: DeltaSpark, catalog: HiveCatalog, database: str, tmp_path: Path, field: str
) -> None:
    """Spark parses the types of all columns of an entry, although it reads them from the log."""
    kind = pa.struct([(field, pa.int32())])
    table = Table.create(
        str(tmp_path / "odd"), pa.schema([("id", pa.int64()), ("s", kind)]), [], {"delta.columnMapping.mode": "name"}
    )
    append(table, [{"id": 1, "s": {field: 7}}])
    catalog.register(describe(f"{database}.odd", table.snapshot()))
    assert delta.sql(f"SELECT s.`{field}` AS found FROM {database}.odd") == [{"found": 7}]


@pytest.mark.parametrize("where", ["managed", "external"])
def test_a_table_that_delta_spark_has_registered_is_at_its_real_place(
    delta: DeltaSpark, catalog: HiveCatalog, database: str, tmp_path: Path, where: str
) -> None:
    place = f" LOCATION '{tmp_path}/theirs'" if where == "external" else ""
    delta.run(
        f"CREATE TABLE {database}.theirs (id BIGINT) USING DELTA{place}", f"INSERT INTO {database}.theirs VALUES (7)"
    )
    entry = catalog.find(f"{database}.THEIRS")
    assert entry.uri == (f"{tmp_path}/theirs" if where == "external" else f"{tmp_path}/{database}.db/theirs")
    assert entry.is_managed == (where == "managed")
    table = Table.open(entry.uri)
    assert table.to_arrow().to_pylist() == [{"id": 7}]
    # Our update keeps it readable for them.
    catalog.update(describe(entry.name, table.snapshot()))
    append(table, [{"id": 8}])
    assert delta.sql(f"SELECT count(*) AS n FROM {database}.theirs") == [{"n": 2}]


def test_other_tables_and_views_of_spark_are_refused(delta: DeltaSpark, catalog: HiveCatalog, database: str) -> None:
    delta.run(
        f"CREATE TABLE {database}.plain (id BIGINT) USING PARQUET",
        f"CREATE TABLE {database}.theirs (id BIGINT) USING DELTA",
        f"CREATE VIEW {database}.seen AS SELECT * FROM {database}.theirs",
    )
    for name, found in (("plain", "parquet"), ("seen", "a view")):
        with pytest.raises(NotADeltaTable) as raised:
            catalog.find(f"{database}.{name}")
        assert raised.value.facts["format"].casefold() == found
