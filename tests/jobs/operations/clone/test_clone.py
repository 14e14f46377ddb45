"""Alone in showing CLONE as a job: what a clone has of its source, what of its own, and which clones are refused."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import DeletionVector
from airflow_txlog.engine.table.snapshot.files import record_counts
from airflow_txlog.errors import OutsideTable
from airflow_txlog.storage import LocalStore
from tests.helpers.jobs import (
    SCHEMA,
    application,
    by_id,
    committed,
    error_of,
    files_on_disk,
    ids,
    read_alike,
    rows,
    run,
    set_property,
)
from tests.helpers.racing import before_commit
from tests.helpers.rows import append, overwrite, stage
from tests.helpers.staged import discard, publish
from tests.helpers.staged import stage as stage_change

VECTORS = {"delta.enableDeletionVectors": "true"}
KINDS = pytest.mark.parametrize("shallow", [True, False], ids=["shallow", "deep"])


def clone(target: Path, source: Path | Table, *, version: int | None = None, **arguments: Any) -> JobResult:
    uri = source.uri if isinstance(source, Table) else str(source)
    return run(None, "clone", target, source={"table": uri, "version": version}, **arguments)


def opened(place: Path) -> Table:
    return Table.open(place, allow_absolute_paths=True)


@pytest.fixture
def source(tmp_path: Path) -> Table:
    """Version 3 of a partitioned table in a folder with a difficult name: ids 0 to 3 and 5 to 8, of two days."""
    table = Table.create(tmp_path / "a b%20c" / "é", SCHEMA, ["day"], properties=VECTORS)
    append(table, rows(4))
    append(table, rows(5, start=4, day=dt.date(2024, 1, 2)))
    committed(run(None, "delete", table, predicate="id = 4"))
    return table


def log_of(place: Path, version: int = 0) -> list[dict[str, Any]]:
    path = place / "_delta_log" / f"{version:020}.json"
    return [json.loads(line) for line in path.read_text().splitlines()]


def actions(place: Path, kind: str, version: int = 0) -> list[dict[str, Any]]:
    return [line[kind] for line in log_of(place, version) if kind in line]


@KINDS
def test_a_clone_of_a_staged_change_has_the_rows_that_its_publication_would_make(
    source: Table, tmp_path: Path, shallow: bool
) -> None:
    place = tmp_path / "trial"
    handle = stage_change("update", source, set={"name": "'x'"}, predicate="id < 2 OR id = 8")
    append(source, rows(1, start=90))
    staged = {"table": source.uri, "staged": {"id": handle["id"], "digest": handle["digest"]}}
    committed(run(None, "clone", place, source=staged, shallow=shallow))
    names = by_id(opened(place))
    assert names == by_id(source.with_staged(handle["id"], handle["digest"]))
    assert [id for id, name in names.items() if name == "x"] == [0, 1, 8]
    # The next trial replaces it.
    committed(publish(handle))
    other = stage_change("delete", source, predicate="id < 5")
    staged["staged"] = {"id": other["id"], "digest": other["digest"]}
    committed(run(None, "clone", place, source=staged, shallow=shallow, replace=True))
    assert ids(opened(place)) == [5, 6, 7, 8, 90]
    discard(other)
    gone = run(None, "clone", place, source=staged, shallow=shallow, replace=True)
    assert error_of(gone)["type"] == "StagedChangeGone"


# --- what a clone is ------------------------------------------------------------------------------------------------


@KINDS
def test_a_clone_has_the_rows_and_the_definition_of_its_source_and_an_id_of_its_own(
    source: Table, tmp_path: Path, shallow: bool
) -> None:
    place = tmp_path / "t"
    result = committed(clone(place, source, shallow=shallow))
    assert (result.version, result.read_version, result.files["added"]) == (0, None, 2)
    table, was = opened(place), source.snapshot()
    assert by_id(table) == by_id(source)
    now = table.snapshot()
    assert (now.delta_schema, now.partition_columns) == (was.delta_schema, ["day"])
    assert (now.protocol, now.properties) == (was.protocol, was.properties)
    assert now.metadata.id != was.metadata.id
    (entry,) = table.history()
    assert entry["operation"] == "CLONE"
    path = source.uri.removeprefix("file://")
    said = {"source": f"delta.`file:{path}`", "sourceVersion": "3", "isShallow": json.dumps(shallow)}
    assert entry["operationParameters"] == said
    assert entry["operationMetrics"]["sourceNumOfFiles"] == "2"
    copied = "0" if shallow else entry["operationMetrics"]["sourceTableSize"]
    assert entry["operationMetrics"]["copiedFilesSize"] == copied


def test_a_shallow_clone_copies_nothing_and_names_the_files_by_uris_as_delta_spells_them(
    source: Table, tmp_path: Path
) -> None:
    committed(clone(tmp_path / "t", source, shallow=True))
    assert files_on_disk(tmp_path / "t") == set()
    one, other = actions(tmp_path / "t", "add")
    assert all(add["path"].startswith(f"file:{tmp_path}/a%20b%2520c/é/day=2024-01-0") for add in (one, other))
    vectors = [add["deletionVector"] for add in (one, other) if "deletionVector" in add]
    assert [vector["storageType"] for vector in vectors] == ["p"]
    for path in (one["path"], vectors[0]["pathOrInlineDv"]):
        assert Path(unquote(path.removeprefix("file:"))).is_file()


def test_a_deep_clone_stands_alone(source: Table, tmp_path: Path) -> None:
    committed(clone(tmp_path / "t", source))
    found = by_id(source)
    for path in sorted((tmp_path / "a b%20c").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    table = Table.open(tmp_path / "t")
    assert by_id(table) == found
    assert len(files_on_disk(tmp_path / "t")) == 3, "two files of rows and one of vectors"
    committed(run(None, "optimize", table, purge=True))
    read_alike(table)


@pytest.mark.parametrize("shallow", [True, False])
@pytest.mark.parametrize("at", [{"version": 1}, {"timestamp": "moment"}])
def test_a_clone_is_of_the_version_or_the_moment_that_is_named(
    source: Table, tmp_path: Path, shallow: bool, at: dict[str, Any]
) -> None:
    (moment,) = (each["timestamp"] for each in source.history() if each["version"] == 1)
    given = at if "version" in at else {"timestamp": dt.datetime.fromtimestamp(moment / 1000, dt.UTC).isoformat()}
    committed(clone(tmp_path / "t", source, shallow=shallow, **given))
    assert ids(opened(tmp_path / "t")) == [0, 1, 2, 3]
    assert actions(tmp_path / "t", "commitInfo")[0]["operationParameters"]["sourceVersion"] == "1"


def test_properties_replace_those_of_the_source_and_bring_their_features(source: Table, tmp_path: Path) -> None:
    given = {"delta.enableRowTracking": "true", "delta.appendOnly": "true", "delta.feature.clustering": "supported"}
    committed(clone(tmp_path / "t", source, properties=given))
    snapshot = Table.open(tmp_path / "t").snapshot()
    assert {"rowTracking", "domainMetadata", "clustering"} <= set(snapshot.protocol.writer_features or ())
    assert snapshot.properties["delta.appendOnly"] == "true"
    assert "delta.feature.clustering" not in snapshot.properties
    assert sorted(snapshot.files().column("base_row_id").to_pylist()) == [0, 5]
    assert source.snapshot().properties == VECTORS | {"delta.setTransactionRetentionDuration": "interval 30 days"}


def test_a_clone_protects_no_checkpoints_of_its_source(tmp_path: Path) -> None:
    protected = "delta.requireCheckpointProtectionBeforeVersion"
    source = Table.create(tmp_path / "s", SCHEMA, properties={"delta.feature.checkpointProtection": "supported"})
    set_property(source, protected, "7")
    committed(clone(tmp_path / "t", source))
    clones = Table.open(tmp_path / "t")
    assert protected not in clones.snapshot().properties
    set_property(clones, protected, "3")
    append(source, rows(1))
    committed(clone(tmp_path / "t", source, replace=True))
    assert clones.snapshot().properties[protected] == "3"


def test_a_clone_has_row_ids_of_its_own_and_ignores_those_in_the_files(tmp_path: Path) -> None:
    source = Table.create(tmp_path / "s", SCHEMA, properties={"delta.enableRowTracking": "true"})
    append(source, rows(4))
    append(source, rows(4, start=4))
    # Rows that moved, with their ids in a column of the file.
    committed(run(None, "update", source, set={"name": "'x'"}, predicate="id = 1"))
    committed(clone(tmp_path / "t", source))
    was, now = source.snapshot(), Table.open(tmp_path / "t").snapshot()
    files = now.files()
    ranges = zip(files.column("base_row_id").to_pylist(), record_counts(files), strict=True)
    assert sorted(base + each for base, count in ranges for each in range(count or 0)) == list(range(8))
    assert set(now.files().column("default_row_commit_version").to_pylist()) == {0}
    names = [name for name in was.properties if "materialized" in name]
    assert len(names) == 2
    assert all(now.properties[name] != was.properties[name] for name in names)
    assert by_id(Table.open(tmp_path / "t"))[1] == "x"


def test_rows_that_come_later_get_ids_above_all_that_the_clone_ever_had(tmp_path: Path) -> None:
    source = Table.create(tmp_path / "s", SCHEMA, properties={"delta.enableRowTracking": "true"})
    append(source, rows(4))
    committed(clone(tmp_path / "t", source))
    append(Table.open(tmp_path / "t"), rows(20, start=50))
    append(source, rows(2, start=4))
    committed(clone(tmp_path / "t", source, replace=True))
    (add,) = actions(tmp_path / "t", "add", version=2)
    assert (add["baseRowId"], add["defaultRowCommitVersion"]) == (24, 2)


def test_a_clone_claims_no_work_of_its_source(tmp_path: Path) -> None:
    features = {"delta.feature.clustering": "supported", "delta.enableInCommitTimestamps": "true"}
    source = Table.create(tmp_path / "s", SCHEMA, properties=features)
    append(source, rows(2), application=("a load", 7))
    set_property(source, "delta.inCommitTimestampEnablementVersion", "1")
    set_property(source, "txlog.sharedFolder", "true")
    tx = source.begin()
    tx.set_domain("delta.clustering", '{"clusteringColumns":[["id"]]}')
    tx.set_domain("someone.watermark", '{"version":7}')
    tx.commit("ALTER TABLE")
    committed(clone(tmp_path / "t", source, shallow=True))
    snapshot = opened(tmp_path / "t").snapshot()
    assert snapshot.application_version("a load") is None
    assert set(snapshot.state.domains) == {"delta.clustering"}
    left_out = {"delta.inCommitTimestampEnablementVersion", "txlog.sharedFolder"}
    assert not left_out & set(snapshot.properties)
    assert actions(tmp_path / "t", "commitInfo")[0]["inCommitTimestamp"] > 0


def test_a_clone_of_a_mapped_table_reads_its_columns_by_their_ids(tmp_path: Path) -> None:
    source = Table.create(tmp_path / "s", SCHEMA, ["day"], properties={"delta.columnMapping.mode": "name"})
    append(source, rows(3))
    committed(run(None, "alter", source, rename_columns={"name": "label"}, add_columns={"more": "INT"}))
    for name, shallow in (("shallow", True), ("deep", False)):
        committed(clone(tmp_path / name, source, shallow=shallow))
        table = opened(tmp_path / name)
        assert by_id(table, "label") == by_id(source, "label")
        append(table, table.to_arrow().set_column(0, "id", pc.add(table.to_arrow().column("id"), 10)))
        assert ids(table) == [0, 1, 2, 10, 11, 12]


def test_a_clone_of_a_shallow_clone_names_or_copies_the_files_of_the_first_table(source: Table, tmp_path: Path) -> None:
    committed(clone(tmp_path / "one", source, shallow=True))
    append(opened(tmp_path / "one"), rows(1, start=50))
    committed(clone(tmp_path / "two", tmp_path / "one", shallow=True, allow_absolute_paths=True))
    assert ids(opened(tmp_path / "two")) == [0, 1, 2, 3, 5, 6, 7, 8, 50]
    paths = [add["path"] for add in actions(tmp_path / "two", "add")]
    assert sorted(f"file:{tmp_path}/one/" in path for path in paths) == [False, False, True]
    for shallow in (True, False):
        error = error_of(clone(tmp_path / "three", tmp_path / "one", shallow=shallow))
        assert (error["type"], Table.exists(tmp_path / "three")) == ("OutsideTable", False)


@KINDS
@pytest.mark.parametrize(
    ("path", "vector"),
    [
        ("file://{}/secret", None),
        ("{}/secret", None),
        ("../secret", None),
        ("x/..%2F../secret", None),
        ("s3://other/secret", None),
        (None, "file://{}/secret"),
        (None, "s3://other/secret"),
    ],
)
def test_a_clone_makes_no_file_readable_that_its_source_names_outside_of_itself(
    tmp_path: Path, shallow: bool, path: str | None, vector: str | None
) -> None:
    """Readers of a shallow clone need allow_absolute_paths, and would open whatever its source's writers have named."""
    (tmp_path / "secret").write_bytes(b"0123456789")
    table = Table.create(tmp_path / "s", SCHEMA, properties=VECTORS)
    (add,) = stage(table, rows(2))
    if path is not None:
        add = msgspec.structs.replace(add, path=path.format(tmp_path), size=10)
    if vector is not None:
        place = DeletionVector(
            storage_type="p", path_or_inline_dv=vector.format(tmp_path), offset=1, size_in_bytes=1, cardinality=1
        )
        add = msgspec.structs.replace(add, deletion_vector=place)
    commit = {"add": msgspec.to_builtins(add)}
    (tmp_path / "s" / "_delta_log" / f"{1:020}.json").write_text(json.dumps(commit))
    error = error_of(clone(tmp_path / "t", table, shallow=shallow))
    assert (error["type"], Table.exists(tmp_path / "t")) == ("OutsideTable", False)


@pytest.mark.parametrize("path", ["x%00y", "", "folder", "x" * 300])
def test_a_name_that_no_file_can_have_is_a_missing_file(tmp_path: Path, path: str) -> None:
    table = Table.create(tmp_path / "s", SCHEMA)
    (tmp_path / "s" / "folder").mkdir()
    (add,) = stage(table, rows(2))
    commit = {"add": msgspec.to_builtins(msgspec.structs.replace(add, path=path))}
    (tmp_path / "s" / "_delta_log" / f"{1:020}.json").write_text(json.dumps(commit))
    error = error_of(clone(tmp_path / "t", table))
    assert (error["type"], error["facts"]["examples"]) == ("FilesMissing", [path.replace("%00", "\0")])


# --- a shallow clone at work ----------------------------------------------------------------------------------------

STEPS: dict[str, tuple[str, dict[str, Any]]] = {
    "delete": ("delete", {"predicate": "id = 1"}),
    "update": ("update", {"set": {"name": "'x'"}, "predicate": "id = 2"}),
    "optimize": ("optimize", {"target_bytes": 2**20}),
    "purge": ("optimize", {"purge": True}),
    "truncate": ("truncate", {}),
    "restore": ("restore", {"version": 0}),
    "alter": ("alter", {"rename_columns": {"amount": "price"}, "allow_reader_upgrade": True}),
    "row ids": ("alter", {"add_features": ["rowTracking"]}),
}


@pytest.mark.parametrize("properties", [VECTORS, {}], ids=["vectors", "copies"])
def test_a_shallow_clone_is_changed_like_any_table_and_its_source_stays(
    tmp_path: Path, properties: dict[str, str]
) -> None:
    source = Table.create(tmp_path / "s", SCHEMA, ["day"], properties=properties)
    for start in (0, 4):
        append(source, rows(4, start=start))
    before = {path: (tmp_path / "s" / path).read_bytes() for path in files_on_disk(source)}
    committed(clone(tmp_path / "t", source, shallow=True))
    table, model = opened(tmp_path / "t"), by_id(source)
    for name in ("row ids", "delete", "update", "optimize", "purge", "alter", "truncate", "restore", "delete"):
        operation, given = STEPS[name]
        result = run(None, operation, table, allow_absolute_paths=True, **given)
        assert result.error is None, (name, result.error)
        model = {
            "delete": {key: value for key, value in model.items() if key != 1},
            "update": {**model, 2: "x"},
            "truncate": {},
            "restore": by_id(source),
        }.get(name, model)
        assert by_id(opened(tmp_path / "t")) == model, name
    table = opened(tmp_path / "t")
    table.vacuum(0, check_retention=False, orphan_retention=dt.timedelta(days=1))
    table.vacuum(0, check_retention=False, orphan_retention=dt.timedelta(days=1), mode="lite")
    assert by_id(opened(tmp_path / "t")) == model
    assert {path: (tmp_path / "s" / path).read_bytes() for path in files_on_disk(source)} == before
    assert by_id(source) == {number: f"n{number}" for number in range(8)}


def test_rows_of_a_shallow_clone_are_read_only_where_that_is_allowed(source: Table, tmp_path: Path) -> None:
    lines: list[str] = []
    committed(clone(tmp_path / "t", source, shallow=True, log=lines.append))
    with pytest.raises(OutsideTable, match="allow_absolute_paths"):
        Table.open(tmp_path / "t").to_arrow()
    assert any("a VACUUM there deletes" in line and "allow_absolute_paths" in line for line in lines)


def test_a_shallow_clone_takes_no_file_of_a_table_inside_its_own_folder(tmp_path: Path) -> None:
    """Its VACUUM would delete that table's files, once it has removed them."""
    outer = Table.create(tmp_path / "lake", SCHEMA)
    append(outer, rows(1))
    inner = Table.create(tmp_path / "lake" / "inner", SCHEMA, properties=VECTORS)
    append(inner, rows(3))
    committed(clone(tmp_path / "t", inner, shallow=True))
    given: dict[str, Any] = {"replace": True, "allow_absolute_paths": True}
    error = error_of(clone(tmp_path / "lake", tmp_path / "t", shallow=True, **given))
    assert (error["type"], error["facts"]["argument"]) == ("InvalidJobSpec", "arguments.source.table")
    assert "1 file of other tables" in error["message"]
    assert outer.latest_version() == 1
    committed(clone(tmp_path / "lake", tmp_path / "t", **given))
    assert ids(Table.open(tmp_path / "lake")) == ids(inner) == [0, 1, 2]


@KINDS
def test_a_clone_may_become_the_table_again_that_it_is_a_clone_of(tmp_path: Path, shallow: bool) -> None:
    table = Table.create(tmp_path / "s", SCHEMA, properties=VECTORS | {"delta.enableRowTracking": "true"})
    for start in (0, 4):
        append(table, rows(4, start=start))
    committed(run(None, "update", table, set={"name": "'x'"}, predicate="id = 1"))
    committed(clone(tmp_path / "t", table, shallow=True))
    committed(run(None, "delete", tmp_path / "t", predicate="id = 6", allow_absolute_paths=True))
    # The files of the clone leave the table, and come back.
    committed(run(None, "optimize", table, target_bytes=2**20))
    expected = by_id(opened(tmp_path / "t"))
    committed(clone(tmp_path / "s", tmp_path / "t", shallow=shallow, replace=True, allow_absolute_paths=True))
    for mode in ("full", "lite"):
        opened(tmp_path / "s").vacuum(0, check_retention=False, orphan_retention=dt.timedelta(days=1), mode=mode)
    assert by_id(opened(tmp_path / "s")) == expected
    assert (len(expected), expected[1]) == (7, "x")


# --- again, into a clone --------------------------------------------------------------------------------------------


@KINDS
def test_a_clone_again_brings_what_is_new_alone(source: Table, tmp_path: Path, shallow: bool) -> None:
    place = tmp_path / "t"
    committed(clone(place, source, shallow=shallow))
    same = clone(place, source, shallow=shallow, replace=True)
    assert (same.status, same.version) == ("nothing_to_do", 0)
    before = {path: (place / path).stat().st_mtime_ns for path in files_on_disk(place)}
    append(source, rows(2, start=20))
    committed(run(None, "delete", source, predicate="id IN (2, 7)"))
    set_property(source, "delta.appendOnly", "false")
    result = committed(clone(place, source, shallow=shallow, replace=True))
    assert (result.version, result.read_version, result.files["added"], result.files["removed"]) == (1, 0, 3, 2)
    assert result.metrics["numCopiedFiles"] == (0 if shallow else 1), "the others have another vector"
    assert by_id(opened(place)) == by_id(source)
    assert opened(place).snapshot().properties == source.snapshot().properties
    assert opened(place).snapshot().metadata.id == actions(place, "metaData")[0]["id"]
    after = {path: (place / path).stat().st_mtime_ns for path in files_on_disk(place)}
    assert {path: time for path, time in after.items() if path in before} == before, "copied again"
    assert len(after) - len(before) == (0 if shallow else 2), "one file of rows and one of vectors"


@KINDS
def test_the_change_feed_of_a_clone_has_what_the_source_changed(tmp_path: Path, shallow: bool) -> None:
    source = Table.create(tmp_path / "s", SCHEMA, properties=VECTORS | {"delta.enableChangeDataFeed": "true"})
    append(source, rows(4))
    committed(clone(tmp_path / "t", source, shallow=shallow))
    committed(run(None, "delete", source, predicate="id = 2"))
    append(source, rows(1, start=9))
    committed(clone(tmp_path / "t", source, shallow=shallow, replace=True))
    changes = opened(tmp_path / "t").changes(1).to_pylist()
    assert sorted((row["id"], row["_change_type"]) for row in changes) == [(2, "delete"), (9, "insert")]


def test_a_replaced_table_loses_its_rows_and_the_notes_of_work_on_them_and_keeps_its_identity(
    source: Table, tmp_path: Path
) -> None:
    given = {"delta.logRetentionDuration": "interval 9 days", "delta.feature.domainMetadata": "supported"}
    table = Table.create(tmp_path / "t", pa.schema([("other", pa.string())]), properties=given)
    tx = table.begin()
    tx.set_domain("someone.watermark", '{"version":7}')
    tx.commit("ALTER TABLE")
    append(table, pa.table({"other": ["x"]}), application=("a load", 3))
    lines: list[str] = []
    result = committed(clone(tmp_path / "t", source, replace=True, log=lines.append))
    assert result.files["removed"] == 1
    now = Table.open(tmp_path / "t").snapshot()
    assert by_id(Table.open(tmp_path / "t")) == by_id(source)
    assert now.metadata.id == table.snapshot(0).metadata.id
    assert set(now.state.domains) == set()
    assert any("someone.watermark" in line for line in lines)
    assert now.application_version("a load") == 3, "that work was done"
    assert "delta.logRetentionDuration" not in now.properties
    assert ids(source) == ids(Table.open(tmp_path / "t"))


def test_a_commit_that_lands_first_is_replaced_too(source: Table, tmp_path: Path) -> None:
    committed(clone(tmp_path / "t", source))
    append(source, rows(1, start=30))
    with before_commit(lambda tx: append(Table.open(tmp_path / "t"), rows(1, start=90))):
        result = committed(clone(tmp_path / "t", source, replace=True))
    assert (result.version, result.attempts) == (2, 2)
    assert ids(Table.open(tmp_path / "t")) == ids(source)


def test_of_two_clones_at_once_one_is_made(source: Table, tmp_path: Path) -> None:
    with before_commit(lambda tx: committed(clone(tmp_path / "t", source))):
        error = error_of(clone(tmp_path / "t", source))
    assert (error["type"], Table.open(tmp_path / "t").latest_version()) == ("TableAlreadyExists", 0)
    assert by_id(Table.open(tmp_path / "t")) == by_id(source)


def test_if_a_vacuum_takes_files_before_they_are_copied_the_newest_version_is_cloned(
    source: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_in, left = LocalStore.copy_in, [1]

    def late(*given: Any) -> None:
        if left.pop() if left else 0:
            overwrite(source, rows(2, start=70))
            source.vacuum(0, check_retention=False)
        copy_in(*given)

    monkeypatch.setattr(LocalStore, "copy_in", late)
    result = committed(clone(tmp_path / "t", source))
    assert (result.attempts, ids(Table.open(tmp_path / "t"))) == (2, [70, 71])
    assert actions(tmp_path / "t", "commitInfo")[0]["operationParameters"]["sourceVersion"] == "6"
    left.append(1)
    error = error_of(clone(tmp_path / "u", source, version=6))
    assert (error["type"], Table.exists(tmp_path / "u")) == ("FilesMissing", False)


def test_files_of_a_table_that_was_made_again_under_the_same_names_are_copied(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    for number in (1, 2):
        folder = tmp_path / "s"
        for path in sorted(folder.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        folder.mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": [number]}), folder / "part-0.parquet")
        committed(run(None, "convert", folder))
        committed(clone(tmp_path / "t", folder, replace=number == 2))
        assert ids(Table.open(tmp_path / "t")) == [number]


def test_row_tracking_of_the_source_comes_with_ids_for_the_files_that_stay(source: Table, tmp_path: Path) -> None:
    committed(clone(tmp_path / "t", source))
    committed(run(None, "alter", source, add_features=["rowTracking"]))
    # One that goes has none, and needs none.
    committed(run(None, "delete", source, predicate="day = DATE'2024-01-02'"))
    committed(clone(tmp_path / "t", source, replace=True))
    files = Table.open(tmp_path / "t").snapshot().files()
    assert files.column("base_row_id").null_count == 0
    assert by_id(Table.open(tmp_path / "t")) == by_id(source)


# --- once -----------------------------------------------------------------------------------------------------------


@KINDS
def test_a_clone_that_was_done_is_not_done_again(source: Table, tmp_path: Path, shallow: bool) -> None:
    identity = application()
    committed(clone(tmp_path / "t", source, application=identity, shallow=shallow))
    append(source, rows(1, start=60))
    again = clone(tmp_path / "t", source, application=identity, shallow=shallow)
    assert (again.status, again.version) == ("already_done", 0)
    assert ids(opened(tmp_path / "t")) == [0, 1, 2, 3, 5, 6, 7, 8]


# --- refusals -------------------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize(
    ("target", "given", "kind", "argument"),
    [
        ("t", {"source": "none"}, "SourceNotFound", "source.table"),
        ("s", {}, "InvalidJobSpec", "arguments.source.table"),
        ("s/inside", {}, "InvalidJobSpec", "arguments.source.table"),
        (".", {}, "InvalidJobSpec", "arguments.source.table"),
        ("link", {}, "InvalidJobSpec", "arguments.source.table"),
        ("other", {}, "TableAlreadyExists", None),
        ("full", {}, "FolderNotEmpty", None),
        ("t", {"version": 9}, "VersionNotFound", None),
        ("t", {"timestamp": "2001-01-01"}, "TimestampOutOfRange", None),
        ("t", {"properties": {"delta.constraints.c": "id > 0"}}, "InvalidProperty", None),
        ("t", {"properties": {"delta.columnMapping.mode": "name"}}, "InvalidProperty", None),
        ("t", {"properties": {"delta.appendOnly": "maybe"}}, "InvalidProperty", None),
        ("t", {"properties": {"delta.feature.x": "no"}}, "InvalidProperty", None),
        ("t", {"properties": {"delta.apendOnly": "true"}}, "InvalidProperty", None),
        ("t", {"properties": {"delta.rowTrackingSuspended": "true"}}, "InvalidProperty", None),
    ],
)
def test_a_clone_that_cannot_be_is_refused_and_leaves_nothing(
    tmp_path: Path, shallow: bool, target: str, given: dict[str, Any], kind: str, argument: str | None
) -> None:
    for name in ("s", "other"):
        append(Table.create(tmp_path / name, SCHEMA), rows(1))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("of someone")
    (tmp_path / "link").symlink_to(tmp_path / "s")
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    given = {"source": "s", **given}
    error = error_of(clone(tmp_path / target, tmp_path / given.pop("source"), shallow=shallow, **given))
    assert (error["type"], error["facts"].get("argument")) == (kind, argument)
    assert not error["retryable"]
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before


@KINDS
def test_a_version_of_which_a_vacuum_has_taken_files_is_refused(source: Table, tmp_path: Path, shallow: bool) -> None:
    overwrite(source, rows(1, start=70))
    source.vacuum(0, check_retention=False)
    error = error_of(clone(tmp_path / "t", source, version=2, shallow=shallow))
    assert (error["type"], error["facts"]["table"], error["facts"]["count"]) == ("FilesMissing", source.uri, 2)
    assert not Table.exists(tmp_path / "t")


def test_a_file_that_stays_missing_is_no_conflict(
    source: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = source.snapshot().files().column("path").to_pylist()
    (Path(source.uri.removeprefix("file://")) / unquote(path)).unlink()
    copy_in, commits = LocalStore.copy_in, []

    def late(*given: Any) -> None:
        commits.append(append(source, rows(1, start=100)))
        copy_in(*given)

    monkeypatch.setattr(LocalStore, "copy_in", late)
    assert error_of(clone(tmp_path / "t", source))["type"] == "FilesMissing"
    assert commits, "the newest version was cloned again once"


def test_a_file_of_another_size_is_not_cloned(source: Table, tmp_path: Path) -> None:
    (path, _) = source.snapshot().files().column("path").to_pylist()
    with (Path(source.uri.removeprefix("file://")) / unquote(path)).open("ab") as file:
        file.write(b"more")
    error = error_of(clone(tmp_path / "t", source))
    assert (error["type"], error["facts"]["count"]) == ("FilesMissing", 1)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"properties": {"delta.appendOnly": "true"}}, "AppendOnlyViolation"),
        ({"source": "mapped"}, "InvalidCommit"),
        ({"source": "uncounted", "properties": {"delta.enableRowTracking": "true"}}, "RowCountMissing"),
    ],
)
def test_what_the_commit_would_refuse_is_refused_before_a_file_is_copied(
    source: Table, tmp_path: Path, given: dict[str, Any], kind: str
) -> None:
    committed(clone(tmp_path / "t", source))
    overwrite(source, rows(1, start=70))
    mapped = Table.create(tmp_path / "mapped", SCHEMA, properties={"delta.columnMapping.mode": "id"})
    append(mapped, rows(1))
    uncounted = Table.create(tmp_path / "uncounted", SCHEMA)
    tx = uncounted.begin()
    tx.add([msgspec.structs.replace(add, stats=None) for add in stage(uncounted, rows(2))])
    tx.commit("WRITE")
    before, given = files_on_disk(tmp_path / "t"), dict(given)
    of = tmp_path / given.pop("source") if "source" in given else source
    error = error_of(clone(tmp_path / "t", of, replace=True, **given))
    assert (error["type"], files_on_disk(tmp_path / "t")) == (kind, before)
    assert Table.open(tmp_path / "t").latest_version() == 0


def test_stores_of_two_kinds_hold_deep_clones_alone(tmp_path: Path) -> None:
    source = Table.create("memory://clones/s", SCHEMA)
    append(source, rows(3))
    error = error_of(clone(tmp_path / "t", source, shallow=True))
    assert (error["type"], error["facts"]["argument"]) == ("InvalidJobSpec", "arguments.shallow")
    committed(clone(tmp_path / "t", source))
    assert ids(Table.open(tmp_path / "t")) == [0, 1, 2]
