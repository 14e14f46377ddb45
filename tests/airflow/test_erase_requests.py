"""Many requests in one run: one pass over each table, and a separate report for each request."""

from __future__ import annotations

import datetime as dt
import gzip
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.exceptions import AirflowRescheduleException

from airflow_txlog.contract.erasure import check_report
from airflow_txlog.engine import Table
from airflow_txlog.engine.erasure.ledger import create_ledger, recorded_in
from airflow_txlog.errors import ErasureIncomplete, InvalidInput, InvalidJobSpec
from airflow_txlog.jobs.files.erasure_lists import place_of
from airflow_txlog.operators import DeltaEraseOperator, DeltaErasureVerifyOperator, files
from airflow_txlog.storage import PLAIN
from tests.engine.erasure.test_removal import VECTORS
from tests.helpers import staged
from tests.helpers.byte_search import holding
from tests.helpers.rows import append, make_table

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("signer")]

ANNA, BORIS, CHLOE, NEVER = (f"{name}.canary@example.org" for name in ("anna", "boris", "chloé", "never"))
OTHER = "other@example.org"
REQUESTS = {"r-1": [ANNA], "r-2": [BORIS, CHLOE], "r-3": [NEVER]}


def rows(*emails: str) -> pa.Table:
    return pa.table({"email": list(emails), "note": [f"about {each}" for each in emails]})


def task(kind: type[Any], tmp_path: Path, tables: Any, **arguments: Any) -> Any:
    given: dict[str, Any] = {
        "requests": REQUESTS,
        "report_uri": str(tmp_path / "reports"),
        "signing_conn_id": "signer",
        "runner": "in_process",
        **arguments,
    }
    return kind(task_id="requests", tables=tables, **given)


def erase(tmp_path: Path, tables: Any, **arguments: Any) -> dict[str, Any]:
    given = {"writer_hours": 0, **arguments}
    return dict(task(DeltaEraseOperator, tmp_path, tables, **given).execute({}))


def verify(tmp_path: Path, tables: Any, **arguments: Any) -> dict[str, Any]:
    return dict(task(DeltaErasureVerifyOperator, tmp_path, tables, **arguments).execute({}))


def body_of(tmp_path: Path, request_id: str) -> dict[str, Any]:
    path = max((tmp_path / "reports").glob(f"{request_id}-*.json"))
    return dict(json.loads(path.read_text())["report"])


def verdicts_of(tmp_path: Path, request_id: str, table: int = 0) -> dict[str, str]:
    """The verdict on each object, by its path, from the lists that a report names."""
    found = {}
    for part in body_of(tmp_path, request_id)["tables"][table]["parts"]:
        for line in gzip.decompress((tmp_path / "reports" / part["name"]).read_bytes()).splitlines():
            entry = json.loads(line)
            found[entry["path"]] = entry["verdict"]
    return found


def is_accepted(tmp_path: Path, xcom: dict[str, Any], request_id: str) -> bool:
    place = xcom["requests"][request_id]["report"].removeprefix("file://")
    return check_report.main([place, xcom["public_key"]]) == 0


def test_each_request_gets_a_complete_report_with_only_its_own_facts(tmp_path: Path) -> None:
    users = make_table(tmp_path / "users", rows(ANNA, OTHER), rows(BORIS, CHLOE, OTHER), rows(OTHER))
    letters = make_table(tmp_path / "letters", rows(OTHER), rows(CHLOE, OTHER), properties=VECTORS)
    old = {path.name for path in (tmp_path / "users").glob("*.parquet")}
    xcom = erase(tmp_path, {users.uri: "email", letters.uri: "email"}, requested_at="2026-11-01T09:00:00Z")
    assert (xcom["complete"], xcom["num_requests"], xcom["num_complete"]) == (True, 3, 3)
    assert list(xcom["requests"]) == ["r-1", "r-2", "r-3"]
    for place in ("users", "letters", "reports"):
        assert [holding(tmp_path / place, each) for each in (ANNA, BORIS, CHLOE, NEVER)] == [[]] * 4
    assert all(is_accepted(tmp_path, xcom, each) for each in REQUESTS)
    assert [body_of(tmp_path, each)["tables"][0]["num_subjects"] for each in REQUESTS] == [1, 2, 1]
    # Each data file is a fact of the request whose subject it held.
    gone = {}
    for each in REQUESTS:
        found = verdicts_of(tmp_path, each)
        gone[each] = {path for path, verdict in found.items() if verdict == "deleted" and path in old}
    assert (len(gone["r-1"]), len(gone["r-2"]), gone["r-3"]) == (1, 1, set())
    assert gone["r-1"].isdisjoint(gone["r-2"])
    # The files that took their place are so called for those requests alone.
    rewritten = {each: set(verdicts_of(tmp_path, each).values()) for each in REQUESTS}
    assert "rewritten" in rewritten["r-1"] & rewritten["r-2"]
    assert rewritten["r-3"] == {"absent"}
    # Equal lists are one file.
    parts = [{part["name"] for part in body_of(tmp_path, each)["tables"][0]["parts"]} for each in ("r-1", "r-2")]
    assert len(parts[0] & parts[1]) == 1


def test_an_object_is_found_only_in_the_reports_of_the_requests_whose_subjects_it_holds(tmp_path: Path) -> None:
    users = make_table(tmp_path / "users", rows(ANNA, OTHER), rows(CHLOE))
    (tmp_path / "users" / "stray.txt").write_text(f"{BORIS} and {ANNA}")
    (tmp_path / "users" / "damaged.parquet").write_bytes(b"PAR1 damaged PAR1")
    with pytest.raises(ErasureIncomplete) as raised:
        verify(tmp_path, {users.uri: "email"})
    # A damaged object proves nothing for anybody.
    assert set(raised.value.requests or {}) == {"r-1", "r-2", "r-3"}
    (tmp_path / "users" / "damaged.parquet").unlink()
    with pytest.raises(ErasureIncomplete) as raised:
        verify(tmp_path, {users.uri: "email"})
    assert set(raised.value.requests or {}) == {"r-1", "r-2"}
    assert "2 of 3 requests are not complete: r-1, r-2." in str(raised.value)
    left = {
        each: [path for path, found in verdicts_of(tmp_path, each).items() if found != "absent"] for each in REQUESTS
    }
    assert "stray.txt" in set(left["r-1"]) & set(left["r-2"])
    # Data file, and the commit that has its bounds.
    assert (len(left["r-1"]), len(left["r-2"]), left["r-3"]) == (3, 3, [])
    for path in (tmp_path / "reports").iterdir():
        assert b"canary" not in path.read_bytes()
    assert "canary" not in str(raised.value)
    xcom = verify(tmp_path, {users.uri: "email"}, require_complete=False)
    assert (xcom["complete"], xcom["num_complete"], xcom["requests"]["r-1"]["left"]) == (False, 1, {users.uri: 3})
    assert (is_accepted(tmp_path, xcom, "r-3"), is_accepted(tmp_path, xcom, "r-1")) == (True, False)


def test_every_kind_of_object_tells_the_requests_apart(tmp_path: Path) -> None:
    """One request is found by search. Several are found by one search, and told apart by the values in the object."""
    users = make_table(tmp_path / "users", *(rows(each, OTHER) for each in (ANNA, BORIS, CHLOE)))
    users.checkpoint()
    folder = tmp_path / "users"
    (folder / "packed.json.gz").write_bytes(gzip.compress(json.dumps({"x": [BORIS]}).encode()))
    (folder / "wide.txt").write_text(CHLOE, encoding="utf-16")
    (folder / f"named {ANNA}").mkdir()
    pq.write_table(pa.table({"other": [f"to {CHLOE}", BORIS]}), folder / "unnamed.parquet")
    verify(tmp_path, {users.uri: "email"}, require_complete=False)
    for request_id, subjects in REQUESTS.items():
        together = verdicts_of(tmp_path, request_id)
        alone = {"requests": None, "request_id": f"alone-{request_id}", "subjects": subjects}
        verify(tmp_path, {users.uri: "email"}, require_complete=False, **alone)
        expected = verdicts_of(tmp_path, f"alone-{request_id}")
        assert together == expected, request_id
        assert body_of(tmp_path, request_id)["complete"] == (request_id == "r-3")
    (report,) = (tmp_path / "reports").glob("r-3-*.json")
    public_key = json.loads(report.read_text())["signature"]["public_key"]
    assert check_report.main([str(report), public_key]) == 0


def test_subjects_may_come_from_a_source_of_each_request_and_belong_to_several(tmp_path: Path) -> None:
    users = make_table(tmp_path / "users", rows(ANNA, BORIS, OTHER))
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"who": [BORIS, ANNA]}), tmp_path / "in" / "2.parquet")
    requests = {"r-1": [ANNA], "r-2": files(str(tmp_path / "in" / "2.parquet"))}
    xcom = erase(tmp_path, {users.uri: "email"}, requests=requests, source_column="who")
    assert xcom["complete"]
    for each in requests:
        assert "deleted" in verdicts_of(tmp_path, each).values()


def test_the_ledger_has_each_subject_with_its_own_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Table.at(tmp_path / "erased", PLAIN)
    create_ledger(ledger)
    monkeypatch.setenv("AIRFLOW_CONN_ERASURE_KEY", json.dumps({"conn_type": "generic", "password": "5e" * 32}))
    extra = {"erasure_ledger": str(tmp_path / "erased"), "erasure_key_conn_id": "erasure_key"}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "txlog", "host": str(tmp_path), "extra": extra}))
    make_table(tmp_path / "users", rows(ANNA, BORIS, OTHER))
    for _ in range(2):
        erase(tmp_path, {"users": "email"}, txlog_conn_id="lake")
        assert {each["request_id"]: each["subjects"] for each in recorded_in(ledger)} == {"r-1": 1, "r-2": 2, "r-3": 1}
    assert ledger.latest_version() == 1
    digests = body_of(tmp_path, "r-2")["tables"][0]["digests"]
    assert len(gzip.decompress((tmp_path / "reports" / digests["name"]).read_bytes()).splitlines()) == 2


def test_a_retry_with_another_request_keeps_the_facts_of_the_first_try(tmp_path: Path) -> None:
    users = make_table(tmp_path / "users", rows(ANNA, OTHER), rows(BORIS, OTHER))
    with pytest.raises(AirflowRescheduleException):
        erase(tmp_path, {users.uri: "email"}, writer_hours=24)
    append(users, rows(OTHER))
    for path in (tmp_path / "users").rglob("*"):
        os.utime(path, (time.time() - 90_000,) * 2)
    later = {**REQUESTS, "r-4": ["later@example.org"]}
    xcom = erase(tmp_path, {users.uri: "email"}, requests=later, writer_hours=24)
    assert xcom["num_complete"] == 4
    assert list(verdicts_of(tmp_path, "r-1").values()).count("deleted") >= 2
    first, last = (body_of(tmp_path, each) for each in ("r-1", "r-4"))
    steps = [step["name"] for step in first["tables"][0]["steps"]]
    assert steps == ["delete", "remove", "remove"]
    assert [step["name"] for step in last["tables"][0]["steps"]] == ["remove"]
    # Rows and files went in the first run, the log in the second one.
    assert first["times"]["gone_from_latest_version"] < first["times"]["gone_from_storage"]
    assert first["times"]["gone_from_storage"] < first["times"]["gone_from_log"]


def test_the_task_waits_until_the_last_wait_before_the_deadline_and_reports_those_after_it(tmp_path: Path) -> None:
    users = make_table(tmp_path / "users", rows(OTHER))
    staged.stage("update", users, set={"note": f"'{ANNA}'"})
    # A file that a writer may commit yet, for a day; the staged change waits longer.
    pq.write_table(rows(BORIS), tmp_path / "users" / "orphan.parquet")
    deadline = dt.datetime.now(dt.UTC) + dt.timedelta(days=2)
    with pytest.raises(AirflowRescheduleException) as raised:
        erase(tmp_path, {users.uri: "email"}, writer_hours=24, deadline=deadline)
    wait = raised.value.reschedule_date - dt.datetime.now(dt.UTC)
    assert dt.timedelta(hours=23, minutes=58) < wait < dt.timedelta(hours=24, minutes=3)
    os.utime(tmp_path / "users" / "orphan.parquet", (time.time() - 90_000,) * 2)
    for path in (tmp_path / "users" / "_delta_log").iterdir():
        os.utime(path, (time.time() - 90_000,) * 2)
    with pytest.raises(ErasureIncomplete) as incomplete:
        erase(tmp_path, {users.uri: "email"}, writer_hours=24, deadline=deadline)
    # What a staged change has saved cannot be read, so it proves nothing for anybody.
    assert set(incomplete.value.requests or {}) == {"r-1", "r-2", "r-3"}
    assert ["found" in verdicts_of(tmp_path, each).values() for each in REQUESTS] == [True, False, False]
    assert not (tmp_path / "users" / "orphan.parquet").exists()
    body = body_of(tmp_path, "r-1")
    (wait_end,) = {each["until"][:10] for each in body["tables"][0]["waits"]}
    assert body["rechecks"] == [{"item": "waits", "on": wait_end}]
    (page, *_) = (tmp_path / "reports").glob("r-1-*.html")
    text = page.read_text()
    assert "Check again" in text
    assert text.count("a staged change needs it until it expires") == len(body["tables"][0]["waits"])


def test_an_object_that_waits_for_one_request_is_no_part_of_the_report_of_another(tmp_path: Path) -> None:
    users = make_table(tmp_path / "users", rows(OTHER))
    pq.write_table(rows(ANNA), tmp_path / "users" / "orphan.parquet")
    with pytest.raises(ErasureIncomplete) as raised:
        erase(tmp_path, {users.uri: "email"}, writer_hours=24, deadline=dt.datetime.now(dt.UTC))
    assert set(raised.value.requests or {}) == {"r-1"}
    assert [body_of(tmp_path, each)["tables"][0]["num_waits"] for each in REQUESTS] == [1, 0, 0]


def test_a_file_that_may_be_in_the_partition_of_anybody_waits_for_every_request(tmp_path: Path) -> None:
    """Neither its path nor its rows show whose it is, so no verdict does, even if another file shows one."""
    users = Table.create(
        tmp_path / "users", rows(OTHER).schema, partition_by=["email"], properties={"delta.columnMapping.mode": "name"}
    )
    append(users, rows(OTHER))
    pq.write_table(pa.table({"note": ["about nobody"]}), tmp_path / "users" / "orphan.parquet")
    soon = {"writer_hours": 24, "deadline": dt.datetime.now(dt.UTC)}
    with pytest.raises(ErasureIncomplete) as raised:
        erase(tmp_path, {users.uri: "email"}, **soon)
    # Its error names as many objects as the report.
    assert {name: each["left"] for name, each in (raised.value.requests or {}).items()} == {
        name: {users.uri: 1} for name in REQUESTS
    }
    pq.write_table(pa.table({"note": [f"about {ANNA}"]}), tmp_path / "users" / "anna.parquet")
    with pytest.raises(ErasureIncomplete) as raised:
        erase(tmp_path, {users.uri: "email"}, **soon)
    assert set(raised.value.requests or {}) == set(REQUESTS)
    assert [body_of(tmp_path, each)["tables"][0]["num_waits"] for each in REQUESTS] == [2, 2, 2]


def test_the_next_day_to_check_again_is_that_of_the_declared_places(tmp_path: Path) -> None:
    users = make_table(tmp_path / "users", rows(OTHER))
    day = dt.datetime.now(dt.UTC).date()
    soon, late = (str(day + dt.timedelta(days=days)) for days in (3, 40))
    declared = {
        "backups": f"The backup of 2020-01-01 is overwritten on {late}.",
        "replicas": f"in sync by {soon}",
        "logs": "kept until 2019-12-31",
        "sources": "request 2026-13-99 is closed",
    }
    xcom = verify(tmp_path, {users.uri: "email"}, declared=declared)
    assert (xcom["recheck_on"], xcom["requests"]["r-1"]["recheck_on"]) == (soon, soon)
    assert body_of(tmp_path, "r-1")["rechecks"] == [{"item": "replicas", "on": soon}, {"item": "backups", "on": late}]


def test_a_week_without_a_request_succeeds_and_opens_nothing(tmp_path: Path) -> None:
    operator = task(DeltaEraseOperator, tmp_path, {"/none": "email"})
    operator.requests = {}
    xcom = operator.execute({})
    assert (xcom["num_requests"], xcom["complete"], xcom["requests"]) == (0, True, {})


@pytest.mark.parametrize(
    "arguments",
    [
        {"requests": None},
        {"requests": None, "subjects": ["x"]},
        {"requests": REQUESTS, "request_id": "r-1"},
        {"requests": REQUESTS, "subjects": ["x"]},
        {"requests": [["r-1", "x"]]},
        {"requests": {"../r": ["x"]}},
        {"requests": {"r-1": "x"}},
    ],
)
def test_the_two_forms_exclude_each_other_and_wrong_requests_are_refused_at_parsing(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    for kind in (DeltaEraseOperator, DeltaErasureVerifyOperator):
        with pytest.raises(InvalidInput):
            task(kind, tmp_path, {"/t": "email"}, **arguments)


def test_a_request_without_a_subject_stops_all_before_anything_is_done_and_is_named(tmp_path: Path) -> None:
    users = make_table(tmp_path / "users", rows(ANNA))
    with pytest.raises(InvalidInput, match=r"request r-2: .*no subject was given"):
        verify(tmp_path, {users.uri: "email"}, requests={"r-1": [ANNA], "r-2": []})
    assert not (tmp_path / "reports").exists()


def test_rendered_requests_show_their_ids_and_sources_and_no_subject(tmp_path: Path) -> None:
    source = files("/requests/2.parquet")
    operator = task(DeltaEraseOperator, tmp_path, {"/t": "email"}, requests={"r-1": [ANNA], "r-2": source})
    operator.render_template_fields({})
    assert "canary" not in repr(operator.requests)
    assert (list(operator.requests), operator.requests["r-2"]) == (["r-1", "r-2"], source)
    assert operator.job_arguments()["requests"]["r-1"] == {"column": "email", "values": [ANNA]}
    operator.requests = "{'r-1': ['x']}"
    with pytest.raises(InvalidJobSpec, match="render_template_as_native_obj"):
        operator.execute({})


def test_a_forged_record_in_the_folder_of_reports_stops_no_erasure(tmp_path: Path) -> None:
    users = make_table(tmp_path / "users", rows(ANNA, OTHER))
    (tmp_path / "reports").mkdir()
    for content in (b"[1]", b'{"requests": ["r-1"], "unknown": 1}', b"no json"):
        data = gzip.compress(content, mtime=0)
        name = f"erased-{place_of(users.uri)}-{hashlib.sha256(data).hexdigest()[:32]}.json.gz"
        (tmp_path / "reports" / name).write_bytes(data)
    xcom = erase(tmp_path, {users.uri: "email"})
    assert xcom["complete"]
