"""Commit files, to and from actions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_txlog.engine.log.actions import (
    Action,
    Add,
    Metadata,
    Protocol,
    decode_commit,
    encode_commit,
)
from airflow_txlog.errors import CorruptCommit, InvalidCommit
from tests.engine.log.log_strategies import ADDS, INT64, MAPS, OTHERS, REMOVES, TEXT

PATH = "_delta_log/00000000000000000007.json"


@given(
    st.one_of(st.none(), st.dictionaries(TEXT, st.one_of(TEXT, INT64, st.booleans(), MAPS), min_size=1)),
    st.lists(st.one_of(ADDS, REMOVES, OTHERS), min_size=1, max_size=8),
)
def test_what_is_written_is_read_back(info: dict[str, Any] | None, actions: list[Action]) -> None:
    commit = decode_commit(7, encode_commit(info, actions), PATH)
    assert commit.version == 7
    assert commit.info == info
    read = [*commit.adds, *commit.removes, *commit.cdc, *commit.transactions, *commit.domains]
    assert sorted(map(repr, read)) == sorted(map(repr, actions))
    assert commit.adds == [action for action in actions if isinstance(action, Add)]


def test_a_commit_is_one_action_a_line_with_commit_info_first() -> None:
    data = encode_commit(
        {"operation": "WRITE"},
        [
            Protocol(min_reader_version=1, min_writer_version=2),
            Metadata(id="m", schema_string="{}", partition_columns=[]),
            Add(path="a b", partition_values={"p": None}, size=1, modification_time=2, data_change=True),
        ],
    )
    assert data.endswith(b"\n")
    lines = [json.loads(line) for line in data.splitlines()]
    assert lines == [
        {"commitInfo": {"operation": "WRITE"}},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "m",
                "schemaString": "{}",
                "partitionColumns": [],
                "format": {"provider": "parquet", "options": {}},
                "configuration": {},
                "name": None,
                "description": None,
                "createdTime": None,
            }
        },
        {"add": {"path": "a b", "partitionValues": {"p": None}, "size": 1, "modificationTime": 2, "dataChange": True}},
    ]


def test_unknown_actions_and_fields_are_stepped_over() -> None:
    commit = decode_commit(
        7,
        b'{"sidecar":{"path":1}}\n'
        b'{"add":{"path":"a","partitionValues":{},"size":1,"modificationTime":1,"dataChange":true,"new":[{}],"tags":null}}\n'
        b'{"commitInfo":{"operationParameters":{"x":1,"y":[true,null]}},"add":null}\n',
        PATH,
    )
    assert [add.path for add in commit.adds] == ["a"]
    assert commit.info == {"operationParameters": {"x": 1, "y": [True, None]}}


def test_lines_may_end_in_any_newline_and_the_last_in_none() -> None:
    commit = decode_commit(7, b'{"txn":{"appId":"a","version":1}}\r\n\n{"txn":{"appId":"b","version":2}}', PATH)
    assert [(txn.app_id, txn.version) for txn in commit.transactions] == [("a", 1), ("b", 2)]


GOOD = b'{"commitInfo":{"operation":"WRITE"}}\n'


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", None),
        (b"\n \n", None),
        (GOOD + b'{"add":{"path":"a","partitionValues":{},"size":1,"modificat', 2),  # torn
        (GOOD + GOOD[:-2], 2),
        (b"not json\n", 1),
        (GOOD + b'{"add":{"path":"\xff","partitionValues":{},"size":1,"modificationTime":1,"dataChange":true}}', 2),
        (GOOD + b'{"ofTheFuture":{"path":"\xff"}}', 2),
        (GOOD + b'{"add":{"path":"a","partitionValues":{},"size":"1","modificationTime":1,"dataChange":true}}\n', 2),
        (GOOD + b'{"add":{"path":"a","size":1,"modificationTime":1,"dataChange":true}}\n', 2),
        (GOOD + b'{"add":{"path":"a","partitionValues":{"p":1},"size":1,"modificationTime":1,"dataChange":true}}', 2),
        (GOOD + b'{"remove":{"dataChange":true}}\n', 2),
        (GOOD + b'{"protocol":{"minReaderVersion":"1","minWriterVersion":2}}\n', 2),
        (GOOD + b"\x00" * 512, 2),  # what a crash leaves of a file whose blocks were never written
        (b'[{"commitInfo":{}}]\n', 1),
        (b'{"txn":{"appId":"a","version":9223372036854775808}}\n', 1),  # one more than 64 bits hold
        (GOOD + b'{"add":{"path":"a","partitionValues":{},"size":1.5,"modificationTime":1,"dataChange":true}}\n', 2),
        (GOOD + b"null\n", 2),
        (GOOD + GOOD, None),
    ],
)
def test_a_corrupt_commit_says_where(data: bytes, line: int | None) -> None:
    with pytest.raises(CorruptCommit) as caught:
        decode_commit(7, data, PATH)
    assert (caught.value.path, caught.value.line) == (PATH, line)
    assert PATH in str(caught.value)


def test_a_commit_of_nothing_is_not_written() -> None:
    with pytest.raises(InvalidCommit):
        encode_commit(None, [])
