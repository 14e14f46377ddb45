"""Operators on tables of Unity Catalog, managed and external, on an S3 server with the catalog's credentials alone."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog import operators
from airflow_txlog.engine import Table
from airflow_txlog.errors import UnsupportedFeature, WrongTableId
from airflow_txlog.hooks.catalog_connection import open_catalog
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.operators import files, table, when_matched_update, when_not_matched_insert
from airflow_txlog.sensors.table_version import TableVersionSensor
from airflow_txlog.storage import Access, credentials, open_store
from airflow_txlog.storage.managed import ManagedStore
from tests.helpers import s3
from tests.helpers.managed import committer_of
from tests.helpers.unity import FakeTable, FakeUnity, Fault

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_home")]

NAME = "main.sales.orders"
TOKEN = "canary-77fe-token"


@dataclass
class Lake:
    """A catalog whose tables are on the S3 server; the process has no keys but those of the catalog."""

    unity: FakeUnity
    folder: Path
    by_name: dict[str, Any]
    is_managed: bool = True

    def rows(self, *ids: int) -> str:
        path = self.folder / f"{uuid.uuid4().hex}.parquet"
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{each}" for each in ids]}), path)
        return str(path)

    def run(self, kind: str, **arguments: Any) -> dict[str, Any]:
        given = {"task_id": "task", "runner": "in_process", **self.by_name, **arguments}
        return dict(getattr(operators, kind)(**given).execute({}))

    def load(self, *ids: int, name: str = NAME, **arguments: Any) -> dict[str, Any]:
        place = {} if self.is_managed or name in self.unity.tables else {"table_uri": s3.new_folder()}
        return self.run("DeltaWriteOperator", table=name, source=files(self.rows(*ids)), **{**place, **arguments})

    @property
    def fake(self) -> FakeTable:
        return self.unity.tables[NAME]

    def ids(self) -> list[int]:
        """The rows of now, read with the keys of the server, as another process reads them."""
        inner = open_store(self.fake.location, Access(storage_options=s3.options()))
        found = Table(
            ManagedStore(inner, committer_of(self.unity, self.fake, token=TOKEN)) if self.is_managed else inner
        )
        return sorted(found.to_arrow().column("id").to_pylist())


@pytest.fixture(params=["managed", "external"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    given = s3.options()
    with FakeUnity() as unity:
        unity.root = s3.new_folder()
        unity.credentials = lambda location, operation: {
            "s3.access-key-id": given["key"],
            "s3.secret-access-key": given["secret"],
        }
        names = f"unity_{uuid.uuid4().hex}"
        host = {"conn_type": "txlog_unity", "host": unity.url, "password": TOKEN}
        monkeypatch.setenv(f"AIRFLOW_CONN_{names.upper()}", json.dumps(host))
        options = {"storage_options": s3.plain_options()}
        by_name = {"catalog_conn_id": names, "txlog_conn_id": "lake"}
        if request.param == "external":
            # The task that creates a table outside of the catalog's own places has the keys of its folder.
            s3.connection(monkeypatch, "s3://unused")
            options["storage_conn_id"] = "lake_keys"
        for name in s3.environment():
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "txlog", "extra": options}))
        monkeypatch.setenv("AIRFLOW_VAR_TXLOG_SAVED_WORK_SECRET", "5e" * 32)
        unity.tokens = {TOKEN}
        yield Lake(unity, tmp_path, by_name, request.param == "managed")


@pytest.fixture
def created(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """The catalog with the table and one row in it; from here on the process has the catalog's credentials alone."""
    assert lake.load(1)["version"] == 0
    lake.load(7, name="main.sales.copy")
    options = {"storage_options": s3.plain_options()}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "txlog", "extra": options}))
    monkeypatch.setenv("AIRFLOW_CONN_LAKE_KEYS", "")
    return lake


def test_a_table_is_created_appended_merged_and_deleted_from_by_its_name(created: Lake) -> None:
    lake = created
    assert lake.fake.is_managed is lake.is_managed
    assert [each["name"] for each in lake.fake.columns["fields"]] == ["id", "name"]
    lake.load(2, 3)
    lake.run(
        "DeltaMergeOperator",
        table=NAME,
        source=files(lake.rows(3, 4)),
        on="t.id = s.id",
        clauses=[when_matched_update(set={"name": "'merged'"}), when_not_matched_insert()],
    )
    lake.run("DeltaDeleteOperator", table=NAME, predicate="id = 1")
    assert lake.ids() == [2, 3, 4]
    assert {operation for name, operation in lake.unity.issued} == {"READ", "READ_WRITE"}
    if lake.is_managed:
        assert (lake.fake.latest, lake.fake.commits) == (3, {})


def test_the_hook_and_the_sensor_read_with_the_privilege_to_read(created: Lake) -> None:
    lake = created
    lake.unity.issued.clear()
    names = {"txlog_conn_id": "lake", "catalog_conn_id": lake.by_name["catalog_conn_id"]}
    opened = TxlogHook(**names).open(NAME)
    assert opened.to_arrow().column("id").to_pylist() == [1]
    sensor = TableVersionSensor(task_id="wait", table=NAME, version=0, **names)
    assert sensor.poke({})
    assert {operation for _, operation in lake.unity.issued} <= {"READ"}


def test_a_source_has_credentials_of_its_own(created: Lake) -> None:
    lake = created
    # As in another process: those of the table's creation are kept by the table's id.
    credentials.kept.cache_clear()
    lake.unity.issued.clear()
    # Without Spark: a session that other tests have started has no way to these credentials.
    lake.run("DeltaUpsertOperator", table="main.sales.copy", source=table(NAME), keys="id")
    used = set(lake.unity.issued)
    assert used <= {(NAME, "READ"), ("main.sales.copy", "READ"), ("main.sales.copy", "READ_WRITE")}
    assert ("main.sales.copy", "READ_WRITE") in used


def test_a_change_of_the_schema_reaches_the_catalog(created: Lake) -> None:
    lake = created
    lake.run("DeltaAlterTableOperator", table=NAME, add_columns={"day": "STRING"})
    assert [each["name"] for each in lake.fake.columns["fields"]] == ["id", "name", "day"]


@pytest.mark.parametrize("moment", ["ratified", "published"])
def test_a_task_that_is_killed_after_its_commit_has_changed_the_table_once(created: Lake, moment: str) -> None:
    lake = created
    if not lake.is_managed:
        pytest.skip("an external table's commit is one request")
    rows = lake.rows(2)
    child = os.fork()
    if child == 0:
        try:
            publish = ManagedStore._publish_all

            def dying(self: ManagedStore, *given: Any) -> None:
                if moment == "published":
                    publish(self, *given)
                os.kill(os.getpid(), signal.SIGKILL)

            ManagedStore._publish_all = dying  # type: ignore[method-assign]
            lake.run("DeltaWriteOperator", table=NAME, source=files(rows), idempotency_key="once")
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert lake.fake.latest == 1
    assert bool(lake.fake.commits) is (moment == "ratified")
    again = lake.run("DeltaWriteOperator", table=NAME, source=files(rows), idempotency_key="once")
    assert again["status"] == "already_done"
    assert lake.ids() == [1, 2]
    lake.load(3)
    assert (lake.ids(), lake.fake.commits) == ([1, 2, 3], {})


def test_maintenance_of_a_managed_table_is_refused_and_that_of_an_external_one_is_done(created: Lake) -> None:
    lake = created
    work: dict[str, dict[str, Any]] = {
        "VacuumOperator": {},
        "DeltaOptimizeOperator": {},
    }
    for kind, arguments in work.items():
        if lake.is_managed:
            with pytest.raises(Exception, match="catalogManaged") as raised:
                lake.run(kind, table=NAME, **arguments)
            assert isinstance(raised.value, UnsupportedFeature) or isinstance(
                raised.value.__cause__, UnsupportedFeature
            )
        else:
            assert lake.run(kind, table=NAME, **arguments)["status"] in ("committed", "nothing_to_do")
    assert lake.ids() == [1]


def test_a_managed_table_is_not_written_by_its_path(created: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = created
    if not lake.is_managed:
        pytest.skip("an external table is everybody's by its path")
    s3.connection(monkeypatch, "s3://unused")
    extra = {"storage_options": s3.plain_options(), "storage_conn_id": "lake_keys"}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "txlog", "extra": extra}))
    with pytest.raises(Exception, match="catalog_conn_id"):
        lake.run("DeltaWriteOperator", table_uri=lake.fake.location, source=files(lake.rows(2)), catalog_conn_id=None)
    assert lake.ids() == [1]


def test_a_table_that_was_made_again_under_its_name_is_another_table(created: Lake) -> None:
    lake = created
    lake.fake.table_id = str(uuid.uuid4())
    if not lake.is_managed:
        lake.load(2)
        assert lake.ids() == [1, 2]
        return
    with pytest.raises(Exception, match="id") as raised:
        lake.load(2)
    assert WrongTableId in (type(raised.value), type(raised.value.__cause__))


def test_an_answer_of_the_catalog_that_is_lost_changes_the_table_once(created: Lake) -> None:
    lake = created
    if not lake.is_managed:
        pytest.skip("an external table's commit does not ask the catalog")
    with lake.unity.harmed(Fault("unanswered", on="add-commit")):
        assert lake.load(2)["status"] == "committed"
    assert (lake.ids(), lake.fake.latest) == ([1, 2], 1)


def test_the_catalog_resolves_by_one_request_for_each_task(created: Lake) -> None:
    lake = created
    lake.unity.requests.clear()
    found = open_catalog(lake.by_name["catalog_conn_id"]).find(NAME)
    assert found.name == NAME
    assert len(lake.unity.requests) == 1


def test_every_way_to_change_rows_goes_through_the_catalog(created: Lake) -> None:
    lake = created
    names = {"txlog_conn_id": "lake", "catalog_conn_id": lake.by_name["catalog_conn_id"]}
    hook = TxlogHook(**names)
    hook.append(NAME, pa.table({"id": [2], "name": ["n2"]}), idempotency_key="rows")
    lake.run("DeltaUpsertOperator", table=NAME, source=files(lake.rows(2, 3)), keys="id")
    lake.run("DeltaUpdateOperator", table=NAME, set={"name": "'x'"}, predicate="id = 3")
    staged = lake.load(4, publish=False, idempotency_key="staged")["staged"]
    assert lake.ids() == [1, 2, 3]
    lake.run("DeltaPublishOperator", staged=staged)
    assert lake.ids() == [1, 2, 3, 4]
    lake.run("DeltaRestoreOperator", table=NAME, version=1)
    assert lake.ids() == [1, 2]
    lake.run("CheckpointOperator", table=NAME)
    lake.run("DeltaTruncateOperator", table=NAME)
    assert lake.ids() == []
    if lake.is_managed:
        assert lake.fake.commits == {}
        assert lake.fake.latest == Table.latest_version(TxlogHook(**names).table(NAME))


def test_a_managed_table_is_neither_cloned_nor_erased(created: Lake) -> None:
    lake = created
    if not lake.is_managed:
        pytest.skip("an external table is cloned and erased as any other")
    with pytest.raises(Exception, match="catalogManaged"):
        lake.run("DeltaCloneOperator", table="main.sales.clone", source=table(NAME))
    with pytest.raises(Exception, match="catalogManaged"):
        lake.run("DeltaUpkeepOperator", tables=[NAME])
    assert "main.sales.clone" not in lake.unity.tables
