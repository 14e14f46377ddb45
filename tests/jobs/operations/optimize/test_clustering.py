"""Clustering: tables are created with clustering columns, OPTIMIZE clusters what is new, and readers skip files."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.columns import table_to_adds
from airflow_txlog.engine.table.schema.features import with_features, writer_features
from airflow_txlog.errors import PartitionMismatch
from tests.helpers.jobs import application, committed, error_of, files_on_disk, live_files, read_alike, run
from tests.helpers.racing import before_commit, killed_before_commit
from tests.helpers.rows import append, bag, make_table
from tests.helpers.vectors import mask

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("text", pa.string())])
SMALL = {"delta.targetFileSize": "10kb"}
VECTORS = {"delta.enableDeletionVectors": "true"}
TRACKED = {"delta.enableRowTracking": "true"}
MAPPED = {"delta.columnMapping.mode": "name"}


def points(count: int, seed: int = 1) -> pa.Table:
    rng = random.Random(seed)
    drawn = [[rng.randrange(1000) for _ in range(count)] for _ in range(2)]
    return pa.table([*drawn, [rng.randbytes(8).hex() for _ in range(count)]], schema=SCHEMA)


def make(folder: Path, *parts: pa.Table, **properties: str) -> Table:
    table = Table.create(str(folder), SCHEMA, properties=SMALL | properties, cluster_by=["a", "b"])
    for part in parts:
        append(table, part)
    return table


def adds(table: Table) -> list[Any]:
    return table_to_adds(Table.open(table.uri).snapshot().files(), data_change=False)


def cubes(table: Table) -> dict[str | None, int]:
    """The number of files of each cube; None: in none."""
    found: dict[str | None, int] = {}
    for add in adds(table):
        assert (add.clustering_provider is None) == (not add.tags)
        cube = (add.tags or {}).get("ZCUBE_ID")
        found[cube] = found.get(cube, 0) + 1
    return found


def optimized(table: Table, **arguments: Any) -> Any:
    return committed(run(None, "optimize", table, **arguments))


def paths_for(table: Table, predicate: str) -> int:
    snapshot = Table.open(table.uri).snapshot()
    return len(snapshot.files(snapshot.read_predicate(predicate)))


# --- creation -------------------------------------------------------------------------------------------------------


def written(tmp_path: Path, name: str, **arguments: Any) -> Any:
    source = tmp_path / "source"
    if not source.exists():
        source.mkdir()
        nested = points(100).append_column("s", pa.array([{"a b": n, "flag": True} for n in range(100)]))
        pq.write_table(nested, source / "part.parquet")
    source_view = {"format": "parquet", "path": str(source)}
    return run(None, "write", tmp_path / name, source=source_view, **arguments)


def test_a_write_creates_a_clustered_table(tmp_path: Path) -> None:
    result = committed(written(tmp_path, "t", cluster_by=["B", "s.`a b`"], properties=MAPPED))
    table = Table.open(str(tmp_path / "t"))
    snapshot = table.snapshot()
    (b, s) = (field for field in snapshot.delta_schema if field.name in ("b", "s"))
    domain = json.loads(snapshot.state.domains["delta.clustering"].configuration)
    expected = [[b.physical_name], [s.physical_name, s.type.fields[0].physical_name]]
    assert domain == {"clusteringColumns": expected, "domainName": "delta.clustering"}
    assert {"clustering", "domainMetadata"} <= writer_features(snapshot.protocol)
    assert result.version == 0
    assert json.loads(table.history()[0]["operationParameters"]["clusterBy"]) == ["B", "s.`a b`"]
    # Rows that are written are in no cube, and the next write may name the same columns, or none.
    assert set(cubes(table)) == {None}
    committed(written(tmp_path, "t", cluster_by=["b", "S.`A B`"]))
    committed(written(tmp_path, "t"))
    assert "clusterBy" not in table.history()[0]["operationParameters"]


def test_the_engine_creates_a_clustered_table_that_is_not_partitioned(tmp_path: Path) -> None:
    with pytest.raises(PartitionMismatch):
        Table.create(str(tmp_path / "t"), SCHEMA, ["text"], cluster_by=["a"])
    table = make(tmp_path / "t")
    assert json.loads(table.history()[0]["operationParameters"]["clusterBy"]) == ["a", "b"]


REFUSED = {
    "no such column": ({"cluster_by": ["nope"]}, "SchemaMismatch"),
    "a struct": ({"cluster_by": ["s"]}, "SchemaMismatch"),
    "a boolean": ({"cluster_by": ["s.flag"]}, "SchemaMismatch"),
    "no name": ({"cluster_by": ["s."]}, "SchemaMismatch"),
    "twice": ({"cluster_by": ["a", "A"]}, "SchemaMismatch"),
    "five": ({"cluster_by": ["a", "b", "text", "s.`a b`", "A"]}, "SchemaMismatch"),
    "no statistics": (
        {"cluster_by": ["b"], "properties": MAPPED | {"delta.dataSkippingNumIndexedCols": "1"}},
        "UnsupportedFeature",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_table_is_not_created_with_columns_that_cannot_cluster_it(tmp_path: Path, why: str) -> None:
    arguments, kind = REFUSED[why]
    arguments = {"properties": MAPPED, **arguments}
    assert error_of(written(tmp_path, "t", **arguments))["type"] == kind
    assert not Table.exists(str(tmp_path / "t"))
    assert files_on_disk(tmp_path) == {"source/part.parquet"}


def test_a_write_that_names_other_clustering_columns_is_refused(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    for names in (["a"], ["b", "a"], ["text"]):
        error = error_of(written(tmp_path, "t", cluster_by=names))
        assert (error["type"], "['a', 'b']" in error["message"]) == ("PartitionMismatch", True)
    plain = make_table(tmp_path / "plain", points(3))
    assert error_of(written(tmp_path, "plain", cluster_by=["a"]))["type"] == "PartitionMismatch"
    assert (table.snapshot().version, plain.snapshot().version) == (0, 1)


# --- OPTIMIZE -------------------------------------------------------------------------------------------------------


def test_optimize_clusters_new_files_and_leaves_clustered_ones_alone(tmp_path: Path) -> None:
    table = make(tmp_path / "t", *(points(2000, seed) for seed in range(8)))
    before, read_before = bag(table), paths_for(table, "a < 100")
    assert read_before == 8
    result = optimized(table)
    assert bag(table) == before
    ((cube, files),) = cubes(table).items()
    assert cube is not None
    assert files >= 8
    info = Table.open(table.uri).history(1)[0]
    parameters = {"predicate": "[]", "auto": "false", "clusterBy": '["a", "b"]', "zOrderBy": "[]", "isFull": "false"}
    assert (info["operation"], info["operationParameters"]) == ("OPTIMIZE", parameters)
    # A reader of a narrow range in either column skips most files.
    for column in ("a", "b"):
        assert paths_for(table, f"{column} BETWEEN 100 AND 110") <= files / 2
    assert paths_for(table, "a < 50 AND b < 50") <= 2
    read_alike(table)
    again = run(None, "optimize", table)
    assert (again.status, again.version) == ("nothing_to_do", result.version)
    # A little that is new is clustered alone, more of it together with the cube.
    append(table, points(50, seed=50))
    assert set(cubes(table)) == {cube, None}
    assert optimized(table).metrics["numRemovedFiles"] == 1
    assert (cubes(table)[cube], len(cubes(table))) == (files, 2)
    append(table, points(8000, seed=51))
    optimized(table)
    assert len(cubes(table)) == 1
    assert cube not in cubes(table)
    assert files_on_disk(table) >= live_files(table)


def test_full_joins_all_cubes_and_those_of_other_columns(tmp_path: Path) -> None:
    table = make(tmp_path / "t", points(3000))
    optimized(table)
    append(table, points(30, seed=2))
    optimized(table)
    assert len(cubes(table)) == 2
    assert run(None, "optimize", table).status == "nothing_to_do"
    before = bag(table)
    optimized(table, full=True)
    assert len(cubes(table)) == 1
    assert Table.open(table.uri).history(1)[0]["operationParameters"]["isFull"] == "true"
    assert run(None, "optimize", table, full=True).status == "nothing_to_do"
    committed(run(None, "alter", table, cluster_by=["text"]))
    assert run(None, "optimize", table).status == "nothing_to_do"
    optimized(table, full=True)
    assert {add.tags["ZCUBE_ZORDER_BY"] for add in adds(table)} == {'["text"]'}
    assert bag(table) == before
    # Without clustering columns its files are joined as those of any other table.
    committed(run(None, "alter", table, cluster_by=[]))
    error = error_of(run(None, "optimize", table, full=True))
    assert (error["type"], "no clustering columns" in error["message"]) == ("InvalidJobSpec", True)
    committed(run(None, "optimize", table, target_bytes=10_000_000))
    assert set(cubes(table)) == {None}


def test_a_clustered_table_is_not_sorted_by_other_columns(tmp_path: Path) -> None:
    table = make(tmp_path / "t", points(10))
    assert error_of(run(None, "optimize", table, zorder_by=["text"]))["type"] == "UnsupportedFeature"
    plain = make_table(tmp_path / "plain", points(3))
    assert error_of(run(None, "optimize", plain, full=True))["type"] == "InvalidJobSpec"


def test_a_partitioned_table_with_clustering_columns_is_compacted_as_others(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", *(points(3, seed).set_column(2, "text", [["x"] * 3]) for seed in range(3)),
                       partition_by=["text"])  # fmt: skip
    tx = table.begin()
    tx.set_protocol(with_features(table.snapshot().protocol, {"clustering", "domainMetadata"}))
    tx.set_domain("delta.clustering", '{"clusteringColumns":[["a"]]}')
    tx.commit("CLUSTER BY")
    optimized(table)
    assert cubes(table) == {None: 1}


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.map_(pa.string(), pa.int64())], ids=str)
def test_a_table_that_another_engine_clusters_by_values_without_an_order_is_refused(
    tmp_path: Path, kind: pa.DataType
) -> None:
    table = make_table(tmp_path / "t", pa.table({"a": [1], "many": pa.nulls(1, kind)}))
    tx = table.begin()
    tx.set_protocol(with_features(table.snapshot().protocol, {"clustering", "domainMetadata"}))
    tx.set_domain("delta.clustering", '{"clusteringColumns":[["many"]]}')
    tx.commit("CLUSTER BY")
    error = error_of(run(None, "optimize", table))
    assert (error["type"], "clustered by many" in error["message"]) == ("UnsupportedFeature", True)
    committed(run(None, "alter", table, cluster_by=["a"]))
    optimized(table)


def test_changed_rows_are_in_no_cube_until_they_are_clustered(tmp_path: Path) -> None:
    table = make(tmp_path / "t", points(3000))
    optimized(table)
    (cube,) = cubes(table)
    committed(run(None, "delete", table, predicate="a = 7"))
    assert set(cubes(table)) == {cube, None}
    optimized(table)
    committed(run(None, "update", table, predicate="b = 8", set={"text": "'new'"}))
    assert None in cubes(table)
    before = bag(table)
    optimized(table)
    assert None not in cubes(table)
    assert bag(table) == before


def test_deleted_rows_leave_with_their_file_and_a_purge_keeps_the_cubes(tmp_path: Path) -> None:
    table = make(tmp_path / "t", points(3000), **VECTORS)
    optimized(table)
    (cube,) = cubes(table)
    mask(table, {0: range(3), 2: range(2)})
    assert committed(run(None, "delete", table, predicate="a = 7")).files["deletion_vectors"] > 0
    # Few deleted rows: the files stay in their cube.
    assert set(cubes(table)) == {cube}
    assert run(None, "optimize", table).status == "nothing_to_do"
    before = bag(table)
    committed(run(None, "optimize", table, purge=True))
    assert set(cubes(table)) == {cube}
    assert all(add.deletion_vector is None for add in adds(table))
    before = bag(table)
    first = min(adds(table), key=lambda add: add.path)
    count = json.loads(first.stats)["numRecords"]
    mask(table, {0: range(count // 2)})
    optimized(table)
    assert all(add.deletion_vector is None for add in adds(table))
    assert None not in cubes(table)
    assert sum(before.values()) - sum(bag(table).values()) == count // 2


def test_row_ids_and_mapped_columns_stay(tmp_path: Path) -> None:
    table = make(tmp_path / "t", points(500), points(500, seed=2), **TRACKED, **MAPPED)
    optimized(table)
    info = Table.open(table.uri).history(1)[0]
    assert info["tags"]["delta.rowTracking.preserved"] == "true"
    (cube,) = cubes(table)
    committed(run(None, "alter", table, rename_columns={"a": "renamed"}, allow_reader_upgrade=True))
    # Its cube has the name of before, as with delta-spark.
    assert run(None, "optimize", table).status == "nothing_to_do"
    optimized(table, full=True)
    assert cube not in cubes(table)
    assert json.loads(adds(table)[0].tags["ZCUBE_ZORDER_BY"]) == ["renamed", "b"]


def test_files_have_statistics_of_clustering_columns_beyond_the_indexed_ones(tmp_path: Path) -> None:
    table = make(tmp_path / "t", points(100))
    tx = table.begin()
    properties = {"delta.dataSkippingNumIndexedCols": "1"}
    metadata = table.snapshot().metadata
    tx.set_metadata(msgspec.structs.replace(metadata, configuration=metadata.configuration | properties))
    tx.commit("SET TBLPROPERTIES")
    more = points(100, seed=3)
    (tmp_path / "more").mkdir()
    pq.write_table(more, tmp_path / "more" / "part.parquet")
    source = {"format": "parquet", "path": str(tmp_path / "more")}
    committed(run(None, "write", table, source=source))
    committed(run(None, "delete", table, predicate="a < 100"))
    assert None in cubes(table)
    optimized(table)
    for add in adds(table):
        assert set(json.loads(add.stats)["minValues"]) == {"a", "b"}


def test_nulls_and_equal_values_are_clustered(tmp_path: Path) -> None:
    rows = pa.table([[None] * 900 + [5] * 900, [1] * 1800, ["a"] * 1800], schema=SCHEMA)
    table = make(tmp_path / "t", rows, rows)
    before = bag(table)
    optimized(table)
    assert bag(table) == before
    assert run(None, "optimize", table).status == "nothing_to_do"


# --- races and kills ------------------------------------------------------------------------------------------------


def test_a_racing_append_is_no_conflict_and_a_racing_delete_costs_its_bin(tmp_path: Path) -> None:
    table = make(tmp_path / "t", *(points(200, seed) for seed in range(3)))
    with before_commit(lambda _: append(Table.open(table.uri), points(10, seed=9))):
        optimized(table)
    assert set(cubes(table)) > {None}
    append(table, points(300, seed=10))
    before = bag(table)
    lost = 0

    def delete(_: Any) -> None:
        nonlocal lost
        lost = committed(run(None, "delete", Table.open(table.uri), predicate="a < 500")).metrics["numDeletedRows"]

    with before_commit(delete):
        run(None, "optimize", table)
    optimized(table)
    assert sum(bag(table).values()) == sum(before.values()) - lost
    assert lost > 100
    assert None not in cubes(table)


def test_files_whose_columns_a_winner_changed_name_those_that_they_are_sorted_by(tmp_path: Path) -> None:
    table = make(tmp_path / "t", *(points(200, seed) for seed in range(3)))
    before = bag(table)
    with before_commit(lambda _: committed(run(None, "alter", Table.open(table.uri), cluster_by=["text"]))):
        optimized(table)
    assert {add.tags["ZCUBE_ZORDER_BY"] for add in adds(table)} == {'["a", "b"]'}
    assert run(None, "optimize", table).status == "nothing_to_do"
    optimized(table, full=True)
    assert {add.tags["ZCUBE_ZORDER_BY"] for add in adds(table)} == {'["text"]'}
    assert bag(table) == before


def test_a_killed_clustering_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    table = make(tmp_path / "t", *(points(200, seed) for seed in range(3)))
    before = bag(table)
    with killed_before_commit():
        run(None, "optimize", table)
    assert set(cubes(table)) == {None}
    optimized(table)
    assert (bag(table), len(cubes(table))) == (before, 1)


def test_a_creation_is_done_once(tmp_path: Path) -> None:
    once = application()
    for expected in ("committed", "already_done"):
        result = written(tmp_path, "t", cluster_by=["a"], properties=MAPPED, application=once)
        assert result.status == expected
    assert Table.open(str(tmp_path / "t")).snapshot().version == 0


# --- upkeep ---------------------------------------------------------------------------------------------------------


def steps(table: Table, **arguments: Any) -> list[str]:
    result = run(None, "upkeep", table, vacuum=None, checkpoint=False, **arguments)
    assert result.error is None, result.error
    return [step["step"] for step in result.details.upkeep if step["done"]]


def test_upkeep_clusters_when_more_than_two_files_are_new(tmp_path: Path) -> None:
    table = make(tmp_path / "t", points(20), points(20, seed=2))
    assert steps(table) == []
    append(table, points(20, seed=3))
    assert steps(table, dry_run=True) == []
    assert steps(table) == ["cluster"]
    assert (len(cubes(table)), None in cubes(table)) == (1, False)
    assert steps(table) == []
    for seed in range(4, 7):
        append(table, points(1, seed=seed))
    size = sum(add.size for add in adds(table) if not add.tags)
    assert steps(table, max_bytes=size - 1) == []
    assert steps(table, max_bytes=10 * size, max_minutes=5) == ["cluster"]
    assert None not in cubes(table)


def test_upkeep_clusters_as_much_as_its_bytes_allow_and_rewrites_worn_files(tmp_path: Path) -> None:
    table = make(tmp_path / "t", *(points(20, seed) for seed in range(6)), **VECTORS)
    most = max(add.size for add in adds(table))
    assert steps(table, max_bytes=4 * most) == ["cluster"]
    assert cubes(table)[None] in (2, 4)
    assert len(cubes(table)) == 2
    optimized(table, full=True)
    assert len(cubes(table)) == 1
    mask(table, {0: range(30)})
    assert steps(table, purge_above=None) == ["cluster"]
    assert all(add.deletion_vector is None for add in adds(table))
