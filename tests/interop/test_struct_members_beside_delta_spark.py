"""MERGE beside delta-spark where the structs of the table and of its source differ: the same rows come out, null for
null.

Skipped where delta-spark's jars are not there. One child process runs delta-spark and our jobs alike.
"""

from __future__ import annotations

import json
import shutil
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

from airflow_txlog.engine import Table
from tests.helpers.delta_spark import DeltaSpark, DeltaSparkError
from tests.interop.reference.plain import plain_rows

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow("delta-spark in a JVM of its own"),
]


class Shape(NamedTuple):
    """A column's type in the table and in the source, and values of both as JSON."""

    table: str
    source: str
    held: list[str]
    given: list[str]


NESTED = "STRUCT<k INT, n STRUCT<x INT, y INT>>"
SHAPES = {
    "target_only": Shape(
        "STRUCT<a INT, only INT>",
        "STRUCT<a INT>",
        ['{"a":1,"only":2}', "null", '{"a":1}', '{"only":2}'],
        ['{"a":9}', "null", "{}"],
    ),
    "source_only": Shape(
        "STRUCT<a INT>",
        "STRUCT<a INT, z INT>",
        ['{"a":1}', "null"],
        ['{"a":9,"z":8}', "null", '{"a":9}'],
    ),
    "both": Shape(
        "STRUCT<a INT, `on.ly` INT>",
        "STRUCT<z INT, A INT>",
        ['{"a":1,"on.ly":2}', "null", '{"on.ly":2}'],
        ['{"A":9,"z":8}', "null", "{}"],
    ),
    "same": Shape("STRUCT<a INT, b INT>", "STRUCT<b INT, a INT>", ['{"a":1,"b":2}', "null"], ['{"a":9}', "null"]),
    "narrower": Shape("STRUCT<a BIGINT, only INT>", "STRUCT<a INT>", ['{"a":1,"only":2}', "null"], ['{"a":9}', "null"]),
    "nested": Shape(
        NESTED,
        "STRUCT<k INT, n STRUCT<x INT>>",
        ['{"k":1,"n":{"x":1,"y":2}}', "null", '{"k":1}', '{"n":{"y":2}}'],
        ['{"k":9,"n":{"x":9}}', "null", '{"k":9}', '{"k":9,"n":{}}'],
    ),
    "beside_nested": Shape(
        "STRUCT<n STRUCT<x INT>, only INT>",
        "STRUCT<n STRUCT<x INT, z INT>>",
        ['{"n":{"x":1},"only":2}', "null", '{"only":2}'],
        ['{"n":{"x":9,"z":8}}', "null", "{}"],
    ),
    "nested_whole": Shape(
        "STRUCT<k INT, n STRUCT<x INT>>",
        "STRUCT<k INT>",
        ['{"k":1,"n":{"x":1}}', "null", '{"k":1}'],
        ['{"k":9}', "null", "{}"],
    ),
    "array": Shape(
        "ARRAY<STRUCT<a INT, only INT>>",
        "ARRAY<STRUCT<a INT, z INT>>",
        ['[{"a":1,"only":2}]', "null"],
        ['[{"a":9,"z":8},null]', "null"],
    ),
    "map": Shape(
        "MAP<STRING, STRUCT<a INT, only INT>>",
        "MAP<STRING, STRUCT<a INT>>",
        ['{"k":{"a":1,"only":2}}', "null"],
        ['{"k":{"a":9},"n":null}', "null"],
    ),
    "array_within": Shape(
        "STRUCT<l ARRAY<STRUCT<a INT, only INT>>, u INT>",
        "STRUCT<l ARRAY<STRUCT<a INT>>>",
        ['{"l":[{"a":1,"only":2}],"u":5}', "null"],
        ['{"l":[{"a":9},null]}', "null", "{}"],
    ),
}
# Each shape has so many values at the most: all pairs of them are in so many rows.
MOST = 4
PAIRS = list(product(range(MOST), range(MOST)))
STAR, NAMED, INSERTED = 0, 100, 200


def rows(*firsts: int, of_source: bool) -> str:
    """SELECT of a row for each pair of values from each of these numbers on, one column a shape."""
    columns = ["id"]
    for name, shape in SHAPES.items():
        columns.append(f"from_json({name}, 'v {shape.source if of_source else shape.table}').v AS {name}")
    rows_of = []
    for number, (held, given) in ((first + place, pair) for first in firsts for place, pair in enumerate(PAIRS)):
        cells = [str(number)]
        for shape in SHAPES.values():
            values, at = (shape.given, given) if of_source else (shape.held, held)
            cells.append(f"'{{\"v\":{values[at % len(values)]}}}'")
        rows_of.append(f"({', '.join(cells)})")
    return f"SELECT {', '.join(columns)} FROM VALUES {', '.join(rows_of)} AS texts(id, {', '.join(SHAPES)})"


@pytest.mark.long("delta-spark takes seconds for each of its own statements")
def test_an_evolving_merge_leaves_what_delta_spark_leaves_in_structs_of_every_shape(
    delta: DeltaSpark, tmp_path: Path
) -> None:
    columns = ", ".join(f"{name} {shape.table}" for name, shape in SHAPES.items())
    ours, theirs = (str(tmp_path / name) for name in ("ours", "theirs"))
    held = rows(STAR, NAMED, of_source=False)
    delta.run(f"CREATE TABLE delta.`{ours}` (id INT, {columns}) USING delta", f"INSERT INTO delta.`{ours}` {held}")
    shutil.copytree(ours, theirs)
    given = rows(STAR, NAMED, INSERTED, of_source=True)
    named = {name: f"s.{name}" for name in SHAPES}
    delta.run(
        f"MERGE WITH SCHEMA EVOLUTION INTO delta.`{theirs}` t USING ({given}) s ON t.id = s.id "
        f"WHEN MATCHED AND s.id < {NAMED} THEN UPDATE SET * "
        f"WHEN MATCHED THEN UPDATE SET {', '.join(f'{name} = {text}' for name, text in named.items())} "
        "WHEN NOT MATCHED THEN INSERT *"
    )
    arguments = {
        "source": {"sql": given},
        "on": "t.id = s.id",
        "schema_evolution": True,
        "clauses": [
            {"when": "matched", "then": "update", "set": "*", "condition": f"s.id < {NAMED}"},
            {"when": "matched", "then": "update", "set": named},
            {"when": "not_matched", "then": "insert", "values": "*"},
        ],
    }
    result = delta.job(operation="merge", table_uri=ours, arguments=arguments)
    assert result["status"] == "committed", result["error"]
    assert plain_rows(Table.open(ours).to_arrow()) == plain_rows(Table.open(theirs).to_arrow())
    assert Table.open(ours).to_arrow().num_rows == 3 * len(PAIRS)


@pytest.mark.long("delta-spark takes seconds for each of its own statements")
@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if "only" in json.dumps(shape)])
def test_an_update_that_would_lose_members_is_refused_by_both_without_schema_evolution(
    delta: DeltaSpark, tmp_path: Path, name: str
) -> None:
    shape, uri = SHAPES[name], str(tmp_path / "t")
    delta.run(
        f"CREATE TABLE delta.`{uri}` USING delta AS "
        f"SELECT 1 AS id, from_json('{{\"v\":{shape.held[0]}}}', 'v {shape.table}').v AS c"
    )
    given = f"SELECT 1 AS id, from_json('{{\"v\":{shape.given[0]}}}', 'v {shape.source}').v AS c"
    for assigned, text in (("*", "*"), ({"c": "s.c"}, "c = s.c")):
        with pytest.raises(DeltaSparkError, match="DELTA_UPDATE_SCHEMA_MISMATCH_EXPRESSION"):
            delta.run(
                f"MERGE INTO delta.`{uri}` t USING ({given}) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET {text}"
            )
        arguments = {
            "source": {"sql": given},
            "on": "t.id = s.id",
            "clauses": [{"when": "matched", "then": "update", "set": assigned}],
        }
        result = delta.job(operation="merge", table_uri=uri, arguments=arguments)
        assert result["error"]["type"] == "SchemaMismatch"
