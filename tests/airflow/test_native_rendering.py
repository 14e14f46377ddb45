"""A text stays a text in a DAG that renders native objects: each templated argument of each operator, and the sensor.

The cases are generated: every place of every templated argument, every text that reads like a literal of Python, and
every way in which a template can give it.
"""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2
import pyarrow as pa
import pytest
from airflow.sdk import DAG

from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidInput, InvalidJobSpec
from airflow_txlog.operators import (
    CheckpointOperator,
    DeltaAlterTableOperator,
    DeltaApplyChangesOperator,
    DeltaApplySnapshotOperator,
    DeltaAuditOperator,
    DeltaCloneOperator,
    DeltaConvertOperator,
    DeltaDeleteOperator,
    DeltaDiscardOperator,
    DeltaEraseOperator,
    DeltaErasureVerifyOperator,
    DeltaIncrementalOperator,
    DeltaMergeOperator,
    DeltaOptimizeOperator,
    DeltaPublishOperator,
    DeltaRestoreOperator,
    DeltaRollbackOperator,
    DeltaTruncateOperator,
    DeltaUpdateOperator,
    DeltaUpkeepOperator,
    DeltaUpsertOperator,
    DeltaWriteOperator,
    PinVersionsOperator,
    VacuumOperator,
    files,
    query,
    table,
    when_matched_delete,
    when_matched_update,
    when_not_matched_by_source_update,
    when_not_matched_insert,
)
from airflow_txlog.operators.arguments.given import revealed
from airflow_txlog.sensors.table_version import TableVersionSensor
from tests.helpers.depth import LONG
from tests.helpers.rows import append

pytestmark = pytest.mark.airflow

SHARED: dict[str, Any] = {"table_uri": "/t", "spark_conf": {"spark.sql.shuffle.partitions": "2"}}
ONCE: dict[str, Any] = {**SHARED, "idempotency_key": "key"}
CHANGING: dict[str, Any] = {
    **ONCE,
    "partition_predicate": "day = :day AND id = :list",
    "parameters": {"day": "2024-01-31", "list": ["a", "b"]},
}
CHECKED: dict[str, Any] = {**CHANGING, "expect": {"a": "a > '1'"}, "expect_or_fail": {"b": "b = 'x'"}, "unique": ["id"]}
LOADING: dict[str, Any] = {
    **CHECKED,
    "expect_or_drop": {"c": "c = 'x'"},
    "expect_or_quarantine": {"d": "d = 'x'"},
    "quarantine_uri": "/q",
    "deduplicate_by": ["id", "day"],
    "deduplicate_order_by": ["at DESC"],
}
SAMPLED: dict[str, Any] = {**SHARED, "dry_run": True, "samples_to": "/q"}
SOURCE = query(
    "SELECT * FROM late",
    late=files(["/in/a", "/in/b"], format="csv", options={"sep": ";"}, schema="id STRING"),
    early=table("/early", 3),
)
HANDLE = {
    "table_uri": "/t",
    "id": "0" * 32,
    "digest": "0" * 64,
    "operation": "delete",
    "app_id": "airflow_txlog/a/b",
    "app_version": 1,
    "staged_ms": 1_700_000_000_000,
    "base_version": 3,
}
# Each operator with every argument that is templated: a new one fails the test of that below.
TASKS: dict[str, Callable[[], Any]] = {
    "write": lambda: DeltaWriteOperator(
        task_id="t", **LOADING, source=SOURCE, mode="overwrite", replace_where="id = '1'"
    ),
    "write by values": lambda: DeltaWriteOperator(
        task_id="t", **LOADING, source=SOURCE, mode="overwrite", replace_using=["day", "shop"]
    ),
    "upkeep": lambda: DeltaUpkeepOperator(task_id="t", tables=["/lake/a", "/lake/b"], spark_conf=SHARED["spark_conf"]),
    "delete": lambda: DeltaDeleteOperator(task_id="t", **CHANGING, predicate="id = '1'"),
    "delete by keys": lambda: DeltaDeleteOperator(task_id="t", **CHANGING, keys=["a", "b"], key_column="id"),
    "delete by a source": lambda: DeltaDeleteOperator(
        task_id="t", **CHANGING, keys=SOURCE, key_column="id", source_column="who"
    ),
    "update": lambda: DeltaUpdateOperator(task_id="t", **CHECKED, set={"a": "'x'", "b": "1"}, predicate="id = '1'"),
    "merge": lambda: DeltaMergeOperator(
        task_id="t",
        **LOADING,
        source=SOURCE,
        on="t.id = s.id",
        clauses=[
            when_matched_update({"a": "s.a"}, condition="s.a > 1"),
            when_matched_delete(condition="s.a < 1"),
            when_not_matched_insert({"a": "s.a"}),
            when_not_matched_by_source_update({"a": "0"}, condition="t.a = 2"),
        ],
    ),
    "apply_changes": lambda: DeltaApplyChangesOperator(
        task_id="t",
        **LOADING,
        source=SOURCE,
        keys=["id"],
        sequence_by="a",
        apply_as_deletes="x = 'd'",
        except_column_list=["b"],
        ignore_null_updates_column_list=["c"],
    ),
    "apply some columns of changes": lambda: DeltaApplyChangesOperator(
        task_id="t",
        **LOADING,
        source=SOURCE,
        keys=["id"],
        sequence_by="a",
        column_list=["b"],
        ignore_null_updates_except_column_list=["c"],
    ),
    "keep the history of changes": lambda: DeltaApplyChangesOperator(
        task_id="t",
        **LOADING,
        source=SOURCE,
        keys=["id"],
        sequence_by="a",
        stored_as_scd_type=2,
        track_history_column_list=["b"],
        start_column="c",
        end_column="d",
        current_column="e",
    ),
    "apply_snapshot": lambda: DeltaApplySnapshotOperator(
        task_id="t",
        **LOADING,
        source=SOURCE,
        keys=["id"],
        max_deleted_fraction=0.1,
        stored_as_scd_type=2,
        track_history_column_list=["a"],
        snapshot_at="2024-01-01T00:00:00Z",
    ),
    "upsert": lambda: DeltaUpsertOperator(task_id="t", **LOADING, source=SOURCE, keys=["id"], columns=["a", "b"]),
    "incremental": lambda: DeltaIncrementalOperator(
        task_id="t",
        **LOADING,
        source={"table": "/lake/in"},
        consumer="c",
        mode="upsert",
        keys=["id"],
        columns=["a", "b"],
        starting="2026-01-01",
    ),
    "increment of events": lambda: DeltaIncrementalOperator(
        task_id="t",
        **LOADING,
        source={"table": "/lake/in"},
        consumer="c",
        mode="apply_changes",
        keys=["id"],
        sequence_by="at",
        apply_as_deletes="op = 'd'",
        column_list=["a"],
        ignore_null_updates_column_list=["a"],
    ),
    "increment of all but some columns": lambda: DeltaIncrementalOperator(
        task_id="t",
        **LOADING,
        source={"table": "/lake/in"},
        consumer="c",
        mode="apply_changes",
        keys=["id"],
        sequence_by="at",
        except_column_list=["a"],
        ignore_null_updates_except_column_list=["b"],
    ),
    "increment by a merge": lambda: DeltaIncrementalOperator(
        task_id="t",
        **LOADING,
        source={"table": "/lake/in"},
        consumer="c",
        mode="merge",
        on="t.id = s.id",
        clauses=[when_matched_update({"a": "s.a"})],
    ),
    "samples of a write": lambda: DeltaWriteOperator(task_id="t", **SAMPLED, source=SOURCE),
    "samples of a delete": lambda: DeltaDeleteOperator(task_id="t", **SAMPLED, predicate="a", sensitive=False),
    "samples of an update": lambda: DeltaUpdateOperator(task_id="t", **SAMPLED, set={"a": "1"}),
    "samples of a merge": lambda: DeltaMergeOperator(
        task_id="t", **SAMPLED, source=SOURCE, on="t.id = s.id", clauses=[when_matched_delete()]
    ),
    "samples of an upsert": lambda: DeltaUpsertOperator(task_id="t", **SAMPLED, source=SOURCE, keys=["id"]),
    "samples of changes": lambda: DeltaApplyChangesOperator(
        task_id="t", **SAMPLED, source=SOURCE, keys=["id"], sequence_by="a"
    ),
    "samples of a snapshot": lambda: DeltaApplySnapshotOperator(
        task_id="t", **SAMPLED, source=SOURCE, keys=["id"], max_deleted_fraction=0.1
    ),
    "samples of an increment": lambda: DeltaIncrementalOperator(
        task_id="t", **SAMPLED, source={"table": "/lake/in"}, consumer="c"
    ),
    "truncate": lambda: DeltaTruncateOperator(task_id="t", **ONCE),
    "publish": lambda: DeltaPublishOperator(task_id="t", staged=[HANDLE], spark_conf=SHARED["spark_conf"]),
    "audit": lambda: DeltaAuditOperator(
        task_id="t",
        staged=[HANDLE],
        spark_conf=SHARED["spark_conf"],
        checks={"a": {"check_statement": "x = :u"}},
        no_rows={"b": "SELECT 1 FROM staged"},
        parameters={"u": "a"},
    ),
    "discard": lambda: DeltaDiscardOperator(task_id="t", staged=[HANDLE], spark_conf=SHARED["spark_conf"]),
    "alter": lambda: DeltaAlterTableOperator(
        task_id="t",
        **ONCE,
        drop_constraints=["a"],
        unset_properties=["b"],
        set_properties={"c": "x"},
        add_features=["appendOnly"],
        drop_columns=["d"],
        rename_columns={"e": "f"},
        add_columns={"g": {"type": "INT", "comment": "text", "default": "1"}, "h": "INT"},
        change_types={"i": "BIGINT"},
        set_comments={"j": "text"},
        drop_not_null=["k"],
        set_not_null=["l"],
        add_constraints={"m": "n > 1"},
        sync_identity=["p"],
        cluster_by=["o"],
        drop_features=["rowTracking"],
    ),
    "restore": lambda: DeltaRestoreOperator(task_id="t", **ONCE, version="3"),
    "rollback": lambda: DeltaRollbackOperator(
        task_id="t", run_id="r", of_dag_id="d", tables=["/lake/a", "/lake/b"], spark_conf=SHARED["spark_conf"]
    ),
    "erase": lambda: DeltaEraseOperator(
        task_id="t",
        tables={"/lake/a": "email"},
        subjects=files("/in/subjects", format="csv", schema="email STRING"),
        source_column="email",
        request_id="r-17",
        report_uri="/reports",
        requested_at="2024-01-31",
        deadline="2024-02-28",
        declared={"backups": "gone"},
        legal_hold={"/lake/b": "a case"},
        readers_in="/lake",
        spark_conf=SHARED["spark_conf"],
    ),
    "verify an erasure": lambda: DeltaErasureVerifyOperator(
        task_id="t",
        tables={"/lake/a": "email"},
        subjects=files("/in/subjects", format="csv", schema="email STRING"),
        source_column="email",
        request_id="r-17",
        report_uri="/reports",
        requested_at="2024-01-31",
        declared={"backups": "gone"},
        legal_hold={"/lake/b": "a case"},
        readers_in="/lake",
        spark_conf=SHARED["spark_conf"],
    ),
    "erase for several requests": lambda: DeltaEraseOperator(
        task_id="t",
        tables={"/lake/a": "email"},
        requests={"r-17": ["ann"], "r-18": files("/in/subjects", format="csv", schema="email STRING")},
        report_uri="/reports",
        spark_conf=SHARED["spark_conf"],
    ),
    "verify several requests": lambda: DeltaErasureVerifyOperator(
        task_id="t",
        tables={"/lake/a": "email"},
        requests={"r-17": ["ann"], "r-18": files("/in/subjects", format="csv", schema="email STRING")},
        report_uri="/reports",
        spark_conf=SHARED["spark_conf"],
    ),
    "pin": lambda: PinVersionsOperator(task_id="t", tables=["/lake/a", "/lake/b"]),
    "read at the version of the run": lambda: DeltaUpsertOperator(
        task_id="t", **LOADING, source=table("/s", as_of="run"), keys=["id"], columns=["a", "b"]
    ),
    "restore to a time": lambda: DeltaRestoreOperator(task_id="t", **ONCE, timestamp="2024-01-31"),
    "convert": lambda: DeltaConvertOperator(task_id="t", **ONCE, partition_schema="day DATE"),
    "clone": lambda: DeltaCloneOperator(task_id="t", **ONCE, source=table("/s", version=3)),
    "clone of a time": lambda: DeltaCloneOperator(task_id="t", **ONCE, source=table("/s"), timestamp="2024-01-31"),
    "optimize": lambda: DeltaOptimizeOperator(
        task_id="t",
        **SHARED,
        zorder_by=["a", "b"],
        partition_predicate="day = :day",
        parameters={"day": "2024-01-31"},
    ),
    "checkpoint": lambda: CheckpointOperator(task_id="t", **SHARED),
    "vacuum": lambda: VacuumOperator(task_id="t", **SHARED, inventory="/in/files.csv"),
    "sensor": lambda: TableVersionSensor(
        task_id="t",
        table_uri="/t",
        version="7",
        operation=["MERGE", "WRITE"],
        committed_by_dag="load",
        committed_by_task="load",
        partition={"day": "2024-01-31"},
    ),
    "sensor of later ones": lambda: TableVersionSensor(task_id="t", table_uri="/t", newer_than="7"),
    "sensor since": lambda: TableVersionSensor(task_id="t", table_uri="/t", since="2024-01-31"),
}

# Python reads each of these as something else than the text.
TEXTS = (
    *("42", "-7", "0", "1_000", "0x1F", "1e3", "1.50", ".5", "1j", "True", "None", "...", "", "'closed'", '"closed"'),
    *("b'x'", "'a' 'b'", "['a', 'b']", "(1)", "1,2", "{'a': 1}", "{}", "[]", "42 ", "\t7", "'it' '''s'"),
)
# How a template gives a text.
SHAPES: dict[str, Callable[[str], str]] = {
    "the text itself": lambda text: text,
    "an expression": lambda text: "{{ v }}",
    "two expressions": lambda text: "{{ v[:1] }}{{ v[1:] }}",
    "a literal expression": lambda text: "{{ " + repr(text) + " }}",
    "a condition": lambda text: "{% if v is defined %}{{ v }}{% endif %}",
    "another task's output": lambda text: "{{ ti.xcom_pull(task_ids='other') }}",
}
OBJECTS: tuple[Any, ...] = (
    *(7, True, 1.5, decimal.Decimal("1.50"), dt.date(2024, 1, 31), dt.datetime(2024, 1, 31, tzinfo=dt.UTC)),
    *(["a", "42"], {"a": "42"}, b"x"),
)


class Giver:
    """The task instance of a template, whose other task has returned a text."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def xcom_pull(self, task_ids: str) -> Any:
        return self.value


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where texts stand in an argument."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from places(item, (*path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from places(item, (*path, index))
    elif isinstance(value, str):
        yield path


def with_text(value: Any, path: tuple[Any, ...], text: Any) -> Any:
    """The argument with another text at one place."""
    if not path:
        return text
    if isinstance(value, Mapping):
        return {key: with_text(item, path[1:], text) if key == path[0] else item for key, item in value.items()}
    return [with_text(item, path[1:], text) if index == path[0] else item for index, item in enumerate(value)]


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def native_task(kind: str, where: str) -> Any:
    """The task in a DAG: `where` says whether the DAG, the operator or both ask for native objects."""
    with DAG("native", schedule=None, render_template_as_native_obj=where != "the operator"):
        task = TASKS[kind]()
    task.render_template_as_native_obj = None if where == "the DAG" else True
    return task


def rendered(task: Any, value: Any) -> None:
    # As the task's process does: with the DAG's environment, whatever the operator says.
    task.render_template_fields({"v": value, "ti": Giver(value)}, task.dag.get_template_env())


def test_the_cases_have_every_templated_argument_of_every_operator() -> None:
    seen: dict[type, set[str]] = {}
    for make in TASKS.values():
        task = make()
        given = {name for name in task.template_fields if getattr(task, name) is not None}
        # The other form of `table_uri`, which tests/airflow/test_tables_by_name.py renders.
        given |= {"table"} & set(task.template_fields)
        seen.setdefault(type(task), set()).update(given)
    assert {kind: set(kind.template_fields) for kind in seen} == seen  # type: ignore[attr-defined]
    import airflow_txlog.operators as operators

    classes = {thing for name in operators.__all__ if isinstance(thing := getattr(operators, name), type)}
    assert classes | {TableVersionSensor} == seen.keys()


@pytest.mark.seeded
@pytest.mark.parametrize("where", ["the DAG", "the operator"])
def test_a_text_stays_the_text_that_its_author_wrote(where: str) -> None:
    cases = 0
    for number, kind in enumerate(TASKS):
        for text in TEXTS if LONG else TEXTS[number % 12 :: 12]:
            task = native_task(kind, where)
            wholes = {field: getattr(task, field) for field in task.template_fields}
            expected = {}
            for field, whole in wholes.items():
                for path in places(whole):
                    # Every text in every place, each time by another way to give it.
                    template = list(SHAPES.values())[cases % len(SHAPES)](text)
                    if path or template:  # Airflow renders no argument that is empty
                        setattr(task, field, with_text(getattr(task, field), path, template))
                        expected[field, path] = template
                        cases += 1
            rendered(task, text)
            for (field, path), template in expected.items():
                found = at(revealed(getattr(task, field)), path)
                assert (type(found), found) == (str, text), (kind, field, path, template)
    print(f"{cases} cases of places and texts, with native objects asked for by {where}")
    assert cases > (3000 if LONG else 500)


def test_a_value_that_is_bound_is_the_text_by_every_way_to_give_it() -> None:
    for shape, text in itertools.product(SHAPES.values(), TEXTS):
        task = native_task("delete", "the DAG")
        task.parameters = {"u": shape(text), "listed": ["a", shape(text)]}
        rendered(task, text)
        assert task.job_arguments()["parameters"] == {"u": text, "listed": ["a", text]}, shape(text)


@pytest.mark.seeded
def test_an_object_that_is_a_whole_template_stays_itself_or_is_refused_by_the_name_of_its_argument() -> None:
    cases, refused = 0, 0
    seen = []
    for kind in TASKS:
        for field in TASKS[kind]().template_fields:
            whole = getattr(TASKS[kind](), field)
            for path in places(whole):
                if (field, path, whole) in seen:
                    continue  # the same argument of a shared base
                seen.append((field, path, whole))
                for value in OBJECTS if LONG else (OBJECTS[len(seen) % len(OBJECTS)],):
                    task = native_task(kind, "the DAG")
                    setattr(task, field, with_text(whole, path, "{{ v }}"))
                    rendered(task, value)
                    found = at(revealed(getattr(task, field)), path)
                    assert (type(found), found) == (type(value), value), (kind, field, path)
                    refusal = refusal_of(task)
                    assert refusal is None or field in refusal, (kind, path, value, refusal)
                    refused += refusal is not None
                    cases += 1
    print(f"{cases} cases of places and objects, of which {refused} are refused")
    assert cases > (400 if LONG else 45)


def refusal_of(task: Any) -> str | None:
    """How the task refuses its arguments; None where it accepts them. Any other error fails the test."""
    try:
        uri = task.hook.table_uri(task.table_uri)
        if isinstance(task, TableVersionSensor):
            task.condition()
        else:
            task._spec(uri)
        if hasattr(task, "idempotency_key"):
            task.application({}, uri)
    except (InvalidJobSpec, InvalidInput) as error:
        return f"{error.facts.get('argument')} {error}"
    return None


def test_an_expression_of_a_number_binds_the_number_and_a_text_of_digits_the_text() -> None:
    task = native_task("delete", "the DAG")
    task.parameters = {"number": "{{ v }}", "text": "{{ v | string }}", "written": "7", "sum": "{{ v + 1 }}"}
    rendered(task, 7)
    assert task.job_arguments()["parameters"] == {"number": 7, "text": "7", "written": "7", "sum": 8}


def test_json_that_a_filter_makes_is_a_plain_text() -> None:
    task = native_task("delete", "the DAG")
    task.parameters = {"json": "{{ v | tojson }}"}
    rendered(task, ["a"])
    value = task.job_arguments()["parameters"]["json"]
    assert (type(value), value) == (str, '["a"]')


def test_a_name_that_is_not_defined_fails_the_sensor_by_that_name() -> None:
    task = native_task("sensor", "the DAG")
    task.version = "{{ not_there }}"
    with pytest.raises(jinja2.UndefinedError, match="not_there"):
        rendered(task, None)


def test_the_moment_of_a_run_is_a_time_to_restore_to() -> None:
    task = native_task("restore to a time", "the DAG")
    task.timestamp = "{{ v }}"
    rendered(task, dt.datetime(2024, 1, 31, tzinfo=dt.UTC))
    assert task.job_arguments()["timestamp"] == "2024-01-31T00:00:00+00:00"


def test_a_file_that_a_template_includes_keeps_its_text(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("'closed'")
    with DAG("native", schedule=None, render_template_as_native_obj=True, template_searchpath=[str(tmp_path)]):
        task = DeltaUpdateOperator(task_id="u", table_uri="/t", set={"a": "{% include 'one.txt' %}"})
    rendered(task, None)
    assert task.set == {"a": "'closed'"}


@pytest.mark.parametrize("kind", [float, decimal.Decimal])
def test_half_a_version_is_no_version(kind: type) -> None:
    with pytest.raises(InvalidInput, match="version must be a version number"):
        TableVersionSensor(task_id="s", table_uri="/t", version=kind("7.5"))


# --- in a real run --------------------------------------------------------------------------------------------------


@pytest.mark.long("a DAG that runs, as others do; the rendering is shown above")
def test_a_real_native_dag_deletes_the_rows_of_the_text_and_assigns_the_sql_that_was_written(
    dag_of: Callable[[str, str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema([("user_id", pa.string()), ("status", pa.string()), ("closed", pa.string())])
    rows = [{"user_id": text, "status": "new", "closed": "other"} for text in ("42", "042", "7")]
    tables = ("template", "mapped", "keys", "update")
    for name in tables:
        append(Table.create(str(tmp_path / name), schema), rows)
    monkeypatch.setenv("TXLOG_TEST_LAKE", str(tmp_path))
    run = dag_of("native_objects", "native_objects").test()
    assert {ti.state for ti in run.get_task_instances()} == {"success"}
    left = {name: Table.open(str(tmp_path / name)).to_arrow().to_pylist() for name in tables}
    users = {name: sorted(row["user_id"] for row in left[name]) for name in tables}
    assert users == {
        "template": ["042", "7"],
        "keys": ["042", "7"],
        "mapped": ["042"],
        "update": ["042", "42", "7"],
    }
    assert {row["user_id"]: row["status"] for row in left["update"]} == {"42": "new", "042": "new", "7": "closed"}
