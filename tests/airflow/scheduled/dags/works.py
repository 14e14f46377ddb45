"""One DAG for each shape of work; a run's `conf` names the table, and a file that tests edit the number of retries."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_txlog.operators import (
    DeltaDeleteOperator,
    DeltaMergeOperator,
    DeltaWriteOperator,
    files,
    query,
    table,
    when_matched_update,
    when_not_matched_insert,
)

SETTINGS = json.loads(Path(os.environ["TXLOG_TEST_SETTINGS"]).read_text())
TABLE = "{{ dag_run.conf.table }}"
DEFAULTS: dict[str, Any] = {
    "retries": SETTINGS["retries"],
    "retry_delay": timedelta(0),
    "table_uri": TABLE,
    # All SQL here is this file's own.
    "unrestricted": "query",
}
MANUAL: dict[str, Any] = {"schedule": None, "catchup": False, "max_active_runs": 16, "default_args": DEFAULTS}

# Work that shows when it is done twice, as its rows are new each time: on the Spark that tasks share, and with a Spark
# of its own, where it also writes down its source before it stages anything. There a value is computed, so that Spark's
# workers stage the rows: those of the source as they are the job would write itself.
ROWS = query("SELECT id, CAST(id AS STRING) AS name FROM range(3)")
with DAG("warm_works", **MANUAL):
    DeltaWriteOperator(task_id="append", source=ROWS, runner="warm")
with DAG("works", **MANUAL):
    DeltaMergeOperator(
        task_id="append",
        source=ROWS,
        on="t.id = -1 - s.id",
        clauses=[when_not_matched_insert({"id": "s.id", "name": "reverse(reverse(upper(s.name)))"})],
        runner="child",
    )

# The same by mapped tasks, each with its own three of nine rows.
with DAG("mapped_works", **MANUAL):
    DeltaWriteOperator.partial(
        task_id="append",
        source=query("SELECT 3 * CAST(:index AS BIGINT) + id AS id, 'mapped' AS name FROM range(3)"),
        runner="warm",
    ).expand(parameters=[{"index": index} for index in range(3)])

# A merge that a job without Spark races: a person who is gone must stay gone, though it would insert those it misses.
with DAG("race", render_template_as_native_obj=True, **MANUAL):
    DeltaDeleteOperator(task_id="forget", keys="{{ dag_run.conf.ids }}", key_column="id")
    DeltaMergeOperator(
        task_id="enrich",
        source=query("SELECT id, score + 1 AS score, day FROM people", people=table(TABLE)),
        on="t.id = s.id",
        clauses=[when_matched_update({"score": "s.score"}), when_not_matched_insert()],
        runner="warm",
    )

# Thirty days, each run with a day of its own: half of its rows are there, and get a new name; half are new.
DAILY: dict[str, Any] = {
    "schedule": "@daily",
    "start_date": datetime(2024, 1, 1),
    "end_date": datetime(2024, 1, 30),
    "catchup": False,
    "max_active_runs": 8,
    "default_args": DEFAULTS,
}
for dag_id, scope in (("daily", "day = :day"), ("daily_again", "day = :day"), ("daily_unscoped", None)):
    with DAG(dag_id, **DAILY):
        DeltaMergeOperator(
            task_id="merge",
            source=query(
                "SELECT 1000L * day(CAST(:day AS DATE)) + id AS id, 'new' AS name, CAST(:day AS DATE) AS day "
                "FROM range(50, 150)"
            ),
            on="t.id = s.id",
            clauses=[when_matched_update({"name": "s.name"}), when_not_matched_insert()],
            partition_predicate=scope,
            parameters={"day": "{{ ds }}"},
            runner="warm",
        )


def person(kind: str = "value") -> Any:
    """Who is to be forgotten, from a file that is no part of the deployment."""
    return Path(os.environ["TXLOG_TEST_PERSON"]).read_text()


# A person's address, given in every way that is documented as kept from Airflow.
PERSON = "{{ person() }}"
FORGET: dict[str, Any] = {"user_defined_macros": {"person": person}, **MANUAL}
with DAG("forget_by_keys", **FORGET):
    DeltaDeleteOperator(task_id="forget", keys=[PERSON, "somebody@else.example"], key_column="email")
with DAG("forget_by_file", **FORGET):
    DeltaDeleteOperator(
        task_id="forget",
        keys=files("{{ dag_run.conf.requests }}", format="csv", schema="email STRING"),
        key_column="email",
        runner="warm",
    )
with DAG("forget_by_parameter", **FORGET):
    DeltaDeleteOperator(
        task_id="forget",
        predicate="lower(reverse(reverse(email))) = :email",
        parameters={"email": PERSON},
        runner="warm",
    )
# On the other runners, whose Spark a test names by connections. No job without Spark finds rows by such a text.
for runner, conn_id in (("child", None), ("submit", "spark_cluster"), ("connect", "spark_server")):
    with DAG(f"forget_on_{runner}", **FORGET):
        DeltaDeleteOperator(
            task_id="forget",
            predicate="lower(reverse(reverse(email))) = :email",
            parameters={"email": PERSON},
            runner=runner,
            spark_conn_id=conn_id,
        )
# Twice: the second finds nothing to do. Without Spark on a table that is partitioned by the addresses.
BY_ADDRESS = {"predicate": "email = :email\n  AND email <> 'zz'", "parameters": {"email": PERSON}}
with DAG("forget_twice", **FORGET):
    forgets = DeltaDeleteOperator(task_id="forget", spark_conf={"spark.sql.shuffle.partitions": "2"}, **BY_ADDRESS)
    forgets >> DeltaDeleteOperator(task_id="forget_again", **BY_ADDRESS)
# What fails by the value itself: it is no number, no date, and in no row.
with DAG("forget_fails", **FORGET):
    DeltaDeleteOperator(task_id="no_number", keys=[PERSON], key_column="id")
    DeltaDeleteOperator(
        task_id="no_cast", predicate="id = CAST(:email AS BIGINT)", parameters={"email": PERSON}, runner="warm"
    )
    DeltaDeleteOperator(task_id="no_match", keys=[PERSON + ".nowhere"], key_column="email", require_match=True)
    DeltaDeleteOperator(
        task_id="no_date", partition_predicate="day = :email", predicate="TRUE", parameters={"email": PERSON}
    )
    DeltaMergeOperator(
        task_id="no_merge",
        source=query("SELECT CAST(:email AS BIGINT) AS id"),
        on="t.id = s.id",
        clauses=[when_matched_update({"email": "'x'"})],
        parameters={"email": PERSON},
        sensitive=True,
        runner="warm",
    )
# The same on Spark elsewhere, found by the driver, by an executor and by the job itself.
with DAG("forget_fails_elsewhere", **FORGET):
    for runner, conn_id in (("submit", "spark_cluster"), ("connect", "spark_server")):
        elsewhere: dict[str, Any] = {"runner": runner, "spark_conn_id": conn_id}
        DeltaDeleteOperator(
            task_id=f"no_cast_on_{runner}",
            predicate="id = CAST(:email AS BIGINT)",
            parameters={"email": PERSON},
            **elsewhere,
        )
        DeltaDeleteOperator(
            task_id=f"no_row_s_cast_on_{runner}",
            predicate="id = CAST(concat(:email, id) AS BIGINT)",
            parameters={"email": PERSON},
            **elsewhere,
        )
        DeltaDeleteOperator(
            task_id=f"no_match_on_{runner}",
            predicate="lower(reverse(reverse(email))) = concat(:email, '.nowhere')",
            parameters={"email": PERSON},
            require_match=True,
            **elsewhere,
        )
