"""Conflict rules that show only where no other rule meets the winner first; the others have tests of their own."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import Protocol

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


@pytest.fixture
def table(memory_uri: str, clock: Any) -> Table:
    """Partitioned by day, with the file `a` in the partition of day 1."""
    table = Table.create(memory_uri, SCHEMA, ["day"], clock=clock)
    tx = table.begin()
    tx.set_protocol(Protocol(min_reader_version=1, min_writer_version=7, writer_features=["domainMetadata"]))
    tx.add(path="a", partition_values={"day": "1"}, size=1)
    tx.commit("WRITE")
    return table


def test_two_commits_that_write_one_domain_conflict_and_those_of_different_domains_do_not(table: Table) -> None:
    mine, same, other = table.begin(), table.begin(), table.begin()
    mine.set_domain("vendor.one", "mine")
    same.set_domain("vendor.one", "theirs")
    other.set_domain("vendor.two", "another")
    assert other.commit("SET DOMAIN") == 2
    assert same.commit("SET DOMAIN") == 3
    with pytest.raises(errors.ConcurrentTransaction) as caught:
        mine.commit("SET DOMAIN")
    assert (caught.value.domain, caught.value.winning_version) == ("vendor.one", 3)
    assert table.snapshot().state.domains["vendor.one"].configuration == "theirs"


def test_a_file_that_both_remove_and_neither_has_read_conflicts(table: Table) -> None:
    """A dynamic partition overwrite reads partitions and no file, so only the rule for removed files meets it."""
    mine, theirs = table.begin(), table.begin()
    for tx in (mine, theirs):
        tx.remove(tx.read_partitions([{"day": "1"}]))
    theirs.commit("WRITE")
    with pytest.raises(errors.ConcurrentDeleteDelete) as caught:
        mine.commit("WRITE")
    assert caught.value.path == "a"
