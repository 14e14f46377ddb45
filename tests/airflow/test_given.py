"""Lists, paths and settings of a DAG author: a value with one plain meaning passes, and an error names the mend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_txlog.errors import InvalidJobSpec, TxlogError
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.operators.base import TxlogOperator
from airflow_txlog.operators.delete import DeltaDeleteOperator
from airflow_txlog.operators.maintenance.checkpoint_and_vacuum import CheckpointOperator, VacuumOperator
from airflow_txlog.operators.maintenance.optimize import DeltaOptimizeOperator
from airflow_txlog.operators.merge import DeltaMergeOperator, when_matched_update
from airflow_txlog.operators.sources import files, query, table
from airflow_txlog.operators.update import DeltaUpdateOperator
from airflow_txlog.operators.write import DeltaWriteOperator
from airflow_txlog.sensors.table_version import TableVersionSensor

pytestmark = pytest.mark.airflow

T: dict[str, Any] = {"task_id": "x", "table_uri": "/t"}


def write(**given: Any) -> TxlogOperator:
    return DeltaWriteOperator(**{**T, "source": files("/in"), **given})


def merge(**given: Any) -> TxlogOperator:
    return DeltaMergeOperator(**{**T, "source": files("/in"), "on": "t.id = s.id", **given})


@pytest.mark.parametrize(
    ("operator", "argument", "meant"),
    [
        (lambda: write(partition_by="day"), "partition_by", ["day"]),
        (lambda: write(cluster_by="day"), "cluster_by", ["day"]),
        (lambda: write(partition_by=("day", "hour")), "partition_by", ["day", "hour"]),
        (lambda: DeltaOptimizeOperator(**T, zorder_by="id"), "zorder_by", ["id"]),
        (lambda: merge(clauses=when_matched_update()), "clauses", [when_matched_update()]),
        (lambda: write(properties={"delta.appendOnly": True, "n": 3}), "properties",
         {"delta.appendOnly": "true", "n": "3"}),
        (lambda: write(source=files("/in", format="csv", options={"header": True, "sep": ";"})), "source",
         {"format": "csv", "path": "/in", "options": {"header": "true", "sep": ";"}, "schema": None}),
        (lambda: write(source={"format": "csv", "path": Path("/in"), "options": {"header": True}}), "source",
         {"format": "csv", "path": "/in", "options": {"header": "true"}}),
        (lambda: write(source=query("SELECT 1", a={"format": "csv", "path": "/in", "options": {"sep": 1}})), "source",
         {"sql": "SELECT 1", "views": {"a": {"format": "csv", "path": "/in", "options": {"sep": "1"}}}}),
        (lambda: write(source=files([Path("/a"), "/b"])), "source",
         {"format": "parquet", "path": ["/a", "/b"], "options": {}, "schema": None}),
        (lambda: VacuumOperator(**T, inventory=Path("/in/i.csv")), "inventory", "/in/i.csv"),
    ],
)  # fmt: skip
def test_a_form_with_one_plain_meaning_is_accepted(
    operator: Callable[[], TxlogOperator], argument: str, meant: Any
) -> None:
    assert operator().job_arguments()[argument] == meant


def test_a_path_and_numbers_among_spark_settings_are_taken_as_texts() -> None:
    operator = CheckpointOperator(task_id="x", table_uri=Path("/lake/t"), spark_conf={"spark.sql.ansi.enabled": False})
    spec = operator.job_spec({"ti": _Ti()})
    assert (spec.table_uri, spec.spark_conf) == ("/lake/t", {"spark.sql.ansi.enabled": "false"})


def test_a_path_is_taken_as_a_text_by_a_sensor_too() -> None:
    assert TableVersionSensor(task_id="x", table_uri=Path("/lake/t"), version=1).table_uri == "/lake/t"  # type: ignore[arg-type]


class _Ti:
    dag_id, task_id, run_id, map_index, try_number, max_tries, id = "d", "t", "r", -1, 1, 0, "an id"


@pytest.mark.parametrize(
    ("operator", "mend"),
    [
        (lambda: write(partition_by="day, hour"), 'write a list of names, such as ["day", "hour"]'),
        (lambda: write(partition_by=7), "write a list of column names"),
        (lambda: write(source="/in/x.csv"), 'files(…, format="csv")'),
        (lambda: write(source=Path("/in/x")), 'files(…, format="parquet")'),
        (lambda: write(source=files), "make one by airflow_txlog.operators"),
        (lambda: write(source={"format": "csv", "path": "/in", "options": {"header": None}}), "source.options.header"),
        (lambda: write(source=files("/in", format="csv", options={"sep": ["a"]})), "options.sep"),
        (lambda: write(properties="a=b"), "write a mapping"),
        (lambda: write(mode="{{ params.mode }}"), '"append" or "overwrite"'),
        (lambda: merge(clauses=[when_matched_update]), "call it, when_matched_update(…)"),
        (lambda: merge(clauses=[when_matched_update("amount")]), "when_matched_update: set is of type str"),  # type: ignore[arg-type]
        (lambda: write(replace_where="a = 1"), 'must be None in mode "append": add mode="overwrite"'),
        (lambda: merge(clauses="*"), "write a list, such as [when_matched_update()]"),
        (lambda: merge(clauses=[when_matched_update({"n": 1})]), "write SQL as a text"),  # type: ignore[dict-item]
        (lambda: DeltaUpdateOperator(**T, set={"email": None}), 'such as "NULL"'),
        (lambda: DeltaUpdateOperator(**T, set="email = NULL"), "a mapping of columns to SQL"),
        (lambda: DeltaDeleteOperator(**T, predicate="a = :a", parameters=["a"]), "a mapping of names to values"),
        (lambda: DeltaDeleteOperator(**T, keys="/in/keys.csv", key_column="id"), "a list of values or a source"),
        (lambda: CheckpointOperator(**T, conflict_deadline_s="1h"), "conflict_deadline_s"),
        (lambda: CheckpointOperator(**T, spark_conf={"a": None}), "spark_conf.a"),
        (lambda: CheckpointOperator(**T, runner="chidl"), "runner must be one of"),
        (lambda: CheckpointOperator(**T, runner=5), "or a Runner; found int"),  # type: ignore[arg-type]
        (lambda: CheckpointOperator(task_id="x", table_uri=None), "found None. Pass table_uri="),  # type: ignore[arg-type]
        (lambda: write(mode="apend"), "found 'apend'"),
        (lambda: write(source=files("/in", format="parqet")), "found 'parqet'"),
        (lambda: VacuumOperator(**T, inventory="in.csv"), "found 'in.csv'"),
        (lambda: DeltaUpdateOperator(**T, set={}), "a non-empty mapping of columns to SQL"),
        (lambda: TableVersionSensor(**T), "one of version, newer_than and since"),
        (lambda: TableVersionSensor(**T, partition={"day": "a\ud83d"}), "partition has half of a character in it"),
        (lambda: TableVersionSensor(**T, operation="\ud83d"), "operation has half of a character in it"),
        (lambda: TableVersionSensor(task_id="x", table_uri=None, version=1), "found None"),  # type: ignore[arg-type]
        (lambda: TableVersionSensor(**T, version="last"), "version must be a version number"),
    ],
)
def test_any_other_form_is_refused_when_the_dag_is_parsed_and_the_error_names_the_mend(
    operator: Callable[[], object], mend: str
) -> None:
    with pytest.raises(TxlogError) as caught:
        operator()
    assert mend in str(caught.value)


def test_what_a_template_or_another_task_decides_is_checked_when_the_task_runs() -> None:
    from airflow.sdk import DAG, task

    with DAG("d", schedule=None):

        @task
        def other() -> list[str]:
            return ["a"]

        DeltaDeleteOperator(task_id="a", table_uri="{{ params.t }}", keys=other(), key_column="id")
        DeltaDeleteOperator(task_id="b", table_uri="/t", keys="{{ params.keys }}", key_column="id")
        DeltaDeleteOperator(task_id="c", table_uri="/t", predicate="a = :a", parameters={"a": other()})
        merge(task_id="e", clauses=other(), source=other())
        write(task_id="f", source=files("{{ params.folder }}"))
        DeltaOptimizeOperator(task_id="g", table_uri="/t", zorder_by=other())
        TableVersionSensor(task_id="h", table_uri="/t", version="{{ params.v }}")
        # A wrong literal beside a template is found all the same.
        with pytest.raises(InvalidJobSpec, match="partition_by"):
            write(task_id="i", source=files("/in/{{ ds }}"), partition_by="a,b")


@pytest.mark.parametrize("place", ["~/lake/t", "lake/t", "./t", "t", "file:t"])
def test_a_relative_place_is_refused_and_the_error_says_which_to_use(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for refused in (
        lambda: CheckpointOperator(task_id="x", table_uri=place),
        lambda: write(source=files(place)),
        lambda: write(source=table(place)),
        lambda: DeltaDeleteOperator(**T, keys=files(["/a", place]), key_column="id"),
        lambda: VacuumOperator(**T, inventory=place),
        lambda: TxlogHook().table_uri(place),
        lambda: TxlogHook().open(place),
    ):
        with pytest.raises(InvalidJobSpec, match=r"absolute path .*or a URI"):
            refused()
    assert list(tmp_path.iterdir()) == []


def test_a_name_is_joined_to_an_absolute_base_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, base in {"LAKE": "/lake", "RELATIVE": "lake", "HOME": "~/lake", "NONE": ""}.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", f'{{"conn_type": "txlog", "host": "{base}"}}')
    assert TxlogHook("lake").table_uri("sales/orders") == "/lake/sales/orders"
    for conn_id, table_name in (("lake", "~/orders"), ("relative", "orders"), ("home", "orders"), ("none", "orders")):
        with pytest.raises(InvalidJobSpec, match="absolute path"):
            TxlogHook(conn_id).table_uri(table_name)
    # A name is judged when the task runs: only then is the base known.
    CheckpointOperator(task_id="x", table_uri="orders", txlog_conn_id="lake")
