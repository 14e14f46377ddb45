"""DeltaErasureVerifyOperator and the check of its reports: whole reports without a value, complete or not."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from airflow_txlog.cli.erasure import verify_report
from airflow_txlog.engine import Table
from airflow_txlog.errors import ErasureIncomplete, InvalidInput, InvalidJobSpec, UnknownColumn
from airflow_txlog.hooks.erasure.published_report import public_key_of, signing_key
from airflow_txlog.operators import DeltaErasureVerifyOperator, files
from tests.helpers.jobs import application, committed, run
from tests.helpers.rows import make_table

pytestmark = pytest.mark.airflow

SUBJECT = "zoë.canary@example.org"
SEED = bytes(range(32)).hex()


@pytest.fixture(autouse=True)
def key(airflow_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SIGNER", json.dumps({"conn_type": "generic", "password": SEED}))


def make(folder: Path, *emails: str) -> Table:
    schema = pa.schema([("id", pa.int64()), ("email", pa.string())])
    rows = pa.table({"id": range(len(emails)), "email": list(emails)}, schema=schema)
    return make_table(folder, rows)


def operator(tmp_path: Path, tables: Any, **arguments: Any) -> DeltaErasureVerifyOperator:
    given: dict[str, Any] = {
        "subjects": [SUBJECT],
        "request_id": "r-17",
        "report_uri": str(tmp_path / "reports"),
        "signing_conn_id": "signer",
        "runner": "in_process",
        **arguments,
    }
    return DeltaErasureVerifyOperator(task_id="prove", tables=tables, **given)


def execute(tmp_path: Path, tables: Any, **arguments: Any) -> dict[str, Any]:
    return operator(tmp_path, tables, **arguments).execute({})  # type: ignore[typeddict-item]


def checked(report: str, public_key: str | None = None) -> dict[str, Any]:
    signing = None if public_key else "signer"
    args = Namespace(reports=[report], public_key=public_key, signing_conn_id=signing, conn_id=None, as_json=True)
    (found,) = verify_report(args).document["reports"]
    return dict(found)


def test_a_table_without_the_subject_has_a_complete_report_that_can_be_checked(tmp_path: Path) -> None:
    users, orders = make(tmp_path / "users", "bob@example.org"), make(tmp_path / "orders", "eve@example.org")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    xcom = execute(
        tmp_path,
        {users.uri: "email", str(tmp_path / "orders"): "email"},
        requested_at="2026-11-01T09:00:00Z",
        declared={"backups": "expire on 2027-01-31"},
    )
    assert before.items() <= {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}.items()
    assert (xcom["complete"], xcom["left"], xcom["request_id"]) == (True, {}, "r-17")
    found = checked(xcom["report"])
    assert (found["is_complete"], found["num_tables"], found["num_objects"]) == (True, 2, 6)
    assert checked(xcom["report"], xcom["public_key"])["is_complete"]
    body = json.loads(Path(xcom["report"].removeprefix("file://")).read_text())["report"]
    assert body["times"]["requested"] == "2026-11-01T09:00:00Z"
    assert next(item for item in body["checklist"] if item["item"] == "backups")["declared"] == "expire on 2027-01-31"
    assert [table["table"] for table in body["tables"]] == [users.uri, orders.uri]
    assert (body["tables"][0]["oldest_version"], body["tables"][0]["version"]) == (0, 1)
    page = Path(xcom["page"].removeprefix("file://")).read_text()
    assert "Complete" in page
    assert xcom["public_key"] in page


def test_a_table_with_the_subject_fails_the_task_after_its_report_which_holds_no_value(tmp_path: Path) -> None:
    table = make(tmp_path / "users", "bob@example.org", SUBJECT)
    with pytest.raises(ErasureIncomplete) as caught:
        execute(tmp_path, {table.uri: "email"})
    error = caught.value
    assert (error.retryable, error.facts["request_id"], error.left) == (False, "r-17", {table.uri: 2})
    found = checked(error.facts["report"])
    assert (found["is_authentic"], found["is_complete"], len(found["left"])) == (True, False, 2)
    assert any("rows, column 'email'" in line for line in found["left"])
    for path in (tmp_path / "reports").iterdir():
        assert b"canary" not in path.read_bytes()
    assert "canary" not in str(error)
    xcom = execute(tmp_path, {table.uri: "email"}, require_complete=False)
    assert (xcom["complete"], xcom["left"]) == (False, {table.uri: 2})
    # The second report leaves the first one as it is.
    assert len(list((tmp_path / "reports").glob("r-17-*.json"))) == 2


def test_subjects_come_from_a_file_and_are_each_looked_for(tmp_path: Path) -> None:
    table = make(tmp_path / "users", SUBJECT)
    (tmp_path / "subjects.csv").write_text(f"email\nnobody@example.org\n{SUBJECT}\n")
    subjects = files(str(tmp_path / "subjects.csv"), format="csv", schema="email STRING", options={"header": "true"})
    with pytest.raises(ErasureIncomplete):
        execute(tmp_path, {table.uri: "email"}, subjects=subjects)
    (tmp_path / "subjects.csv").write_text("email\n")
    assert execute(tmp_path, {table.uri: "email"}, subjects=subjects)["num_subjects"] == 0


def test_a_table_under_a_legal_hold_is_not_opened_and_one_that_cannot_be_is_not_complete(tmp_path: Path) -> None:
    table = make(tmp_path / "users", "bob@example.org")
    held, gone = str(tmp_path / "held"), str(tmp_path / "gone")
    xcom = execute(tmp_path, {table.uri: "email", held: "id"}, legal_hold={held: "case 7"})
    assert xcom["complete"]
    # However its path is spelled. If every table is held, nothing is proven.
    with pytest.raises(ErasureIncomplete, match="every table is under a legal hold") as nothing:
        execute(tmp_path, {table.uri: "email"}, legal_hold={f"{tmp_path}/users/": "case 7"})
    assert nothing.value.left == {}
    (tmp_path / "users" / "_delta_log" / f"{1:020}.json").write_text("{")
    with pytest.raises(ErasureIncomplete) as caught:
        execute(tmp_path, {table.uri: "email", gone: "id"})
    left = checked(caught.value.facts["report"])["left"]
    assert [line.rpartition(": ")[2] for line in left] == [
        "not verified (CorruptCommit, see the task's log).",
        "not verified (TableNotFound, see the task's log).",
    ]


def test_a_report_without_a_signature_is_written_and_not_accepted(tmp_path: Path) -> None:
    table = make(tmp_path / "users", "bob@example.org")
    xcom = execute(tmp_path, {table.uri: "email"}, signing_conn_id=None)
    assert (xcom["complete"], xcom["public_key"]) == (True, None)
    assert checked(xcom["report"])["problems"] == ["The report is not signed."]


def test_the_key_is_pem_or_the_digits_of_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(SEED))
    assert public_key_of(signing_key("signer")) == public_key_of(expected)
    pem = expected.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    for text in (pem, pem.replace("\n", "\\n")):
        monkeypatch.setenv("AIRFLOW_CONN_SIGNER", json.dumps({"conn_type": "generic", "password": text}))
        assert public_key_of(signing_key("signer")) == public_key_of(expected)


@pytest.mark.parametrize("password", [None, "secret", 64 * "z", "-----BEGIN PRIVATE KEY-----\nAA==\n"])
def test_a_connection_without_a_key_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, password: str | None
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SIGNER", json.dumps({"conn_type": "generic", "password": password}))
    with pytest.raises(InvalidJobSpec, match="no Ed25519 key"):
        execute(tmp_path, {str(tmp_path / "none"): "email"})


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"tables": {}}, "tables"),
        ({"tables": {"/t": ""}}, "tables"),
        ({"tables": ["/t"]}, "tables"),
        ({"legal_hold": {"/t": None}}, "legal_hold"),
        ({"declared": {"backup": "gone"}}, "declared"),
        ({"subjects": "a@example.org"}, "subjects"),
        ({"report_uri": "reports"}, "arguments.report_uri"),
        ({"request_id": "../x"}, None),
    ],
)
def test_wrong_arguments_are_refused_when_the_dag_is_parsed(
    tmp_path: Path, arguments: dict[str, Any], argument: str | None
) -> None:
    with pytest.raises(InvalidInput) as caught:
        operator(tmp_path, **{"tables": {"/t": "email"}, **arguments})
    assert caught.value.facts.get("argument") == argument


def test_what_only_the_table_shows_is_refused_too(tmp_path: Path) -> None:
    table = make(tmp_path / "users", "bob@example.org")
    with pytest.raises(UnknownColumn):
        execute(tmp_path, {table.uri: "mail"})
    with pytest.raises(InvalidInput, match="inside of the table"):
        execute(tmp_path, {table.uri: "email"}, report_uri=str(tmp_path / "users" / "reports"))
    assert not (tmp_path / "users" / "reports").exists()


def test_rendered_subjects_are_hidden(tmp_path: Path) -> None:
    task = operator(tmp_path, {"/t": "email"})
    task.render_template_fields({})  # type: ignore[typeddict-item]
    assert "canary" not in repr(task.subjects)
    assert task.job_arguments()["subjects"] == {"column": "email", "values": [SUBJECT]}


def test_tables_that_read_these_and_are_not_covered_are_named(tmp_path: Path) -> None:
    table = make(tmp_path / "lake" / "users", "bob@example.org")
    make(tmp_path / "lake" / "other", "eve@example.org")
    committed(run(None, "clone", tmp_path / "lake" / "clone", source={"table": table.uri}, shallow=True))
    silver = tmp_path / "lake" / "silver"
    committed(
        run(None, "incremental", silver, source={"table": table.uri}, consumer="silver", application=application())
    )
    xcom = execute(tmp_path, {table.uri: "email"}, readers_in=str(tmp_path / "lake"))
    body = json.loads(Path(xcom["report"].removeprefix("file://")).read_text())["report"]
    expected = [{"table": f"file://{tmp_path}/lake/{name}", "reads": table.uri} for name in ("clone", "silver")]
    assert sorted(body["not_covered"], key=lambda each: each["table"]) == expected
