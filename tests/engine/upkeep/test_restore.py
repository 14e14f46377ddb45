"""RESTORE: the parts of a version that it restores, those that it keeps, and the restores that are refused."""

from __future__ import annotations

import json
import os
import shutil
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import DeletionVector, DomainMetadata, Protocol, encode_commit
from airflow_txlog.engine.log.columns import table_to_adds
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.errors import (
    ConcurrentWrite,
    FilesMissing,
    InvalidInput,
    OutsideTable,
    TimestampOutOfRange,
    UnsupportedFeature,
    VersionNotFound,
)
from airflow_txlog.storage import LocalStore
from tests.conftest import ManualClock
from tests.helpers.rows import append, sorted_rows

SCHEMA = pa.schema([("day", pa.string()), ("id", pa.int64())])
WITH_VECTORS = Protocol(
    min_reader_version=3,
    min_writer_version=7,
    reader_features=["deletionVectors"],
    writer_features=["appendOnly", "deletionVectors", "domainMetadata", "invariants"],
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "t"


def grown(folder: Path, properties: dict[str, str] | None = None) -> Table:
    """Version 1: days 1 and 2. Version 2: day 1 deleted. Version 3: day 3 appended."""
    table = Table.create(str(folder), SCHEMA, partition_by=["day"], properties=properties)
    append(table, [{"day": "1", "id": 1}, {"day": "2", "id": 2}])
    tx = table.begin()
    tx.remove(tx.read("day = '1'"))
    tx.commit("DELETE")
    append(table, [{"day": "3", "id": 3}])
    return table


def test_an_earlier_version_is_the_latest_again(folder: Path) -> None:
    table = grown(folder)
    before = [sorted_rows(table.to_arrow(version=version)) for version in range(4)]
    assert table.restore(version=1) == 4
    assert sorted_rows(table.to_arrow()) == before[1]
    assert [sorted_rows(table.to_arrow(version=version)) for version in range(4)] == before
    files = {row["path"]: row for row in table.snapshot(1).files().to_pylist()}
    assert {row["path"]: row for row in table.snapshot().files().to_pylist()} == files, "statistics and all"
    entry = table.history(1)[0]
    assert entry["operation"] == "RESTORE"
    assert entry["operationParameters"] == {"version": "1"}
    sizes = {row["partition_values"][0][1]: row["size"] for row in table.snapshot(1).files().to_pylist()}
    removed = table.snapshot(3).files("day = '3'").column("size").to_pylist()
    assert {name: int(value) for name, value in entry["operationMetrics"].items()} == {
        "tableSizeAfterRestore": sizes["1"] + sizes["2"],
        "numOfFilesAfterRestore": 2,
        "numRemovedFiles": 1,
        "numRestoredFiles": 1,
        "removedFilesSize": removed[0],
        "restoredFilesSize": sizes["1"],
    }
    assert entry["isBlindAppend"] is False


def test_every_change_of_a_restore_says_that_it_changes_data(folder: Path) -> None:
    table = grown(folder)
    table.restore(version=1)
    lines = [json.loads(line) for line in table.store.read(commit_name(4)).splitlines()]
    changes = [action for line in lines for name, action in line.items() if name in ("add", "remove")]
    assert len(changes) == 2
    assert all(action["dataChange"] for action in changes)


def test_deltalake_reads_a_restored_table(folder: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    table = grown(folder)
    table.restore(version=1)
    theirs = deltalake.DeltaTable(str(folder))
    assert theirs.version() == 4
    assert sorted_rows(pa.table(theirs.to_pyarrow_table())) == sorted_rows(table.to_arrow(version=1))
    assert theirs.history(1)[0]["operation"] == "RESTORE"
    assert append(table, [{"day": "9", "id": 9}]) == 5


def test_the_present_version_needs_no_restore(folder: Path) -> None:
    table = grown(folder)
    assert table.restore(version=3) == 3
    assert table.snapshot().version == 3


def test_a_moment_is_restored_and_told_in_the_history(memory_uri: str, clock: ManualClock) -> None:
    from airflow_txlog.storage import MemoryStore

    store = MemoryStore(memory_uri, clock=clock)
    table = Table.create(store, SCHEMA, clock=clock)
    start = clock.time_ms
    for version in (1, 2, 3):
        clock.time_ms = start + version * 1000
        store.put(f"f{version}", b"x")
        tx = table.begin()
        tx.add(path=f"f{version}", size=1)
        tx.commit("WRITE")
    assert table.restore(timestamp=start + 1500) == 4
    assert table.snapshot().files().column("path").to_pylist() == ["f1"]
    parameters = table.history(1)[0]["operationParameters"]
    assert parameters == {"version": "1", "timestamp": "2023-11-14T22:13:21.500+00:00"}
    with pytest.raises(TimestampOutOfRange):
        table.restore(timestamp=start - 1)


def test_a_version_or_a_moment_must_be_asked_for(folder: Path) -> None:
    table = grown(folder)
    for asked in ({}, {"version": 1, "timestamp": 5}):
        with pytest.raises(InvalidInput):
            table.restore(**asked)
    for version in (-1, 4):
        with pytest.raises(VersionNotFound):
            table.restore(version=version)
    assert table.snapshot().version == 3


# --- files that are gone --------------------------------------------------------------------------------------------


def test_after_a_vacuum_a_restore_names_what_is_gone(folder: Path) -> None:
    table = grown(folder)
    assert table.vacuum(timedelta(0), check_retention=False).deleted_files == 1
    version = table.snapshot().version
    with pytest.raises(FilesMissing) as error:
        table.restore(version=1)
    gone = table.snapshot(1).files("day = '1'").column("path").to_pylist()
    assert (error.value.count, error.value.examples, error.value.version) == (1, gone, 1)
    assert gone[0] in str(error.value)
    assert "lacks 1 row of these files" in str(error.value)
    assert table.snapshot().version == version
    assert table.restore(version=1, ignore_missing=True) == version + 1
    assert sorted_rows(table.to_arrow()) == [{"day": "2", "id": 2}]
    metrics = table.history(1)[0]["operationMetrics"]
    assert (metrics["numOfFilesAfterRestore"], metrics["numRestoredFiles"]) == ("1", "0")
    assert metrics["tableSizeAfterRestore"] == str(table.snapshot().size_bytes)


def test_a_restore_that_begins_while_a_vacuum_deletes_loses_no_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, errors = grown(folder), []
    delete = LocalStore.delete

    def beginning(self: LocalStore, path: str) -> None:
        if path.endswith(".parquet") and not errors:
            # The vacuum has read the log for the last time.
            with pytest.raises(ConcurrentWrite) as error:
                Table.open(table.uri).restore(version=1)
            errors.append(error.value)
        delete(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "delete", beginning)
        assert table.vacuum(timedelta(0), check_retention=False).deleted_files == 1
    (error,) = errors
    assert error.retryable
    assert error.winning_operation == "VACUUM START"
    assert sorted_rows(Table.open(table.uri).to_arrow()) == [{"day": "2", "id": 2}, {"day": "3", "id": 3}]
    # It is over: what is left comes back.
    assert table.restore(version=2) == table.snapshot().version


def test_a_vacuum_that_was_killed_does_not_stop_restores_for_ever(folder: Path) -> None:
    table = grown(folder)
    for _ in range(2):
        table.begin().commit("VACUUM START")
        table.begin().commit("VACUUM END", {"status": "COMPLETED"})
    table.begin().commit("VACUUM START")
    with pytest.raises(ConcurrentWrite):
        table.restore(version=1)
    # A restore that brings no file back loses none.
    table.restore(version=3)
    for path in (folder / "_delta_log").iterdir():
        os.utime(path, (time.time() - 7 * 3600,) * 2)
    table = Table.open(table.uri)
    table.restore(version=1)
    assert [row["id"] for row in sorted_rows(table.to_arrow())] == [1, 2]


def test_a_file_that_was_overwritten_counts_as_gone(folder: Path) -> None:
    table = grown(folder)
    path = table.snapshot(1).files("day = '1'").column("path")[0].as_py()
    with (folder / path).open("ab") as file:
        file.write(b"more")
    with pytest.raises(FilesMissing):
        table.restore(version=1)


def test_a_file_outside_the_table_is_looked_for_where_it_is(folder: Path, tmp_path: Path) -> None:
    """A shallow clone: its files lie in another table, by absolute path."""
    table = grown(folder)
    Table.create(str(tmp_path / "clone"), SCHEMA, partition_by=["day"])
    clone = Table.open(str(tmp_path / "clone"), allow_absolute_paths=True)
    tx = clone.begin()
    for row in table.snapshot(1).files().to_pylist():
        uri = f"file://{folder}/{row['path']}"
        tx.add(path=uri, size=row["size"], partition_values=dict(row["partition_values"]), stats=row["stats"])
    tx.commit("CLONE")
    tx = clone.begin()
    tx.remove(tx.read())
    tx.commit("DELETE")
    with pytest.raises(OutsideTable, match="allow_absolute_paths"):
        Table.open(str(tmp_path / "clone")).restore(version=1)
    assert clone.restore(version=1) == 3
    assert sorted_rows(clone.to_arrow()) == sorted_rows(table.to_arrow(version=1))
    tx = clone.begin()
    tx.remove(tx.read())
    tx.commit("DELETE")
    shutil.rmtree(folder / "day=1")
    with pytest.raises(FilesMissing) as error:
        clone.restore(version=1)
    assert error.value.count == 1


# --- metadata, protocol, deletion vectors ---------------------------------------------------------------------------


def test_schema_and_properties_come_back_and_the_identity_of_the_table_stays(folder: Path) -> None:
    table = grown(folder, {"delta.isolationLevel": "WriteSerializable", "who": "me"})
    tx = table.begin()
    metadata = table.snapshot().metadata
    fields = json.loads(metadata.schema_string)
    fields["fields"].append({"name": "more", "type": "string", "nullable": True, "metadata": {}})
    properties = {"delta.appendOnly": "false", "who": "you", "delta.enableInCommitTimestamps": "false"}
    changed = msgspec.structs.replace(
        metadata, id="another", schema_string=json.dumps(fields), configuration=properties, description="changed"
    )
    tx.set_metadata(changed)
    tx.commit("CHANGE")
    table = Table.open(str(folder))
    assert table.restore(version=3) == 5
    snapshot = Table.open(str(folder)).snapshot()
    assert snapshot.schema == SCHEMA
    assert snapshot.properties["who"] == "me"
    assert snapshot.metadata.description == metadata.description
    assert snapshot.metadata.id == "another"
    # What speaks of the log and not of the version.
    assert snapshot.properties["delta.enableInCommitTimestamps"] == "false"


def test_a_restore_from_before_append_only_was_set_takes_it_away_and_removes_rows(folder: Path) -> None:
    table = grown(folder)
    metadata = table.snapshot().metadata
    tx = table.begin()
    tx.set_metadata(msgspec.structs.replace(metadata, configuration={"delta.appendOnly": "true"}))
    tx.commit("SET TBLPROPERTIES")
    table = Table.open(str(folder))
    table.restore(version=1)
    snapshot = Table.open(str(folder)).snapshot()
    assert "delta.appendOnly" not in snapshot.properties
    assert snapshot.num_files == table.snapshot(1).num_files


def test_what_belongs_to_the_log_stays(folder: Path) -> None:
    table = grown(folder)
    tx = table.begin()
    tx.set_application("loader", 7)
    tx.set_protocol(WITH_VECTORS)
    tx.set_domain("mine", "{}")
    tx.commit("UPGRADE PROTOCOL")
    table.restore(version=1)
    snapshot = Table.open(str(folder)).snapshot()
    assert snapshot.protocol == WITH_VECTORS
    assert snapshot.application_version("loader") == 7
    assert snapshot.state.domains == {"mine": DomainMetadata(domain="mine", configuration="{}", removed=False)}


def raw_commit(table: Table, *actions: Any) -> int:
    """A commit as another engine writes it."""
    version = int(table.store.list("_delta_log")[-1].path[-25:-5]) + 1
    assert table.store.put_if_absent(commit_name(version), encode_commit({"operation": "x"}, actions))
    return version


def test_a_feature_that_the_protocol_dropped_is_refused_by_name(folder: Path) -> None:
    """Version 4 has a column of a type that needs a feature; version 5 has neither the column nor the feature."""
    table = grown(folder)
    metadata = table.snapshot().metadata
    fields = json.loads(metadata.schema_string)
    fields["fields"].append({"name": "at", "type": "timestamp_ntz", "nullable": True, "metadata": {}})
    with_ntz = Protocol(
        min_reader_version=3, min_writer_version=7, reader_features=["timestampNtz"], writer_features=["timestampNtz"]
    )
    raw_commit(table, with_ntz, msgspec.structs.replace(metadata, schema_string=json.dumps(fields)))
    raw_commit(table, Protocol(min_reader_version=1, min_writer_version=2), metadata)
    table = Table.open(str(folder))
    with pytest.raises(UnsupportedFeature) as error:
        table.restore(version=4)
    assert error.value.feature == "timestampNtz"
    assert table.snapshot().version == 5
    assert table.restore(version=3) == 6


def test_a_version_with_mapped_columns_is_refused_after_the_mapping_was_dropped(folder: Path) -> None:
    table = Table.create(str(folder), SCHEMA, properties={"delta.columnMapping.mode": "name"})
    plain = msgspec.structs.replace(table.snapshot().metadata, configuration={})
    raw_commit(table, Protocol(min_reader_version=1, min_writer_version=2), plain)
    with pytest.raises(UnsupportedFeature, match="Add the feature to the table first") as error:
        Table.open(str(folder)).restore(version=0)
    assert error.value.feature == "columnMapping"


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"delta.enableDeletionVectors": "true"},
        {"delta.feature.deletionVectors": "supported"},
        {"delta.enableRowTracking": "true"},
        {"delta.enableInCommitTimestamps": "true"},
        {"delta.checkpointPolicy": "v2"},
        {"delta.enableTypeWidening": "true"},
    ],
)
def test_a_mapped_table_is_restored_by_the_features_that_it_uses(folder: Path, properties: dict[str, str]) -> None:
    """A legacy number stands for features that a list of features need not hold."""
    mapped = {"delta.columnMapping.mode": "name", **properties}
    table = Table.create(str(folder), SCHEMA, properties=mapped)
    append(table, [{"day": "1", "id": 1}])
    append(table, [{"day": "2", "id": 2}])
    assert table.restore(version=1) == 3
    assert sorted_rows(table.to_arrow()) == [{"day": "1", "id": 1}]


def test_a_version_with_vectors_is_refused_by_a_protocol_without_them(folder: Path) -> None:
    table = Table.create(str(folder), SCHEMA, properties={"delta.enableDeletionVectors": "true"})
    append(table, [{"day": "1", "id": 1}])
    metadata = table.snapshot().metadata
    off = {name: value for name, value in metadata.configuration.items() if name != "delta.enableDeletionVectors"}
    lowest = Protocol(min_reader_version=1, min_writer_version=2)
    raw_commit(table, lowest, msgspec.structs.replace(metadata, configuration=off))
    with pytest.raises(UnsupportedFeature) as error:
        Table.open(str(folder)).restore(version=1)
    assert error.value.feature == "deletionVectors"


def test_a_restore_meets_any_commit_that_lands_first(folder: Path) -> None:
    """C71: an append that landed between reading and committing would be removed unseen, so the restore gives up."""
    table = grown(folder)

    class Overtaken:
        """A store in which another writer lands an append just before our commit."""

        landed = False

        def __getattr__(self, name: str) -> Any:
            return getattr(table.store, name)

        def put_if_absent(self, path: str, data: bytes) -> bool:
            if not self.landed:
                self.landed = True
                append(table, [{"day": "4", "id": 4}])
            return table.store.put_if_absent(path, data)

    with pytest.raises(ConcurrentWrite) as error:
        Table(Overtaken()).restore(version=1)  # type: ignore[arg-type]
    assert error.value.retryable
    assert table.snapshot().version == 4
    assert table.to_arrow().num_rows == 3


def with_vector(folder: Path, vector: DeletionVector) -> tuple[Table, str]:
    """The grown table, in which the file of day 2 has this vector since its last version; and that file's path."""
    tx = grown(folder).begin()
    tx.set_protocol(WITH_VECTORS)
    tx.commit("UPGRADE PROTOCOL")
    table = Table.open(str(folder))
    files = table.snapshot().files("day = '2'")
    tx = table.begin()
    tx.remove(files)
    (plain,) = table_to_adds(files, data_change=True)
    tx.add(msgspec.structs.replace(plain, deletion_vector=vector))
    tx.commit("DELETE")
    return table, plain.path


def test_a_file_with_another_deletion_vector_is_another_file(folder: Path) -> None:
    """Restoring across a vector takes the file as it was masked then: one add and one remove of the same path."""
    gone = DeletionVector(storage_type="i", path_or_inline_dv="wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
                          size_in_bytes=40, cardinality=1)  # fmt: skip
    table, path = with_vector(folder, gone)
    lines = restored_lines(table, 4)
    adds = [line["add"] for line in lines if "add" in line]
    removes = [line["remove"] for line in lines if "remove" in line]
    assert [(add["path"], add.get("deletionVector")) for add in adds] == [(path, None)]
    assert [remove["path"] for remove in removes] == [path]
    assert removes[0]["deletionVector"]["cardinality"] == 1
    assert table.restore(version=5) == 7
    assert table.snapshot().files("day = '2'").column("deletion_vector")[0].as_py()["cardinality"] == 1


def restored_lines(table: Table, version: int) -> list[dict[str, Any]]:
    version = table.restore(version=version)
    return [json.loads(line) for line in table.store.read(commit_name(version)).splitlines()]


def test_a_deletion_vector_whose_file_is_gone_counts_as_gone(folder: Path) -> None:
    stored = DeletionVector(
        storage_type="u", path_or_inline_dv="ab^-aqEH.-t@S}K{vb[*k^", offset=1, size_in_bytes=40, cardinality=1
    )
    table, path = with_vector(folder, stored)
    tx = table.begin()
    tx.remove(table.snapshot().files("day = '2'"))
    tx.commit("DELETE")
    with pytest.raises(FilesMissing) as error:
        table.restore(version=5)
    assert error.value.examples == [path]
    place = folder / "ab" / "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    place.parent.mkdir()
    place.write_bytes(b"x" * 60)
    assert table.restore(version=5) == 7


def test_the_clustering_columns_come_back_and_row_ids_stay(folder: Path) -> None:
    """Row ids are the file's for ever; the clustering belongs to the version, and no other domain does."""
    table = grown(folder)
    tx = table.begin()
    features = ["appendOnly", "clustering", "domainMetadata", "invariants", "rowTracking"]
    tx.set_protocol(Protocol(min_reader_version=1, min_writer_version=7, writer_features=features))
    tx.commit("UPGRADE PROTOCOL")
    table = Table.open(str(folder))
    append(table, [{"day": "5", "id": 5}])
    ids = {row["path"]: row["base_row_id"] for row in table.snapshot().files("day = '5'").to_pylist()}
    assert list(ids.values()) == [0]
    tx = table.begin()
    tx.set_domain("delta.clustering", '{"clusteringColumns":[["id"]]}')
    tx.set_domain("mine", "{}")
    tx.commit("CLUSTER BY")
    tx = table.begin()
    tx.remove(tx.read("day = '5'"))
    tx.commit("DELETE")
    high = table.snapshot().state.domains["delta.rowTracking"]
    table.restore(version=5)
    snapshot = Table.open(str(folder)).snapshot()
    assert {row["path"]: row["base_row_id"] for row in snapshot.files("day = '5'").to_pylist()} == ids
    assert snapshot.state.domains.keys() == {"delta.rowTracking", "mine"}
    assert snapshot.state.domains["delta.rowTracking"] == high
    table.restore(version=6)
    assert "delta.clustering" in Table.open(str(folder)).snapshot().state.domains
