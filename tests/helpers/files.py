"""Data files in folders of the local disk, as the code under test names them: by a store and a path in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_txlog.datafiles.parquet.reading import DataFile
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.datafiles.tasks.plans import PLAN_FIELDS, Bins, plan_rows, plan_table
from airflow_txlog.storage import LocalStore, StoreReference
from tests.helpers.limits import limited


def store_of(folder: Path | str, **limits: int) -> StoreReference:
    """The folder as a store that tasks open."""
    return StoreReference.of(limited(LocalStore(str(folder)), **limits))


def data_file(path: Path | str, **known: Any) -> DataFile:
    """A file as its add action describes it, in a table that is its folder."""
    path = Path(path)
    return DataFile(store=LocalStore(str(path.parent)), path=path.name, **known)


def place_of(layout: Layout, file: StagedFile) -> Path:
    """Where on the disk a staged file lies."""
    return Path(layout.store.root.removeprefix("file://")) / file.store_path


def plan_of_files(*files: dict[str, Any], **constants: pa.Array) -> pa.Table:
    """A plan of files, of which these fields are known; they are numbered in their order where they are not."""
    rows = [{"index": index} | file for index, file in enumerate(files)]
    return plan_table({field.name: [row.get(field.name) for row in rows] for field in PLAN_FIELDS}, constants)


def bins_of(folder: Path, plan: pa.Table, bins: Sequence[Sequence[int]] | None = None) -> Bins:
    """The work of tasks on files of the folder, given by the plan's rows; all of them are one bin where it is None."""
    packed = [list(range(plan.num_rows))] if bins is None else bins
    return Bins(store=store_of(folder), inline=tuple(plan_rows(plan, rows) for rows in packed))
