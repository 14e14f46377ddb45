"""A catalog-managed table as delta-spark 4.4.0 leaves it with Unity Catalog: versions 0 to 3, the last one reported.

Its properties and features are those that were recorded: column mapping by name, row tracking, deletion vectors,
in-commit timestamps, files below folders of two letters, and a staged file that stays next to its published copy.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.table.schema.features import UNITY_ID
from airflow_txlog.storage.committer import STAGED
from tests.helpers.managed import NAME, ids, opened
from tests.helpers.rows import append
from tests.helpers.unity import READER_FEATURES, REQUIRED, FakeTable, FakeUnity

TABLE_ID = "7f3c9a52-51b4-4f3b-9f07-0d6a3c0f8b11"
PHYSICAL = {"id": "col-1e4c8a10-6f6b-4d3a-a2c5-1f0a4b6f0001", "name": "col-1e4c8a10-6f6b-4d3a-a2c5-1f0a4b6f0002"}
STAGED_3 = f"{3:020d}.0b7c2f9e-0a37-4c36-b1d2-6f1c1f4e3a77.json"
STARTED_MS = 1_785_000_000_000


def field(name: str, kind: str, number: int) -> dict[str, Any]:
    mapping = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": PHYSICAL[name]}
    return {"name": name, "type": kind, "nullable": True, "metadata": mapping}


SCHEMA = {"type": "struct", "fields": [field("id", "long", 1), field("name", "string", 2)]}
CONFIGURATION = {
    **REQUIRED,
    UNITY_ID: TABLE_ID,
    "delta.columnMapping.mode": "name",
    "delta.columnMapping.maxColumnId": "2",
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": "_row-id-col-4a1d",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_row-commit-version-col-4a1e",
    "delta.randomizeFilePrefixes": "true",
    "delta.randomPrefixLength": "2",
    "delta.parquet.compression.codec": "zstd",
}
PROTOCOL = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": [*READER_FEATURES, "columnMapping"],
    "writerFeatures": [
        *READER_FEATURES,
        *("columnMapping", "domainMetadata", "rowTracking", "inCommitTimestamp", "invariants", "appendOnly"),
    ],
}


def data_file(root: Path, path: str, rows: dict[int, str]) -> int:
    names = [pa.field(PHYSICAL[name], kind) for name, kind in (("id", pa.int64()), ("name", pa.string()))]
    numbered = [each.with_metadata({"PARQUET:field_id": str(n)}) for n, each in enumerate(names, 1)]
    table = pa.table([list(rows), list(rows.values())], schema=pa.schema(numbered))
    (root / path).parent.mkdir(parents=True)
    pq.write_table(table, root / path, compression="zstd")
    return (root / path).stat().st_size


def added(root: Path, path: str, rows: dict[int, str], version: int, base: int) -> dict[str, Any]:
    stats = {"numRecords": len(rows), "tightBounds": True}
    return {
        "add": {
            "path": path,
            "partitionValues": {},
            "size": data_file(root, path, rows),
            "modificationTime": STARTED_MS + version,
            "dataChange": True,
            "stats": json.dumps(stats),
            "tags": {},
            "baseRowId": base,
            "defaultRowCommitVersion": version,
            "clusteringProvider": None,
        }
    }


def info(version: int, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        "commitInfo": {
            "inCommitTimestamp": STARTED_MS + 1000 * version,
            "timestamp": STARTED_MS + 1000 * version,
            "operation": operation,
            "operationParameters": parameters,
            **({"readVersion": version - 1} if version else {}),
            "isolationLevel": "Serializable",
            "isBlindAppend": operation == "WRITE",
            "operationMetrics": {},
            "tags": {"delta.rowTracking.preserved": "false"},
            "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0",
            "txnId": f"5b1f0000-0000-4000-8000-00000000000{version}",
        }
    }


def mark(last: int) -> dict[str, Any]:
    configuration = json.dumps({"rowIdHighWaterMark": last})
    return {"domainMetadata": {"domain": "delta.rowTracking", "configuration": configuration, "removed": False}}


@pytest.fixture
def unity() -> Iterator[FakeUnity]:
    with FakeUnity() as unity:
        yield unity


@pytest.fixture
def entry(unity: FakeUnity, tmp_path: Path) -> FakeTable:
    root = tmp_path / "__unitystorage" / "tables" / TABLE_ID
    (root / STAGED).mkdir(parents=True)
    first = added(root, "aB/part-00000-6a.c000.zstd.parquet", {1: "a", 2: "b"}, 1, 0)
    second = added(root, "Zq/part-00001-6b.c000.zstd.parquet", {3: "c"}, 1, 2)
    removed = {
        "path": second["add"]["path"],
        "deletionTimestamp": STARTED_MS + 2000,
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": second["add"]["size"],
        "baseRowId": 2,
        "defaultRowCommitVersion": 1,
    }
    metadata = {
        "id": "0a9b9c61-7c6a-4c1d-8f3f-1b2f6c5f1d9e",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(SCHEMA),
        "partitionColumns": [],
        "configuration": CONFIGURATION,
        "createdTime": STARTED_MS,
    }
    third = added(root, "0x/part-00000-6c.c000.zstd.parquet", {4: "d", 5: "e"}, 3, 3)
    commits = [
        [info(0, "CREATE TABLE", {"isManaged": "true"}), {"metaData": metadata}, {"protocol": PROTOCOL}],
        [info(1, "WRITE", {"mode": "Append"}), mark(2), first, second],
        [info(2, "DELETE", {"predicate": '["(id#1L = 3)"]'}), {"remove": removed}],
        [info(3, "WRITE", {"mode": "Append"}), mark(4), third],
    ]
    for version, actions in enumerate(commits):
        text = "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions)
        (root / commit_name(version)).write_text(text)
        if version:
            name = STAGED_3 if version == 3 else f"{version:020d}.0b7c2f9e-0a37-4c36-b1d2-6f1c1f4e3a7{version}.json"
            shutil.copy(root / commit_name(version), root / STAGED / name)
    size = (root / commit_name(3)).stat().st_size
    reported = {
        "version": 3,
        "timestamp": STARTED_MS + 3000,
        "file-name": STAGED_3,
        "file-size": size,
        "file-modification-timestamp": STARTED_MS + 3001,
    }
    return unity.add(
        NAME,
        root.as_uri(),
        table_id=TABLE_ID,
        properties={**CONFIGURATION, "delta.feature.catalogManaged": "supported"},
        commits={3: reported},
        latest=3,
        file_names={3: STAGED_3},
    )


def test_every_version_reads_as_delta_spark_wrote_it(unity: FakeUnity, entry: FakeTable) -> None:
    table = opened(unity, entry)
    assert [ids(table.at_version(version)) for version in range(4)] == [[], [1, 2, 3], [1, 2], [1, 2, 4, 5]]
    assert table.snapshot().timestamp_ms == STARTED_MS + 3000
    assert [each["operation"] for each in table.history()] == ["WRITE", "DELETE", "WRITE", "CREATE TABLE"]
    assert table.snapshot(timestamp=STARTED_MS + 2500).version == 2


def test_the_last_version_is_read_where_only_the_catalog_knows_it(unity: FakeUnity, entry: FakeTable) -> None:
    Path(entry.location.removeprefix("file://"), commit_name(3)).unlink()
    assert ids(opened(unity, entry)) == [1, 2, 4, 5]


def test_our_commit_follows_it_and_keeps_its_rules(unity: FakeUnity, entry: FakeTable) -> None:
    table = opened(unity, entry)
    version = append(table, pa.table({"id": [6], "name": ["f"]}, schema=table.snapshot().schema))
    assert (version, ids(opened(unity, entry))) == (4, [1, 2, 4, 5, 6])
    log = Path(entry.location.removeprefix("file://"), commit_name(4)).read_text().splitlines()
    actions = {next(iter(action)): next(iter(action.values())) for action in map(json.loads, log)}
    assert actions["commitInfo"]["inCommitTimestamp"] > STARTED_MS + 3000
    assert actions["commitInfo"]["txnId"]
    assert (actions["add"]["baseRowId"], actions["add"]["defaultRowCommitVersion"]) == (5, 4)
    assert entry.commits == {}
