"""Which names a store is asked for to find the files of a glob."""

from __future__ import annotations

import pytest

from airflow_txlog.jobs.files import source_listing
from airflow_txlog.jobs.files.source_listing import Lookup, list_source
from airflow_txlog.storage import PLAIN
from tests.helpers.counting import CountingStore


@pytest.mark.parametrize(
    ("glob", "prefix", "found"),
    [
        ("2024-*/x", "2024-", ["2024-01/x/a.csv"]),
        ("202?-01/*/*.csv", "202", ["2024-01/x/a.csv", "2025-01/x/a.csv"]),
        ("{2024-01,2025-01}/x", "", ["2024-01/x/a.csv", "2025-01/x/a.csv"]),
        ("20\\*/x", "20", ["20*/x/a.csv"]),
    ],
)
def test_only_names_that_begin_as_the_glob_does_are_listed(
    glob: str, prefix: str, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CountingStore("memory://source-globs/logs")
    for folder in ("2024-01", "2025-01", "20*"):
        store.put(f"{folder}/x/a.csv", b"1")
    store.take()
    monkeypatch.setattr(source_listing, "open_store", lambda uri, access: store)
    files = list_source([f"{store.root}/{glob}"], PLAIN, Lookup(), "source").files
    assert [file.path.removeprefix(f"{store.root}/") for file in files] == found
    assert [each for each in store.take() if each.startswith("walk")] == [f"walk {prefix}"]
