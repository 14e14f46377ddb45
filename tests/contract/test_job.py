"""JobSpec and JobResult: what is refused, and that nothing changes on the way through JSON."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import stat
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_txlog.contract.job import (
    DIGEST_TAG,
    ApplicationTransaction,
    JobResult,
    JobSpec,
    read_result,
    read_spec,
    write_document,
)
from airflow_txlog.contract.operations import Delete
from airflow_txlog.contract.parameters import decode_parameter, encode_parameter
from airflow_txlog.errors import ConcurrentAppend, InvalidJobSpec, UnsupportedStore
from tests.helpers.specs import job_spec

FILES = {"format": "parquet", "path": "/in/a"}
UPDATE = {"when": "matched", "then": "update", "set": "*"}
INSERT = {"when": "not_matched", "then": "insert", "values": {"id": "s.id"}, "condition": "s.id > 0"}

VALID: list[tuple[str, dict[str, Any]]] = [
    ("write", {"source": FILES}),
    ("write", {"source": {"sql": "SELECT 1 AS a", "views": {}}, "mode": "overwrite", "partition_by": ["a"]}),
    ("write", {"source": FILES, "cluster_by": ["a", "s.b"]}),
    ("optimize", {"full": True}),
    ("write", {"source": {"sql": "SELECT * FROM x", "views": {"x": {"table": "/t", "version": 3}}}}),
    ("delete", {"predicate": "id = :id", "parameters": {"id": 7}}),
    ("delete", {"predicate": None}),
    ("delete", {"predicate": None, "keys": {"column": "id", "values": [7, "7", {"$date": "2013-01-01"}]}}),
    ("delete", {"predicate": None, "keys": {"column": "id", "source": FILES}, "require_match": True}),
    ("merge", {"source": {"table": "/s"}, "on": "t.id = s.id", "clauses": [UPDATE, INSERT]}),
    ("merge", {"source": FILES, "on": "t.id = s.id", "clauses": [{"when": "matched", "then": "delete"}]}),
    ("write", {"source": FILES, "mode": "overwrite", "replace_where": "id > 3", "on_conflict": "fail"}),
    ("write", {"source": FILES, "mode": "overwrite", "replace_using": ["day", "shop"]}),
    ("write", {"source": FILES, "mode": "overwrite_partitions", "on_conflict": "fail"}),
    ("apply_changes", {"source": FILES, "keys": ["id"], "sequence_by": "at"}),
    ("apply_changes", {"source": FILES, "keys": ["id"], "sequence_by": "at", "column_list": ["id"]}),
    ("apply_changes", {"source": FILES, "keys": ["id"], "sequence_by": "at", "stored_as_scd_type": 2}),
    ("apply_changes", {"source": FILES, "keys": ["id"], "sequence_by": "at", "ignore_null_updates": True}),
    ("upsert", {"source": FILES, "keys": ["id"]}),
    ("upsert", {"source": FILES, "keys": ["id"], "deduplicate_by": ["id"], "deduplicate_order_by": ["at DESC"]}),
    ("upsert", {"source": FILES, "keys": ["id", "day"], "columns": ["v"], "schema_evolution": True}),
    ("apply_snapshot", {"source": FILES, "keys": ["id"], "max_deleted_fraction": 0.1}),
    ("apply_snapshot", {"source": FILES, "keys": ["id"], "max_deleted_fraction": 1, "hard_deletes": "ignore"}),
    (
        "apply_snapshot",
        {
            "source": FILES,
            "keys": ["id"],
            "max_deleted_fraction": 0.1,
            "stored_as_scd_type": 2,
            "hard_deletes": "invalidate",
            "snapshot_at": "2026-03-01T12:00:00Z",
            "current_column": "is_current",
        },
    ),
    ("truncate", {}),
    ("alter", {"set_properties": {"delta.appendOnly": "true"}, "unset_properties": ["a"]}),
    ("alter", {"add_columns": {"a": "INT", "b.c": {"type": "INT", "comment": "c", "default": "1"}}}),
    ("alter", {"set_comments": {"a": None, "b": "text"}, "change_types": {"a": "BIGINT"}, "drop_columns": ["c"]}),
    ("alter", {"add_constraints": {"a": "x > 0"}, "set_not_null": ["x"], "drop_not_null": ["y"]}),
    ("alter", {"cluster_by": [], "allow_reader_upgrade": True}),
    ("alter", {"sync_identity": ["a"]}),
    ("restore", {"version": 3, "ignore_missing": True}),
    ("restore", {"timestamp": "2026-03-01T12:00:00Z"}),
    ("rollback", {"run_id": "r", "of_dag_id": "d"}),
    ("rollback", {"run_id": "r", "of_dag_id": "d", "commit": 3}),
    ("upsert", {"source": {"table": "/in", "as_of": "run"}, "keys": ["id"]}),
    ("convert", {}),
    ("convert", {"partition_schema": "day DATE", "properties": {"a": "b"}, "dry_run": True}),
    ("clone", {"source": {"table": "/s"}}),
    ("clone", {"source": {"table": "/s", "version": 2}, "shallow": True, "replace": True, "properties": {"a": "b"}}),
    ("clone", {"source": {"table": "s3://b/s"}, "timestamp": "2026-03-01T12:00:00Z"}),
    ("checkpoint", {}),
    ("vacuum", {}),
    ("vacuum", {"retention_hours": 0, "dry_run": True, "check_retention": False}),
    ("vacuum", {"mode": "lite", "parallelism": 32}),
    ("vacuum", {"include_foreign": True}),
    ("write", {"source": FILES, "allow_non_empty": True}),
    ("vacuum", {"inventory": "/reports/today.parquet"}),
]

INVALID: list[tuple[str, dict[str, Any], str]] = [
    ("duplicate", {}, "operation"),
    ("clone", {}, "arguments.source"),
    ("clone", {"source": FILES}, "arguments.source.format"),
    ("clone", {"source": {"table": "s"}}, "arguments.source.table"),
    ("clone", {"source": {"table": "/s", "version": 1}, "timestamp": "2026-03-01"}, "arguments.timestamp"),
    ("clone", {"source": {"table": "/s"}, "timestamp": "soon"}, "arguments.timestamp"),
    ("convert", {"partition_schema": " "}, "arguments.partition_schema"),
    ("convert", {"partition_by": ["day"]}, "arguments.partition_by"),
    ("apply_changes", {"source": FILES, "keys": [], "sequence_by": "at"}, "arguments.keys"),
    *(
        ("apply_changes", {"source": FILES, "keys": ["id"], "sequence_by": "at", **more}, f"arguments.{argument}")
        for argument, more in [
            ("current_column", {"current_column": "c"}),
            ("start_column", {"start_column": "c"}),
            ("track_history_column_list", {"track_history_column_list": ["c"]}),
            ("track_history_column_list", {"stored_as_scd_type": 2, "track_history_column_list": ["c", "C"]}),
            ("end_column", {"stored_as_scd_type": 2, "end_column": "__start_at"}),
            ("schema_evolution", {"stored_as_scd_type": 2, "schema_evolution": True}),
            ("schema_evolution", {"ignore_null_updates": True, "schema_evolution": True}),
            (
                "ignore_null_updates_column_list",
                {"ignore_null_updates_column_list": ["a"], "ignore_null_updates": True},
            ),
            ("ignore_null_updates_column_list", {"ignore_null_updates_column_list": ["ID"]}),
            ("ignore_null_updates_except_column_list", {"ignore_null_updates_except_column_list": ["a", "A"]}),
            ("stored_as_scd_type", {"stored_as_scd_type": 3}),
        ]
    ),
    ("apply_changes", {"source": FILES, "keys": ["id", "ID"], "sequence_by": "at"}, "arguments.keys"),
    *(
        ("incremental", {"source": {"table": "/s"}, "consumer": "c", **more}, f"arguments.{argument}")
        for argument, more in [
            ("keys", {"keys": ["id"]}),
            ("keys", {"mode": "upsert"}),
            ("target_alias", {"target_alias": "x"}),
            ("tombstone_hours", {"tombstone_hours": 24}),
            ("stored_as_scd_type", {"stored_as_scd_type": 2}),
            ("start_column", {"mode": "upsert", "keys": ["id"], "start_column": "since"}),
            ("properties", {"mode": "upsert", "keys": ["id"], "properties": {"a": "b"}}),
            ("on_gap", {"mode": "apply_changes", "keys": ["id"], "sequence_by": "at", "on_gap": "full"}),
        ]
    ),
    ("apply_changes", {"source": FILES, "keys": ["id"], "sequence_by": "Id"}, "arguments.sequence_by"),
    (
        "apply_changes",
        {"source": FILES, "keys": ["id"], "sequence_by": "at", "column_list": ["a"], "except_column_list": ["b"]},
        "arguments.except_column_list",
    ),
    (
        "apply_changes",
        {"source": FILES, "keys": ["id"], "sequence_by": "at", "except_column_list": ["ID"]},
        "arguments.except_column_list",
    ),
    ("upsert", {"source": FILES, "keys": []}, "arguments.keys"),
    (
        "apply_snapshot",
        {"source": FILES, "keys": ["id"], "max_deleted_fraction": 0.1, "end_column": "until"},
        "arguments.end_column",
    ),
    ("apply_snapshot", {"source": FILES, "keys": ["id"]}, "arguments.max_deleted_fraction"),
    (
        "apply_snapshot",
        {"source": FILES, "keys": ["id"], "max_deleted_fraction": None},
        "arguments.max_deleted_fraction",
    ),
    (
        "apply_snapshot",
        {"source": FILES, "keys": ["id"], "max_deleted_fraction": 0.1, "hard_deletes": "maybe"},
        "arguments.hard_deletes",
    ),
    *(
        ("apply_snapshot", {"source": FILES, "keys": ["id"], "max_deleted_fraction": 0.1, **more}, f"arguments.{name}")
        for name, more in (
            ("hard_deletes", {"hard_deletes": "invalidate"}),
            ("hard_deletes", {"hard_deletes": "delete", "stored_as_scd_type": 2}),
            ("current_column", {"current_column": "c"}),
            ("snapshot_at", {"snapshot_at": "2026-01-01"}),
            ("snapshot_at", {"snapshot_at": "soon", "stored_as_scd_type": 2}),
            ("hard_deletes", {"hard_deletes": "new_record"}),
            ("deleted_column", {"deleted_column": "gone", "stored_as_scd_type": 2}),
            ("track_history_column_list", {"track_history_column_list": ["a"]}),
            ("track_history_column_list", {"track_history_column_list": ["ID"], "stored_as_scd_type": 2}),
            ("stored_as_scd_type", {"stored_as_scd_type": 3}),
            ("end_column", {"start_column": "at", "end_column": "AT", "stored_as_scd_type": 2}),
            ("schema_evolution", {"schema_evolution": True, "stored_as_scd_type": 2}),
        )
    ),
    ("upsert", {"source": FILES, "keys": ["id", "ID"]}, "arguments.keys"),
    ("upsert", {"source": FILES, "keys": ["id"], "columns": []}, "arguments.columns"),
    ("delete", {}, "arguments.predicate"),
    ("delete", {"predicate": 7}, "arguments.predicate"),
    ("delete", {"predicate": "TRUE", "keys": {"column": "id", "values": []}}, "arguments.predicate"),
    ("delete", {"predicate": "id = 1", "require_match": 1}, "arguments.require_match"),
    (
        "merge",
        {"source": FILES, "on": "a = b", "clauses": [INSERT], "require_match": True},
        "arguments.require_match",
    ),
    ("delete", {"predicate": None, "keys": {"values": [1]}}, "arguments.keys.column"),
    ("delete", {"predicate": None, "keys": {"column": "id"}}, "arguments.keys"),
    ("delete", {"predicate": None, "keys": {"column": "id", "values": [[1]]}}, "arguments.keys.values"),
    ("delete", {"predicate": None, "keys": {"column": "id", "values": [], "source": FILES}}, "arguments.keys"),
    ("delete", {"predicate": None, "keys": {"column": "id", "source": {}}}, "arguments.keys.source"),
    ("delete", {"predicate": " "}, "arguments.predicate"),
    ("delete", {"predicate": "id = 1", "source": FILES}, "arguments.source"),
    ("delete", {"predicate": "d = :d", "parameters": {"d": dt.date(2013, 1, 1)}}, "arguments.parameters.d"),
    ("delete", {"predicate": "d = :d", "parameters": {"d": {"$date": "soon"}}}, "arguments.parameters.d"),
    ("delete", {"predicate": "x = :x", "parameters": {"x": float("nan")}}, "arguments.parameters.x"),
    ("write", {}, "arguments.source"),
    ("write", {"source": "/in/a"}, "arguments.source"),
    ("write", {"source": {"path": "/in/a"}}, "arguments.source"),
    ("write", {"source": {"format": "avro", "path": "/in/a"}}, "arguments.source.format"),
    ("write", {"source": {"format": "csv", "path": []}}, "arguments.source.path"),
    ("write", {"source": {**FILES, "mode": "x"}}, "arguments.source.mode"),
    ("write", {"source": {"sql": "SELECT 1", "views": {"v": {"sql": "SELECT 1"}}}}, "arguments.source.views.v"),
    ("write", {"source": FILES, "mode": "replace"}, "arguments.mode"),
    ("write", {"source": FILES, "replace_where": "id > 3"}, "arguments.replace_where"),
    ("write", {"source": FILES, "replace_where": "x", "mode": "overwrite_partitions"}, "arguments.replace_where"),
    ("write", {"source": FILES, "on_conflict": "fail"}, "arguments.on_conflict"),
    ("write", {"source": FILES, "mode": "overwrite", "on_conflict": "retry"}, "arguments.on_conflict"),
    ("truncate", {"predicate": "id = 1"}, "arguments.predicate"),
    ("alter", {}, "arguments"),
    ("alter", {"allow_reader_upgrade": True}, "arguments"),
    ("alter", {"set_not_null": ["a", "A"]}, "arguments.set_not_null"),
    ("alter", {"rename_columns": {"a": "b", "A": "c"}}, "arguments.rename_columns"),
    ("alter", {"add_features": ["x"], "drop_features": ["X"]}, "arguments.drop_features"),
    ("alter", {"set_not_null": ["x"], "drop_not_null": ["X"]}, "arguments.set_not_null"),
    ("alter", {"add_columns": {"a": {"type": "INT", "nullable": True}}}, "arguments.add_columns.a.nullable"),
    ("alter", {"add_columns": {"a": 7}}, "arguments.add_columns.a"),
    ("alter", {"add_constraints": {"a": "x > :x"}}, "arguments.add_constraints.a"),
    ("alter", {"cluster_by": "a"}, "arguments.cluster_by"),
    ("alter", {"sync_identity": ["a", "A"]}, "arguments.sync_identity"),
    ("restore", {}, "arguments.version"),
    ("rollback", {"run_id": "", "of_dag_id": "d"}, "arguments.run_id"),
    ("rollback", {"run_id": "r"}, "arguments.of_dag_id"),
    ("upsert", {"source": {"table": "/in", "as_of": "now"}, "keys": ["id"]}, "arguments.source.as_of"),
    ("upsert", {"source": {"table": "/in", "as_of": "run", "version": 3}, "keys": ["id"]}, "arguments.source.as_of"),
    ("restore", {"version": 3, "timestamp": "2026-03-01"}, "arguments.version"),
    ("restore", {"version": "3"}, "arguments.version"),
    ("restore", {"version": -1}, "arguments.version"),
    ("write", {"source": FILES, "partition_by": "day"}, "arguments.partition_by"),
    ("write", {"source": FILES, "cluster_by": "day"}, "arguments.cluster_by"),
    ("write", {"source": FILES, "partition_by": ["a"], "cluster_by": ["b"]}, "arguments.cluster_by"),
    ("optimize", {"full": True, "zorder_by": ["a"]}, "arguments.full"),
    ("optimize", {"full": True, "purge": True}, "arguments.full"),
    ("optimize", {"full": True, "partition_predicate": "day = 1"}, "arguments.full"),
    ("write", {"source": FILES, "properties": {"a": 1}}, "arguments.properties.a"),
    ("write", {"source": FILES, "create": "yes"}, "arguments.create"),
    ("merge", {"source": FILES, "on": "a = b"}, "arguments.clauses"),
    ("merge", {"source": FILES, "on": "a = b", "clauses": []}, "arguments.clauses"),
    ("merge", {"source": FILES, "clauses": [UPDATE]}, "arguments.on"),
    (
        "merge",
        {"source": FILES, "on": "a = b", "clauses": [{"when": "matched", "then": "insert"}]},
        "arguments.clauses[0]",
    ),
    (
        "merge",
        {"source": FILES, "on": "a = b", "clauses": [UPDATE, {**INSERT, "values": {}}]},
        "arguments.clauses[1].values",
    ),
    (
        "merge",
        {"source": FILES, "on": "a = b", "clauses": [{"when": "matched", "then": "delete", "set": "*"}]},
        "arguments.clauses[0].set",
    ),
    ("vacuum", {"retention_hours": -1}, "arguments.retention_hours"),
    ("vacuum", {"dry_run": 1}, "arguments.dry_run"),
    ("vacuum", {"mode": "light"}, "arguments.mode"),
    ("vacuum", {"inventory": 7}, "arguments.inventory"),
    ("vacuum", {"parallelism": 0}, "arguments.parallelism"),
    ("checkpoint", {"force": True}, "arguments.force"),
]


@pytest.mark.parametrize(("operation", "arguments"), VALID)
def test_a_valid_spec_survives_json(operation: str, arguments: dict[str, Any]) -> None:
    spec = job_spec(operation=operation, table_uri="/t", arguments=arguments, annotations={"dag_id": "d"})
    assert JobSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(("operation", "arguments", "argument"), INVALID)
def test_a_wrong_spec_is_refused_by_the_name_of_the_argument(
    operation: str, arguments: dict[str, Any], argument: str
) -> None:
    with pytest.raises(InvalidJobSpec) as caught:
        job_spec(operation=operation, table_uri="/t", arguments=arguments)
    assert caught.value.argument == argument  # type: ignore[attr-defined]
    # As the author of an operator writes it.
    assert argument == "arguments" or argument.removeprefix("arguments.") in str(caught.value)
    assert "arguments." not in str(caught.value)


def test_an_unknown_field_of_a_spec_is_an_error_and_of_a_result_is_not() -> None:
    with pytest.raises(InvalidJobSpec, match="retries"):
        JobSpec.from_json('{"operation": "checkpoint", "table_uri": "/t", "retries": 3}')
    result = JobResult(status="committed", operation="delete", table_uri="/t", version=3)
    newer = {**json.loads(result.to_json()), "bytes": 10}
    assert JobResult.from_json(json.dumps(newer)) == result
    with pytest.raises(InvalidJobSpec, match="details"):
        JobResult.from_json(json.dumps({**newer, "details": ["a"]}))


@pytest.mark.parametrize("text", ["", "[]", "{", '"checkpoint"', '{"table_uri": "/t"}'])
def test_what_is_no_spec_is_refused(text: str) -> None:
    with pytest.raises(InvalidJobSpec):
        JobSpec.from_json(text)


def test_every_argument_of_an_operation_is_present_in_its_spec() -> None:
    spec = job_spec(operation="write", table_uri="/t", arguments={"source": FILES})
    assert spec.operation.arguments() == {
        "source": {**FILES, "options": {}, "schema": None},
        "mode": "append",
        "replace_where": None,
        "replace_using": None,
        "on_conflict": "replan",
        "partition_by": None,
        "cluster_by": None,
        "create": True,
        "allow_non_empty": False,
        "properties": {},
        "schema_evolution": False,
        "partition_predicate": None,
        "parameters": None,
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


def test_a_spec_does_not_follow_the_dict_it_was_made_from() -> None:
    arguments: dict[str, Any] = {"predicate": "id = :id", "parameters": {"id": 7}}
    spec = job_spec(operation="delete", table_uri="/t", arguments=arguments)
    arguments["parameters"]["id"] = 8
    assert spec.operation.arguments()["parameters"] == {"id": 7}


def test_the_digest_is_the_same_for_every_try_and_another_for_other_work() -> None:
    first = job_spec(operation="delete", table_uri="/t", arguments={"predicate": "id = 1"})
    retry = first.replace(
        result_uri="/r",
        annotations={"try_number": 2},
        spark_conf={"spark.driver.memory": "2g"},
        application=ApplicationTransaction(app_id="a", version=1),
        conflict_deadline_s=3,
    )
    assert retry.digest() == first.digest()
    other = [
        first.replace(table_uri="/u"),
        first.replace(operation=Delete(predicate="id = 2")),
        first.replace(time_zone="Europe/Berlin"),
    ]
    assert len({first.digest(), *(spec.digest() for spec in other)}) == 4
    assert retry.commit_tags() == {"airflow.try_number": "2"}


def test_work_has_the_digest_that_a_release_with_more_arguments_gives_it() -> None:
    class LaterDelete(Delete, frozen=True, kw_only=True, tag="delete"):
        later: str | None = None

    spec = job_spec(operation="delete", table_uri="/t", arguments={"predicate": "id = 1"})
    assert spec.replace(operation=LaterDelete(predicate="id = 1")).digest() == spec.digest()
    assert spec.replace(operation=LaterDelete(predicate="id = 1", later="x")).digest() != spec.digest()


def test_whom_a_delete_was_for_cannot_be_tried_out_on_the_digest_of_its_commit() -> None:
    plain = job_spec(operation="delete", table_uri="/t", arguments={"predicate": "id = 1"})
    one, other = (plain.replace(saved_work_key=digit * 64) for digit in "01")
    assert len({plain.digest(), one.digest(), other.digest()}) == 3
    assert one.digest(with_key=False) == plain.digest()
    assert one.commit_tags() == {DIGEST_TAG: one.digest()}
    # Without a key only where a later try must compare it.
    assert plain.commit_tags() == {}
    named = plain.replace(application=ApplicationTransaction(app_id="a", version=1, check_digest=True))
    assert named.commit_tags() == {DIGEST_TAG: plain.digest()}


def test_b5_a_checkpoint_carries_no_application_transaction() -> None:
    with pytest.raises(InvalidJobSpec) as caught:
        job_spec(operation="checkpoint", table_uri="/t", application=ApplicationTransaction(app_id="a", version=1))
    assert caught.value.argument == "application"  # type: ignore[attr-defined]


def test_a_refusal_of_a_combination_describes_no_value_that_was_not_looked_at() -> None:
    with pytest.raises(InvalidJobSpec, match=r"true: a change by apply_changes cannot wait\. Nothing was read\.$"):
        job_spec(
            operation="apply_changes",
            table_uri="/t",
            arguments={"source": FILES, "keys": ["id"], "sequence_by": "at"},
            publish=False,
        )


def test_c8_a_refusal_does_not_repeat_a_value() -> None:
    with pytest.raises(InvalidJobSpec) as caught:
        job_spec(operation="delete", table_uri="/t", arguments={"predicate": ["name = 'Ada Lovelace'"]})
    assert "Lovelace" not in str(caught.value)


def test_a_failed_result_gives_its_error_back_typed() -> None:
    error = ConcurrentAppend("version 4 added a file", table="/t", winning_version=4, partition={"day": "1"})
    result = JobResult(status="failed", operation="merge", table_uri="/t", error=error.to_dict())
    back = JobResult.from_json(result.to_json()).typed_error()
    assert isinstance(back, ConcurrentAppend)
    assert (back.winning_version, back.partition, back.retryable) == (4, {"day": "1"}, True)


@pytest.mark.parametrize("value", [{1: "b"}, [{1: "b"}], {(1, 2): None}])
@pytest.mark.parametrize("name", ["time_zone", "result_uri", "conflict_deadline_s", "annotations", "saved_work_key"])
def test_a_mapping_with_keys_that_are_no_texts_is_refused_wherever_it_is(name: str, value: Any) -> None:
    with pytest.raises(InvalidJobSpec, match=name):
        JobSpec(**{"operation": Delete(predicate="id = 1"), "table_uri": "/t", name: value})


@pytest.mark.parametrize("name", ["version", "at_or_before", "read_version", "attempts"])
def test_half_of_a_character_is_no_number(name: str) -> None:
    change: dict[str, Any] = {name: "\ud800"}
    with pytest.raises(InvalidJobSpec, match=name):
        JobResult(**{"status": "committed", "operation": "delete", "table_uri": "/t", **change})


@pytest.mark.parametrize("change", [{"status": "done"}, {"status": "failed"}, {"metrics": {"rows": "1"}}])
def test_a_wrong_result_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidJobSpec):
        JobResult(**{"status": "committed", "operation": "delete", "table_uri": "/t", **change})


@given(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(min_value=-(2**63), max_value=2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(),
        st.dates(),
        st.datetimes(),
        st.datetimes(timezones=st.just(dt.UTC)),
        st.decimals(min_value=-(10**20), max_value=10**20, places=5),
        st.binary(),
        st.lists(st.dates()),
    )
)
def test_a_parameter_comes_back_with_its_type(value: object) -> None:
    """decode_parameter(encode_parameter(v)) == v, type included, also through JSON."""
    back = decode_parameter(json.loads(json.dumps(encode_parameter(value))))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("time", [pd.Timestamp(1), pd.NaT, {"$timestamp": "2024-01-01T00:00:00.0000001"}], ids=repr)
def test_a_time_that_would_lose_digits_on_the_way_is_refused(time: Any) -> None:
    with pytest.raises(InvalidJobSpec, match=r"^keys "):
        encode_parameter(time, "keys")


def test_parameters_are_bound_as_their_python_values() -> None:
    spec = job_spec(
        operation="delete",
        table_uri="/t",
        arguments={"predicate": "d = :d AND x < :x", "parameters": {"d": {"$date": "2013-01-01"}, "x": 3}},
    )
    assert spec.operation.bound_parameters == {"d": dt.date(2013, 1, 1), "x": 3}
    assert encode_parameter(decimal.Decimal("1.50")) == {"$decimal": "1.50"}


def test_a_document_is_written_whole_and_for_its_owner_only(tmp_path: Path) -> None:
    spec = job_spec(operation="checkpoint", table_uri="/t")
    path = tmp_path / "new" / "spec.json"
    write_document(str(path), spec.to_json())
    write_document(path.as_uri(), spec.to_json())
    assert read_spec(path.as_uri()) == spec
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["spec.json"]


def test_a_missing_result_is_none_and_a_missing_spec_is_an_error(tmp_path: Path) -> None:
    assert read_result(str(tmp_path / "result.json")) is None
    with pytest.raises(InvalidJobSpec):
        read_spec(str(tmp_path / "spec.json"))
    with pytest.raises(UnsupportedStore, match="s3"):
        read_result("s3://bucket/result.json")


@pytest.mark.parametrize(
    "options",
    [{"secret": "hunter2"}, {"client_kwargs": {"aws_session_token": "hunter2"}}, {"a": [{"account_key": "hunter2"}]}],
)
def test_an_option_of_a_store_that_is_a_secret_is_refused_without_its_value(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidJobSpec, match="must be left out: name a profile") as caught:
        job_spec(operation="truncate", table_uri="/t", storage_options=options)
    assert "hunter2" not in str(caught.value)


def test_an_option_of_a_store_that_is_no_secret_is_kept() -> None:
    options = {
        "profile": "lake",
        "endpoint_url": "http://127.0.0.1",
        "anon": True,
        "client_kwargs": {"region_name": "x"},
    }
    assert job_spec(operation="truncate", table_uri="/t", storage_options=options).access.storage_options == options
