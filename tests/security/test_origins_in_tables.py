"""Every text that a table's log brings to a job, with every hostile payload in it: typed error or right rows, no more.

A case is one origin, one payload and one of the operations in turn. `make test` draws a few cases, `make test-long`
some hundreds and prints their number, TXLOG_TEST_ALL=1 runs all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_txlog.contract.job import JobResult
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
