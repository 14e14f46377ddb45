"""Which names a store is asked for to find the files of a glob."""

from __future__ import annotations

import pytest

from airflow_txlog.contract.operations import FileView
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.jobs.source import listing
from airflow_txlog.jobs.source.listing import SourceFiles, list_source
from airflow_txlog.storage import PLAIN
from tests.helpers.counting import CountingStore


def listed(path: str, **options: str) -> SourceFiles:
    return list_source(FileView(format="csv", path=path, options=options), PLAIN, "source")


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
    monkeypatch.setattr(listing, "open_store", lambda uri, access: store)
    files = listed(f"{store.root}/{glob}").files
    assert [file.path.removeprefix(f"{store.root}/") for file in files] == found
    assert [each for each in store.take() if each.startswith("walk")] == [f"walk {prefix}"]


ODD = {
    "a digit to Hadoop": ("\\d*", None),
    "of names": ("*", "\\d"),
    "a range behind a backslash": ("[a\\-z]*", None),
    "a class that has no end": ("[!]]*", None),
}


@pytest.mark.parametrize("name", ODD)
def test_a_glob_that_hadoop_reads_in_another_way_is_refused(name: str) -> None:
    path, names = ODD[name]
    with pytest.raises(InvalidJobSpec, match="the glob"):
        listed(f"memory://source-globs/odd/{path}", **({"pathGlobFilter": names} if names else {}))


def test_a_filter_that_hides_whole_folders_of_a_column_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    store = CountingStore("memory://source-globs/filtered")
    for path in ("_metadata", "a.csv", "b.csv", "k=1/b.txt"):
        store.put(path, b"1")
    monkeypatch.setattr(listing, "open_store", lambda uri, access: store)
    found = listed(store.root, pathGlobFilter="{a,b}.{csv,txt}")
    assert [file.name for file in found.files] == ["a.csv", "b.csv", "b.txt"]
    [file] = listed(store.root, pathGlobFilter="*.txt").files
    assert file.values == (("k", "1"),)
    with pytest.raises(InvalidJobSpec, match="leaves out whole folders"):
        listed(store.root, pathGlobFilter="*.csv")


def test_an_error_for_a_source_without_rows_names_the_filter_that_no_file_matches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = CountingStore("memory://source-globs/unmatched")
    store.put("a.csv", b"")
    monkeypatch.setattr(listing, "open_store", lambda uri, access: store)
    assert "the files at memory://source-globs/unmatched are empty" in listed(store.root).no_rows().message
    assert "pathGlobFilter=*.txt" in listed(store.root, pathGlobFilter="*.txt").no_rows().message


def test_files_that_a_stream_has_written_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log says which of them it has finished."""
    store = CountingStore("memory://source-globs/stream")
    for path in ("a.csv", "_spark_metadata/0"):
        store.put(path, b"1")
    monkeypatch.setattr(listing, "open_store", lambda uri, access: store)
    with pytest.raises(InvalidJobSpec, match="the log of the stream"):
        listed(store.root)
    [file] = listed(f"{store.root}/*.csv").files
    assert file.name == "a.csv"
