"""An operation is one record, and its job, its operator and the lines about its result all follow from it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from airflow_txlog import operators
from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.contract.operations import (
    OPERATIONS,
    CheckSubjects,
    Delete,
    Operation,
    QuerySource,
    ScopedOperation,
    Sees,
    UpdateClause,
    register,
)
from airflow_txlog.contract.operations.fields import TableText
from airflow_txlog.contract.operations.reading import kinds_of
from airflow_txlog.contract.wording import row_counts, rows_changed, summary_lines
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.jobs.context import LogContext
from airflow_txlog.jobs.run import run_job
from airflow_txlog.operators.base import TxlogOperator
from tests.helpers.jobs import rows
from tests.helpers.paths import ROOT
from tests.helpers.specs import job_spec

FILES = {"format": "parquet", "path": "/in/a"}


def test_every_operation_has_one_job_and_one_operator() -> None:
    for found_module in pkgutil.iter_modules(operators.__path__, f"{operators.__name__}."):
        importlib.import_module(found_module.name)
    for record in OPERATIONS.values():
        module, _, name = record.job.partition(":")
        assert callable(getattr(importlib.import_module(module), name))
    pending: list[type] = [TxlogOperator]
    found: dict[str, str] = {}
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        if "operation" in vars(cls) and cls.__module__.startswith("airflow_txlog."):
            assert found.setdefault(cls.operation.name, cls.__name__) == cls.__name__
    # DeltaEraseOperator checks the subjects before its own operation.
    assert found.keys() | {CheckSubjects.name} == OPERATIONS.keys()
    titles = {page.read_text().splitlines()[0] for page in (ROOT / "docs" / "operators").glob("*.md")}
    assert [name for name in found.values() if f"# {name}" not in titles] == [], "no page in docs/operators"


@pytest.mark.parametrize("operation", [*sorted(OPERATIONS), "of a newer release"])
def test_what_is_said_after_a_commit_knows_every_operation(operation: str) -> None:
    metrics = {"numDeletedRows": 2, "numOutputRows": 3, "anything": 4}
    result = JobResult(status="committed", operation=operation, table_uri="/t", version=1, metrics=metrics)
    assert summary_lines(result, 0.0)[0].startswith(f"{operation} /t: new table -> version 1")
    rows_changed(result)


def test_an_overwrite_counts_the_rows_that_it_wrote() -> None:
    metrics = {"numDeletedRows": 2, "numOutputRows": 3}
    assert row_counts("write", metrics) == {"written": 3, "replaced": 2}
    result = JobResult(status="committed", operation="write", table_uri="/t", version=1, metrics=metrics)
    assert rows_changed(result) == 3


TEXTS = [
    (
        "apply_changes",
        {"source": FILES, "keys": ["id"], "sequence_by": "at", "apply_as_deletes": "w"},
        {"w": Sees.TABLE},
    ),
    (
        "write",
        {
            "source": {"sql": "q", "views": {"v": FILES}},
            "mode": "overwrite",
            "replace_where": "w",
            "partition_predicate": "p",
        },
        {"q": Sees.VIEWS, "w": Sees.TABLE, "p": Sees.PARTITIONS},
    ),
    ("delete", {"predicate": "w"}, {"w": Sees.TABLE}),
    ("delete", {"predicate": None, "keys": {"column": "id", "source": {"sql": "q"}}}, {"q": Sees.VIEWS}),
    ("update", {"set": {"a": "x"}, "predicate": "w"}, {"x": Sees.TABLE, "w": Sees.TABLE}),
    (
        "upsert",
        {
            "source": FILES,
            "keys": ["id"],
            "expect": {"a": "x"},
            "expect_or_fail": {"b": "y"},
            "expect_or_drop": {"c": "z"},
        },
        {"x": Sees.TABLE, "y": Sees.TABLE, "z": Sees.TABLE},
    ),
    (
        "merge",
        {
            "source": FILES,
            "on": "o",
            "clauses": [
                {"when": "matched", "then": "update", "set": {"a": "x"}, "condition": "c"},
                {"when": "matched", "then": "update", "set": "*"},
                {"when": "not_matched_by_source", "then": "delete", "condition": "d"},
                {"when": "not_matched", "then": "insert", "values": {"a": "y"}},
            ],
        },
        {"o": Sees.TABLE_AND_SOURCE, "x": Sees.CLAUSE, "c": Sees.CLAUSE, "d": Sees.CLAUSE, "y": Sees.CLAUSE},
    ),
    ("alter", {"add_constraints": {"a": "x"}, "drop_constraints": ["b"]}, {"x": Sees.TABLE}),
    ("optimize", {"partition_predicate": "p"}, {"p": Sees.PARTITIONS}),
    ("restore", {"version": 1}, {}),
]


def texts_of(record: Operation) -> dict[str, Sees]:
    """The SQL texts of a record, each with the names that it may use."""
    found: dict[str, Sees] = {}

    def note(text: str, sees: Sees) -> str:
        found[text] = sees
        return text

    assert record.with_texts(note) == record
    return found


@pytest.mark.parametrize(("operation", "arguments", "texts"), TEXTS)
def test_a_record_knows_its_sql_texts_and_what_they_may_name(
    operation: str, arguments: dict[str, object], texts: dict[str, Sees]
) -> None:
    record = job_spec(operation=operation, arguments=arguments, table_uri="/t").operation
    assert texts_of(record) == texts
    changed = record.with_texts(lambda text, sees: f"{text}!")
    assert set(texts_of(changed)) == {f"{text}!" for text in texts}
    assert changed.with_texts(lambda text, sees: text.removesuffix("!")) == record


def test_a_record_made_in_python_is_held_to_the_same_rules_and_equals_that_from_json() -> None:
    made = Delete(predicate="id = 1", parameters={"id": 1})
    assert made == job_spec(operation="delete", arguments=made.arguments(), table_uri="/t").operation
    with pytest.raises(InvalidJobSpec, match="predicate must be a non-empty text or None; found an empty text"):
        Delete(predicate=" ")
    with pytest.raises(InvalidJobSpec, match="keys"):
        Delete(predicate=None, keys=QuerySource(sql="SELECT 1"))  # type: ignore[arg-type]
    assert kinds_of(UpdateClause).keys() == {"when", "then", "condition", "set"}


# --- an operation that only this test knows -------------------------------------------------------------------------


class Stamp(ScopedOperation, frozen=True, kw_only=True, tag="stamp"):
    """Writes a commit that changes nothing but its own description."""

    job: ClassVar[str] = f"{__name__}:stamp"
    rows = {"numStampedRows": "stamped"}

    text: TableText
    times: int = 1


def stamp(context: LogContext) -> JobResult:
    """The job of a Stamp."""
    described = context.record(Stamp)
    table = context.table
    with context.step("stamp"):
        tx = table.begin()
        assert tx.snapshot is not None
        tx.set_application("stamp", described.times)
        version = tx.commit("STAMP", parameters={"text": described.text})
    return context.result(
        is_committed=True,
        version=version,
        read_version=tx.snapshot.version,
        metrics={"numStampedRows": described.times},
    )


@pytest.fixture
def stamp_is_known() -> Iterator[type[Operation]]:
    """The record, registered for one test."""
    yield register(Stamp)
    del OPERATIONS["stamp"]


def test_an_operation_is_its_record_its_job_and_its_operator(stamp_is_known: type[Operation], tmp_path: Path) -> None:
    """Nothing else in the package changes: JSON, refusals, the run and the lines about the result follow."""
    from airflow_txlog.engine import Table
    from airflow_txlog.operators.base import DataChangingOperator

    class StampOperator(DataChangingOperator):
        operation = Stamp

        def __init__(self, *, text: str, **kwargs: object) -> None:
            super().__init__(**kwargs)
            self.text, self.times = text, 3
            self.check_literals()

    table = Table.create(str(tmp_path / "t"), rows(2).schema)
    operator = StampOperator(task_id="stamp", table_uri=table.uri, text="now()")
    spec = JobSpec.from_json(operator._spec(table.uri).to_json())
    assert spec.operation == Stamp(text="now()", times=3)
    assert texts_of(spec.operation) == {"now()": Sees.TABLE}
    result = run_job(spec, None)
    assert (result.status, result.operation) == ("committed", "stamp"), result.error
    assert "-> version 1; 3 rows stamped; " in summary_lines(result, 0.0)[0]
    with pytest.raises(InvalidJobSpec, match="text is missing; stamp needs it"):
        job_spec(operation="stamp", table_uri="/t")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("in/users", "'in/users'"),
        ("s3:bucket/users", "'s3:bucket/users'"),
        ("key:canary@bucket/users", "'***@bucket/users'"),
        ("bucket/users?sig=canary", "'bucket/users?***'"),
        (7, "7"),
    ],
)
def test_a_place_that_is_no_absolute_one_is_named_without_its_credentials(given: object, named: str) -> None:
    merge = {"on": "t.a = s.a", "clauses": [{"when": "matched", "then": "delete"}]}
    for source in ({"table": given}, {**FILES, "path": given}, {**FILES, "path": ["/in/a", given]}):
        with pytest.raises(InvalidJobSpec, match="absolute path or a URI") as caught:
            job_spec(operation="merge", table_uri="/t", arguments={**merge, "source": source})
        assert f"found {named}." in str(caught.value)
        assert "canary" not in str(caught.value)
    with pytest.raises(InvalidJobSpec, match=r"table_uri must be an absolute path or a URI") as caught:
        job_spec(operation="truncate", table_uri=given)
    assert f"found {named}." in str(caught.value)


def test_a_restriction_that_does_not_exist_is_named() -> None:
    with pytest.raises(InvalidJobSpec, match=r"unrestricted must be a list of some of .*; found 'querry'\."):
        job_spec(operation="truncate", table_uri="/t", unrestricted=("query", "querry"))


def test_a_misspelt_type_in_the_schema_of_files_is_named() -> None:
    source = {"format": "csv", "path": "/in/a.csv", "schema": "id BIGNT"}
    with pytest.raises(InvalidJobSpec, match=r"^source\.schema: BIGNT is no type\. Did you mean 'BIGINT'\?"):
        job_spec(operation="write", table_uri="/lake/t", arguments={"source": source})
