"""ALTER beside delta-spark's: the same change of the same table gives the same metadata and protocol."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.alteration.feature_changes import READERS
from airflow_txlog.engine.table.schema.features import reader_features, writer_features
from airflow_txlog.jobs.run import run_job
from tests.helpers.delta_spark import DeltaSpark
from tests.helpers.jobs import committed
from tests.helpers.specs import job_spec

COLUMNS = "id BIGINT, n INT, a STRING, s STRUCT<x: INT, t: ARRAY<STRUCT<u: INT>>>, m MAP<STRING, INT>, day DATE"
ROW = "1L, 1, 'a', named_struct('x', 1, 't', array(named_struct('u', 2))), map('k', 3), DATE'2024-01-01'"
OTHER = "2L, 2, NULL, NULL, NULL, DATE'2024-01-02'"


def alter(path: Path, **arguments: Any) -> Table:
    spec = job_spec(operation="alter", table_uri=str(path), arguments={"allow_reader_upgrade": True, **arguments})
    committed(run_job(spec, None))
    return Table.open(path)


# Our arguments, and delta-spark's statements for the same change.
SAME: dict[str, tuple[dict[str, Any], list[str]]] = {
    "properties": (
        {"set_properties": {"delta.APPENDONLY": "false", "x.Y": "1", "comment": "hello"}},
        ["SET TBLPROPERTIES ('delta.APPENDONLY' = 'false', 'x.Y' = '1', comment = 'hello')"],
    ),
    "unset": ({"unset_properties": ["team", "never"]}, ["UNSET TBLPROPERTIES ('team', 'never')"]),
    "change feed": ({"add_features": ["changeDataFeed"]}, ["SET TBLPROPERTIES (delta.enableChangeDataFeed = true)"]),
    "vectors": ({"add_features": ["deletionVectors"]}, ["SET TBLPROPERTIES (delta.enableDeletionVectors = true)"]),
    "append only": ({"add_features": ["appendOnly"]}, ["SET TBLPROPERTIES (delta.appendOnly = true)"]),
    "timestamps": (
        {"add_features": ["inCommitTimestamp"]},
        ["SET TBLPROPERTIES (delta.enableInCommitTimestamps = true)"],
    ),
    "checkpoints": ({"add_features": ["v2Checkpoint"]}, ["SET TBLPROPERTIES (delta.checkpointPolicy = 'v2')"]),
    "row tracking": ({"add_features": ["rowTracking"]}, ["SET TBLPROPERTIES (delta.enableRowTracking = true)"]),
    "mapping": ({"add_features": ["columnMapping"]}, ["SET TBLPROPERTIES (delta.columnMapping.mode = 'name')"]),
    "listed": (
        {"set_properties": {"delta.feature.deletionVectors": "supported"}},
        ["SET TBLPROPERTIES (delta.feature.deletionVectors = 'supported')"],
    ),
    "columns": (
        {
            "add_columns": {
                "c": {"type": "DECIMAL(5, 2)", "comment": "cc"},
                "s.z": "ARRAY<INT>",
                "s.t.element.w": "DATE",
            }
        },
        ["ADD COLUMNS (c DECIMAL(5, 2) COMMENT 'cc', s.z ARRAY<INT>, s.t.element.w DATE)"],
    ),
    "comments": (
        {"set_comments": {"n": "n of it", "s.x": "x of it"}},
        ["ALTER COLUMN n COMMENT 'n of it'", "ALTER COLUMN s.x COMMENT 'x of it'"],
    ),
    "renamed": (
        {"rename_columns": {"n": "k", "s.x": "y", "day": "date"}},
        [
            "SET TBLPROPERTIES (delta.columnMapping.mode = 'name')",
            "RENAME COLUMN n TO k",
            "RENAME COLUMN s.x TO y",
            "RENAME COLUMN day TO date",
        ],
    ),
    "dropped": (
        {"drop_columns": ["a", "s.x"]},
        ["SET TBLPROPERTIES (delta.columnMapping.mode = 'name')", "DROP COLUMNS (a, s.x)"],
    ),
    "widened": (
        {"change_types": {"n": "BIGINT", "s.x": "DOUBLE", "m.value": "BIGINT"}},
        [
            "SET TBLPROPERTIES (delta.enableTypeWidening = true)",
            "ALTER COLUMN n TYPE BIGINT",
            "ALTER COLUMN s.x TYPE DOUBLE",
            "ALTER COLUMN m.value TYPE BIGINT",
        ],
    ),
    "variants": ({"add_columns": {"v": "ARRAY<VARIANT>"}}, ["ADD COLUMNS (v ARRAY<VARIANT>)"]),
    "constraint": ({"add_constraints": {"Positive": "n > 0"}}, ["ADD CONSTRAINT Positive CHECK (n > 0)"]),
    "constraint gone": ({"drop_constraints": ["OLD"]}, ["DROP CONSTRAINT OLD"]),
    "no constraints": (
        {"drop_constraints": ["old"], "drop_features": ["checkConstraints"]},
        ["DROP CONSTRAINT old", "DROP FEATURE checkConstraints"],
    ),
}


def facts(table: Table) -> dict[str, Any]:
    """What both must agree on; names that are drawn at random, and moments, are not shown."""
    snapshot, drawn = table.snapshot(), re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
    protocol = snapshot.protocol
    properties = {name: drawn.sub("…", value) for name, value in snapshot.properties.items()}
    for name in ("delta.inCommitTimestampEnablementVersion", "delta.inCommitTimestampEnablementTimestamp"):
        properties.pop(name, None)
    return {
        "versions": (protocol.min_reader_version, protocol.min_writer_version),
        "readers": sorted(reader_features(protocol)),
        "writers": sorted(writer_features(protocol)),
        "properties": properties,
        "schema": json.loads(drawn.sub("…", snapshot.metadata.schema_string or "")),
        "partitions": snapshot.partition_columns,
        "comment": snapshot.metadata.description,
        "row ids": sorted(snapshot.files().column("base_row_id").to_pylist(), key=str),
    }


@pytest.fixture(scope="module")
def made(delta: DeltaSpark, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, bool], None]:
    """Copy a table of delta-spark's to a folder, partitioned or not."""
    folder = tmp_path_factory.mktemp("made")
    for name, partitioning in (("partitioned", "PARTITIONED BY (day)"), ("plain", "")):
        path = folder / name
        delta.run(
            f"CREATE TABLE delta.`{path}` ({COLUMNS}) USING delta {partitioning} "
            "TBLPROPERTIES ('team' = 'x', 'delta.constraints.old' = 'id > 0')",
            f"INSERT INTO delta.`{path}` SELECT {ROW}",
            f"INSERT INTO delta.`{path}` SELECT {OTHER}",
        )

    def copy(path: Path, is_partitioned: bool) -> None:
        shutil.copytree(folder / ("partitioned" if is_partitioned else "plain"), path)

    return copy


# What reaches most of the protocol in one change each; the others are like them.
SHORT = ("row tracking", "columns", "renamed")


@pytest.mark.long("delta-spark runs beside it")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SHORT else pytest.mark.long("another change")) for name in SAME]
)
def test_the_same_change_leaves_the_same_table_as_delta_spark_which_reads_and_writes_on(
    delta: DeltaSpark, made: Callable[[Path, bool], None], tmp_path: Path, name: str
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    made(ours, True)
    made(theirs, True)
    arguments, statements = SAME[name]
    table = alter(ours, **arguments)
    delta.run(*(f"ALTER TABLE delta.`{theirs}` {statement}" for statement in statements))
    expected = facts(Table.open(theirs))
    assert facts(table) == expected
    assert table.snapshot().version == 3, "one commit"
    assert delta.read(ours) == delta.read(theirs)
    delta.run(f"INSERT INTO delta.`{ours}` SELECT * FROM delta.`{ours}` WHERE id = 1")
    assert Table.open(ours).to_arrow().num_rows == 3


@pytest.mark.long("two tables, each clustered by both engines")
def test_delta_spark_clusters_on_where_we_began_and_we_where_it_ended(
    delta: DeltaSpark, made: Callable[[Path, bool], None], tmp_path: Path
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    made(ours, False)
    made(theirs, False)
    table = alter(ours, cluster_by=["n", "s.x"])
    delta.run(f"ALTER TABLE delta.`{theirs}` CLUSTER BY (n, s.x)")
    assert facts(table) == facts(Table.open(theirs))
    domains = [Table.open(path).snapshot().state.domains["delta.clustering"] for path in (ours, theirs)]
    assert domains[0] == domains[1]
    delta.run(f"ALTER TABLE delta.`{ours}` CLUSTER BY NONE")
    assert '"clusteringColumns":[]' in Table.open(ours).snapshot().state.domains["delta.clustering"].configuration
    alter(ours, cluster_by=["id"])
    delta.run(f"OPTIMIZE delta.`{ours}`")
    assert Table.open(ours).to_arrow().num_rows == 2


@pytest.mark.long("delta-spark runs beside it")
def test_delta_spark_reads_row_ids_that_an_alter_gave_and_none_where_it_took_them(
    delta: DeltaSpark, made: Callable[[Path, bool], None], tmp_path: Path
) -> None:
    made(ours := tmp_path / "ours", True)
    alter(ours, add_features=["rowTracking"])
    found = delta.sql(f"SELECT id, _metadata.row_id AS i, _metadata.row_commit_version AS v FROM delta.`{ours}`")
    assert sorted(row["i"] for row in found) == [0, 1]
    assert {row["v"] for row in found} == {3}
    alter(ours, drop_features=["rowTracking"])
    delta.run(f"DELETE FROM delta.`{ours}` WHERE id = 2")
    assert Table.open(ours).to_arrow().num_rows == 1


@pytest.mark.long("delta-spark runs beside it")
def test_delta_spark_keeps_a_rule_that_an_alter_added(
    delta: DeltaSpark, made: Callable[[Path, bool], None], tmp_path: Path
) -> None:
    made(ours := tmp_path / "ours", True)
    alter(ours, set_not_null=["n"], add_constraints={"small": "n < 10"})
    for row in ("3L, NULL", "3L, 11"):
        with pytest.raises(Exception, match=r"DELTA_NOT_NULL_CONSTRAINT_VIOLATED|DELTA_VIOLATE_CONSTRAINT"):
            delta.run(f"INSERT INTO delta.`{ours}` SELECT {row}, 'a', NULL, NULL, DATE'2024-01-01'")
    assert Table.open(ours).to_arrow().num_rows == 2


@pytest.mark.long("a table and a drop for each feature")
def test_engines_without_a_dropped_feature_read_the_table_and_delta_spark_writes_it_on(
    delta: DeltaSpark, made: Callable[[Path, bool], None], tmp_path: Path
) -> None:
    """The protocol is that of `reference/features_dropped`, in which delta-spark itself has dropped a feature."""
    reference = Path(__file__).parent / "reference" / "features_dropped" / "table"
    features = ["columnMapping", "deletionVectors", "v2Checkpoint", "typeWidening", "vacuumProtocolCheck"]
    expected = Table.open(reference).snapshot().protocol
    for feature in features:
        made(ours := tmp_path / feature, True)
        alter(ours, add_features=[feature])
        if feature == "deletionVectors":
            delta.run(f"DELETE FROM delta.`{ours}` WHERE id = 2 AND n = 2")
            delta.run(f"REORG TABLE delta.`{ours}` APPLY (PURGE)")
        Table.open(ours).checkpoint()
        if feature == "v2Checkpoint":
            alter(ours, set_properties={"delta.checkpointPolicy": "classic"})
        protocol = alter(ours, drop_features=[feature]).snapshot().protocol
        assert set(writer_features(protocol)) - {"checkConstraints"} == set(writer_features(expected)), feature
        assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 7)
        assert deltalake.DeltaTable(str(ours)).to_pyarrow_table().num_rows == Table.open(ours).to_arrow().num_rows
        delta.run(f"INSERT INTO delta.`{ours}` SELECT * FROM delta.`{ours}` WHERE id = 1")
        assert sorted(Table.open(ours).to_arrow()["id"].to_pylist())[:2] == [1, 1]


# A reader feature, and an alteration that adds it.
READ_BY_DELTALAKE: dict[str, dict[str, Any]] = {
    "columnMapping": SAME["renamed"][0],
    "deletionVectors": SAME["vectors"][0],
    "timestampNtz": {"add_columns": {"at": "TIMESTAMP_NTZ"}},
    "typeWidening": SAME["widened"][0],
    "v2Checkpoint": SAME["checkpoints"][0],
    "vacuumProtocolCheck": {"add_features": ["vacuumProtocolCheck"]},
    "variantShredding": {"add_features": ["variantShredding"]},
    "variantType": {"add_columns": {"v": "VARIANT"}},
}
WITHOUT = [
    "properties",
    "change feed",
    "append only",
    "timestamps",
    "columns",
    "comments",
    "constraint",
    "row tracking",
]


@pytest.mark.long("delta-spark makes the table")
@pytest.mark.parametrize("name", [*WITHOUT, *READ_BY_DELTALAKE])
def test_deltalake_reads_an_altered_table_as_the_page_says(
    made: Callable[[Path, bool], None], tmp_path: Path, name: str
) -> None:
    made(ours := tmp_path / "ours", True)
    alteration = SAME[name][0] if name in WITHOUT else READ_BY_DELTALAKE[name]
    names = alter(ours, **alteration).snapshot().schema.names
    said = READERS[name].deltalake if name in READERS else "1.6"
    opened = deltalake.DeltaTable(str(ours))
    if said:
        query = deltalake.QueryBuilder().register("t", opened)
        assert sorted(query.execute("SELECT * FROM t").read_all().schema.names) == sorted(names)
    else:
        with pytest.raises(Exception, match=r"Unsupported table features"):
            deltalake.QueryBuilder().register("t", opened)
    if said == "1.6":
        assert opened.to_pyarrow_table().num_rows == 2
    else:
        with pytest.raises(Exception, match=name):
            opened.to_pyarrow_table()
