"""Sources of subjects that do not fit every table, and reports that cannot answer whether they cover a person."""

from __future__ import annotations

import io
import json
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.cli.erasure import digest_subjects
from airflow_txlog.engine import Table
from airflow_txlog.engine.erasure.digests import DigestKey
from airflow_txlog.engine.erasure.ledger import create_ledger
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.errors import (
    ErasureIncomplete,
    FilesMissing,
    FolderChanged,
    InvalidInput,
    InvalidJobSpec,
    LedgerKeyMissing,
    SourceNotFound,
    TxlogError,
    UnsupportedFeature,
)
from airflow_txlog.operators import DeltaEraseOperator, files, query
from airflow_txlog.operators import table as table_source
from airflow_txlog.storage import PLAIN
from tests.airflow.test_erase import erase, report_of
from tests.engine.erasure.test_removal import OTHERS, SUBJECT, rows
from tests.engine.erasure.test_spellings import table_of
from tests.helpers.jobs import committed, run
from tests.helpers.rows import make_table

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("signer")]


@pytest.mark.parametrize(
    ("columns", "source_column", "error", "message"),
    [
        ({"email": [SUBJECT]}, "email", InvalidInput, "not exactly a long"),
        ({"email": [SUBJECT], "name": ["Zoe"]}, None, InvalidJobSpec, "The source of the subjects has no column"),
        ({"email": [SUBJECT], "number": ["seven"]}, None, InvalidInput, "not exactly a long"),
    ],
    ids=["one column for all", "no column", "values"],
)
@pytest.mark.parametrize("kind", ["parquet", "table"])
def test_a_source_that_a_later_table_cannot_use_is_refused_before_the_first_delete(
    tmp_path: Path,
    columns: dict[str, list[str]],
    source_column: str | None,
    error: type[Exception],
    message: str,
    kind: str,
) -> None:
    tables = [make_table(tmp_path / name, rows(SUBJECT, *OTHERS)) for name in ("users", "copies", "orders")]
    source = make_table(tmp_path / "week", pa.table(columns))
    (parquet,) = (tmp_path / "week").glob("*.parquet")
    subjects = table_source(source.uri) if kind == "table" else files(str(shutil.copy(parquet, tmp_path / "w.parquet")))
    keys = dict(zip((each.uri for each in tables), ("email", "email", "number"), strict=True))
    with pytest.raises(error, match=message) as raised:
        erase(tmp_path, keys, subjects=subjects, source_column=source_column)
    assert "orders" in str(raised.value)
    assert "canary" not in str(raised.value)
    assert [each.latest_version() for each in tables] == [1, 1, 1]
    assert not list((tmp_path / "reports").glob("*.json"))


def test_a_source_with_a_column_for_each_table_erases_from_all_of_them(tmp_path: Path) -> None:
    tables = [make_table(tmp_path / name, rows(SUBJECT, *OTHERS)) for name in ("users", "orders")]
    pq.write_table(pa.table({"email": [SUBJECT], "number": [0]}), tmp_path / "week.parquet")
    keys = dict(zip((each.uri for each in tables), ("email", "number"), strict=True))
    # A table that cannot be read is passed over, and stops no other.
    keys[str(tmp_path / "none")] = "email"
    with pytest.raises(ErasureIncomplete):
        erase(tmp_path, keys, subjects=files(str(tmp_path / "week.parquet")))
    assert [each["num_deleted_rows"] for each in report_of(tmp_path)["tables"]] == [1, 1, None]


@pytest.mark.parametrize("mark", ["char(5000)", "a collation"])
def test_a_key_column_that_no_source_fits_is_refused_before_the_first_delete(tmp_path: Path, mark: str) -> None:
    users = make_table(tmp_path / "users", rows(SUBJECT, *OTHERS))
    marks = ("__CHAR_VARCHAR_TYPE_STRING", mark), ("__COLLATIONS", {"email": "spark.UTF8_LCASE"})
    odd = table_of(tmp_path / "odd", pa.schema([("email", pa.string())]), marks[mark == "a collation"])
    pq.write_table(pa.table({"email": [SUBJECT]}), tmp_path / "week.parquet")
    with pytest.raises(UnsupportedFeature, match="odd: the column 'email'"):
        erase(tmp_path, {users.uri: "email", odd.uri: "email"}, subjects=files(str(tmp_path / "week.parquet")))
    assert users.latest_version() == 1


def test_where_a_table_fails_the_next_with_such_a_key_is_asked_about_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, lost, orders = (make_table(tmp_path / name, rows(SUBJECT, *OTHERS)) for name in ("users", "lost", "orders"))
    run_job = DeltaEraseOperator.run_job

    def run_or_fail(self: DeltaEraseOperator, context: Any, spec: Any, name: str) -> Any:
        if name == f"{lost.uri}/check":
            raise FilesMissing("a file is gone", table=lost.uri)
        return run_job(self, context, spec, name)

    monkeypatch.setattr(DeltaEraseOperator, "run_job", run_or_fail)
    pq.write_table(pa.table({"email": [SUBJECT], "name": ["Zoe"]}), tmp_path / "week.parquet")
    keys = dict(zip((users.uri, lost.uri, orders.uri), ("email", "number", "number"), strict=True))
    with pytest.raises(InvalidJobSpec, match="orders, column 'number'"):
        erase(tmp_path, keys, subjects=files(str(tmp_path / "week.parquet")))
    assert users.latest_version() == 1


def test_a_source_that_cannot_be_read_now_is_no_reason_to_delete_from_the_other_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, orders = (make_table(tmp_path / name, rows(SUBJECT, *OTHERS)) for name in ("users", "orders"))
    run_job = DeltaEraseOperator.run_job
    error: list[TxlogError] = []

    def run_or_fail(self: DeltaEraseOperator, context: Any, spec: Any, name: str) -> Any:
        if name == f"{orders.uri}/check":
            raise error[0]
        return run_job(self, context, spec, name)

    monkeypatch.setattr(DeltaEraseOperator, "run_job", run_or_fail)
    pq.write_table(pa.table({"email": [SUBJECT], "number": [0]}), tmp_path / "week.parquet")
    for each in (
        FolderChanged("a file came meanwhile", table=orders.uri),
        FilesMissing("a file of the source is gone", table=str(tmp_path / "requests")),
        UnsupportedFeature("a column of the source is not read here"),
    ):
        error[:] = [each]
        with pytest.raises(type(each)):
            erase(tmp_path, {users.uri: "email", orders.uri: "number"}, subjects=files(str(tmp_path / "week.parquet")))
        assert users.latest_version() == 1


def test_a_report_that_would_show_the_key_of_a_later_table_is_refused_before_the_first_delete(tmp_path: Path) -> None:
    """As a number it is in texts by chance, and as a text it is not."""
    users = make_table(tmp_path / "users", pa.table({"id": [7312345]}))
    orders = make_table(tmp_path / "orders", pa.table({"id": ["7312345"]}))
    requests: dict[str, Any] = {"subjects": None, "request_id": None, "requests": {"r-1": ["8"], "r-2": ["7312345"]}}
    for given, message in (
        ({"subjects": ["7312345"], "request_id": "r-7312345"}, "The id of a request contains"),
        (requests | {"declared": {"backups": "7312345 is in none."}}, "A text of declared"),
        (requests | {"requests": {"r-1": ["8"], "r-7312345": ["7312345"]}}, "which is number 2 of 2, contains"),
    ):
        with pytest.raises(InvalidInput, match=message) as raised:
            erase(tmp_path, {users.uri: "id", orders.uri: "id"}, **given)
        assert "7312345" not in str(raised.value)
        assert [each.latest_version() for each in (users, orders)] == [1, 1]


def test_the_request_that_refuses_all_others_is_named(tmp_path: Path) -> None:
    users, orders = (make_table(tmp_path / name, rows(SUBJECT, *OTHERS)) for name in ("users", "orders"))
    pq.write_table(pa.table({"email": [SUBJECT], "number": [0]}), tmp_path / "week.parquet")
    pq.write_table(pa.table({"email": [SUBJECT], "name": ["Zoe"]}), tmp_path / "next.parquet")
    week = files(str(tmp_path / "week.parquet"))
    view = query("SELECT email, number FROM people", people=table_source(users.uri))
    for wrong, message in (
        ([], "request r-2: .*users: no subject was given"),
        (files(str(tmp_path / "none.parquet")), "request r-2: .*none.parquet"),
        (files(str(tmp_path / "next.parquet")), "orders, column 'number': request r-2: .*no column 'number'"),
        (view, "request r-2 are read from .*users, which is one of the tables"),
    ):
        requests = {"subjects": None, "request_id": None, "requests": {"r-1": week, "r-2": wrong}}
        with pytest.raises((InvalidInput, SourceNotFound), match=message):
            erase(tmp_path, {users.uri: "email", orders.uri: "number"}, **requests)
        assert users.latest_version() == 1


def test_a_wrong_source_is_refused_by_the_name_of_the_argument_that_gives_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidJobSpec, match=r"subjects\.source\.path must") as raised:
        erase(tmp_path, {"/lake/users": "email"}, subjects=files("week.parquet"))
    assert raised.value.facts["argument"] == "arguments.subjects.source.path"


@pytest.mark.parametrize("is_there", [False, True])
def test_a_table_under_legal_hold_that_cannot_be_opened_may_be_a_clone_and_is_named(
    tmp_path: Path, *, is_there: bool
) -> None:
    users, held = make_table(tmp_path / "users", rows(SUBJECT, *OTHERS)), tmp_path / "held"
    if is_there:
        make_table(held, rows(SUBJECT))
        (held / commit_name(1)).write_text("no JSON")
    with pytest.raises(InvalidJobSpec, match="held is under legal hold, and cannot be opened"):
        erase(tmp_path, {users.uri: "email", str(held): "email"}, legal_hold={str(held): "case 12"})
    assert users.latest_version() == 1


def test_a_table_that_is_left_alone_for_a_held_clone_refuses_no_erasure(tmp_path: Path) -> None:
    users, orders = (make_table(tmp_path / name, rows(SUBJECT, *OTHERS)) for name in ("users", "orders"))
    clone = str(tmp_path / "clone")
    committed(run(None, "clone", clone, source={"table": orders.uri}, shallow=True))
    # The number of an order cannot be an e-mail.
    keys = {users.uri: "email", orders.uri: "number", clone: "number"}
    with pytest.raises(ErasureIncomplete):
        erase(tmp_path, keys, legal_hold={clone: "case 12"})
    states = [(each["state"], each["num_deleted_rows"]) for each in report_of(tmp_path)["tables"]]
    assert states == [("verified", 1), ("not erased", None), ("out of scope", None)]


def test_a_report_without_digests_or_with_those_of_another_key_is_no_answer_about_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_ledger(Table.at(tmp_path / "erased", PLAIN))
    for name, secret in (("ERASURE_KEY", "5e" * 32), ("OTHER_KEY", "5f" * 32)):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps({"conn_type": "generic", "password": secret}))
    extra = {"erasure_ledger": "erased", "erasure_key_conn_id": "erasure_key"}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "txlog", "host": str(tmp_path), "extra": extra}))
    users = make_table(tmp_path / "users", rows(SUBJECT, *OTHERS))
    plain = erase(tmp_path, {users.uri: "email"})
    hold = {"legal_hold": {users.uri: "a case"}, "require_complete": False}
    held = erase(tmp_path, {users.uri: "email"}, request_id="r-18", **hold)
    recorded = erase(tmp_path, {users.uri: "email"}, request_id="r-19", txlog_conn_id="lake")

    def digest(xcom: dict[str, Any], key: str) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{SUBJECT}\n"))
        digest_subjects(Namespace(report=xcom["report"], key_conn_id=key, type="text", conn_id=None, as_json=True))

    with pytest.raises(InvalidInput, match="made without a ledger"):
        digest(plain, "erasure_key")
    with pytest.raises(InvalidInput, match="none of its tables was verified"):
        digest(held, "erasure_key")
    for key in ("other_key", "signer"):
        with pytest.raises(LedgerKeyMissing) as raised:
            digest(recorded, key)
        assert raised.value.facts["key_ids"] == [DigestKey.of("5e" * 32, "").id]


def test_the_digests_of_a_damaged_report_are_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ERASURE_KEY", json.dumps({"conn_type": "generic", "password": "5e" * 32}))
    listed = {
        "table": "/t",
        "num_subjects": 1,
        "digests": {"name": "list.gz", "key_ids": [DigestKey.of("5e" * 32, "").id]},
    }
    (tmp_path / "list.gz").write_text("no gzip")
    for text in (
        "",
        "[]",
        "{}",
        '{"report": 7}',
        '{"report": {"tables": [{}]}}',
        json.dumps({"report": {"tables": [listed]}}),
    ):
        (tmp_path / "r.json").write_text(text)
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{SUBJECT}\n"))
        given = Namespace(
            report=str(tmp_path / "r.json"), key_conn_id="erasure_key", type="text", conn_id=None, as_json=True
        )
        with pytest.raises(InvalidInput, match=r"r\.json: this is no report of an erasure, or a list"):
            digest_subjects(given)
