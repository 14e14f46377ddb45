"""Staged changes on a real S3 server: one document each, and a publication that reads no data file."""

from __future__ import annotations

import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.staged_changes import staged_in
from airflow_txlog.storage.objects import ObjectStore
from tests.helpers import s3
from tests.helpers.jobs import SCHEMA, by_id, committed, rows
from tests.helpers.rows import append
from tests.helpers.staged import discard, publish, stage


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
    monkeypatch.setattr(ObjectStore, "open_input", lambda store, path: (read.append(path), really(store, path))[1])
    assert committed(publish(first, **options)).version == 3
    assert read == []
    monkeypatch.undo()
    s3.options()
    assert publish(second, **options).status == "failed"
    discard(second, **options)
    assert list(staged_in(table.store)) == []
    assert [id for id, name in by_id(table).items() if name == "x"] == [0, 1, 2, 3, 4]
    assert {info.path.partition("/")[0] for info in table.store.walk() if "txlog-inputs" in info.path} == set()
