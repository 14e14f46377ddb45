"""What every catalog does alike: it finds tables that others registered, and registers and updates ours."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_txlog.catalogs.base import TABLE_ID, Description
from airflow_txlog.catalogs.describe import describe
from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidInput, NotADeltaTable, TableNotInCatalog, UnusablePlace
from tests.helpers.catalogs import Backend, GlueBackend, Record

ATHENA = {"EXTERNAL": "TRUE", "table_type": "DELTA"}
SPARK = {"EXTERNAL": "TRUE", "spark.sql.sources.provider": "delta"}
CRAWLER = {"classification": "delta", "table_type": "delta", "spark.sql.sources.provider": "delta"}
MANIFEST = "org.apache.hadoop.hive.ql.io.SymlinkTextInputFormat"


def test_a_table_of_athena_is_at_its_location_without_the_last_slash(backend: Backend, database: str) -> None:
    place = f"{backend.root}/athena"
    backend.put(Record(name=f"{database}.t", location=f"{place}/", parameters=ATHENA))
    entry = backend.catalog.find(f"{database}.t")
    assert (entry.name, entry.uri, entry.is_managed) == (f"{database}.t", place, False)


def test_an_external_table_of_spark_is_at_its_path_and_not_at_the_placeholder(backend: Backend, database: str) -> None:
    place = f"{backend.root}/of_spark"
    placeholder = f"{backend.root}/{database}.db/t-__PLACEHOLDER__"
    path = {"path": place, "serialization.format": "1"}
    backend.put(Record(name=f"{database}.t", location=placeholder, parameters=SPARK, serde_parameters=path))
    assert backend.catalog.find(f"{database}.t").uri == place


def test_a_managed_table_of_spark_resolves_and_is_managed(backend: Backend, database: str) -> None:
    place = f"{backend.root}/{database}.db/t"
    backend.put(
        Record(
            name=f"{database}.t",
            kind="MANAGED_TABLE",
            location=place,
            parameters={**SPARK, "EXTERNAL": "FALSE"},
            serde_parameters={"path": place},
        )
    )
    entry = backend.catalog.find(f"{database}.t")
    assert (entry.uri, entry.is_managed) == (place, True)


def test_a_table_of_a_crawler_is_at_its_location(backend: Backend, database: str) -> None:
    place = f"{backend.root}/crawled"
    backend.put(Record(name=f"{database}.t", location=f"{place}/", parameters=CRAWLER))
    assert backend.catalog.find(f"{database}.t").uri == place


def test_a_crawled_folder_of_manifests_is_the_table_above_it(backend: Backend, database: str) -> None:
    place = f"{backend.root}/with_manifests"
    backend.put(
        Record(
            name=f"{database}.t",
            location=f"{place}/_symlink_format_manifest/",
            parameters={"classification": "parquet"},
            input_format=MANIFEST,
        )
    )
    assert backend.catalog.find(f"{database}.t").uri == place


def test_a_placeholder_without_a_path_is_refused(backend: Backend, database: str) -> None:
    placeholder = f"{backend.root}/{database}.db/t-__PLACEHOLDER__"
    backend.put(Record(name=f"{database}.t", location=placeholder, parameters=SPARK))
    with pytest.raises(UnusablePlace) as raised:
        backend.catalog.find(f"{database}.t")
    assert raised.value.facts["location"].endswith("-__PLACEHOLDER__")


@pytest.mark.parametrize(
    ("parameters", "kind", "input_format", "format_name"),
    [
        ({"table_type": "ICEBERG"}, "EXTERNAL_TABLE", "x.IcebergInputFormat", "ICEBERG"),
        ({"spark.sql.sources.provider": "parquet"}, "EXTERNAL_TABLE", "x.ParquetInputFormat", "parquet"),
        ({"classification": "csv"}, "EXTERNAL_TABLE", "x.TextInputFormat", "csv"),
        ({}, "EXTERNAL_TABLE", "x.OrcInputFormat", "OrcInputFormat"),
        ({"spark.sql.sources.provider": "delta"}, "VIRTUAL_VIEW", "", "a view"),
    ],
)
def test_another_format_is_refused_by_its_name(
    backend: Backend, database: str, parameters: dict[str, str], kind: str, input_format: str, format_name: str
) -> None:
    place = f"{backend.root}/other"
    backend.put(
        Record(
            name=f"{database}.t",
            location="" if kind == "VIRTUAL_VIEW" else place,
            parameters=parameters,
            kind=kind,
            input_format=input_format,
        )
    )
    with pytest.raises(NotADeltaTable) as raised:
        backend.catalog.find(f"{database}.t")
    assert raised.value.facts["format"] == format_name


def test_a_name_is_found_in_any_case(backend: Backend, database: str) -> None:
    backend.put(Record(name=f"{database}.orders", location=f"{backend.root}/Orders", parameters=ATHENA))
    entry = backend.catalog.find(f"{database.upper()}.Orders")
    assert (entry.name, entry.uri) == (f"{database}.orders", f"{backend.root}/Orders")


def test_a_missing_table_and_a_missing_database_are_not_in_the_catalog(backend: Backend, database: str) -> None:
    for name in (f"{database}.none", "no_such_database.t"):
        with pytest.raises(TableNotInCatalog) as raised:
            backend.catalog.find(name)
        assert raised.value.facts["name"] == name
        assert not raised.value.retryable
    with pytest.raises(TableNotInCatalog):
        backend.catalog.place_for("no_such_database.t")


@pytest.mark.parametrize("name", ["orders", "a.b.c", "a/b.c", "", ".t", "db.", "`db.t"])
def test_a_text_that_is_no_name_is_refused(backend: Backend, name: str) -> None:
    with pytest.raises(InvalidInput):
        backend.catalog.find(name)


def test_a_new_table_is_placed_in_the_folder_of_its_database(backend: Backend, database: str) -> None:
    assert backend.catalog.place_for(f"{database}.New") == f"{backend.root}/{database}.db/new"


# --- what we register -----------------------------------------------------------------------------------------------


@pytest.fixture
def described(backend: Backend, database: str, tmp_path: Path) -> Description:
    """A table with each kind of type, as a catalog is to know it."""
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("amount", pa.decimal128(10, 2)),
            pa.field("tags", pa.list_(pa.string())),
            pa.field("place", pa.struct([pa.field("zip", pa.string()), pa.field("no", pa.int16())])),
            pa.field("seen", pa.timestamp("us", tz="UTC")),
            pa.field("day", pa.date32()),
        ]
    )
    table = Table.create(str(tmp_path / "t"), schema, ["day"], {"delta.appendOnly": "true"})
    found = describe(f"{database}.orders", table.snapshot())
    return dataclasses.replace(found, uri=f"{backend.root}/orders")


COLUMNS = [
    ("id", "bigint"),
    ("amount", "decimal(10,2)"),
    ("tags", "array<string>"),
    ("place", "struct<zip:string,no:smallint>"),
    ("seen", "timestamp"),
    ("day", "date"),
]


def test_what_we_register_has_the_marks_of_every_engine(backend: Backend, described: Description) -> None:
    backend.catalog.register(described)
    entry, record = backend.catalog.find(described.name), backend.get(described.name)
    assert entry.uri == described.uri
    assert record.columns == COLUMNS
    assert record.kind == "EXTERNAL_TABLE"
    expected = {
        "EXTERNAL": "TRUE",
        "table_type": "delta",
        "classification": "delta",
        "spark.sql.sources.provider": "delta",
        "delta.appendOnly": "true",
        "delta.lastUpdateVersion": "0",
        TABLE_ID: described.table_id,
    }
    assert expected.items() <= record.parameters.items()
    # Athena reads the location, and Spark the path.
    for place in (record.location, record.serde_parameters["path"]):
        assert place.removeprefix("file:").removeprefix("//") == described.uri


def test_to_register_again_changes_nothing(backend: Backend, described: Description) -> None:
    """The answer to the first request may have been lost."""
    backend.catalog.register(described)
    before = backend.get(described.name)
    backend.catalog.register(described)
    assert backend.get(described.name) == before


def test_a_name_of_another_place_is_not_taken(backend: Backend, described: Description) -> None:
    backend.put(Record(name=described.name, location=f"{backend.root}/theirs", parameters=ATHENA))
    before = backend.get(described.name)
    for change in (backend.catalog.register, backend.catalog.update):
        with pytest.raises(InvalidInput, match="theirs"):
            change(described)
    assert backend.get(described.name) == before


def test_an_update_writes_columns_and_properties_and_keeps_those_of_others(
    backend: Backend, described: Description
) -> None:
    backend.catalog.register(described)
    changed = dataclasses.replace(
        described,
        version=3,
        columns=(*described.columns, dataclasses.replace(described.columns[0], name="later")),
        properties={"delta.enableChangeDataFeed": "true"},
    )
    assert backend.catalog.update(changed)
    record = backend.get(described.name)
    assert record.columns == [*COLUMNS, ("later", "bigint")]
    assert record.parameters["delta.enableChangeDataFeed"] == "true"
    assert record.parameters["delta.lastUpdateVersion"] == "3"
    assert "delta.appendOnly" not in record.parameters
    assert record.parameters["classification"] == "delta"
    assert not backend.catalog.update(changed)


def test_an_update_that_comes_late_does_not_replace_a_later_version(backend: Backend, described: Description) -> None:
    backend.catalog.register(dataclasses.replace(described, version=7))
    assert not backend.catalog.update(dataclasses.replace(described, version=6, columns=described.columns[:1]))
    assert backend.get(described.name).columns == COLUMNS


def test_a_table_that_was_created_again_replaces_the_later_version_of_the_old_one(
    backend: Backend, described: Description
) -> None:
    backend.catalog.register(dataclasses.replace(described, version=7))
    again = dataclasses.replace(described, version=0, table_id="another", columns=described.columns[:1])
    assert backend.catalog.update(again)
    assert backend.get(described.name).parameters[TABLE_ID] == "another"


def test_the_record_of_spark_gets_columns_although_their_types_differ_by_position(
    backend: Backend, described: Description
) -> None:
    """A metastore refuses a type that files of the old one would not have: the columns stay, and all else comes."""
    place = {"path": described.uri}
    placeholder = f"{backend.root}/x-__PLACEHOLDER__"
    backend.put(Record(name=described.name, location=placeholder, parameters=SPARK, serde_parameters=place))
    assert backend.catalog.update(described)
    record = backend.get(described.name)
    assert record.parameters[TABLE_ID] == described.table_id
    assert record.serde_parameters["path"] == described.uri
    assert record.location.endswith("-__PLACEHOLDER__")
    assert record.columns == (COLUMNS if isinstance(backend, GlueBackend) else [("col", "array<string>")])


def test_the_record_of_manifests_is_never_changed(backend: Backend, described: Description) -> None:
    manifests = f"{described.uri}/_symlink_format_manifest"
    backend.put(
        Record(
            name=described.name,
            location=manifests,
            parameters={"classification": "parquet"},
            input_format=MANIFEST,
        )
    )
    before = backend.get(described.name)
    assert not backend.catalog.update(described)
    assert backend.get(described.name) == before
