"""What every store of bytes promises."""

from __future__ import annotations

import gc
import pickle
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.storage import Access, Store, StoreReference, open_named_file, open_store

COMMIT = "_delta_log/00000000000000000000.json"


def names(store: Store) -> list[str]:
    return sorted(info.path for info in store.walk())


def write_and_fail(store: Store, path: str) -> None:
    def write() -> None:
        with store.open_output(path) as file:
            file.write(b"torn")
            raise RuntimeError("disk")

    with pytest.raises(RuntimeError, match="disk"):
        write()


def test_what_is_put_is_read(store: Store) -> None:
    assert store.put_if_absent("a/b/c.json", b"one")
    assert store.read("a/b/c.json") == b"one"
    with store.open_input("a/b/c.json") as file:
        assert file.read(2) == b"on"
        assert file.seek(1) == 1
        assert file.read() == b"ne"


@pytest.mark.parametrize("size_bytes", [2, 3, 4])
def test_a_small_file_is_opened_whole_if_it_has_the_size_that_it_should_have(store: Store, size_bytes: int) -> None:
    store.put("a/x", b"123")
    with store.open_whole("a/x", size_bytes) as file:
        assert not store.is_remote or isinstance(file, pa.BufferReader) == (size_bytes == 3)
        assert (file.size(), file.read()) == (3, b"123")
    with pytest.raises(FileNotFoundError):
        store.open_whole("a/y", size_bytes)


def test_files_that_are_asked_for_at_once_come_in_their_order(store: Store) -> None:
    for number in range(9):
        store.put(f"log/{number}", b"x" * number)
    assert list(store.read_all([f"log/{number}" for number in range(8, -1, -1)])) == [
        b"x" * number for number in range(8, -1, -1)
    ]
    assert list(store.read_all([])) == []
    found = store.read_all(["log/3", "log/none", "log/4"])
    assert next(found) == b"xxx"
    with pytest.raises(FileNotFoundError):
        next(found)
    with pytest.raises(ValueError, match="inside the table"):
        list(store.read_all(["log/1", "../1"]))


def test_put_if_absent_never_replaces(store: Store) -> None:
    assert store.put_if_absent(COMMIT, b"first") is True
    assert store.put_if_absent(COMMIT, b"second") is False
    assert store.read(COMMIT) == b"first"
    assert names(store) == [COMMIT]  # the loser leaves nothing


def test_a_copy_appears_whole_and_replaces_an_older_one(store: Store) -> None:
    other, data = open_store("memory://another-store/t", Access()), bytes(range(256)) * 70_000
    for source in (store, other):
        source.put("a b/é.parquet", data)
        store.put("x/copy", b"older")
        store.copy_in(source, "a b/é.parquet", "x/copy")
        with store.open_input("x/copy") as file:
            assert file.read() == data
        with pytest.raises(FileNotFoundError):
            store.copy_in(source, "none", "x/none")
    assert names(store) == ["a b/é.parquet", "x/copy"]
    with pytest.raises(ValueError, match="inside the table"):
        store.copy_in(other, "a b/é.parquet", "../x")


def test_put_replaces(store: Store) -> None:
    store.put("_delta_log/_last_checkpoint", b"old")
    store.put("_delta_log/_last_checkpoint", b"new")
    assert store.read("_delta_log/_last_checkpoint") == b"new"
    assert names(store) == ["_delta_log/_last_checkpoint"]


def test_a_deleted_name_can_be_taken_again(store: Store) -> None:
    store.put_if_absent(COMMIT, b"first")
    store.delete(COMMIT)
    assert store.stat(COMMIT) is None
    assert store.put_if_absent(COMMIT, b"second") is True


def test_what_is_missing_says_so(store: Store) -> None:
    with pytest.raises(FileNotFoundError):
        store.read("no/such")
    with pytest.raises(FileNotFoundError):
        store.open_input("no/such")
    assert store.stat("no/such") is None
    assert store.list("no/such") == []
    assert list(store.walk()) == []
    store.delete("no/such")
    assert store.delete_empty_directory("no/such") is False


def test_list_gives_the_files_of_one_directory_by_name(store: Store) -> None:
    for name in ("b", "a", "c/d", "c"):
        store.put(f"x/{name}y", name.encode())
    assert [info.path for info in store.list("x")] == ["x/ay", "x/by", "x/cy"]
    assert [info.path for info in store.list("x", start_from="by")] == ["x/by", "x/cy"]
    assert [info.path for info in store.list("x", start_from="bz")] == ["x/cy"]
    assert [info.size_bytes for info in store.list("x")] == [1, 1, 1]
    store.put("top", b"1")
    assert [info.path for info in store.list("")] == ["top"]


def test_a_directory_is_not_a_prefix(store: Store) -> None:
    store.put("day=1/f", b"1")
    store.put("day=10/f", b"1")
    assert [info.path for info in store.list("day=1")] == ["day=1/f"]


def test_walk_gives_every_file_at_any_depth(store: Store) -> None:
    paths = ["f", "a/f", "a/b/c/f", "_delta_log/x", ".hidden/f", "day=2024 a%3Ab/é+\U0001f600.parquet"]
    for path in paths:
        store.put(path, b"12345")
    assert names(store) == sorted(paths)
    assert sorted(info.path for info in store.walk(lazily=True)) == sorted(paths)
    assert {info.size_bytes for info in store.walk()} == {5}


def test_stat_and_list_agree(store: Store) -> None:
    before = store.now_ms()
    store.put("a/f", b"1234")
    after = store.now_ms()
    info = store.stat("a/f")
    assert info is not None
    assert (info.path, info.size_bytes) == ("a/f", 4)
    assert before <= info.modified_ms <= after
    assert [info] == store.list("a") == list(store.walk())


def test_the_stores_clock_leaves_nothing_behind(store: Store) -> None:
    store.put(COMMIT, b"{}")
    assert abs(store.now_ms() - time.time() * 1000) < 60_000
    assert names(store) == [COMMIT]


def test_an_output_appears_when_it_is_closed_and_not_before(store: Store) -> None:
    with store.open_output("p/part-0.parquet") as file:
        file.write(b"half")
        assert store.stat("p/part-0.parquet") is None
        file.write(b" and half")
        assert file.tell() == 13
    assert store.read("p/part-0.parquet") == b"half and half"
    assert names(store) == ["p/part-0.parquet"]


def test_an_output_that_fails_leaves_nothing(store: Store) -> None:
    write_and_fail(store, "p/part-0.parquet")
    assert names(store) == []


def test_an_output_that_is_dropped_is_not_published(store: Store) -> None:
    file = store.open_output("p/part-0.parquet")
    file.write(b"half")
    del file
    gc.collect(1)
    assert names(store) == []


def test_an_output_does_not_replace_a_good_file_by_a_torn_one(store: Store) -> None:
    store.put("p/x", b"good")
    write_and_fail(store, "p/x")
    assert store.read("p/x") == b"good"


# --- data files -----------------------------------------------------------------------------------------------------


def test_a_new_file_is_there_once_it_is_closed(store: Store) -> None:
    table = pa.table({"a": list(range(10_000))})
    with store.open_new("day=1/x.parquet") as file, pq.ParquetWriter(file.sink, table.schema) as writer:
        writer.write_table(table)
    info = store.stat("day=1/x.parquet")
    assert info is not None
    with store.open_input("day=1/x.parquet") as source:
        assert source.size() == info.size_bytes
        assert pq.read_table(source).equals(table)


def test_a_new_file_is_put_at_once(store: Store) -> None:
    modified_ms = store.put_new("day=1/x", pa.py_buffer(b"rows"))
    info = store.stat("day=1/x")
    assert info is not None
    assert modified_ms in (None, info.modified_ms)
    assert store.read("day=1/x") == b"rows"
    with pytest.raises(FileExistsError):
        store.put_new("day=1/x", pa.py_buffer(b"other"))
    assert store.read("day=1/x") == b"rows"


def test_a_new_file_that_fails_or_is_dropped_leaves_nothing(store: Store) -> None:
    def write() -> None:
        with store.open_new("p/x.parquet") as file:
            file.write(b"torn")
            raise RuntimeError("disk")

    with pytest.raises(RuntimeError, match="disk"):
        write()
    file = store.open_new("p/y.parquet")
    file.write(b"half")
    del file
    gc.collect(1)
    assert names(store) == []


def test_a_new_file_does_not_take_the_name_of_another(store: Store) -> None:
    store.put("p/x", b"good")

    def write() -> None:
        with store.open_new("p/x") as file:
            file.write(b"other")

    with pytest.raises(FileExistsError):
        write()
    assert store.read("p/x") == b"good"
    assert names(store) == ["p/x"]


def test_a_store_is_opened_again_by_its_reference_in_another_process(store: Store) -> None:
    store.put("p/x", b"1")
    reference = pickle.loads(pickle.dumps(StoreReference.of(store)))
    assert reference == StoreReference.of(store)
    again = reference.open()
    assert (again.root, again.access) == (store.root, store.access)
    assert again.open_input("p/x").read() == b"1"


def test_a_file_that_is_named_by_its_own_uri_is_read(store: Store) -> None:
    store.put("reports/x", b"1")
    with open_named_file(f"{store.root}/reports/x", store.access) as file:
        assert file.read() == b"1"
    with pytest.raises(FileNotFoundError):
        open_named_file(f"{store.root}/reports/gone", store.access)


# --- what pyarrow does ----------------------------------------------------------------------------------------------


def test_pyarrow_writes_and_reads_through_a_store(store: Store) -> None:
    table = pa.table({"a": list(range(10_000))})
    with store.open_output("p/x.parquet") as file:
        pq.write_table(table, file, row_group_size=1000)
    assert pq.read_table(store.open_input("p/x.parquet")).equals(table)


def test_pyarrow_failing_in_the_middle_publishes_nothing(store: Store) -> None:
    schema = pa.schema([("a", pa.int64())])

    def write() -> None:
        with store.open_output("p/x.parquet") as file, pq.ParquetWriter(file, schema) as writer:
            writer.write_table(pa.table({"a": [1]}, schema=schema))
            writer.write_table(pa.table({"b": [1]}))

    with pytest.raises(ValueError, match="schema"):
        write()
    gc.collect(1)
    assert names(store) == []


@pytest.mark.parametrize(
    "path",
    ["", "/", "/etc/x", "..", "../x", "a/../../x", "a/../x", "./x", "a//x", "a/", "a/.", "a\0b", "file:///etc/x"],
)
def test_nothing_outside_the_root_is_written_or_deleted(store: Store, path: str) -> None:
    store.put(COMMIT, b"{}")
    operations: list[Callable[[], object]] = [
        lambda: store.delete(path),
        lambda: store.delete_empty_directory(path),
        lambda: store.put(path, b"x"),
        lambda: store.put_if_absent(path, b"x"),
        lambda: store.open_output(path),
        lambda: store.open_new(path),
        lambda: store.put_new(path, pa.py_buffer(b"x")),
    ]
    for operation in operations:
        with pytest.raises(ValueError, match="refused"):
            operation()
    assert names(store) == [COMMIT]


def test_many_threads_put_one_name_and_one_wins(store: Store) -> None:
    """However often the interpreter switches threads: this is what the builtin exclusive create gets wrong."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads, rounds = 8, 15 if store.is_remote else 60
    try:
        with ThreadPoolExecutor(threads) as pool:
            for version in range(rounds):
                barrier = threading.Barrier(threads)
                path = f"_delta_log/{version:020d}.json"

                def put(number: int, path: str = path, barrier: threading.Barrier = barrier) -> bool:
                    barrier.wait()
                    return store.put_if_absent(path, b"%d" % number * 1000)

                won = list(pool.map(put, range(threads)))
                assert won.count(True) == 1
                assert store.read(path) == b"%d" % won.index(True) * 1000
    finally:
        sys.setswitchinterval(interval)
    assert len(names(store)) == rounds


def test_a_reader_never_sees_a_part(store: Store) -> None:
    size = 200_000
    seen: set[int] = set()
    stop = threading.Event()

    def read() -> None:
        is_last = False
        while not is_last:
            is_last = stop.is_set()
            for info in store.list("_delta_log"):
                if info.path.endswith(".json"):
                    seen.add(info.size_bytes)
                    seen.add(len(store.read(info.path)))

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        for version in range(10 if store.is_remote else 40):
            store.put_if_absent(f"_delta_log/{version:020d}.json", b"x" * size)
            store.put("_delta_log/hint.json", b"y" * size)
        stop.set()
        for reader in readers:
            reader.result()
    assert seen == {size}


def test_a_listing_beside_writers_is_in_order_and_misses_nothing_that_was_there(store: Store) -> None:
    for version in range(20):
        store.put_if_absent(f"_delta_log/{version:020d}.json", b"{}")

    def write() -> None:
        for version in range(20, 60 if store.is_remote else 300):
            store.put_if_absent(f"_delta_log/{version:020d}.json", b"{}")

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(write)
        while not writer.done():
            found = [info.path for info in store.list("_delta_log") if info.path.endswith(".json")]
            assert found == sorted(found)
            assert found[:20] == [f"_delta_log/{version:020d}.json" for version in range(20)]
        writer.result()


def test_a_walk_by_a_prefix_finds_what_begins_with_it_and_nothing_else(store: Store) -> None:
    for path in ("2024-01/x/a", "2024-02/b", "2025-01/c", "2024-", "d"):
        store.put(path, b"1")
    assert sorted(info.path for info in store.walk(prefix="2024-")) == ["2024-", "2024-01/x/a", "2024-02/b"]
