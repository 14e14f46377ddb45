"""Alone in showing that the report on an erasure that failed, was killed, or lost a race states only what is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_txlog.contract.erasure import check_report
from airflow_txlog.engine.erasure import removal
from airflow_txlog.errors import ErasureIncomplete, TableError
from airflow_txlog.operators import DeltaEraseOperator
from tests.engine.erasure.test_described_files import EMAIL, SUBJECT, table_with_subject
from tests.helpers.byte_search import holding
from tests.helpers.jobs import committed, run

pytestmark = pytest.mark.airflow


@pytest.fixture(autouse=True)
def signer(airflow_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = json.dumps({"conn_type": "generic", "password": bytes(range(32)).hex()})
    monkeypatch.setenv("AIRFLOW_CONN_SIGNER", seed)
    monkeypatch.setenv("AIRFLOW_VAR_TXLOG_SAVED_WORK_SECRET", "s" * 40)


def erase(tmp_path: Path, *uris: str, **given: Any) -> dict[str, Any]:
    return DeltaEraseOperator(
        task_id="erase",
        tables=dict.fromkeys(uris, "user_id"),
        subjects=[SUBJECT],
        request_id="r-17",
        report_uri=str(tmp_path / "reports"),
        signing_conn_id="signer",
        runner="in_process",
        writer_hours=0,
        **given,
    ).execute({})  # type: ignore[typeddict-item]


def report_of(uri: Any) -> dict[str, Any]:
    return dict(json.loads(Path(str(uri).removeprefix("file://")).read_text())["report"])


def test_a_table_whose_erasure_failed_after_a_delete_is_not_complete_and_the_report_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = table_with_subject(tmp_path / "users")

    def failing(*_: Any) -> None:
        raise TableError("the checkpoint differs")

    with monkeypatch.context() as patch:
        patch.setattr(removal, "replace_checkpoint", failing)
        with pytest.raises(ErasureIncomplete) as raised:
            erase(tmp_path, users.uri)
    # No object holds the number any more; the log has the e-mail.
    assert raised.value.left == {users.uri: 0}
    assert holding(tmp_path / "users", EMAIL)
    report = report_of(raised.value.facts["report"])
    (table,) = report["tables"]
    assert (report["complete"], table["state"]) == (False, "not erased")
    assert "TableError" in table["reason"]
    assert table["verdicts"]
    assert report["times"]["gone_from_latest_version"] is None
    assert not any("no erasure preceded" in text for text in report["scope"])
    document = Path(str(raised.value.facts["report"]).removeprefix("file://"))
    public = json.loads(document.read_text())["signature"]["public_key"]
    found = check_report.check(document.read_bytes(), public, lambda name: (document.parent / name).read_bytes())
    assert (found.problems, found.is_complete) == ([], False)
    assert "not erased: the erasure failed with TableError" in document.with_suffix(
        ".html"
    ).read_text().lower().replace("tableerror", "TableError")
    assert erase(tmp_path, users.uri)["complete"]
    assert holding(tmp_path / "users", EMAIL) == []


def test_a_table_that_is_left_alone_for_a_held_clone_is_not_complete(tmp_path: Path) -> None:
    users = table_with_subject(tmp_path / "users")
    run(None, "delete", users, predicate=f"user_id = {SUBJECT}")
    users.vacuum(0, check_retention=False)
    clone = str(tmp_path / "clone")
    committed(run(None, "clone", clone, source={"table": users.uri}, shallow=True))
    with pytest.raises(ErasureIncomplete) as raised:
        erase(tmp_path, users.uri, clone, legal_hold={clone: "case 12"})
    assert holding(tmp_path / "users", EMAIL)
    table, _ = report_of(raised.value.facts["report"])["tables"]
    assert (table["state"], "its shallow clone" in table["reason"]) == ("not erased", True)
