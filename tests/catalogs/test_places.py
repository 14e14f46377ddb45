"""The URIs that a catalog may name: each convention of a writer is one spelling, and each trap is refused by name."""

from __future__ import annotations

import pytest

from airflow_txlog.catalogs.places import table_place
from airflow_txlog.errors import UnusablePlace


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("file:/lake/t", "/lake/t"),
        ("file:///lake/t", "/lake/t"),
        ("file://localhost/lake/t", "/lake/t"),
        ("/lake/t/", "/lake/t"),
        ("file:/lake//T", "/lake/T"),
        ("file:/lake/a b%20c", "/lake/a b%20c"),
        ("s3a://bucket/t", "s3://bucket/t"),
        ("s3n://bucket/t/", "s3://bucket/t"),
        ("S3://Bucket/Folder", "s3://Bucket/Folder"),
        ("s3://bucket//t", "s3://bucket//t"),
        ("s3://bucket/", "s3://bucket"),
        ("gs://bucket/t", "gs://bucket/t"),
        ("abfss://box@account.dfs.core.windows.net/t/", "abfss://box@account.dfs.core.windows.net/t"),
        ("wasbs://box@account.blob.core.windows.net/t", "wasbs://box@account.blob.core.windows.net/t"),
        ("hdfs://name:8020/t", "hdfs://name:8020/t"),
    ],
)
def test_a_place_has_one_spelling(location: str, expected: str) -> None:
    assert table_place("c", "db.t", location) == expected


@pytest.mark.parametrize(
    "location",
    [
        "",
        "  ",
        "lake/t",
        "~/t",
        "s3://key:secret@bucket/t",
        "s3://bucket/t?versionId=1",
        "s3://bucket/t#x",
        "s3://bucket/a/../../other/t",
        "file:/lake/../etc",
        "file:///",
        "/",
        "file://other-host/lake/t",
        "s3:///t",
        "memory://m/t",
        "http://host/t",
        "dbfs:/t",
        "jdbc:postgresql://host/db",
        "s3://bucket/t-__PLACEHOLDER__",
        "file:/warehouse/t-__PLACEHOLDER__/",
        "/lake/\0t",
    ],
)
def test_a_place_that_is_not_a_tables_is_refused(location: str) -> None:
    with pytest.raises(UnusablePlace) as raised:
        table_place("c", "db.t", location)
    assert (raised.value.facts["connection"], raised.value.facts["name"]) == ("c", "db.t")
    assert "secret" not in str(raised.value)


def test_a_catalog_of_one_store_names_no_place_on_this_machine() -> None:
    """Whoever may edit an entry of Glue would otherwise have a worker read and write its own disk."""
    with pytest.raises(UnusablePlace):
        table_place("c", "db.t", "file:/lake/t", ("s3",))
