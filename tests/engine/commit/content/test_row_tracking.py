"""Row tracking: which ids the rows of new files get, alone, after a race, and when a file is added again."""

from __future__ import annotations

import json
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
ENABLED = {
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": "_row-id-col-1",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_row-commit-version-col-1",
}
TRACKING = Protocol(
    min_reader_version=1,
    min_writer_version=7,
    writer_features=["appendOnly", "domainMetadata", "invariants", "rowTracking"],
)


def stats(rows: int) -> str:
    return json.dumps({"numRecords": rows})


def create(uri: str, clock: Any, properties: dict[str, str]) -> Table:
    table = Table(MemoryStore(uri, clock=clock), clock=clock)
    tx = table.begin_create(SCHEMA, properties=properties)
    tx.set_protocol(TRACKING)
    tx.commit("CREATE TABLE")
    return table


@pytest.fixture
def table(memory_uri: str, clock: Any) -> Table:
    """Row tracking enabled; version 1 added `a` (rows 0 to 9) and `b` (10 to 14)."""
    table = create(memory_uri, clock, ENABLED)
    tx = table.begin()
    tx.add(path="a", size=1, stats=stats(10))
    tx.add(path="b", size=1, stats=stats(5))
    tx.commit("WRITE")
    return table


def ids(table: Table) -> dict[str, tuple[int | None, int | None]]:
    files = table.snapshot().files().select(["path", "base_row_id", "default_row_commit_version"]).to_pylist()
    return {file["path"]: (file["base_row_id"], file["default_row_commit_version"]) for file in files}


def mark(table: Table) -> int:
    return int(json.loads(table.snapshot().state.domains["delta.rowTracking"].configuration)["rowIdHighWaterMark"])


def written(table: Table, version: int) -> Commit:
    return decode_commit(version, table.store.read(commit_name(version)), commit_name(version))


def preserved(table: Table, version: int) -> str | None:
    tags: dict[str, str] = (written(table, version).info or {}).get("tags", {})
    return tags.get("delta.rowTracking.preserved")


def begun(table: Table, path: str = "c", rows: int = 3) -> Transaction:
    tx = table.begin()
    tx.add(path=path, size=1, stats=stats(rows))
    return tx


# --- numbering ------------------------------------------------------------------------------------------------------


def test_new_files_are_numbered_one_after_the_other_and_the_mark_is_the_last_id(table: Table) -> None:
    assert ids(table) == {"a": (0, 1), "b": (10, 1)}
    assert mark(table) == 14
    assert begun(table).commit("WRITE") == 2
    assert ids(table)["c"] == (15, 2)
    assert mark(table) == 17


def test_a_table_that_supports_row_tracking_without_enabling_it_is_numbered_too(memory_uri: str, clock: Any) -> None:
    table = create(memory_uri, clock, {})
    begun(table).commit("WRITE")
    assert ids(table) == {"c": (0, 1)}
    assert mark(table) == 2
    assert preserved(table, 1) is None


def test_a_table_that_suspended_row_tracking_is_not_numbered(memory_uri: str, clock: Any) -> None:
    table = create(memory_uri, clock, {"delta.rowTrackingSuspended": "true"})
    begun(table).commit("WRITE")
    assert ids(table) == {"c": (None, None)}
    assert "delta.rowTracking" not in table.snapshot().state.domains


def test_a_table_without_the_feature_is_not_numbered(memory_uri: str, clock: Any) -> None:
    table = Table.create(memory_uri, SCHEMA, clock=clock)
    begun(table).commit("WRITE")
    assert ids(table) == {"c": (None, None)}
    assert preserved(table, 1) is None


def test_a_commit_that_adds_no_rows_leaves_the_mark(table: Table) -> None:
    tx = table.begin()
    tx.remove("a")
    tx.commit("DELETE")
    assert written(table, 2).domains == []
    assert mark(table) == 14
    removed = written(table, 2).removes[0]
    assert (removed.base_row_id, removed.default_row_commit_version) == (0, 1)


def test_a_file_without_a_row_count_is_refused_before_anything_is_written(table: Table) -> None:
    for text in (None, "{}", "not json"):
        tx = table.begin()
        tx.add(path="c", size=1, stats=text)
        with pytest.raises(errors.RowCountMissing, match="numRecords"):
            tx.commit("WRITE")
    assert table.store.stat(commit_name(2)) is None


def test_a_file_that_is_added_again_keeps_its_ids(table: Table) -> None:
    """New statistics for a live file, under another spelling of its path."""
    tx = begun(table)
    tx.add(path="./a", size=1, stats=json.dumps({"numRecords": 10, "nullCount": {"id": 0}}), data_change=False)
    tx.commit("COMPUTE STATS")
    assert ids(table) == {"./a": (0, 1), "b": (10, 1), "c": (15, 2)}


def test_a_restored_file_keeps_its_ids_and_none_is_handed_out_twice(table: Table) -> None:
    tx = table.begin()
    tx.remove("a")
    tx.add(path="c", size=1, stats=stats(3))
    tx.commit("UPDATE")
    table.store.put("a", b"1")
    table.store.put("b", b"1")
    assert table.restore(1) == 3
    assert ids(table) == {"a": (0, 1), "b": (10, 1)}
    assert mark(table) == 17
    begun(table, "d").commit("WRITE")
    assert ids(table)["d"] == (18, 4)


def test_ids_survive_a_checkpoint(table: Table) -> None:
    table.checkpoint()
    for version in range(2):
        table.store.delete(commit_name(version))
    again = Table.open(table.store)
    assert ids(again) == {"a": (0, 1), "b": (10, 1)}
    begun(again).commit("WRITE")
    assert ids(again)["c"] == (15, 2)


@pytest.mark.parametrize("text", ["{}", "not json", '{"rowIdHighWaterMark": "x"}'])
def test_a_mark_that_cannot_be_read_is_a_corrupt_table(table: Table, text: str) -> None:
    whole = table.store.read(commit_name(1))
    broken = whole.replace(json.dumps('{"rowIdHighWaterMark":14}').encode(), json.dumps(text).encode())
    assert broken != whole
    table.store.put(commit_name(1), broken)
    with pytest.raises(errors.CorruptTable, match=r"delta\.rowTracking"):
        begun(Table.open(table.store)).commit("WRITE")


def test_files_with_ids_and_no_mark_are_a_corrupt_table(table: Table) -> None:
    data = table.store.read(commit_name(1)).splitlines()
    table.store.put(commit_name(1), b"\n".join(line for line in data if b"domainMetadata" not in line))
    with pytest.raises(errors.CorruptTable, match="no domain"):
        begun(Table.open(table.store)).commit("WRITE")


# --- after a race ---------------------------------------------------------------------------------------------------


def test_a_first_file_without_rows_needs_no_mark(memory_uri: str, clock: Any) -> None:
    table = create(memory_uri, clock, ENABLED)
    begun(table, "a", 0).commit("WRITE")
    begun(table, "b", 0).commit("WRITE")
    begun(table).commit("WRITE")
    assert ids(table) == {"a": (0, 1), "b": (0, 2), "c": (0, 3)}
    assert mark(table) == 2


def test_after_a_lost_race_ids_follow_the_winners(table: Table) -> None:
    tx = begun(table, "mine", 3)
    begun(table, "theirs", 100).commit("WRITE")
    begun(table, "theirs-2", 1).commit("WRITE")
    assert tx.commit("WRITE") == 4
    assert ids(table) == {"a": (0, 1), "b": (10, 1), "theirs": (15, 2), "theirs-2": (115, 3), "mine": (116, 4)}
    assert mark(table) == 118
    assert [domain.domain for domain in written(table, 4).domains] == ["delta.rowTracking"]


def test_after_a_winner_that_numbered_nothing_only_the_commit_version_moves(table: Table) -> None:
    tx = begun(table, "mine", 3)
    winner = table.begin()
    winner.remove("a")
    winner.commit("DELETE")
    assert tx.commit("WRITE") == 3
    assert ids(table)["mine"] == (15, 3)
    assert mark(table) == 17


def test_a_file_added_again_keeps_its_ids_after_a_lost_race(table: Table) -> None:
    tx = begun(table, "mine", 3)
    tx.add(path="b", size=1, stats=stats(5), data_change=False)
    begun(table, "theirs", 10).commit("WRITE")
    tx.commit("WRITE")
    assert ids(table) == {"a": (0, 1), "b": (10, 1), "theirs": (15, 2), "mine": (25, 3)}


def test_a_winner_that_turned_row_tracking_on_is_a_conflict(memory_uri: str, clock: Any) -> None:
    """Files staged before it have no ids (soundness A18)."""
    table = Table.create(memory_uri, SCHEMA, clock=clock)
    tx = begun(table)
    winner = table.begin()
    winner.set_protocol(TRACKING)
    winner.commit("ADD FEATURE")
    with pytest.raises(errors.ProtocolChanged, match="rowTracking"):
        tx.commit("WRITE")


# --- what the commit says of older rows -----------------------------------------------------------------------------


def test_rows_that_are_moved_with_their_ids_keep_them(table: Table) -> None:
    tx = table.begin()
    tx.remove("a", data_change=False)
    tx.add(path="c", size=1, stats=stats(10), data_change=False)
    tx.keep_row_ids()
    assert tx.commit("OPTIMIZE") == 2
    assert preserved(table, 2) == "true"
    # The file has a base of its own all the same.
    assert ids(table)["c"] == (15, 2)


@pytest.mark.parametrize(
    ("removes", "adds", "expected"),
    [
        pytest.param((), ("c",), "true", id="an append"),
        pytest.param(("a",), (), "true", id="whole files go"),
        pytest.param((), (), "true", id="nothing moves"),
        pytest.param(("a",), ("c",), "false", id="rows may have moved"),
        pytest.param((), ("a",), "true", id="a file is added again"),
        pytest.param((), ("a", "c"), "true", id="a file is added again beside an append"),
    ],
)
def test_a_commit_says_whether_rows_kept_their_ids(
    table: Table, removes: tuple[str, ...], adds: tuple[str, ...], expected: str
) -> None:
    tx = table.begin()
    for path in removes:
        tx.remove(path)
    for path in adds:
        tx.add(path=path, size=1, stats=stats(10), data_change=path != "a")
    tx.commit("WRITE", tags={"mine": "kept"}, record_empty=True)
    assert preserved(table, 2) == expected
    assert (written(table, 2).info or {})["tags"]["mine"] == "kept"


# --- switching it on ------------------------------------------------------------------------------------------------


def with_properties(metadata: Metadata, properties: dict[str, str]) -> Metadata:
    return msgspec.structs.replace(metadata, configuration={**metadata.configuration, **properties})


def test_a_new_table_gets_the_feature_and_names_for_the_columns(memory_uri: str, clock: Any) -> None:
    table = Table.create(memory_uri, SCHEMA, properties={"delta.enableRowTracking": "true"}, clock=clock)
    snapshot = table.snapshot()
    assert {"rowTracking", "domainMetadata"} <= set(snapshot.protocol.writer_features or [])
    row_id = snapshot.properties["delta.rowTracking.materializedRowIdColumnName"]
    row_version = snapshot.properties["delta.rowTracking.materializedRowCommitVersionColumnName"]
    assert row_id.startswith("_row-id-col-")
    assert row_version.startswith("_row-commit-version-col-")
    begun(table).commit("WRITE")
    assert ids(table) == {"c": (0, 1)}


def test_enabling_it_where_every_file_has_ids_is_allowed(memory_uri: str, clock: Any) -> None:
    table = create(memory_uri, clock, {})
    begun(table).commit("WRITE")
    tx = table.begin()
    tx.set_metadata(with_properties(table.snapshot().metadata, ENABLED))
    assert tx.commit("SET TBLPROPERTIES") == 2


@pytest.mark.parametrize(
    ("suspended", "properties", "message"),
    [
        ("true", ENABLED, "1 of its files have no row ids"),
        ("false", {"delta.enableRowTracking": "true"}, "name no columns"),
    ],
)
def test_enabling_it_where_rows_would_have_no_id_is_refused(
    memory_uri: str, clock: Any, suspended: str, properties: dict[str, str], message: str
) -> None:
    table = create(memory_uri, clock, {"delta.rowTrackingSuspended": suspended})
    begun(table).commit("WRITE")
    tx = table.begin()
    tx.set_metadata(with_properties(table.snapshot().metadata, {**properties, "delta.rowTrackingSuspended": "false"}))
    with pytest.raises(errors.InvalidCommit, match=message):
        tx.commit("SET TBLPROPERTIES")


def test_the_property_without_the_feature_is_refused(memory_uri: str, clock: Any) -> None:
    """Another writer has set it; ours would add the feature."""
    table = Table.create(memory_uri, SCHEMA, clock=clock)
    enabled = with_properties(table.snapshot().metadata, ENABLED)
    table.store.put_if_absent(commit_name(1), encode_commit({"operation": "x"}, [enabled]))
    with pytest.raises(errors.UnsupportedFeature, match="rowTracking"):
        table.begin()


# --- clustered tables, and those with a protected checkpoint --------------------------------------------------------


CLUSTERED = DomainMetadata(
    domain="delta.clustering",
    configuration='{"clusteringColumns":[["id"]],"domainName":"delta.clustering"}',
    removed=False,
)


def clustered(
    uri: str, clock: Any, properties: dict[str, str] | None = None, domain: DomainMetadata = CLUSTERED
) -> Table:
    table = Table.create(uri, SCHEMA, properties=properties, clock=clock)
    tx = table.begin()
    tx.set_protocol(msgspec.structs.replace(TRACKING, writer_features=["clustering", "domainMetadata"]))
    tx.set_domain(CLUSTERED.domain, CLUSTERED.configuration)
    tx.commit("CLUSTER BY")
    return table


def test_a_clustered_table_takes_files_that_tell_the_clustering_columns(memory_uri: str, clock: Any) -> None:
    table = clustered(memory_uri, clock)
    tx = table.begin()
    tx.add(path="a", size=1, stats=json.dumps({"numRecords": 2, "nullCount": {"id": 0}}))
    assert tx.commit("WRITE") == 2
    assert table.snapshot().state.domains["delta.clustering"] == CLUSTERED
    for text in (None, "{}", stats(2), json.dumps({"numRecords": 2, "nullCount": {"id": {}}}), "not json"):
        tx = table.begin()
        tx.add(path="b", size=1, stats=text)
        with pytest.raises(errors.InvalidCommit, match="clustered by id"):
            tx.commit("WRITE")


def test_clustering_columns_that_cannot_be_read_are_a_corrupt_table(memory_uri: str, clock: Any) -> None:
    table = Table.create(memory_uri, SCHEMA, clock=clock)
    tx = table.begin()
    tx.set_domain("delta.clustering", "{}")
    tx.add(path="a", size=1)
    with pytest.raises(errors.CorruptTable, match="clustering columns"):
        tx.commit("CLUSTER BY")


def test_a_table_that_is_no_longer_clustered_asks_for_nothing(memory_uri: str, clock: Any) -> None:
    table = clustered(memory_uri, clock)
    tx = table.begin()
    tx.set_domain("delta.clustering", "{}", removed=True)
    tx.commit("CLUSTER BY NONE")
    begun(table).commit("WRITE")


def test_a_table_with_a_protected_checkpoint_is_written_and_its_log_is_left_as_it_is(
    memory_uri: str, clock: Any
) -> None:
    table = Table.create(memory_uri, SCHEMA, clock=clock)
    tx = table.begin()
    tx.set_protocol(msgspec.structs.replace(TRACKING, writer_features=["checkpointProtection"]))
    tx.commit("DROP FEATURE")
    begun(table).commit("WRITE")
    clock.time_ms += 90 * 24 * 3_600_000
    begun(table, "d").commit("WRITE")
    table.checkpoint()
    assert [name for name in range(4) if table.store.stat(commit_name(name)) is None] == []


@pytest.mark.parametrize("name", ["_row-id-col-1", "_ROW-COMMIT-VERSION-COL-1"])
def test_no_column_gets_the_name_under_which_files_keep_ids(table: Table, name: str) -> None:
    """Such a column would show the ids of the rows that have moved."""
    tx = table.begin()
    with pytest.raises(errors.SchemaMismatch) as raised:
        tx.evolve_schema(pa.schema([*SCHEMA, (name, pa.int64())]))
    assert raised.value.columns == [name]
    with pytest.raises(errors.SchemaMismatch):
        Table(MemoryStore(table.uri + "-2")).begin_create(pa.schema([(name, pa.int64())]), properties=ENABLED)
