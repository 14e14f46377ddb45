"""Which tests share a process when the suite runs in several (`make test`): loaded there with `-p tests.xdist_groups`.

Spark has one session a process and takes ten seconds to start it, and Airflow has one home a process: everything that
needs either stays in one worker, in order. Tests with a group of their own stay together, all others go wherever there
is room.
"""

from __future__ import annotations

import pytest

HEAVY = ("spark", "airflow")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("xdist_group") is None and any(item.get_closest_marker(name) for name in HEAVY):
            item.add_marker(pytest.mark.xdist_group("spark-and-airflow"))
