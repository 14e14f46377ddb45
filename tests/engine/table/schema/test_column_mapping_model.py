"""Any history of renamed, dropped and added columns reads as a plain model of it, in every mode, by any predicate.

The model keeps rows by column number and never by name. The engine must agree with it on every row after every change,
through statistics and partition values, and on the members of a struct as on columns.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from tests.helpers.depth import in_long
from tests.helpers.rows import append

NAMES = ["a", "b", "c", "d"]
MEMBERS = ["x", "y"]


class Model:
    """Columns as numbers under their names of today; the rows of the table by column number."""

    def __init__(self) -> None:
        self.columns = {"a": 0, "b": 1, "part": 2, "s": 3}
        self.members = {"x": 100, "y": 101}
        self.rows: list[dict[int, Any]] = []
        self.next = 4

    def logical(self) -> list[dict[str, Any]]:
        return [self._row(row) for row in self.rows]

    def _row(self, row: dict[int, Any]) -> dict[str, Any]:
        found = {name: row.get(number) for name, number in self.columns.items() if name != "s"}
        return {**found, "s": {name: row.get(number) for name, number in self.members.items()}}

    def add(self, row: dict[str, Any]) -> None:
        values = {self.columns[name]: value for name, value in row.items() if name != "s"}
        self.rows.append(values | {self.members[name]: value for name, value in row["s"].items()})

    def rename(self, names: dict[str, str]) -> None:
        self.columns = {names.get(name, name): number for name, number in self.columns.items()}

    def again(self, name: str) -> None:
        """Dropped, and added under the same name."""
        self.columns[name], self.next = self.next, self.next + 1


def bag(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as text, whatever the order of columns and members."""
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def changed(table: Table, change: Any) -> None:
    metadata = table.snapshot().metadata
    schema = json.loads(metadata.schema_string or "")
    configuration, partitions = dict(metadata.configuration), list(metadata.partition_columns)
    change(schema["fields"], configuration, partitions)
    tx = table.begin()
    tx.set_metadata(
        msgspec.structs.replace(
            metadata, schema_string=json.dumps(schema), configuration=configuration, partition_columns=partitions
        )
    )
    tx.commit("CHANGE COLUMN")


def renamed(table: Table, names: dict[str, str], *, in_struct: bool = False) -> None:
    def change(fields: list[Any], _: dict[str, str], partitions: list[str]) -> None:
        [struct] = [field for field in fields if isinstance(field["type"], dict)]
        for field in struct["type"]["fields"] if in_struct else fields:
            field["name"] = names.get(field["name"], field["name"])
        if not in_struct:
            partitions[:] = [names.get(name, name) for name in partitions]

    changed(table, change)


def added_again(table: Table, name: str) -> None:
    def change(fields: list[Any], configuration: dict[str, str], _: list[str]) -> None:
        last = int(configuration["delta.columnMapping.maxColumnId"]) + 1
        configuration["delta.columnMapping.maxColumnId"] = str(last)
        [field] = [field for field in fields if field["name"] == name]
        field["metadata"] = {"delta.columnMapping.id": last, "delta.columnMapping.physicalName": f"col-new-{last}"}

    changed(table, change)


def step(table: Table, model: Model, rng: random.Random, partition: str) -> str:
    """One random change of both; the name of the partition column after it."""
    plain = sorted(name for name in model.columns if name not in ("s", partition))
    match rng.choice(["append", "append", "swap", "rename", "again", "members", "with the partition"]):
        case "append":
            rows = [
                {name: rng.choice([None, rng.randrange(4)]) for name in [*plain, partition]}
                | {"s": {name: rng.randrange(4) for name in MEMBERS}}
                for _ in range(rng.randrange(1, 4))
            ]
            append(table, rows)
            for row in rows:
                model.add(row)
        case "swap":
            one, other = plain[:2]
            renamed(table, {one: other, other: one})
            model.rename({one: other, other: one})
        case "rename":
            free = [name for name in NAMES if name not in model.columns]
            names = {rng.choice(plain): rng.choice(free)}
            renamed(table, names)
            model.rename(names)
        case "again":
            name = rng.choice(plain)
            added_again(table, name)
            model.again(name)
        case "members":
            renamed(table, {"x": "y", "y": "x"}, in_struct=True)
            model.members = {"x": model.members["y"], "y": model.members["x"]}
        case "with the partition":
            # A data column and the partition column exchange their names: the worst case for whoever goes by name.
            other = rng.choice(plain)
            renamed(table, {other: partition, partition: other})
            model.rename({other: partition, partition: other})
            return other
    return partition


@pytest.mark.parametrize("mode", ["name", "id"])
@pytest.mark.parametrize("seed", [0, 1, 2, *in_long("more histories", 3, 4, 5)])
def test_a_history_of_renames_reads_as_its_model(tmp_path: Path, seed: int, mode: str) -> None:
    rng = random.Random(seed)
    struct = pa.struct([(name, pa.int64()) for name in MEMBERS])
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("part", pa.int64()), ("s", struct)])
    table = Table.create(tmp_path / "t", schema, ["part"], {"delta.columnMapping.mode": mode})
    model, partition = Model(), "part"
    for _ in range(14):
        partition = step(table, model, rng, partition)
        expected = model.logical()
        found = table.to_arrow()
        assert bag(found.to_pylist()) == bag(expected)
        name, value = rng.choice([name for name in found.column_names if name != "s"]), rng.randrange(4)
        matching = table.to_arrow(f"{name} = {value}").num_rows
        assert matching == sum(row[name] == value for row in expected)
        assert table.to_arrow(f"{name} IS NULL").num_rows == sum(row[name] is None for row in expected)
    table.checkpoint()
    assert bag(Table.open(table.uri).to_arrow().to_pylist()) == bag(model.logical())
