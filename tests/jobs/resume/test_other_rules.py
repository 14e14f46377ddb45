"""Alone in showing that a row operation commits nothing which it staged under other rules of the table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import Protocol
from tests.helpers.jobs import committed, error_of, files_on_disk, ids, live_files, rows, run
from tests.helpers.racing import winning
from tests.helpers.rows import make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FEATURES = ["appendOnly", "changeDataFeed", "checkConstraints", "invariants"]


def set_rule(table: Table, name: str, value: str) -> None:
    """ALTER TABLE … SET TBLPROPERTIES, by another writer, with the protocol that it needs."""
    tx = table.begin()
    metadata = tx.metadata
    assert metadata is not None
    changed = msgspec.structs.replace(metadata, configuration={**metadata.configuration, name: value})
    tx.set_metadata(changed, is_checked=True)
    tx.set_protocol(Protocol(min_reader_version=1, min_writer_version=7, writer_features=FEATURES))
    tx.commit("SET TBLPROPERTIES")


def test_a18_a_constraint_that_landed_meanwhile_is_kept_by_rows_that_were_staged_before(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = make_table(tmp_path / "t", rows(10))
    log = winning("staged", lambda: set_rule(table, "delta.constraints.small", "amount < 100"))
    error = error_of(run(spark, "update", table, set={"amount": "amount + 99"}, predicate="id > 3", log=log))
    assert error["type"] == "ConstraintViolation"
    assert ids(table) == list(range(10))
    assert files_on_disk(table) == live_files(table), "what both attempts had staged is proved uncommitted, and gone"


def test_a18_a_change_feed_that_was_switched_on_meanwhile_is_told_all_changes(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = make_table(tmp_path / "t", rows(10))
    log = winning("staged", lambda: set_rule(table, "delta.enableChangeDataFeed", "true"))
    result = committed(run(spark, "delete", table, predicate="id = 4", log=log))
    assert result.attempts == 2
    assert [line for line in log.lines if "rules have changed" in line]
    changes = table.changes(result.version or 0, result.version).to_pylist()
    assert [(row["id"], row["_change_type"]) for row in changes] == [(4, "delete")]
