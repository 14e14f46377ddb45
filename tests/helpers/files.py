"""Data files in folders of the local disk, as the code under test names them: by a store and a path in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_txlog.datafiles.parquet.output import StagedFile
from airflow_txlog.datafiles.parquet.reading import DataFile
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.storage import LocalStore, StoreReference


def store_of(folder: Path | str) -> StoreReference:
    """The folder as a store that tasks open."""
    return StoreReference.of(LocalStore(str(folder)))


def data_file(path: Path | str, **known: Any) -> DataFile:
    """A file as its add action describes it, in a table that is its folder."""
    path = Path(path)
    return DataFile(store=LocalStore(str(path.parent)), path=path.name, **known)


def place_of(layout: Layout, file: StagedFile) -> Path:
    """Where on the disk a staged file lies."""
    return Path(layout.store.root.removeprefix("file://")) / file.store_path
