"""Tables whose names, columns or comments a catalog takes badly: each is registered, found and kept up to date."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_txlog.catalogs.base import CatalogColumn, Description
from airflow_txlog.catalogs.describe import column_of, describe, differences
from airflow_txlog.engine import Table
from airflow_txlog.engine.table.schema.types import ArrayType, Primitive, StructField, StructType
from tests.helpers.catalogs import Backend, GlueBackend, HiveBackend
from tests.helpers.depth import in_long


@pytest.fixture
def described(backend: Backend, database: str, tmp_path: Path) -> Description:
    table = Table.create(str(tmp_path / "t"), pa.schema([("id", pa.int64()), ("Day", pa.string())]), ["Day"])
    return dataclasses.replace(describe(f"{database}.orders", table.snapshot()), uri=f"{backend.root}/orders")


def column(name: str, type_text: str = "string", comment: str | None = None) -> CatalogColumn:
    return CatalogColumn(name=name, type_text=type_text, comment=comment)


def wide(characters: int) -> str:
    """A struct type of at least so many characters."""
    text = ",".join(f"field_{number:05d}:string" for number in range(characters // 18 + 1))
    return f"struct<{text}>"


def with_field(name: str, *, is_nested: bool = False) -> CatalogColumn:
    """A struct with a field of this name."""
    kind = StructType((StructField(name, Primitive.INTEGER),))
    return column_of(StructField("s", ArrayType(kind) if is_nested else kind))


ODD = {
    "a type of 5,000 characters": column("wide", wide(5_000)),
    "a type of 20,000 characters": column("wide", wide(20_000)),
    "a field with a space": with_field("a b"),
    "a field with a colon": with_field("a:b"),
    "a field with a comma": with_field("a,b"),
    "a field with a bracket in a list": with_field("a>b", is_nested=True),
    "a field with no name": with_field(""),
    "a unicode field": with_field("größe"),
    "a unicode column": column("größe_日本"),
    "a column with odd characters": column("a.b c`d,e;f"),
    "a comment with control characters": column("c", comment="one\ntwo\tthree\x00four\x1b[31m\x7f\u2028end"),
    "a comment of 3,000 characters": column("c", comment="é" * 3_000),
    "a comment beyond the basic plane": column("c", comment="\U0001f600" * 300),
}


@pytest.mark.parametrize("what", ODD)
def test_a_table_with_an_odd_column_is_registered_and_kept_up_to_date(
    backend: Backend, described: Description, what: str
) -> None:
    odd = dataclasses.replace(described, columns=(*described.columns, ODD[what]))
    backend.catalog.register(odd)
    assert backend.catalog.find(odd.name).uri == odd.uri
    changed = dataclasses.replace(odd, version=1, properties={"delta.appendOnly": "true"})
    assert backend.catalog.update(changed)
    assert backend.get(odd.name).parameters["delta.appendOnly"] == "true"
    assert not backend.catalog.update(changed)


@pytest.mark.parametrize("what", [*list(ODD)[::2], *in_long("they are registered above", *list(ODD)[1::2])])
def test_an_odd_column_that_comes_later_does_not_keep_the_properties_out(
    backend: Backend, described: Description, what: str
) -> None:
    backend.catalog.register(described)
    odd = dataclasses.replace(
        described, version=1, columns=(*described.columns, ODD[what]), properties={"delta.appendOnly": "true"}
    )
    assert backend.catalog.update(odd)
    assert backend.get(odd.name).parameters["delta.appendOnly"] == "true"


def test_a_comment_or_property_of_any_length_and_characters_is_no_obstacle(
    backend: Backend, described: Description
) -> None:
    odd = dataclasses.replace(
        described, comment="a\x00b\x1bc" + "x" * 30_000, properties={"delta.constraints.c": "id > 0 OR " * 3_000}
    )
    backend.catalog.register(odd)
    assert backend.catalog.find(odd.name).uri == odd.uri
    assert backend.catalog.update(dataclasses.replace(odd, version=1))


def test_no_control_character_reaches_the_catalog(backend: Backend, described: Description) -> None:
    """Glue refuses them, PostgreSQL refuses a NUL, and a terminal obeys them."""
    odd = dataclasses.replace(
        described,
        columns=(*described.columns, ODD["a comment with control characters"]),
        comment="table\x00\x1b[31m\nnote",
    )
    backend.catalog.register(odd)
    entry = backend.catalog.find(odd.name)
    texts = [str(each.comment) for each in entry.columns] + [entry.properties["comment"]]
    assert [text for text in texts if not text.isprintable()] == []
    assert entry.columns[-1].comment == "one two three four [31m  end"
    assert differences(entry, odd) == []


def test_columns_of_a_partitioned_entry_are_not_listed_twice_in_any_case(
    backend: Backend, described: Description
) -> None:
    if not isinstance(backend, GlueBackend):
        pytest.skip("a metastore's names are in small letters")
    database, name = described.name.split(".")
    backend._client.create_table(
        DatabaseName=database,
        TableInput={
            "Name": name,
            "TableType": "EXTERNAL_TABLE",
            "Parameters": {"table_type": "delta"},
            "PartitionKeys": [{"Name": "day", "Type": "string"}],
            "StorageDescriptor": {
                "Location": described.uri,
                "Columns": [{"Name": "id", "Type": "int"}],
                "InputFormat": "x",
                "SerdeInfo": {"Parameters": {}},
            },
        },
    )
    assert backend.catalog.update(described)
    assert backend.get(described.name).columns == [("id", "bigint")]


@pytest.mark.parametrize("name", ["orders-2026", "orders 2026", "bestellungen_größe", "orders.v2", "9", "select"])
def test_a_name_that_was_found_finds_and_updates_the_same_table_again(
    backend: Backend, database: str, described: Description, name: str
) -> None:
    given = f"{database}.`{name}`"
    if isinstance(backend, HiveBackend) and (not name.isascii() or not name.isidentifier()):
        pytest.skip("a metastore accepts no such name")
    backend.catalog.register(dataclasses.replace(described, name=given))
    entry = backend.catalog.find(given)
    assert entry.uri == described.uri
    assert backend.catalog.find(entry.name) == entry
    assert backend.catalog.update(dataclasses.replace(described, name=entry.name, version=1))
