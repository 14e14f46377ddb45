"""Clustering beside delta-spark: it leaves our cubes alone and goes on from them, and we do so with its own.

Skipped where delta-spark's jars are not there.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.columns import table_to_adds
from airflow_txlog.engine.table.schema.features import writer_features
from tests.helpers.delta_spark import DeltaSpark
from tests.helpers.jobs import committed, run
from tests.interop.reference.plain import plain_rows

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow("delta-spark in a JVM of its own"),
]

SCHEMA = pa.schema([("a b", pa.int64()), ("s", pa.struct([("x", pa.int64())])), ("id", pa.int64())])
MAPPED = {"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true", "delta.enableRowTracking": "true"}


def cubes(uri: str) -> dict[str | None, int]:
    """The number of files of each cube; None: in none."""
    found: dict[str | None, int] = {}
    for add in table_to_adds(Table.open(uri).snapshot().files(), data_change=False):
        cube = (add.tags or {}).get("ZCUBE_ID")
        assert (cube is None) == (add.clustering_provider is None)
        found[cube] = found.get(cube, 0) + 1
    return found


def optimize(uri: str, **arguments: Any) -> str:
    result = run(None, "optimize", uri, **arguments)
    assert result.error is None, result.error
    return result.status


def order_of(uri: str) -> set[str]:
    files = table_to_adds(Table.open(uri).snapshot().files(), data_change=False)
    return {json.dumps(json.loads((add.tags or {})["ZCUBE_ZORDER_BY"] or "")) for add in files}


def parameters(uri: str) -> list[dict[str, Any]]:
    """The parameters of all OPTIMIZE in the history, the latest first."""
    found = (entry for entry in Table.open(uri).history() if entry["operation"] == "OPTIMIZE")
    given = [entry["operationParameters"] for entry in found]
    return [{name: json.loads(str(value).lower()) for name, value in each.items()} for each in given]


def alike(delta: DeltaSpark, uri: str) -> None:
    assert plain_rows(Table.open(uri).to_arrow()) == delta.read(uri)["rows"]


def rows(start: int, count: int = 50) -> str:
    return f"SELECT id % 7 AS `a b`, named_struct('x', id % 13) AS s, id FROM range({start}, {start + count})"


@pytest.mark.long("delta-spark takes seconds for each of its own statements")
def test_each_leaves_the_cubes_of_the_other_alone_and_clusters_what_is_new(delta: DeltaSpark, uri: str) -> None:
    name = f"delta.`{uri}`"
    Table.create(uri, SCHEMA, properties=MAPPED, cluster_by=["`a b`", "s.x"])
    for start in (0, 50, 100):
        delta.run(f"INSERT INTO {name} {rows(start)}")
    assert set(cubes(uri)) == {None}
    ids = f"SELECT id, _metadata.row_id AS rid FROM {name} ORDER BY id"
    before = delta.sql(ids)
    assert optimize(uri) == "committed"
    ((cube, _),) = cubes(uri).items()
    version = Table.open(uri).latest_version()
    delta.run(f"OPTIMIZE {name}")
    assert (Table.open(uri).latest_version(), set(cubes(uri))) == (version, {cube})
    assert delta.sql(f"DESCRIBE DETAIL {name}")[0]["clusteringColumns"] == ["`a b`", "s.x"]
    assert delta.sql(ids) == before
    # It goes on from our cube.
    delta.run(f"INSERT INTO {name} {rows(150)}", f"OPTIMIZE {name}")
    ((theirs, _),) = cubes(uri).items()
    assert theirs not in (None, cube)
    assert order_of(uri) == {'["`a b`", "s.x"]'}
    assert optimize(uri) == "nothing_to_do"
    # And we from its own.
    delta.run(f"INSERT INTO {name} {rows(200, 300)}")
    assert optimize(uri) == "committed"
    ((ours, _),) = cubes(uri).items()
    assert ours not in (None, cube, theirs)
    delta.run(f"OPTIMIZE {name}")
    assert set(cubes(uri)) == {ours}
    alike(delta, uri)
    # Both write the same into the history.
    told = parameters(uri)
    assert len(told) == 3
    assert told[0] == told[1] == told[2]
    # A deletion vector leaves a file in its cube, with either engine.
    delta.run(f"DELETE FROM {name} WHERE id = 3")
    assert set(cubes(uri)) == {ours}
    committed(run(None, "delete", uri, predicate="id = 4"))
    assert set(cubes(uri)) == {ours}
    committed(run(None, "optimize", uri, purge=True))
    assert set(cubes(uri)) == {ours}
    version = Table.open(uri).latest_version()
    delta.run(f"OPTIMIZE {name}")
    assert Table.open(uri).latest_version() == version
    alike(delta, uri)


@pytest.mark.long("delta-spark takes seconds for each of its own statements")
def test_files_of_other_columns_wait_for_a_full_run_of_either(delta: DeltaSpark, uri: str) -> None:
    name = f"delta.`{uri}`"
    delta.run(
        f"CREATE TABLE {name} (id BIGINT, n BIGINT) USING delta CLUSTER BY (id) "
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
        *(f"INSERT INTO {name} SELECT id, id % 5 FROM range({start}, {start + 50})" for start in (0, 50, 100)),
    )
    assert optimize(uri) == "committed"
    committed(run(None, "alter", uri, cluster_by=["n", "id"]))
    version = Table.open(uri).latest_version()
    delta.run(f"OPTIMIZE {name}")
    assert Table.open(uri).latest_version() == version
    delta.run(f"OPTIMIZE {name} FULL")
    assert (Table.open(uri).latest_version(), order_of(uri)) == (version + 1, {'["n", "id"]'})
    assert optimize(uri, full=True) == "nothing_to_do"
    delta.run(f"ALTER TABLE {name} RENAME COLUMN n TO m")
    assert optimize(uri) == "nothing_to_do"
    assert optimize(uri, full=True) == "committed"
    assert order_of(uri) == {'["m", "id"]'}
    version = Table.open(uri).latest_version()
    delta.run(f"OPTIMIZE {name}", f"OPTIMIZE {name} FULL")
    assert Table.open(uri).latest_version() == version
    ours, theirs, _ = parameters(uri)
    assert ours | {"clusterBy": ["n", "id"]} == theirs
    alike(delta, uri)


@pytest.mark.long("delta-spark takes seconds for each of its own statements")
def test_a_clustered_table_is_created_as_delta_spark_creates_it(delta: DeltaSpark, uri: str) -> None:
    theirs = uri + "-theirs"
    delta.run(f"CREATE TABLE delta.`{theirs}` (id BIGINT, n BIGINT) USING delta CLUSTER BY (n, id)")
    Table.create(uri, Table.open(theirs).snapshot().schema, cluster_by=["n", "id"])
    found = [Table.open(each).snapshot() for each in (uri, theirs)]
    assert found[0].state.domains == found[1].state.domains
    assert writer_features(found[0].protocol) == writer_features(found[1].protocol)
    assert found[0].protocol.reader_features == found[1].protocol.reader_features
    delta.run(f"INSERT INTO delta.`{uri}` SELECT id, id FROM range(10)", f"OPTIMIZE delta.`{uri}`")
    assert None not in cubes(uri)
    alike(delta, uri)
