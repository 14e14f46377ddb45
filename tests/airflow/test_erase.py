"""DeltaEraseOperator: subjects leave tables and storage, the report is complete or names what is left, and waits."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import json
import logging
import os
import shutil
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.exceptions import AirflowNotFoundException, AirflowRescheduleException
from airflow.sdk import DAG

from airflow_txlog.cli.erasure import digest_subjects, show_public_key
from airflow_txlog.contract.erasure import check_report
from airflow_txlog.contract.erasure.report import NO_ROW_FOUND
from airflow_txlog.engine import Table
from airflow_txlog.engine.erasure.ledger import create_ledger, recorded_in
from airflow_txlog.errors import (
    ErasureIncomplete,
    FilesMissing,
    InvalidInput,
    InvalidJobSpec,
    SourceNotFound,
    UnknownColumn,
)
from airflow_txlog.operators import DeltaEraseOperator, files
from airflow_txlog.operators import table as table_source
from airflow_txlog.storage import PLAIN
from tests.engine.erasure.test_described_files import EMAIL, table_with_subject
from tests.engine.erasure.test_described_files import SUBJECT as PERSON
from tests.engine.erasure.test_removal import FEED, OTHERS, SUBJECT, VECTORS, rows
from tests.helpers import staged
from tests.helpers.byte_search import holding
from tests.helpers.jobs import committed, run
from tests.helpers.rows import append, make_table

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("signer")]


def erase(tmp_path: Path, tables: Any, **arguments: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "subjects": [SUBJECT],
        "request_id": "r-17",
        "report_uri": str(tmp_path / "reports"),
        "signing_conn_id": "signer",
        "runner": "in_process",
        "writer_hours": 0,
        **arguments,
    }
    return DeltaEraseOperator(task_id="erase", tables=tables, **given).execute({})  # type: ignore[typeddict-item]


def report_of(tmp_path: Path) -> dict[str, Any]:
    (path,) = (tmp_path / "reports").glob("r-17-*.json")
    return dict(json.loads(path.read_text())["report"])


def test_subjects_leave_all_tables_and_the_report_is_complete(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    users = make_table(tmp_path / "users", rows(SUBJECT, *OTHERS), properties=VECTORS | FEED)
    by_key = make_table(tmp_path / "orders", rows(*OTHERS), rows(SUBJECT), partition_by=["email"])
    held = make_table(tmp_path / "held", rows(SUBJECT))
    before = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "held").rglob("*"))
    tables = dict.fromkeys((users.uri, by_key.uri, held.uri), "email")
    xcom = erase(
        tmp_path,
        tables,
        legal_hold={held.uri: "case 12 C 345/26"},
        requested_at="2026-11-01T09:00:00Z",
        deadline="2026-12-01T09:00:00Z",
    )
    assert (xcom["complete"], xcom["left"]) == (True, {})
    assert holding(tmp_path / "users", SUBJECT) == holding(tmp_path / "orders", SUBJECT) == []
    assert holding(tmp_path / "reports", SUBJECT) == []
    assert sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "held").rglob("*")) == before
    report = report_of(tmp_path)
    assert [table["state"] for table in report["tables"]] == ["verified", "verified", "out of scope"]
    assert [step["name"] for step in report["tables"][0]["steps"]][-1] == "remove"
    assert report["tables"][2]["reason"] == "case 12 C 345/26"
    assert all(report["times"].values())
    for table, folder in zip(report["tables"], ("users", "orders"), strict=False):
        lists = [gzip.decompress((tmp_path / "reports" / part["name"]).read_bytes()) for part in table["parts"]]
        entries = [json.loads(line) for data in lists for line in data.splitlines()]
        deleted = [entry for entry in entries if entry["verdict"] == "deleted"]
        assert len(deleted) == table["verdicts"]["deleted"] >= 3
        assert {len(entry["digest"]) for entry in deleted} == {64}
        assert any(entry["path"].endswith(".parquet") for entry in deleted)
        assert not any((tmp_path / folder / entry["path"]).exists() for entry in deleted)
    (path,) = (tmp_path / "reports").glob("r-17-*.json")
    assert check_report.main([str(path), str(xcom["public_key"])]) == 0
    said = caplog.text + "".join(capsys.readouterr())
    assert "the report of request r-17 is complete" in said
    assert "zo" not in said.replace("zone", "")
    # The next run of the same task has nothing left to do.
    version = users.snapshot().version
    assert erase(tmp_path, tables, legal_hold={held.uri: "case"}, request_id="r-18")["complete"]
    assert users.snapshot().version == version


def test_a_task_that_has_to_wait_is_run_again_when_the_wait_ends(tmp_path: Path) -> None:
    users = make_table(tmp_path / "users", rows(SUBJECT, *OTHERS))
    with pytest.raises(AirflowRescheduleException) as raised:
        erase(tmp_path, {users.uri: "email"}, writer_hours=24)
    wait = raised.value.reschedule_date - dt.datetime.now(dt.UTC)
    assert dt.timedelta(hours=23) < wait < dt.timedelta(hours=25)
    assert not list((tmp_path / "reports").glob("r-17-*"))
    assert users.to_arrow().num_rows == 3
    for path in (tmp_path / "users").rglob("*"):
        os.utime(path, (time.time() - 90_000,) * 2)
    assert erase(tmp_path, {users.uri: "email"}, writer_hours=24)["complete"]
    assert holding(tmp_path / "users", SUBJECT) == []
    # The data file went before the wait, and the log after it.
    (table,) = report_of(tmp_path)["tables"]
    assert len(table["parts"]) == 3
    assert table["verdicts"]["deleted"] == 2


def test_each_table_gets_the_lists_of_its_own_deleted_objects(tmp_path: Path) -> None:
    """The copy of a table has its id, and a list may be damaged by a kill."""
    users = make_table(tmp_path / "users", rows(SUBJECT, *OTHERS))
    shutil.copytree(tmp_path / "users", tmp_path / "copy")
    append(Table.open(str(tmp_path / "copy")), rows(SUBJECT))
    tables = {users.uri: "email", str(tmp_path / "copy"): "email"}
    with pytest.raises(AirflowRescheduleException):
        erase(tmp_path, tables, writer_hours=24)
    (list_of_one, _) = sorted((tmp_path / "reports").glob("deleted-*"))
    list_of_one.write_bytes(list_of_one.read_bytes()[:-9])
    for path in [*(tmp_path / "users").rglob("*"), *(tmp_path / "copy").rglob("*")]:
        os.utime(path, (time.time() - 90_000,) * 2)
    xcom = erase(tmp_path, tables, writer_hours=24)
    found = report_of(tmp_path)["tables"]
    names = [part["name"] for table in found for part in table["parts"]]
    assert len(names) == len(set(names)) == 5
    assert list_of_one.name not in names
    (path,) = (tmp_path / "reports").glob("r-17-*.json")
    assert check_report.main([str(path), str(xcom["public_key"])]) == 0


def test_a_wait_that_ended_while_other_tables_were_erased_is_no_reason_to_verify_yet(tmp_path: Path) -> None:
    operator = DeltaEraseOperator(
        task_id="erase", tables={"/lake/a": "email"}, subjects=["x"], request_id="r", report_uri="/lake/reports"
    )
    ended_ms = int(time.time() * 1000) - 3_600_000
    with pytest.raises(AirflowRescheduleException):
        operator._wait({"/lake/a": {"ends_ms": [ended_ms], "num_waits": 1}})


@pytest.mark.parametrize("runs", [16, 1])
def test_a_wait_that_another_run_of_the_dag_may_prolong_is_warned_of(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], runs: int
) -> None:
    with DAG("erase", max_active_runs=runs):
        operator = DeltaEraseOperator(
            task_id="erase", tables={"/lake/a": "email"}, subjects=["x"], request_id="r", report_uri="/lake/reports"
        )
    with pytest.raises(AirflowRescheduleException):
        operator._wait({"/lake/a": {"ends_ms": [int(time.time() * 1000)], "num_waits": 1}})
    assert ("max_active_runs=1" in caplog.text + "".join(capsys.readouterr())) is (runs > 1)


@pytest.mark.parametrize("spelling", ["{}/", "file:{}", "users", "{}/../link"])
def test_a_legal_hold_counts_however_it_spells_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "txlog", "host": str(tmp_path)}))
    users = make_table(tmp_path / "users", rows(SUBJECT))
    (tmp_path / "link").symlink_to(tmp_path / "users")
    hold = {spelling.format(tmp_path / "users"): "case 12"}
    # A report on held tables alone proves nothing.
    held = {"legal_hold": hold, "txlog_conn_id": "lake", "require_complete": False}
    assert not erase(tmp_path, {users.uri: "email"}, **held)["complete"]
    assert users.latest_version() == 1
    (table,) = report_of(tmp_path)["tables"]
    assert (table["state"], table["reason"]) == ("out of scope", "case 12")


def test_the_source_of_a_shallow_clone_under_legal_hold_keeps_the_files_of_the_clone(tmp_path: Path) -> None:
    users = make_table(tmp_path / "users", rows(SUBJECT))
    clone = tmp_path / "clone"
    committed(run(None, "clone", clone, source={"table": users.uri}, shallow=True))
    tables = {users.uri: "email", str(clone): "email"}
    with pytest.raises(ErasureIncomplete):
        erase(tmp_path, tables, legal_hold={str(clone): "case 12"})
    assert users.latest_version() == 1
    held = Table.open(str(clone), allow_absolute_paths=True)
    assert held.to_arrow().column("email").to_pylist() == [SUBJECT]


@pytest.mark.parametrize(
    ("tables", "hold", "argument"),
    [
        (("users",), ("user",), "legal_hold"),
        (("users", "users/"), (), "tables"),
        (("users", "../{}/users"), (), "tables"),
    ],
)
def test_a_hold_on_no_table_and_a_table_named_twice_are_refused(
    tmp_path: Path, tables: tuple[str, ...], hold: tuple[str, ...], argument: str
) -> None:
    users = make_table(tmp_path / "users", rows(SUBJECT))
    names = {f"{tmp_path}/{each.format(tmp_path.name)}": "email" for each in tables}
    with pytest.raises(InvalidJobSpec, match="Nothing was read") as caught:
        erase(tmp_path, names, legal_hold={f"{tmp_path}/{each}": "case 12" for each in hold})
    assert caught.value.facts["argument"] == argument
    assert users.latest_version() == 1


def test_a_wait_beyond_the_deadline_is_reported_and_does_not_pass(tmp_path: Path) -> None:
    users = make_table(tmp_path / "users", rows(*OTHERS))
    staged.stage("update", users, set={"day": f"'{SUBJECT}'"})
    with pytest.raises(AirflowRescheduleException):
        erase(tmp_path, {users.uri: "email"})
    with pytest.raises(ErasureIncomplete):
        erase(tmp_path, {users.uri: "email"}, deadline=dt.datetime.now(dt.UTC))
    report = report_of(tmp_path)
    assert not report["complete"]
    assert report["times"]["gone_from_storage"] is None
    assert report["tables"][0]["verdicts"]["found"] >= 1


def test_a_merge_that_brings_a_subject_back_meanwhile_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = make_table(tmp_path / "users", rows(SUBJECT, *OTHERS))
    verified = DeltaEraseOperator.verified

    def late(operator: DeltaEraseOperator, *given: Any) -> Any:
        append(Table.open(users.uri), rows(SUBJECT))
        return verified(operator, *given)

    monkeypatch.setattr(DeltaEraseOperator, "verified", late)
    with pytest.raises(ErasureIncomplete) as raised:
        erase(tmp_path, {users.uri: "email"})
    assert raised.value.left == {users.uri: 2}
    monkeypatch.undo()
    monkeypatch.setenv("AIRFLOW_CONN_SIGNER", json.dumps({"conn_type": "generic", "password": bytes(range(32)).hex()}))
    assert erase(tmp_path, {users.uri: "email"})["complete"]


def test_a_table_that_cannot_be_erased_does_not_stop_the_others(tmp_path: Path) -> None:
    fixed = make_table(tmp_path / "fixed", rows(SUBJECT), properties={"delta.appendOnly": "true"})
    users = make_table(tmp_path / "users", rows(SUBJECT, *OTHERS))
    with pytest.raises(ErasureIncomplete) as raised:
        erase(tmp_path, {fixed.uri: "email", users.uri: "email"})
    assert set(raised.value.left or ()) == {fixed.uri}
    assert holding(tmp_path / "users", SUBJECT) == []


def test_the_ledger_of_the_connection_knows_the_subjects_before_the_first_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Table.at(tmp_path / "erased", PLAIN)
    create_ledger(ledger)
    key = json.dumps({"conn_type": "generic", "password": "5e" * 32})
    monkeypatch.setenv("AIRFLOW_CONN_ERASURE_KEY", key)
    extra = {"erasure_ledger": str(tmp_path / "erased"), "erasure_key_conn_id": "erasure_key"}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "txlog", "host": str(tmp_path), "extra": extra}))
    # It is recorded even where the delete fails.
    make_table(tmp_path / "fixed", rows(SUBJECT), properties={"delta.appendOnly": "true"})
    with pytest.raises(ErasureIncomplete):
        erase(tmp_path, {"fixed": "email"}, txlog_conn_id="lake")
    (entry,) = recorded_in(ledger)
    assert (entry["request_id"], entry["subjects"]) == ("r-17", 1)
    assert holding(tmp_path / "erased", SUBJECT) == []


def test_the_report_is_incomplete_while_the_log_describes_a_file_of_a_subject_by_another_column(tmp_path: Path) -> None:
    users = table_with_subject(tmp_path / "users")
    given: dict[str, Any] = {"subjects": [PERSON]}
    with pytest.raises(ErasureIncomplete):
        erase(tmp_path, {users.uri: "user_id"}, cut_log=False, **given)
    assert {path.partition("/")[0] for path in holding(tmp_path / "users", EMAIL)} == {"_delta_log"}
    (table,) = report_of(tmp_path)["tables"]
    assert table["verdicts"]["statistic only"] >= len(holding(tmp_path / "users", EMAIL))
    assert all("of a file that held a subject" in each["places"] for each in table["left"])
    # No run has searched the file for the subjects of another request, and it is gone.
    with pytest.raises(ErasureIncomplete):
        erase(tmp_path, {users.uri: "user_id"}, cut_log=False, request_id="r-18", **given)
    assert erase(tmp_path, {users.uri: "user_id"}, request_id="r-19", **given)["complete"]
    assert holding(tmp_path / "users", EMAIL) == holding(tmp_path / "reports", EMAIL) == []


def test_the_log_describes_no_file_of_a_request_whose_subject_has_no_row(tmp_path: Path) -> None:
    users = table_with_subject(tmp_path / "users")
    requests = {"r-18": [PERSON], "r-19": [424_242]}
    given = {"subjects": None, "request_id": None, "requests": requests}
    with pytest.raises(ErasureIncomplete) as raised:
        erase(tmp_path, {users.uri: "user_id"}, cut_log=False, **given)
    assert set(raised.value.facts["requests"]) == {"r-18"}


def test_a_relative_folder_of_the_report_is_named_as_the_argument(tmp_path: Path) -> None:
    users = make_table(tmp_path / "users", rows(*OTHERS))
    with pytest.raises(InvalidJobSpec, match=r"^report_uri must be a folder's place: 'reports' is a relative path"):
        erase(tmp_path, {users.uri: "email"}, report_uri="reports")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"readers_in": "nowhere"}, InvalidJobSpec),
        ({"report_uri": "users/reports"}, InvalidJobSpec),
        ({"report_uri": "a_file/reports"}, OSError),
        ({"requested_at": "soon"}, InvalidJobSpec),
        ({"columns": ("email", "e_mail")}, UnknownColumn),
        ({"columns": ("email", "number")}, InvalidInput),
        ({"signing_conn_id": "none"}, AirflowNotFoundException),
        ({"subjects": table_source("orders"), "source_column": "email"}, InvalidJobSpec),
    ],
    ids=[
        "readers",
        "inside of a table",
        "not writable",
        "time",
        "column of the second table",
        "type",
        "signer",
        "requests",
    ],
)
def test_what_would_fail_at_the_end_is_refused_before_the_first_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], error: type[Exception]
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "txlog", "host": str(tmp_path)}))
    tables = [make_table(tmp_path / name, rows(SUBJECT, *OTHERS)) for name in ("users", "orders")]
    (tmp_path / "a_file").write_text("")
    columns = arguments.pop("columns", ("email", "email"))
    with pytest.raises(error):
        erase(tmp_path, dict(zip(("users", "orders"), columns, strict=True)), txlog_conn_id="lake", **arguments)
    assert [each.latest_version() for each in tables] == [1, 1]


def test_an_empty_source_and_an_empty_mapping_erase_nothing_and_a_missing_file_is_an_error(tmp_path: Path) -> None:
    users = make_table(tmp_path / "users", rows(SUBJECT, *OTHERS))
    (tmp_path / "week.csv").write_text("email\n")
    csv = {"format": "csv", "options": {"header": "true"}, "schema": "email STRING"}
    empty = erase(tmp_path, {users.uri: "email"}, subjects=files(str(tmp_path / "week.csv"), **csv))
    assert (empty["complete"], empty["num_subjects"], empty["report"]) == (True, 0, None)
    nothing = erase(tmp_path, {users.uri: "email"}, subjects=None, request_id=None, requests={})
    assert (nothing["complete"], nothing["num_requests"]) == (True, 0)
    assert not list((tmp_path / "reports").glob("*.json"))
    with pytest.raises(SourceNotFound):
        erase(tmp_path, {users.uri: "email"}, subjects=files(str(tmp_path / "none.parquet")))
    assert users.latest_version() == 1


def test_a_source_that_is_emptied_during_the_erasure_makes_no_complete_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = make_table(tmp_path / "users", rows(SUBJECT, *OTHERS))
    source = make_table(tmp_path / "requests", rows(SUBJECT))
    verified = DeltaEraseOperator.verified

    def late(operator: DeltaEraseOperator, *given: Any) -> Any:
        run(None, "delete", source, predicate="true")
        return verified(operator, *given)

    monkeypatch.setattr(DeltaEraseOperator, "verified", late)
    with pytest.raises(ErasureIncomplete):
        erase(tmp_path, {users.uri: "email"}, subjects=table_source(source.uri), source_column="email")
    assert report_of(tmp_path)["tables"][0]["state"] == "not verified"


def test_a_source_that_goes_during_the_erasure_is_not_said_to_have_changed_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = make_table(tmp_path / "users", rows(SUBJECT, *OTHERS))
    source = tmp_path / "week.parquet"
    pq.write_table(pa.table({"email": [SUBJECT]}), source)
    verified = DeltaEraseOperator.verified

    def late(operator: DeltaEraseOperator, *given: Any) -> Any:
        source.unlink()
        return verified(operator, *given)

    monkeypatch.setattr(DeltaEraseOperator, "verified", late)
    with pytest.raises(SourceNotFound, match=r"subjects\.source: .* This run of the job changed nothing\.$"):
        erase(tmp_path, {users.uri: "email"}, subjects=files(str(source)))
    assert users.latest_version() > 1


def test_the_report_counts_rows_and_names_the_versions_that_ended(tmp_path: Path) -> None:
    users = make_table(tmp_path / "users", rows(*OTHERS), rows(SUBJECT), rows(*OTHERS))
    erase(tmp_path, {users.uri: "email"}, cut_log=False, require_complete=False)
    (table,) = report_of(tmp_path)["tables"]
    assert (table["num_deleted_rows"], table["num_erased_objects"]) == (1, 1)
    # The first versions have no file of the subject.
    assert (table["oldest_version"], [each.get("ended_versions") for each in table["steps"]][-1]) == (0, "2-3")
    for version in range(users.latest_version() + 1):
        if version in (2, 3):
            with pytest.raises(FilesMissing):
                users.to_arrow(version=version)
        else:
            users.to_arrow(version=version)
    erase(tmp_path, {users.uri: "email"}, request_id="r-18")
    (path,) = (tmp_path / "reports").glob("r-18-*.json")
    (table,) = json.loads(path.read_text())["report"]["tables"]
    assert table["oldest_version"] == users.snapshot().version
    assert "0-1" in table["steps"][-1]["ended_versions"]


def test_the_report_on_a_person_who_is_not_there_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    users = make_table(tmp_path / "users", rows(*OTHERS))
    assert erase(tmp_path, {users.uri: "email"})["complete"]
    assert f"request r-17: {NO_ROW_FOUND}" in caplog.text + "".join(capsys.readouterr())
    report = report_of(tmp_path)
    assert set(report["times"].values()) == {None}
    assert [(each["num_deleted_rows"], each["num_erased_objects"]) for each in report["tables"]] == [(0, 0)]
    (page,) = (tmp_path / "reports").glob("r-17-*.html")
    assert "No row and no object of the subjects was found" in page.read_text()
    assert NO_ROW_FOUND in page.read_text()


def test_an_auditor_finds_the_person_of_a_report_by_the_digest_and_the_public_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    create_ledger(Table.at(tmp_path / "erased", PLAIN))
    monkeypatch.setenv("AIRFLOW_CONN_ERASURE_KEY", json.dumps({"conn_type": "generic", "password": "5e" * 32}))
    extra = {"erasure_ledger": "erased", "erasure_key_conn_id": "erasure_key"}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "txlog", "host": str(tmp_path), "extra": extra}))
    for name, column, subject in (("users", "email", SUBJECT), ("numbers", "user_id", PERSON)):
        table = (
            make_table(tmp_path / "users", rows(SUBJECT)) if name == "users" else table_with_subject(tmp_path / name)
        )
        xcom = erase(tmp_path, {table.uri: column}, subjects=[subject], request_id=name, txlog_conn_id="lake")
        kind = "text" if name == "users" else "number"
        given = Namespace(report=xcom["report"], key_conn_id="erasure_key", type=kind, conn_id=None, as_json=True)
        for line, expected in ((subject, [table.uri]), (7, [])):
            monkeypatch.setattr("sys.stdin", io.StringIO(f"{line}\n"))
            answer = digest_subjects(given)
            assert [each["tables"] for each in answer.document["subjects"]] == [expected]
            assert answer.has_failed == (not expected)
            answer.show()
    assert "zo" not in capsys.readouterr().out.replace("zone", "")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{PERSON}\n"))
    given.type = "text"
    digest_subjects(given).show()
    assert "--type number" in capsys.readouterr().out
    key = show_public_key(Namespace(signing_conn_id="signer")).document["public_key"]
    assert key == xcom["public_key"]


def test_wrong_arguments_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    with pytest.raises(InvalidJobSpec, match="deadline"):
        erase(tmp_path, {"/lake/a": "email"}, deadline="soon")
    with pytest.raises(InvalidJobSpec, match="writer_hours"):
        erase(tmp_path, {"/lake/a": "email"}, writer_hours=-1)
    with pytest.raises(InvalidInput, match="request_id"):
        erase(tmp_path, {"/lake/a": "email"}, request_id="max@example.org")


@pytest.mark.long("a DAG that runs; each of its steps is shown above")
def test_the_weekly_batch_erases_its_people_from_both_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dag_of: Callable[[str, str], Any]
) -> None:
    monkeypatch.setenv("TXLOG_DEMO_FOLDER", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_ERASURE_SIGNER", os.environ["AIRFLOW_CONN_SIGNER"])
    assert dag_of("erase_weekly", "erase_weekly").test().state == "success"
    assert holding(tmp_path / "customers", "user42@example.org") == []
    users = Table.open(tmp_path / "orders").to_arrow()["user_id"].to_pylist()
    assert len(users) == 196
    assert not {7, 42} & set(users)
    for request_id in ("r-2026-17", "r-2026-18"):
        (path,) = (tmp_path / "reports").glob(f"{request_id}-*.json")
        report = json.loads(path.read_text())["report"]
        assert report["complete"]
        assert {table["num_subjects"] for table in report["tables"]} == {1}
