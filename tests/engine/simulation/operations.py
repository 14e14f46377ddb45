"""What the transactions of a schedule do: each operation is a function of the state that it runs on.

`read` registers with the transaction what the operation looks at; `decide` says what becomes of it. The checker calls
`decide` on the model's state at the place where the commit stands in the serial order, so an operation must decide by
nothing else.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from airflow_txlog.engine import Transaction
from airflow_txlog.engine.commit.content.deletion_vectors import adds_with_vectors, deletes_by_vectors
from airflow_txlog.engine.log.actions import DeletionVector
from airflow_txlog.engine.table.predicate import Predicate
from airflow_txlog.engine.table.snapshot.files import record_counts
from tests.engine.simulation.rows import DAYS, DataFile, Rows

NewRows = tuple[str, tuple[int, ...]]
"""A file to make: its day and its ids."""


@dataclass(slots=True)
class Decision:
    """What an operation does to the files that it was shown."""

    removes: list[DataFile] = field(default_factory=list)
    adds: list[NewRows] = field(default_factory=list)
    unmatched: list[DataFile] = field(default_factory=list)

    @property
    def rows(self) -> Counter[tuple[str, int]]:
        return Counter((day, each) for day, ids in self.adds for each in ids)


@dataclass(frozen=True, slots=True)
class Operation:
    """One kind of transaction. `name` is what commitInfo calls it."""

    name = "WRITE"
    data_change = True
    reads = True
    """Whether it depends on any row."""

    def read(self, tx: Transaction) -> pa.Table | None:
        """The files that it looks at, registered with the transaction."""
        return None

    def decide(self, files: Sequence[DataFile]) -> Decision:
        """What it does, given files of which every one that it must look at is one."""
        return Decision()

    def perform(self, tx: Transaction, rows: Rows, owner: str) -> None:
        """Do it through the engine's transaction."""
        files = self.read(tx)
        decision = self.decide([] if files is None else rows.of_files(files))
        if files is not None:
            if decision.unmatched:
                tx.read_files(files.take([file.action["place"] for file in decision.unmatched]), matched=False)
            if decision.removes:
                tx.remove(files.take([file.action["place"] for file in decision.removes]), data_change=self.data_change)
        for day, ids in decision.adds:
            tx.add(**rows.new_file(owner, day, ids), data_change=self.data_change)


@dataclass(frozen=True, slots=True)
class Append(Operation):
    """A blind append."""

    day: str
    ids: tuple[int, ...]
    reads = False

    def decide(self, files: Sequence[DataFile]) -> Decision:
        return Decision(adds=[(self.day, self.ids)])


@dataclass(frozen=True, slots=True)
class Overwrite(Operation):
    """The whole table becomes these rows."""

    day: str
    ids: tuple[int, ...]

    def read(self, tx: Transaction) -> pa.Table:
        return tx.read_whole_table()

    def decide(self, files: Sequence[DataFile]) -> Decision:
        return Decision(removes=list(files), adds=[(self.day, self.ids)])


@dataclass(frozen=True, slots=True)
class ReplaceDay(Operation):
    """Dynamic partition overwrite: registers the partition and no file."""

    day: str
    ids: tuple[int, ...]

    def read(self, tx: Transaction) -> pa.Table:
        return tx.read_partitions([{"day": self.day}])

    def decide(self, files: Sequence[DataFile]) -> Decision:
        return Decision(removes=[file for file in files if file.day == self.day], adds=[(self.day, self.ids)])


@dataclass(frozen=True, slots=True)
class DeleteDay(Operation):
    """Whole files of one partition go."""

    day: str
    name = "DELETE"

    def read(self, tx: Transaction) -> pa.Table:
        return _read(tx, "day = :day", day=self.day)

    def decide(self, files: Sequence[DataFile]) -> Decision:
        return Decision(removes=[file for file in files if file.day == self.day])


@dataclass(frozen=True, slots=True)
class ChangeIds(Operation):
    """Copy-on-write: rows with ids in [low, high], of one day or of all, go or move by `shift`."""

    low: int
    high: int
    day: str | None
    shift: int | None
    name = "UPDATE"

    def read(self, tx: Transaction) -> pa.Table:
        if self.day is None:
            return _read(tx, "id >= :low AND id <= :high", low=self.low, high=self.high)
        return _read(tx, "id >= :low AND id <= :high AND day = :day", low=self.low, high=self.high, day=self.day)

    def decide(self, files: Sequence[DataFile]) -> Decision:
        decision = Decision()
        for file in files:
            hits = {each for each in file.ids if self.low <= each <= self.high}
            if not hits or self.day not in (None, file.day):
                decision.unmatched.append(file)
                continue
            decision.removes.append(file)
            moved = [] if self.shift is None else [each + self.shift for each in file.ids if each in hits]
            kept = tuple([each for each in file.ids if each not in hits] + moved)
            if kept:
                decision.adds.append((file.day, kept))
        return decision


@dataclass(frozen=True, slots=True)
class MaskIds(ChangeIds):
    """The same rows go or move, but the others stay in their files, which come again with a larger vector."""

    def perform(self, tx: Transaction, rows: Rows, owner: str) -> None:
        assert tx.snapshot is not None
        if not deletes_by_vectors(tx.snapshot.protocol, tx.snapshot.metadata, tx.snapshot.uri):
            ChangeIds.perform(self, tx, rows, owner)
            return
        files = self.read(tx)
        decision = self.decide(rows.of_files(files))
        if decision.unmatched:
            tx.read_files(files.take([file.action["place"] for file in decision.unmatched]), matched=False)
        for file in decision.removes:
            masked = files.take([file.action["place"]])
            tx.remove(masked)
            hits = [each for each in file.ids if self.low <= each <= self.high]
            if len(hits) < len(file.ids):
                vector = msgspec.convert(rows.new_vector(file, hits), DeletionVector)
                tx.add(adds_with_vectors(masked, [vector], [record_counts(masked)[0] or 0]))
            if self.shift is not None:
                tx.add(**rows.new_file(owner, file.day, [each + self.shift for each in hits]))


@dataclass(frozen=True, slots=True)
class CopyDay(Operation):
    """INSERT … SELECT from the table itself: as many rows as a partition has, on the other day."""

    day: str

    def read(self, tx: Transaction) -> pa.Table:
        return _read(tx, "day = :day", day=self.day)

    def decide(self, files: Sequence[DataFile]) -> Decision:
        ids = tuple(each for file in files if file.day == self.day for each in file.ids)
        other = DAYS[1 - DAYS.index(self.day)]
        return Decision(adds=[(other, tuple(sorted(ids)))] if ids else [])


@dataclass(frozen=True, slots=True)
class InsertIfAbsent(Operation):
    """Adds a row where no row has its id: two of them must not both."""

    day: str
    id: int
    name = "MERGE"

    def read(self, tx: Transaction) -> pa.Table:
        return _read(tx, "id = :id", id=self.id)

    def decide(self, files: Sequence[DataFile]) -> Decision:
        holders = [file for file in files if self.id in file.ids]
        others = [file for file in files if self.id not in file.ids]
        return Decision(adds=[] if holders else [(self.day, (self.id,))], unmatched=others)


@dataclass(frozen=True, slots=True)
class Compact(Operation):
    """The rows of one partition move into one file; no row changes."""

    day: str
    name = "OPTIMIZE"
    data_change = False

    def read(self, tx: Transaction) -> pa.Table:
        return _read(tx, "day = :day", day=self.day)

    def decide(self, files: Sequence[DataFile]) -> Decision:
        chosen = [file for file in files if file.day == self.day]
        ids = tuple(each for file in chosen for each in file.ids)
        return Decision(removes=chosen, adds=[(self.day, ids)] if ids else [])


@dataclass(frozen=True, slots=True)
class SetProperty(Operation):
    """One property more; everything else of the metadata stays as it was read."""

    key: str
    value: str
    name = "SET TBLPROPERTIES"
    reads = False

    def perform(self, tx: Transaction, rows: Rows, owner: str) -> None:
        assert tx.snapshot is not None
        metadata = tx.snapshot.metadata
        changed = {**metadata.configuration, self.key: self.value}
        tx.set_metadata(msgspec.structs.replace(metadata, configuration=changed))


@dataclass(frozen=True, slots=True)
class AddColumn(Operation):
    """One nullable column more."""

    column: str
    name = "ADD COLUMNS"
    reads = False

    def perform(self, tx: Transaction, rows: Rows, owner: str) -> None:
        assert tx.snapshot is not None
        metadata = tx.snapshot.metadata
        tx.set_metadata(msgspec.structs.replace(metadata, schema_string=self.schema_after(metadata.schema_string)))

    def schema_after(self, schema: str) -> str:
        fields: list[dict[str, Any]] = json.loads(schema)["fields"]
        if all(each["name"] != self.column for each in fields):
            fields.append({"name": self.column, "type": "string", "nullable": True, "metadata": {}})
        return json.dumps({"type": "struct", "fields": fields})


@dataclass(frozen=True, slots=True)
class CountUp(Operation):
    """A domain's configuration is a number, and becomes one more: an update that must not be lost."""

    domain: str
    reads = False

    def perform(self, tx: Transaction, rows: Rows, owner: str) -> None:
        assert tx.snapshot is not None
        known = tx.snapshot.state.domains.get(self.domain)
        tx.set_domain(self.domain, str(1 + (0 if known is None else int(known.configuration))))


_predicates: dict[tuple[object, ...], Predicate] = {}


def _read(tx: Transaction, text: str, **values: object) -> pa.Table:
    """`tx.read`, with the text parsed once for all schedules: parsing is a quarter of the work, tested elsewhere."""
    assert tx.snapshot is not None
    key = (tx.snapshot.metadata.schema_string, text, *values.items())
    if key not in _predicates:
        _predicates[key] = tx.snapshot.read_predicate(text, parameters=values)
    return tx.read(_predicates[key])


def draw_operation(chance: random.Random, calm: bool) -> Operation:
    """Any operation; `calm`: none that changes metadata."""
    day = chance.choice(DAYS)
    ids = tuple(sorted(chance.randrange(20) for _ in range(chance.randint(1, 3))))
    low = chance.randrange(20)
    kinds: list[tuple[int, Operation]] = [
        (5, Append(day, ids)),
        (1, Overwrite(day, ids)),
        (2, ReplaceDay(day, ids)),
        (2, DeleteDay(day)),
        (4, ChangeIds(low, low + chance.randrange(6), chance.choice([None, day]), chance.choice([None, 7]))),
        (3, MaskIds(low, low + chance.randrange(6), chance.choice([None, day]), chance.choice([None, 7]))),
        (2, CopyDay(day)),
        (2, InsertIfAbsent(day, low)),
        (3, Compact(day)),
        (1, CountUp(chance.choice(["a", "b"]))),
    ]
    if not calm:
        key, value = chance.choice(
            [("x.owner", "me"), ("delta.appendOnly", "true"), ("delta.appendOnly", "false"), ("x.team", "us")]
        )
        kinds += [(1, SetProperty(key, value)), (1, AddColumn(chance.choice(["more", "other"])))]
    return chance.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])[0]
