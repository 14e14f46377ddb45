"""Many requests, stores that do not answer, and a table of a million files: the window stays small and answers."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidInput
from airflow_txlog.window.answers import AnswerLimits, Answers, TooBusy, TooLate
from airflow_txlog.window.app import Window
from airflow_txlog.window.markup import link
from airflow_txlog.window.site import KnownTable, StandAlone
from tests.benchmarks.large_tables import make_checkpointed
from tests.helpers.paths import ROOT
from tests.window.tables import Hands, append, busy_table, create

NOW_MS = 1_790_000_000_000
QUICK = AnswerLimits(deadline_s=0.3, fresh_s=0.0, running=4, running_per_store=2)


class Hanging(StandAlone):
    """A site on which some tables are on stores that do not answer until `answers` is set."""

    def __init__(self, uris: list[str], hanging: list[str]) -> None:
        super().__init__([*uris, *hanging])
        self.hanging = set(hanging)
        self.answers = threading.Event()

    def open(self, known: KnownTable) -> Table:
        if known.uri in self.hanging:
            assert self.answers.wait(60)
            return super().open(KnownTable(uri=min(uri for uri in self._view.tables if uri not in self.hanging)))
        return super().open(known)


@pytest.fixture
def orders(tmp_path: Path) -> str:
    uri = str(tmp_path / "orders")
    table = create(uri, Hands(NOW_MS))
    append(table, 1)
    return uri


def asking(window: Window) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(window), base_url="http://127.0.0.1")


def of(uri: str, page: str = "table", **more: Any) -> str:
    return f"/{link(page, uri=uri, **more)}"


def test_a_store_that_hangs_is_answered_by_504_and_does_not_keep_others_waiting(orders: str) -> None:
    dead = [f"s3://dead/{number}" for number in range(10)]
    site = Hanging([orders], dead)
    window = Window(site, limits=QUICK)
    before = threading.active_count()

    async def run() -> None:
        async with asking(window) as client:
            started = time.monotonic()
            all_dead = await asyncio.gather(*(client.get(of(uri)) for uri in dead for _ in range(20)))
            assert time.monotonic() - started < 5
            assert {each.status_code for each in all_dead} == {503, 504}
            # Two threads wait for the dead store, however many ask.
            assert threading.active_count() - before <= QUICK.running_per_store
            assert (await client.get(of(orders))).status_code == 200
            listed = await client.get("/")
            assert listed.status_code == 200
            assert "The store has not answered yet." in listed.text
            site.answers.set()
            for _ in range(100):
                answer = await client.get(of(dead[0]))
                if answer.status_code == 200:
                    return
                await asyncio.sleep(0.05)
            raise AssertionError(answer.text)

    asyncio.run(run())


def test_a_table_whose_store_stops_answering_is_shown_as_it_was(orders: str) -> None:
    site = Hanging([orders], [])
    window = Window(site, limits=QUICK)

    async def run() -> None:
        async with asking(window) as client:
            assert (await client.get(of(orders))).status_code == 200
            hang = threading.Event()
            original = Table.latest_version

            def latest(table: Table) -> int:
                hang.wait(60)
                return original(table)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Table, "latest_version", latest)
                late = await client.get(of(orders))
                hang.set()
            assert late.status_code == 504
            assert "as it was read before" in late.text
            assert "Timeline" in late.text
            assert late.headers["retry-after"] == "5"

    asyncio.run(run())


def test_one_computation_serves_all_who_ask_at_once() -> None:
    answers, computed = Answers(), list[int]()

    def compute() -> str:
        computed.append(1)
        time.sleep(0.1)
        return "answer"

    async def run() -> list[str]:
        return await asyncio.gather(*(answers.get("key", "store", compute) for _ in range(500)))

    assert set(asyncio.run(run())) == {"answer"}
    assert len(computed) == 1


def test_an_error_reaches_all_who_ask_and_is_not_computed_again_at_once() -> None:
    answers, computed = Answers(AnswerLimits(fresh_s=60)), list[int]()

    def compute() -> str:
        computed.append(1)
        raise PermissionError("no")

    async def run() -> list[Any]:
        first = await asyncio.gather(*(answers.get("k", "s", compute) for _ in range(5)), return_exceptions=True)
        return [*first, *await asyncio.gather(answers.get("k", "s", compute), return_exceptions=True)]

    assert [type(each) for each in asyncio.run(run())] == [PermissionError] * 6
    assert len(computed) == 1


def test_an_error_is_kept_for_a_shorter_time_than_an_answer() -> None:
    """Else one failed query of the database, or one start of a thread, is all that users see for minutes."""
    clock, outcomes = Hands(NOW_MS), ["later", OSError("once"), "first"]
    answers = Answers(AnswerLimits(failed_s=5), clock=clock)

    def compute() -> str:
        found = outcomes.pop()
        if isinstance(found, Exception):
            raise found
        return str(found)

    async def ask() -> Any:
        return (await asyncio.gather(answers.get("k", "s", compute, 300), return_exceptions=True))[0]

    def after(seconds: float) -> Any:
        clock.sleep(seconds)
        return asyncio.run(ask())

    assert [after(0), after(299)] == ["first", "first"]
    assert [type(after(2)), type(after(4))] == [OSError, OSError]
    assert answers.last("k") == "first"
    assert after(2) == "later"


def test_a_request_that_is_cancelled_gives_its_place_in_the_queue_back() -> None:
    limits = AnswerLimits(deadline_s=30, running=1, running_per_store=1, waiting=1)
    answers, release = Answers(limits), threading.Event()

    async def run() -> Any:
        first = asyncio.create_task(answers.get("a", "s", lambda: release.wait(60)))
        await asyncio.sleep(0)
        gone = asyncio.create_task(answers.get("b", "s", lambda: "b"))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait({gone})
        patient = asyncio.create_task(answers.get("c", "s", lambda: "c"))
        await asyncio.sleep(0)
        release.set()
        return await first, await patient

    assert asyncio.run(run()) == (True, "c")


def test_half_of_the_threads_stay_free_for_other_stores() -> None:
    answers, release = Answers(QUICK), threading.Event()

    async def run() -> None:
        for key in "ab":
            with pytest.raises(TooLate):
                await answers.get(key, "dead", lambda: release.wait(60))
        with pytest.raises(TooBusy):
            await answers.get("c", "dead", lambda: release.wait(60))
        assert await answers.get("d", "alive", lambda: 1) == 1

    asyncio.run(run())
    release.set()


def test_a_request_waits_for_its_turn() -> None:
    """Twenty users at once, or fifty tables of a list, are no reason to refuse any."""
    answers, at_once, most = Answers(AnswerLimits(running=3, running_per_store=2)), list[int](), list[int]()

    def compute() -> int:
        at_once.append(1)
        most.append(len(at_once))
        time.sleep(0.01)
        at_once.pop()
        return 7

    async def run() -> list[int]:
        return await asyncio.gather(*(answers.get(key, f"store {key % 4}", compute) for key in range(100)))

    assert asyncio.run(run()) == [7] * 100
    assert max(most) <= 3
    assert not answers._waiting


def test_two_stores_that_hang_do_not_keep_a_third_waiting_for_longer_than_the_deadline() -> None:
    answers, release = Answers(QUICK), threading.Event()

    async def run() -> None:
        for number in range(4):
            with pytest.raises(TooLate):
                await answers.get(number, f"dead {number % 2}", lambda: release.wait(60))
        started = time.monotonic()
        assert await answers.get("x", "alive", lambda: 1) == 1
        for store in ("dead 0", "dead 1"):
            with pytest.raises(TooBusy):
                await answers.get(f"another of {store}", store, lambda: 1)
        assert time.monotonic() - started < QUICK.deadline_s

    asyncio.run(run())
    release.set()


def test_the_threads_are_bounded_in_all() -> None:
    limits = AnswerLimits(deadline_s=0.05, running=4, running_per_store=2, threads=6)
    answers, release = Answers(limits), threading.Event()

    async def run() -> None:
        for number in range(6):
            with pytest.raises(TooLate):
                await answers.get(number, f"dead {number}", lambda: release.wait(60))
        with pytest.raises(TooBusy):
            await answers.get("x", "alive", lambda: 1)
        release.set()
        while answers._running:
            await asyncio.sleep(0.01)
        assert await answers.get("x", "alive", lambda: 1) == 1

    asyncio.run(run())


def test_a_hundred_tables_that_hang_leave_the_pages_of_others_as_they_are(orders: str) -> None:
    dead = [f"{store}://dead-{number}/t" for number in range(50) for store in ("s3", "gs")]
    site = Hanging([orders], dead)
    window = Window(site, limits=AnswerLimits(deadline_s=0.3, fresh_s=0.0, running=4, running_per_store=2, threads=12))

    async def run() -> None:
        async with asking(window) as client:
            assert (await client.get(of(orders))).status_code == 200
            asked = [asyncio.create_task(client.get(of(uri))) for uri in dead]
            await asyncio.sleep(0.05)
            answer = await client.get(of(orders))
            assert answer.status_code in (200, 503)
            assert "Timeline" in answer.text
            assert {each.status_code for each in await asyncio.gather(*asked)} <= {503, 504}
            site.answers.set()

    asyncio.run(run())


class Panic(BaseException):
    """As an extension module in Rust raises it."""


def test_a_panic_ends_its_computation() -> None:
    answers = Answers(AnswerLimits(fresh_s=0.0))

    def panic() -> None:
        raise Panic

    async def run() -> None:
        with pytest.raises(RuntimeError):
            await answers.get("k", "s", panic)
        assert await answers.get("k", "s", lambda: 1) == 1

    asyncio.run(run())


def test_a_kept_error_holds_nothing_that_was_read() -> None:
    answers = Answers()

    class Large:
        pass

    seen = list[weakref.ref[Large]]()

    def fail() -> None:
        large = Large()
        seen.append(weakref.ref(large))
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise InvalidInput("outer") from error

    async def run() -> None:
        with pytest.raises(InvalidInput):
            await answers.get("k", "s", fail)

    asyncio.run(run())
    gc.collect()
    assert answers._kept["k"].error is not None
    assert seen[0]() is None


def test_kept_answers_are_bounded_by_their_size() -> None:
    answers = Answers(AnswerLimits(kept_chars=1000), weigh=len)

    async def run() -> None:
        for number in range(50):
            await answers.get(number, "s", lambda: "x" * 300)
            assert answers._chars == sum(each.chars for each in answers._kept.values()) <= 1000
        await answers.get("large", "s", lambda: "x" * 3000)
        assert list(answers._kept) == ["large"]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("error", "is_shown"),
    [(ConnectionError("reset"), True), (PermissionError("no"), False), (FileNotFoundError("t"), False)],
)
def test_a_table_whose_store_fails_is_shown_as_it_was_unless_it_is_gone_or_refused(
    orders: str, error: OSError, is_shown: bool
) -> None:
    site = StandAlone([orders])
    window = Window(site, limits=QUICK)

    async def run() -> None:
        async with asking(window) as client:
            assert (await client.get(of(orders))).status_code == 200

            def fail(*args: object) -> None:
                raise error

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(site, "open", fail)
                patch.setattr(Table, "latest_version", fail)
                answer = await client.get(of(orders))
            assert answer.status_code == 502
            assert ("as it was read before" in answer.text) == is_shown
            assert ("Timeline" in answer.text) == is_shown

    asyncio.run(run())


def test_kept_answers_and_pages_are_bounded(tmp_path: Path) -> None:
    uri = str(tmp_path / "orders")
    busy_table(uri, Hands(NOW_MS))
    window = Window(StandAlone([uri]), limits=AnswerLimits(kept=10))

    async def run() -> None:
        async with asking(window) as client:
            for number in range(300):
                assert (await client.get(of(uri, before=number % 30 + 1))).status_code == 200
                await client.get(of(uri, "commit", version=number % 30))

    asyncio.run(run())
    assert len(window.answers._kept) <= 10
    assert len(window._rendered) <= 100
    assert not window.answers._running


def test_a_million_files_are_not_listed_one_by_one(tmp_path: Path) -> None:
    make_checkpointed(tmp_path / "million", 1_000_000)
    uri = str(tmp_path / "million")

    async def run() -> None:
        async with asking(Window(StandAlone([uri]), limits=AnswerLimits(deadline_s=60))) as client:
            text = (await client.get(of(uri))).text
            assert "1,001,000" in text
            assert "too many files" in text
            assert "336 partitions" in text
            assert len(text) < 100_000

    asyncio.run(run())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, str, psutil.Process]]:
    """The address of a window in a process of its own, the path of a page, and the process."""
    uri = str(tmp_path / "orders")
    busy_table(uri, Hands(NOW_MS))
    command = [sys.executable, "-m", "airflow_txlog.window", "--table", uri, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        address = process.stdout.readline().split(" at ")[1].split()[0]
        yield address, of(uri), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.long("two thousand requests to a server of its own")
def test_two_hundred_requests_a_second_leave_the_memory_flat(served: tuple[str, str, psutil.Process]) -> None:
    address, path, process = served

    async def ask(client: httpx.AsyncClient, count: int) -> None:
        for _ in range(count):
            assert (await client.get(path)).status_code == 200

    async def run(count: int) -> float:
        async with httpx.AsyncClient(base_url=address.rstrip("/")) as client:
            started = time.perf_counter()
            await asyncio.gather(*(ask(client, count // 8) for _ in range(8)))
            return count / (time.perf_counter() - started)

    asyncio.run(run(400))
    before = process.memory_info().rss
    rate = asyncio.run(run(2000))
    grown = process.memory_info().rss - before
    print(f"{rate:.0f} requests a second, {grown / 2**20:.1f} MiB more")
    assert rate > 200
    assert grown < 16 * 2**20
