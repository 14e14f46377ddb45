"""Alone in showing that no false record of an earlier run changes a report, and that the lists of plans go."""

from __future__ import annotations

import gzip
import hashlib
import hmac
import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_txlog.cli.erasure import verify_report
from airflow_txlog.contract.parameters import encode_parameter
from airflow_txlog.errors import ErasureIncomplete
from airflow_txlog.hooks.work_key import records_key
from airflow_txlog.jobs.files import erasure_lists
from airflow_txlog.jobs.files.erasure_lists import (
    ErasureRecord,
    place_of,
    read_record,
    remove_plans,
    unverified_requests,
)
from airflow_txlog.operators import DeltaEraseOperator
from airflow_txlog.storage import LocalStore
from tests.engine.erasure.test_removal import OTHERS, SUBJECT, rows
from tests.helpers.jobs import run
from tests.helpers.rows import make_table

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("signer")]


def erase(
    tmp_path: Path,
    uri: str,
    request_id: str = "r-17",
    subject: str = SUBJECT,
    requests: dict[str, list[str]] | None = None,
) -> dict[str, Any]:
    given = {"subjects": [subject], "request_id": request_id} if requests is None else {"requests": requests}
    return DeltaEraseOperator(
        task_id="erase",
        tables={uri: "email"},
        report_uri=str(tmp_path / "reports"),
        signing_conn_id="signer",
        runner="in_process",
        writer_hours=0,
        **given,
    ).execute({})  # type: ignore[typeddict-item]


def put(reports: Path, kind: str, ending: str, text: str) -> str:
    """Write a file under the name that its content has, as every writer of the folder can."""
    data = gzip.compress(text.encode(), mtime=0)
    name = f"{kind}-{hashlib.sha256(data).hexdigest()[:32]}.{ending}.gz"
    reports.mkdir(exist_ok=True)
    (reports / name).write_bytes(data)
    return name


@pytest.mark.parametrize("signature", ["", "\n", "of another key", "of another table", "of a plan"])
def test_a_false_record_calls_no_object_deleted_and_none_rewritten(tmp_path: Path, signature: str) -> None:
    users = make_table(tmp_path / "users", rows(SUBJECT, *OTHERS))
    data = next((tmp_path / "users").glob("*.parquet"))
    reports, place = tmp_path / "reports", place_of(users.uri)
    entry = {"path": "never-there.parquet", "size_bytes": 9, "digest": "0" * 64, "verdict": "deleted"}
    listed = put(reports, f"deleted-{place}", "jsonl", json.dumps(entry))
    part = {"name": listed, "sha256": hashlib.sha256((reports / listed).read_bytes()).hexdigest(), "num_objects": 1}
    steps = [{"name": "remove", "version": 1, "at": "2020-01-01T00:00:00.000+00:00"}]
    record = {"requests": ["r-17"], "steps": steps, "written": {data.name: 1}, "deleted": {"r-17": [part]}}
    text, kind = json.dumps(record), f"erased-{place}"
    signed = {
        "of another key": hmac.new(b"k" * 32, f"{kind}\n{text}".encode(), hashlib.sha256).hexdigest(),
        "of another table": _signature(f"erased-{place_of('/another')}", text),
        "of a plan": _signature(f"planned-{place}", text),
    }
    put(reports, kind, "json", f"{text}\n{signed.get(signature, '')}" if signature else text)
    xcom = erase(tmp_path, users.uri)
    assert xcom["complete"]
    (path,) = reports.glob("r-17-*.json")
    assert listed not in path.read_text()
    assert "2020-01-01" not in path.read_text()


def test_a_true_record_of_another_table_is_none_of_this_one(tmp_path: Path) -> None:
    """A writer of the folder can give it the name of a record of this table."""
    users, orders = (make_table(tmp_path / name, rows(SUBJECT, *OTHERS)) for name in ("users", "orders"))
    erase(tmp_path, users.uri)
    reports = tmp_path / "reports"
    listed = {path.name for path in reports.glob("deleted-*")}
    (record,) = reports.glob("erased-*")
    (reports / record.name.replace(place_of(users.uri), place_of(orders.uri))).write_bytes(record.read_bytes())
    report = Path(erase(tmp_path, orders.uri)["report"].removeprefix("file://")).read_text()
    assert not [name for name in listed if name in report]


def _signature(kind: str, text: str) -> str:
    """Return the signature that this deployment gives."""
    return hmac.new(bytes.fromhex(records_key() or ""), f"{kind}\n{text}".encode(), hashlib.sha256).hexdigest()


def test_a_record_that_does_not_count_is_named_with_the_reason(tmp_path: Path) -> None:
    said: list[str] = []
    text = json.dumps({"requests": ["r-17"], "steps": []})
    name = put(tmp_path, f"erased-{place_of('/t')}", "json", f"{text}\n{'0' * 64}")
    assert read_record(LocalStore(str(tmp_path)), name, "ab" * 32, said.append) is None
    (tmp_path / name).write_bytes(gzip.compress(b"{}"))
    assert read_record(LocalStore(str(tmp_path)), name, "ab" * 32, said.append) is None
    assert len(said) == 2
    assert all(name in each and "was changed, or is not signed" in each and "delete it" in each for each in said)


def test_a_false_record_that_comes_after_the_look_at_a_signature_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = f"erased-{place_of('/t')}"
    text = json.dumps({"requests": ["r-17"], "steps": []})
    true = put(tmp_path, kind, "json", f"{text}\n{_signature(kind, text)}")
    false = put(tmp_path, kind, "json", json.dumps({"requests": ["r-17"], "steps": [{"name": "false"}]}))
    forged, read = (tmp_path / false).read_bytes(), erasure_lists._whole
    (tmp_path / false).write_bytes((tmp_path / true).read_bytes())

    def replaced(lists: LocalStore, name: str, *given: Any) -> bytes | None:
        (tmp_path / false).write_bytes(forged)
        return read(lists, name, *given)

    monkeypatch.setattr(erasure_lists, "_whole", replaced)
    store, key = LocalStore(str(tmp_path)), records_key()
    assert key is not None
    assert read_record(store, true, key, print) is not None
    (tmp_path / false).write_bytes((tmp_path / true).read_bytes())
    assert read_record(store, false, key, print) is None


@pytest.mark.parametrize("kind", ["erased", "planned"])
def test_a_signed_record_of_another_release_is_called_not_verified_with_its_own_reason(
    tmp_path: Path, kind: str
) -> None:
    said: list[str] = []
    kind = f"{kind}-{place_of('/t')}"
    text = json.dumps({"requests": ["r-17"], "steps": [], "of_a_later_release": 7})
    name = put(tmp_path, kind, "json", f"{text}\n{_signature(kind, text)}")
    store = LocalStore(str(tmp_path))
    assert unverified_requests(store, "/t", ["r-17", "r-18"], records_key(), said.append) == {"r-17"}
    (line,) = said
    assert name in line
    assert "a form that this release does not know" in line
    assert "not signed" not in line


@pytest.mark.parametrize(("most", "claimed"), [(10, {"r-17", "r-18"}), (10_000, {"r-17"})])
def test_what_a_record_claims_that_is_too_large_to_read_without_a_signature_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, claimed: set[str]
) -> None:
    put(tmp_path, f"erased-{place_of('/t')}", "json", json.dumps({"requests": ["r-17"]}))
    monkeypatch.setattr(erasure_lists, "_MOST_UNSIGNED_BYTES", most)
    assert unverified_requests(LocalStore(str(tmp_path)), "/t", ["r-17", "r-18"], records_key(), print) == claimed


def test_no_file_that_others_put_into_the_folder_stops_an_erasure_or_gets_into_a_signed_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users = make_table(tmp_path / "users", rows(SUBJECT, *OTHERS))
    reports, kind = tmp_path / "reports", f"erased-{place_of(users.uri)}"
    deep = "[" * 100_000 + "]" * 100_000
    texts = ["", "null", "[]", deep, '{"requests": 7}', '{"requests": ["r-18"], "steps": NaN}', f'{{"steps": {deep}}}']
    names = [put(reports, kind, "json", each) for each in (*texts, f'{{"requests": {"9" * 9_999}}}', '{"steps": []}')]
    names += [
        f"{kind}-x",
        f"{kind}-{'0' * 32}.json.gz",
        f"planned-{place_of(users.uri)}-",
        f"{kind}-{'1' * 32}.json.gz",
    ]
    for name in names[-4:]:
        (reports / name).write_bytes(b"")
    (reports / names[-1]).unlink()
    (reports / names[-1]).symlink_to("/dev/zero")

    def steps(xcom: dict[str, Any]) -> list[str]:
        (table,) = json.loads(Path(xcom["report"].removeprefix("file://")).read_text())["report"]["tables"]
        return [step["name"] for step in table["steps"]]

    assert steps(erase(tmp_path, users.uri)) == ["delete", "remove"]
    said = capsys.readouterr().out
    for name in names[:-1]:
        assert said.count(f"warning: the record {name!r} is gone") == 1
    before = set(reports.iterdir())
    claims = [put(reports, kind, "json", '{"requests": ["r-17"]}'), put(reports, kind, "json", "x" * 2**20 + "y")]
    claimed = erase(tmp_path, users.uri)
    assert "earlier runs (not verified)" in steps(claimed)
    assert "earlier runs (not verified)" in Path(claimed["page"].removeprefix("file://")).read_text()
    for name in claims:
        (reports / name).unlink()
    for path in set(reports.iterdir()) - before:
        assert path.name.startswith("r-17-") or b"earlier runs" not in gzip.decompress(path.read_bytes())
    assert "earlier runs (not verified)" not in steps(erase(tmp_path, users.uri))


def test_a_record_of_this_deployment_counts_in_the_next_run(tmp_path: Path) -> None:
    users = make_table(tmp_path / "users", rows(SUBJECT, *OTHERS))
    assert erase(tmp_path, users.uri)["complete"]
    assert erase(tmp_path, users.uri)["complete"]
    for path in (tmp_path / "reports").glob("r-17-*.json"):
        (table,) = json.loads(path.read_text())["report"]["tables"]
        assert table["verdicts"]["deleted"] >= 2
        assert {"delete", "remove"} <= {step["name"] for step in table["steps"]}


def killed_after(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, requests: dict[str, list[str]] | None = None
) -> None:
    """Erase, and be killed after the deletion of a file."""
    with monkeypatch.context() as patch:
        delete = LocalStore.delete

        def killed(self: LocalStore, path: str) -> None:
            delete(self, path)
            if path == old.name:
                raise KeyboardInterrupt

        patch.setattr(LocalStore, "delete", killed)
        with pytest.raises(KeyboardInterrupt):
            erase(tmp_path, uri, requests=requests)
    assert not old.exists()
    assert list((tmp_path / "reports").glob("planned-*"))


def is_listed(old: Path, report: str, reports: Path) -> bool:
    """Return whether a list of the only table of a report names a file."""
    (table,) = json.loads(Path(report.removeprefix("file://")).read_text())["report"]["tables"]
    return any(old.name.encode() in gzip.decompress((reports / part["name"]).read_bytes()) for part in table["parts"])


def test_the_plan_of_a_killed_erasure_goes_with_the_next_one_and_names_all_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = make_table(tmp_path / "users", rows(SUBJECT, *OTHERS))
    old = next((tmp_path / "users").glob("*.parquet"))
    killed_after(old, tmp_path, monkeypatch, users.uri)
    report = erase(tmp_path, users.uri)["report"]
    assert not list((tmp_path / "reports").glob("planned-*"))
    assert is_listed(old, report, tmp_path / "reports")


def test_the_plan_of_several_requests_stays_until_each_was_erased_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "zoe.other@example.org"
    users = make_table(tmp_path / "users", rows(SUBJECT, other, *OTHERS))
    old = next((tmp_path / "users").glob("*.parquet"))
    killed_after(old, tmp_path, monkeypatch, users.uri, {"r-17": [SUBJECT], "r-18": [other]})
    for request_id, subject, stays in (("r-17", SUBJECT, True), ("r-18", other, False)):
        assert is_listed(old, erase(tmp_path, users.uri, request_id, subject)["report"], tmp_path / "reports")
        assert bool(list((tmp_path / "reports").glob("planned-*"))) is stays


def test_without_the_secret_no_earlier_record_counts_and_nothing_is_deleted_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = make_table(tmp_path / "users", rows(SUBJECT, *OTHERS))
    reports, place = tmp_path / "reports", place_of(users.uri)
    entry = json.dumps({"path": "never-there.parquet", "size_bytes": 9, "digest": "0" * 64, "verdict": "deleted"})
    listed = put(reports, f"deleted-{place}", "jsonl", entry)
    (reports / "of-another.json").write_text("{}")
    parts = [{"name": name, "sha256": "0" * 64, "num_objects": 1} for name in (listed, "of-another.json")]
    record = {"requests": ["r-17"], "steps": [], "deleted": {"r-17": parts}}
    for kind in (f"planned-{place}", f"erased-{place}"):
        put(reports, kind, "json", json.dumps(record))
    before = set(reports.iterdir())
    monkeypatch.setenv("AIRFLOW_VAR_TXLOG_SAVED_WORK_SECRET", "short")
    report = erase(tmp_path, users.uri)["report"]
    assert "never-there" not in Path(report.removeprefix("file://")).read_text()
    assert before <= set(reports.iterdir())
    assert not is_listed(Path("never-there.parquet"), report, reports)


def test_a_signed_plan_deletes_no_other_file(tmp_path: Path) -> None:
    names = ["report.json", "deleted-1.jsonl.gz", "planned-objects-1.jsonl.gz", "planned-1.json.gz"]
    for name in names:
        (tmp_path / name).write_text("")
    parts = [{"name": name} for name in (*names[:3], "planned-objects-/../../report.json")]
    plan = ErasureRecord(requests=["r"], steps=[], deleted={"r": parts})
    remove_plans(LocalStore(str(tmp_path)), [(names[3], plan)], print)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deleted-1.jsonl.gz", "report.json"]


def test_a_record_that_unpacks_without_end_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasure_lists, "_MOST_RECORD_BYTES", 10_000)
    said: list[str] = []
    name = put(tmp_path, f"erased-{place_of('/t')}", "json", "x" * 10_001)
    assert read_record(LocalStore(str(tmp_path)), name, "ab" * 32, said.append) is None
    data = bytes(range(256)) * 40
    large = f"erased-{hashlib.sha256(data).hexdigest()[:32]}.json.gz"
    (tmp_path / large).write_bytes(data)
    assert read_record(LocalStore(str(tmp_path)), large, None, said.append) is None
    assert len(said) == 2


def test_a_plan_stays_until_a_run_can_tell_what_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users = make_table(tmp_path / "users", rows(SUBJECT, *OTHERS))
    old = next((tmp_path / "users").glob("*.parquet"))
    killed_after(old, tmp_path, monkeypatch, users.uri)
    walk = LocalStore.walk

    def hiding(self: LocalStore, unreadable: Callable[[str], object] | None = None, *given: Any, **named: Any) -> Any:
        if self.root == users.uri and unreadable is not None:
            unreadable("closed")
        return walk(self, unreadable, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "walk", hiding)
        with pytest.raises(ErasureIncomplete):
            erase(tmp_path, users.uri)
    assert list((tmp_path / "reports").glob("planned-*"))
    assert is_listed(old, erase(tmp_path, users.uri)["report"], tmp_path / "reports")
    assert not list((tmp_path / "reports").glob("planned-*"))


def test_a_run_leaves_the_plan_of_another_request_that_works_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are about to delete the same object for the same reason, so their lists are equal."""
    other = "zoe.other@example.org"
    users = make_table(tmp_path / "users", rows("a@example.org", other, SUBJECT, "zz@example.org"))
    old = next((tmp_path / "users").glob("*.parquet"))
    keys = {"column": "email", "values": encode_parameter([other, SUBJECT], "keys")}
    run(None, "delete", users, predicate=None, keys=keys)
    delete = LocalStore.delete
    is_nested = False

    def killed(self: LocalStore, path: str) -> None:
        nonlocal is_nested
        if path == old.name and not is_nested:
            is_nested = True
            assert erase(tmp_path, users.uri, "r-18", other)["complete"]
            raise KeyboardInterrupt
        delete(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "delete", killed)
        with pytest.raises(KeyboardInterrupt):
            erase(tmp_path, users.uri)
    assert not old.exists()
    assert is_listed(old, erase(tmp_path, users.uri)["report"], tmp_path / "reports")
    assert not list((tmp_path / "reports").glob("planned-*"))


def test_a_folder_of_reports_in_which_nothing_may_be_deleted_stops_no_erasure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = make_table(tmp_path / "users", rows(SUBJECT, *OTHERS))
    delete = LocalStore.delete

    def locked(self: LocalStore, path: str) -> None:
        if "planned-" in path:
            raise PermissionError(13, "locked")
        delete(self, path)

    monkeypatch.setattr(LocalStore, "delete", locked)
    assert erase(tmp_path, users.uri)["complete"]
    assert list((tmp_path / "reports").glob("planned-*"))


def test_one_command_checks_many_reports_and_passes_only_if_all_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users = make_table(tmp_path / "users", rows(SUBJECT, *OTHERS))
    complete = erase(tmp_path, users.uri)["report"]
    (tmp_path / "users" / "_left.txt").write_text(SUBJECT)
    with pytest.raises(ErasureIncomplete) as raised:
        erase(tmp_path, users.uri, "r-18")
    given = [complete, str(raised.value.facts["report"]), str(tmp_path / "reports" / "none.json")]

    def answer(*reports: str) -> Any:
        return verify_report(
            Namespace(reports=reports, public_key=None, signing_conn_id="signer", conn_id=None, as_json=False)
        )

    assert not answer(complete, complete).has_failed
    whole = answer(*given)
    assert whole.has_failed
    assert (whole.document["is_authentic"], whole.document["is_complete"]) == (False, False)
    found = [(each["request_id"], each["is_authentic"], each["is_complete"]) for each in whole.document["reports"]]
    assert found == [("r-17", True, True), ("r-18", True, False), (None, False, False)]
    whole.show()
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "1 of 3 reports are complete"
    assert sum(line.endswith(".json:") for line in lines) == 3
