"""Random histories of a job that loses its races, over the real `Memory`: what it commits against a run from the start.

A table of a few files, a job (DELETE, UPDATE or MERGE, by copies or by vectors) and winners between its attempts:
appends, rewrites, removals, deletion vectors that grow and shrink, compactions, new rules. Files hold rows as Python
tuples; everything that is remembered, kept or dropped goes through the memory's own methods. After each attempt the
rows that it would commit are compared with those of a job that remembers nothing.
Source: soundness, section 0.
"""

from __future__ import annotations

import functools
import itertools
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from airflow_txlog.datafiles.deletion_vectors.positions import PAIRS, pack_pairs, unpack_pairs
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.jobs.resume.memory import COPY, IMAGES, INSERTS, FileMatches, LiveFile, Memory, Segment, TableRules
from tests.helpers.vectors import bitmap

# A key, a value, and the rules under which the row was written: a row kept over a change of rules shows.
Row = tuple[int | None, int, int]
Resume = Callable[[Memory], Memory]

KEYS = range(6)
IMAGE_INPUTS = 2


@functools.lru_cache(maxsize=4096)
def _bitmap(positions: frozenset[int]) -> bytes:
    return bitmap(sorted(positions))


@dataclass
class Table:
    """The files that ever were, by path, and which of them are live under which deletion vector."""

    disk: dict[str, tuple[Row, ...]] = field(default_factory=dict)
    live: dict[str, tuple[str, frozenset[int]] | None] = field(default_factory=dict)
    rules: int = 0
    harmless: int = 0
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def add(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        path = f"f{next(self._numbers)}"
        self.disk[path] = tuple(rows)
        self.live[path] = None

    def masked(self, path: str) -> frozenset[int]:
        vector = self.live[path]
        return frozenset() if vector is None else vector[1]

    def mask(self, path: str, positions: frozenset[int]) -> None:
        """Another vector under another name; of no row at all: none."""
        self.live[path] = (f"v{next(self._numbers)}", positions) if positions else None

    def rows(self, path: str) -> dict[int, Row]:
        """The rows that are left, by position."""
        masked = self.masked(path)
        return {position: row for position, row in enumerate(self.disk[path]) if position not in masked}

    def file(self, path: str) -> LiveFile:
        vector = self.live[path]
        if vector is None:
            return LiveFile(path=path)
        return LiveFile(path=path, vector=vector[0], deleted=_bitmap(vector[1]))

    def table_rules(self) -> TableRules:
        features = frozenset({"v2Checkpoint"} if self.harmless else ())
        return TableRules(
            table_id="one",
            reader_features=features,
            writer_features=features,
            schema="null",
            partition_columns=(),
            properties={"rules": str(self.rules)},
        )


def key_of(file: LiveFile) -> str:
    return f"{file.path}#{file.vector}"


@dataclass(frozen=True)
class Clause:
    """What becomes of a row whose value has this remainder (of 3): it goes, or its value is changed by `plus`."""

    remainder: int | None
    plus: int | None

    def acts(self, row: Row, rules: int) -> bool:
        return self.remainder is None or (row[1] + rules) % 3 == self.remainder


@dataclass(frozen=True)
class Job:
    """`source` is None for DELETE and UPDATE, whose one clause is the first of `matched`."""

    source: tuple[tuple[int | None, int], ...] | None
    matched: tuple[Clause, ...]
    by_source: tuple[Clause, ...]
    inserts: bool
    marks: bool

    def matches(self, row: Row, rules: int) -> list[tuple[int | None, int | None]]:
        """The source rows that ON matches with this row and the clause that acts, as the pipeline has them."""
        if self.source is None:
            return [(None, 0)] if self.matched[0].acts(row, rules) else []
        pairs = [number for number, (key, _) in enumerate(self.source) if key is not None and key == row[0]]
        if pairs:
            return [(number, _first(self.matched, row, rules)) for number in pairs]
        clause = _first(self.by_source, row, rules)
        return [] if clause is None else [(None, len(self.matched) + clause)]

    def clause(self, number: int) -> Clause:
        return (*self.matched, *self.by_source)[number]

    def reads(self, rows: Sequence[Row]) -> bool:
        """Whether statistics leave the file to be read: the bounds of all its rows, the masked ones included."""
        if self.source is None or self.by_source:
            return True
        keys = [row[0] for row in rows if row[0] is not None]
        wanted = [key for key, _ in self.source if key is not None]
        return bool(keys) and any(min(keys) <= key <= max(keys) for key in wanted)


def _first(clauses: Sequence[Clause], row: Row, rules: int) -> int | None:
    return next((number for number, clause in enumerate(clauses) if clause.acts(row, rules)), None)


@dataclass
class Attempt:
    """What one attempt would commit, and what it had to do for it."""

    rows: Counter[Row] | str
    scanned: set[str]
    staged: list[Segment]


class Worker:
    """The job at work: one attempt a call, over one memory; `written` is what staged files hold."""

    def __init__(self, job: Job, memory: Memory) -> None:
        self.job = job
        self.memory = memory
        self.written: dict[str, tuple[Row, ...]] = {}
        self._numbers = itertools.count()

    def attempt(self, table: Table) -> Attempt:
        job, memory = self.job, self.memory
        memory.begin(table.table_rules())
        scanned, found = self._look(table)
        matched = {entry["source_row"] for rows in found.values() for entry in rows if entry["source_row"] is not None}
        acted = {path: _acting(rows) for path, rows in found.items()}
        acted = {path: rows for path, rows in acted.items() if rows}
        if job.source is not None and job.matched and _is_ambiguous(found):
            return Attempt("ambiguous", scanned, [])
        staged = [*self._copies(table, acted), *self._images(table, acted), *self._inserts(table, matched)]
        return Attempt(self._rows(table, acted), scanned, staged)

    def _look(self, table: Table) -> tuple[set[str], dict[str, list[dict[str, int]]]]:
        scanned, found = set(), {}
        for path in table.live:
            if not self.job.reads(table.disk[path]):
                continue
            file = table.file(path)
            matches = self.memory.recall(file)
            if matches is None:
                scanned.add(path)
                matches = file_matches(
                    [
                        {"position": position, "source_row": source, "clause": clause}
                        for position, row in table.rows(path).items()
                        for source, clause in self.job.matches(row, table.rules)
                    ]
                )
                self.memory.remember(file, matches)
            found[path] = one_by_one(matches)
        return scanned, found

    def _copies(self, table: Table, acted: Mapping[str, Mapping[int, tuple[int | None, int]]]) -> list[Segment]:
        """A copy of each touched file without the rows that leave it; nothing where rows are masked or none is left."""
        wanted = {}
        for path, rows in acted.items():
            left = [row for position, row in table.rows(path).items() if position not in rows]
            if left and not self.job.marks:
                wanted[key_of(table.file(path))] = [(key, value, table.rules) for key, value, _ in left]
        kept = self.memory.keep(COPY, wanted)
        done = {key for segment in kept for key in segment.inputs}
        return self._stage(COPY, [([key], "", rows) for key, rows in wanted.items() if key not in done])

    def _images(self, table: Table, acted: Mapping[str, Mapping[int, tuple[int | None, int]]]) -> list[Segment]:
        wanted = {}
        for path, rows in acted.items():
            images = [self._image(table, path, position, *how) for position, how in rows.items()]
            if any(image is not None for image in images):
                wanted[key_of(table.file(path))] = [image for image in images if image is not None]
        kept = self.memory.keep(IMAGES, wanted)
        done = {key for segment in kept for key in segment.inputs}
        missing = [key for key in wanted if key not in done]
        groups = [missing[at : at + IMAGE_INPUTS] for at in range(0, len(missing), IMAGE_INPUTS)]
        return self._stage(IMAGES, [(group, "", [row for key in group for row in wanted[key]]) for group in groups])

    def _image(self, table: Table, path: str, position: int, source: int | None, number: int) -> Row | None:
        clause, row = self.job.clause(number), table.disk[path][position]
        if clause.plus is None:
            return None
        value = row[1] if source is None else self.job.source[source][1]  # type: ignore[index]
        return row[0], value + clause.plus, table.rules

    def _inserts(self, table: Table, matched: set[int]) -> list[Segment]:
        if not self.job.inserts or self.job.source is None:
            self.memory.keep(INSERTS, [], [])
            return []
        fingerprint = ",".join(map(str, sorted(matched)))
        if self.memory.keep(INSERTS, [], [fingerprint]):
            return []
        rows = [(*row, table.rules) for number, row in enumerate(self.job.source) if number not in matched]
        return self._stage(INSERTS, [([], fingerprint, rows)])

    def _stage(self, kind: str, work: Sequence[tuple[Sequence[str], str, Sequence[Row]]]) -> list[Segment]:
        segments = []
        for inputs, fingerprint, rows in work:
            files = tuple(self._write(rows) for _ in [rows] if rows)
            segments.append(Segment(kind=kind, inputs=frozenset(inputs), fingerprint=fingerprint, files=files))
        self.memory.add(segments)
        return segments

    def _write(self, rows: Sequence[Row]) -> StagedFile:
        # As a job names its files: nothing else is read back from saved work.
        path = f"part-{0:016x}-{uuid.UUID(int=0)}.c{next(self._numbers):05d}.parquet"
        self.written[path] = tuple(rows)
        return StagedFile(
            path=path,
            partition_values={},
            size_bytes=1,
            modification_time_ms=0,
            num_records=len(rows),
            stats="{}",
        )

    def _rows(self, table: Table, acted: Mapping[str, Mapping[int, tuple[int | None, int]]]) -> Counter[Row]:
        """The table as the commit would leave it. What is committed is what the memory holds, and nothing else."""
        rows: Counter[Row] = Counter()
        for path in table.live:
            left = table.rows(path)
            if path in acted:
                left = {p: row for p, row in left.items() if p not in acted[path]} if self.job.marks else {}
            rows.update(left.values())
        for segment in self.memory.segments:
            for file in segment.files:
                rows.update(self.written[file.path])
        return rows


def file_matches(entries: Sequence[Mapping[str, int | None]]) -> FileMatches:
    """The matches on rows of one file, each of them a row of PAIRS whose source row may be null."""
    alone: dict[int, list[int]] = {}
    for entry in entries:
        if entry["source_row"] is None:
            alone.setdefault(entry["clause"], []).append(entry["position"])  # type: ignore[arg-type]
    rows = {clause: RowPositions(bitmap(positions), "found") for clause, positions in alone.items()}
    pairs = [entry for entry in entries if entry["source_row"] is not None]
    return FileMatches(rows=rows, pairs=pack_pairs(pa.Table.from_pylist(pairs, schema=PAIRS)))


def one_by_one(matches: FileMatches) -> list[dict[str, int]]:
    """The other way round, in order of position."""
    alone: list[dict[str, int]] = [
        {"position": position, "source_row": None, "clause": clause}  # type: ignore[dict-item]
        for clause, rows in matches.rows.items()
        for position in rows.positions().to_pylist()
    ]
    return sorted([*unpack_pairs(matches.pairs).to_pylist(), *alone], key=lambda entry: entry["position"])


def _acting(matches: Sequence[Mapping[str, int]]) -> dict[int, tuple[int | None, int]]:
    found: dict[int, tuple[int | None, int]] = {}
    for entry in matches:
        if entry["clause"] is not None:
            found.setdefault(entry["position"], (entry["source_row"], entry["clause"]))
    return found


def _is_ambiguous(found: Mapping[str, Sequence[Mapping[str, int]]]) -> bool:
    pairs = Counter((path, entry["position"]) for path, rows in found.items() for entry in rows)
    return any(count > 1 for count in pairs.values())


# --- what is drawn --------------------------------------------------------------------------------------------------


def _row(random: random.Random, rules: int = 0) -> Row:
    return (random.choice([None, *KEYS, *KEYS]), random.randrange(9), rules)


def a_table(random: random.Random) -> Table:
    table = Table()
    for _ in range(random.randint(1, 4)):
        table.add([_row(random) for _ in range(random.randint(1, 4))])
        path = list(table.live)[-1]
        if random.random() < 0.3:
            table.mask(path, frozenset(random.sample(range(len(table.disk[path])), 1)))
    return table


def a_job(random: random.Random) -> Job:
    clauses = [_clause(random) for _ in range(random.randint(1, 2))]
    marks = random.random() < 0.4
    if random.random() < 0.3:
        return Job(source=None, matched=tuple(clauses[:1]), by_source=(), inserts=False, marks=marks)
    keys = random.sample(KEYS, random.randint(1, 4)) + ([None] if random.random() < 0.2 else [])
    if random.random() < 0.1:
        keys.append(keys[0])
    source = tuple((key, 10 + number) for number, key in enumerate(keys))
    return Job(
        source=source,
        matched=tuple(clauses) if random.random() < 0.8 else (),
        by_source=(_clause(random),) if random.random() < 0.25 else (),
        inserts=random.random() < 0.8,
        marks=marks,
    )


def _clause(random: random.Random) -> Clause:
    return Clause(
        remainder=random.choice([None, 0, 1, 2]), plus=None if random.random() < 0.4 else random.randrange(100, 103)
    )


def a_winner(random: random.Random, table: Table) -> None:
    """Another commit lands."""
    live = list(table.live)
    kind = random.random()
    if kind < 0.2 or not live:
        table.add([_row(random) for _ in range(random.randint(1, 3))])
        return
    path = random.choice(live)
    size = len(table.disk[path])
    masked = table.masked(path)
    if kind < 0.5:
        # A vector that grows.
        more = random.sample(range(size), random.randint(1, size))
        if len(masked | set(more)) == size:
            del table.live[path]
        else:
            table.mask(path, masked | frozenset(more))
    elif kind < 0.6:
        # RESTORE: rows come back; or a vector is written anew and masks what it masked.
        table.mask(path, frozenset(one for one in masked if random.random() < 0.5))
    elif kind < 0.75:
        # Rewritten: some rows are others now.
        left = list(table.rows(path).values())
        del table.live[path]
        table.add([_row(random) if random.random() < 0.4 else row for row in left])
    elif kind < 0.85:
        del table.live[path]
    elif kind < 0.95:
        moved = live[: random.randint(1, len(live))]
        rows = [row for one in moved for row in table.rows(one).values()]
        for one in moved:
            del table.live[one]
        table.add(rows)
    elif kind < 0.975:
        table.rules += 1
    else:
        table.harmless = 1


# --- a history ------------------------------------------------------------------------------------------------------


@dataclass
class History:
    """How one history came out: `wrong` says what, None where every attempt was right."""

    wrong: str | None = None
    wasted: str | None = None
    """What was looked at or staged again without need."""
    attempts: int = 0
    scans: int = 0
    scans_from_the_start: int = 0
    segments: int = 0
    segments_from_the_start: int = 0


def play(seed: int, new_memory: Callable[[], Memory] = Memory, resume: Resume | None = None) -> History:
    """One history, decided by its seed alone. `resume` now and then puts a restarted job's memory in the place of the
    first one's."""
    draw = random.Random(seed)
    table, job = a_table(draw), a_job(draw)
    worker = Worker(job, new_memory())
    history = History()
    looked: dict[str, frozenset[int]] = {}
    rules = table.rules
    for number in range(draw.randint(2, 4)):
        if rules != table.rules:
            looked.clear()
        rules = table.rules
        # New files, and those of which rows came back since they were looked at.
        needed = {path for path in table.live if path not in looked or not looked[path] <= table.masked(path)}
        needed = {path for path in needed if job.reads(table.disk[path])}
        outcome = worker.attempt(table)
        fresh = Worker(job, Memory()).attempt(table)
        looked |= {path: table.masked(path) for path in outcome.scanned}
        if outcome.scanned != needed:
            history.wasted = f"seed {seed}, attempt {number}: scanned {outcome.scanned}, needed {needed}"
        history.attempts += 1
        history.scans += len(outcome.scanned)
        history.scans_from_the_start += len(fresh.scanned)
        history.segments += len(outcome.staged)
        history.segments_from_the_start += len(fresh.staged)
        if outcome.rows != fresh.rows:
            history.wrong = f"seed {seed}, attempt {number}: {outcome.rows}, from the start {fresh.rows}"
            return history
        if resume is not None and draw.random() < 0.3:
            worker.memory = resume(worker.memory)
        for _ in range(draw.randint(1, 2)):
            a_winner(draw, table)
    return history
