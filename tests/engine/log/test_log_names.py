"""The names of the log's files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_txlog.engine.log.names import (
    MAX_VERSION,
    LogFile,
    LogKind,
    checkpoint_name,
    commit_name,
    parse_name,
    version_prefix,
)

UUID = "80a083e8-7026-4e79-81be-64bd76c43a11"
ZEROS = "0" * 20


@given(st.integers(0, MAX_VERSION))
def test_every_name_made_is_understood(version: int) -> None:
    assert parse_name(commit_name(version)) == LogFile(kind=LogKind.COMMIT, version=version)
    assert parse_name(checkpoint_name(version)) == LogFile(kind=LogKind.CLASSIC_CHECKPOINT, version=version)


@given(st.integers(0, MAX_VERSION - 1))
def test_names_sort_as_their_versions_do(version: int) -> None:
    assert checkpoint_name(version) < commit_name(version) < version_prefix(version + 1) < commit_name(version + 1)


@given(st.text(max_size=60))
def test_any_text_at_all_is_parsed_without_an_error(name: str) -> None:
    found = parse_name(name)
    assert found is None or 0 <= found.version <= MAX_VERSION


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"{ZEROS}.json", LogFile(kind=LogKind.COMMIT, version=0)),
        (f"_delta_log/{ZEROS}.json", LogFile(kind=LogKind.COMMIT, version=0)),
        (f"{ZEROS}.crc", LogFile(kind=LogKind.CHECKSUM, version=0)),
        (
            f"{ZEROS}.checkpoint.0000000002.0000000003.parquet",
            LogFile(kind=LogKind.MULTIPART_CHECKPOINT, version=0, part=2, parts=3),
        ),
        (f"{ZEROS}.checkpoint.{UUID}.json", LogFile(kind=LogKind.V2_CHECKPOINT, version=0, unique_id=UUID)),
        (f"{ZEROS}.checkpoint.{UUID}.parquet", LogFile(kind=LogKind.V2_CHECKPOINT, version=0, unique_id=UUID)),
        (
            f"{ZEROS}.00000000000000000009.compacted.json",
            LogFile(kind=LogKind.COMPACTED, version=0, end_version=9),
        ),
    ],
)
def test_each_kind_of_name_is_understood(name: str, expected: LogFile) -> None:
    assert parse_name(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "",
        "_last_checkpoint",
        "0.json",
        f"{ZEROS}0.json",
        f"{ZEROS}.json.tmp",
        f".{ZEROS}.json.crc",
        f"{ZEROS}.json\n",
        f"{ZEROS}.checkpoint.0000000000.0000000003.parquet",  # parts are counted from 1
        f"{ZEROS}.checkpoint.0000000004.0000000003.parquet",
        f"{ZEROS}.checkpoint.not-a-uuid.parquet",
        f"{ZEROS}.{ZEROS}.compacted.json",  # a range of one commit is not a range
        f"_delta_log/_staged_commits/{ZEROS}.json",
        f"_delta_log/_sidecars/{ZEROS}.checkpoint.parquet",
        f"{'9' * 20}.json",  # beyond 2^63 - 1
        f"{'٠' * 20}.json",  # digits, but not ASCII
    ],
)
def test_a_name_that_is_not_of_the_log_is_ignored(name: str) -> None:
    assert parse_name(name) is None


@pytest.mark.parametrize("version", [-1, MAX_VERSION + 1])
def test_a_version_outside_the_range_has_no_name(version: int) -> None:
    with pytest.raises(ValueError, match="version"):
        commit_name(version)
