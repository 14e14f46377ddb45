"""Alone in showing that deltalake may write before each step of an erasure: no row is lost, and no subject passes.

Also that the numbers in the paths of its files are no keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_txlog.engine import Table
from airflow_txlog.engine.erasure import removal
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.jobs.operations import erase
from tests.helpers.jobs import run
from tests.helpers.rows import append

SUBJECT = "ann.canary@example.org"
SCHEMA = pa.schema([("email", pa.string()), ("n", pa.int64())])


def appended(email: str) -> Callable[[str], object]:
    return lambda uri: write_deltalake(uri, pa.table({"email": [email], "n": [99]}), mode="append")


def cleaned(uri: str) -> None:
    DeltaTable(uri).create_checkpoint()
    DeltaTable(uri).cleanup_metadata()


# What the other engine does, and the number of rows of other people afterwards.
WRITERS: dict[str, tuple[Callable[[str], object], int]] = {
    "append": (appended("new@example.org"), 5),
    "subject": (appended(SUBJECT), 4),
    "delete": (lambda uri: DeltaTable(uri).delete("n = 10"), 3),
    "optimize": (lambda uri: DeltaTable(uri).optimize.compact(), 4),
    "cleanup": (cleaned, 4),
}


@pytest.mark.long("each step with each writer")
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(
    ("steps", "name"),
    [
        (erase._Erasure, "_record"),
        (erase._Erasure, "_delete"),
        (erase._Erasure, "_keep_written"),
        (erase._Erasure, "_remove"),
        (removal._Removing, "cut"),
    ],
    ids=["record", "delete", "purge", "remove", "cut"],
)
def test_another_engine_writes_before_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: type, name: str, writer: str
) -> None:
    table = Table.create(tmp_path / "t", SCHEMA)
    for number in range(4):
        append(table, pa.table({"email": [SUBJECT, f"p{number}@example.org"], "n": [number, number + 10]}))
    write, others = WRITERS[writer]
    step, pending = getattr(steps, name), [write]

    def after_the_other(*given: Any, **named: Any) -> Any:
        if pending:
            pending.pop()(str(tmp_path / "t"))
        return step(*given, **named)

    monkeypatch.setattr(steps, name, after_the_other)
    result = run(
        None, "erase", table, subjects={"column": "email", "values": [SUBJECT]}, request_id="r", writer_hours=0
    )
    assert result.error is None
    assert not pending
    emails = Table.open(table.uri).to_arrow(columns=["email"]).column(0).to_pylist()
    assert len([email for email in emails if email != SUBJECT]) == others
    passes = all(verdict.passes for verdict in Table.open(table.uri).find_traces("email", [SUBJECT]))
    assert passes == (SUBJECT not in emails)
    assert passes or writer == "subject"


def test_numbers_in_the_paths_of_others_are_no_keys(tmp_path: Path) -> None:
    """Writers number their files (`part-00000-…`), and the folder of another column may have the same number."""
    rows = pa.table({"user_id": [0, 8, 9], "month": [1, 0, 2], "n": [1, 2, 3]})
    write_deltalake(str(tmp_path / "t"), rows, partition_by=["user_id", "month"])
    table = Table.open(tmp_path / "t")
    others = [str(path.relative_to(tmp_path / "t")) for path in (tmp_path / "t").glob("user_id=[89]/*/*")]
    checksum = tmp_path / "t" / "_delta_log" / f"{0:020}.crc"
    checksum.write_text(json.dumps({"allFiles": [{"path": path} for path in others]}))
    found = {verdict.path: verdict for verdict in table.find_traces("user_id", [0])}
    assert [trace.count for trace in found[commit_name(0)].traces] == [1, 1]
    assert len(others) == 2
    assert found[str(checksum.relative_to(tmp_path / "t"))].passes
    result = run(None, "erase", table, subjects={"column": "user_id", "values": [0]}, writer_hours=0)
    assert result.details.erasure is not None
    assert result.details.erasure["cut"] is not None
    assert all(verdict.passes for verdict in table.find_traces("user_id", [0]))
    assert sorted(DeltaTable(table.uri).to_pyarrow_table().column("user_id").to_pylist()) == [8, 9]
