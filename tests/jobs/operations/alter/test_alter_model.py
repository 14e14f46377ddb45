"""Random histories of alterations, appends, deletes and compactions beside a model of the table's rows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from tests.helpers.depth import depth
from tests.helpers.jobs import run
from tests.helpers.rows import append, make_table

SCHEMA = pa.schema([("a", pa.int32()), ("b", pa.string()), ("c", pa.int16())])
NAMES = ("a", "b", "c", *(f"n{number}" for number in range(8)))
NEW_TYPES = {"INT": "integer", "SMALLINT": "short", "STRING": "string"}
WIDER = {"short": ("INT", "integer"), "integer": ("BIGINT", "long")}
FEATURES = ("rowTracking", "deletionVectors", "inCommitTimestamp", "changeDataFeed", "v2Checkpoint")
# What an alteration of a random table may be refused by.
REFUSALS = {"SchemaMismatch", "ConstraintViolation", "InvalidProperty", "UnsupportedFeature"}
STEPS = 50


class Model:
    """The rows, and the type of each column by its present name."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.types = {"a": "integer", "b": "string", "c": "short"}
        self.rows: list[dict[str, Any]] = []

    def alteration(self) -> dict[str, Any]:
        rng, names = self.rng, list(self.types)
        free = [name for name in NAMES if name not in names]
        one = rng.choice(names)
        found: dict[str, Callable[[], dict[str, Any]]] = {
            "rename": lambda: {"rename_columns": {one: rng.choice(free)}},
            "swap": lambda: {"rename_columns": dict(zip(names, [*names[1:], names[0]], strict=True))},
            "drop": lambda: {"drop_columns": [one]},
            "add": lambda: {"add_columns": {rng.choice(free): rng.choice(list(NEW_TYPES))}} if free else {},
            "widen": lambda: {"change_types": {one: WIDER[self.types[one]][0]}} if self.types[one] in WIDER else {},
            "set": lambda: {"set_properties": {"x": str(rng.random())}},
            "feature": lambda: {"add_features": [rng.choice(FEATURES)]},
            "no feature": lambda: {"drop_features": [rng.choice(["rowTracking", "inCommitTimestamp"])]},
            "not null": lambda: {"set_not_null": [one]},
            "null": lambda: {"drop_not_null": [one]},
            "constraint": lambda: {"add_constraints": {f"k{rng.randrange(3)}": self._rule(one)}},
            "no constraint": lambda: {"drop_constraints": [f"k{rng.randrange(3)}"]},
        }
        return found[rng.choice(list(found))]()

    def _rule(self, name: str) -> str:
        if self.types[name] == "string":
            return f"{name} <> 'q'"
        return f"{name} IS NULL OR {name} >= {self.rng.choice([0, 50])}"

    def altered(self, asked: dict[str, Any]) -> None:
        names = asked.get("rename_columns", {})
        gone = set(asked.get("drop_columns", ()))
        new = {name: NEW_TYPES[kind] for name, kind in asked.get("add_columns", {}).items()}
        self.types = {names.get(name, name): kind for name, kind in self.types.items() if name not in gone} | new
        self.types |= {name: WIDER[self.types[name]][1] for name in asked.get("change_types", ())}
        self.rows = [
            {names.get(name, name): value for name, value in row.items() if name not in gone} | dict.fromkeys(new)
            for row in self.rows
        ]

    def appended(self, table: Table) -> None:
        rng, schema = self.rng, table.snapshot().delta_schema

        def value(name: str) -> Any:
            column = schema.find(name)
            if column is not None and column.nullable and rng.random() < 0.3:
                return None
            return rng.choice("xyz") if self.types[name] == "string" else rng.randrange(100)

        rows = [{name: value(name) for name in self.types} for _ in range(3)]
        append(table, rows)
        self.rows += rows

    def deleted(self, table: Table) -> None:
        numbers = [name for name, kind in self.types.items() if kind != "string"]
        if numbers:
            name = self.rng.choice(numbers)
            assert run(None, "delete", table, predicate=f"{name} > 70").error is None
            self.rows = [row for row in self.rows if row[name] is None or row[name] <= 70]


def as_bag(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for row in rows)


@pytest.mark.seeded
@pytest.mark.parametrize("seed", range(depth(2, 4)))
def test_any_history_of_alterations_leaves_the_rows_of_the_model(tmp_path: Path, seed: int) -> None:
    model = Model(random.Random(seed))
    table = make_table(tmp_path / "t", schema=SCHEMA, partition_by=["b"] if seed % 2 else [])
    for step in range(STEPS):
        match model.rng.randrange(8):
            case 0 | 1:
                model.appended(table)
            case 2:
                model.deleted(table)
            case 3:
                assert run(None, "optimize", table).error is None
            case _:
                asked = model.alteration()
                result = run(None, "alter", table, allow_reader_upgrade=True, **asked) if asked else None
                if result is not None and result.error is not None:
                    assert result.error["type"] in REFUSALS, (asked, result.error)
                elif result is not None:
                    model.altered(asked)
        assert as_bag(table.to_arrow().to_pylist()) == as_bag(model.rows), f"step {step}"
        if step % 10 == 9:
            table.checkpoint()
            table = Table.open(table.uri)
