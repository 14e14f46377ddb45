"""Alone in showing that an erasure which fails at the folder of a subject writes no value into the task's log."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_txlog.datafiles.failures import trace_of
from airflow_txlog.engine import Table
from airflow_txlog.engine.erasure.marked_errors import errors_marked
from airflow_txlog.engine.erasure.values.forms import MARK, Forms
from airflow_txlog.errors import FilesMissing
from airflow_txlog.storage import LocalStore
from tests.engine.erasure.test_removal import OTHERS, SCHEMA, SUBJECT, rows
from tests.helpers.jobs import error_of
from tests.helpers.rows import append
from tests.jobs.operations.test_erase import erase


def test_a_folder_of_a_subject_that_may_not_be_deleted_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, ["email"])
    append(table, rows(SUBJECT, *OTHERS))

    delete = LocalStore.delete

    def delete_others(self: LocalStore, path: str) -> None:
        if "canary" in path:
            raise PermissionError(13, "Permission denied", f"{self.root}/{path}")
        delete(self, path)

    monkeypatch.setattr(LocalStore, "delete", delete_others)
    lines: list[str] = []
    error = error_of(erase(table, log=lines.append))
    assert "Permission denied" in error["message"]
    assert MARK in error["message"]
    assert "canary" not in repr((error, lines))


def test_messages_facts_and_causes_have_marks(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, ["email"])
    forms = Forms.of(table.snapshot(), "email", [SUBJECT])
    failure = FilesMissing(f"/lake/email={SUBJECT}/a is gone.", count=1, examples=[f"email={SUBJECT}"])
    failure.__cause__ = OSError(13, "", f"/lake/email={SUBJECT}/a")
    with pytest.raises(FilesMissing) as raised, errors_marked(forms):
        raise failure
    assert (raised.value.message, raised.value.examples) == (f"/lake/{MARK}/a is gone.", [MARK])
    assert "canary" not in repr((str(raised.value), raised.value.to_dict(), trace_of(raised.value)))


@pytest.mark.parametrize(
    "failure",
    [
        PermissionError(f"DELETE /lake/email={SUBJECT}/a: access denied"),
        OSError(5, f"cannot delete email={SUBJECT}/a"),
        RuntimeError(f"email={SUBJECT}/a", {"Key": f"email={SUBJECT}/a"}),
    ],
    ids=["a text alone", "the system's text", "another error"],
)
def test_errors_of_stores_and_of_libraries_have_marks(tmp_path: Path, failure: Exception) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, ["email"])
    forms = Forms.of(table.snapshot(), "email", [SUBJECT])
    with pytest.raises(type(failure)) as raised, errors_marked(forms):
        raise failure
    assert MARK in str(raised.value)
    assert "canary" not in repr((str(raised.value), raised.value, trace_of(raised.value)))
