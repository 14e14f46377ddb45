"""Matches of a merge, packed by file: few of them are unpacked once, and the answers do not depend on that."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.datafiles.deletion_vectors.positions import PAIRS, pack_pairs, unpack_pairs
from airflow_txlog.jobs.resume.memory import FileMatches
from airflow_txlog.jobs.rows import matches
from airflow_txlog.jobs.rows.matches import Matches


def answers(found: Matches) -> list[Any]:
    acted = found.acted()
    return [
        found.met_by_many(),
        found.source_rows.num_rows,
        found.count([0]),
        {file: rows.data for file, rows in acted.positions.items()},
        acted.pairs,
    ]


@pytest.mark.parametrize(("most_rows", "times"), [(6, 2), (5, 8)])
def test_pairs_are_unpacked_once_for_each_file_if_they_are_few(
    monkeypatch: pytest.MonkeyPatch, most_rows: int, times: int
) -> None:
    files = {
        file: FileMatches(pairs=pack_pairs(pa.table([[1, 4, 4], [7, 8, 9], [0, 0, None]], schema=PAIRS)))
        for file in (0, 3)
    }
    expected, unpacked = answers(Matches(files=files)), []

    def counted(data: bytes) -> pa.Table:
        unpacked.append(data)
        return unpack_pairs(data)

    monkeypatch.setattr(matches, "unpack_pairs", counted)
    monkeypatch.setattr(matches, "_UNPACKED_PAIRS", most_rows)
    assert answers(Matches(files=files)) == expected
    assert expected[:3] == [(2, (0, 4)), 3, 4]
    assert len(unpacked) == times
