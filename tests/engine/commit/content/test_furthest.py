"""What the metadata of a table may only raise: restored metadata keeps the furthest, and no other commit lowers it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.commit.content.metadata import keep_furthest, lowered_facts
from airflow_txlog.engine.log.actions import DomainMetadata, Metadata, Protocol, encode_commit
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.table.schema.identities import MARK_KEY
from airflow_txlog.errors import InvalidCommit

FEATURES = ["checkpointProtection", "columnMapping", "domainMetadata", "identityColumns", "rowTracking"]
PROTOCOL = Protocol(
    min_reader_version=3, min_writer_version=7, reader_features=["columnMapping"], writer_features=FEATURES
)
PROTECTED = "delta.requireCheckpointProtectionBeforeVersion"
MAPPED = {"delta.columnMapping.mode": "name"}


def column(name: str, mark: int | None, *, start: int = 1, step: int = 1, physical: str = "c1") -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "delta.identity.start": start,
        "delta.identity.step": step,
        "delta.identity.allowExplicitInsert": False,
        "delta.columnMapping.id": 1,
        "delta.columnMapping.physicalName": physical,
    }
    if mark is not None:
        metadata[MARK_KEY] = mark
    return {"name": name, "type": "long", "nullable": True, "metadata": metadata}


def metadata_of(properties: Mapping[str, str], *columns: dict[str, Any]) -> Metadata:
    configuration = {"delta.columnMapping.maxColumnId": "1", **MAPPED, **properties}
    return Metadata(
        id="t",
        schema_string=json.dumps({"type": "struct", "fields": list(columns)}),
        partition_columns=[],
        configuration=configuration,
    )


def mark_of(metadata: Metadata) -> int | None:
    return json.loads(metadata.schema_string or "")["fields"][0]["metadata"].get(MARK_KEY)  # type: ignore[no-any-return]


def table_of(folder: Path, *versions: Metadata) -> Table:
    """A table that other engines wrote: each version has other metadata."""
    (folder / "_delta_log").mkdir(parents=True)
    for version, metadata in enumerate(versions):
        actions = [*([PROTOCOL] if version == 0 else []), metadata]
        (folder / commit_name(version)).write_bytes(encode_commit({"operation": "x", "timestamp": 1}, actions))
    return Table.open(str(folder))


# (now, then): the column at the head and at the version that comes back, and the mark that it must have then.
MARKS = {
    "the mark has grown": (column("id", 5), column("id", 2), 5),
    "the mark was lowered since": (column("id", 2), column("id", 5), 5),
    "no value had been handed out": (column("id", 5), column("id", None), 5),
    "no value is handed out any more": (column("id", None), column("id", 5), 5),
    "steps are negative": (column("id", -9, step=-1), column("id", -2, step=-1), -9),
    "steps are negative and the mark was raised": (column("id", -2, step=-1), column("id", -9, step=-1), -9),
    "the column was renamed": (column("number", 5), column("id", 2), 5),
    "another column has the name": (column("id", 5, physical="c2"), column("id", 2), 2),
    "the column counts in other steps": (column("id", 5), column("id", 10, start=10, step=10), 10),
    "the column counts in other steps, not as far": (column("id", 95), column("id", 10, start=10, step=10), 100),
    "the column begins beyond the mark": (column("id", 5), column("id", None, start=100), None),
}


@pytest.mark.parametrize("case", MARKS)
def test_a24_an_identity_mark_stays_at_the_furthest(case: str, tmp_path: Path) -> None:
    now, then, expected = MARKS[case]
    assert mark_of(keep_furthest(metadata_of({}, now), metadata_of({}, then), "t")) == expected
    table = table_of(tmp_path / "t", metadata_of({}, then), metadata_of({}, now))
    table.restore(version=0)
    assert mark_of(Table.open(table.uri).snapshot().metadata) == expected


@pytest.mark.parametrize("name", ["delta.columnMapping.maxColumnId", PROTECTED])
@pytest.mark.parametrize(
    ("now", "then", "expected"), [("9", "2", "9"), ("2", "9", "9"), ("9", None, "9"), (None, "9", "9")]
)
def test_a24_a_growing_property_stays_at_the_furthest(
    name: str, now: str | None, then: str | None, expected: str, tmp_path: Path
) -> None:
    def version(value: str | None) -> Metadata:
        found = metadata_of({}, column("id", None))
        configuration = {**found.configuration, name: value}
        kept = {key: text for key, text in configuration.items() if text is not None}
        return msgspec.structs.replace(found, configuration=kept)

    table = table_of(tmp_path / "t", version(then), version(now))
    table.restore(version=0)
    assert Table.open(table.uri).snapshot().properties[name] == expected


def test_a24_the_row_id_mark_and_the_protocol_stay(tmp_path: Path) -> None:
    table = table_of(tmp_path / "t", metadata_of({}, column("id", None)))
    mark = DomainMetadata(domain="delta.rowTracking", configuration='{"rowIdHighWaterMark":41}', removed=False)
    wider = msgspec.structs.replace(PROTOCOL, writer_features=[*FEATURES, "appendOnly"])
    (tmp_path / "t" / commit_name(1)).write_bytes(encode_commit({"operation": "x"}, [wider, mark]))
    table.restore(version=0)
    snapshot = Table.open(table.uri).snapshot()
    assert (snapshot.state.domains["delta.rowTracking"], snapshot.protocol) == (mark, wider)


@pytest.mark.parametrize(
    ("properties", "mark", "lowered"),
    [
        ({PROTECTED: "6"}, 9, []),
        ({}, 9, [PROTECTED]),
        (
            {PROTECTED: "4"},
            9,
            [PROTECTED],
        ),
        ({PROTECTED: "5"}, 2, [f"{MARK_KEY} of column 'id'"]),
    ],
)
def test_a24_a_commit_that_lowers_such_a_fact_is_refused_and_named(
    properties: dict[str, str], mark: int, lowered: list[str], tmp_path: Path
) -> None:
    before = metadata_of({PROTECTED: "5"}, column("id", 5))
    after = metadata_of(properties, column("id", mark))
    assert lowered_facts(before, after, "t") == lowered
    tx = table_of(tmp_path / "t", before).begin()
    tx.set_metadata(after)
    if not lowered:
        assert tx.commit("SET TBLPROPERTIES") == 1
        return
    with pytest.raises(InvalidCommit, match="may only grow") as error:
        tx.commit("SET TBLPROPERTIES")
    assert lowered[0] in str(error.value)
