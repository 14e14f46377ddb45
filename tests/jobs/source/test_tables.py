"""A2: raw files of a Delta table are no source, however the query leads to them, and other files are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from py4j.java_gateway import GatewayClient

from airflow_txlog.engine import Table
from airflow_txlog.jobs.source.tables import reads_table
from tests.helpers.jobs import SCHEMA, committed, error_of, ids, rows, run
from tests.helpers.rows import make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MERGE: dict[str, Any] = {
    "on": "t.id = s.id",
    "clauses": [
        {"when": "matched", "then": "update", "set": {"amount": "s.amount"}},
        {"when": "not_matched", "then": "insert", "values": "*"},
    ],
}
SUMS = "SELECT id, first(day) AS day, 'sum' AS name, sum(amount) AS amount FROM {} GROUP BY id"


@pytest.fixture
def places(tmp_path: Path, spark: SparkSession) -> Iterator[Path]:
    """A folder with a space in its name: the target in `lake/orders`, another Delta table beside it, and plain files.

    Views of the catalog and of the session lead to the target's files.
    """
    lake = tmp_path / "the lake"
    make_table(lake / "orders", rows(3), rows(2, start=3), schema=SCHEMA, partition_by=["day"])
    make_table(lake / "other", rows(1, start=7), schema=SCHEMA)
    (lake / "plain" / "part=1").mkdir(parents=True)
    pq.write_table(rows(2, start=8), lake / "plain" / "part=1" / "f.parquet")
    (tmp_path / "link").symlink_to(lake / "orders" / "day=2024-01-01")
    spark.sql(f"CREATE VIEW by_catalog AS SELECT * FROM parquet.`{lake}/orders`")
    spark.table("by_catalog").createOrReplaceTempView("cached")
    spark.catalog.cacheTable("cached")
    yield tmp_path
    spark.catalog.uncacheTable("cached")
    spark.catalog.dropTempView("cached")
    spark.sql("DROP VIEW by_catalog")


def sources(root: Path) -> dict[str, dict[str, Any]]:
    """Sources that come upon the target's files, or another Delta table's, without its log."""
    lake = root / "the lake"

    def files(path: str, **options: str) -> dict[str, Any]:
        return {"format": "parquet", "path": path, "options": options}

    above = files(str(lake), recursiveFileLookup="true", pathGlobFilter="*.csv")
    in_cte = "WITH a AS (SELECT * FROM by_catalog) SELECT x.* FROM a AS x JOIN a AS y ON x.id = y.id"
    in_subquery = (
        "SELECT 1L AS id, DATE'2024-01-01' AS day, 'x' AS name, (SELECT max(amount) FROM by_catalog) AS amount"
    )
    return {
        "files of the table": files(f"{lake}/orders"),
        "files of a partition": files(f"{lake}/orders/day=2024-01-01"),
        "globs": files(f"{root}/the*/ord*/day=*/*.parquet"),
        "a folder above": files(str(lake), recursiveFileLookup="true"),
        "a folder above, of other files": {**above, "schema": "id BIGINT"},
        "a link": files(f"file://{root}/link"),
        "a list of paths": {"format": "parquet", "path": [f"{lake}/plain/part=1", f"{lake}/orders/day=2024-01-01"]},
        "another table": files(f"{lake}/other"),
        "tables below": files(f"{lake}/*", recursiveFileLookup="true"),
        "a path in SQL": {"sql": SUMS.format(f"parquet.`{lake}/orders`")},
        "a quoted name": {"sql": SUMS.format("`by_catalog`")},
        "a name": {"sql": SUMS.format("by_catalog")},
        "a cached view": {"sql": SUMS.format("cached")},
        "a CTE": {"sql": in_cte},
        "a subquery": {"sql": in_subquery},
        "a view of files": {"sql": SUMS.format("v"), "views": {"v": files(f"{lake}/or*")}},
    }


@pytest.mark.spark
def test_a2_raw_files_of_a_delta_table_are_refused_however_they_are_named(places: Path, spark: SparkSession) -> None:
    lake = places / "the lake"
    table = Table.open(str(lake / "orders"))
    # By a path or the catalog only where the operator lets a query do so.
    anywhere: dict[str, Any] = {"unrestricted": ("query",)}
    for name, source in sources(places).items():
        error = error_of(run(spark, "merge", table, source=source, **MERGE, **anywhere))
        assert (error["type"], error["facts"]["argument"]) == ("InvalidJobSpec", "source"), name
        held = "other" if name == "another table" else "orders"
        assert f'{lake}/{held}")' in error["message"], (name, error["message"])
    by_name = {"sql": SUMS.format("IDENTIFIER(:x)")}
    error = error_of(run(spark, "merge", table, source=by_name, parameters={"x": "by_catalog"}, **MERGE, **anywhere))
    assert error["type"] == "InvalidJobSpec"
    keys = {"column": "id", "source": {"sql": "SELECT id FROM by_catalog"}}
    error = error_of(run(spark, "delete", table, predicate=None, keys=keys, **anywhere))
    assert (error["type"], error["facts"]["argument"]) == ("InvalidJobSpec", "keys.source")
    # The folder of a table that is only to be made: its first files would be read by the second attempt.
    source = {"format": "parquet", "path": str(lake / "plain")}
    for target in (lake / "plain", lake / "plain" / "new"):
        assert error_of(run(spark, "write", target, source=source, allow_non_empty=True))["type"] == "InvalidJobSpec"
    assert (table.snapshot().version, ids(table)) == (2, [0, 1, 2, 3, 4])


@pytest.mark.spark
def test_a2_other_files_and_tables_by_their_log_are_sources(places: Path, spark: SparkSession) -> None:
    lake = places / "the lake"
    table = Table.open(str(lake / "orders"))
    plain = {"format": "parquet", "path": f"{lake}/pl*/part=*", "options": {"basePath": str(lake / "plain" / "part=1")}}
    committed(run(spark, "merge", table, source=plain, **MERGE))
    committed(run(spark, "merge", table, source={"table": str(lake / "other")}, **MERGE))
    assert ids(table) == [0, 1, 2, 3, 4, 7, 8, 9]


@pytest.mark.spark
def test_the_folders_of_this_machine_are_looked_at_without_a_question_to_spark_for_each(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    send = GatewayClient.send_command

    def counted(client: Any, command: str, *args: Any, **kwargs: Any) -> Any:
        asked.append(command)
        return send(client, command, *args, **kwargs)

    def questions(name: str, folders: int) -> int:
        for number in range(folders):
            (tmp_path / name / f"part={number}").mkdir(parents=True)
            pq.write_table(rows(1), tmp_path / name / f"part={number}" / "f.parquet")
        frame = spark.read.parquet(str(tmp_path / name))
        asked.clear()
        assert not reads_table(spark, frame, str(tmp_path / "target"), "source")
        # A command that begins so frees an object of an earlier question, whenever Python comes to it.
        return sum(not command.startswith("m\n") for command in asked)

    monkeypatch.setattr(GatewayClient, "send_command", counted)
    assert questions("many", 12) == questions("few", 2)
