"""What the statistics of a file say of its number of rows."""

from __future__ import annotations

import json

import pytest

from airflow_txlog.engine.table.snapshot.files import record_count


@pytest.mark.parametrize("count", [0, 1, 2**63 - 1])
def test_the_number_of_rows_is_read(count: int) -> None:
    assert record_count(json.dumps({"numRecords": count}), None) == count


@pytest.mark.parametrize("count", [-1, 2**63, 2**200, 1.5, "1", True, None, [1]])
def test_what_is_no_number_of_rows_is_not_known(count: object) -> None:
    """Another writer's statistics are input: a job that takes them for a number fails on them."""
    assert record_count(json.dumps({"numRecords": count}), None) is None
