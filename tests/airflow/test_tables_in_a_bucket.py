"""The hook and the sensor on a table in a real object store, by a connection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.sensors.table_version import TableVersionSensor
from tests.helpers import s3
from tests.helpers.rows import append, bag

pytestmark = pytest.mark.airflow

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.int32())])


class State(dict[str, Any]):
    """How far a consumer has come, as JSON keeps it."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value


def test_the_hook_and_the_sensor_read_a_table_in_a_bucket(airflow_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = s3.new_folder()
    table = Table.create(uri, SCHEMA, ["day"], {"delta.enableChangeDataFeed": "true"}, storage_options=s3.options())
    append(table, [{"id": 1, "day": 1}])
    append(table, [{"id": 2, "day": 2}])
    lake = s3.connection(monkeypatch, uri.removesuffix("/t"))
    hook = TxlogHook(lake)
    assert hook.test_connection()[0]
    assert hook.latest_version("t") == 2
    (new,) = hook.unprocessed_versions("t", consumer="c", state=State())
    assert (new.versions, new.partitions) == ([1, 2], [{"day": "1"}, {"day": "2"}])
    changes = hook.table("t").changes(2)
    assert bag(changes, "id", "_change_type") == bag(pa.table({"id": [2], "_change_type": ["insert"]}))

    def is_there(**wanted: Any) -> bool:
        sensor = TableVersionSensor(task_id="wait", table_uri="t", txlog_conn_id=lake, **wanted)
        return sensor.poke({}).is_done  # type: ignore[arg-type]

    assert [is_there(version=2), is_there(version=3)] == [True, False]
    assert [is_there(partition={"day": 2}), is_there(partition={"day": 3})] == [True, False]
