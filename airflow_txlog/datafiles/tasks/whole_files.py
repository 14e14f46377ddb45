"""A step of a task that writes whole files, each from planned ones; one record a file.

A file is written, and then published, as nothing of it is seen before in a remote store. There the next file is written
meanwhile. The invariant: every file that is written is published, or leaves nothing.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import NoReturn

import pyarrow as pa

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.datafiles.ahead import ahead
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.datafiles.tasks.plans import Bins, PlannedFile
from airflow_txlog.datafiles.tasks.scan_and_write import error_record, records, task_numbers, use_one_thread
from airflow_txlog.errors import TxlogError
from airflow_txlog.storage import Store

Publish = Callable[[], StagedFile | None]
"""Publishes a file that is written, and returns it; None if it has no rows. An error leaves nothing of it."""


@dataclass(frozen=True, kw_only=True)
class FileTask:
    """Writes new files from planned ones, for a numbered range; one record a file."""

    bins: Bins
    layout: Layout

    @property
    def weight(self) -> int:
        return self.bins.weight

    def staged(
        self,
        batches: Iterator[pa.RecordBatch],
        key: Callable[[PlannedFile], Hashable],
        write: Callable[[list[PlannedFile], str, Store], Publish],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of the files that `write` makes of neighbours with equal keys; for a failure, the error."""
        use_one_thread()
        store = self.layout.store.open()
        for publish in in_advance(self._written(batches, key, write, store), store):
            try:
                staged = publish()
            except TxlogError as error:
                yield error_record(error)
                continue
            if staged is not None:
                yield records([staged])

    def _written(
        self,
        batches: Iterator[pa.RecordBatch],
        key: Callable[[PlannedFile], Hashable],
        write: Callable[[list[PlannedFile], str, Store], Publish],
        store: Store,
    ) -> Iterator[Publish]:
        attempt, planned_store = SYSTEM_CLOCK.unique_id(), self.bins.store_beside(store)
        for number in task_numbers(batches):
            try:
                planned = self.bins.files(number, planned_store)
            except TxlogError as error:
                yield functools.partial(_raise, error)
                continue
            for _, files in itertools.groupby(planned, key):
                try:
                    yield write(list(files), attempt, store)
                except TxlogError as error:
                    yield functools.partial(_raise, error)


def in_advance(written: Iterator[Publish], store: Store) -> Iterator[Publish]:
    """Yield the same; in a remote store a second thread writes the next file while the caller publishes one."""
    return ahead(written) if store.is_remote else written


def publishing(close: Publish, abandon: Callable[[], None]) -> Publish:
    """Return what calls `close`, and `abandon` if that fails."""

    def publish() -> StagedFile | None:
        try:
            return close()
        except BaseException:
            abandon()
            raise

    return publish


def _raise(error: TxlogError) -> NoReturn:
    raise error
