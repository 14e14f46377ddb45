"""A `table` is a name in a catalog and nothing else: no other text becomes a place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidJobSpec, TxlogError
from airflow_txlog.operators import DeltaTruncateOperator
from airflow_txlog.sensors.table_version import TableVersionSensor

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_home")]


@pytest.mark.parametrize("given", ["orders", "/lake/orders", "s3://lake/orders", ""])
def test_a_table_that_is_no_name_is_never_read_as_a_place(
    given: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A base folder would make a place of it."""
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "txlog", "host": str(tmp_path)}))
    Table.create(str(tmp_path / "orders"), pa.schema([("id", pa.int64())]))
    kinds: dict[Any, dict[str, Any]] = {TableVersionSensor: {"version": 0}, DeltaTruncateOperator: {}}
    for kind, more in kinds.items():
        with pytest.raises(InvalidJobSpec) as raised:
            kind(task_id="x", table=given, txlog_conn_id="lake", **more)
        assert raised.value.facts["argument"] == "table"
        templated = kind(task_id="x", table="{{ it }}", txlog_conn_id="lake", catalog_conn_id="names", **more)
        templated.table = given
        with pytest.raises(TxlogError):
            templated.execute({})
    sensor = TableVersionSensor(task_id="x", table="{{ it }}", version=0, catalog_conn_id="names", deferrable=True)
    sensor.table, sensor.silent_fail = given, True
    with pytest.raises(InvalidJobSpec):
        sensor.execute({})


def test_a_name_without_a_catalog_is_no_folder_below_the_base(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "txlog", "host": str(tmp_path)}))
    Table.create(str(tmp_path / "sales.orders"), pa.schema([("id", pa.int64())]))
    sensor = TableVersionSensor(task_id="x", table="sales.orders", version=0, txlog_conn_id="lake")
    with pytest.raises(InvalidJobSpec) as raised:
        sensor.poke({})
    assert raised.value.facts["argument"] == "catalog_conn_id"
