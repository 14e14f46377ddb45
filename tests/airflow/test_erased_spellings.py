"""Alone in showing that a person leaves in each spelling of their key, and that no text of the author names them."""

from __future__ import annotations

import json
import os
import unicodedata
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.erasure.ledger import create_ledger
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.errors import ErasureIncomplete, InvalidInput, SubjectReturns
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.operators import DeltaEraseOperator
from airflow_txlog.storage import PLAIN
from tests.engine.erasure.test_removal import OTHERS, SUBJECT, rows
from tests.helpers.byte_search import holding
from tests.helpers.rows import append, make_table

pytestmark = pytest.mark.airflow

SPARK = pytest.mark.long("Spark compares padded values")
IDENTIFIER = str(uuid.UUID(int=0xC0FFEE << 64 | 1))


@pytest.fixture(autouse=True)
def lake(tmp_path: Path, airflow_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the tables, whose connection has a ledger."""
    create_ledger(Table.at(tmp_path / "erased", PLAIN))
    extra = {"erasure_ledger": str(tmp_path / "erased"), "erasure_key_conn_id": "erasure_key"}
    connections = {
        "SIGNER": {"conn_type": "generic", "password": bytes(range(32)).hex()},
        "ERASURE_KEY": {"conn_type": "generic", "password": "5e" * 32},
        "LAKE": {"conn_type": "txlog", "host": str(tmp_path), "extra": extra},
    }
    for name, fields in connections.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(fields))
    return tmp_path


def erase(lake: Path, *subjects: Any, **arguments: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "tables": {"users": "email"},
        "subjects": list(subjects),
        "request_id": "r-17",
        "report_uri": str(lake / "reports"),
        "txlog_conn_id": "lake",
        "signing_conn_id": "signer",
        "runner": "in_process",
        "writer_hours": 0,
        **arguments,
    }
    return DeltaEraseOperator(task_id="erase", **given).execute({})  # type: ignore[typeddict-item]


def padded(folder: Path, *emails: str) -> Table:
    """Return a table whose key is CHAR(40)."""
    table = Table.create(folder, rows().schema)
    log = folder / commit_name(0)
    mark = '\\"name\\":\\"email\\",\\"type\\":\\"string\\",\\"nullable\\":true,\\"metadata\\":{'
    assert mark in log.read_text()
    log.write_text(log.read_text().replace(mark, mark + '\\"__CHAR_VARCHAR_TYPE_STRING\\":\\"char(40)\\"'))
    table = Table.open(table.uri)
    append(table, rows(*(each.ljust(40) for each in emails)))
    return table


@pytest.mark.parametrize("spelling", ["accents", "identifier", pytest.param("CHAR", marks=SPARK)])
def test_each_spelling_of_a_key_is_erased_and_kept_from_returning(lake: Path, spelling: str) -> None:
    others = ["a@example.org", "z@example.org"]
    if spelling == "CHAR":
        given, stored = SUBJECT, SUBJECT.ljust(40)
        table = padded(lake / "users", others[0], SUBJECT, others[1])
    else:
        accents = (unicodedata.normalize("NFC", SUBJECT), unicodedata.normalize("NFD", SUBJECT))
        given, stored = accents if spelling == "accents" else (IDENTIFIER, IDENTIFIER.upper())
        table = make_table(lake / "users", rows(others[0], stored, others[1]))
    old = rows(others[0], stored, others[1])
    assert erase(lake, given)["complete"]
    assert holding(lake / "users", SUBJECT) == holding(lake / "users", IDENTIFIER) == []
    assert [each.strip() for each in Table.open(table.uri).to_arrow().column("email").to_pylist()] == others
    # Another engine loads the old rows, a version without them follows, and a restore would bring them back.
    version = append(Table.open(table.uri), old)
    hook = TxlogHook("lake")
    restored = hook.table("users")
    Table.open(table.uri).restore(version=version - 1)
    with pytest.raises(SubjectReturns):
        restored.restore(version=version)


@pytest.mark.parametrize(
    "arguments",
    [
        {"request_id": "r-canary42"},
        {"declared": {"backups": "The backup with canary42 expires on 2027-01-31."}},
        {"tables": {"users": "email", "held": "email"}, "legal_hold": {"held": "the case of canary42"}},
    ],
    ids=lambda arguments: list(arguments)[-1],
)
def test_a_text_of_the_author_that_names_a_subject_comes_into_no_report(lake: Path, arguments: dict[str, Any]) -> None:
    make_table(lake / "users", rows("canary42", *OTHERS))
    make_table(lake / "held", rows("canary42"))
    with pytest.raises(InvalidInput) as raised:
        erase(lake, "canary42", **arguments)
    assert "canary42" not in str(raised.value)
    assert holding(lake / "reports", "canary42") == []
    assert Table.open(lake / "users").latest_version() == 1


@pytest.mark.parametrize("arguments", [{"request_id": "number-42"}, {"declared": {"logs": "The logs name NUMBER 42."}}])
def test_a_text_of_the_author_that_names_the_column_and_a_number_comes_into_no_report(
    lake: Path, arguments: dict[str, Any]
) -> None:
    make_table(lake / "users", pa.table({"number": [42, 43]}))
    with pytest.raises(InvalidInput, match="contains a subject"):
        erase(lake, 42, **{"tables": {"users": "number"}, **arguments})
    assert Table.open(lake / "users").latest_version() == 1


def test_the_number_of_a_person_is_no_id_of_their_request(lake: Path) -> None:
    make_table(lake / "users", pa.table({"number": [41, 42, 43]}))
    given = {"subjects": None, "request_id": None, "tables": {"users": "number"}}
    with pytest.raises(InvalidInput, match="number 2 of 2, contains a subject"):
        erase(lake, **given, requests={"43": [41], "42": [42]})
    assert Table.open(lake / "users").latest_version() == 1
    # By chance.
    done = erase(lake, **given, requests={"42": [41], "41": [42]})["requests"]
    assert [each["complete"] for each in done.values()] == [True, True]


def test_a_folder_of_reports_that_a_link_leads_into_the_table_is_refused(lake: Path) -> None:
    make_table(lake / "users", rows(SUBJECT, *OTHERS))
    (lake / "link").symlink_to(lake / "users")
    with pytest.raises(InvalidInput, match="inside of the table"):
        erase(lake, SUBJECT, report_uri=str(lake / "link" / "reports"))
    assert not (lake / "users" / "reports").exists()


def test_a_file_with_a_name_that_is_no_text_ends_no_erasure(lake: Path) -> None:
    make_table(lake / "users", rows(SUBJECT, *OTHERS))
    foreign = Path(os.fsdecode(os.fsencode(lake / "users") + b"/_caf\xe9.txt"))
    foreign.write_text("nothing")
    assert erase(lake, SUBJECT)["complete"]
    foreign.write_text(SUBJECT)
    with pytest.raises(ErasureIncomplete):
        erase(lake, SUBJECT)
    assert holding(lake / "reports", SUBJECT) == []
