"""OPTIMIZE rewrites a live file whose path another engine's VACUUM would not know."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_txlog.engine.log.columns import adds_to_table
from airflow_txlog.engine.log.paths import misspelled
from airflow_txlog.jobs.operations.optimize.bins import compaction_bins
from tests.jobs.operations.optimize.test_bins import add, paths


@pytest.mark.parametrize(
    ("path", "is_misspelled"),
    [
        ("p=%C3%A9/f", True),
        ("p=%c3%a9/f", True),
        ("p=é/%2C", True),
        ("p=é/f", False),
        ("p=a%20b%253A/f", False),
        ("p=%C2%A0/f", False),
        ("file:/other/p=%C3%A9/f", False),  # a shallow clone's, in no folder of this table
        ("/other/p=%C3%A9/f", False),
    ],
)
def test_a_path_is_misspelled_where_java_would_write_it_otherwise(path: str, is_misspelled: bool) -> None:
    assert misspelled(pa.chunked_array([[path]])).to_pylist() == [is_misspelled]


def test_a_misspelled_file_is_rewritten_alone_and_however_large_it_is() -> None:
    files = adds_to_table(
        [
            add("p=%C3%A9/large", 5000, day="é"),
            add("p=ü/large", 5000, day="ü"),
            add("p=%C3%B6/alone", 1, day="ö"),
            add("p=%C3%A4/clustered", 1, day="ä", clustering_provider="liquid"),
            add("p=ä/alone", 1, day="ä"),
        ]
    )
    assert sorted(paths(compaction_bins(files, 1000))) == [
        ["p=%C3%A4/clustered", "p=ä/alone"],
        ["p=%C3%A9/large"],
        ["p=%C3%B6/alone"],
    ]
