"""`strict_writers` of a job holds for checkpoint and vacuum too: they write to the table like any other."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_txlog.engine import delta_table
from airflow_txlog.jobs.run import run_job
from tests.engine.commit.test_writers import SPARK, S3LikeStore, table_of
from tests.helpers.jobs import error_of
from tests.helpers.specs import job_spec


@pytest.mark.parametrize("operation", ["checkpoint", "vacuum"])
def test_a15_strict_writers_reaches_checkpoint_and_vacuum(
    operation: str, memory_uri: str, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = S3LikeStore(memory_uri, clock=clock)
    table_of(store, clock, [SPARK])
    # Only what opens the store is replaced: no store on S3 is supported yet.
    monkeypatch.setattr(delta_table, "open_store", lambda *_, **__: store)
    spec = job_spec(operation=operation, table_uri=store.root)
    assert error_of(run_job(spec.replace(strict_writers=True), None))["type"] == "OverwritingWriter"
    assert run_job(spec, None).status == "committed"
