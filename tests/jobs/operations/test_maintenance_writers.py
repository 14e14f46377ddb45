"""`strict_writers` of a job holds for checkpoint and vacuum too: they write to the table like any other."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_txlog import errors
from airflow_txlog.engine import delta_table
from airflow_txlog.jobs.context import LogContext
from airflow_txlog.jobs.operations.maintenance import checkpoint, vacuum
from tests.engine.commit.test_writers import SPARK, S3LikeStore, table_of
from tests.helpers.specs import job_spec


@pytest.mark.parametrize(("operation", "job"), [("checkpoint", checkpoint), ("vacuum", vacuum)])
def test_a15_strict_writers_reaches_checkpoint_and_vacuum(
    operation: str, job: Any, memory_uri: str, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = S3LikeStore(memory_uri, clock=clock)
    table_of(store, clock, [SPARK])
    # Only what opens the store is replaced: no store on S3 is supported yet.
    monkeypatch.setattr(delta_table, "open_store", lambda *_, **__: store)
    spec = job_spec(operation=operation, table_uri=store.root)
    with pytest.raises(errors.OverwritingWriter):
        job(LogContext(spec=spec.replace(strict_writers=True), root=store.root, log=print))
    assert job(LogContext(spec=spec, root=store.root, log=print)).status == "committed"
