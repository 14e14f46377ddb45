"""Clones on a real S3 server, from it, and to it: rows, who copies the bytes, and who reads a shallow one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.storage import Access
from airflow_txlog.storage.objects import ObjectStore
from tests.helpers import s3
from tests.helpers.jobs import SCHEMA, by_id, committed, rows, run
from tests.helpers.rows import append, bag
from tests.jobs.stores.test_jobs_on_s3 import rows_by_deltalake

VECTORS = {"delta.enableDeletionVectors": "true"}


def job(operation: str, table: str, **arguments: Any) -> JobResult:
    return run(None, operation, table, storage_options=s3.plain_options(), **arguments)


def opened(uri: str) -> Table:
    return Table.at(uri, Access(storage_options=s3.options(), allow_absolute_paths=True))


def made(uri: str) -> Table:
    """A table with a deletion vector, at version 3: ids 1 to 7."""
    table = Table.create(uri, SCHEMA, ["day"], properties=VECTORS, storage_options=s3.options())
    append(table, rows(4))
    append(table, rows(4, start=4, day=None))
    committed(job("delete", uri, predicate="id = 0"))
    return table


@pytest.mark.parametrize("way", ["to", "from", "inside"])
def test_a_deep_clone_is_the_same_wherever_its_source_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    uri, place = {
        "to": (f"{tmp_path}/s", s3.new_folder()),
        "from": (s3.new_folder(), f"{tmp_path}/t"),
        "inside": (s3.new_folder(), s3.new_folder()),
    }[way]
    source, reads = made(uri), []
    opened_input = ObjectStore.open_input
    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "open_input", lambda *given: reads.append(given) or opened_input(*given))
        committed(job("clone", place, source={"table": uri}))
    assert len(reads) == (3 if way == "from" else 0), "S3 copies its objects itself"
    append(source, rows(1, start=50))
    again = committed(job("clone", place, source={"table": uri}, replace=True))
    assert (again.metrics["numCopiedFiles"], by_id(opened(place))) == (1, by_id(source))


def test_a_shallow_clone_names_the_objects_of_its_source_by_the_scheme_that_is_given() -> None:
    source, place = made(s3.new_folder()), s3.new_folder()
    given = source.uri.replace("s3://", "s3a://")
    committed(job("clone", place, source={"table": given}, shallow=True))
    table = opened(place)
    assert all(path.startswith(f"{given}/") for path in table.snapshot().files().column("path").to_pylist())
    assert by_id(table) == by_id(source)
    committed(job("delete", place, predicate="id = 6", allow_absolute_paths=True))
    committed(job("vacuum", place, retention_hours=0, check_retention=False))
    assert sorted(by_id(opened(place))) == [1, 2, 3, 4, 5, 7]
    assert sorted(by_id(source)) == [*range(1, 8)]
    committed(job("clone", place, source={"table": source.uri}, shallow=True, replace=True))
    assert bag(rows_by_deltalake(place).select(SCHEMA.names).cast(SCHEMA)) == bag(source.to_arrow())
