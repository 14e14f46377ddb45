"""delta-spark knows no ledger of erased subjects: a RESTORE of its brings them back, and the next check finds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.erasure.digests import DigestKey
from airflow_txlog.engine.erasure.ledger import Ledger, create_ledger
from airflow_txlog.engine.erasure.returns import ReturnGuard
from airflow_txlog.engine.erasure.values.forms import Forms
from airflow_txlog.locations import PLAIN
from tests.helpers.delta_spark import DeltaSpark
from tests.helpers.jobs import committed, run

pytestmark = [pytest.mark.spark, pytest.mark.slow("delta-spark in a JVM of its own")]


@pytest.mark.long("a session of delta-spark")
def test_a_subject_that_delta_spark_restores_is_found(delta: DeltaSpark, tmp_path: Path) -> None:
    place = tmp_path / "t"
    delta.run(
        f"CREATE TABLE delta.`{place}` (id BIGINT, email STRING) USING delta PARTITIONED BY (id) "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        f"INSERT INTO delta.`{place}` VALUES (1, 'Zoë@example.com'), (1, 'ben@example.com')",
    )
    table = Table.open(place)
    create_ledger(Table.at(str(tmp_path / "ledger"), PLAIN))
    ledger = Ledger(Table.open(tmp_path / "ledger"), [DigestKey.of("f" * 64, "the key")])
    snapshot = table.snapshot()
    ledger.record("r-1", snapshot, Forms.of(snapshot, "email", ["Zoë@example.com"]))
    committed(run(None, "delete", place, predicate="email LIKE 'Zo%'"))
    run(None, "optimize", place, purge=True)
    guard = ReturnGuard(ledger, table.store)
    assert guard.in_table(table.snapshot()) == []
    delta.run(f"RESTORE TABLE delta.`{place}` TO VERSION AS OF 1")
    (found,) = guard.in_table(table.snapshot())
    assert (found.count, found.columns, found.requests) == (1, {"email"}, {"r-1"})
    # The file of a compaction by delta-spark is another one.
    delta.run(f"INSERT INTO delta.`{place}` VALUES (1, 'cleo@example.com')", f"OPTIMIZE delta.`{place}`")
    assert [each.count for each in guard.in_table(table.snapshot())] == [1]
