"""The driver's description of data files for tasks: one Arrow table, cut into bins, each sent as bytes.

A *bin* is the work of one task. Bins are packed by bytes, longest first, so that tasks end together. To another process
they go as Arrow IPC and not as pickles: a plan that is too large for a closure is read from a file in the table's
folder, and no one who can write there may run code on an executor. The invariant: typed partition values arrive
unchanged.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any

import pyarrow as pa

from airflow_txlog.datafiles.deletion_vectors.positions import CLAUSE, SOURCE_ROW, unpack_pairs, whole
from airflow_txlog.datafiles.parquet.reading import DataFile
from airflow_txlog.datafiles.staged_files import CHANGE_TYPE_COLUMN
from airflow_txlog.errors import JobError
from airflow_txlog.locations import readable
from airflow_txlog.storage import Store, StoreReference

# One row per data file; `path` is its name in the table's store. A plan lacks the columns that are null in all rows.
# `deleted` is the bitmap of the rows that its deletion vector deletes, as `rows.RowPositions` reads it: a list of a
# billion deleted rows would not fit a driver. `positions` is `positions.pack`, of rows that are not deleted.
# `pairs` (`positions.pack_pairs`) has the source row and the clause of each of them; without it one `clause` acts on
# them all, and none of them met a source row.
# `segment` is the number of the segment that new images of the file's rows belong to; if `is_copied`, the task that
# writes the images copies the file's other rows too, without those of `leaving` if more rows leave than have images.
# Columns named `constant:<column>` follow: the partition values, typed, and facts about change rows.
PLAN_FIELDS = [
    pa.field("index", pa.int64(), nullable=False),
    pa.field("path", pa.string(), nullable=False),
    pa.field("size_bytes", pa.int64()),
    pa.field("num_records", pa.int64()),
    pa.field("directory", pa.string()),
    pa.field("partition_values", pa.map_(pa.string(), pa.string())),
    pa.field("deleted", pa.large_binary()),
    pa.field("positions", pa.large_binary()),
    pa.field("leaving", pa.large_binary()),
    pa.field("pairs", pa.large_binary()),
    pa.field("clause", pa.int32()),
    pa.field("segment", pa.int32()),
    pa.field("is_copied", pa.bool_()),
]
PLAN_FIELD = {field.name: field for field in PLAN_FIELDS}
CONSTANT_PREFIX = "constant:"
NO_ROW = -1
"""The number of the source row for a row that met none."""
# The rows of a plan that are read at once: column by column is faster, and bitmaps may be large.
_ROWS_AT_ONCE = 256
# Follows a row of a bin if several tasks share a large file: which part of how many this row is.
PART_FIELDS = [pa.field("part", pa.int32(), nullable=False), pa.field("parts", pa.int32(), nullable=False)]
_OF_PART = frozenset(field.name for field in PART_FIELDS)
_OF_FILE = ("path", "size_bytes", "num_records")


@dataclass(frozen=True, kw_only=True)
class PlannedFile:
    """One row of a plan.

    `directory` is the destination of a copy, relative to the table, "" for its root; `partition_values` are the raw
    strings of the add action, `constants` the same values typed. `leaving` are the rows that a copy leaves out, by
    default `positions`. `pairs` are the source rows and the clauses of the positions; without them `clause` acts on
    all. A task may do a part of a large file: number `part` of `parts`, whole row groups.
    """

    index: int
    file: DataFile
    directory: str
    partition_values: dict[str, str | None]
    deleted: bytes | None = None
    positions: bytes | None = None
    leaving: bytes | None = None
    pairs: bytes | None = None
    clause: int | None = None
    segment: int | None = None
    is_copied: bool
    constants: Mapping[str, pa.Scalar]
    part: int = 0
    parts: int = 1

    @cached_property
    def _pairs(self) -> pa.Table | None:
        return None if self.pairs is None else unpack_pairs(self.pairs)

    @cached_property
    def row_ids(self) -> pa.Array | None:
        """The source rows of the positions."""
        return None if self._pairs is None else whole(self._pairs.column(SOURCE_ROW).fill_null(NO_ROW))

    @cached_property
    def clauses(self) -> pa.Array | None:
        """The clauses of the positions; a single one acts on all."""
        if self._pairs is None:
            return None if self.clause is None else pa.array([self.clause], pa.int32())
        return whole(self._pairs.column(CLAUSE).fill_null(-1))

    def row_groups(self, count: int) -> range:
        """Return the row groups of the part, of the file's `count`: each is in exactly one part, and a part may be
        empty.
        """
        return range(*(-(-number * count // self.parts) for number in (self.part, self.part + 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """The work of each task: `inline`, or left in files if it is too large to be sent along.

    Where it was sent to, `inline` are bytes (`encoded_plan`): a task decodes its own.

    `store` is that of the planned files. `paths` are the files that hold the plan, in the store `kept`: the job's own
    table. `digests` are their SHA-256: a plan names files that a task opens with the worker's credentials, so a task
    takes it from exactly these bytes. `weight` is the cost of reading all planned files, in bytes (`limits.weight_of`).
    `amounts`: for each task, the number of its files (a part counts as one) and their bytes.
    """

    store: StoreReference
    inline: tuple[pa.Table | bytes, ...] = ()
    kept: StoreReference | None = None
    paths: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    weight: int = 0
    amounts: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.inline) or len(self.paths)

    def store_beside(self, written: Store) -> Store:
        """Return the store of the planned files: `written` itself if new files go to the same one."""
        return written if StoreReference.of(written) == self.store else self.store.open()

    def files(self, number: int, store: Store) -> Iterator[PlannedFile]:
        """Yield the files of one bin, in the order of the plan. `store` is what `self.store` opens.

        Raises JobError, retryable, if the file of a plan is not the one that the driver left.
        """
        plan = self.inline[number] if self.inline else self._left(number)
        return planned_files(pa.ipc.open_stream(plan).read_all() if isinstance(plan, bytes) else plan, store)

    def __reduce__(self) -> tuple[Any, ...]:
        inline = tuple(plan if isinstance(plan, bytes) else encoded_plan(plan) for plan in self.inline)
        others = {each.name: getattr(self, each.name) for each in fields(self)}
        return partial(Bins, **{**others, "inline": inline}), ()

    def _left(self, number: int) -> bytes:
        assert self.kept is not None
        path = self.paths[number]
        with self.kept.open().open_input(path) as source:
            data: bytes = source.read()
        if hashlib.sha256(data).hexdigest() != self.digests[number]:
            raise JobError(
                f"The plan {readable(self.kept.root, path)} is not what this job has written: another process has "
                "replaced it. Nothing that it names was opened, and nothing was committed. Find out who else writes to "
                "the table's folder.",
                retryable=True,
            )
        return data


def plan_table(columns: Mapping[str, Any], constants: Mapping[str, pa.Array] | None = None) -> pa.Table:
    """Return a plan with these columns (lists or arrays, at least one) and partition values."""
    typed = constants or {}
    fields = [PLAN_FIELD[name] for name in columns]
    fields += [pa.field(CONSTANT_PREFIX + name, values.type) for name, values in typed.items()]
    return pa.table([*columns.values(), *typed.values()], schema=pa.schema(fields))


def plan_rows(plan: pa.Table, rows: Sequence[int]) -> pa.Table:
    """Return these rows of a plan, in this order."""
    is_whole = len(rows) == plan.num_rows and all(row == number for number, row in enumerate(rows))
    return plan if is_whole else plan.take(pa.array(rows, pa.int64()))


def planned_files(plan: pa.Table, store: Store) -> Iterator[PlannedFile]:
    """Yield the rows of a plan; `store` is that of the files."""
    held = plan.column_names
    names = [name for name in held if name in PLAN_FIELD or name in _OF_PART]
    constants = [name for name in held if name.startswith(CONSTANT_PREFIX)]
    for part in plan.select(names + constants).to_batches(max_chunksize=_ROWS_AT_ONCE):
        columns = part.columns
        typed = dict(zip(constants, columns[len(names) :], strict=True))
        rows = zip(*(column.to_pylist() for column in columns[: len(names)]), strict=True)
        for row, values in enumerate(rows):
            value = dict(zip(names, values, strict=True))
            file = {name: value.pop(name, None) for name in _OF_FILE}
            yield PlannedFile(
                file=DataFile(store=store, **file),
                directory=value.pop("directory", None) or "",
                partition_values=dict(value.pop("partition_values", None) or []),
                is_copied=bool(value.pop("is_copied", None)),
                constants=_constants({name: column[row] for name, column in typed.items()}),
                **value,
            )


def _constants(values: Mapping[str, pa.Scalar]) -> dict[str, pa.Scalar]:
    """Return a file's constants by column. A file of change rows has their type as a column: a null is no constant."""
    found = {name.removeprefix(CONSTANT_PREFIX): value for name, value in values.items()}
    if CHANGE_TYPE_COLUMN in found and not found[CHANGE_TYPE_COLUMN].is_valid:
        del found[CHANGE_TYPE_COLUMN]
    return found


def pack_bins(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Return the row numbers of each bin, ascending: longest first, into the bin that holds least. No bin is empty."""
    bins: list[tuple[int, int, list[int]]] = [(0, number, []) for number in range(min(count, len(sizes)))]
    heapq.heapify(bins)
    for row in sorted(range(len(sizes)), key=lambda row: (-sizes[row], row)):
        total, number, rows = heapq.heappop(bins)
        rows.append(row)
        # Even an empty file costs an open.
        heapq.heappush(bins, (total + max(sizes[row], 1), number, rows))
    return [sorted(rows) for _, _, rows in sorted(bins, key=lambda entry: entry[1])]


def encoded_plan(plan: pa.Table) -> bytes:
    """Return the plan as Arrow IPC."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, plan.schema) as stream:
        stream.write_table(plan)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def in_parts(plan: pa.Table, parts: Sequence[int]) -> pa.Table:
    """Return the plan with each file in `parts` rows, numbered by PART_FIELDS."""
    rows = [row for row, count in enumerate(parts) for _ in range(count)]
    numbers = [number for count in parts for number in range(count)]
    repeated = plan.take(pa.array(rows, pa.int64()))
    columns = (numbers, [parts[row] for row in rows])
    for field, values in zip(PART_FIELDS, columns, strict=True):
        repeated = repeated.append_column(field, pa.array(values, field.type))
    return repeated
