"""Alone in showing that a file goes whose partition is the only sign of its subject, and that those of others stay."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from tests.helpers.byte_search import holding
from tests.helpers.jobs import committed, run
from tests.helpers.rows import append

EMAIL, OTHER = "ann.canary@example.org", "bob.other@example.org"
SUBJECT = 731_955_201
SCHEMA = pa.schema([("user_id", pa.int64()), ("email", pa.string()), ("n", pa.int64())])
MAPPED = {"delta.columnMapping.mode": "name"}


def table_of(folder: Path, **properties: str) -> Table:
    table = Table.create(folder, SCHEMA, partition_by=["user_id"], properties={**MAPPED, **properties})
    append(table, [{"user_id": SUBJECT, "email": EMAIL, "n": 1}])
    append(table, [{"user_id": 1, "email": OTHER, "n": 1}])
    return table


def erase(table: Table) -> None:
    subjects = {"column": "user_id", "values": [SUBJECT]}
    committed(run(None, "erase", table, subjects=subjects, writer_hours=0))


def test_a_change_file_of_the_subject_goes_and_that_of_another_person_stays(tmp_path: Path) -> None:
    table = table_of(tmp_path / "t", **{"delta.enableChangeDataFeed": "true"})
    committed(run(None, "update", table, predicate="n = 1", set={"n": "2"}))
    before = holding(tmp_path / "t" / "_change_data", OTHER)
    erase(table)
    assert holding(tmp_path / "t", EMAIL) == []
    assert before
    assert holding(tmp_path / "t" / "_change_data", OTHER) == before


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_file_that_no_tombstone_names_any_more_goes(tmp_path: Path, *, is_damaged: bool) -> None:
    table = table_of(tmp_path / "t", **{"delta.deletedFileRetentionDuration": "interval 0 hours"})
    committed(run(None, "delete", table, predicate=f"email = '{EMAIL}'"))
    append(table, [{"user_id": 2, "email": OTHER, "n": 1}])
    table.checkpoint()
    for commit in (tmp_path / "t" / "_delta_log").glob("*.json"):
        if int(commit.stem) < table.latest_version():
            commit.write_text("{") if is_damaged else commit.unlink()
    assert len(holding(tmp_path / "t", EMAIL)) == 1
    table = Table.open(table.uri)
    erase(table)
    assert holding(tmp_path / "t", EMAIL) == []
    assert sorted(table.to_arrow().column("user_id").to_pylist()) == [1, 2]
