"""Alone in showing that no job brings an erased subject back into a table that a ledger guards."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import ApplicationTransaction, JobResult, JobSpec
from airflow_txlog.contract.parameters import encode_parameter
from airflow_txlog.engine import Table, Transaction
from airflow_txlog.engine.commit import transaction
from airflow_txlog.engine.erasure.digests import DigestKey
from airflow_txlog.engine.erasure.ledger import Ledger, create_ledger
from airflow_txlog.engine.erasure.returns import ReturnGuard
from airflow_txlog.engine.erasure.values.forms import Forms
from airflow_txlog.jobs.operations import erase as erase_job
from airflow_txlog.jobs.run import run_job
from airflow_txlog.locations import PLAIN
from tests.helpers.jobs import KEY, application, committed, error_of, files_on_disk, ids, read_alike, rows, run
from tests.helpers.racing import Killed
from tests.helpers.rows import append, make_table
from tests.helpers.specs import job_spec
from tests.helpers.staged import discard, stage, work_of

SECRET = "c" * 64
ERASED = 4
"""The id of the subject that was erased."""


def ledger_at(folder: Path, secret: str = SECRET) -> Ledger:
    found = Ledger(Table.at(str(folder / "ledger"), PLAIN), [DigestKey.of(secret, "the key")])
    create_ledger(found._table)
    return found


def erase(table: Table, folder: Path, *, is_deleted: bool = True) -> None:
    """Record the subject in the ledger, and then delete it."""
    snapshot = table.snapshot()
    ledger_at(folder).record("r-7", snapshot, Forms.of(snapshot, "id", [ERASED]))
    if is_deleted:
        committed(run(None, "delete", table, predicate=f"id >= {ERASED}"))


def guarded(
    folder: Path,
    operation: str,
    table: Table | Path,
    *,
    log: Any = None,
    secrets: tuple[str, ...] = (SECRET,),
    work: ApplicationTransaction | None = None,
    leaves_out: bool = False,
    **arguments: Any,
) -> JobResult:
    """Run a job whose connection names the ledger, as its process reads it."""
    uri = table.uri if isinstance(table, Table) else str(table)
    spec = job_spec(operation=operation, table_uri=uri, arguments=arguments, application=work)
    spec = dataclasses.replace(
        spec, ledger_uri=str(folder / "ledger"), ledger_keys=secrets, leaves_out_erased=leaves_out
    )
    if work is not None:
        spec = dataclasses.replace(spec, saved_work_key=KEY)
    return run_job(JobSpec.from_json(spec.to_json(with_key=True)), None, log=log)


@contextmanager
def after_comparison(number: int, action: Callable[[], object]) -> Iterator[None]:
    """Inside, `action` comes after this comparison of a job's files with the ledger, before its commit is put."""
    admitted, left = ReturnGuard.admitted, [number]

    def late(*arguments: Any) -> Any:
        found = admitted(*arguments)
        left[0] -= 1
        if left[0] == 0:
            action()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReturnGuard, "admitted", late)
        yield


Way = Callable[[Path, int], JobResult]


def restored(folder: Path, subject: int) -> JobResult:
    table = make_table(folder / "t", rows(3), rows(2, start=subject))
    erase(table, folder)
    return guarded(folder, "restore", table, version=2)


def rolled_back(folder: Path, subject: int) -> JobResult:
    table = make_table(folder / "t", rows(3), rows(2, start=subject))
    spec = job_spec(operation="truncate", table_uri=table.uri)
    tags = {"dag_id": "orders", "run_id": "r1"}
    committed(run_job(dataclasses.replace(spec, annotations=tags), None))
    erase(table, folder, is_deleted=False)
    return guarded(folder, "rollback", table, of_dag_id="orders", run_id="r1")


def published(folder: Path, subject: int) -> JobResult:
    table = make_table(folder / "t", rows(3), properties={"delta.enableChangeDataFeed": "true"})
    source = folder / "source.parquet"
    pq.write_table(rows(2, start=subject), source)
    handle = stage("write", table, source={"format": "parquet", "path": str(source)})
    erase(table, folder, is_deleted=False)
    result = _publish(folder, handle)
    if result.status == "failed":
        # A change that is refused may still be discarded, and takes its files with it.
        staged = files_on_disk(table)
        assert discard(handle).status == "nothing_to_do"
        assert files_on_disk(table) < staged
    return result


def _publish(folder: Path, handle: dict[str, Any], log: Any = None) -> JobResult:
    named = {"id": handle["id"], "digest": handle["digest"]}
    return guarded(folder, "publish", Path(handle["table_uri"]), work=work_of(handle), log=log, **named)


def _source(folder: Path, subject: int) -> Table:
    """Make a source of an erasure whose rows are still there, as if another engine had restored them."""
    table = make_table(folder / "s", rows(3), rows(2, start=subject))
    erase(table, folder, is_deleted=False)
    return table


def cloned(folder: Path, subject: int, *, shallow: bool = False) -> JobResult:
    source = _source(folder, subject)
    result = guarded(folder, "clone", folder / "t", source={"table": source.uri}, shallow=shallow)
    if result.status == "failed":
        # Nothing was copied before the refusal.
        assert not list((folder / "t").rglob("*.parquet"))
    return result


def cloned_shallow(folder: Path, subject: int) -> JobResult:
    return cloned(folder, subject, shallow=True)


def converted(folder: Path, subject: int) -> JobResult:
    source = _source(folder, subject)
    shutil.copytree(folder / "s", folder / "t")
    shutil.rmtree(folder / "t" / "_delta_log")
    assert source.snapshot().num_files == len(list((folder / "t").glob("*.parquet")))
    return guarded(folder, "convert", folder / "t")


def refreshed(folder: Path, subject: int) -> JobResult:
    source = make_table(folder / "s", rows(3))
    increment: dict[str, Any] = {"source": {"table": source.uri}, "consumer": "c"}
    committed(run(None, "incremental", folder / "t", **increment))
    target = Table.open(folder / "t")
    erase(target, folder, is_deleted=False)
    shutil.rmtree(folder / "s")
    make_table(folder / "s", rows(3), rows(2, start=subject))
    staged = files_on_disk(target)
    result = guarded(folder, "incremental", target, on_gap="full", **increment)
    if result.status == "failed":
        assert files_on_disk(target) == staged
    return result


WAYS: list[Way] = [restored, rolled_back, published, cloned, cloned_shallow, converted, refreshed]


@pytest.mark.parametrize("way", WAYS)
def test_no_job_brings_an_erased_subject_back(tmp_path: Path, way: Way) -> None:
    error = error_of(way(tmp_path, ERASED))
    assert error["type"] == "SubjectReturns", error
    assert not error["retryable"]
    assert (error["facts"]["requests"], error["facts"]["column"], error["facts"]["rows"]) == (["r-7"], "id", 1)
    if (tmp_path / "t" / "_delta_log").exists():
        assert ERASED not in ids(Table.open(tmp_path / "t"))


@pytest.mark.parametrize("way", WAYS)
def test_other_rows_come_back(tmp_path: Path, way: Way) -> None:
    committed(way(tmp_path, 50))
    found = ids(Table.open(tmp_path / "t", allow_absolute_paths=True))
    assert (found[:3], found[-2:]) == ([0, 1, 2], [50, 51])


def test_an_increment_brings_what_is_new_and_reads_no_ledger(tmp_path: Path) -> None:
    """A subject in new rows of the source is a new one, so no ledger is needed."""
    source = make_table(tmp_path / "s", rows(3))
    increment: dict[str, Any] = {"source": {"table": source.uri}, "consumer": "c"}
    committed(run(None, "incremental", tmp_path / "t", **increment))
    append(source, rows(1, start=ERASED))
    committed(guarded(tmp_path, "incremental", tmp_path / "t", work=application(), **increment))
    assert ids(Table.open(tmp_path / "t")) == [0, 1, 2, ERASED]


def test_a_table_that_was_dropped_gets_no_subject_back_when_it_is_filled_again(tmp_path: Path) -> None:
    source = make_table(tmp_path / "s", rows(3), rows(1, start=ERASED))
    erase(make_table(tmp_path / "t", rows(3)), tmp_path, is_deleted=False)
    shutil.rmtree(tmp_path / "t")
    increment: dict[str, Any] = {"source": {"table": source.uri}, "consumer": "c"}
    error = error_of(guarded(tmp_path, "incremental", tmp_path / "t", work=application(), **increment))
    assert error["type"] == "SubjectReturns"
    assert not Table.exists(tmp_path / "t")


def test_a_member_of_a_list_is_refused_because_its_row_is_not_known(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(3))
    erase(table, tmp_path, is_deleted=False)
    (tmp_path / "c").mkdir()
    pq.write_table(pa.table({"numbers": [[1, ERASED], None, []]}), tmp_path / "c" / "part.parquet")
    error = error_of(guarded(tmp_path, "convert", tmp_path / "c", leaves_out=True))
    assert (error["type"], error["facts"]["column"]) == ("SubjectReturns", "numbers")


@pytest.mark.parametrize(
    "columns", [{"numbers": [[1, ERASED], []]}, {"quantity": [1, ERASED]}], ids=["lists", "another column"]
)
def test_no_row_is_left_out_by_a_column_that_the_ledger_does_not_name(
    tmp_path: Path, columns: dict[str, list[Any]]
) -> None:
    """As many members as rows show no row, and another column may have the same value by chance."""
    erase(make_table(tmp_path / "t", rows(3)), tmp_path, is_deleted=False)
    (tmp_path / "c").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "c" / "part.parquet")
    error = error_of(guarded(tmp_path, "convert", tmp_path / "c", leaves_out=True))
    assert (error["type"], error["facts"]["column"]) == ("SubjectReturns", *columns)


def test_a_clone_in_the_place_of_a_table_that_was_moved_is_compared_with_its_erasures(tmp_path: Path) -> None:
    erase(make_table(tmp_path / "old", rows(3)), tmp_path, is_deleted=False)
    (tmp_path / "old").rename(tmp_path / "t")
    source = make_table(tmp_path / "s", rows(2, start=ERASED))
    clone = {"source": {"table": source.uri}, "shallow": False, "replace": True}
    assert error_of(guarded(tmp_path, "clone", tmp_path / "t", **clone))["type"] == "SubjectReturns"


def test_a_retry_of_a_restore_that_was_done_reads_no_ledger(tmp_path: Path) -> None:
    table, work = make_table(tmp_path / "t", rows(3), rows(2, start=50)), application()
    erase(table, tmp_path)
    committed(guarded(tmp_path, "restore", table, version=2, work=work))
    shutil.rmtree(tmp_path / "ledger")
    assert guarded(tmp_path, "restore", table, version=2, work=work).status == "already_done"


@pytest.mark.parametrize("way", [restored, cloned, converted, published])
def test_a_lost_key_is_an_error_of_every_job_and_no_pass(
    tmp_path: Path, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(guarded.__kwdefaults__, "secrets", ("d" * 64,))
    error = error_of(way(tmp_path, 50))
    assert error["type"] == "LedgerKeyMissing", error
    assert error["facts"]["key_ids"] == [DigestKey.of(SECRET, "").id]


def test_a_job_without_any_key_is_refused(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(3), rows(2, start=50))
    assert error_of(guarded(tmp_path, "restore", table, version=1, secrets=()))["type"] == "LedgerKeyMissing"


def test_a_restore_that_meets_an_erasure_is_not_made(tmp_path: Path) -> None:
    """The restore has compared its files before the subject was recorded, and its delete lands first."""
    table = make_table(tmp_path / "t", rows(3), rows(2, start=ERASED))
    committed(run(None, "delete", table, predicate="id = 5"))
    ledger_at(tmp_path)
    with after_comparison(1, lambda: erase(Table.open(table.uri), tmp_path)):
        error = error_of(guarded(tmp_path, "restore", table, version=2))
    assert (error["type"], error["retryable"]) == ("ConcurrentWrite", False)
    # One advice, and not that of other conflicts, which are repeated.
    assert "Look at the table's history" in error["message"]
    assert "repeat the operation" not in error["message"]
    assert ids(table) == [0, 1, 2]
    assert error_of(guarded(tmp_path, "restore", table, version=2))["type"] == "SubjectReturns"


def test_a_restore_that_meets_an_erasure_which_finds_no_row_is_not_made(tmp_path: Path) -> None:
    """The subject was in earlier versions alone, so the delete of the erasure has nothing to commit."""
    table = make_table(tmp_path / "t", rows(3), rows(2, start=ERASED))
    committed(run(None, "delete", table, predicate=f"id = {ERASED}"))
    ledger_at(tmp_path)
    keys = {"column": "id", "values": encode_parameter([ERASED], "keys")}

    def deleted() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(erase_job, "optimize", _killed)
            with pytest.raises(Killed):
                guarded(tmp_path, "erase", table, subjects=keys, request_id="r-7", writer_hours=0)

    with after_comparison(1, deleted):
        error = error_of(guarded(tmp_path, "restore", table, version=2))
    assert error["type"] == "ConcurrentWrite"
    assert ids(table) == [0, 1, 2, 5]


def test_a_publication_that_meets_an_erasure_is_not_made(tmp_path: Path) -> None:
    """The delete of the erasure does not see the staged row, and does not conflict with it: the ledger shows it."""
    table = make_table(tmp_path / "t", rows(3), properties={"delta.isolationLevel": "WriteSerializable"})
    source = tmp_path / "source.parquet"
    pq.write_table(rows(2, start=ERASED), source)
    handle = stage("write", table, source={"format": "parquet", "path": str(source)})
    ledger_at(tmp_path)

    def erased() -> None:
        other = Table.open(table.uri)
        erase(other, tmp_path, is_deleted=False)
        committed(run(None, "delete", other, predicate="id = 2"))

    with after_comparison(2, erased):
        error = error_of(_publish(tmp_path, handle))
    assert error["type"] == "SubjectReturns"
    assert ids(table) == [0, 1]


def _meeting(operation: str, action: Callable[[], object]) -> pytest.MonkeyPatch:
    """Have `action` come when a commit of this operation is made, after all comparisons before it."""
    patch, loop, left = pytest.MonkeyPatch(), transaction.commit, [action]

    def late(store: Any, attempt: Any, *given: Any, **more: Any) -> Any:
        if attempt.operation == operation and left:
            left.pop()()
        return loop(store, attempt, *given, **more)

    patch.setattr(transaction, "commit", late)
    return patch


def test_a_clone_that_replaces_a_table_and_meets_an_erasure_there_is_compared_again(tmp_path: Path) -> None:
    source = make_table(tmp_path / "s", rows(3), rows(2, start=ERASED))
    table = make_table(tmp_path / "t", rows(3))
    ledger_at(tmp_path)

    def erased() -> None:
        other = Table.open(table.uri)
        erase(other, tmp_path, is_deleted=False)
        # As an erasure does that finds no row.
        other.begin().commit("ERASE", record_empty=True)

    patch = _meeting("CLONE", erased)
    try:
        clone = {"source": {"table": source.uri}, "shallow": False, "replace": True}
        assert error_of(guarded(tmp_path, "clone", table, **clone))["type"] == "SubjectReturns"
    finally:
        patch.undo()
    assert ids(table) == [0, 1, 2]


@pytest.mark.parametrize("commits", [True, False], ids=["after the erasure's commit", "before it"])
def test_a_change_that_is_refused_late_says_so_and_can_be_discarded(tmp_path: Path, commits: bool) -> None:
    table = make_table(tmp_path / "t", rows(3), properties={"delta.isolationLevel": "WriteSerializable"})
    source = tmp_path / "source.parquet"
    pq.write_table(rows(2, start=ERASED), source)
    handle = stage("write", table, source={"format": "parquet", "path": str(source)})
    staged = files_on_disk(table)
    ledger_at(tmp_path)

    def erased() -> None:
        other = Table.open(table.uri)
        erase(other, tmp_path, is_deleted=False)
        if commits:
            other.begin().commit("ERASE", record_empty=True)

    # The first comparison is before the fate of the change, the second with its commit.
    with after_comparison(2 if commits else 1, erased):
        error = error_of(_publish(tmp_path, handle))
    assert error["type"] == "SubjectReturns"
    assert not error["retryable"]
    assert "waits until it is discarded" in error["message"]
    discard(handle)
    assert files_on_disk(table) < staged
    assert ids(table) == [0, 1, 2]
    assert error_of(_publish(tmp_path, handle))["type"] == "StagedChangeGone"


def test_the_keys_are_in_no_description_but_that_of_the_process(tmp_path: Path) -> None:
    spec = job_spec(operation="restore", table_uri="/t", arguments={"version": 1})
    spec = dataclasses.replace(spec, ledger_uri="/ledger", ledger_keys=(SECRET,))
    assert SECRET not in spec.to_json()
    assert SECRET not in repr(spec)
    assert JobSpec.from_json(spec.to_json(with_key=True)).ledger_keys == (SECRET,)


# --- left out again ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_job_leaves_the_subject_out_if_it_can_and_is_refused_else(
    tmp_path: Path, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(guarded.__kwdefaults__, "leaves_out", True)
    result = way(tmp_path, ERASED)
    if way in (restored, rolled_back, converted):
        committed(result)
        table = Table.open(tmp_path / "t")
        assert ids(table) == [0, 1, 2, 5]
        read_alike(table)
        assert table.snapshot().num_files == 2
    else:
        assert error_of(result)["type"] == "SubjectReturns"


def test_a_rollback_that_has_left_a_subject_out_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(guarded.__kwdefaults__, "leaves_out", True)
    committed(rolled_back(tmp_path, ERASED))
    again = guarded(tmp_path, "rollback", tmp_path / "t", of_dag_id="orders", run_id="r1")
    assert again.status == "nothing_to_do", again.error
    assert ids(Table.open(tmp_path / "t")) == [0, 1, 2, 5]


def test_a_restore_leaves_a_subject_out_once_for_all_of_its_tries(tmp_path: Path) -> None:
    table, work = make_table(tmp_path / "t", rows(3), rows(2, start=ERASED)), application()
    erase(table, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transaction, "_checked_attempt", _killed)
        with pytest.raises(Killed):
            guarded(tmp_path, "restore", table, version=2, work=work, leaves_out=True)
    assert ids(table) == [0, 1, 2]
    committed(guarded(tmp_path, "restore", table, version=2, work=work, leaves_out=True))
    again = guarded(tmp_path, "restore", table, version=2, work=work, leaves_out=True)
    assert (again.status, ids(table), table.latest_version()) == ("already_done", [0, 1, 2, 5], 4)


def _killed(*arguments: Any) -> None:
    raise Killed


def test_rows_that_are_left_out_need_no_place_in_a_partition(tmp_path: Path) -> None:
    """A file of which every row is of the subject is not added, and its bytes are not read."""
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    table = Table.create(str(tmp_path / "t"), schema, partition_by=["id"])
    append(table, [{"id": id, "n": n} for id in (1, ERASED) for n in range(3)])
    erase(table, tmp_path)
    lines: list[str] = []
    committed(guarded(tmp_path, "restore", table, version=1, leaves_out=True, log=lines.append))
    assert [row["id"] for row in table.to_arrow().to_pylist()] == [1, 1, 1]
    assert any("3 rows of erased subjects in 1 file left out" in line for line in lines)


@pytest.mark.parametrize("mode", ["none", "name", "id"])
def test_other_rows_keep_everything(tmp_path: Path, mode: str) -> None:
    """With row ids, a deletion vector, a mapping of columns, partitions with odd values and a change feed."""
    properties = {
        "delta.columnMapping.mode": mode,
        "delta.enableRowTracking": "true",
        "delta.enableDeletionVectors": "true",
        "delta.enableChangeDataFeed": "true",
    }
    schema = pa.schema([("p", pa.string()), ("id", pa.int64()), ("who", pa.struct([("name", pa.string())]))])
    table = Table.create(str(tmp_path / "t"), schema, partition_by=["p"], properties=properties)
    parts = ["a/b=c %41", "é", None]
    append(table, [{"p": p, "id": id, "who": {"name": f"n{id}"}} for p in parts for id in range(10)])
    committed(run(None, "delete", table, predicate="id = 2"))
    before, ids_before = _sorted(table), _row_ids(table)
    version = table.latest_version()
    erase(table, tmp_path)
    committed(guarded(tmp_path, "restore", table, version=version, leaves_out=True))
    after = _sorted(table)
    assert after == [row for row in before if row["id"] != ERASED]
    assert len(after) == 24
    assert _row_ids(table) == {(row["p"], row["id"]): ids_before[row["p"], row["id"]] for row in after}
    read_alike(table)


def _sorted(table: Table) -> list[dict[str, Any]]:
    return sorted(table.to_arrow().to_pylist(), key=lambda row: (str(row["p"]), row["id"]))


def _row_ids(table: Table) -> dict[tuple[Any, int], int]:
    """The row id of each row, by its partition and its `id`: the one in its file, or else from the file's first one."""
    snapshot = table.snapshot()
    (name,) = (value for key, value in snapshot.properties.items() if key.endswith("RowIdColumnName"))
    column = snapshot.delta_schema.find("id")
    assert column is not None
    found = {}
    files = snapshot.files()
    for add, deleted in zip(files.to_pylist(), snapshot.deleted_rows(files), strict=True):
        place = Path(table.uri.removeprefix("file://")) / unquote(add["path"])
        (partition,) = dict(add["partition_values"]).values()
        for number, row in enumerate(pq.ParquetFile(place).read().to_pylist()):
            if deleted is None or number not in deleted.positions().to_pylist():
                given = row.get(name)
                found[partition, row[column.physical_name]] = add["base_row_id"] + number if given is None else given
    return found
