"""Every operator by the name of its table: on AWS Glue with an S3 server, and on a Hive Metastore with a folder."""

from __future__ import annotations

import inspect
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog import operators
from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidJobSpec, NotADeltaTable, TableMoved, TableNotInCatalog
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.locations import Access, canonical_place
from airflow_txlog.operators import (
    DeltaAlterTableOperator,
    DeltaAuditOperator,
    DeltaDiscardOperator,
    DeltaPublishOperator,
    DeltaRollbackOperator,
    DeltaWriteOperator,
    PinVersionsOperator,
    files,
    query,
    table,
    when_matched_update,
)
from airflow_txlog.sensors.table_version import TableVersionSensor
from airflow_txlog.storage import open_store
from tests.airflow.test_identity import StateStore, Try
from tests.helpers import glue, s3
from tests.helpers.catalogs import Backend, GlueBackend, HiveBackend, Record
from tests.helpers.depth import in_long

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.usefixtures("spark", "airflow_home")]

OPERATORS = {
    name for name in operators.__all__ if inspect.isclass(getattr(operators, name)) and name != "PinVersionsOperator"
}


@dataclass(frozen=True)
class Lake:
    """A catalog with an empty database, as a task reaches it."""

    backend: Backend
    database: str
    rows: str
    """A Parquet file with three orders."""
    by_name: dict[str, Any]
    """The connections of an operator."""

    @property
    def name(self) -> str:
        return f"{self.database}.orders"

    @property
    def options(self) -> dict[str, Any]:
        """How the tests open a table without the catalog."""
        return s3.options() if isinstance(self.backend, GlueBackend) else {}

    def run(self, name: str, **arguments: Any) -> Any:
        """Run one operator without a task instance."""
        kind = getattr(operators, name)
        given = {"task_id": name.lower(), "runner": "in_process", **self.by_name, **arguments}
        return kind(**given).execute({})

    def load(self, table_name: str = "", **arguments: Any) -> dict[str, Any]:
        """Append the three orders to a table that is new unless it exists."""
        given = {"table": table_name or self.name, "source": files(self.rows), **arguments}
        return dict(self.run("DeltaWriteOperator", **given))

    def table(self, name: str = "") -> Table:
        """The table, opened at the place that the catalog has."""
        entry = self.backend.catalog.find(name or self.name)
        return Table.open(entry.uri, storage_options=self.options)


@pytest.fixture(params=["glue", "hive"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    backend: Backend
    # By which staged changes are signed.
    monkeypatch.setenv("AIRFLOW_VAR_TXLOG_SAVED_WORK_SECRET", "5e" * 32)
    connections = {"catalog_conn_id": "names"}
    if request.param == "glue":
        base = s3.new_folder()
        s3.connection(monkeypatch, base)
        connections["storage_conn_id"] = "lake_keys"
        backend = GlueBackend(request.getfixturevalue("glue_endpoint"), base)
        endpoint = {"glue": {"endpoint_url": request.getfixturevalue("glue_endpoint")}}
        extra = {"region_name": glue.REGION, "service_config": endpoint}
        keys = {"conn_type": "aws", "login": glue.KEYS[0], "password": glue.KEYS[1], "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_NAMES", json.dumps(keys))
    else:
        server = request.getfixturevalue("metastore")
        backend = HiveBackend(server, str(tmp_path / "warehouse"))
        monkeypatch.setenv("AIRFLOW_CONN_NAMES", server.connection)
    database = f"db_{uuid.uuid4().hex}"
    backend.create_database(database)
    rows = pa.table({"id": pa.array([1, 2, 3]), "day": ["a", "a", "b"], "amount": [1.0, 2.0, 3.0]})
    pq.write_table(rows, tmp_path / "orders.parquet")
    return Lake(backend, database, str(tmp_path / "orders.parquet"), connections)


# --- all operators --------------------------------------------------------------------------------------------------


def _staged(lake: Lake) -> dict[str, Any]:
    lake.load()
    return lake.load(publish=False, idempotency_key="staged")


def _erasure(lake: Lake, name: str, **arguments: Any) -> Any:
    lake.load()
    report = f"{lake.backend.catalog.find(lake.name).uri}-report"
    return lake.run(
        name,
        tables={lake.name: "id"},
        subjects=[1],
        request_id="R-1",
        report_uri=report,
        require_complete=False,
        **arguments,
    )


def _converted(lake: Lake) -> Any:
    place = lake.backend.catalog.place_for(lake.name)
    store = open_store(place, Access(storage_options=lake.options))
    store.put_if_absent("part-0.parquet", Path(lake.rows).read_bytes())
    return lake.run("DeltaConvertOperator", table=lake.name)


def _rolled_back(lake: Lake) -> Any:
    lake.load()
    return lake.run("DeltaRollbackOperator", run_id="r", of_dag_id="d", tables=lake.name)


def _on(lake: Lake, name: str, **arguments: Any) -> Any:
    """An operator on the table once it has rows."""
    lake.load()
    return lake.run(name, table=lake.name, **arguments)


CASES: dict[str, Callable[[Lake], Any]] = {
    "CheckpointOperator": lambda lake: _on(lake, "CheckpointOperator"),
    "DeltaAlterTableOperator": lambda lake: _on(lake, "DeltaAlterTableOperator", add_columns={"note": "STRING"}),
    "DeltaApplyChangesOperator": lambda lake: _on(
        lake, "DeltaApplyChangesOperator", source=table(lake.name), keys="id", sequence_by="day"
    ),
    "DeltaApplySnapshotOperator": lambda lake: _on(
        lake, "DeltaApplySnapshotOperator", source=files(lake.rows), keys="id", max_deleted_fraction=1
    ),
    "DeltaAuditOperator": lambda lake: lake.run(
        "DeltaAuditOperator",
        staged=[_staged(lake)],
        checks={"some": {"check_statement": "COUNT(*) > 0"}},
        # On S3 Spark needs the credentials of the connection, which the session of the tests does not have.
        runner="child" if lake.options else "in_process",
    ),
    "DeltaCloneOperator": lambda lake: (
        lake.load(f"{lake.database}.source"),
        lake.run("DeltaCloneOperator", table=lake.name, source=table(f"{lake.database}.source")),
    ),
    "DeltaConvertOperator": _converted,
    "DeltaDeleteOperator": lambda lake: _on(lake, "DeltaDeleteOperator", predicate="id = 1"),
    "DeltaDiscardOperator": lambda lake: lake.run("DeltaDiscardOperator", staged=[_staged(lake)]),
    "DeltaEraseOperator": lambda lake: _erasure(lake, "DeltaEraseOperator", writer_hours=0),
    "DeltaErasureVerifyOperator": lambda lake: _erasure(lake, "DeltaErasureVerifyOperator"),
    "DeltaIncrementalOperator": lambda lake: (
        lake.load(f"{lake.database}.source"),
        lake.run(
            "DeltaIncrementalOperator", table=lake.name, source=table(f"{lake.database}.source"), consumer="silver"
        ),
    ),
    "DeltaMergeOperator": lambda lake: _on(
        lake,
        "DeltaMergeOperator",
        source=table(lake.name),
        on="t.id = s.id",
        clauses=[when_matched_update({"amount": "s.amount + 1"})],
    ),
    "DeltaOptimizeOperator": lambda lake: _on(lake, "DeltaOptimizeOperator"),
    "DeltaPublishOperator": lambda lake: lake.run("DeltaPublishOperator", staged=[_staged(lake)]),
    "DeltaRestoreOperator": lambda lake: (lake.load(), _on(lake, "DeltaRestoreOperator", version=0)),
    "DeltaRollbackOperator": _rolled_back,
    "DeltaTruncateOperator": lambda lake: _on(lake, "DeltaTruncateOperator"),
    "DeltaUpdateOperator": lambda lake: _on(lake, "DeltaUpdateOperator", set={"day": "'c'"}, predicate="id = 1"),
    "DeltaUpkeepOperator": lambda lake: (lake.load(), lake.run("DeltaUpkeepOperator", tables=lake.name)),
    "DeltaUpsertOperator": lambda lake: _on(lake, "DeltaUpsertOperator", source=files(lake.rows), keys="id"),
    "DeltaWriteOperator": lambda lake: lake.load(),
    "VacuumOperator": lambda lake: _on(lake, "VacuumOperator"),
}


def test_each_operator_has_a_case() -> None:
    assert CASES.keys() == OPERATORS


@pytest.mark.parametrize(
    ("name", "lake"),
    [
        case
        for name in sorted(CASES)
        # On S3 an audit starts a Spark of its own.
        for usual, other in [("hive", "glue") if name == "DeltaAuditOperator" else ("glue", "hive")]
        for case in [(name, usual), *in_long("runs every operator", (name, other))]
    ],
    indirect=["lake"],
)
def test_an_operator_takes_the_name_of_its_table(lake: Lake, name: str) -> None:
    returned = CASES[name](lake)
    returned = returned[-1] if isinstance(returned, tuple) else returned
    if "table" in returned:
        assert returned["table"] == lake.name
        assert returned["table_uri"] == lake.backend.catalog.find(lake.name).uri
    assert lake.table().snapshot().version >= 0


# --- what is created is registered ------------------------------------------------------------------------------------


def test_a_new_table_is_in_the_folder_of_its_database_and_in_the_catalog(lake: Lake) -> None:
    returned = lake.load()
    assert returned["catalog"] == "registered"
    assert returned["table_uri"] == f"{lake.backend.root}/{lake.database}.db/orders"
    record = lake.backend.get(lake.name)
    assert record.columns == [("id", "bigint"), ("day", "string"), ("amount", "double")]
    assert "catalog" not in lake.load()


def test_a_new_table_is_at_the_place_that_is_given(lake: Lake) -> None:
    place = f"{lake.backend.root}/elsewhere"
    assert lake.load(table_uri=place)["table_uri"] == place
    assert lake.backend.catalog.find(lake.name).uri == place
    # The same task again, and one with another place.
    assert lake.load(table_uri=place)["version"] == 1
    with pytest.raises(InvalidJobSpec) as raised:
        lake.load(table_uri=f"{place}_2")
    assert raised.value.facts["argument"] == "table_uri"


def test_the_catalog_follows_a_change_of_the_schema_and_of_properties(lake: Lake) -> None:
    lake.load()
    arguments = {"add_columns": {"note": "STRING"}, "set_properties": {"delta.appendOnly": "true"}}
    assert lake.run("DeltaAlterTableOperator", table=lake.name, **arguments)["catalog"] == "updated"
    record = lake.backend.get(lake.name)
    assert record.columns[-1] == ("note", "string")
    assert record.parameters["delta.appendOnly"] == "true"
    assert "catalog" not in lake.load()


def test_a_catalog_that_fails_after_the_commit_fails_no_task(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(self: object, description: object) -> None:
        raise PermissionError("no right to create")

    kind = type(lake.backend.catalog)
    monkeypatch.setattr(kind, "register", refused)
    returned = lake.load()
    assert (returned["status"], returned["catalog"]) == ("committed", "failed")
    assert Table.open(returned["table_uri"], storage_options=lake.options).snapshot().num_files == 1


def test_a_table_that_no_task_could_register_is_registered_by_the_next_one(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:

        def refused(self: object, description: object) -> None:
            raise PermissionError("no right to create")

        patched.setattr(type(lake.backend.catalog), "register", refused)
        assert lake.load(idempotency_key="k")["catalog"] == "failed"
    # The same work again, which is done already.
    again = lake.load(idempotency_key="k")
    assert (again["status"], again["catalog"]) == ("already_done", "registered")
    assert lake.backend.catalog.find(lake.name).uri == again["table_uri"]


def test_a_relative_source_without_a_catalog_is_refused_as_before(tmp_path: Path) -> None:
    with pytest.raises(InvalidJobSpec) as raised:
        operators.DeltaUpsertOperator(task_id="x", table_uri="/lake/t", source=table("sales.rates"), keys="id")
    assert raised.value.facts["argument"] == "arguments.source.table"
    hook = TxlogHook()
    with pytest.raises(InvalidJobSpec):
        hook.run("upsert", "/lake/t", {"source": table("sales.rates"), "keys": ["id"]}, idempotency_key="k")


def test_the_publication_of_a_new_column_updates_the_catalog(lake: Lake, tmp_path: Path) -> None:
    lake.load()
    wider = pq.read_table(lake.rows).append_column("note", pa.array(["x", "y", "z"]))
    pq.write_table(wider, tmp_path / "wider.parquet")
    arguments = {"source": files(str(tmp_path / "wider.parquet")), "schema_evolution": True}
    staged = lake.load(publish=False, idempotency_key="staged", **arguments)
    assert "catalog" not in staged
    assert len(lake.backend.get(lake.name).columns) == 3
    (published,) = lake.run("DeltaPublishOperator", staged=[staged])["changes"]
    assert (published["table"], published["catalog"]) == (lake.name, "updated")
    assert lake.backend.get(lake.name).columns[-1] == ("note", "string")


# --- names in results, sources and errors -----------------------------------------------------------------------------


def test_the_commit_has_the_name_and_the_digest_of_the_work_has_not(lake: Lake) -> None:
    lake.load()
    assert lake.table().history(1)[0]["tags"]["airflow.table"] == lake.name
    operator = DeltaWriteOperator(task_id="x", table=lake.name, source=files(lake.rows), **lake.by_name)
    place = lake.backend.catalog.find(lake.name).uri
    others = {name: each for name, each in lake.by_name.items() if name != "catalog_conn_id"}
    by_place = DeltaWriteOperator(task_id="x", table_uri=place, source=files(lake.rows), **others)
    named, placed = operator.job_spec({}), by_place.job_spec({})
    assert named.annotations["table"] == lake.name
    assert named.digest() == placed.digest()


def test_one_try_asks_the_catalog_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.load()
    asked: list[str] = []
    kind = type(lake.backend.catalog)
    find = kind.find

    def counted(self: Any, name: str) -> Any:
        asked.append(name)
        return find(self, name)

    monkeypatch.setattr(kind, "find", counted)
    lake.run("DeltaUpsertOperator", table=lake.name, source=table(lake.name), keys="id")
    assert asked == [lake.name]


def test_the_views_of_a_query_and_a_quarantine_are_names_too(lake: Lake) -> None:
    lake.load(f"{lake.database}.rates")
    lake.load(f"{lake.database}.bad", source=files(lake.rows))
    views = {"o": files(lake.rows), "r": table(f"{lake.database}.rates")}
    operator = DeltaWriteOperator(
        task_id="x", table=lake.name, source=query("SELECT o.* FROM o JOIN r USING (id)", **views), **lake.by_name
    )
    source = operator.job_spec({}).operation.source
    assert source.views["r"].table == lake.backend.catalog.find(f"{lake.database}.rates").uri
    lake.load()
    lake.load(expect_or_quarantine={"small": "amount < 3"}, quarantine_uri=f"{lake.database}.bad")
    assert lake.table().to_arrow().num_rows == 5


def test_the_subjects_of_each_request_are_a_table_by_its_name(lake: Lake) -> None:
    for name in (lake.name, f"{lake.database}.people"):
        lake.load(name)
    found = lake.run(
        "DeltaEraseOperator",
        tables={lake.name: "id"},
        requests={"R-1": table(f"{lake.database}.people")},
        report_uri=f"{lake.backend.catalog.find(lake.name).uri}-report",
        writer_hours=0,
    )
    assert found["complete"]
    assert lake.table().to_arrow().num_rows == 0


def test_the_hook_and_the_sensor_take_a_name(lake: Lake) -> None:
    lake.load()
    hook = TxlogHook(storage_conn_id=lake.by_name.get("storage_conn_id"), catalog_conn_id="names")
    assert hook.open(lake.name).to_arrow().num_rows == 3
    result = hook.append(lake.name, pa.table({"id": [9], "day": ["c"], "amount": [9.0]}), idempotency_key="k")
    assert result.table_name == lake.name
    connections = {name: value for name, value in lake.by_name.items() if name != "runner"}
    sensor = TableVersionSensor(task_id="s", table=lake.name, version=1, **connections)
    assert sensor.poke({}).is_done
    pinned = PinVersionsOperator(task_id="p", tables=[lake.name], **connections).execute({})
    assert [each["version"] for each in pinned["tables"]] == [1]


def test_a_retry_whose_name_leads_elsewhere_changes_nothing_there(lake: Lake) -> None:
    lake.load()
    lake.load(f"{lake.database}.other")
    operator = DeltaWriteOperator(task_id="x", table=lake.name, source=files(lake.rows), **lake.by_name)
    store = StateStore()
    first = operator.job_spec({"ti": Try(), "task_state_store": store})
    # The same name is another table now.
    place = lake.backend.catalog.find(f"{lake.database}.other").uri
    lake.backend.drop(lake.name)
    lake.backend.put(Record(name=lake.name, location=place, parameters={"table_type": "delta"}))
    operator.begin_try()
    with pytest.raises(TableMoved) as raised:
        operator.job_spec({"ti": Try().retried(), "task_state_store": store})
    assert raised.value.facts["found"] == canonical_place(place)
    operator.begin_try()
    cleared = operator.job_spec({"ti": Try().retried().cleared(), "task_state_store": store})
    assert cleared.table_uri == place != first.table_uri


def test_an_append_of_the_hook_creates_and_registers_a_table(lake: Lake) -> None:
    hook = TxlogHook(storage_conn_id=lake.by_name.get("storage_conn_id"), catalog_conn_id="names")
    hook.append(lake.name, pa.table({"id": [9]}), idempotency_key="k")
    assert lake.table().to_arrow().to_pylist() == [{"id": 9}]


def test_a_rollback_says_what_became_of_the_entry(lake: Lake) -> None:
    context_tags = {"dag_id": "d", "run_id": "r", "task_id": "t", "try_number": 1}
    lake.load()
    wide = {"add_columns": {"note": "STRING"}}
    operator = DeltaAlterTableOperator(task_id="t", table=lake.name, runner="in_process", **lake.by_name, **wide)
    spec = operator.job_spec({})
    operator.hook.make_runner("in_process").run(spec.replace(annotations=context_tags), log=print)
    operator.hook.sync(lake.name, spec.table_uri)
    assert len(lake.backend.get(lake.name).columns) == 4
    returned = lake.run("DeltaRollbackOperator", run_id="r", of_dag_id="d", tables=lake.name)
    [entry] = returned["tables"]
    assert (entry["status"], entry["table"], entry["catalog"]) == ("committed", lake.name, "updated")
    assert len(lake.backend.get(lake.name).columns) == 3


def test_a_mapped_task_takes_a_name_for_each_of_its_instances(lake: Lake) -> None:
    from airflow.sdk import DAG

    with DAG("mapped"):
        partial = operators.DeltaTruncateOperator.partial(task_id="x", **lake.by_name)
        mapped = partial.expand(table=["sales.a", "sales.b"])
    assert mapped.template_fields[:2] == ("table_uri", "table")


def test_lineage_has_the_name_of_the_catalog_as_a_symlink(lake: Lake) -> None:
    lake.load()
    kind = operators.DeltaUpsertOperator
    arguments = {"runner": "in_process", "table": lake.name, "source": table(lake.name), "keys": "id"}
    operator = kind(task_id="x", **lake.by_name, **arguments)
    operator.execute({})
    found = operator.get_openlineage_facets_on_complete(None)
    entry = lake.backend.catalog.find(lake.name)
    for dataset in (*found.inputs, *found.outputs):
        (identifier,) = dataset.facets["symlinks"].identifiers
        assert (identifier.namespace, identifier.name) == (entry.namespace, entry.dataset)


def test_an_asset_with_the_name_gets_the_event_of_the_table(lake: Lake) -> None:
    from airflow.sdk import Asset

    by_name, other = Asset("a", uri=f"txlog://names/{lake.name}"), Asset("b", uri="txlog://names/other.table")
    events = {by_name: _Event(), other: _Event()}
    kind = operators.DeltaWriteOperator
    operator = kind(
        task_id="x",
        runner="in_process",
        table=lake.name,
        source=files(lake.rows),
        outlets=[by_name, other],
        **lake.by_name,
    )
    operator.execute({"outlet_events": events})
    assert events[by_name].extra["table"] == lake.name
    assert events[by_name].extra["version"] == 0


class _Event:
    def __init__(self) -> None:
        self.extra: dict[str, Any] = {}


def test_a_name_that_the_catalog_does_not_have_fails_the_task_for_good(lake: Lake) -> None:
    with pytest.raises(TableNotInCatalog):
        lake.run("DeltaTruncateOperator", table=lake.name)


def test_a_table_of_another_format_is_never_created_over(lake: Lake) -> None:
    place = f"{lake.backend.root}/theirs"
    lake.backend.put(Record(name=lake.name, location=place, parameters={"table_type": "ICEBERG"}))
    with pytest.raises(NotADeltaTable):
        lake.load()


def test_a_templated_name_is_resolved_once_it_is_rendered(lake: Lake) -> None:
    lake.load()
    operator = DeltaAlterTableOperator(
        task_id="x", table="{{ where }}.orders", add_columns={"n": "INT"}, **lake.by_name
    )
    operator.render_template_fields({"where": lake.database})
    assert operator.job_spec({}).table_uri == lake.backend.catalog.find(lake.name).uri


# --- refused when the DAG is parsed -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({}, "table_uri"),
        ({"table": "db.t", "table_uri": "/lake/t", "catalog_conn_id": "names"}, "table"),
        ({"table": "db.t"}, "catalog_conn_id"),
    ],
)
def test_a_table_is_given_once_and_with_a_catalog(arguments: dict[str, Any], argument: str) -> None:
    with pytest.raises(InvalidJobSpec) as raised:
        operators.DeltaTruncateOperator(task_id="x", **arguments)
    assert raised.value.facts["argument"] == argument


@pytest.mark.parametrize(
    "kind", [DeltaPublishOperator, DeltaDiscardOperator, DeltaAuditOperator, DeltaRollbackOperator]
)
def test_an_operator_on_many_tables_takes_no_single_name(kind: Any) -> None:
    arguments = {"run_id": "r", "tables": "/lake"} if kind is DeltaRollbackOperator else {"staged": "{{ x }}"}
    with pytest.raises(InvalidJobSpec) as raised:
        kind(task_id="x", table="db.t", catalog_conn_id="names", **arguments)
    assert raised.value.facts["argument"] == "table"
