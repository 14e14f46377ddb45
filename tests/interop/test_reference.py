"""Tables that delta-spark made, read row for row as it reads them, at every version, or refused by name.

The tables lie in `reference/`, each with what delta-spark read from it (`reference/generate.py` makes them). A table in
REFUSED that reads is a failure too, so that the list says what is true.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table
from airflow_txlog.engine.table.schema.schema import schema_to_json
from airflow_txlog.storage import PLAIN, Access, open_store
from tests.helpers.depth import depth
from tests.interop.reference.plain import kept_rows, plain_rows, plain_type
from tests.interop.reference.workbench import ROOT_PLACEHOLDER

REFERENCE = Path(__file__).resolve().parent / "reference"
NAMES = sorted(path.parent.name for path in REFERENCE.glob("*/expected.json"))

# What this engine refuses, and the words that name the reason. Versions without that reason must read all the same.
CALENDAR = (errors.UnsupportedFeature, "Julian calendar")
REFUSED: dict[str, tuple[type[errors.TxlogError], str]] = {
    "geometry": (errors.UnsupportedFeature, "type 'geometry(OGC:CRS84)'"),
    "legacy_calendar": CALENDAR,
    "legacy_calendar_int96": CALENDAR,
}
if int(pa.__version__.partition(".")[0]) < 22:
    REFUSED["variant"] = (errors.UnsupportedFeature, "does not know")

# The properties that DESCRIBE DETAIL shows and that are no part of the metadata's configuration.
NOT_CONFIGURATION = {"delta.minReaderVersion", "delta.minWriterVersion"}

# Values that equal themselves in Python as in Spark.
COMPARABLE = (int, str, dt.date, decimal.Decimal)


def expected_of(name: str, root: Path | None = None) -> dict[str, Any]:
    """What delta-spark said of the table, which is taken to lie in `root`."""
    text = (REFERENCE / name / "expected.json").read_text()
    found: dict[str, Any] = json.loads(text if root is None else text.replace(ROOT_PLACEHOLDER, str(root)))
    return found


def folder_of(name: str, tmp_path: Path) -> Path:
    """The fixture's table, moved where its log holds absolute paths, which then lead into the moved table."""
    kept = REFERENCE / name / "table"
    holding = [file for file in kept.rglob("*.json") if ROOT_PLACEHOLDER in file.read_text()]
    if holding:
        kept = shutil.copytree(kept, tmp_path / name / "table")
        for file in kept.rglob("*.json"):
            file.write_text(file.read_text().replace(ROOT_PLACEHOLDER, str(tmp_path)))
    return kept / str(expected_of(name)["table"])


def schema_of(snapshot: Any) -> Any:
    return plain_type(json.loads(schema_to_json(snapshot.delta_schema)))


def refusal(name: str, error: errors.TxlogError) -> bool:
    """Whether this is the refusal that REFUSED names for the table."""
    kind, text = REFUSED.get(name, (None, ""))
    return kind is not None and isinstance(error, kind) and text in str(error) and not error.retryable


def test_there_are_tables() -> None:
    assert len(NAMES) >= 50
    assert set(REFUSED) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_version_is_read_as_delta_spark_reads_it(name: str, tmp_path: Path) -> None:
    folder, expected = folder_of(name, tmp_path), expected_of(name)
    refused = []
    for version, wanted in expected["versions"].items():
        try:
            # Not Table.open: an older version may be readable though the newest is not.
            table = Table(open_store(folder, Access(allow_absolute_paths=True)))
            snapshot = table.snapshot(int(version))
            rows = kept_rows(table.to_arrow(version=int(version)))
        except errors.TxlogError as error:
            if refusal(name, error):
                refused.append(int(version))
            elif "error" not in wanted:
                raise
            continue
        assert "error" not in wanted, f"version {version} was read, and delta-spark raises {wanted['error']}"
        assert schema_of(snapshot) == wanted["schema"], version
        assert rows == wanted["rows"], version
    if name in REFUSED:
        assert refused, "every version of it reads: take it from REFUSED"
    else:
        newest = Table.open(folder, allow_absolute_paths=True)
        assert kept_rows(newest.to_arrow()) == expected["versions"][str(expected["newest"])]["rows"]


@pytest.mark.parametrize("name", NAMES)
def test_the_history_is_told_as_delta_spark_tells_it(name: str, tmp_path: Path) -> None:
    expected = expected_of(name, tmp_path)["history"]
    found = Table(open_store(folder_of(name, tmp_path), PLAIN)).history()
    assert [commit["version"] for commit in found] == [commit["version"] for commit in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert {field: _as_described(ours.get(field)) for field in theirs} == {
            field: _as_described(value) for field, value in theirs.items()
        }


def _as_described(value: Any) -> Any:
    """DESCRIBE HISTORY has parameters and metrics as text, and nothing for an empty map."""
    if isinstance(value, dict):
        shown = {key: inner if isinstance(inner, str) else json.dumps(inner) for key, inner in value.items()}
        return shown or None
    return value


@pytest.mark.parametrize("name", NAMES)
def test_the_metadata_is_as_delta_spark_describes_it(name: str, tmp_path: Path) -> None:
    folder, expected = folder_of(name, tmp_path), expected_of(name)["detail"]
    try:
        snapshot = Table.open(folder, allow_absolute_paths=True).snapshot()
    except errors.TxlogError as error:
        if not refusal(name, error):
            raise
        return
    protocol, metadata = snapshot.protocol, snapshot.metadata
    assert (metadata.id, metadata.name, metadata.description) == tuple(
        expected[field] for field in ("id", "name", "description")
    )
    assert list(snapshot.partition_columns) == expected["partitionColumns"]
    assert snapshot.num_files == expected["numFiles"]
    assert sum(snapshot.files().column("size").to_pylist()) == expected["sizeInBytes"]
    assert (protocol.min_reader_version, protocol.min_writer_version) == (
        expected["minReaderVersion"],
        expected["minWriterVersion"],
    )
    if protocol.min_writer_version >= 7:
        listed = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
        assert sorted(listed) == sorted(expected["tableFeatures"])
    assert metadata.configuration == {
        name: value for name, value in expected["properties"].items() if name not in NOT_CONFIGURATION
    }


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("in_commit_timestamps")])
def test_every_version_is_found_by_the_time_of_its_commit(name: str, tmp_path: Path) -> None:
    table = Table.open(folder_of(name, tmp_path), allow_absolute_paths=True)
    told = [commit for commit in table.history() if "inCommitTimestamp" in commit]
    assert told
    for commit in told:
        assert table.snapshot(timestamp=commit["inCommitTimestamp"]).version == commit["version"]


@pytest.mark.seeded
@pytest.mark.parametrize("name", sorted(set(NAMES) - set(REFUSED)))
def test_no_row_is_lost_by_what_delta_spark_s_statistics_and_partitions_say(name: str, tmp_path: Path) -> None:
    """Values of every column find their rows, whatever form the statistics have, and however the type changed."""
    table = Table.open(folder_of(name, tmp_path), allow_absolute_paths=True)
    rows = table.to_arrow()
    asked = 0
    for column in rows.column_names:
        values = list({value for value in rows[column].to_pylist() if isinstance(value, COMPARABLE)})
        for value in sorted(values)[:: max(1, len(values) // depth(2, 6))]:
            try:
                found = table.to_arrow(f"`{column}` = :value", parameters={"value": value})
            except errors.UnsupportedPredicate:
                continue
            asked += 1
            wanted = rows.filter(pa.array([held == value for held in rows[column].to_pylist()]))
            assert plain_rows(found) == plain_rows(wanted), (column, value)
    assert asked or not rows.num_rows
