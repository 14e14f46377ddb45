"""A template that renders to None fails its task; a task that finds nothing to do emits no asset event."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.operators.base import DataChangingOperator, TxlogOperator
from airflow_txlog.operators.delete import DeltaDeleteOperator
from airflow_txlog.operators.maintenance.optimize import DeltaOptimizeOperator
from airflow_txlog.operators.merge import DeltaMergeOperator, when_matched_update
from airflow_txlog.operators.sources import files
from airflow_txlog.operators.update import DeltaUpdateOperator
from airflow_txlog.operators.write import DeltaWriteOperator
from tests.helpers.rows import append

pytestmark = pytest.mark.airflow

NONE = "{{ none_here }}"
CONTEXT: dict[str, Any] = {"none_here": None, "ds": "2013-01-31", "text": "None"}


def rendered(operator: TxlogOperator, env: jinja2.Environment | None = None) -> dict[str, Any]:
    operator.render_template_fields(dict(CONTEXT), env)  # type: ignore[arg-type]
    return operator.job_arguments()


def delete(**given: Any) -> DataChangingOperator:
    return DeltaDeleteOperator(**{"task_id": "forget", "table_uri": "/t", "predicate": "e = :e", **given})


@pytest.mark.parametrize(
    ("operator", "place"),
    [
        (lambda: delete(parameters={"e": NONE}), "parameters.e"),
        (lambda: delete(parameters={"e": "user-" + NONE}), "parameters.e"),
        (lambda: delete(parameters={"e": [NONE, "a"]}), "parameters.e[0]"),
        (lambda: delete(parameters={"e": "{{ not_there }}"}), "parameters.e"),
        (lambda: delete(parameters={"e": "a"}, table_uri="/lake/" + NONE), "table_uri"),
        (lambda: delete(parameters={"e": "a"}, idempotency_key=NONE), "idempotency_key"),
        (lambda: delete(predicate="id = " + NONE), "predicate"),
        (lambda: delete(predicate=None, keys=["a", NONE], key_column="id"), "keys[1]"),
        (lambda: DeltaUpdateOperator(task_id="u", table_uri="/t", set={"a": "1"}, predicate=NONE), "predicate"),
        (lambda: DeltaWriteOperator(task_id="w", table_uri="/t", source=files("/in/" + NONE)), "source.path"),
        (
            lambda: DeltaOptimizeOperator(
                task_id="o", table_uri="/t", partition_predicate="day = :d", parameters={"d": NONE}
            ),
            "parameters.d",
        ),
    ],
)
@pytest.mark.parametrize("native", [False, True])
def test_a_template_that_renders_to_none_or_undefined_is_refused_by_its_place(
    operator: Callable[[], TxlogOperator], place: str, native: bool
) -> None:
    from jinja2.nativetypes import NativeEnvironment

    one = operator()
    one.render_template_as_native_obj = native
    with pytest.raises(InvalidJobSpec) as caught:
        rendered(one, NativeEnvironment() if native else None)
    assert str(caught.value).startswith(f"{place} has the template ")
    if place in ("table_uri", "source.path"):
        assert "which renders to None, and a place is needed." in str(caught.value)


def test_a_name_that_no_template_has_is_named_with_the_nearest_one() -> None:
    with pytest.raises(InvalidJobSpec) as caught:
        rendered(delete(parameters={"e": "a"}, table_uri="/lake/{{ dss }}"))
    assert str(caught.value) == (
        "table_uri has the template '/lake/{{ dss }}', which renders to None: 'dss' is not defined. "
        "Did you mean 'ds'? Nothing was read."
    )


def test_a_member_that_is_not_there_is_not_named_because_a_value_may_have_named_it() -> None:
    with pytest.raises(InvalidJobSpec) as caught:
        rendered(delete(parameters={"e": "a"}, table_uri="/lake/{{ {}[ds] }}"))
    assert CONTEXT["ds"] not in str(caught.value)


def test_only_of_a_parameter_null_is_said_to_be_allowed_by_its_name() -> None:
    for given, is_parameter in (({"parameters": {"e": NONE}}, True), ({"predicate": NONE}, False)):
        with pytest.raises(InvalidJobSpec) as caught:
            rendered(delete(**given))
        assert ('allow it by nullable_parameters=["e"]' in str(caught.value)) == is_parameter
        assert ("nullable_parameters" in str(caught.value)) == is_parameter


def test_a_null_that_another_task_or_the_author_gives_is_refused_too() -> None:
    for value in (None, ["a", None]):
        with pytest.raises(InvalidJobSpec, match="nullable_parameters"):
            delete(parameters={"e": value})


def test_a_parameter_that_may_be_null_is_null_and_not_its_text() -> None:
    allowed = delete(parameters={"e": NONE, "f": "{{ ds }}"}, nullable_parameters=["e"])
    assert rendered(allowed)["parameters"] == {"e": None, "f": "2013-01-31"}
    assert delete(parameters={"e": None}, nullable_parameters="e").job_arguments()["parameters"] == {"e": None}
    mixed = delete(parameters={"e": "user-" + NONE}, nullable_parameters=["e"])
    with pytest.raises(InvalidJobSpec):
        rendered(mixed)
    # The same template elsewhere is no parameter.
    elsewhere = delete(parameters={"e": NONE}, idempotency_key=NONE, nullable_parameters=["e"])
    with pytest.raises(InvalidJobSpec, match=r"^idempotency_key"):
        rendered(elsewhere)


def test_the_text_none_is_a_value_like_any_other() -> None:
    assert rendered(delete(parameters={"e": "{{ text }}"}))["parameters"] == {"e": "None"}
    assert delete(parameters={"e": "None"}).job_arguments()["parameters"] == {"e": "None"}


def test_an_insert_and_a_demand_that_every_row_matches_contradict_each_other() -> None:
    from airflow_txlog.operators.merge import when_not_matched_insert

    given: dict[str, Any] = {"task_id": "m", "table_uri": "/t", "source": files("/in"), "on": "t.id = s.id"}
    merge = DeltaMergeOperator(**given, clauses=[when_matched_update()], require_match=True)
    assert merge.job_arguments()["require_match"] is True
    with pytest.raises(InvalidJobSpec, match="require_match"):
        DeltaMergeOperator(**given, clauses=[when_not_matched_insert()], require_match=True)


# --- in real runs ---------------------------------------------------------------------------------------------------


@pytest.fixture
def run(dag_of: Callable[[str, str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Runs a DAG of `dags/nulls_and_events.py` on a table with one row."""
    table = Table.create(str(tmp_path / "t"), pa.schema([("email", pa.string())]))
    append(table, [{"email": "a"}])
    monkeypatch.setenv("TXLOG_TEST_TABLE", str(tmp_path / "t"))
    return lambda dag_id: dag_of("nulls_and_events", dag_id).test()


@pytest.mark.parametrize("dag_id", ["null_from_an_xcom", "null_from_another_task", "null_predicate_from_another_task"])
def test_a_task_that_is_given_null_fails_on_its_first_try_and_changes_nothing(
    run: Callable[[str], Any], dag_id: str
) -> None:
    dag_run = run(dag_id)
    (ti,) = [ti for ti in dag_run.get_task_instances() if ti.task_id == "forget"]
    assert (ti.state, ti.try_number) == ("failed", 1)
    assert Table.open(os.environ["TXLOG_TEST_TABLE"]).to_arrow().to_pylist() == [{"email": "a"}]


def test_a_path_among_others_that_another_task_gives_is_waited_for() -> None:
    from airflow.sdk import DAG, task

    with DAG("paths", schedule=None):

        @task
        def path() -> str:
            return "/in/a"

        write = DeltaWriteOperator(task_id="w", table_uri="/t", source=files([path(), Path("/in/b")]))
    assert write.upstream_task_ids == {"path"}


def test_a_task_that_finds_nothing_to_do_emits_no_asset_event(run: Callable[[str], Any]) -> None:
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session

    dag_run = run("events")
    assert dag_run.state == "success"
    with create_session() as session:
        events = session.query(AssetEvent).filter_by(source_run_id=dag_run.run_id, source_dag_id="events").all()
        assert [(event.source_task_id, event.extra["status"]) for event in events] == [("changes", "committed")]
