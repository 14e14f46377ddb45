"""Staged changes on a real S3 server: one document each, and a publication that reads no data file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.staged_changes import staged_in
from airflow_txlog.storage.objects import ObjectStore
from tests.helpers import s3
from tests.helpers.jobs import SCHEMA, by_id, committed, rows, run
from tests.helpers.rows import append
from tests.helpers.staged import audit, discard, publish, refused, stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_changes_wait_in_a_bucket_and_are_published_or_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = s3.new_folder()
    table = Table.create(uri, SCHEMA, storage_options=s3.options())
    append(table, rows(10))
    options = {"storage_options": s3.plain_options()}
    first = stage("update", table, set={"name": "'x'"}, predicate="id < 5", **options)
    second = stage("delete", table, predicate="id < 5", **options)
    assert {id for id, _ in staged_in(table.store)} == {first["id"], second["id"]}
    assert by_id(table)[0] == "n0"
    append(table, rows(3, start=50))
    read: list[str] = []
    really = ObjectStore.open_input
    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "open_input", lambda store, path: (read.append(path), really(store, path))[1])
        assert committed(publish(first, **options)).version == 3
    assert read == []
    assert publish(second, **options).status == "failed"
    assert discard(second, **options).status == "nothing_to_do"
    assert list(staged_in(table.store)) == []
    assert [id for id, name in by_id(table).items() if name == "x"] == [0, 1, 2, 3, 4]
    assert {info.path.partition("/")[0] for info in table.store.walk() if "txlog-inputs" in info.path} == set()


@pytest.mark.spark
@pytest.mark.long("Spark audits a change on a real S3 server, and audits it again")
def test_a_change_in_a_bucket_is_made_and_audited_again_after_a_conflict(spark: SparkSession) -> None:
    options: dict[str, Any] = {"storage_options": s3.plain_options()}
    for most in (2000, 1000):
        uri = s3.new_folder()
        table = Table.create(uri, SCHEMA, storage_options=s3.options())
        append(table, rows(10))
        handle = stage("update", table, set={"name": "'x'"}, predicate="id < 5", **options)
        checks = {"checks": {"most": f"amount < {most}"}, "no_rows": {"lost": "SELECT * FROM before WHERE id > 9"}}
        done = audit(spark, handle, **checks, **options)
        assert done.status == "nothing_to_do", done.error
        committed(run(None, "update", table, set={"amount": "amount + 1000"}, predicate="id = 3", **options))
        result = publish(handle, on_change="reaudit", spark=spark, **options)
        if most == 1000:
            assert "most (1 row)" in refused(result, "AuditFailed")
            discard(handle, **options)
        else:
            assert committed(result).version == 3
        assert [id for id, name in by_id(table).items() if name == "x"] == ([*range(5)] if most == 2000 else [])
        assert by_id(table, "amount")[3] == 1001.5
        assert list(staged_in(table.store)) == []
        assert {info.path for info in table.store.walk() if "txlog-inputs" in info.path} == set()
