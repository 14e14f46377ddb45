"""A folder of many small Parquet files in partitions becomes a table, in place."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.helpers.jobs import committed, run

FILES = 10_000
_DAYS = 100


def parquet_folder(folder: Path, count: int) -> None:
    """Make `count` files of ten rows in folders of days."""
    shutil.rmtree(folder, ignore_errors=True)
    random_of = random.Random(1)
    for number in range(count):
        day = number % _DAYS
        place = folder / f"day=2024-{day // 28 + 1:02d}-{day % 28 + 1:02d}"
        place.mkdir(parents=True, exist_ok=True)
        ids = range(10 * number, 10 * number + 10)
        prices = [random_of.random() for _ in ids]
        rows = pa.table({"id": ids, "shop": [f"shop {each % 97}" for each in ids], "price": prices})
        pq.write_table(rows, place / f"part-{number:05d}.parquet")


@dataclass
class OurConvert:
    folder: Path
    name = "ours"

    def prepare(self) -> None:
        shutil.rmtree(self.folder / "_delta_log", ignore_errors=True)

    def run(self) -> None:
        committed(run(None, "convert", self.folder, partition_schema="day DATE"))

    def result(self) -> int:
        """The number of files as the other implementation reads it."""
        from deltalake import DeltaTable

        return len(DeltaTable(str(self.folder)).file_uris())


@dataclass
class DeltaLakeConvert(OurConvert):
    name = "deltalake"

    def run(self) -> None:
        from deltalake import Schema, convert_to_deltalake
        from deltalake.schema import Field, PrimitiveType

        by_day = Schema([Field("day", PrimitiveType("date"))])
        convert_to_deltalake(str(self.folder), partition_by=by_day, partition_strategy="hive")
