"""Every kind of text that can reach a job, with every hostile payload in it: typed error or right rows, and no more.

A case is one origin, one payload and one operation. Watched in each: a folder outside of the table, byte by byte; every
file that appears outside of the table; the worker's environment, of which one variable must come out nowhere; a
property of the JVM that the code in the payloads sets; a port of this machine that the payloads name. `make test` draws
a few cases, `make test-long` runs all and prints their number.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog import errors
from airflow_txlog.contract import ApplicationTransaction, JobResult
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.errors import TxlogError
from tests.helpers.depth import LONG
from tests.helpers.jobs import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "canary-3f1d9a"
VARIABLE = "TXLOG_TEST_CANARY"
RAN = "txlog.test.origins"
_SET = f"'java.lang.System', 'setProperty', '{RAN}', 'yes'"


@dataclass(frozen=True)
class Watched:
    """What no case may touch. `folder` is outside of the table, and holds a Parquet file that fits into it."""

    folder: Path
    port: int

    def payloads(self) -> dict[str, str]:
        """Texts by what they try. What `{}` stands for depends on the test's own folder and port."""
        file = f"{self.folder}/rows.parquet"
        return {
            "reflection": f"reflect({_SET})",
            "reflection by IDENTIFIER": f"IDENTIFIER('reflect')({_SET})",
            "reflection behind a strange space": f"java_method\u00a0({_SET})",
            "reflection beside a substitution": f"concat(try_reflect({_SET}), '${{x}}')",
            "environment": f"${{env:{VARIABLE}}}",
            "environment in a text": f"'${{env:{VARIABLE}}}'",
            "setting": "${spark:spark.app.id}",
            "system property": "'${system:user.home}'",
            "subquery of a file": f"(SELECT max(value) FROM text.`{self.folder}/secret.txt`)",
            "end of the expression": "1) OR (1 = 1",
            "end of a name": "a` STRING, `b",
            "end of a text": "x' OR '1' = '1",
            "comment": "x -- ",
            "line": "x\n-- y",
            "schema": f"a: int, b: {_SET}",
            "absolute path": file,
            "file URI": f"file://{file}",
            "path above": "../outside/rows.parquet",
            "encoded path above": "%2e%2e/outside/rows.parquet",
            "twice encoded path above": "%252e%252e/outside/rows.parquet",
            "path above inside": "a/../../outside/rows.parquet",
            "web": f"http://127.0.0.1:{self.port}/rows.parquet",
            "chained file system": f"simplecache::http://127.0.0.1:{self.port}/rows.parquet",
            "null byte": "rows\0.parquet",
            "very long": "x" * 10_000,
            "unicode": "\u202e\ud7ff\uffff\u00e9 \U0001f600",
            "blank": " ",
            "quotes": "`'\"\\",
        }


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


# --- tables whose log holds the payload -----------------------------------------------------------------------------


def _field(name: str, kind: Any = "long", **metadata: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


@dataclass
class Log:
    """The parts of a table's first commit. Another writer has made them, so nothing of ours has looked at them."""

    fields: list[dict[str, Any]] = field(default_factory=lambda: [_field("id")])
    configuration: dict[str, str] = field(default_factory=dict)
    partition_columns: list[str] = field(default_factory=list)
    protocol: dict[str, Any] = field(default_factory=lambda: {"minReaderVersion": 1, "minWriterVersion": 4})
    add: dict[str, Any] = field(default_factory=dict)
    domain: dict[str, Any] | None = None

    def make(self, root: Path) -> Path:
        """The table, with the rows 1 to 3 in a file, or in that which `add` names."""
        (root / "_delta_log").mkdir(parents=True)
        pq.write_table(pa.table({"id": pa.array([1, 2, 3], pa.int64())}), root / "rows.parquet")
        size = (root / "rows.parquet").stat().st_size
        add = {"path": "rows.parquet", "partitionValues": {}, "size": size, "modificationTime": 0, "dataChange": True}
        metadata = {
            "id": "5d3ffc5f-6d77-4b7c-a2f8-0a9e3f1c2b11",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": self.fields}),
            "partitionColumns": self.partition_columns,
            "configuration": self.configuration,
            "createdTime": 0,
        }
        actions = [{"protocol": self.protocol}, {"metaData": metadata}, {"add": add | self.add}]
        actions += [{"domainMetadata": self.domain}] if self.domain else []
        (root / commit_name(0)).write_text("\n".join(map(json.dumps, actions)))
        return root


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
        fields=[_field("id", **{"delta.invariants": json.dumps({"expression": {"expression": text}})})]
    ),
    "generated column": lambda text: Log(
        fields=[_field("id"), _field("g", "string", **{"delta.generationExpression": text})]
    ),
    "default": lambda text: Log(
        fields=[_field("id"), _field("d", "string", CURRENT_DEFAULT=text)], protocol=_features("allowColumnDefaults")
    ),
    "column name": lambda text: Log(fields=[_field("id"), _field(text, "string")]),
    "mapped column name": lambda text: Log(
        fields=[
            _field("id", **{"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "id"}),  # type: ignore[arg-type]
            _field(text, "string", **{"delta.columnMapping.id": 2, "delta.columnMapping.physicalName": text}),  # type: ignore[arg-type]
        ],
        configuration={"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"},
        protocol=_MAPPING,
    ),
    "member name": lambda text: Log(
        fields=[_field("id"), _field("s", {"type": "struct", "fields": [_field(text, "string")]})]
    ),
    "type": lambda text: Log(fields=[_field("id"), _field("x", text)]),
    "partition column": lambda text: Log(
        fields=[_field("id"), _field(text, "string")],
        partition_columns=[text],
        add={"partitionValues": {text: "a"}},
    ),
    "partition value": lambda text: Log(
        fields=[_field("id"), _field("p", "string")], partition_columns=["p"], add={"partitionValues": {"p": text}}
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


# --- texts of the job itself ----------------------------------------------------------------------------------------


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
OF_TABLES = [(origin, operation) for origin in TABLES for operation in OPERATIONS]
OF_JOBS = [(origin, "") for origin in TEXTS]
SHORT = 12


def _drawn(cases: list[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """Every origin with every payload, each with one of the operations in turn; a spread of them in `make test`."""
    payloads = list(Watched(Path("/"), 0).payloads())
    by_origin: dict[str, list[str]] = {}
    for origin, operation in cases:
        by_origin.setdefault(origin, []).append(operation)
    drawn = [
        (origin, payload, operations[(row + column) % len(operations)])
        for row, (origin, operations) in enumerate(by_origin.items())
        for column, payload in enumerate(payloads)
    ]
    return drawn if LONG else drawn[:: len(drawn) // SHORT]


@pytest.fixture(scope="module")
def listening() -> Iterator[socket.socket]:
    """A port of this machine that nobody may connect to."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(0)
        yield server


@pytest.fixture
def watched(tmp_path: Path, listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> Watched:
    folder = tmp_path / "outside"
    folder.mkdir()
    pq.write_table(pa.table({"id": pa.array([666], pa.int64())}), folder / "rows.parquet")
    (folder / "secret.txt").write_text(f"{SECRET}\n")
    (tmp_path / "in.csv").write_text("id\n5\n")
    monkeypatch.setenv(VARIABLE, SECRET)
    return Watched(folder, listening.getsockname()[1])


def _contents(folder: Path, but: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and but not in path.parents}


def check(watched: Watched, listening: socket.socket, spark: SparkSession, root: Path, job: Callable[[], Any]) -> None:
    """Run the job, and look at everything that it must leave alone."""
    jvm: Any = spark._jvm
    before = _contents(root.parent, root)
    try:
        result = job()
        said = result.to_json()
        if result.error is not None:
            assert issubclass(getattr(errors, result.error["type"]), TxlogError), said
            assert result.error["facts"].get("cause_type") is None, f"an error without a class of its own: {said}"
    except TxlogError as error:  # the spec itself is refused
        said = str(error.to_dict())
    assert _contents(root.parent, root) == before
    assert jvm.java.lang.System.getProperty(RAN) is None
    with pytest.raises(BlockingIOError):
        listening.accept()
    assert SECRET not in said
    for path in root.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    try:
        found = Table.open(root).to_arrow()
    except TxlogError:
        return
    assert SECRET not in str(found.to_pylist())
    assert 666 not in found.column("id").to_pylist()


@pytest.mark.spark
@pytest.mark.parametrize(("origin", "payload", "operation"), _drawn(OF_TABLES))
def test_a_tables_metadata_is_input(
    spark: SparkSession, tmp_path: Path, watched: Watched, listening: socket.socket,
    origin: str, payload: str, operation: str,
) -> None:  # fmt: skip
    root = TABLES[origin](watched.payloads()[payload]).make(tmp_path / "t")
    check(watched, listening, spark, root, lambda: OPERATIONS[operation](spark, root))


@pytest.mark.spark
@pytest.mark.parametrize(("origin", "payload"), [case[:2] for case in _drawn(OF_JOBS)])
def test_a_jobs_texts_are_input(
    spark: SparkSession, tmp_path: Path, watched: Watched, listening: socket.socket, origin: str, payload: str
) -> None:
    root = Log().make(tmp_path / "t")
    check(watched, listening, spark, root, lambda: TEXTS[origin](spark, root, watched.payloads()[payload]))


def test_every_origin_meets_every_payload(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is skipped: the number of cases is that of all pairs."""
    pairs = (len(TABLES) + len(TEXTS)) * len(Watched(Path("/"), 0).payloads())
    cases = len(_drawn(OF_TABLES)) + len(_drawn(OF_JOBS))
    with capsys.disabled():
        print(f"\n{cases} of {pairs} pairs of an origin and a payload")
    assert not LONG or cases == pairs
