"""Starts of Spark on one machine: how many at once, in which order, and what a dead or hung process holds up."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_txlog.errors import InvalidInput
from airflow_txlog.process import starting
from airflow_txlog.process.starting import STARTS, cores, most_starts, start_turn

# A process that registers, waits, says that it starts, and is up when its standard input ends.
START = """
import sys
from pathlib import Path
from airflow_txlog.process.starting import start_turn
with start_turn(int(sys.argv[2]), Path(sys.argv[1]), stale_s=float(sys.argv[3])) as turn:
    print("registered", flush=True)
    turn.wait(lambda line: print(line, flush=True))
    print("starts", flush=True)
    sys.stdin.read()
"""


class Starter:
    """A process of its own that starts Spark, which is up when `finish` is called."""

    def __init__(self, folder: Path, most: int, stale_s: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, str(folder), str(most), str(stale_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.line() == "registered"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def begins(self) -> bool:
        """Read the lines until it starts."""
        return any(line == "starts" for line in iter(self.line, ""))

    def is_waiting(self) -> bool:
        """Whether its next line says that it waits."""
        return self.line().startswith("waiting to start Spark, behind ")

    def finish(self) -> None:
        self.process.communicate(timeout=60)


class Machine:
    """The starts in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.starters: list[Starter] = []

    def starter(self, most: int = 1, stale_s: float = 240.0) -> Starter:
        self.starters.append(Starter(self.folder, most, stale_s))
        return self.starters[-1]

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if path.name != "lock")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "starts")
    yield machine
    for starter in machine.starters:
        starter.process.kill()
        starter.process.communicate()


def test_starts_begin_in_the_order_of_arrival_and_no_more_at_once_than_the_limit(machine: Machine) -> None:
    first, second = machine.starter(most=2), machine.starter(most=2)
    assert first.line() == second.line() == "starts"
    third, fourth = machine.starter(most=2), machine.starter(most=2)
    assert third.line() == f"waiting to start Spark, behind 2 on this machine: 2 at a time ({STARTS})"
    assert fourth.is_waiting()
    second.finish()
    assert third.begins()
    assert len(machine.files()) == 3, "the fourth waits for the first or the third"
    first.finish()
    assert fourth.begins()
    for starter in (third, fourth):
        starter.finish()
    assert machine.files() == []


@pytest.mark.parametrize("victim", ["the one that starts", "the one that waits before"])
def test_no_start_waits_for_a_process_that_was_killed(machine: Machine, victim: str) -> None:
    starting, waiting, last = machine.starter(), machine.starter(), machine.starter()
    assert starting.begins()
    assert waiting.is_waiting()
    assert last.is_waiting()
    if victim == "the one that starts":
        starting.process.send_signal(signal.SIGKILL)
        assert waiting.begins()
        waiting.finish()
    else:
        waiting.process.send_signal(signal.SIGKILL)
        waiting.process.wait()
        starting.finish()
    assert last.begins()
    last.finish()
    assert machine.files() == []


def test_a_start_that_hangs_is_passed_after_a_while_and_one_that_waits_is_not(machine: Machine) -> None:
    hung, waiting = machine.starter(stale_s=2), machine.starter(stale_s=2)
    assert hung.begins()
    hung.process.send_signal(signal.SIGSTOP)
    last = machine.starter(stale_s=2)
    assert waiting.begins()
    assert last.is_waiting()
    waiting.finish()
    assert last.begins()
    last.finish()


def test_a_start_that_waits_shows_a_sign_of_life_each_time_it_looks(tmp_path: Path) -> None:
    folder = tmp_path / "starts"
    with start_turn(1, folder), start_turn(1, folder) as waiting, start_turn(1, folder) as last:
        assert last.num_ahead == 2
        for number in ("1", "2"):
            os.utime(folder / number, (1, 1))
        assert waiting.num_ahead == 0, "the first has hung"
        assert last.num_ahead == 1, "the one that waited looked a moment ago"


def test_a_dead_start_is_dead_while_another_process_looks_at_it(tmp_path: Path) -> None:
    folder = tmp_path / "starts"
    with start_turn(1, folder):
        pass
    (folder / "1").touch()
    with open(folder / "1") as other, start_turn(1, folder) as turn:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert turn.num_ahead == 0
        assert not (folder / "1").exists()


def test_starts_are_registered_one_after_another(tmp_path: Path) -> None:
    folder = tmp_path / "starts"

    def register() -> None:
        with start_turn(1, folder):
            pass

    register()
    with open(folder / "lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=register)
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
    thread.join(60)
    assert not thread.is_alive()


def test_a_wait_is_logged_when_it_begins_every_half_minute_and_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    with start_turn(1, tmp_path / "starts") as first, start_turn(1, tmp_path / "starts") as turn:
        clock = PlayedClock(first.end)
        monkeypatch.setattr(starting, "SYSTEM_CLOCK", clock)
        turn.wait(lines.append)
        turn.wait(lines.append)
    assert lines == [
        f"waiting to start Spark, behind 1 on this machine: 1 at a time ({STARTS})",
        "waiting to start Spark for 30 s, behind 1",
        "waiting to start Spark for 60 s, behind 1",
        "waited 70 s to start Spark",
    ]


class PlayedClock:
    """A clock on which each sleep takes ten seconds, and the seventh ends the first start."""

    def __init__(self, end: Callable[[], None]) -> None:
        self.seconds, self._end = 0.0, end

    def monotonic_s(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return int(time.time() * 1000)

    def sleep(self, seconds: float) -> None:
        self.seconds += 10
        if self.seconds == 70:
            self._end()


def test_many_starts_that_arrive_together_begin_one_after_another(machine: Machine, tmp_path: Path) -> None:
    """Each holds a file that only one process may create, while it starts."""
    code = """
import os, sys, time
from pathlib import Path
from airflow_txlog.process.starting import start_turn
held = Path(sys.argv[2])
for _ in range(5):
    with start_turn(1, Path(sys.argv[1])) as turn:
        turn.wait(lambda line: None)
        os.close(os.open(held, os.O_CREAT | os.O_EXCL))
        time.sleep(0.01)
        held.unlink()
"""
    words = [sys.executable, "-c", code, str(machine.folder), str(tmp_path / "held")]
    processes = [subprocess.Popen(words) for _ in range(4)]
    assert [process.wait(120) for process in processes] == [0, 0, 0, 0]
    assert machine.files() == []


def test_a_start_without_a_limit_or_without_a_folder_of_this_users_alone_does_not_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with start_turn(0, tmp_path / "unused"), start_turn(0, tmp_path / "unused") as turn:
        assert turn.num_ahead == 0
    assert not (tmp_path / "unused").exists()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    with start_turn(1, tmp_path / "shared"), start_turn(1, tmp_path / "shared") as turn:
        assert turn.num_ahead == 0
    assert "starts of Spark are not limited" in caplog.text
    assert list((tmp_path / "shared").iterdir()) == []


def test_a_start_goes_on_if_the_folder_of_the_starts_is_deleted(machine: Machine) -> None:
    starting, waiting = machine.starter(), machine.starter()
    assert starting.begins()
    assert waiting.is_waiting()
    shutil.rmtree(machine.folder)
    assert waiting.begins()
    for starter in (starting, waiting):
        starter.finish()
        assert starter.process.returncode == 0


def test_the_limit_is_one_for_each_core_unless_the_environment_names_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STARTS, raising=False)
    assert most_starts() == max(2, cores())
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert (cores(), most_starts()) == (1, 2)
    monkeypatch.setenv(STARTS, "3")
    assert most_starts() == 3
    monkeypatch.setenv(STARTS, "two")
    with pytest.raises(InvalidInput, match="TXLOG_SPARK_STARTS must be a whole number, 0 for no limit; found 'two'"):
        most_starts()


@pytest.mark.parametrize(("quota", "of_eight"), [("max 100000", 8), ("150000 100000", 2), ("10000 100000", 1), ("", 8)])
def test_the_cores_are_those_that_the_process_may_use(
    quota: str, of_eight: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert cores(tmp_path / "cpu.max") == of_eight
    monkeypatch.delattr(os, "sched_getaffinity")  # as it is outside of Linux
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert cores(tmp_path / "cpu.max") == of_eight


def test_a_wait_that_is_given_up_leaves_its_place(machine: Machine) -> None:
    assert machine.starter().begins()
    end_s = time.monotonic() + 60

    def check() -> None:
        assert time.monotonic() < end_s
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), start_turn(1, machine.folder) as turn:
        turn.wait(print, check)
    assert len(machine.files()) == 1
