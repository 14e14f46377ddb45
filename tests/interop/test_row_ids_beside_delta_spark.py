"""Row tracking beside delta-spark: whoever changes a table, it finds the id of each row and the version of its change.

Skipped where delta-spark's jars are not there.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from tests.helpers.delta_spark import DeltaSpark
from tests.helpers.depth import by_hand, depth
from tests.helpers.jobs import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow("delta-spark in a JVM of its own")]

PROPERTIES = {
    "copies": {},
    "vectors": {"delta.enableDeletionVectors": "true"},
    "mapped": {"delta.columnMapping.mode": "name", "delta.enableChangeDataFeed": "true"},
    "mapped by id": {"delta.columnMapping.mode": "id"},
}
STEPS = ("append", "delete", "update", "merge", "optimize")


class History:
    """A table, what a model of it knows of each row (its value, id and version), and both writers."""

    def __init__(self, delta: DeltaSpark, folder: Path, kind: str, seed: int) -> None:
        self._delta, self._random = delta, random.Random(seed)
        self._uri, self._source = str(folder / "t"), folder / "source"
        self._name = f"delta.`{self._uri}`"
        self._source.mkdir()
        self._next = 0
        self.model: dict[int, tuple[str, int, int]] = {}
        self._highest = -1
        schema = pa.schema([("id", pa.int64()), ("p", pa.string()), ("x", pa.string())])
        self.table = Table.create(self._uri, schema, ["p"], {"delta.enableRowTracking": "true", **PROPERTIES[kind]})

    def step(self) -> str:
        """Let one of the writers change the table; return what it did."""
        writer, step = self._random.choice(("ours", "theirs")), self._random.choice(STEPS)
        if len(self.model) < 5:
            step = "append"
        value = f"v{self._random.randrange(10**6)}"
        chosen = sorted(self._random.sample(sorted(self.model), min(len(self.model), self._random.randrange(1, 6))))
        new = list(range(self._next, self._next + self._random.randrange(1, 6)))
        changed = {"append": new, "update": chosen, "merge": [*chosen, *new]}.get(step, [])
        if step in ("append", "merge"):
            self._next += len(new)
        getattr(self, f"_{writer}")(step, chosen, changed, value)
        self._check(f"{writer} {step}", set(chosen) if step == "delete" else set(), set(changed), value)
        return f"{writer} {step}"

    def _ours(self, step: str, chosen: list[int], changed: list[int], value: str) -> None:
        listed = ", ".join(map(str, chosen))
        arguments: dict[str, Any] = {
            "append": {"mode": "append"},
            "delete": {"predicate": f"id IN ({listed})"},
            "update": {"predicate": f"id IN ({listed})", "set": {"x": f"'{value}'"}},
            "merge": {
                "on": "t.id = s.id",
                "clauses": [
                    {"when": "matched", "then": "update", "set": "*"},
                    {"when": "not_matched", "then": "insert", "values": "*"},
                ],
            },
            "optimize": self._random.choice(({}, {"purge": True}, {"zorder_by": ["x"]})),
        }[step]
        if step in ("append", "merge"):
            rows = [{"id": row, "p": f"p{row % 2}", "x": value} for row in changed]
            pq.write_table(pa.Table.from_pylist(rows), self._source / "rows.parquet")
            arguments["source"] = {"format": "parquet", "path": str(self._source)}
        operation = "write" if step == "append" else step
        result = run(None, operation, self.table, **arguments)
        assert result.status == "committed" or step == "optimize", result.error

    def merge_by_spark(self, spark: SparkSession) -> None:
        """Update three rows and insert two by values that Spark alone computes."""
        chosen, new = sorted(self.model)[:3], [self._next, self._next + 1]
        self._next += len(new)
        rows = [{"id": row, "p": f"p{row % 2}", "x": "level"} for row in (*chosen, *new)]
        pq.write_table(pa.Table.from_pylist(rows), self._source / "rows.parquet")
        clauses = [
            {"when": "matched", "then": "update", "set": {"x": "reverse(s.x)"}},
            {"when": "not_matched", "then": "insert", "values": {"id": "s.id", "p": "s.p", "x": "reverse(s.x)"}},
        ]
        source = {"format": "parquet", "path": str(self._source)}
        result = run(spark, "merge", self.table, source=source, on="t.id = s.id", clauses=clauses)
        assert result.status == "committed", result.error
        self._check("our MERGE by Spark", set(), {*chosen, *new}, "level")

    def _theirs(self, step: str, chosen: list[int], changed: list[int], value: str) -> None:
        listed = ", ".join(map(str, chosen))
        rows = ", ".join(f"({row}L, 'p{row % 2}', '{value}')" for row in changed)
        self._delta.run(
            {
                "append": f"INSERT INTO {self._name} VALUES {rows}",
                "delete": f"DELETE FROM {self._name} WHERE id IN ({listed})",
                "update": f"UPDATE {self._name} SET x = '{value}' WHERE id IN ({listed})",
                "merge": f"MERGE INTO {self._name} t USING (SELECT * FROM VALUES {rows} AS s(id, p, x)) s "
                "ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
                "optimize": f"OPTIMIZE {self._name}",
            }[step]
        )

    def _check(self, what: str, deleted: set[int], changed: set[int], value: str) -> None:
        ids = "id, x, _metadata.row_id AS row_id, _metadata.row_commit_version AS version"
        found = {
            row["id"]: (row["x"], row["row_id"], row["version"])
            for row in self._delta.sql(f"SELECT {ids} FROM {self._name}")
        }
        version = self.table.latest_version()
        expected = {row: of for row, of in self.model.items() if row not in deleted}
        for row in changed:
            # A new row has an id that no row ever had.
            row_id = expected[row][1] if row in expected else found[row][1]
            assert row in expected or row_id > self._highest, what
            expected[row] = (value, row_id, version)
        assert found == expected, what
        assert len({row_id for _, row_id, _ in found.values()}) == len(found), what
        self._highest = max([self._highest, *(row_id for _, row_id, _ in found.values())])
        self.model = expected


LONG_BY_HAND = [pytest.mark.long("another kind"), by_hand("one kind is run")]
OTHERS = [pytest.param(kind, marks=LONG_BY_HAND) for kind in PROPERTIES if kind != "copies"]


@pytest.mark.long("delta-spark runs beside it")
@pytest.mark.parametrize("kind", ["copies", *OTHERS])
def test_rows_keep_their_ids_whoever_moves_them(delta: DeltaSpark, tmp_path: Path, kind: str) -> None:
    history = History(delta, tmp_path, kind, 1)
    done = {history.step() for _ in range(depth(14, 14, 100))}
    assert {writer for writer, _ in map(str.split, done)} == {"ours", "theirs"}


@pytest.mark.long("delta-spark runs beside it")
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind == "vectors" else pytest.mark.long("another kind")) for kind in PROPERTIES],
)
def test_rows_keep_their_ids_through_our_merge_by_spark(
    delta: DeltaSpark, spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    history = History(delta, tmp_path, kind, 2)
    while len(history.model) < 5:
        history.step()
    history.merge_by_spark(spark)
    history.step()
    history.merge_by_spark(spark)
