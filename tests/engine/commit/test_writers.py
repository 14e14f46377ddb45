"""A table with a writer whose commits replace others: warned about, or refused (soundness A15)."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table
from airflow_txlog.engine.commit.writers import overwriting_engine
from airflow_txlog.engine.log.actions import encode_commit
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.table.snapshot.replay import ENGINES_KEPT
from airflow_txlog.locations import store_kind
from tests.helpers.counting import CountingStore

SCHEMA = pa.schema([("id", pa.int64())])
SPARK = "Apache-Spark/4.0.0 Delta-Lake/4.0.0"


class S3LikeStore(CountingStore):
    """Bytes in memory under a root on S3: what is decided depends on the root's scheme alone."""

    def __init__(self, uri: str, **options: Any) -> None:
        super().__init__(uri, **options)
        self.root = self.root.replace("memory://", "s3://")


@pytest.mark.parametrize(
    ("root", "kind"),
    [("s3://b/t", "s3"), ("s3a://b/t", "s3"), ("file:///t", "file"), ("memory://t", "memory"), ("gs://b/t", "gs")],
)
def test_the_kind_of_a_store(root: str, kind: str) -> None:
    assert store_kind(root) == kind


@pytest.mark.parametrize(
    ("kind", "engines", "expected"),
    [
        ("s3", [SPARK], SPARK),
        ("s3", ["delta-rs:py-1.0", None, SPARK], SPARK),
        ("s3", ["airflow_txlog/0.1", "delta-rs:py-1.0", "Kernel-0.1/delta-kernel-rs", "trino-470", None], None),
        ("s3", ["Apache-Spark/4.0.0"], None),
        ("s3", [], None),
        ("gs", [SPARK], None),
        ("abfss", [SPARK], None),
        ("file", [SPARK], None),
        ("memory", [SPARK], None),
    ],
)
def test_a15_which_engines_replace_commits_on_which_store(
    kind: str, engines: list[str | None], expected: str | None
) -> None:
    assert overwriting_engine(kind, engines) == expected


def table_of(store: CountingStore, clock: Any, engines: list[str], *, strict: bool = False) -> Table:
    Table.create(store, SCHEMA, clock=clock)
    for version, engine in enumerate(engines, start=1):
        info = {"operation": "WRITE", "engineInfo": engine}
        assert store.put_if_absent(commit_name(version), encode_commit(info, []))
    return Table.open(store, clock=clock, strict_writers=strict)


@pytest.fixture
def s3(memory_uri: str, clock: Any) -> S3LikeStore:
    return S3LikeStore(memory_uri, clock=clock)


def test_a15_the_first_write_warns_once(s3: S3LikeStore, clock: Any, caplog: pytest.LogCaptureFixture) -> None:
    table = table_of(s3, clock, [SPARK, "delta-rs:py-1.0"])
    with caplog.at_level(logging.WARNING):
        table.snapshot()
        assert not caplog.records
        for _ in range(2):
            tx = table.begin()
            tx.add(path=f"{tx.read_version}", size=1)
            tx.commit("WRITE")
    (record,) = caplog.records
    assert SPARK in record.getMessage()
    assert "docs/writers.md" in record.getMessage()


def test_a15_strict_writers_refuses_before_anything_is_staged(s3: S3LikeStore, clock: Any) -> None:
    table = table_of(s3, clock, [SPARK], strict=True)
    for _ in range(2):
        with pytest.raises(errors.OverwritingWriter) as caught:
            table.begin()
    assert (caught.value.engine_info, caught.value.retryable) == (SPARK, False)
    assert table.snapshot().version == 1


def test_a15_commits_that_the_table_was_built_from_are_not_read_again(s3: S3LikeStore, clock: Any) -> None:
    table = table_of(s3, clock, ["delta-rs:py-1.0"] * 3)
    s3.take()
    assert table.begin().read_version == 3
    assert [request.split()[0] for request in s3.take()] == ["list"]
    table.checkpoint()
    again = Table.open(s3, clock=clock)
    s3.take()
    assert again.begin().read_version == 3
    # A checkpoint does not name the writers.
    assert [request.split()[0] for request in s3.take()] == ["list", *["read"] * 4]


def test_a15_an_engine_is_found_in_commits_before_a_checkpoint_and_after_it(s3: S3LikeStore, clock: Any) -> None:
    table_of(s3, clock, [SPARK, "delta-rs:py-1.0"]).checkpoint()
    for version, engine in ((3, "delta-rs:py-1.0"), (4, "delta-rs:py-1.0")):
        info = {"operation": "WRITE", "engineInfo": engine}
        assert s3.put_if_absent(commit_name(version), encode_commit(info, []))
    with pytest.raises(errors.OverwritingWriter):
        Table.open(s3, clock=clock, strict_writers=True).begin()
    table = Table.open(s3, clock=clock, strict_writers=True)
    assert s3.put_if_absent(commit_name(5), encode_commit({"operation": "WRITE", "engineInfo": SPARK}, []))
    with pytest.raises(errors.OverwritingWriter):
        table.begin()


def test_a15_commits_of_long_ago_do_not_count(s3: S3LikeStore, clock: Any) -> None:
    table = table_of(s3, clock, [SPARK, *["delta-rs:py-1.0"] * ENGINES_KEPT], strict=True)
    assert table.begin().read_version == ENGINES_KEPT + 1


def test_a15_a_log_that_was_cleaned_is_asked_for_what_it_holds(s3: S3LikeStore, clock: Any) -> None:
    table = table_of(s3, clock, ["delta-rs:py-1.0"] * 3)
    table.checkpoint()
    for version in range(3):
        s3.delete(commit_name(version))
    assert Table.open(s3, clock=clock, strict_writers=True).begin().read_version == 3


def test_on_other_stores_nobody_is_asked(memory_uri: str, clock: Any) -> None:
    store = CountingStore(memory_uri, clock=clock)
    table = table_of(store, clock, [SPARK], strict=True)
    store.take()
    table.begin()
    assert len(store.take()) == 1
