"""Golden tables of the reference implementation: each reads to the rows that `deltalake` gives, or is refused by name.

Where `deltalake` cannot read a table that we can, the rows are asserted here. The run prints a line a table (`-s`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table

GOLDEN = Path(os.environ.get("TXLOG_GOLDEN", Path(__file__).resolve().parents[3] / "shared" / "golden"))

# Tables that this release refuses, and by which error; the text must hold the second.
REFUSED: dict[str, tuple[type[errors.TxlogError], str]] = {
    "data-skipping-basic-stats-all-types-columnmapping-name": (errors.UnsupportedFeature, "columnMapping"),
    "deltalog-invalid-protocol-version": (errors.UnsupportedFeature, "reader version 99"),
    "deltalog-state-reconstruction-from-checkpoint-missing-protocol": (errors.CorruptCheckpoint, "protocol"),
    "deltalog-state-reconstruction-without-metadata": (errors.CorruptTable, "metaData"),
    "dv-partitioned-with-checkpoint": (errors.UnsupportedFeature, "deletionVectors"),
    "log-replay-dv-key-cases": (errors.UnsupportedFeature, "deletionVectors"),
    "no-delta-log-folder": (errors.TableNotFound, "no-delta-log-folder"),
    "table-with-columnmapping-mode-name": (errors.UnsupportedFeature, "columnMapping"),
    "type-widening": (errors.UnsupportedFeature, "typeWidening"),
    "versions-not-contiguous": (errors.LogGap, "00000000000000000001"),
}

# Tables whose log names files that were never made, or states no schema: the state reads (this many files), the rows
# cannot, and for this reason.
LOG_ONLY: dict[str, tuple[int, str]] = {
    "checkpoint": (1, "is not there"),
    "corrupted-last-checkpoint": (11, "states no schema"),
    "deltalog-commit-info": (1, "states no schema"),
}


def _decimals(rows: pa.Table) -> None:
    parts = {Decimal(text) for text in ("-2342342.23423", "0.00004", "234.00000", "2342222.23454")}
    assert set(rows.column("part").to_pylist()) == parts
    assert rows.num_rows == 4


def _all_of_its_files(name: str) -> Callable[[pa.Table], None]:
    """Every Parquet file of the table is live, and it has no partitions."""

    def check(rows: pa.Table) -> None:
        files = sorted((GOLDEN / name).glob("*.parquet"))
        expected = pa.concat_tables([pq.read_table(file) for file in files])
        assert _bag(rows) == _bag(expected.select(rows.column_names))

    return check


# Tables that we read and `deltalake` does not.
CHECKED_HERE: dict[str, Callable[[pa.Table], None]] = {
    "basic-decimal-table": _decimals,
    "basic-with-vacuum-protocol-check-feature": _all_of_its_files("basic-with-vacuum-protocol-check-feature"),
    "v2-checkpoint-json": _all_of_its_files("v2-checkpoint-json"),
}


def _tables() -> list[Any]:
    if not GOLDEN.is_dir():
        reason = f"no golden tables at {GOLDEN} (set TXLOG_GOLDEN)"
        return [pytest.param("", id="none", marks=pytest.mark.skip(reason=reason))]
    return sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())


def _bag(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))


@pytest.mark.parametrize("name", _tables())
def test_golden(name: str) -> None:
    folder = str(GOLDEN / name)
    if name in REFUSED:
        kind, text = REFUSED[name]
        with pytest.raises(kind, match=text) as caught:
            Table.open(folder)
        assert not caught.value.retryable
        print(f"golden {name}: refused ({type(caught.value).__name__}: {text})")
        return
    try:
        table = Table.open(folder)
    except (errors.UnsupportedFeature, errors.TableError) as refusal:
        # Of the tables that we know, only those above may be refused; of others, whatever is refused by name.
        if "TXLOG_GOLDEN" not in os.environ:
            raise
        print(f"golden {name}: refused ({type(refusal).__name__}: {refusal})")
        return
    if name in LOG_ONLY:
        num_files, reason = LOG_ONLY[name]
        assert table.snapshot().num_files == num_files
        assert len(table.history()) == table.snapshot().version + 1
        with pytest.raises(errors.CorruptTable, match=reason):
            table.to_arrow()
        print(f"golden {name}: read (the log alone)")
        return
    rows = table.to_arrow()
    if name in CHECKED_HERE:
        CHECKED_HERE[name](rows)
        print(f"golden {name}: read, {rows.num_rows} rows, checked against its files")
        return
    deltalake = pytest.importorskip("deltalake")
    expected = deltalake.DeltaTable(folder).to_pyarrow_table()
    assert _bag(rows.select(expected.column_names)) == _bag(expected)
    print(f"golden {name}: read, {rows.num_rows} rows, as deltalake has them")
