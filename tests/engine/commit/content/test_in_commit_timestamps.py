"""In-commit timestamps: alone, after a lost race, when they are switched on, and when they are switched off."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table, Transaction
from airflow_txlog.engine.log.actions import Commit, DomainMetadata, Metadata, Protocol, decode_commit, encode_commit
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.storage import MemoryStore

SCHEMA = pa.schema([("id", pa.int64())])
ON = {"delta.enableInCommitTimestamps": "true"}
FEATURE = Protocol(
    min_reader_version=1, min_writer_version=7, writer_features=["appendOnly", "inCommitTimestamp", "invariants"]
)


def begun(table: Table, path: str = "mine") -> Transaction:
    tx = table.begin()
    tx.add(path=path, size=1)
    return tx


def written(table: Table, version: int) -> Commit:
    return decode_commit(version, table.store.read(commit_name(version)), commit_name(version))


def time_of(table: Table, version: int) -> int | None:
    found: int | None = (written(table, version).info or {}).get("inCommitTimestamp")
    return found


def changed(table: Table, properties: dict[str, str]) -> Metadata:
    metadata = table.snapshot().metadata
    return msgspec.structs.replace(metadata, configuration={**metadata.configuration, **properties})


def switching(table: Table, value: str = "true") -> Transaction:
    tx = table.begin()
    tx.set_protocol(FEATURE)
    tx.set_metadata(changed(table, {"delta.enableInCommitTimestamps": value}))
    return tx


@pytest.fixture
def table(memory_uri: str, clock: Any) -> Table:
    return Table.create(MemoryStore(memory_uri, clock=clock), SCHEMA, properties=ON, clock=clock)


@pytest.fixture
def plain(memory_uri: str, clock: Any) -> Table:
    return Table.create(MemoryStore(memory_uri, clock=clock), SCHEMA, clock=clock)


def test_a_table_that_has_them_from_the_start_tells_no_enablement(table: Table, clock: Any) -> None:
    assert time_of(table, 0) == clock.now_ms()
    assert not [name for name in table.snapshot().properties if "Enablement" in name]


def test_after_a_lost_race_the_time_is_later_than_the_winners(table: Table, clock: Any) -> None:
    tx = begun(table)
    clock.time_ms += 5000
    begun(table, "theirs").commit("WRITE")
    clock.time_ms -= 5000
    assert tx.commit("WRITE") == 2
    first, second = time_of(table, 1), time_of(table, 2)
    assert first is not None
    assert second == first + 1


def test_switching_them_on_tells_from_which_version_and_moment(plain: Table, clock: Any) -> None:
    begun(plain).commit("WRITE")
    clock.time_ms += 1000
    assert switching(plain).commit("SET TBLPROPERTIES") == 2
    properties = plain.snapshot().properties
    assert properties["delta.inCommitTimestampEnablementVersion"] == "2"
    assert properties["delta.inCommitTimestampEnablementTimestamp"] == str(time_of(plain, 2)) == str(clock.now_ms())
    begun(plain, "b").commit("WRITE")
    assert time_of(plain, 3) == clock.now_ms() + 1
    # Both regimes answer for their own versions.
    assert plain.snapshot(timestamp=clock.now_ms()).version == 2
    assert plain.snapshot(timestamp=clock.now_ms() - 999).version == 1


def test_switching_them_on_after_a_lost_race_tells_the_version_that_it_got(plain: Table, clock: Any) -> None:
    """The winner owes no in-commit timestamp: they were not on yet."""
    tx = switching(plain)
    clock.time_ms += 7000
    begun(plain, "theirs").commit("WRITE")
    clock.time_ms -= 7000
    assert tx.commit("SET TBLPROPERTIES") == 2
    properties = plain.snapshot().properties
    assert properties["delta.inCommitTimestampEnablementVersion"] == "2"
    assert properties["delta.inCommitTimestampEnablementTimestamp"] == str(time_of(plain, 2))
    assert time_of(plain, 2) == clock.now_ms() + 7001


def test_a_winner_that_switches_them_on_gives_ours_a_time(plain: Table) -> None:
    tx = begun(plain)
    switching(plain).commit("SET TBLPROPERTIES")
    assert tx.commit("WRITE") == 2
    assert time_of(plain, 2) == (time_of(plain, 1) or 0) + 1


def test_a_winner_that_switches_them_off_leaves_ours_without(table: Table) -> None:
    tx = begun(table)
    switching(table, "false").commit("SET TBLPROPERTIES")
    assert time_of(table, 1) is None
    begun(table, "b").commit("WRITE")
    assert tx.commit("WRITE") == 3
    assert time_of(table, 3) is None


@pytest.mark.parametrize("info", [None, {}, {"timestamp": 5}, {"inCommitTimestamp": "soon"}])
def test_c3_a_winner_that_owes_its_time_is_refused(table: Table, info: dict[str, Any] | None) -> None:
    tx = begun(table)
    mark = DomainMetadata(domain="x", configuration="", removed=False)
    assert table.store.put_if_absent(commit_name(1), encode_commit(info, [mark]))
    with pytest.raises(errors.CorruptTable, match="inCommitTimestamp"):
        tx.commit("WRITE")
    assert table.store.stat(commit_name(2)) is None


# --- what we do not understand is kept ------------------------------------------------------------------------------


def test_a_commit_of_ours_keeps_properties_schema_and_domains_that_it_does_not_know(plain: Table) -> None:
    """Verbatim, over a change of metadata, a checkpoint and a cleaned log."""
    metadata = plain.snapshot().metadata
    odd_schema = metadata.schema_string.replace('"metadata":{}', '"metadata":{"vendor.note":{"deep":[1,2.50]},"z":1}')
    assert odd_schema != metadata.schema_string
    odd = msgspec.structs.replace(
        metadata, schema_string=odd_schema, configuration={**metadata.configuration, "vendor.x": "  ü\n"}
    )
    tx = plain.begin()
    tx.set_protocol(msgspec.structs.replace(FEATURE, writer_features=["domainMetadata"]))
    tx.set_metadata(odd)
    tx.set_domain("vendor.domain", '{ "b" : 1,\n "a" : null }')
    tx.commit("SET TBLPROPERTIES")
    tx = plain.begin()
    tx.set_metadata(changed(plain, {"ours": "1"}))
    tx.commit("SET TBLPROPERTIES")
    plain.checkpoint()
    for version in range(3):
        plain.store.delete(commit_name(version))
    again = Table.open(plain.store).snapshot()
    assert again.metadata.schema_string == odd_schema
    assert again.properties == {**odd.configuration, "ours": "1"}
    assert again.state.domains["vendor.domain"].configuration == '{ "b" : 1,\n "a" : null }'
