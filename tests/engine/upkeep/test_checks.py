"""What a check of a table finds, and that a healthy one gives nothing to say."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.names import checkpoint_name, version_prefix
from airflow_txlog.engine.upkeep import checks
from airflow_txlog.engine.upkeep.checks import Finding, Healthy
from airflow_txlog.locations import PLAIN
from airflow_txlog.storage import MemoryStore

SCHEMA = pa.schema([("id", pa.int64())])


def table_with(commits: int, properties: dict[str, str] | None = None) -> Table:
    table = Table.create(MemoryStore(f"memory://checks-{uuid.uuid4().hex}"), SCHEMA, properties=properties)
    for number in range(commits):
        tx = table.begin()
        tx.add(path=f"f{number}", size=1)
        tx.commit("WRITE")
    return table


def only(table: Table, **most: int) -> Finding:
    (finding,) = checks.check(table.store, table.snapshot(), Healthy(**most))
    return finding


def test_a_healthy_table_gives_nothing_to_say() -> None:
    assert table_with(12).check() == []
    assert table_with(0).check() == []


def test_an_unreadable_checkpoint_is_found_and_named() -> None:
    table = table_with(12)
    snapshot = table.snapshot()
    table.store.put(checkpoint_name(10), b"garbage")
    (finding,) = checks.check(table.store, snapshot)
    assert (finding.code, finding.facts) == ("checkpoint_unreadable", {"version": 10})


def test_an_unreadable_checkpoint_is_found_though_the_table_is_read_from_an_older_one() -> None:
    table = table_with(22)
    assert table.store.stat(checkpoint_name(10)) is not None
    table.store.put(checkpoint_name(20), b"garbage")
    snapshot = Table.open(table.store).snapshot()
    assert [info.path for info in snapshot.checkpoint_files] == [checkpoint_name(10)]
    (finding,) = checks.check(table.store, snapshot)
    assert (finding.code, finding.facts) == ("checkpoint_unreadable", {"version": 20})


def test_a_checkpoint_of_no_byte_is_found() -> None:
    table = table_with(3)
    table.store.put(checkpoint_name(2), b"")
    finding = only(table)
    assert (finding.code, finding.facts["paths"]) == ("checkpoint_torn", [f"{version_prefix(2)}.checkpoint.parquet"])


def test_a_late_checkpoint_is_found() -> None:
    table = table_with(10, {"delta.checkpointInterval": "3"})
    assert table.check() == []
    for version in (3, 6, 9):
        table.store.delete(checkpoint_name(version))
    table.store.delete("_delta_log/_last_checkpoint")
    finding = only(table)
    assert (finding.code, finding.facts) == ("checkpoint_late", {"commits": 11, "interval": 3, "checkpoint": -1})


@pytest.mark.parametrize(
    ("most", "code"),
    [
        ({"log_files": 3}, "log_large"),
        ({"log_bytes": 100}, "log_large"),
        ({"applications": 0}, "too_many_application_transactions"),
        ({"tiny_files": 2}, "too_many_small_files"),
        ({"tombstones": 3}, "too_many_tombstones"),
    ],
)
def test_a_threshold_that_is_passed_is_a_finding(most: dict[str, int], code: str) -> None:
    table = table_with(8)
    tx = table.begin()
    tx.set_application("me", 1)
    tx.remove([f"f{number}" for number in range(5)])
    tx.commit("DELETE")
    assert table.check() == []
    finding = only(table, **most)
    assert finding.code == code
    assert finding.message
    assert finding.advice


def test_b4_more_than_ten_thousand_application_transactions_are_a_finding() -> None:
    table = table_with(1)
    for start, count in ((0, 10_000), (10_000, 1)):
        assert table.check() == []
        tx = table.begin()
        for number in range(start, start + count):
            tx.set_application(f"run-{number}", 1)
        tx.commit("WRITE", record_empty=True)
    finding = only(table)
    assert (finding.code, finding.facts) == ("too_many_application_transactions", {"count": 10_001})
    assert "delta.setTransactionRetentionDuration" in finding.advice


def test_a_log_that_is_never_cleaned_is_told_why() -> None:
    never_cleaned = table_with(5, {"delta.enableExpiredLogCleanup": "false"})
    assert "keeps 30 days" in only(table_with(5), log_files=3).message
    assert "enableExpiredLogCleanup is false" in only(never_cleaned, log_files=3).message


def test_a_short_retention_is_found() -> None:
    assert only(table_with(1, {"delta.deletedFileRetentionDuration": "interval 2 hours"})).code == "retention_short"


def test_a_finding_is_plain_data() -> None:
    finding: dict[str, Any] = only(table_with(1, {"delta.deletedFileRetentionDuration": "interval 1 hours"})).to_dict()
    assert set(finding) == {"code", "message", "advice", "facts"}


@pytest.mark.parametrize(
    "name",
    ["delta.checkpointInterval", "delta.logRetentionDuration", "delta.deletedFileRetentionDuration"],
)
def test_a_property_that_cannot_be_read_is_a_finding_and_hides_no_other(name: str) -> None:
    """Any writer may have set it, and the table itself can be read."""
    table = table_with(8)
    snapshot = table.snapshot()
    odd = msgspec.structs.replace(snapshot.metadata, configuration={**snapshot.properties, name: "forever"})
    found = checks.check(table.store, snapshot.with_metadata(odd), Healthy(tiny_files=2, log_files=3))
    assert [each.code for each in found] == ["property_unreadable", "log_large", "too_many_small_files"]
    assert name in found[0].message
    assert found[0].facts == {"name": name, "value": "forever"}


def test_the_checkpoint_that_a_snapshot_was_built_from_is_not_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    written = table_with(12)
    table = Table.at(written.uri, PLAIN)
    snapshot = table.snapshot()
    reads = list[str]()
    original = table.store.open_input

    def count(path: str, *args: Any, **kwargs: Any) -> Any:
        reads.append(path)
        return original(path, *args, **kwargs)

    monkeypatch.setattr(table.store, "open_input", count)
    assert checks.check(table.store, snapshot) == []
    assert not [path for path in reads if "checkpoint" in path]
    tx = written.begin()
    tx.add(path="more", size=1)
    tx.commit("WRITE")
    assert checks.check(table.store, snapshot.refresh()) == []
    assert not [path for path in reads if "checkpoint" in path]
