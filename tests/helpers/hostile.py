"""Hostile texts, a table that another writer has made, and what a job may touch of neither.

Every origin of a text meets every payload: `drawn` gives the cases, and `check` runs one and looks at everything that
it must leave alone. Watched in each: a folder outside of the table, byte by byte; every file that appears outside of
the table; the worker's environment, of which one variable must come out nowhere; a property of the JVM that the code in
the payloads sets; a port of this machine that the payloads name.
"""

from __future__ import annotations

import itertools
import json
import math
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog import errors
from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.errors import TxlogError
from tests.helpers.depth import WHOLE, depth

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "canary-3f1d9a"
VARIABLE = "TXLOG_TEST_CANARY"
RAN = "txlog.test.origins"
IDS = [1, 2, 3]
_SET = f"'java.lang.System', 'setProperty', '{RAN}', 'yes'"


# How many cases of a file are run, but for TXLOG_TEST_ALL=1.
CASES = depth(10, 80, 200)


def payloads(folder: Path, port: int) -> dict[str, str]:
    """Texts by what they try, for a folder outside of the table and a port that nothing may connect to."""
    file = f"{folder}/rows.parquet"
    return {
        "reflection": f"reflect({_SET})",
        "reflection by IDENTIFIER": f"IDENTIFIER('reflect')({_SET})",
        "reflection behind a strange space": f"java_method\u00a0({_SET})",
        "reflection beside a substitution": f"concat(try_reflect({_SET}), '${{x}}')",
        "environment": f"${{env:{VARIABLE}}}",
        "environment in a text": f"'${{env:{VARIABLE}}}'",
        "setting": "${spark:spark.app.id}",
        "system property": "'${system:user.home}'",
        "subquery of a file": f"(SELECT max(value) FROM text.`{folder}/secret.txt`)",
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
        "web": f"http://127.0.0.1:{port}/rows.parquet",
        "chained file system": f"simplecache::http://127.0.0.1:{port}/rows.parquet",
        "null byte": "rows\0.parquet",
        "very long": "x" * 10_000,
        "unicode": "\u202e\ud7ff\uffff\u00e9 \U0001f600",
        "blank": " ",
        "quotes": "`'\"\\",
    }


def column(name: str, kind: Any = "long", **metadata: str) -> dict[str, Any]:
    """A column of a schema in the log."""
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


@dataclass
class Log:
    """The parts of a table's first commit. Another writer has made them, so nothing of ours has looked at them."""

    fields: list[dict[str, Any]] = field(default_factory=lambda: [column("id")])
    configuration: dict[str, str] = field(default_factory=dict)
    partition_columns: list[str] = field(default_factory=list)
    protocol: dict[str, Any] = field(default_factory=lambda: {"minReaderVersion": 1, "minWriterVersion": 4})
    add: dict[str, Any] = field(default_factory=dict)
    domain: dict[str, Any] | None = None

    def make(self, root: Path) -> Path:
        """The table, with the rows of `IDS` in a file, or in that which `add` names."""
        (root / "_delta_log").mkdir(parents=True)
        pq.write_table(pa.table({"id": pa.array(IDS, pa.int64())}), root / "rows.parquet")
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


@dataclass(frozen=True)
class Watched:
    """What no case may touch. `folder` is outside of the table, and holds a Parquet file that fits into it."""

    folder: Path
    listening: socket.socket

    def payload(self, name: str) -> str:
        return payloads(self.folder, self.listening.getsockname()[1])[name]


def drawn(origins: Sequence[str], operations: Sequence[str] = ("",)) -> list[tuple[str, str, str]]:
    """Every origin with every payload, each with one of the operations in turn; without TXLOG_TEST_ALL=1 a spread."""
    names = list(payloads(Path("/"), 0))
    cases = [
        (origin, payload, operations[(row + column) % len(operations)])
        for row, origin in enumerate(origins)
        for column, payload in enumerate(names)
    ]
    if WHOLE:
        return cases
    # Steps that meet every payload before they meet one again.
    step = next(step for step in itertools.count(len(cases) // CASES) if math.gcd(step, len(names)) == 1)
    return cases[::step]


def line_of(cases: Sequence[Any], origins: Sequence[str]) -> str:
    """The number of cases, for the reader of the run. With TXLOG_TEST_ALL=1 it must be that of all pairs."""
    pairs = len(origins) * len(payloads(Path("/"), 0))
    assert len(cases) == pairs if WHOLE else cases
    return f"hostile texts: {len(cases)} of {pairs} pairs of an origin and a payload"


def check(
    watched: Watched, spark: SparkSession, root: Path, job: Callable[[], JobResult], ids: Sequence[int] | None = None
) -> None:
    """Run the job, and look at everything that it must leave alone. `ids`: those of the rows that it leaves behind."""
    jvm: Any = spark._jvm
    before = _contents(root.parent, root)
    has_failed = True
    try:
        result = job()
        said = result.to_json()
        has_failed = result.error is not None
        if result.error is not None:
            assert issubclass(getattr(errors, result.error["type"]), TxlogError), said
            assert result.error["facts"].get("cause_type") is None, f"an error without a class of its own: {said}"
    except TxlogError as error:  # the spec itself is refused
        said = str(error.to_dict())
    assert _contents(root.parent, root) == before
    assert jvm.java.lang.System.getProperty(RAN) is None
    with pytest.raises(BlockingIOError):
        watched.listening.accept()
    assert SECRET not in said
    for path in root.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    try:
        found = Table.open(root).to_arrow()
    except TxlogError:
        return
    assert SECRET not in str(found.to_pylist())
    expected = IDS if has_failed else ids
    assert 666 not in found.column("id").to_pylist()
    assert expected is None or sorted(found.column("id").to_pylist()) == sorted(expected)


def _contents(folder: Path, but: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and but not in path.parents}
