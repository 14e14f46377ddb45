"""The operators as a DAG author meets them: templated fields, refused arguments and their messages."""

from __future__ import annotations

import datetime as dt
import inspect
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from airflow.providers.common.compat.sdk import DAG, BaseOperator

from airflow_txlog import operators
from airflow_txlog.contract.job import ApplicationTransaction, Details, JobResult, JobSpec
from airflow_txlog.contract.wording import summary_lines, xcom_of
from airflow_txlog.errors import InvalidJobSpec, JobError
from airflow_txlog.operators import (
    CheckpointOperator,
    DeltaAlterTableOperator,
    DeltaDeleteOperator,
    DeltaIncrementalOperator,
    DeltaMergeOperator,
    DeltaOptimizeOperator,
    DeltaRestoreOperator,
    DeltaRollbackOperator,
    DeltaTruncateOperator,
    DeltaUpdateOperator,
    DeltaUpsertOperator,
    DeltaWriteOperator,
    VacuumOperator,
    files,
    query,
    table,
    when_matched_delete,
    when_matched_update,
    when_not_matched_by_source_delete,
    when_not_matched_by_source_update,
    when_not_matched_insert,
)
from airflow_txlog.operators.base import TxlogOperator
from airflow_txlog.operators.erasure.reporting import ErasureOperator
from airflow_txlog.operators.publish import StagedChangesOperator
from airflow_txlog.policies.retry import HAS_RETRY_POLICY, TxlogRetryPolicy
from airflow_txlog.sensors.table_version import TableVersionSensor
from tests.helpers.specs import job_spec

pytestmark = pytest.mark.airflow

CONTEXT = {"ds": "2013-01-31", "params": {"user": "42"}, "run_id": "manual__1"}


def spec_of(operator: TxlogOperator) -> JobSpec:
    """Return the spec of an operator's arguments as `job_spec` makes it, without the parts of a running task."""
    return job_spec(operation=operator.operation.name, table_uri=operator.table_uri, arguments=operator.job_arguments())


def rendered(operator: Any) -> JobSpec:
    operator.render_template_fields(dict(CONTEXT))
    return spec_of(operator)


def test_a_write_is_templated_in_its_table_source_scope_and_values() -> None:
    spec = rendered(
        DeltaWriteOperator(
            task_id="load",
            table_uri="/lake/{{ params.user }}",
            source=query("SELECT * FROM raw WHERE day = :day", raw=files(["/in/{{ ds }}"], format="csv")),
            mode="overwrite",
            partition_by=["day"],
            partition_predicate="day = :day",
            parameters={"day": "{{ ds }}", "at": dt.date(2013, 1, 1)},
            idempotency_key="{{ run_id }}/load",
        )
    )
    assert spec.table_uri == "/lake/42"
    assert spec.operation.arguments() == {
        "source": {
            "sql": "SELECT * FROM raw WHERE day = :day",
            "views": {"raw": {"format": "csv", "path": ["/in/2013-01-31"], "options": {}, "schema": None}},
        },
        "mode": "overwrite",
        "replace_where": None,
        "replace_using": None,
        "on_conflict": "replan",
        "partition_by": ["day"],
        "cluster_by": None,
        "create": True,
        "allow_non_empty": False,
        "properties": {},
        "schema_evolution": False,
        "partition_predicate": "day = :day",
        "parameters": {"day": "2013-01-31", "at": {"$date": "2013-01-01"}},
        "expect": {},
        "expect_or_fail": {},
        "expect_or_drop": {},
        "expect_or_quarantine": {},
        "quarantine_uri": None,
        "deduplicate_by": None,
        "deduplicate_order_by": None,
        "unique": None,
        "max_deleted_rows": None,
        "max_deleted_fraction": None,
        "max_updated_rows": None,
        "max_updated_fraction": None,
        "min_inserted_rows": None,
        "max_inserted_rows": None,
        "max_files_rewritten": None,
        "dry_run": False,
        "samples_to": None,
    }


def test_a_merge_is_templated_in_its_condition_and_clauses() -> None:
    spec = rendered(
        DeltaMergeOperator(
            task_id="merge",
            table_uri="/t",
            source=table("/s", version=3),
            on="t.id = s.id AND t.day = '{{ ds }}'",
            clauses=[
                when_matched_delete(condition="s.gone"),
                when_matched_update({"score": "s.score + {{ params.user }}"}),
                when_not_matched_insert(),
            ],
        )
    )
    assert spec.operation.arguments()["source"] == {
        "table": "/s",
        "version": 3,
        "staged": None,
        "range": None,
        "as_of": None,
    }
    assert spec.operation.arguments()["on"] == "t.id = s.id AND t.day = '2013-01-31'"
    assert spec.operation.arguments()["clauses"] == [
        {"when": "matched", "then": "delete", "condition": "s.gone"},
        {"when": "matched", "then": "update", "condition": None, "set": {"score": "s.score + 42"}},
        {"when": "not_matched", "then": "insert", "condition": None, "values": "*"},
    ]


def test_an_update_is_templated_in_its_values_and_predicate() -> None:
    spec = rendered(
        DeltaUpdateOperator(
            task_id="mask",
            table_uri="/t",
            set={"email": "NULL", "note": "'{{ ds }}'"},
            predicate="user_id = :user",
            parameters={"user": "{{ params.user }}"},
        )
    )
    assert (spec.operation.name, spec.operation.arguments()["target_alias"]) == ("update", "t")
    assert spec.operation.arguments()["set"] == {"email": "NULL", "note": "'2013-01-31'"}
    assert spec.operation.arguments()["predicate"] == "user_id = :user"


def test_clauses_for_what_no_source_row_matches() -> None:
    spec = rendered(
        DeltaMergeOperator(
            task_id="merge",
            table_uri="/t",
            source=table("/s"),
            on="t.id = s.id",
            clauses=[
                when_not_matched_by_source_update({"gone": "TRUE"}, condition="t.day = '{{ ds }}'"),
                when_not_matched_by_source_delete(),
            ],
        )
    )
    assert [clause["when"] for clause in spec.operation.arguments()["clauses"]] == ["not_matched_by_source"] * 2
    assert spec.operation.arguments()["clauses"][0]["condition"] == "t.day = '2013-01-31'"


def test_b6_a_value_is_bound_and_never_pasted() -> None:
    spec = rendered(
        DeltaDeleteOperator(
            task_id="forget",
            table_uri="/t",
            predicate="user_id = :user",
            parameters={"user": "{{ params.user }}"},
        )
    )
    assert spec.operation.arguments()["predicate"] == "user_id = :user"
    assert spec.operation.bound_parameters == {"user": "42"}


def test_keys_of_a_delete_are_a_list_or_a_source_and_templated() -> None:
    listed = DeltaDeleteOperator(
        task_id="forget",
        table_uri="/t",
        keys=["{{ params.user }}", 7, dt.date(2013, 1, 1)],
        key_column="user_id",
        require_match=True,
    )
    arguments = rendered(listed).operation.arguments()
    assert arguments["keys"] == {"column": "user_id", "values": ["42", 7, {"$date": "2013-01-01"}]}
    assert (arguments["predicate"], arguments["require_match"]) == (None, True)
    source = files("/in/{{ ds }}.csv", format="csv", schema="id STRING")
    read = DeltaDeleteOperator(task_id="f", table_uri="/t", keys=source, key_column="user_id", source_column="id")
    assert rendered(read).operation.arguments()["keys"] == {
        "column": "user_id",
        "source": {**source, "path": "/in/2013-01-31.csv"},
        "source_column": "id",
    }


@pytest.mark.parametrize(
    "arguments",
    [
        {"key_column": "user_id"},  # keys that rendered to None must not delete every row
        {"predicate": "TRUE", "keys": ["42"], "key_column": "user_id"},
        {"keys": "[42, 43]", "key_column": "user_id"},  # a list that a template made a text of
    ],
)
def test_a_delete_is_by_predicate_or_by_keys_and_never_by_accident(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidJobSpec):
        rendered(DeltaDeleteOperator(task_id="forget", table_uri="/t", **arguments))


def test_a_replacement_is_templated() -> None:
    operator = DeltaWriteOperator(
        task_id="load",
        table_uri="/t",
        source=files("/in"),
        mode="overwrite",
        replace_where="day = '{{ ds }}'",
        on_conflict="fail",
    )
    arguments = rendered(operator).operation.arguments()
    assert (arguments["replace_where"], arguments["on_conflict"]) == ("day = '2013-01-31'", "fail")


def test_schema_evolution_is_asked_for_by_name() -> None:
    write = DeltaWriteOperator(task_id="load", table_uri="/t", source=files("/in"), schema_evolution=True)
    merge = DeltaMergeOperator(
        task_id="merge",
        table_uri="/t",
        source=files("/in"),
        on="t.id = s.id",
        clauses=[when_not_matched_insert()],
        schema_evolution=True,
    )
    for operator in (write, merge):
        assert rendered(operator).operation.arguments()["schema_evolution"] is True


def test_an_upsert_takes_one_name_for_a_list_and_is_templated() -> None:
    operator = DeltaUpsertOperator(
        task_id="upsert",
        table_uri="/t",
        source=files("/in/{{ ds }}"),
        keys="user_{{ params.user }}",
        columns=["email"],
        partition_predicate="day = :day",
        parameters={"day": "{{ ds }}"},
    )
    arguments = rendered(operator).operation.arguments()
    assert arguments["source"]["path"] == "/in/2013-01-31"
    assert (arguments["keys"], arguments["columns"], arguments["schema_evolution"]) == (["user_42"], ["email"], False)
    assert (arguments["partition_predicate"], arguments["parameters"]) == ("day = :day", {"day": "2013-01-31"})


def test_a_restore_takes_a_number_from_a_template() -> None:
    operator = DeltaRestoreOperator(task_id="undo", table_uri="/t", version="{{ params.user }}", idempotency_key="k")
    assert rendered(operator).operation.arguments() == {"version": 42, "timestamp": None, "ignore_missing": False}
    moment = DeltaRestoreOperator(task_id="undo", table_uri="/t", timestamp="{{ ds }}")
    assert rendered(moment).operation.arguments()["timestamp"] == "2013-01-31"


def test_a_truncate_says_its_table_and_nothing_else() -> None:
    operator = DeltaTruncateOperator(task_id="empty", table_uri="/lake/{{ ds }}", idempotency_key="{{ run_id }}")
    assert (rendered(operator).operation.arguments(), operator.table_uri) == ({}, "/lake/2013-01-31")
    assert operator.idempotency_key == "manual__1"


def test_an_alteration_takes_one_name_as_a_list_and_values_as_texts() -> None:
    operator = DeltaAlterTableOperator(
        task_id="alter",
        table_uri="/t",
        set_properties={"delta.appendOnly": True, "by": "{{ ds }}"},
        drop_columns="note",
        set_comments={"id": None, "day": "since {{ ds }}"},
        add_columns={"price": {"type": "INT"}, "{{ params.user }}": "DATE"},
        cluster_by=[],
    )
    assert rendered(operator).operation.given_arguments() == {
        "set_properties": {"delta.appendOnly": "true", "by": "2013-01-31"},
        "drop_columns": ["note"],
        "set_comments": {"id": None, "day": "since 2013-01-31"},
        "add_columns": {"price": {"type": "INT", "": "AddedColumn"}, "{{ params.user }}": "DATE"},
        "cluster_by": [],
    }


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ({}, "arguments"),
        ({"add_constraints": {"a": "id >"}}, "arguments.add_constraints"),
        ({"add_constraints": {"a": "id > :id"}}, "arguments.add_constraints.a"),
        ({"drop_columns": "a, b"}, "drop_columns"),
        ({"add_columns": {"a": {"typ": "INT"}}}, "arguments.add_columns.a.typ"),
    ],
)
def test_a_wrong_alteration_fails_as_the_dag_is_parsed(given: dict[str, Any], argument: str) -> None:
    with pytest.raises(InvalidJobSpec) as refused:
        DeltaAlterTableOperator(task_id="alter", table_uri="/t", **given)
    assert refused.value.facts["argument"] == argument


def test_an_idempotency_key_is_templated() -> None:
    operator = DeltaDeleteOperator(task_id="forget", table_uri="/t", predicate="a", idempotency_key="{{ run_id }}")
    rendered(operator)
    assert operator.idempotency_key == "manual__1"


def test_a_vacuum_keeps_the_dry_run_of_every_operator() -> None:
    operator = VacuumOperator(task_id="vacuum", table_uri="/t", retention_hours=0, dry_run=True)
    # Airflow 3.0 has no such method.
    assert callable(getattr(operator, "dry_run", print))
    assert rendered(operator).operation.arguments() == {
        "retention_hours": 0,
        "dry_run": True,
        "check_retention": True,
        "mode": "full",
        "inventory": None,
        "include_foreign": False,
        "parallelism": 8,
    }


def test_the_inventory_of_a_vacuum_is_templated() -> None:
    operator = VacuumOperator(
        task_id="vacuum", table_uri="/t", inventory="/reports/{{ run_id }}.parquet", parallelism=32
    )
    assert rendered(operator).operation.arguments()["inventory"] == "/reports/manual__1.parquet"
    lite = VacuumOperator(task_id="lite", table_uri="/t", mode="lite")
    assert rendered(lite).operation.arguments()["mode"] == "lite"


def test_an_optimize_is_templated_in_its_columns_and_scope() -> None:
    operator = DeltaOptimizeOperator(
        task_id="optimize",
        table_uri="/lake/{{ params.user }}",
        zorder_by=["user_{{ params.user }}", "at"],
        target_bytes=10**8,
        partition_predicate="day = :day",
        parameters={"day": "{{ ds }}"},
    )
    spec = rendered(operator)
    assert spec.table_uri == "/lake/42"
    assert spec.operation.arguments() == {
        "zorder_by": ["user_42", "at"],
        "purge": False,
        "full": False,
        "target_bytes": 10**8,
        "batch_bytes": 32 * 1024**3,
        "partition_predicate": "day = :day",
        "parameters": {"day": "2013-01-31"},
    }
    # It changes no row, so there is nothing to do exactly once (soundness B5).
    assert operator.application(CONTEXT, "/t") is None
    with pytest.raises(InvalidJobSpec):
        spec.replace(application=ApplicationTransaction(app_id="x", version=1))


@pytest.mark.parametrize(
    "operator",
    [
        lambda: DeltaOptimizeOperator(task_id="x", table_uri="/t", target_bytes=0),
        lambda: DeltaOptimizeOperator(task_id="x", table_uri="/t", zorder_by=[""]),
        lambda: DeltaDeleteOperator(task_id="x", table_uri="/t", predicate=""),
        lambda: DeltaWriteOperator(task_id="x", table_uri="/t", source={"path": "/in"}),
        lambda: DeltaWriteOperator(task_id="x", table_uri="/t", source=files("/in"), mode="replace"),
        lambda: DeltaRestoreOperator(task_id="x", table_uri="/t"),
        lambda: DeltaRestoreOperator(task_id="x", table_uri="/t", version="last"),
        lambda: DeltaMergeOperator(task_id="x", table_uri="/t", source=files("/in"), on="a", clauses=[]),
        lambda: DeltaUpsertOperator(task_id="x", table_uri="/t", source=files("/in"), keys=[]),
        lambda: DeltaUpsertOperator(task_id="x", table_uri="/t", source=files("/in"), keys=["id", "ID"]),
        lambda: DeltaDeleteOperator(task_id="x", table_uri="/t", predicate="a", parameters={"x": object()}),
        lambda: VacuumOperator(task_id="x", table_uri="/t", retention_hours=-1),
    ],
)
def test_wrong_arguments_are_refused_when_the_dag_is_parsed(operator: Any) -> None:
    with pytest.raises(InvalidJobSpec):
        operator()


def test_arguments_are_named_and_required_ones_are_required() -> None:
    with pytest.raises(TypeError):
        DeltaDeleteOperator("forget", table_uri="/t", predicate="a")  # type: ignore[misc]
    with pytest.raises(TypeError):
        DeltaDeleteOperator(task_id="forget", table_uri="/t")
    with pytest.raises(TypeError):
        DeltaDeleteOperator(task_id="forget", table_uri="/t", keys=["42"])


@pytest.mark.parametrize(
    ("kind", "given", "meant"),
    [
        (DeltaDeleteOperator, "predicat", "predicate"),
        (DeltaDeleteOperator, "where", "predicate"),
        (DeltaUpsertOperator, "schema_evolve", "schema_evolution"),
        (DeltaUpsertOperator, "merge_schema", "schema_evolution"),
        (DeltaUpsertOperator, "mergeSchema", "schema_evolution"),
        (DeltaUpsertOperator, "overwriteSchema", "schema_evolution"),
        (DeltaUpsertOperator, "aws_conn_id", "storage_conn_id"),
        (DeltaUpsertOperator, "retrys", "retries"),
        (VacuumOperator, "retain_hours", "retention_hours"),
        (TableVersionSensor, "commited_by_dag", "committed_by_dag"),
        (TableVersionSensor, "path", "table_uri"),
        (DeltaIncrementalOperator, "start_version", "starting"),
        (DeltaIncrementalOperator, "startingVersion", "starting"),
        # Airflow would only name `clauses`, which is missing.
        (DeltaMergeOperator, "when_matched_update", "clauses"),
    ],
)
def test_an_unknown_argument_is_refused_with_the_name_that_is_meant(kind: Any, given: str, meant: str) -> None:
    needed = {"source": "SELECT 1 AS id", "keys": ["id"]} if kind is DeltaUpsertOperator else {}
    with pytest.raises(TypeError) as caught:
        kind(task_id="x", table_uri="/t", **needed, **{given: "a secret"})
    text = str(caught.value)
    assert text.startswith(f"{kind.__name__} (task_id: x) has no parameter {given!r}. Did you mean {meant!r}?")
    assert "secret" not in text
    assert caught.value.__suppress_context__, "Airflow's message shows the values"


def test_an_argument_that_is_like_no_parameter_is_only_named() -> None:
    with pytest.raises(TypeError, match=r"no parameter 'xyzzy'\. It has no parameter 'qq'\. The page"):
        VacuumOperator(task_id="x", table_uri="/t", xyzzy=1, qq=2)


class Team(BaseOperator):
    """A mixin that takes an argument that its constructor does not name."""

    def __init__(self, **kwargs: Any) -> None:
        self.team = kwargs.pop("team", None)
        super().__init__(**kwargs)


class TeamsVacuum(VacuumOperator, Team):
    """An author's operator whose mixin comes after ours."""

    def __init__(self, *, tier: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tier = tier


def test_an_authors_subclasses_and_mixins_keep_their_arguments() -> None:
    with DAG("d", schedule=None, default_args={"tier": "night", "unknown_of_others": 1}):
        task = TeamsVacuum(task_id="x", table_uri="/t", team="data")
        mapped = TeamsVacuum.partial(task_id="y", tier="l").expand(table_uri=["/t", "/u"])
    assert (task.team, task.tier) == ("data", "night")
    assert mapped.partial_kwargs["tier"] == "l"
    with pytest.raises(TypeError, match=r"'tierr'\. Did you mean 'tier'\?"):
        TeamsVacuum(task_id="x", table_uri="/t", tierr="x")


EXPORTED = [getattr(operators, name) for name in operators.__all__ if name[0].isupper()]
OPERATORS: list[type[TxlogOperator]] = [each for each in EXPORTED if issubclass(each, TxlogOperator)]


OF_ERASURE = ("keys", "request_id", "report_uri", "records", "statements")
OF_HANDLE = ("id", "digest", "base_version", "app_id", "app_version")


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_takes_each_field_of_its_record_with_the_same_default(operator: type[TxlogOperator]) -> None:
    signatures = [inspect.signature(each) for each in operator.__mro__ if issubclass(each, TxlogOperator)]
    parameters = {name: each for signature in signatures for name, each in signature.parameters.items()}
    for field in msgspec.structs.fields(operator.operation):
        if issubclass(operator, StagedChangesOperator) and field.name in OF_HANDLE:
            continue  # of the handle
        if operator is DeltaIncrementalOperator and field.name == "schema_evolution":
            continue  # by on_schema_change
        if operator is DeltaRollbackOperator and field.name in ("since", "commit", "of_deployment"):
            continue  # of one of its jobs
        if issubclass(operator, ErasureOperator) and field.name in OF_ERASURE:
            continue  # by tables, subjects and source_column; of every report; of the erasure before; of declared
        given = parameters[field.name].default
        if not field.required:
            default = field.default if field.default_factory is msgspec.NODEFAULT else None
            assert given == default, field.name


@pytest.mark.skipif(not HAS_RETRY_POLICY, reason="this Airflow has no retry policies")
def test_every_operator_has_the_retry_policy_unless_its_author_chose_one() -> None:
    from airflow.sdk.definitions.retry_policy import ExceptionRetryPolicy

    from airflow_txlog.sensors.table_version import TableVersionSensor

    theirs = ExceptionRetryPolicy(rules=[])
    assert isinstance(CheckpointOperator(task_id="a", table_uri="/t").retry_policy, TxlogRetryPolicy)
    assert isinstance(TableVersionSensor(task_id="a", table_uri="/t", version=1).retry_policy, TxlogRetryPolicy)
    assert CheckpointOperator(task_id="a", table_uri="/t", retry_policy=theirs).retry_policy is theirs
    by_default = CheckpointOperator(task_id="a", table_uri="/t", default_args={"retry_policy": theirs})
    assert by_default.retry_policy is theirs


def test_arguments_of_every_level_come_from_default_args() -> None:
    default_args = {"runner": "in_process", "idempotency_key": "{{ run_id }}", "retries": 4, "mode": "overwrite"}
    operator = DeltaWriteOperator(task_id="a", table_uri="/t", source=files("/in"), default_args=default_args)
    assert (operator.runner, operator.idempotency_key, operator.retries) == ("in_process", "{{ run_id }}", 4)
    assert operator.mode == "overwrite"


def test_constructing_an_operator_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    CheckpointOperator(task_id="a", table_uri="s3://nowhere/t", txlog_conn_id="missing")
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_runner_is_refused_by_name() -> None:
    with pytest.raises(InvalidJobSpec, match="unheard of"):
        CheckpointOperator(task_id="a", table_uri="/t", runner="unheard of")


def test_a_result_is_told_in_lines_and_as_a_small_dict() -> None:
    result = JobResult(
        status="committed",
        operation="merge",
        table_uri="/lake/users",
        version=3,
        read_version=2,
        metrics={"numTargetRowsUpdated": 800, "numTargetRowsInserted": 12},
        files={"considered": 365, "pruned": 353, "rewritten": 12},
        steps=[{"name": "find", "seconds": 0.5}, {"name": "rewrite", "seconds": 1.25}],
        attempts=2,
        details=Details(files=["x" * 1000]),
    )
    assert summary_lines(result, 1.9) == [
        "merge /lake/users: version 2 -> version 3; 365 files considered, 353 pruned, 12 rewritten; 800 rows updated, "
        "12 rows inserted; planned 2 times because of other commits; 1.9 s",
        "steps: find 0.5 s, rewrite 1.2 s",
        "metrics: numTargetRowsUpdated 800, numTargetRowsInserted 12",
    ]
    xcom = xcom_of(result, 1.9)
    assert json.loads(json.dumps(xcom)) == xcom
    assert (xcom["version"], xcom["operation"], xcom["status"], xcom["seconds"]) == (3, "merge", "committed", 1.9)
    assert "details" not in xcom


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"status": "committed", "version": 0}, "new table -> version 0"),
        ({"status": "nothing_to_do", "read_version": 4}, "nothing to do at version 4"),
        ({"status": "already_done", "version": 4}, "done already at version 4"),
        ({"status": "already_done", "at_or_before": 9}, "done already by version 9"),
        (
            {"status": "committed", "version": 1, "read_version": 0, "files": {"added": 1, "deletion_vectors": 1}},
            "version 0 -> version 1; 1 file added, 1 deletion vector; 0.0 s",
        ),
        ({"status": "failed", "error": JobError("no room").to_dict()}, "delete failed: JobError: no room"),
    ],
)
def test_every_outcome_has_its_words(fields: dict[str, Any], expected: str) -> None:
    assert expected in summary_lines(JobResult(operation="delete", table_uri="/t", **fields), 0.0)[0]


def test_an_operator_can_be_mapped() -> None:
    from airflow.sdk import DAG

    with DAG("mapped", schedule=None):
        mapped = DeltaDeleteOperator.partial(
            task_id="forget", table_uri="/t", predicate="day = :day", retry_delay=timedelta(0)
        ).expand(parameters=[{"day": "2013-01-01"}, {"day": "2013-01-02"}])
    one = mapped.unmap({"parameters": {"day": "2013-01-02"}})
    assert not HAS_RETRY_POLICY or isinstance(one.retry_policy, TxlogRetryPolicy)
    assert spec_of(one).operation.bound_parameters == {"day": "2013-01-02"}
