"""A store in memory that hands over before every call, fails before and after it, and remembers every commit.

What it may do is what the contract of a store leaves open, and no more: an answer may be lost on either side of the
effect, a put whose answer was lost may land later, and a listing that runs beside writers is not one moment.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from airflow_txlog.engine.log.names import LOG_DIRECTORY, LogKind, parse_name
from airflow_txlog.storage import MemoryStore
from airflow_txlog.storage.base import FileInfo
from tests.engine.simulation.scheduler import Died, Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How often a call goes wrong."""

    before: float = 0.0
    """The call fails and has no effect."""
    after: float = 0.0
    """It has its effect, and the answer is lost."""
    late: float = 0.0
    """A put fails, and has its effect some steps later."""
    death: float = 0.0
    """The actor is gone, before or after the effect."""
    torn_listings: bool = False
    """The second half of a listing is looked at later than the first."""


class Unanswered(ConnectionResetError):
    """What an actor sees of a call that went wrong."""


class SimulatedStore(MemoryStore):
    """See the module. Outside of a schedule it is the plain store."""

    def __init__(self, uri: str, clock: Any) -> None:
        super().__init__(uri, clock=clock)
        self.scheduler: Scheduler | None = None
        self.faults = Faults()
        self.chance = random.Random(0)
        self.commits: dict[int, bytes] = {}
        """Every commit of the table that ever was put, also those that log cleanup took."""
        self.times_ms: dict[int, int] = {}
        self.trace: list[str] = []
        self.committing: dict[int, int] = {}
        """By actor inside its commit: the version that it last made sure of, beyond which no cleanup may reach yet."""
        self.about_to_put: set[int] = set()
        """Actors that have just made sure that the log is the one that they read."""
        self.sheltered: set[int | None] = set()
        """Actors to whom nothing goes wrong."""
        self._late: list[tuple[str, bytes]] = []

    # --- calls ------------------------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        self._before("read", path)
        found = super().read(path)
        self._after("read", path)
        return found

    def list(self, directory: str, *, start_from: str | None = None) -> list[FileInfo]:
        number = self._before("list", start_from or directory)
        found = super().list(directory, start_from=start_from)
        if number is not None:
            self._made_sure(number, start_from)
            if self.faults.torn_listings and found and self.chance.random() < 0.3:
                cut = found[self.chance.randrange(len(found))].path
                self._hand_over()
                later = super().list(directory, start_from=start_from)
                found = [info for info in found if info.path < cut] + [info for info in later if info.path >= cut]
        self._after("list", directory)
        return found

    def stat(self, path: str) -> FileInfo | None:
        number = self._before("stat", path)
        if number is not None:
            self._made_sure(number, path)
        found = super().stat(path)
        self._after("stat", path)
        return found

    def put_if_absent(self, path: str, data: bytes) -> bool:
        try:
            return self._put_if_absent(path, data)
        finally:
            # Whoever puts again after this must have made sure again.
            self.about_to_put.discard(-1 if self.scheduler is None else self.scheduler.current or 0)

    def _put_if_absent(self, path: str, data: bytes) -> bool:
        number = self._before("put_if_absent", path)
        if number is not None and self.chance.random() < self.faults.late:
            self._late.append((path, data))
            self.trace.append(f"{number} put_if_absent {path}: will land later")
            raise Unanswered("the put was not answered")
        made = self._make(path, data)
        if number is not None:
            self.about_to_put.discard(number)
        self._after(f"put_if_absent ({made})", path)
        return made

    def put(self, path: str, data: bytes) -> None:
        self._before("put", path)
        super().put(path, data)
        self._after("put", path)

    def open_input(self, path: str) -> Any:
        # `read` is one call of the store; opening is not another.
        return super().open_input(path)

    def delete(self, path: str) -> None:
        self._before("delete", path)
        super().delete(path)
        self._after("delete", path)

    def forget(self) -> None:
        """The table is dropped, in one moment: every file, and what is remembered."""
        for info in MemoryStore.walk(self):
            MemoryStore.delete(self, info.path)
        self.commits.clear()
        self.times_ms.clear()

    def land_the_late(self) -> None:
        for path, data in self._late:
            self._make(path, data)
        self._late.clear()

    def end_commit(self, number: int | None) -> None:
        if number is not None:
            self.committing.pop(number, None)
            self.about_to_put.discard(number)

    # --- what may go wrong ------------------------------------------------------------------------------------------

    def _make(self, path: str, data: bytes) -> bool:
        made = super().put_if_absent(path, data)
        name = parse_name(path)
        if made and name is not None and name.kind is LogKind.COMMIT and path.startswith(LOG_DIRECTORY):
            assert name.version not in self.commits, f"version {name.version} was made twice: the first one is lost"
            self.commits[name.version] = data
            info = MemoryStore.stat(self, path)
            assert info is not None
            self.times_ms[name.version] = info.modified_ms
        return made

    def _made_sure(self, number: int, path: str | None) -> None:
        name = (path or "").rpartition("/")[2]
        if number in self.committing and name[:20].isdigit():
            self.committing[number] = max(self.committing[number], int(name[:20]))
            self.about_to_put.add(number)

    def _hand_over(self) -> None:
        assert self.scheduler is not None
        self.scheduler.step()
        if self._late and self.chance.random() < 0.2:
            path, data = self._late.pop(self.chance.randrange(len(self._late)))
            self.trace.append(f"late {path} landed: {self._make(path, data)}")
        self._clock.tick(self.chance)  # type: ignore[attr-defined]

    def _before(self, call: str, path: str) -> int | None:
        """The number of the calling actor, or None outside of a schedule."""
        number = None if self.scheduler is None else self.scheduler.current
        if number is None:
            return None
        self._hand_over()
        self.trace.append(f"{number} {call} {path}")
        self._fail(self.faults.before, "before")
        return number

    def _after(self, call: str, path: str) -> None:
        if self.scheduler is None or self.scheduler.current is None:
            return
        self._hand_over()
        self._fail(self.faults.after, f"after {call} {path}")

    def _fail(self, rate: float, when: str) -> None:
        assert self.scheduler is not None
        if self.scheduler.current in self.sheltered:
            return
        drawn = self.chance.random()
        if drawn < rate:
            self.trace.append(f"  … unanswered, {when}")
            raise Unanswered(f"unanswered, {when}")
        if drawn > 1.0 - self.faults.death:
            self.trace.append(f"  … dead, {when}")
            raise Died
