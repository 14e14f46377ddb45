"""Alone in showing VERIFY_ERASURE: each kind of trace makes the findings incomplete, and is named without a value."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.erasure.report import Findings
from airflow_txlog.contract.job import JobSpec
from airflow_txlog.engine import Table
from airflow_txlog.engine.erasure import object_verdicts
from airflow_txlog.jobs.operations import verify_erasure
from airflow_txlog.jobs.run import run_job
from airflow_txlog.storage import LocalStore
from tests.helpers.jobs import committed, error_of, run
from tests.helpers.rows import append
from tests.helpers.specs import job_spec

SUBJECT = "zoë.canary@example.org"
OTHER = "bob.other@example.org"
SCHEMA = pa.schema([("email", pa.string()), ("number", pa.int64()), ("day", pa.string())])
COMMIT = f"_delta_log/{1:020}.json"


def rows(*emails: str) -> pa.Table:
    return pa.table({"email": list(emails), "number": range(len(emails)), "day": ["monday"] * len(emails)}, SCHEMA)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    properties = {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}
    table = Table.create(tmp_path / "t", SCHEMA, ["day"], properties=properties)
    append(table, rows(OTHER, "carol@example.org"))
    return table


def folder_of(table: Table) -> Path:
    return Path(table.uri.removeprefix("file://"))


def spec_of(table: Table, reports: Path, values: list[Any], column: str = "email", **more: Any) -> JobSpec:
    arguments = {"subjects": {"column": column, "values": values}, "report_uri": str(reports)}
    return job_spec(operation="verify_erasure", table_uri=table.uri, arguments=arguments).replace(**more)


def found_in(table: Table, values: list[Any] | None = None, **more: Any) -> Findings:
    """The findings, after a look at the list: a verdict on each file, and no value."""
    reports = folder_of(table).parent / "reports"
    before = {path: path.lstat().st_mtime_ns for path in folder_of(table).rglob("*")}
    result = run_job(spec_of(table, reports, values or [SUBJECT], **more), None)
    assert result.error is None, result.error
    assert before == {path: path.lstat().st_mtime_ns for path in folder_of(table).rglob("*")}
    assert result.details.findings is not None
    found = Findings(**result.details.findings["request"])
    (part,) = found.parts
    lines = gzip.decompress((reports / part["name"]).read_bytes()).splitlines()
    assert len(lines) == found.num_objects == sum(path.is_symlink() or not path.is_dir() for path in before)
    assert "canary" not in result.to_json()
    assert not any(b"canary" in line for line in lines)
    assert found.is_complete == (not found.left)
    return found


def stray(table: Table, name: str, write: Callable[[Path], object]) -> None:
    path = folder_of(table) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path)


def live_row(table: Table) -> None:
    append(table, rows(SUBJECT))


def row_under_a_deletion_vector(table: Table) -> None:
    append(table, rows(SUBJECT, OTHER))
    committed(run(None, "delete", table, predicate=None, keys={"column": "email", "values": [SUBJECT]}))


def commit_of_another_writer(table: Table, change: Callable[[list[Any]], object]) -> None:
    path = folder_of(table) / COMMIT
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    change(actions)
    path.write_text("\n".join(map(json.dumps, actions)) + "\n")


def statistics_in_a_commit(table: Table) -> None:
    def change(actions: list[Any]) -> None:
        add = next(action["add"] for action in actions if "add" in action)
        stats = json.loads(add["stats"])
        stats["maxValues"]["email"] = SUBJECT[:12]
        add["stats"] = json.dumps(stats)

    commit_of_another_writer(table, change)


def user_metadata(table: Table) -> None:
    def change(actions: list[Any]) -> None:
        next(action["commitInfo"] for action in actions if "commitInfo" in action)["userMetadata"] = f"for {SUBJECT}"

    commit_of_another_writer(table, change)


def parameters_of_a_commit(table: Table) -> None:
    def change(actions: list[Any]) -> None:
        info = next(action["commitInfo"] for action in actions if "commitInfo" in action)
        info["operationParameters"] = {"predicate": json.dumps([f"email = '{SUBJECT}'"])}

    commit_of_another_writer(table, change)


def checkpoint(table: Table) -> None:
    append(table, rows(SUBJECT))
    table.checkpoint()


FOOTER = pa.schema([("n", pa.int64())], metadata={"made for": SUBJECT})
KINDS: dict[str, tuple[Callable[[Table], object], str]] = {
    "a live row": (live_row, "rows, column 'email'"),
    "a row that a deletion vector hides": (row_under_a_deletion_vector, "dictionary of column 'email'"),
    "a change file": (
        lambda table: stray(table, "_change_data/c.parquet", lambda path: pq.write_table(rows(SUBJECT), path)),
        "rows, column 'email'",
    ),
    "a file that no version names": (
        lambda table: stray(table, "x.parquet", lambda path: pq.write_table(rows(SUBJECT), path)),
        "rows, column 'email'",
    ),
    "a footer": (
        lambda table: stray(table, "x.parquet", lambda path: pq.write_table(FOOTER.empty_table(), path)),
        "footer",
    ),
    "a shortened statistic": (statistics_in_a_commit, "add.stats.maxValues.email"),
    "user metadata": (user_metadata, "commitInfo.userMetadata"),
    "a predicate": (parameters_of_a_commit, "commitInfo.operationParameters.predicate"),
    "a checkpoint": (checkpoint, "rows, column 'add.stats"),
    "the name of a folder": (
        lambda table: stray(table, f"email={quote(SUBJECT)}/x.txt", lambda path: path.write_text("")),
        "path",
    ),
    "a checksum": (
        lambda table: stray(table, f"_delta_log/{1:020}.crc", lambda path: path.write_text(json.dumps({"x": SUBJECT}))),
        "x",
    ),
    "a staged change": (
        lambda table: stray(table, "_txlog_staged/x.json", lambda path: path.write_text(json.dumps({"a": [SUBJECT]}))),
        "a",
    ),
    "a text in UTF-16": (
        lambda table: stray(table, "x.txt", lambda path: path.write_text(SUBJECT, encoding="utf-16")),
        "text",
    ),
    "an object that cannot be read": (
        lambda table: stray(table, "x.parquet", lambda path: path.write_bytes(b"PAR1 damaged PAR1")),
        "",
    ),
    "an object of an unknown format": (lambda table: stray(table, "x.bin", lambda path: path.write_bytes(b"\0\1")), ""),
    "a link": (lambda table: (folder_of(table) / "link").symlink_to("/"), "a link"),
}


def test_a_table_without_the_subject_is_complete_and_a_second_try_writes_the_same_list(table: Table) -> None:
    table.checkpoint()
    found = found_in(table)
    assert (found.is_complete, found.num_left, found.state) == (True, 0, "verified")
    assert (found.version, found.oldest_version, found.table_id) == (1, 0, table.snapshot().metadata.id)
    assert found_in(table).parts == found.parts


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_trace_makes_the_findings_incomplete_and_is_named(table: Table, kind: str) -> None:
    leave, place = KINDS[kind]
    leave(table)
    found = found_in(table)
    assert not found.is_complete
    assert any(place in left["places"] for left in found.left), found.left


def test_an_object_that_appears_after_the_listing_is_read_too(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    read, folder = LocalStore.open_whole, folder_of(table)
    pending = [rows(SUBJECT)]

    def and_a_merge_commits(store: LocalStore, path: str, size_bytes: int, **options: Any) -> Any:
        if pending:
            append(table, pending.pop())
        return read(store, path, size_bytes, **options)

    monkeypatch.setattr(LocalStore, "open_whole", and_a_merge_commits)
    spec = spec_of(table, folder.parent / "reports", [SUBJECT])
    result = run_job(spec, None)
    assert result.details.findings is not None
    found = Findings(**result.details.findings["request"])
    assert (found.is_complete, found.version, result.read_version) == (False, 2, 1)
    assert {left["path"].rpartition(".")[2] for left in found.left} == {"parquet", "json"}


def test_the_version_of_the_findings_is_one_whose_objects_were_opened(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verify(*given: Any) -> Any:
        yield from object_verdicts.verify(*given)
        append(table, rows(SUBJECT))

    monkeypatch.setattr(verify_erasure, "verify", verify)
    result = run_job(spec_of(table, folder_of(table).parent / "reports", [SUBJECT]), None)
    assert result.details.findings is not None
    found = Findings(**result.details.findings["request"])
    assert (found.is_complete, found.version, table.snapshot().version) == (True, 1, 2)


@pytest.mark.parametrize("name", ["described_in", "is_gone"], ids=["the object", "a file that it describes"])
@pytest.mark.parametrize(
    ("error", "verdict"),
    [(PermissionError(13, "no longer allowed"), "not readable"), (KeyError("path"), "statistic only")],
    ids=["refused", "of an unknown form"],
)
def test_an_object_that_cannot_be_read_again_for_the_files_that_it_describes_is_left(
    table: Table, monkeypatch: pytest.MonkeyPatch, name: str, error: Exception, verdict: str
) -> None:
    def fails(*given: Any) -> Any:
        raise error

    run(None, "delete", table, predicate="number >= 0")
    table.vacuum(0, check_retention=False)
    monkeypatch.setattr(verify_erasure, name, fails)
    arguments = {"subjects": {"column": "email", "values": [SUBJECT]}, "report_uri": f"{folder_of(table).parent}/r"}
    spec = job_spec(
        operation="verify_erasure", table_uri=table.uri, arguments={**arguments, "records": ["a record that is gone"]}
    )
    findings = run_job(spec, None).details.findings
    assert findings is not None
    left = {each["path"]: each["verdict"] for each in findings["request"]["left"]}
    assert left[COMMIT] == verdict


def test_a_report_inside_of_the_table_is_refused_before_anything_is_read(table: Table) -> None:
    error = error_of(run_job(spec_of(table, folder_of(table) / "reports", [SUBJECT]), None))
    assert (error["type"], "inside of the table" in error["message"]) == ("InvalidInput", True)
    assert not (folder_of(table) / "reports").exists()


def test_subjects_have_keyed_digests_if_the_job_has_keys(table: Table) -> None:
    assert found_in(table).digests is None
    keys = {"ledger_uri": str(folder_of(table).parent / "ledger"), "ledger_keys": ("a" * 32,)}
    found = found_in(table, [SUBJECT, OTHER.upper()], **keys)
    assert found.digests is not None
    reports = folder_of(table).parent / "reports"
    digests = gzip.decompress((reports / found.digests["name"]).read_bytes()).decode().splitlines()
    assert [len(digest) for digest in digests] == [64, 64]
    other = found_in(table, [SUBJECT], **{**keys, "ledger_keys": ("b" * 32,)})
    assert other.digests is not None
    assert other.digests["key_ids"] != found.digests["key_ids"]


def test_files_of_another_table_that_a_shallow_clone_reads_are_opened_or_not_readable(table: Table) -> None:
    append(table, rows(SUBJECT))
    clone = folder_of(table).parent / "clone"
    committed(run(None, "clone", clone, source={"table": table.uri}, shallow=True))

    def left(**access: bool) -> set[tuple[str, str]]:
        keys = {"column": "email", "values": [SUBJECT]}
        reports = str(clone.parent / "reports")
        arguments = {"subjects": keys, "report_uri": reports}
        result = run_job(
            job_spec(operation="verify_erasure", table_uri=str(clone), arguments=arguments, **access), None
        )
        assert result.details.findings is not None
        found = Findings(**result.details.findings["request"])
        return {(each["verdict"], each["places"][:4]) for each in found.left if each["path"].startswith(table.uri)}

    assert left() == {("not readable", "Outs")}
    assert left(allow_absolute_paths=True) == {("found", "rows")}
    for path in folder_of(table).rglob("*.parquet"):
        path.unlink()
    assert left(allow_absolute_paths=True) == {("not readable", "a li")}


def test_the_job_finds_a_number_in_a_commit_that_names_the_column_as_it_was_called_then(tmp_path: Path) -> None:
    schema = pa.schema([("uid", pa.int64())])
    table = Table.create(tmp_path / "t", schema, properties={"delta.columnMapping.mode": "name"})
    table.begin().commit("UPDATE", {"predicate": json.dumps(["(uid = 7312345)"])}, record_empty=True)
    committed(run(None, "alter", table, rename_columns={"uid": "person"}))
    result = run_job(spec_of(table, tmp_path / "reports", [7312345], "person"), None)
    assert result.details.findings is not None
    assert [each["path"] for each in result.details.findings["request"]["left"]] == [COMMIT]
