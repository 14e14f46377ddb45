"""Alone in showing that delta-spark may write before each step of an erasure: no row is lost, and no subject passes.

Skipped where delta-spark's jars are not there.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.erasure import removal
from airflow_txlog.jobs.operations import erase
from tests.helpers.byte_search import holding
from tests.helpers.delta_spark import DeltaSpark, DeltaSparkError
from tests.helpers.depth import by_hand
from tests.helpers.jobs import run

pytestmark = [pytest.mark.spark, pytest.mark.slow("delta-spark in a JVM of its own")]

SUBJECT = "ann.canary@example.org"
OTHERS = [f"p{number}@example.org" for number in range(4)]
# What delta-spark does, and who is in the table afterwards beside the subject.
WRITERS: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "insert": (("INSERT INTO {table} (email, n) VALUES ('new@example.org', 99)",), [*OTHERS, "new@example.org"]),
    "subject": ((f"INSERT INTO {{table}} (email, n) VALUES ('{SUBJECT}', 99)",), OTHERS),
    "restore": (("RESTORE TABLE {table} TO VERSION AS OF 4",), OTHERS),
    "delete": (("DELETE FROM {table} WHERE n = 10",), OTHERS[1:]),
    "update": (("UPDATE {table} SET n = n + 100 WHERE n > 10",), OTHERS),
    "optimize": (("OPTIMIZE {table}", "REORG TABLE {table} APPLY (PURGE)"), OTHERS),
}
SHAPE = (
    "'delta.enableDeletionVectors' = 'true', 'delta.enableChangeDataFeed' = 'true', "
    "'delta.enableRowTracking' = 'true', "
    "'delta.columnMapping.mode' = 'name', 'delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '3'"
)


STEPS = {
    "record": (erase._Erasure, "_record"),
    "delete": (erase._Erasure, "_delete"),
    "purge": (erase._Erasure, "_keep_written"),
    "remove": (erase._Erasure, "_remove"),
    "cut": (removal._Removing, "cut"),
}
AT_LONG_DEPTH = (("delete", "optimize"), ("purge", "update"), ("remove", "subject"), ("cut", "restore"))


@pytest.fixture(scope="module")
def made(delta: DeltaSpark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of delta-spark's with a subject's rows, to copy."""
    place = tmp_path_factory.mktemp("made") / "t"
    sql = f"delta.`{place}`"
    rows = [f"('{SUBJECT}', {number}), ('{other}', {number + 10})" for number, other in enumerate(OTHERS)]
    delta.run(
        f"CREATE TABLE {sql} (id BIGINT GENERATED ALWAYS AS IDENTITY, email STRING, n BIGINT) USING delta "
        f"PARTITIONED BY (email) TBLPROPERTIES ({SHAPE})",
        *(f"INSERT INTO {sql} (email, n) VALUES {each}" for each in rows),
    )
    return place


@pytest.mark.long("delta-spark runs beside it")
@pytest.mark.parametrize(
    ("step", "writer"),
    [
        pytest.param(*case, marks=() if case in AT_LONG_DEPTH else by_hand("each step with each statement"))
        for case in itertools.product(STEPS, WRITERS)
    ],
)
def test_delta_spark_writes_before_a_step(
    delta: DeltaSpark, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, writer: str
) -> None:
    place = tmp_path / "t"
    sql = f"delta.`{place}`"
    shutil.copytree(made, place)
    statements, others = WRITERS[writer]
    (steps, name), pending = STEPS[step], [[each.format(table=sql) for each in statements]]
    call = getattr(steps, name)

    def after_the_other(*given: Any, **named: Any) -> Any:
        if pending and (step, writer) == ("cut", "restore"):
            # The files of that version are gone.
            with pytest.raises(DeltaSparkError):
                delta.run(*pending.pop())
        elif pending:
            delta.run(*pending.pop())
        return call(*given, **named)

    monkeypatch.setattr(steps, name, after_the_other)
    result = run(
        None, "erase", place, subjects={"column": "email", "values": [SUBJECT]}, request_id="r", writer_hours=0
    )
    assert result.error is None
    assert not pending
    emails = Table.open(place).to_arrow(columns=["email"]).column(0).to_pylist()
    assert sorted(email for email in emails if email != SUBJECT) == sorted(others)
    assert sorted(row["email"] for row in delta.sql(f"SELECT email FROM {sql}")) == sorted(emails)
    passes = all(verdict.passes for verdict in Table.open(place).find_traces("email", [SUBJECT]))
    assert passes == (SUBJECT not in emails) == (not holding(place, SUBJECT))
    assert passes or writer in ("subject", "restore")
