"""The rows of the simulated data files. No Parquet is written: what a file holds is known by its path."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from tests.engine.simulation.model import Key, State, key_of

DAYS = ("1", "2")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A live file, and the ids of the rows that it holds beyond its deletion vector."""

    key: Key
    day: str
    ids: tuple[int, ...]
    action: Mapping[str, Any]


class Rows:
    """Which file holds which ids, and which ids a deletion vector masks."""

    def __init__(self, root: str, chance: random.Random) -> None:
        self.root = root
        self.chance = chance
        self._ids: dict[str, tuple[int, ...]] = {}
        self._masked: dict[str, frozenset[int]] = {}
        self._names = 0

    def new_file(self, owner: str, day: str, ids: Iterable[int], *, counted_only: bool = False) -> dict[str, Any]:
        """The fields of an add (in the engine's spelling) for a new file with these rows."""
        self._names += 1
        space = " " if self.chance.random() < 0.2 else ""
        folder = f"day={day}/" if self.chance.random() < 0.5 else ""
        path = f"{folder}{owner}{space}-{self._names}.parquet"
        self._ids[path] = tuple(ids)
        stats: dict[str, Any] = {"numRecords": len(self._ids[path])}
        if not counted_only:
            low, high = min(self._ids[path]), max(self._ids[path])
            stats |= {"minValues": {"id": low}, "maxValues": {"id": high}, "nullCount": {"id": 0}}
        return {
            "path": quote(path, safe="/="),
            "partition_values": {"day": day},
            "size": 100 + self._names,
            "stats": json.dumps(stats),
        }

    def new_vector(self, file: DataFile, masked: Iterable[int]) -> dict[str, Any]:
        """A deletion vector (in the protocol's spelling) that masks these rows besides those masked already."""
        self._names += 1
        already = frozenset(self._ids[file.key[0]]) - frozenset(file.ids)
        vector = {
            "storageType": "u",
            "pathOrInlineDv": f"{self._names:020d}",
            "offset": 1,
            "sizeInBytes": 40,
            "cardinality": len(already | frozenset(masked)),
        }
        self._masked[f"u{self._names:020d}@1"] = already | frozenset(masked)
        return vector

    def of_key(self, key: Key) -> tuple[int, ...]:
        path, vector = key
        masked = self._masked[vector] if vector is not None else frozenset()
        return tuple(each for each in self._ids[path] if each not in masked)

    def of_state(self, state: State) -> list[DataFile]:
        return [
            DataFile(key, add["partitionValues"]["day"], self.of_key(key), add)
            for key, add in sorted(state.files.items(), key=lambda item: (item[0][0], item[0][1] or ""))
        ]

    def of_files(self, files: pa.Table) -> list[DataFile]:
        """The same of a table FILES, in its order; `action` holds the row's place in the table."""
        found = []
        names = ["path", "partition_values", "deletion_vector"]
        for place, row in enumerate(files.select(names).to_pylist()):
            vector = row["deletion_vector"]
            wire = {"path": row["path"]}
            if vector is not None:
                wire["deletionVector"] = {
                    "storageType": vector["storage_type"],
                    "pathOrInlineDv": vector["path_or_inline_dv"],
                    "offset": vector["offset"],
                }
            key = key_of(wire, self.root)
            found.append(DataFile(key, dict(row["partition_values"])["day"], self.of_key(key), {"place": place}))
        return found
