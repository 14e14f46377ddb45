"""Readers whose files a DELETE removes and a VACUUM deletes: they read on where they may, and are told the cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_txlog.engine import Table, table_api
from airflow_txlog.errors import CorruptDataFile, FilesMissing
from tests.helpers.jobs import ids, rows
from tests.helpers.rows import make_table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make_table(tmp_path / "t", rows(2), rows(2, start=50))


def forget(table: Table) -> None:
    """Remove the first file, and delete it from the store."""
    tx = table.begin()
    tx.remove(table.snapshot(1).files())
    tx.commit("DELETE", {"predicate": "[]"})
    table.vacuum(retention=0, check_retention=False)


def test_a_reader_of_the_latest_version_reads_the_one_that_overtook_it(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_rows, overtaken = table_api.read_rows, []

    def overtake(*arguments: object) -> object:
        if not overtaken:
            overtaken.append(True)
            forget(table)
        return read_rows(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(table_api, "read_rows", overtake)
    assert ids(table) == [50, 51]
    assert overtaken


def test_a_version_whose_files_were_vacuumed_is_no_damaged_table(table: Table) -> None:
    forget(table)
    with pytest.raises(FilesMissing, match=r"version 2 .* cannot be read any more.* latest version is 5") as caught:
        table.to_arrow(version=2)
    assert caught.value.facts["examples"][0].endswith(".parquet")


def test_a_file_that_the_latest_version_names_and_that_is_gone_is_damage(table: Table, tmp_path: Path) -> None:
    next((tmp_path / "t").glob("*.parquet")).unlink()
    for version in (None, 2):
        with pytest.raises(CorruptDataFile):
            table.to_arrow(version=version)
