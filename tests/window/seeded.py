"""Fills the database of an Airflow with tables, DAGs and a run: `python -m tests.window.seeded FOLDER`.

A process of its own, with the settings of that Airflow.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow as pa

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.engine.log.names import commit_name
from tests.helpers.rows import make_table
from tests.window.tables import SCRIPT, Hands, append, busy_table, create, hostile_table, long_log

DAG_OF = {"orders": "load_orders", "hostile": SCRIPT, "empty": "new", "long": "backfill", "broken": "broken"}
RACE = "conflict_won_by_the_job"


def make_tables(folder: Path) -> None:
    now_ms = SYSTEM_CLOCK.now_ms()
    busy_table(str(folder / "orders"), Hands(now_ms - 7 * 3_600_000))
    hostile_table(str(folder / "hostile"), Hands(now_ms - 3_600_000))
    create(str(folder / "empty"), Hands(now_ms - 60_000))
    long_log(folder / "long", 10_000)
    broken = create(str(folder / "broken"), Hands(now_ms - 60_000))
    append(broken, 1)
    (folder / "broken" / commit_name(1)).write_text('{"commitInfo": {')


def make_events(folder: Path) -> None:
    """Events of assets, as tasks emit them."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    with create_session() as session:
        session.merge(DagBundleModel(name="dags-folder"))
        session.flush()
        for name, dag_id in DAG_OF.items():
            session.merge(DagModel(dag_id=dag_id, bundle_name="dags-folder"))
            asset = AssetModel(uri=f"file://{folder / name}", name=name)
            session.add(asset)
            session.flush()
            extra = {"table_uri": str(folder / name), "version": 1}
            session.add(AssetEvent(asset_id=asset.id, source_dag_id=dag_id, source_task_id="t", extra=extra))


def run_race(folder: Path) -> str:
    """A run of a task that meets another commit and redoes one file; its run's id."""
    from airflow.dag_processing.dagbag import DagBag

    table = make_table(folder / "users", pa.table({"user_id": pa.array(range(100), pa.int64())}))
    os.environ |= {"TXLOG_TEST_TABLE": table.uri, "TXLOG_TEST_DEATHS": str(folder / "died")}
    dags = Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    bag = DagBag(dag_folder=str(dags / "outcomes.py"), bundle_path=dags)
    run = bag.dags[RACE].test()
    assert str(run.state) == "success", run.state
    return str(run.run_id)


def main(folder: Path) -> None:
    make_tables(folder)
    make_events(folder)
    print("RUN", run_race(folder), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
