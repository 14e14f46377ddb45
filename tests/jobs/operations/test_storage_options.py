"""The storage options of a job's description reach every store that the job opens, in the driver and in its tasks."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest
from pyspark.sql import SparkSession

from airflow_txlog import storage
from airflow_txlog.contract.job import ApplicationTransaction, JobSpec
from airflow_txlog.engine import Table
from airflow_txlog.exactly_once.exchange import forget_saved_work
from airflow_txlog.exactly_once.transactions import find_done
from airflow_txlog.jobs.run import run_job
from airflow_txlog.storage import Access, LocalStore, Store, StoreReference
from airflow_txlog.storage.limits import Limits
from tests.helpers.jobs import KEY, ids, rows
from tests.helpers.paths import ROOT
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec

ORIGIN = {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Five files of two rows."""
    return make_table(tmp_path / "t", *(rows(2, start=2 * number) for number in range(5)), properties=ORIGIN)


# Plans in files are opened by tasks too.
IN_FILES = Limits(inline_plan_bytes=0)


@pytest.fixture
def options(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options without which no store of this machine can be opened from now on, here or in a task."""
    make_table(tmp_path / "source", rows(3, start=8))
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "helpers" / "daemon"))
    strict = importlib.import_module("strict_store")
    opened = storage.STORES["file"]

    def strictly(uri: str, access: Access) -> Store:
        strict.check(access)
        return opened(uri, access)

    monkeypatch.setitem(storage.STORES, "file", strictly)
    monkeypatch.setattr(
        StoreReference, "__reduce__", lambda each: (strict.strict_reference, (each.root, each.access)), raising=False
    )
    found: dict[str, Any] = strict.OPTIONS
    return found


def job(table: Table, operation: str, **arguments: Any) -> JobSpec:
    with_work = operation not in ("optimize", "checkpoint", "vacuum")
    return job_spec(
        operation=operation,
        table_uri=table.uri,
        arguments=arguments,
        application=ApplicationTransaction(app_id=f"{operation} of the test", version=1) if with_work else None,
        saved_work_key=KEY if with_work else None,
    )


def jobs(table: Table, tmp_path: Path) -> list[tuple[JobSpec, list[int]]]:
    """A job of every operation, and the ids that it leaves."""
    view = {"table": str(tmp_path / "source")}
    inventory = tmp_path / "inventory.csv"
    pyarrow.csv.write_csv(pa.table({"path": ["gone.parquet"], "modificationTime": [0]}), inventory)
    clauses = [
        {"when": "matched", "then": "update", "set": {"amount": "-1D"}},
        {"when": "not_matched", "then": "insert", "values": "*"},
    ]
    ten = list(range(10))
    return [
        (job(table, "write", source=view), sorted([*ten, 8, 9, 10])),
        (job(table, "delete", predicate=None, keys={"column": "id", "source": view, "source_column": "id"}), ten[:8]),
        (job(table, "delete", predicate="id = 7"), ten[:7]),
        (job(table, "update", set={"name": "'x'"}, predicate="id = 1"), ten[:7]),
        (job(table, "merge", source=view, on="t.id = s.id", clauses=clauses), [*ten[:7], 8, 9, 10]),
        (job(table, "optimize"), [*ten[:7], 8, 9, 10]),
        (job(table, "optimize", zorder_by=["id"]), [*ten[:7], 8, 9, 10]),
        (job(table, "checkpoint"), [*ten[:7], 8, 9, 10]),
        (job(table, "vacuum", inventory=str(inventory)), [*ten[:7], 8, 9, 10]),
        (job(table, "restore", version=5), ten),
        (job(table, "truncate"), []),
    ]


def test_every_operation_opens_its_stores_with_the_options_of_its_job(
    table: Table, tmp_path: Path, spark: SparkSession, options: dict[str, Any]
) -> None:
    for number, (spec, expected) in enumerate(jobs(table, tmp_path)):
        app = spec.application
        named = spec if app is None else spec.replace(application=ApplicationTransaction(app_id=f"{number}", version=1))
        result = run_job(named.replace(access=Access(storage_options=options)), spark, limits=IN_FILES)
        assert result.error is None, (spec.operation.name, result.error)
        assert ids(table) == expected, spec.operation.name
        if app is not None:
            done = find_done(named.replace(access=Access(storage_options=options)))
            assert done is not None
            assert done.version == result.version
            forget_saved_work(named.replace(access=Access(storage_options=options)))


def test_no_operation_opens_a_store_without_them(
    table: Table, tmp_path: Path, spark: SparkSession, options: dict[str, Any]
) -> None:
    for spec, _ in jobs(table, tmp_path):
        result = run_job(spec.replace(result_uri=str(tmp_path / "result.json")), spark, limits=IN_FILES)
        assert result.error is not None
        assert "PermissionError at storage" in result.error["message"], spec.operation.name
        assert (tmp_path / "result.json").exists()
        with pytest.raises(PermissionError):
            forget_saved_work(spec)
    assert isinstance(table.store, LocalStore)
    assert ids(table) == list(range(10))
