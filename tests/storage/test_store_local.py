"""What the local store promises beyond the contract: processes, kills, symlinks, directories."""

from __future__ import annotations

import errno
import os
import pickle
import random
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.errors import OutsideTable, TableNotFound, UnsupportedStore
from airflow_txlog.storage import Access, LocalStore, local_files
from tests.helpers.arrow import needs_arrow
from tests.helpers.forks import FORKS


def race(directory: str, number: int, barrier: Barrier, versions: int) -> None:
    """Put every version at the same moment as the others, and note the ones won."""
    store = LocalStore(directory)
    for version in range(versions):
        barrier.wait(300)
        if store.put_if_absent(f"_delta_log/{version:020d}.json", b"%d" % number * 5000):
            store.put(f"won/{version}-{number}", b"")


def test_many_processes_put_one_name_and_one_wins(tmp_path: Path) -> None:
    processes, versions = 4, 50
    barrier = FORKS.Barrier(processes)
    running = [FORKS.Process(target=race, args=(str(tmp_path), n, barrier, versions)) for n in range(processes)]
    for process in running:
        process.start()
    for process in running:
        process.join(400)
        assert process.exitcode == 0
    store = LocalStore(str(tmp_path))
    won = sorted(info.path.removeprefix("won/") for info in store.list("won"))
    assert sorted(int(name.split("-")[0]) for name in won) == list(range(versions))
    for name in won:
        version, number = map(int, name.split("-"))
        assert store.read(f"_delta_log/{version:020d}.json") == b"%d" % number * 5000


def commit_for_ever(directory: str) -> None:
    store = LocalStore(directory)
    version = 0
    while True:
        store.put_if_absent(f"_delta_log/{version:020d}.json", b"x" * 3_000_000)
        version += 1


@pytest.mark.slow("kills processes in the middle of a write")
def test_a_killed_writer_leaves_no_partial_file_and_blocks_no_version(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    for seed in range(3):
        process = FORKS.Process(target=commit_for_ever, args=(str(tmp_path),))
        process.start()
        before = len(store.list("_delta_log"))
        while len(store.list("_delta_log")) < before + 2:
            time.sleep(0.001)
        time.sleep(random.Random(seed).random() * 0.05)
        process.kill()
        process.join(120)
        versions = [info for info in store.list("_delta_log") if info.path.endswith(".json")]
        assert {info.size_bytes for info in versions} == {3_000_000}
        assert store.put_if_absent(f"_delta_log/{len(versions):020d}.json", b"x" * 3_000_000)


def test_a_file_system_without_hard_links_is_refused_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: str, target: str, **_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    store = LocalStore(str(tmp_path))
    with pytest.raises(UnsupportedStore) as caught:
        store.put_if_absent("_delta_log/00000000000000000000.json", b"{}")
    assert caught.value.uri == f"file://{tmp_path}"
    assert list(store.walk()) == []


def test_an_error_of_the_disk_is_raised_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = LocalStore(str(tmp_path))
    store.put("_delta_log/x", b"")
    monkeypatch.setattr(os, "fsync", fsync)
    for put in (store.put, store.put_if_absent):
        with pytest.raises(OSError, match="No space left"):
            put("_delta_log/00000000000000000000.json", b"{}")
    with pytest.raises(OSError, match="No space left"), store.open_output("_delta_log/cp") as file:
        file.write(b"x")
    assert [info.path for info in store.walk()] == ["_delta_log/x"]


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[tuple[LocalStore, Path]]:
    """A table that holds a symlinked directory and a symlinked file, both leading out of it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"precious")
    (outside / "empty").mkdir()
    table = tmp_path / "t"
    table.mkdir()
    (table / "inside").write_bytes(b"1")
    (table / "dir").symlink_to(outside)
    (table / "file").symlink_to(outside / "f")
    (table / "nothing").symlink_to(outside / "no-such")
    (table / "loop").symlink_to(table)
    yield LocalStore(str(table)), outside
    assert (outside / "f").read_bytes() == b"precious"
    assert (outside / "empty").is_dir()


def test_links_are_listed_where_they_are(linked: tuple[LocalStore, Path]) -> None:
    store, _ = linked
    below = Path(store.root.removeprefix("file://")) / "below"
    below.mkdir()
    (below / "link").symlink_to("nowhere")
    assert sorted(store.links()) == ["below/link", "dir", "file", "loop", "nothing"]


def test_walk_follows_no_symlink(linked: tuple[LocalStore, Path]) -> None:
    store, _ = linked
    assert [info.path for info in store.walk()] == ["inside"]
    assert store.list_directories() == []


def test_nothing_is_deleted_through_a_symlink(linked: tuple[LocalStore, Path]) -> None:
    store, _ = linked
    with pytest.raises(OutsideTable, match="'dir'"):
        store.delete("dir/f")
    with pytest.raises(OutsideTable, match="'dir'"):
        store.delete_empty_directory("dir/empty")
    store.delete("file")  # the link itself, not what it points to


def test_a_table_may_be_reached_through_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "t").symlink_to(tmp_path / "real")
    store = LocalStore(str(tmp_path / "t"))
    assert store.put_if_absent("a/f", b"1")
    assert [info.path for info in store.walk()] == ["a/f"]
    store.delete("a/f")
    assert store.delete_empty_directory("a")
    assert store.root == f"file://{tmp_path}/t"


def test_below_a_file_there_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for root, path in (("file", "_delta_log/0.json"), ("file/t", "a"), ("", "file/a")):
        store = LocalStore(str(tmp_path / root))
        with pytest.raises(FileNotFoundError):
            store.read(path)
        assert store.stat(path) is None
    for uri in (tmp_path / "file", tmp_path / "file" / "t"):
        with pytest.raises(TableNotFound):
            Table.open(str(uri)).snapshot()


def test_directories_are_listed_deepest_first_and_deleted_only_when_empty(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.put("a/b/c/f", b"1")
    store.put("a/g", b"1")
    assert store.list_directories() == ["a/b/c", "a/b", "a"]
    assert not store.delete_empty_directory("a/b/c")
    store.delete("a/b/c/f")
    assert store.delete_empty_directory("a/b/c")
    assert store.delete_empty_directory("a/b")
    assert not store.delete_empty_directory("a")
    assert [info.path for info in store.walk()] == ["a/g"]


def test_a_directory_deleted_under_a_writer_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(str(tmp_path))
    real, calls = os.mkdir, []

    def mkdir(path: str, mode: int, *, dir_fd: int) -> None:
        real(path, mode, dir_fd=dir_fd)
        calls.append(path)
        if len(calls) == 1:
            os.rmdir(path, dir_fd=dir_fd)  # a vacuum, just now

    monkeypatch.setattr(os, "mkdir", mkdir)
    with store.open_output("p/f") as file:
        file.write(b"1")
    assert store.read("p/f") == b"1"
    assert len(calls) == 2


@needs_arrow(25, "an OSFile that is written has no descriptor")
def test_a_new_file_gives_its_time_without_a_look_up(tmp_path: Path) -> None:
    output = LocalStore(str(tmp_path)).open_new("day=1/new.parquet")
    output.write(b"rows")
    output.close()
    found = LocalStore(str(tmp_path)).stat("day=1/new.parquet")
    assert found is not None
    assert (output.modified_ms, found.size_bytes) == (found.modified_ms, 4)


def test_a_file_that_is_read_again_is_read_from_the_disk_once_and_then_forgotten(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))

    def content(*, is_read_again: bool = False) -> bytes:
        with store.open_whole("x", 4, is_read_again=is_read_again) as file:
            found: bytes = file.read()
        return found

    def is_kept() -> bool:
        (tmp_path / "x").write_bytes(b"rows")
        assert content(is_read_again=True) == b"rows"
        (tmp_path / "x").write_bytes(b"ROWS")
        return content() == b"rows"

    assert not is_kept()
    store.keeps_files = True
    assert is_kept()
    assert content() == b"ROWS"
    assert content(is_read_again=True) == b"ROWS"
    assert store.let_go() == 4
    (tmp_path / "x").unlink()
    with pytest.raises(FileNotFoundError):
        content()


def test_a_file_outside_the_table_can_be_read_but_not_touched(tmp_path: Path) -> None:
    """A shallow clone names the files of its source by absolute URI."""
    (tmp_path / "source f").write_bytes(b"1")
    store = LocalStore(str(tmp_path / "t"), Access(allow_absolute_paths=True))
    assert store.open_input(f"file://{tmp_path}/source f").read() == b"1"
    assert store.stat(f"file://{tmp_path}/source f") is not None
    with pytest.raises(ValueError, match="refused"):
        store.delete(f"file://{tmp_path}/source f")


def test_temporary_names_are_hidden_in_the_log_and_swept_elsewhere(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    log, data = store.open_output("_delta_log/x.parquet"), store.open_output("day=1/x.parquet")
    paths = [info.path for info in store.walk()]
    assert sorted(path[0:16] for path in paths) == ["_delta_log/.x.pa", "day=1/x.parquet."]
    log.discard()
    data.discard()
    assert list(store.walk()) == []


def forbid_listing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As for a user who may not list folders of this name, and may pass through them."""
    real = os.open

    def opened(path: str, flags: int, *arguments: Any, **more: Any) -> int:
        if os.path.basename(path) == name and not flags & os.O_PATH:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path, flags, *arguments, **more)

    monkeypatch.setattr(os, "open", opened)


def test_a_folder_that_may_not_be_read_is_left_out_of_a_walk_that_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(str(tmp_path / "t"))
    store.put("a/f", b"1")
    store.put("private/inner/f", b"1")
    forbid_listing(monkeypatch, "private")
    unreadable: list[str] = []
    assert [info.path for info in store.walk(unreadable.append)] == ["a/f"]
    assert unreadable == ["private"]
    assert store.list_directories() == ["a"]
    with pytest.raises(PermissionError):
        list(store.walk())


def test_a_table_whose_folder_may_not_be_read_is_not_listed_as_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(str(tmp_path / "t"))
    store.put("a/f", b"1")
    forbid_listing(monkeypatch, "t")
    with pytest.raises(PermissionError):
        list(store.walk([].append))


def test_a_store_in_another_process_keeps_files_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"rows")
    store = LocalStore(str(tmp_path))
    store.keeps_files = True
    with store.open_whole("x", 4, is_read_again=True):
        pass
    there = pickle.loads(pickle.dumps(store))
    assert (there.let_go(), store.let_go()) == (0, 4)


def test_the_first_error_of_a_new_file_is_the_one_that_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(local_files, "write_whole", full)
    monkeypatch.setattr(LocalStore, "delete", read_only)
    with pytest.raises(OSError, match="No space left") as caught:
        LocalStore(str(tmp_path)).put_new("x", pa.py_buffer(b"rows"))
    assert caught.value.filename == f"{tmp_path}/x"
