"""Every text that a table's log or a job brings, with every hostile payload in it: typed error or right rows, no more.

A case is one origin and one payload, of a table's also one of the operations in turn. `make test` draws a few cases,
`make test-long` some hundreds and prints their number, TXLOG_TEST_ALL=1 runs all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_txlog.contract.job import ApplicationTransaction, JobResult
from tests.conftest import REPORTED
from tests.helpers.hostile import IDS, Log, Watched, check, column, drawn, line_of
from tests.helpers.jobs import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.seeded

OPERATIONS: dict[str, Callable[[SparkSession, Any], JobResult]] = {
    "write": lambda spark, table: run(spark, "write", table, source={"sql": "SELECT 7L AS id"}, mode="append"),
    "update": lambda spark, table: run(spark, "update", table, set={"id": "id + 10"}, predicate="id = 1"),
    "delete": lambda spark, table: run(spark, "delete", table, predicate="id = 1"),
    "merge": lambda spark, table: run(
        spark,
        "merge",
        table,
        source={"sql": "SELECT 1L AS id"},
        on="t.id = s.id",
        clauses=[{"when": "matched", "then": "update", "set": {"id": "s.id + 10"}}],
    ),
    "optimize": lambda spark, table: run(spark, "optimize", table),
    "vacuum": lambda spark, table: run(spark, "vacuum", table),
}
# The ids of the rows that an operation leaves, where nothing refuses it.
LEFT = {
    "write": [*IDS, 7],
    "update": [11, 2, 3],
    "delete": [2, 3],
    "merge": [11, 2, 3],
    "optimize": IDS,
    "vacuum": IDS,
}


def _features(*names: str) -> dict[str, Any]:
    return {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [], "writerFeatures": list(names)}


_MAPPING = {"minReaderVersion": 2, "minWriterVersion": 5}
_VECTORS = _features("deletionVectors") | {"readerFeatures": ["deletionVectors"]}


def _vector(kind: str, path: str) -> dict[str, Any]:
    return {"storageType": kind, "pathOrInlineDv": path, "offset": 1, "sizeInBytes": 40, "cardinality": 1}


TABLES: dict[str, Callable[[str], Log]] = {
    "property": lambda text: Log(configuration={"delta.dataSkippingStatsColumns": text, text: text}),
    "constraint": lambda text: Log(configuration={"delta.constraints.c": text}),
    "name of a constraint": lambda text: Log(configuration={f"delta.constraints.{text}": "id > 0"}),
    "invariant": lambda text: Log(
        fields=[column("id", **{"delta.invariants": json.dumps({"expression": {"expression": text}})})]
    ),
    "generated column": lambda text: Log(
        fields=[column("id"), column("g", "string", **{"delta.generationExpression": text})]
    ),
    "default": lambda text: Log(
        fields=[column("id"), column("d", "string", CURRENT_DEFAULT=text)], protocol=_features("allowColumnDefaults")
    ),
    "column name": lambda text: Log(fields=[column("id"), column(text, "string")]),
    "mapped column name": lambda text: Log(
        fields=[
            column("id", **{"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "id"}),  # type: ignore[arg-type]
            column(text, "string", **{"delta.columnMapping.id": 2, "delta.columnMapping.physicalName": text}),  # type: ignore[arg-type]
        ],
        configuration={"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"},
        protocol=_MAPPING,
    ),
    "member name": lambda text: Log(
        fields=[column("id"), column("s", {"type": "struct", "fields": [column(text, "string")]})]
    ),
    "type": lambda text: Log(fields=[column("id"), column("x", text)]),
    "partition column": lambda text: Log(
        fields=[column("id"), column(text, "string")],
        partition_columns=[text],
        add={"partitionValues": {text: "a"}},
    ),
    "partition value": lambda text: Log(
        fields=[column("id"), column("p", "string")], partition_columns=["p"], add={"partitionValues": {"p": text}}
    ),
    "path": lambda text: Log(add={"path": text}),
    "statistics": lambda text: Log(add={"stats": text}),
    "vector path": lambda text: Log(protocol=_VECTORS, add={"deletionVector": _vector("p", text)}),
    "vector name": lambda text: Log(protocol=_VECTORS, add={"deletionVector": _vector("u", text)}),
    "inline vector": lambda text: Log(protocol=_VECTORS, add={"deletionVector": _vector("i", text)}),
    "clustering": lambda text: Log(
        protocol=_features("clustering", "domainMetadata"),
        domain={
            "domain": "delta.clustering",
            "configuration": json.dumps({"clusteringColumns": [[text]]}),
            "removed": False,
        },
    ),
}
CASES = drawn(list(TABLES), list(OPERATIONS))


@pytest.mark.spark
@pytest.mark.parametrize(("origin", "payload", "operation"), CASES)
def test_a_tables_metadata_is_input(
    spark: SparkSession, tmp_path: Path, watched: Watched, origin: str, payload: str, operation: str
) -> None:
    root = TABLES[origin](watched.payload(payload)).make(tmp_path / "t")
    check(watched, spark, root, lambda: OPERATIONS[operation](spark, root), LEFT[operation])


def test_every_origin_in_a_table_meets_every_payload(record_property: Callable[[str, object], None]) -> None:
    record_property(REPORTED, line_of(CASES, list(TABLES)) + " of a table")


# --- the texts of jobs ----------------------------------------------------------------------------------------------


if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MATCHED_UPDATE = {"when": "matched", "then": "update"}


def _merge(spark: SparkSession, table: Path, **more: Any) -> JobResult:
    given = {"source": {"sql": "SELECT 1L AS id"}, "on": "t.id = s.id", "clauses": [{**_MATCHED_UPDATE, "set": "*"}]}
    return run(spark, "merge", table, **(given | more))


TEXTS: dict[str, Callable[[SparkSession, Path, str], JobResult]] = {
    "parameter": lambda spark, table, text: run(
        spark, "delete", table, predicate="CAST(id AS STRING) = :p", parameters={"p": text}
    ),
    "name of a parameter": lambda spark, table, text: run(
        spark, "delete", table, predicate="id = :p", parameters={"p": 1, text: 1}
    ),
    "key": lambda spark, table, text: run(
        spark, "delete", table, predicate=None, keys={"column": "id", "values": [text]}
    ),
    "key column": lambda spark, table, text: run(
        spark, "delete", table, predicate=None, keys={"column": text, "values": [1]}
    ),
    "predicate": lambda spark, table, text: run(spark, "delete", table, predicate=text),
    "predicate's value": lambda spark, table, text: run(spark, "delete", table, predicate=f"({text}) = 'a'"),
    "partition predicate": lambda spark, table, text: run(
        spark, "delete", table, predicate="TRUE", partition_predicate=text
    ),
    "set": lambda spark, table, text: run(spark, "update", table, set={"id": text}, predicate="TRUE"),
    "column of set": lambda spark, table, text: run(spark, "update", table, set={text: "1"}, predicate="TRUE"),
    "merge condition": lambda spark, table, text: _merge(spark, table, on=text),
    "clause's condition": lambda spark, table, text: _merge(
        spark, table, clauses=[{"when": "matched", "then": "delete", "condition": text}]
    ),
    "clause's value": lambda spark, table, text: _merge(
        spark, table, clauses=[{"when": "not_matched", "then": "insert", "values": {"id": text}}]
    ),
    "alias": lambda spark, table, text: _merge(spark, table, target_alias=text, on="s.id = 1"),
    "query": lambda spark, table, text: run(spark, "write", table, source={"sql": text}, mode="append"),
    "query's value": lambda spark, table, text: run(
        spark, "write", table, source={"sql": f"SELECT length({text}) AS id"}, mode="append"
    ),
    "view": lambda spark, table, text: run(
        spark,
        "write",
        table,
        source={"sql": "SELECT 1L AS id", "views": {"v": {"path": text, "format": "parquet"}}},
        mode="append",
    ),
    "name of a view": lambda spark, table, text: run(
        spark, "write", table, source={"sql": "SELECT 1L AS id", "views": {text: {"table": str(table)}}}, mode="append"
    ),
    "option": lambda spark, table, text: run(
        spark,
        "write",
        table,
        source={"path": f"{table.parent}/in.csv", "format": "csv", "options": {"sep": text, text: text, "header": "x"}},
        mode="append",
    ),
    "source's schema": lambda spark, table, text: run(
        spark,
        "write",
        table,
        source={"path": f"{table.parent}/in.csv", "format": "csv", "schema": text},
        mode="append",
    ),
    "replaced rows": lambda spark, table, text: run(
        spark, "write", table, source={"sql": "SELECT 1L AS id"}, mode="overwrite", replace_where=text
    ),
    "Z-order": lambda spark, table, text: run(spark, "optimize", table, zorder_by=[text]),
    "time zone": lambda spark, table, text: run(spark, "delete", table, predicate="id = 1", time_zone=text),
    "application transaction": lambda spark, table, text: run(
        spark, "delete", table, predicate="id = 1", application=ApplicationTransaction(app_id=text, version=1)
    ),
}
TEXTS_OF_JOBS = [case[:2] for case in drawn(list(TEXTS))]


@pytest.mark.spark
@pytest.mark.parametrize(("origin", "payload"), TEXTS_OF_JOBS)
def test_a_jobs_texts_are_input(
    spark: SparkSession, tmp_path: Path, watched: Watched, origin: str, payload: str
) -> None:
    root = Log().make(tmp_path / "t")
    check(watched, spark, root, lambda: TEXTS[origin](spark, root, watched.payload(payload)))


def test_every_text_of_a_job_meets_every_payload(record_property: Callable[[str, object], None]) -> None:
    record_property(REPORTED, line_of(TEXTS_OF_JOBS, list(TEXTS)) + " of a job")
