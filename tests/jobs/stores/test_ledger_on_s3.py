"""The ledger of erased subjects beside its tables on a real S3 server."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.engine.erasure.digests import DigestKey
from airflow_txlog.engine.erasure.ledger import Ledger, create_ledger
from airflow_txlog.engine.erasure.values.forms import Forms
from airflow_txlog.jobs.run import run_job
from airflow_txlog.locations import Access
from tests.helpers import s3
from tests.helpers.jobs import committed, error_of, ids, rows, run
from tests.helpers.rows import append
from tests.helpers.specs import job_spec

SECRET = "e" * 64


@pytest.mark.long("a table on S3, and its ledger")
@pytest.mark.parametrize("leaves_out", [False, True])
def test_a_restore_on_s3_brings_no_erased_subject_back(leaves_out: bool) -> None:
    access = Access(storage_options=s3.options())
    uri, place = s3.new_folder(), s3.new_folder()
    table = Table.create(uri, rows(1).schema, storage_options=s3.options())
    append(table, rows(3))
    append(table, rows(2, start=4))
    create_ledger(Table.at(place, access))
    ledger = Ledger(Table.at(place, access), [DigestKey.of(SECRET, "the key")])
    assert ledger.record("r-1", table.snapshot(), Forms.of(table.snapshot(), "id", [4])) == 1
    committed(run(None, "delete", uri, predicate="id = 4", storage_options=s3.plain_options()))

    def restore(version: int) -> JobResult:
        arguments: dict[str, Any] = {"version": version}
        spec = job_spec(operation="restore", table_uri=uri, arguments=arguments, storage_options=s3.plain_options())
        return run_job(
            dataclasses.replace(spec, ledger_uri=place, ledger_keys=(SECRET,), leaves_out_erased=leaves_out), None
        )

    if leaves_out:
        committed(restore(2))
        assert ids(table) == [0, 1, 2, 5]
    else:
        assert error_of(restore(2))["type"] == "SubjectReturns"
        committed(restore(1))
        assert ids(table) == [0, 1, 2]
