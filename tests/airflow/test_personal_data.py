"""What a task is given of a person reaches the table's rows, and no text, log, database or commit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.operators.arguments.given import revealed
from airflow_txlog.operators.base import TxlogOperator
from airflow_txlog.operators.delete import DeltaDeleteOperator
from airflow_txlog.operators.publish import DeltaAuditOperator
from airflow_txlog.operators.sources import files
from airflow_txlog.operators.update import DeltaUpdateOperator
from tests.airflow.test_staged_changes import HANDLE
from tests.helpers.rows import append

pytestmark = pytest.mark.airflow

PERSON = "mary.canary@home.example"
CONTEXT: dict[str, Any] = {"who": PERSON, "id": "7"}


def shown(operator: TxlogOperator, **context: Any) -> dict[str, Any]:
    """What Airflow puts into its database of the rendered operator."""
    from airflow.sdk.execution_time.task_runner import _serialize_rendered_fields

    operator.render_template_fields({**CONTEXT, **context})  # type: ignore[arg-type]
    return _serialize_rendered_fields(operator)


def forget(**given: Any) -> DeltaDeleteOperator:
    return DeltaDeleteOperator(**{"task_id": "forget", "table_uri": "/t", **given})


def test_what_a_delete_is_for_is_not_shown_and_reaches_the_job() -> None:
    by_predicate = forget(
        predicate="email = :e AND array_contains(:ids, id)", parameters={"e": "{{ who }}", "ids": [7, "{{ id }}"]}
    )
    fields = shown(by_predicate)
    assert fields["parameters"] == {"e": "***", "ids": "***"}
    assert fields["predicate"] == "email = :e AND array_contains(:ids, id)"
    assert by_predicate.job_arguments()["parameters"] == {"e": PERSON, "ids": [7, "7"]}
    assert PERSON not in f"{by_predicate.parameters} {by_predicate.parameters!r}"

    by_keys = forget(keys=["{{ who }}", 7], key_column="email")
    assert shown(by_keys)["keys"] == "***"
    assert by_keys.job_arguments()["keys"]["values"] == [PERSON, 7]
    # Rendered once more, as by `airflow tasks render` before a run.
    assert shown(by_keys)["keys"] == "***"
    assert by_keys.job_arguments()["keys"]["values"] == [PERSON, 7]


def test_a_name_of_the_work_with_the_template_of_the_keys_stays_a_name() -> None:
    template = "{{ who }}"
    both = forget(keys=template, key_column="email", idempotency_key=template)
    shown(both)
    assert both.idempotency_key == PERSON
    # The same object again, in a list of a parameter.
    listed = forget(keys=template, key_column="email", parameters={"e": [template]}, partition_predicate="day IN :e")
    assert shown(listed)["parameters"] == {"e": "***"}
    assert revealed(listed.parameters) == {"e": [PERSON]}


def test_what_is_no_value_of_a_row_is_shown() -> None:
    source = files("/in/{{ id }}", format="csv")
    assert shown(forget(keys=source, key_column="email"))["keys"]["path"] == "/in/7"
    assert shown(forget(predicate="id = :i", parameters={"i": "{{ id }}"}, sensitive=False))["parameters"] == {"i": "7"}
    update: dict[str, Any] = {"task_id": "u", "table_uri": "/t", "set": {"n": "1"}, "predicate": "id = :i"}
    assert shown(DeltaUpdateOperator(**update, parameters={"i": "{{ id }}"}))["parameters"] == {"i": "7"}
    hidden = DeltaUpdateOperator(**update, parameters={"i": "{{ id }}"}, sensitive=True)
    assert shown(hidden)["parameters"] == {"i": "***"}
    assert hidden.job_arguments()["parameters"] == {"i": "7"}


def test_a_sensitive_task_writes_no_samples() -> None:
    sampled: dict[str, Any] = {"table_uri": "/t", "dry_run": True, "samples_to": "/samples"}
    with pytest.raises(InvalidJobSpec, match="samples_to would copy rows of a sensitive task"):
        DeltaDeleteOperator(task_id="d", predicate="id = 7", **sampled)
    with pytest.raises(InvalidJobSpec, match="samples_to would copy rows of a sensitive task"):
        DeltaUpdateOperator(task_id="u", set={"n": "1"}, sensitive=True, **sampled)
    DeltaDeleteOperator(task_id="d", predicate="id = 7", sensitive=False, **sampled)


@pytest.mark.parametrize("is_sensitive", [True, False])
def test_an_audit_shows_no_value_if_the_task_that_staged_the_change_is_sensitive(is_sensitive: bool) -> None:
    audit = DeltaAuditOperator(
        task_id="a",
        staged=["{{ handle }}"],
        checks={"gone": {"check_statement": "id <> :i"}},
        parameters={"i": "{{ id }}"},
        render_template_as_native_obj=True,
    )
    handle = {**HANDLE, "sensitive": is_sensitive}
    assert shown(audit, handle=handle)["parameters"] == {"i": "***" if is_sensitive else "7"}
    assert audit.job_arguments()["parameters"] == {"i": "7"}


@pytest.mark.long("four jobs by a real DAG; what Airflow stores is looked at above")
def test_a_person_is_in_no_log_database_xcom_or_commit(
    dag_of: Callable[[str, str], Any],
    airflow_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of tasks that succeed, one that fails, and one that is mapped."""
    schema = pa.schema([("id", pa.int64()), ("email", pa.string()), ("note", pa.string())])
    table = Table.create(str(tmp_path / "t"), schema)
    # The statistics of a file are a part of the log: its least and greatest value.
    append(table, [{"id": i, "email": email, "note": ""} for i, email in enumerate(["a", PERSON, PERSON, "z"])])
    before = {path for path in (tmp_path / "t").rglob("*") if path.is_file()}
    monkeypatch.setenv("TXLOG_TEST_TABLE", str(tmp_path / "t"))
    monkeypatch.setenv("TXLOG_TEST_PERSON", PERSON)

    dag = dag_of("personal_data", "personal_data")
    dag_run = dag.test()

    states = {ti.task_id: ti.state for ti in dag_run.get_task_instances()}
    assert states == {"renames": "success", "fails": "failed", "named": "success", "each": "success"}
    assert table.to_arrow().column("email").to_pylist() == ["a", "z"]
    out, err = capfd.readouterr()
    xcoms = [ti.xcom_pull(task_ids=ti.task_id) for ti in dag_run.get_task_instances()]
    said = "\n".join(dag.get_task("named").runner.run.__globals__["SAID"])
    assert '"numDeletedRows": 2' in said
    assert "InvalidInput" in said
    texts = {"said": said, "stdout": out, "stderr": err, "log": caplog.text, "xcom": json.dumps(xcoms, default=str)}
    assert [name for name, text in texts.items() if PERSON in text] == []
    written = [path for path in airflow_home.rglob("*") if path.is_file() and not path.is_symlink()]
    written += [path for path in (tmp_path / "t" / "_delta_log").iterdir() if path.is_file()]
    # The copy that the update made holds the rows that were forgotten after it, until a VACUUM.
    kept = {path for path in (tmp_path / "t").rglob("*") if path.is_file()} - before - set(written)
    written += [path for path in kept if path.parent != tmp_path / "t"]
    assert [str(path) for path in written if PERSON.encode() in path.read_bytes()] == []
