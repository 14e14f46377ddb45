"""Increments of tables on a real S3 server."""

from __future__ import annotations

import pytest

from airflow_txlog.engine import Table
from tests.helpers import s3
from tests.helpers.jobs import SCHEMA, application, committed, error_of, ids, rows, run
from tests.helpers.racing import before_commit, killed_before_commit
from tests.helpers.rows import append


@pytest.mark.long("some tables on a server")
def test_each_version_of_a_table_in_a_bucket_is_processed_once() -> None:
    source, target = (s3.new_folder() for _ in range(2))
    orders = Table.create(source, SCHEMA, storage_options=s3.options())
    append(orders, rows(3))
    given = {"source": {"table": source}, "consumer": "c", "storage_options": s3.plain_options()}
    committed(run(None, "incremental", target, **given))
    append(orders, rows(2, start=10))
    work = application()
    with killed_before_commit():
        run(None, "incremental", target, application=work, **given)
    committed(run(None, "incremental", target, application=work, **given))
    assert run(None, "incremental", target, application=work, **given).status == "already_done"
    append(orders, rows(1, start=20))
    with before_commit(lambda tx: committed(run(None, "incremental", target, **given))):
        assert run(None, "incremental", target, **given).status == "nothing_to_do"
    done = Table.open(target, s3.options())
    assert ids(done) == [0, 1, 2, 10, 11, 20]
    done.restore(1)
    committed(run(None, "incremental", target, **given))
    assert ids(Table.open(target, s3.options())) == [0, 1, 2, 10, 11, 20]
    # A file that a VACUUM has deleted is named as the bucket's.
    append(orders, rows(1, start=30))
    (path,) = {
        path
        for path in orders.snapshot().files().column("path").to_pylist()
        if path not in orders.snapshot(3).files().column("path").to_pylist()
    }
    orders.store.delete(path)
    error = error_of(run(None, "incremental", target, **given))
    assert (error["type"], source in error["message"]) == ("SourceGap", True)
