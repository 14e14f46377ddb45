"""The paths in actions, as keys."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_txlog.datafiles.partitioning import encode_add_path
from airflow_txlog.engine.log.paths import canonical_path, canonical_paths
from airflow_txlog.locations import is_inside

ROOT = "file:///lake/t"

SEGMENTS = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda text: text not in (".", "..")
)
RELATIVE = st.lists(SEGMENTS, min_size=1, max_size=4).map("/".join)


@given(RELATIVE)
@example("_2=bar+%2521/part-0.parquet")
@example("a:b/c:/d")
@example("file:/x")
@example("%")
@example("day=2024-01-01 10%3A00%3A00/é \U0001f600.parquet")
def test_what_encode_add_path_writes_is_read_back_as_the_same_file(path: str) -> None:
    """Protocol: "path ... should be interpreted as a URI-encoded path"."""
    assert canonical_path(encode_add_path(path), ROOT) == path


@given(RELATIVE)
def test_c7_a_file_has_one_key_whichever_way_its_path_is_written(path: str) -> None:
    """Protocol notes, section 5: "/x/y" equals "file:/x/y", percent-decoded."""
    wire = encode_add_path(path)
    ways = [
        wire,
        f"/lake/t/{wire}",
        f"file:/lake/t/{wire}",
        f"file:///lake/t/{wire}",
        f"file://localhost/lake/t/{wire}",
    ]
    assert {canonical_path(way, ROOT) for way in ways} == {path}
    outside = {canonical_path(f"{prefix}/other/{wire}", ROOT) for prefix in ("", "file:", "file://", "FILE://")}
    assert outside == {f"file:///other/{path}"}
    assert is_inside(path) or path.startswith("/")


@given(
    st.lists(st.one_of(RELATIVE, RELATIVE.map(encode_add_path), RELATIVE.map(lambda p: f"file:/lake/t/{p}"), st.none()))
)
def test_the_column_form_agrees_with_the_scalar_form(paths: list[str | None]) -> None:
    keys = [path if path is None else canonical_path(path, ROOT) for path in paths]
    # Few paths are read one by one, and many by Arrow.
    for times in (1, 5):
        column = pa.chunked_array([pa.array(times * paths, pa.string())])
        assert canonical_paths(column, ROOT).to_pylist() == times * keys


@pytest.mark.parametrize(
    ("wire", "key"),
    [
        ("part-0.parquet", "part-0.parquet"),
        ("_2=bar+%252521/part-0.parquet", "_2=bar+%2521/part-0.parquet"),  # decoded once, not until nothing is left
        ("t=10%253A00%253A00/f", "t=10%3A00%3A00/f"),
        ("a+b/c%20d", "a+b/c d"),  # "+" is a plus sign
        ("a b/c", "a b/c"),  # some writers do not encode: nothing to decode
        ("100%/f", "100%/f"),
        ("a/./b//c/", "a/b/c"),
        ("a/../b", "b"),
        ("../s/f", "file:///lake/s/f"),
        ("../t/f", "f"),
        ("../../../../etc/f", "file:///etc/f"),
        ("%2E%2E/s/f", "file:///lake/s/f"),  # an encoded ".." leaves the table just the same
        ("a:b/f", "a:b/f"),  # a colon alone makes no scheme
        ("/lake/t2/f", "file:///lake/t2/f"),  # a sibling whose name begins like the table's
        ("/lake/t", "file:///lake/t"),
        ("s3://bucket/t/f", "s3://bucket/t/f"),
        ("s3a://bucket/t/f%20g", "s3://bucket/t/f g"),
        ("S3N://bucket/t/f", "s3://bucket/t/f"),
    ],
)
def test_wire_path_has_this_key(wire: str, key: str) -> None:
    assert canonical_path(wire, ROOT) == key


@pytest.mark.parametrize(
    ("root", "wire", "key"),
    [
        ("memory://lake/t", "memory://lake/t/f", "f"),
        ("memory://lake/t", "memory:///lake/t/f", "memory:///lake/t/f"),
        ("memory://lake/t", "/lake/t/f", "file:///lake/t/f"),
        ("memory://lake/t", "../s/f", "memory://lake/s/f"),
        ("s3://bucket/t", "s3a://bucket/t/f", "f"),
        ("s3://bucket/t", "s3://other/t/f", "s3://other/t/f"),
        ("file:///", "/x/f", "x/f"),
        ("file:///lake/my table", "file:///lake/my%20table/f", "f"),
    ],
)
def test_absolute_paths_are_relative_to_the_root_that_holds_them(root: str, wire: str, key: str) -> None:
    assert canonical_path(wire, root) == key
