"""Several objects of JSON where Spark reads one."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_txlog.datafiles.json_objects import has_adjacent_objects, has_adjacent_objects_in
from airflow_txlog.datafiles.text_lines import BLOCK_BYTES, TextFormat

TEXTS = st.text("{}[]\"'\\ \n\ta:,", max_size=8)
INNER = st.dictionaries(TEXTS, TEXTS, max_size=2)
OBJECTS = st.dictionaries(TEXTS, TEXTS | INNER | st.lists(INNER, max_size=2), max_size=2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1}{"a": 2}', True),
        ('{"a": "x\\\\"} \t{"a": 2}', True),
        ('{"a": {"b": 1}}\n{"a": 2}', True),
        ("{'a': '\"'}{'a': 2}", True),
        ('[{"a": 1}, {"a": 2}]', False),
        ('{"a": "}{", "b": "\\"}{"}', False),
        ("{'a': '}{', 'b': \"'}{\"}", False),
        ('{"a": "the end of what was read }{', False),
        ('{"a": "the lines \n of a text }{"}', False),
        ('\ufeff{"a": 1}{"a": 2}', True),
        ('\xef\xbb\xbf [{"a": 1}{"a": 2}]', True),
        ('{"a": 1},', False),
        ("no JSON }{", False),
        ('{"a": 1}', False),
        ("", False),
    ],
)
def test_objects_one_after_another_are_found_outside_of_texts(text: str, expected: bool) -> None:
    assert has_adjacent_objects(pa.array(["{}", text])) is expected


@given(st.lists(OBJECTS, min_size=1, max_size=3), st.sampled_from([None, 1]), st.sampled_from(["", " ", "\n"]))
def test_only_several_objects_are_found(objects: list[object], indent: int | None, between: str) -> None:
    texts = [json.dumps(each, indent=indent) for each in objects]
    assert has_adjacent_objects(pa.array([between.join(texts)])) is (len(texts) > 1)
    assert not has_adjacent_objects(pa.array([json.dumps(objects, indent=indent)]))


@pytest.mark.parametrize("line_end", [None, ";"])
@pytest.mark.parametrize(("last", "expected"), [(b'{"a": 1}{"a": 2}', True), (b'{"a": "}{\xff"}', False)])
def test_each_line_of_a_file_is_looked_at(last: bytes, expected: bool, line_end: str | None) -> None:
    line = b'{"a": 1}' + (line_end or "\n").encode()
    data = line * (BLOCK_BYTES // len(line) + 1) + last
    text = TextFormat(encoding="latin-1", line_end=line_end)
    assert has_adjacent_objects_in(pa.BufferReader(data), text) is expected
