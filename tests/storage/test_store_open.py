"""Which URI opens which store."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest

from airflow_txlog import storage
from airflow_txlog.clock import SystemClock
from airflow_txlog.engine import Table
from airflow_txlog.errors import UnsupportedStore
from airflow_txlog.locations import local_path
from airflow_txlog.storage import PLAIN, Access, LocalStore, MemoryStore, Store, StoreReference, open_store
from tests.helpers.rows import append


@pytest.mark.parametrize(
    ("uri", "root"),
    [
        ("/lake/t", "file:///lake/t"),
        ("/lake/t/", "file:///lake/t"),
        ("/lake//a/../t", "file:///lake/t"),
        ("file:/lake/t", "file:///lake/t"),
        ("file:///lake/t/", "file:///lake/t"),
        ("FILE://localhost/lake/t", "file:///lake/t"),
        ("/lake/my table%20", "file:///lake/my table%20"),
        ("memory://lake/t/", "memory://lake/t"),
        ("memory:///lake/t", "memory://lake/t"),
    ],
)
def test_a_uri_has_one_root(uri: str, root: str) -> None:
    assert open_store(uri, PLAIN).root == root


def test_a_relative_path_counts_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("t", PLAIN).root == f"file://{tmp_path}/t"
    assert open_store("a:b", PLAIN).root == f"file://{tmp_path}/a:b"
    assert open_store(tmp_path / "t", PLAIN).root == f"file://{tmp_path}/t"


@pytest.mark.parametrize(
    ("uri", "filesystem"),
    [
        ("hdfs://nn/t", "hdfs"),
        ("dbfs:/t", "dbfs"),
        ("https://host/t", "https"),
        ("file://otherhost/t", "file"),
        ("simplecache::s3://bucket/t", "simplecache"),
        ("local:///lake/t", "local"),
    ],
)
def test_any_other_file_system_is_refused_by_name(uri: str, filesystem: str) -> None:
    with pytest.raises(UnsupportedStore) as caught:
        open_store(uri, PLAIN)
    assert caught.value.filesystem == filesystem
    assert f'"{filesystem}"' in str(caught.value)
    assert "memory://" in str(caught.value)


@pytest.mark.parametrize("uri", ["s3://KEY:hidden@bucket/t", "gs://user:hidden@bucket/t", "ftp://user:hidden@host/t"])
def test_a_password_in_the_uri_is_refused_and_not_shown(uri: str) -> None:
    with pytest.raises(UnsupportedStore, match="storage_conn_id") as caught:
        open_store(uri, PLAIN)
    assert "hidden" not in str(caught.value) + repr(caught.value.facts)


@pytest.mark.parametrize(
    "uri", ["simplecache::s3://bucket/t", "simplecache:///t", "local:///lake/t", "zip://a/t", "none-such://a/t"]
)
def test_a_wrapper_is_refused_for_a_single_writer_too(uri: str) -> None:
    with pytest.raises(UnsupportedStore):
        open_store(uri, Access(single_writer=True))


def test_each_commit_of_a_single_writer_is_logged_with_its_table(
    unproven: Store, caplog: pytest.LogCaptureFixture
) -> None:
    table = Table.create(unproven, pa.schema([("id", pa.int64())]))
    with pytest.raises(UnsupportedStore, match="single_writer"):
        open_store(unproven.root, PLAIN)
    for version in (1, 2):
        caplog.clear()
        append(table, pa.table({"id": [version]}))
        messages = [each.getMessage() for each in caplog.records]
        assert [unproven.root in message for message in messages if "put-if-absent" in message] == [True]
    assert Table.at(unproven.root, unproven.access).to_arrow().num_rows == 2


@pytest.mark.parametrize("uri", ["", "memory://", "memory:///"])
def test_a_uri_that_names_nothing_is_refused(uri: str) -> None:
    with pytest.raises(UnsupportedStore):
        open_store(uri, PLAIN)


def test_a_store_is_returned_as_it_is() -> None:
    store = MemoryStore("memory://x")
    assert open_store(store, PLAIN) is store


def test_others_see_the_memory_store_through_fsspec() -> None:
    store = open_store("memory://seen-by-others/t", PLAIN)
    assert isinstance(store, MemoryStore)
    store.put_if_absent("a/f", b"1")
    fs = fsspec.filesystem("memory")
    assert fs.cat_file("memory://seen-by-others/t/a/f") == b"1"
    fs.pipe_file("memory://seen-by-others/t/a/g", b"2")
    assert store.read("a/g") == b"2"
    store.delete("a/f")
    store.delete("a/g")
    assert not fs.exists("memory://seen-by-others/t/a/f")


def test_the_memory_store_takes_its_times_from_its_clock() -> None:
    class Fixed(SystemClock):
        def now_ms(self) -> int:
            return 1_700_000_000_123

    store = MemoryStore("memory://timed", clock=Fixed())
    store.put("f", b"")
    info = store.stat("f")
    assert info is not None
    assert info.modified_ms == store.now_ms() == 1_700_000_000_123
    store.delete("f")


MISSING = """
import sys
from airflow_txlog.errors import UnsupportedStore
from airflow_txlog.storage import PLAIN, open_store
for package, uri in (("botocore", "s3://b/t"), ("google", "gs://b/t"), ("azure", "abfss://b@lake.dfs.core.windows.net/t")):
    sys.modules[package] = None
    try:
        open_store(uri, PLAIN)
    except UnsupportedStore as error:
        print(error)
"""


def test_the_extra_that_a_store_needs_is_named_where_its_client_is_missing() -> None:
    done = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True, check=True)
    said = done.stdout.splitlines()
    assert [
        re.findall(r"needs the package (\w+).* Install airflow-provider-txlog\[(\w+)\]", each) for each in said
    ] == [
        [("botocore", "s3")],
        [("google", "gcs")],
        [("azure", "azure")],
    ]


def test_opening_a_local_store_touches_nothing(tmp_path: Path) -> None:
    assert isinstance(open_store(str(tmp_path / "t"), PLAIN), LocalStore)
    assert list(tmp_path.iterdir()) == []


def test_tasks_share_the_open_store_of_their_process_and_open_their_own_in_another(tmp_path: Path) -> None:
    store = open_store(tmp_path, PLAIN)
    reference = StoreReference.of(store)
    assert reference.open() is store
    sent: StoreReference = pickle.loads(pickle.dumps(reference))
    assert sent == reference
    assert sent.open() is not store


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/lake/t", "/lake/t"),
        ("file:///lake/t%20", "/lake/t%20"),
        ("file:/lake/t", "/lake/t"),
        ("FILE://localhost/t", "/t"),
        ("a:b", "a:b"),
        ("lake", "lake"),
        ("file://host/t", None),
        ("file:////host/t", None),
        ("file://", None),
        ("s3://bucket/t", None),
    ],
)
def test_a_location_has_one_path_on_this_machine_or_none(text: str, path: str | None) -> None:
    assert local_path(text) == path


def test_a_store_of_another_kind_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, Access]] = []

    def open_other(uri: str, access: Access) -> Store:
        opened.append((uri, access))
        return MemoryStore("memory://other", access)

    monkeypatch.setitem(storage.STORES, "other", open_other)
    access = Access(storage_options={"profile": "lake"})
    assert open_store("other://bucket/t", access).access is access
    assert opened == [("other://bucket/t", access)]


def test_callers_of_one_s3_server_are_told_apart_without_a_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("[profile other]\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))

    def mark(**more: str) -> str:
        options = {"endpoint_url": "http://127.0.0.1:1", "key": "k", "secret": "hidden", "token": "hidden"} | more
        found = open_store("s3://b/t", Access(storage_options=options)).access_mark
        assert found is not None
        assert "hidden" not in found
        return found

    first = mark()
    assert first == mark(secret="hidden", token="hidden too")
    marks = {first, mark(key="other"), mark(endpoint_url="http://127.0.0.1:2")}
    for name in ("HOME", "AWS_PROFILE", "AWS_ROLE_ARN"):
        monkeypatch.setenv(name, "other")
        marks.add(mark())
    assert len(marks) == 6
