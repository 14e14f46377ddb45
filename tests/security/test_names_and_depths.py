"""What no file can be called, no schema nests and no writer counts to: typed errors, and a VACUUM that goes on."""

from __future__ import annotations

import decimal
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.contract.parameters import encode_parameters
from airflow_txlog.engine import Table, changes_since
from airflow_txlog.engine.log.names import MAX_VERSION, checkpoint_name, commit_name
from airflow_txlog.errors import CorruptDataFile, CorruptTable, InvalidJobSpec, VersionNotFound
from tests.helpers.specs import job_spec

SCHEMA = pa.schema([("id", pa.int64())])
NO_FILE = {"a NUL": "a%00b", "a name that is too long": "x" * 300, "a path that is too long": "a/" * 3000 + "b"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Table.create(tmp_path / "t", SCHEMA)
    return tmp_path / "t"


def _commit(root: Path, version: int, *actions: dict[str, Any]) -> None:
    (root / commit_name(version)).write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.parametrize("name", NO_FILE)
def test_a_live_file_of_a_name_that_no_file_can_have_is_a_corrupt_data_file(root: Path, name: str) -> None:
    add = {"path": NO_FILE[name], "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True}
    _commit(root, 1, {"add": add})
    with pytest.raises(CorruptDataFile, match=r"cannot be opened|is not there"):
        Table.open(root).to_arrow()


@pytest.mark.parametrize("mode", ["full", "lite"])
@pytest.mark.parametrize("name", NO_FILE)
def test_vacuum_passes_over_a_tombstone_of_a_name_that_no_file_can_have(root: Path, name: str, mode: Any) -> None:
    removed = root / "removed.parquet"
    removed.write_bytes(b"x")
    named = [NO_FILE[name], "removed.parquet"]
    _commit(root, 1, *({"remove": {"path": path, "dataChange": True, "deletionTimestamp": 1000}} for path in named))
    for version in (0, 1):
        os.utime(root / commit_name(version), (1 + version, 1 + version))
    table = Table.open(root)
    assert [Path(uri).name for uri in table.vacuum(mode=mode, dry_run=True).files] == ["removed.parquet"]
    assert table.vacuum(mode=mode).deleted_files == 1
    assert not removed.exists()


@pytest.mark.parametrize("kind", ["struct", "array", "map"])
@pytest.mark.parametrize("depth", [101, 300, 5000])
def test_a_schema_that_nests_too_deeply_is_refused_by_that_name(root: Path, depth: int, kind: str) -> None:
    wrapped: dict[str, tuple[str, str]] = {
        "struct": ('{"type":"struct","fields":[{"name":"a","nullable":true,"metadata":{},"type":', "}]}"),
        "array": ('{"type":"array","containsNull":true,"elementType":', "}"),
        "map": ('{"type":"map","keyType":"long","valueContainsNull":true,"valueType":', "}"),
    }
    head, tail = wrapped[kind]
    deep = head * depth + '"long"' + tail * depth
    schema = '{"type":"struct","fields":[{"name":"c","nullable":true,"metadata":{},"type":' + deep + "}]}"
    lines = [json.loads(line) for line in (root / commit_name(0)).read_text().splitlines()]
    for line in lines:
        if "metaData" in line:
            line["metaData"]["schemaString"] = schema
    _commit(root, 0, *lines)
    with pytest.raises(CorruptTable, match=r"nested too deeply: more than 100 types"):
        Table.open(root).snapshot().schema  # noqa: B018


def test_a_schema_of_ninety_levels_is_read_written_and_checkpointed(tmp_path: Path) -> None:
    deep: pa.DataType = pa.int64()
    for _ in range(90):
        deep = pa.struct([("a", deep)])
    table = Table.create(tmp_path / "deep", pa.schema([("c", deep)]))
    table.checkpoint()
    assert Table.open(table.uri).snapshot().schema.field("c").type == deep


QUESTIONS: dict[str, Callable[[Table], Any]] = {
    "a commit": lambda table: table.begin(),
    "a vacuum": lambda table: table.vacuum(),
    "a restore": lambda table: table.restore(0),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_checkpoint_of_the_last_version_there_is_makes_writing_a_typed_error(root: Path, question: str) -> None:
    Table.open(root).checkpoint()
    shutil.copy(root / checkpoint_name(0), root / checkpoint_name(MAX_VERSION))
    table = Table.open(root)
    assert table.snapshot().version == MAX_VERSION
    with pytest.raises(CorruptTable, match=rf"by the name of {checkpoint_name(MAX_VERSION)}, and no version can"):
        QUESTIONS[question](table)


def test_changes_of_a_log_that_claims_a_far_version_are_refused_at_once(root: Path) -> None:
    Table.open(root).checkpoint()
    shutil.copy(root / checkpoint_name(0), root / checkpoint_name(MAX_VERSION))
    with pytest.raises(VersionNotFound):
        changes_since(Table.open(root).snapshot(), 0)


def test_a_file_of_the_log_with_a_number_beyond_all_versions_is_another_programs(root: Path) -> None:
    (root / "_delta_log" / f"{'9' * 20}.json").write_text("{")
    table = Table.open(root)
    assert table.begin().commit("WRITE", {}) >= 0
    table.clean_log()
    table.vacuum()


# --- parameters -------------------------------------------------------------------------------------------------------

TOO_LARGE = {
    "200 bits": 2**200,
    "64 bits": 2**63,
    "below 64 bits": -(2**63) - 1,
    "in a list": [1, 2**200],
    "a Decimal of 39 digits": decimal.Decimal("1" * 39),
    "a Decimal of a large exponent": decimal.Decimal("1e400"),
    "no number": decimal.Decimal("NaN"),
    "an infinite number": decimal.Decimal("-Infinity"),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_parameter_beyond_the_types_of_sql_is_refused_by_its_name_and_not_its_value(name: str) -> None:
    value = TOO_LARGE[name]
    with pytest.raises(InvalidJobSpec, match=r"parameters\.subject(\[1\])? is") as error:
        encode_parameters({"subject": value})
    assert error.value.argument == ("parameters.subject[1]" if name == "in a list" else "parameters.subject")
    plain = {"$decimal": str(value)} if isinstance(value, decimal.Decimal) else value
    arguments = {"predicate": "id = :subject", "parameters": {"subject": plain}}
    with pytest.raises(InvalidJobSpec, match=r"parameters\.subject must be") as refused:
        job_spec(operation="delete", table_uri="/lake/t", arguments=arguments)
    for shown in (error.value, refused.value):
        assert str(2**200) not in str(shown)
        assert "1" * 39 not in str(shown)


def test_parameters_up_to_the_ends_of_the_types_pass() -> None:
    given = [2**63 - 1, -(2**63), decimal.Decimal("9" * 38), decimal.Decimal("1e37"), decimal.Decimal("0.00"), True]
    arguments = {"predicate": "id IN (:a)", "parameters": encode_parameters({"a": given})}
    spec = job_spec(operation="delete", table_uri="/lake/t", arguments=arguments)
    assert spec.operation.bound_parameters == {"a": given}
