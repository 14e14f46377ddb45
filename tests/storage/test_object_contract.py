"""What every store promises of names, sizes and many files, and what object stores promise beside it."""

from __future__ import annotations

import errno
import gc
import hashlib
import os
import queue
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_txlog.engine.log.paths import Visibility
from airflow_txlog.engine.upkeep.vacuum_plan import is_leftover
from airflow_txlog.storage import Store, StoreReference
from airflow_txlog.storage.objects import ObjectStore
from airflow_txlog.storage.s3 import S3Bucket
from tests.helpers.contending import winners
from tests.helpers.depth import in_long

MIB = 1024 * 1024
ODD_NAMES = ["a b", "a%3Ab", "a%20b", "é", "e\u0301", "\U0001f600", "a?b#c&d+e", "a=b;c", "~'()!*", "x@y:z", "[a]{b}"]


def bytes_of(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def write(store: Store, path: str, content: bytes) -> None:
    with store.open_new(path) as file:
        for start in range(0, len(content), MIB):
            file.write(content[start : start + MIB])


def names(store: Store) -> list[str]:
    return sorted(info.path for info in store.walk())


@pytest.fixture
def small_pages(object_store: Store) -> Store:
    """A store whose listings have three names a page."""
    assert isinstance(object_store, ObjectStore)
    object_store._bucket.page_keys = 3
    return object_store


def test_odd_names_are_names(store: Store) -> None:
    for name in ODD_NAMES:
        assert store.put_if_absent(f"d {name}/{name}", name.encode())
        assert not store.put_if_absent(f"d {name}/{name}", b"other")
        assert [info.path for info in store.list(f"d {name}", start_from=name)] == [f"d {name}/{name}"]
        assert store.read(f"d {name}/{name}") == name.encode()
        assert store.open_input(f"d {name}/{name}").read() == name.encode()
    assert names(store) == sorted(f"d {name}/{name}" for name in ODD_NAMES)
    for name in ODD_NAMES:
        store.delete(f"d {name}/{name}")
    assert names(store) == []


def test_keys_that_are_no_path_are_named_apart(object_store: Store) -> None:
    assert isinstance(object_store, ObjectStore)
    for path, content in (("a//b", b"x"), ("a/", b"x"), ("folder/", b""), ("a/b", b"x")):
        object_store._bucket.put(object_store._prefix + path, content, if_absent=False)
    assert names(object_store) == ["a/b"]
    assert sorted(object_store.odd_keys()) == ["a/", "a//b"]


def test_an_empty_object_that_stands_for_a_folder_is_no_file_and_goes_alone(object_store: Store) -> None:
    assert isinstance(object_store, ObjectStore)
    for path, content in (("a/", b"x"), ("a b/c/", b""), ("a b/c/d", b""), ("e", b"")):
        object_store._bucket.put(object_store._prefix + path, content, if_absent=False)
    assert names(object_store) == ["a b/c/d", "e"]
    assert object_store.folder_markers() == ["a b/c"]
    object_store.delete_folder_marker("a b/c")
    assert object_store.folder_markers() == []
    assert names(object_store) == ["a b/c/d", "e"]


def test_what_a_killed_writer_leaves_has_a_name_that_vacuum_sweeps(unproven: Store) -> None:
    outputs = [unproven.open_output("_delta_log/00000000000000000000.json"), unproven.open_new("day=1/x.parquet")]
    in_log, beside_data = names(unproven)
    assert is_leftover(in_log)
    assert Visibility(["day"]).is_visible(beside_data)
    for output in outputs:
        output.discard()
    assert names(unproven) == []


def test_an_empty_file_is_a_file(store: Store) -> None:
    assert store.put_if_absent("put", b"")
    assert not store.put_if_absent("put", b"")
    with store.open_output("output"):
        pass
    with store.open_new("new"):
        pass
    for path in ("put", "output", "new"):
        assert store.read(path) == b""
        with store.open_input(path) as file:
            assert (file.size(), file.read(10)) == (0, b"")
    assert [info.size_bytes for info in store.list("")] == [0, 0, 0]


@pytest.mark.parametrize("size", [17 * MIB + 5, *in_long("whole parts", 16 * MIB)])
def test_a_large_file_is_what_was_written(store: Store, size: int) -> None:
    content = bytes_of(size, size)
    write(store, "day=1/x", content)
    with store.open_input("day=1/x") as file:
        assert file.size() == size
        assert hashlib.sha256(file.read()).digest() == hashlib.sha256(content).digest()
    with store.open_output("log") as output:
        output.write(content)
    assert store.stat("log").size_bytes == size  # type: ignore[union-attr]
    assert names(store) == ["day=1/x", "log"]


def test_a_large_file_that_fails_or_finds_its_name_taken_leaves_nothing(store: Store) -> None:
    content = bytes(17 * MIB)

    def fail() -> None:
        with store.open_new("failed") as file:
            file.write(content)
            raise RuntimeError("disk")

    with pytest.raises(RuntimeError, match="disk"):
        fail()
    assert names(store) == []
    # An S3 server may not know the condition where a file is made of parts, and radosgw 16 does not.
    if not store.root.startswith("s3:"):
        store.put("taken", b"good")
        with pytest.raises(FileExistsError):
            write(store, "taken", content)
        assert store.read("taken") == b"good"
        assert names(store) == ["taken"]
    assert store.abort_unfinished(store.now_ms() + 60_000) == 0


def test_a_large_file_that_is_dropped_is_given_up_and_not_by_the_thread_that_drops_it(
    object_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector runs on any thread, also on one that holds a lock of the client."""
    assert isinstance(object_store, ObjectStore)
    bucket = object_store._bucket
    abort, given_up_by = bucket.abort, queue.SimpleQueue[int]()

    def given_up(upload: Any) -> None:
        abort(upload)
        given_up_by.put(threading.get_ident())

    monkeypatch.setattr(bucket, "abort", given_up)
    dropped = object_store.open_new("large")
    dropped.write(bytes_of(1, 2 * bucket.part_bytes + 1))
    del dropped
    assert given_up_by.get(timeout=60) != threading.get_ident()
    assert object_store.abort_unfinished(object_store.now_ms() + 60_000) == 0
    assert names(object_store) == []


def test_a_forked_child_sends_nothing_of_a_file_that_its_parent_writes(object_store: Store) -> None:
    """The child drops its copy of the file, with what Arrow has buffered: here, the end of a part."""
    assert isinstance(object_store, ObjectStore)
    part_bytes = object_store._bucket.part_bytes
    content = bytes_of(1, 2 * part_bytes + 5)
    file = object_store.open_new("x")
    file.write(content[: 2 * part_bytes - 300_000])
    file.write(content[2 * part_bytes - 300_000 : 2 * part_bytes + 1])
    child = os.fork()
    if not child:
        try:
            del file
            gc.collect()
        finally:
            os._exit(len([each for each in threading.enumerate() if each.name.startswith("txlog-upload")]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert object_store.abort_unfinished(object_store.now_ms() + 60_000) == 0
    file.write(content[2 * part_bytes + 1 :])
    file.close()
    assert object_store.read("x") == content


def test_a_part_is_sent_while_the_next_one_is_written(object_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(object_store, ObjectStore)
    bucket, is_written = object_store._bucket, threading.Event()
    put_part = bucket.put_part

    def put_once_the_next_is_written(upload: Any, number: int, data: bytes) -> Any:
        assert is_written.wait(60)
        return put_part(upload, number, data)

    monkeypatch.setattr(bucket, "put_part", put_once_the_next_is_written)
    content = bytes_of(1, 2 * bucket.part_bytes + 5)
    with object_store.open_new("x") as file:
        file.write(content[: 2 * bucket.part_bytes])
        is_written.set()
        file.write(content[2 * bucket.part_bytes :])
    assert object_store.read("x") == content


def test_a_part_that_cannot_be_sent_fails_the_file_and_leaves_nothing(
    object_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(object_store, ObjectStore)
    bucket = object_store._bucket
    put_part = bucket.put_part

    def refuse_the_second(upload: Any, number: int, data: bytes) -> Any:
        if number == 2:
            raise PermissionError(errno.EACCES, "refused", "x")
        return put_part(upload, number, data)

    monkeypatch.setattr(bucket, "put_part", refuse_the_second)
    file = object_store.open_new("x")
    # It is seen where the file is written on, and at the latest where it is closed.
    file.write(bytes(2 * bucket.part_bytes + 1))
    with pytest.raises(PermissionError, match="refused"):
        file.close()
    assert names(object_store) == []
    assert object_store.abort_unfinished(object_store.now_ms() + 60_000) == 0


def test_a_file_is_given_up_once_no_part_is_under_way(object_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service would keep a part that arrives after the others were dropped, and bill it."""
    assert isinstance(object_store, ObjectStore)
    bucket = object_store._bucket
    put_part, abort = bucket.put_part, bucket.abort
    is_sending, may_go_on, is_dropped = threading.Event(), threading.Event(), threading.Event()
    happened: list[str] = []

    def put_later(upload: Any, number: int, data: bytes) -> Any:
        is_sending.set()
        assert may_go_on.wait(60)
        sent = put_part(upload, number, data)
        happened.append("sent")
        return sent

    def drop(upload: Any) -> None:
        happened.append("dropped")
        is_dropped.set()
        abort(upload)

    monkeypatch.setattr(bucket, "put_part", put_later)
    monkeypatch.setattr(bucket, "abort", drop)
    file = object_store.open_new("x")
    file.write(bytes(2 * bucket.part_bytes))
    assert is_sending.wait(60)
    giving_up = threading.Thread(target=file.discard)
    giving_up.start()
    is_too_early = is_dropped.wait(0.3)
    may_go_on.set()
    giving_up.join(60)
    assert not is_too_early
    assert happened == ["sent"] * (len(happened) - 1) + ["dropped"]
    assert object_store.abort_unfinished(object_store.now_ms() + 60_000) == 0
    assert names(object_store) == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("txlog-upload")]


def test_a_file_is_read_by_ranges(store: Store) -> None:
    content = bytes_of(1, 300_000)
    write(store, "x", content)
    draw = random.Random(2)
    with store.open_input("x") as file:
        for _ in range(20):
            start, length = draw.randrange(len(content)), draw.randrange(200_000)
            file.seek(start)
            assert file.read(length) == content[start : start + length]
        file.seek(len(content))
        assert file.read(5) == b""
        file.seek(-5, os.SEEK_END)
        assert file.read() == content[-5:]


def test_files_are_deleted_many_at_once_and_those_that_are_gone_are_no_error(store: Store) -> None:
    paths = [f"d/{name}" for name in (*ODD_NAMES, *"abcdefgh")]
    for path in paths:
        store.put(path, b"1")
    store.put("d/kept", b"1")
    deleted = [*paths[:4], "d/never there", *paths[4:]]
    for start in range(0, len(deleted), store.deletes_at_once):
        assert store.delete_many(deleted[start : start + store.deletes_at_once]) == {}
    assert names(store) == ["d/kept"]


def test_a_listing_of_several_pages_is_whole_and_in_order(small_pages: Store) -> None:
    paths = [f"log/{number:02d}" for number in range(10)] + ["log/deep/a", "log/deep/b"]
    for path in paths:
        small_pages.put(path, b"1")
    assert [info.path for info in small_pages.list("log")] == paths[:10]
    assert [info.path for info in small_pages.list("log", start_from="04")] == paths[4:10]
    assert names(small_pages) == sorted(paths)


@pytest.mark.long("a thousand files in three servers")
def test_a_listing_goes_past_a_thousand_names(object_store: Store) -> None:
    paths = [f"log/{number:020d}.json" for number in range(1_050)]
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda path: object_store.put_if_absent(path, b"{}"), paths))
    assert [info.path for info in object_store.list("log")] == paths
    assert [info.path for info in object_store.list("log", start_from=paths[30].rpartition("/")[2])] == paths[30:]
    assert names(object_store) == paths


def test_an_object_is_known_by_whole_seconds_and_an_etag_of_its_content(object_store: Store) -> None:
    object_store.put("x", b"one")
    first = object_store.stat("x")
    object_store.put("x", b"two")
    second = object_store.stat("x")
    assert first is not None
    assert second is not None
    assert first.etag != second.etag
    assert first.modified_ms % 1000 == second.modified_ms % 1000 == 0
    assert object_store.list("") == list(object_store.walk()) == [second]


def test_a_file_that_is_replaced_while_it_is_read_is_an_error(object_store: Store) -> None:
    write(object_store, "x", bytes(300_000))
    with object_store.open_input("x") as file:
        object_store.put("x", bytes(300_001))
        with pytest.raises(OSError, match="replaced"):
            file.read(1000)


def test_unfinished_files_are_dropped_where_the_service_does_not(object_store: Store) -> None:
    file = object_store.open_new("x")
    file.write(bytes(17 * MIB))
    assert object_store.abort_unfinished(object_store.now_ms() - 60_000) == 0
    dropped = object_store.abort_unfinished(object_store.now_ms() + 60_000)
    assert dropped == (1 if object_store.root.startswith("s3:") else 0)
    file.discard()
    assert names(object_store) == []


def test_unfinished_files_of_other_folders_stay(object_store: Store) -> None:
    ours, other = object_store.open_new("innermost"), object_store.open_new("inner/x")
    for file in (ours, other):
        file.write(bytes(17 * MIB))
    later_ms = object_store.now_ms() + 60_000
    is_s3 = object_store.root.startswith("s3:")
    assert object_store.abort_unfinished(later_ms, ("inner/",)) == (1 if is_s3 else 0)
    ours.discard()
    other.close()
    assert names(object_store) == ["inner/x"]


@pytest.mark.long("eight processes and 200 keys on each server")
def test_of_eight_processes_one_wins_each_key(object_store: Store) -> None:
    keys = [f"_delta_log/{version:020d}.json" for version in range(200)]
    won = winners(StoreReference.of(object_store), keys)
    assert {key: len(numbers) for key, numbers in won.items()} == dict.fromkeys(keys, 1)
    assert all(object_store.read(key) == b"%d" % numbers[0] for key, numbers in won.items())
    assert len({numbers[0] for numbers in won.values()}) > 1  # or nothing was contended


def test_a_copy_inside_a_service_moves_no_byte_through_this_process(
    object_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(object_store, ObjectStore)
    bucket, small, large = type(object_store._bucket), bytes_of(7, 1000), bytes_of(8, 12 * MIB)
    write(object_store, "a b/é%.bin", small)
    write(object_store, "large", large)
    if bucket is S3Bucket:
        # In parts, as of an object beyond the limit.
        monkeypatch.setattr(S3Bucket, "most_copied_bytes", 6 * MIB)
        monkeypatch.setattr(S3Bucket, "copied_part_bytes", 5 * MIB)
    with monkeypatch.context() as patch:
        for name in ("get", "get_tail", "put", "put_part"):
            patch.setattr(bucket, name, lambda *given, **named: pytest.fail("bytes were moved"))
        object_store.copy_in(object_store, "a b/é%.bin", "x/copy ü")
        object_store.copy_in(object_store, "large", "large-copy")
        with pytest.raises(FileNotFoundError):
            object_store.copy_in(object_store, "none", "x/none")
    assert object_store.open_input("x/copy ü").read() == small
    assert object_store.open_input("large-copy").read() == large
    monkeypatch.setattr(bucket, "copy", lambda *given: False)
    object_store.copy_in(object_store, "large", "streamed")
    assert object_store.open_input("streamed").read() == large
    assert names(object_store) == ["a b/é%.bin", "large", "large-copy", "streamed", "x/copy ü"]
