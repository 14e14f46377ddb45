"""Plans of data files: made on the driver, cut into bins, and run in this process or sent to Spark.

The invariants: a row's address is the plan's row and the row's ordinal in its file, whatever columns or rows are
wanted; and the results, errors and files of a task do not depend on the machine. Source: soundness A19.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa

from airflow_txlog.datafiles.deletion_vectors.positions import unpack
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.failures import TaskFailed, error_in
from airflow_txlog.datafiles.parquet.physical import is_mapped
from airflow_txlog.datafiles.partitioning import hive_directory
from airflow_txlog.datafiles.tasks.copies import SentColumns
from airflow_txlog.datafiles.tasks.plans import (
    PLAN_FIELD,
    Bins,
    encoded_plan,
    in_parts,
    pack_bins,
    plan_rows,
    plan_table,
)
from airflow_txlog.datafiles.tasks.scan_and_write import ADDRESS_COLUMN, FileScan, Step
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.table.columns.partitions import Instants, typed_partition_columns
from airflow_txlog.engine.table.snapshot.files import record_counts
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.spark.errors import of_worker
from airflow_txlog.locations import readable
from airflow_txlog.process import progress
from airflow_txlog.sql.expression import Expression
from airflow_txlog.storage import Store, StoreReference
from airflow_txlog.storage.limits import weight_of

# Tasks are added while each still has this much to read; every task costs about 30 ms.
SMALLEST_BIN_BYTES = 4 * 1024 * 1024
# The size of the pieces into which a file is cut if it would keep one task busy after the others are done.
PIECE_BYTES = 128 * 1024 * 1024
# The same for tasks that only read: no file gets smaller by them.
SCANNED_PIECE_BYTES = 16 * 1024 * 1024
# A second wave of tasks evens out what the first one left unbalanced, once there is enough to do.
TWO_WAVES_BYTES = 512 * 1024 * 1024
# The columns of a plan that come from a file's action, and the number of files that are processed at once.
_OF_ACTION = ("path", "size_bytes", "num_records", "directory", "partition_values")
_ROWS = pa.schema([PLAN_FIELD[name] for name in _OF_ACTION])
_ROWS_AT_ONCE = 16_384


class BinTask(Protocol):
    """A task over bins, one Spark task each."""

    @property
    def bins(self) -> Bins:
        """The work of each task."""

    @property
    def weight(self) -> int:
        """The cost of all files that the task reads, as of Bins."""

    def __call__(self, batches: Iterator[pa.RecordBatch], /) -> Iterator[pa.RecordBatch]:
        """Yield the task's results for the bins with these numbers."""


@dataclass(frozen=True, kw_only=True)
class FilePlan:
    """Data files of one snapshot and the work on them: a table of `plans.PLAN_FIELDS` and partition constants.

    `schema` is the table's, and `store` its store; the column `index` numbers the files of the original plan. `costs`:
    the cost of reading a file in bytes, by that number, if it is more than its size.
    """

    table: pa.Table
    schema: pa.Schema
    store: Store
    costs: Mapping[int, int] = field(default_factory=dict)

    @property
    def num_files(self) -> int:
        return int(self.table.num_rows)

    def name_of(self, row: int) -> str:
        """Return the URI of a row's file, for messages."""
        return readable(self.store.root, self.table.column("path")[row].as_py())

    def values(self, name: str) -> list[Any]:
        """Return one of the columns of `plans.PLAN_FIELDS`."""
        return self.table.column(name).to_pylist() if name in self.table.column_names else [None] * self.num_files

    def live_row_counts(self) -> list[int | None]:
        """Return the undeleted rows of each file; None if the log does not count its rows."""
        return [
            count if count is None or vector is None else count - RowPositions(vector, "of the plan").num_rows
            for count, vector in zip(self.values("num_records"), self.values("deleted"), strict=True)
        ]

    def staying_row_counts(self) -> list[int | None]:
        """Return the undeleted rows of each file outside of `positions`; None if the log does not count its rows."""
        return [
            None if count is None else count - unpack(leaving).num_rows
            for count, leaving in zip(self.live_row_counts(), self.values("positions"), strict=True)
        ]

    @property
    def size(self) -> dict[str, int]:
        """The numbers of `files` and `bytes`, and of undeleted `rows` if every file is counted."""
        rows = self.live_row_counts()
        known = [count for count in rows if count is not None]
        of_all = {"rows": sum(known)} if len(known) == len(rows) else {}
        return {**of_all, "bytes": sum(self.values("size_bytes")), "files": self.num_files}

    @property
    def num_positions(self) -> int:
        """The number of rows in `positions`."""
        return sum(unpack(positions).num_rows for positions in self.values("positions"))

    def reading_costs(self) -> list[int]:
        """Return the cost of reading the rows of each file, in bytes: its size, or more if they take much memory."""
        rows = zip(self.values("index"), self.values("size_bytes"), strict=True)
        return [max(size or 0, self.costs.get(number, 0)) for number, size in rows]

    def take(self, rows: Sequence[int]) -> FilePlan:
        """Return the plan of these rows, in this order."""
        return replace(self, table=plan_rows(self.table, rows))

    def with_column(self, name: str, values: Sequence[bytes | int | None]) -> FilePlan:
        """Return the plan with one of its columns for the work on its rows set, one value a file."""
        field, index = PLAN_FIELD[name], self.table.schema.get_field_index(name)
        column = pa.array(values, field.type)
        if index < 0:
            return replace(self, table=self.table.append_column(field, column))
        return replace(self, table=self.table.set_column(index, field, column))


def plan_files(snapshot: Snapshot, files: pa.Table, time_zone: str, instants: Instants | None = None) -> FilePlan:
    """Return the plan of a snapshot's files (rows of a table `FILES`), indexed in their order.

    `time_zone` and `instants` read partition values without a zone. Deletion vectors are read here, on the driver, and
    checked before anything is staged. Raises CorruptTable for a partition value that is not of its type,
    CorruptDeletionVector, and OutsideTable for a file that may not be read.
    """
    partition_columns = snapshot.partition_columns
    typed = typed_partition_columns(
        files, snapshot.delta_schema, partition_columns, time_zone=time_zone, instants=instants
    )
    described = files.select(["path", "size", "stats", "partition_values", "deletion_vector"])
    directory = functools.cache(functools.partial(_directory, snapshot))
    # As a Python object, a file takes several times the memory of its row, so only a batch of them exists at a time.
    batches = [_plan_rows(snapshot, batch, directory) for batch in described.to_batches(max_chunksize=_ROWS_AT_ONCE)]
    table = pa.Table.from_batches(batches, schema=_ROWS).combine_chunks()
    columns = {
        "index": range(files.num_rows),
        "deleted": [None if deleted is None else deleted.data for deleted in snapshot.deleted_rows(files)],
        **dict(zip(table.column_names, table.columns, strict=True)),
    }
    table = plan_table(columns, {name: column.for_rows(name) for name, column in typed.items()})
    return FilePlan(table=table, schema=snapshot.schema, store=snapshot.store)


def _plan_rows(
    snapshot: Snapshot, files: pa.RecordBatch, directory: Callable[[tuple[tuple[str, str | None], ...]], str]
) -> pa.RecordBatch:
    """Return the columns of a plan that follow from the files' actions, with the schema _ROWS."""
    values = [tuple(dict(each or ()).items()) for each in files.column("partition_values").to_pylist()]
    columns = {
        "path": [snapshot.path_to_read(path) for path in files.column("path").to_pylist()],
        "size_bytes": files.column("size"),
        "num_records": record_counts(files),
        "directory": list(map(directory, values)),
        "partition_values": values,
    }
    return pa.record_batch([pa.array(columns[field.name], field.type) for field in _ROWS], schema=_ROWS)


def plan_of(
    store: Store,
    schema: pa.Schema,
    paths: Sequence[str],
    sizes: Sequence[int],
    constants: Mapping[str, Sequence[str | None]] | None = None,
    costs: Sequence[int] = (),
) -> FilePlan:
    """Return the plan of Parquet files that no log names.

    `constants`: each file's value of columns of text. `costs`: as of FilePlan, for every file or for none.
    """
    columns = {"index": range(len(paths)), "path": paths, "size_bytes": sizes}
    typed = {name: pa.array(values, pa.string()) for name, values in (constants or {}).items()}
    table = plan_table(columns, typed)
    return FilePlan(table=table, schema=schema, store=store, costs=dict(enumerate(costs)))


def _directory(snapshot: Snapshot, partition_values: tuple[tuple[str, str | None], ...]) -> str:
    """Return the folder of a file's copy; "" if column mapping leaves the choice to the writer."""
    if any(map(is_mapped, snapshot.schema)):
        return ""
    names, values = snapshot.partition_columns, dict(partition_values)
    return hive_directory(names, [values.get(name) for name in names])


def addressed_scan(
    context: JobContext,
    plan: FilePlan,
    columns: frozenset[str],
    row_filter: Expression | None = None,
    first: tuple[str, ...] = (),
) -> FileScan:
    """Return the scan of these columns of the planned files, with each row's address.

    `row_filter` may name only these columns. The columns `first` come before the others.
    """
    names = [*first, *(name for name in plan.schema.names if name in columns and name not in first)]
    schema = pa.schema([plan.schema.field(name) for name in names])
    bins = bins_for(context, plan, in_pieces=True, piece_bytes=SCANNED_PIECE_BYTES)
    return FileScan(bins=bins, schema=schema, with_address=True, row_filter=row_filter, is_read_again=True)


def bins_for(context: JobContext, plan: FilePlan, *, in_pieces: bool = False, piece_bytes: int = PIECE_BYTES) -> Bins:
    """Return the work of each task, sent along or, if it is large, left in the job's inputs folder.

    `in_pieces`: a large file may be the work of several tasks, each with some of its row groups and at least
    `piece_bytes`. Raises NeedsSpark if that is too much work for a job without Spark.
    """
    sizes = plan.reading_costs()
    context.executor.admit(sizes, plan.store)
    if in_pieces:
        parts = parts_of(context.parallelism, sizes, piece_bytes)
        if max(parts, default=1) > 1:
            plan = replace(plan, table=in_parts(plan.table, parts))
            sizes = [size // count for size, count in zip(sizes, parts, strict=True) for _ in range(count)]
    return sent_bins(context, plan, pack_bins(sizes, task_count(context.parallelism, sizes)))


def bins_by_segment(context: JobContext, plan: FilePlan) -> tuple[Bins, tuple[int, ...]]:
    """Return the work of each task, with each segment in one task, and the index of each bin's first file.

    Raises NeedsSpark if that is too much work for a job without Spark.
    """
    segments: dict[int, list[int]] = {}
    for row, segment in enumerate(plan.values("segment")):
        segments.setdefault(segment, []).append(row)
    file_sizes = plan.reading_costs()
    context.executor.admit(file_sizes, plan.store)
    sizes = [sum(file_sizes[row] for row in rows) for rows in segments.values()]
    groups = list(segments.values())
    packed = pack_bins(sizes, task_count(context.parallelism, sizes))
    rows_of_bins = [[row for number in numbers for row in groups[number]] for numbers in packed]
    indexes = plan.values("index")
    return sent_bins(context, plan, rows_of_bins), tuple(indexes[rows[0]] for rows in rows_of_bins)


def sent_bins(context: JobContext, plan: FilePlan, packed: Sequence[Sequence[int]]) -> Bins:
    """Return the work of each task, given as rows of the plan."""
    store = StoreReference.of(plan.store)
    # A file in parts occurs once for each part.
    costs = dict(zip(plan.values("index"), plan.reading_costs(), strict=True)).values()
    weight = weight_of(costs, is_remote=plan.store.is_remote)
    amounts = _amounts(plan, packed)
    inline: list[pa.Table] = []
    parts, inline_bytes = (plan_rows(plan.table, rows) for rows in packed), 0
    for part in parts:
        inline.append(part)
        inline_bytes += part.nbytes
        if inline_bytes > plan.store.limits.inline_plan_bytes:
            break
    else:
        return Bins(store=store, inline=tuple(inline), weight=weight, amounts=amounts)
    plan_id = context.clock.unique_id()
    context.has_inputs = True
    paths, digests = [], []
    # One after another: written plans are not kept in memory.
    for number, data in enumerate(map(encoded_plan, chain(_given_away(inline), parts))):
        paths.append(f"{context.inputs_folder}/plan-{plan_id}-{number}.arrow")
        digests.append(hashlib.sha256(data).hexdigest())
        with context.store.open_new(paths[-1]) as output:
            output.write(data)
    kept = StoreReference.of(context.store)
    return Bins(store=store, kept=kept, paths=tuple(paths), digests=tuple(digests), weight=weight, amounts=amounts)


def _amounts(plan: FilePlan, packed: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    """Return the number of rows of the plan in each bin, and the bytes of their files or parts of files."""
    numbers, sizes = plan.values("index"), plan.values("size_bytes")
    parts = Counter(numbers)
    return tuple((len(rows), sum((sizes[row] or 0) // parts[numbers[row]] for row in rows)) for rows in packed)


def _given_away(parts: list[pa.Table]) -> Iterator[pa.Table]:
    """Yield the parts in order; each is removed from the list first."""
    while parts:
        yield parts.pop(0)


def task_count(parallelism: int, sizes: Sequence[int]) -> int:
    """Return how many tasks read files of these sizes: one or two a core, fewer if there is little to read."""
    total = sum(sizes)
    waves = 2 if total >= TWO_WAVES_BYTES * parallelism else 1
    return max(1, min(len(sizes), waves * parallelism, 1 + total // SMALLEST_BIN_BYTES))


def parts_of(parallelism: int, sizes: Sequence[int], piece_bytes: int = PIECE_BYTES) -> list[int]:
    """Return the number of parts of each file, so that none is more than the work of one task.

    A part has at least `piece_bytes`: PIECE_BYTES is a row group or two of most writers, and a copy of it is a file of
    good size.
    """
    pieces = [max(1, size // piece_bytes) for size in sizes]
    most = [size // count for size, count in zip(sizes, pieces, strict=True) for _ in range(count)]
    share = max(1, sum(sizes) // task_count(parallelism, most))
    return [max(1, min(count, -(-size // share))) for size, count in zip(sizes, pieces, strict=True)]


# --- tasks in this process ------------------------------------------------------------------------------------------


def planned_by(tasks: Iterable[BinTask]) -> None:
    """Report the files of tasks that Spark runs as planned."""
    amounts = [amount for task in tasks for amount in task.bins.amounts]
    progress.planned(sum(files for files, _ in amounts), sum(num_bytes for _, num_bytes in amounts))


def _amount_of(each: tuple[Step, pa.RecordBatch]) -> tuple[int, int]:
    """Return how many files, and bytes of them, one piece of work reads; none if it reads no planned files."""
    step, batch = each
    bins, values = getattr(step, "bins", None), getattr(step, "values", None)
    if not isinstance(bins, Bins) or not bins.amounts:
        return 0, 0
    if isinstance(values, SentColumns):
        return bins.amounts[values.bin_of(batch.column(ADDRESS_COLUMN)[0].as_py())]
    return bins.amounts[batch.column(0)[0].as_py()]


class TooManyRows(Exception):
    """The tasks' rows take more memory than the caller would hold."""


class _ThreadsOfArrow:
    """Restores Arrow's number of threads: a task sets it to one, as a worker of Spark should.

    The number belongs to the process, and jobs in threads of one process share it: the first one that begins remembers
    it, and the last one that ends restores it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._before = pa.cpu_count()
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                pa.set_cpu_count(self._before)


_threads_of_arrow = _ThreadsOfArrow()


def work_of(tasks: Sequence[BinTask]) -> list[tuple[Step, pa.RecordBatch]]:
    """Return all bins of the tasks, for `run_here`."""
    return [(task, bin_number(number)) for task in tasks for number in range(len(task.bins))]


def bin_number(number: int) -> pa.RecordBatch:
    """Return the batch that Spark sends to a task of a numbered range."""
    return pa.RecordBatch.from_pydict({"id": pa.array([number], pa.int64())})


def run_here(
    work: Sequence[tuple[Step, pa.RecordBatch]],
    schema: pa.Schema,
    what: str,
    threads: int,
    most_bytes: int | None = None,
) -> pa.Table:
    """Return the rows that each task makes of its batch, as one table. `what` names the work in errors.

    Raises the TxlogError of a task, and TooManyRows as soon as all rows take more than `most_bytes`.
    """
    lock, held_bytes = threading.Lock(), 0

    def rows_of(each: tuple[Step, pa.RecordBatch]) -> list[pa.RecordBatch]:
        nonlocal held_bytes
        step, batch = each
        found = []
        for rows in step(iter([batch])):
            found.append(rows)
            with lock:
                held_bytes += rows.nbytes
                if most_bytes is not None and held_bytes > most_bytes:
                    raise TooManyRows
        progress.done(*_amount_of(each))
        return found

    amounts = [_amount_of(each) for each in work]
    progress.planned(sum(files for files, _ in amounts), sum(num_bytes for _, num_bytes in amounts))
    try:
        with _threads_of_arrow:
            if min(threads, len(work)) <= 1:
                # In this thread: a single other one would take turns with it.
                found = list(map(rows_of, work))
            else:
                with ThreadPoolExecutor(min(threads, len(work))) as pool:
                    found = list(pool.map(rows_of, work))
    except TaskFailed as failed:
        error = error_in(str(failed))
        assert error is not None
        raise of_worker(error, what) from failed
    return pa.Table.from_batches([batch for batches in found for batch in batches], schema)
