"""Golden tables of the reference implementation: each reads to the rows that `deltalake` gives, or is refused by name.

Where `deltalake` cannot read a table that we can, the rows are those of its live Parquet files, or are asserted here.
The end of the run has a line a table: read, or refused and why. TXLOG_GOLDEN may name another folder of tables, of
which nothing is known: there a table may be refused by any name, and what reads must be what another reader makes of
it.
"""

from __future__ import annotations

import json
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
from tests.conftest import REPORTED
from tests.helpers.paths import GOLDEN
from tests.helpers.readers import holds_int96, rows_by_delta_rs, rows_by_files
from tests.helpers.rows import bag

# Tables that this release refuses, and by which error; the text must hold the second.
REFUSED: dict[str, tuple[type[errors.TxlogError], str]] = {
    "deltalog-invalid-protocol-version": (errors.UnsupportedFeature, "reader version 99"),
    "deltalog-state-reconstruction-from-checkpoint-missing-protocol": (errors.CorruptCheckpoint, "protocol"),
    "deltalog-state-reconstruction-without-metadata": (errors.CorruptTable, "metaData"),
    "no-delta-log-folder": (errors.TableNotFound, "no-delta-log-folder"),
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
        assert bag(rows) == bag(expected.select(rows.column_names))

    return check


def _widened(rows: pa.Table) -> None:
    """Each of its files holds the columns in one type; the table's is the widest."""
    found: list[pa.Table] = []
    for file in sorted((GOLDEN / "type-widening").glob("*.parquet")):
        read = pq.read_table(file)
        columns = [read[field.name].cast(field.type) for field in rows.schema]
        found.append(pa.table(columns, names=rows.column_names))
    assert bag(rows) == bag(pa.concat_tables(found))
    assert rows.num_rows == 2


# Tables that we read and `deltalake` does not.
CHECKED_HERE: dict[str, Callable[[pa.Table], None]] = {
    "basic-decimal-table": _decimals,
    "basic-with-vacuum-protocol-check-feature": _all_of_its_files("basic-with-vacuum-protocol-check-feature"),
    "type-widening": _widened,
    "v2-checkpoint-json": _all_of_its_files("v2-checkpoint-json"),
}


def _tables() -> list[Any]:
    if not GOLDEN.is_dir():
        reason = f"no golden tables at {GOLDEN} (set TXLOG_GOLDEN)"
        return [pytest.param("", id="none", marks=pytest.mark.skip(reason=reason))]
    return sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())


@pytest.mark.parametrize("name", _tables())
def test_golden(name: str, record_property: Callable[[str, object], None]) -> None:
    def say(what: str) -> None:
        record_property(REPORTED, f"golden {name}: {what}")

    folder = GOLDEN / name
    known = "TXLOG_GOLDEN" not in os.environ
    try:
        table = Table.open(str(folder))
        rows = None if name in LOG_ONLY and known else table.to_arrow()
    except (errors.UnsupportedFeature, errors.TableError) as refusal:
        if known:
            _check_refusal(name, refusal)
        elif not isinstance(refusal, errors.UnsupportedFeature):
            _check_nobody_reads_it(folder, refusal)
        say(f"refused ({type(refusal).__name__}: {_first_sentence(refusal)})")
        return
    assert not (known and name in REFUSED), "it reads: take it from REFUSED"
    if rows is None:
        say(_check_log_alone(name, table))
    elif known and name in CHECKED_HERE:
        CHECKED_HERE[name](rows)
        say(f"read, {rows.num_rows} rows, checked against its files")
    else:
        say(f"read, {rows.num_rows} rows, {_check_against_others(folder, table, rows)}")


def _check_refusal(name: str, refusal: errors.TxlogError) -> None:
    """Of the tables that we know, only those above may be refused, and for that reason."""
    if name not in REFUSED:
        raise refusal
    kind, text = REFUSED[name]
    assert isinstance(refusal, kind)
    assert text in str(refusal)
    assert not refusal.retryable


def _check_log_alone(name: str, table: Table) -> str:
    num_files, reason = LOG_ONLY[name]
    assert table.snapshot().num_files == num_files
    assert len(table.history()) == table.snapshot().version + 1
    with pytest.raises(errors.CorruptTable, match=reason):
        table.to_arrow()
    return f"read, the log alone ({num_files} files; its rows: {reason})"


def _check_nobody_reads_it(folder: Path, refusal: errors.TxlogError) -> None:
    """A table that delta-rs reads is not corrupt, and one that is not there it does not read either."""
    if rows_by_delta_rs(str(folder)) is not None:
        raise refusal


def _check_against_others(folder: Path, table: Table, rows: pa.Table) -> str:
    """Who says the same of the rows. A table that nobody else reads has as many rows as its log says."""
    expected = rows_by_delta_rs(str(folder))
    if expected is not None and not holds_int96(folder):
        assert sorted(expected.column_names) == sorted(rows.column_names)
        assert bag(expected.select(rows.column_names).cast(rows.schema)) == bag(rows)
        return "as deltalake has them"
    expected = rows_by_files(folder, rows.schema)
    if expected is not None:
        assert bag(expected) == bag(rows.select(expected.column_names).cast(expected.schema))
        return "as its Parquet files have them"
    files = table.snapshot().files()
    masked = [0 if vector is None else vector["cardinality"] for vector in files["deletion_vector"].to_pylist()]
    written = [json.loads(stats or "{}").get("numRecords") for stats in files["stats"].to_pylist()]
    assert None in written or sum(written) - sum(masked) == rows.num_rows
    return "and nobody else reads it" + ("" if None in written else ": as many as its log says")


def _first_sentence(error: errors.TxlogError) -> str:
    told = str(error).removeprefix(f"{type(error).__name__}: ")
    return told.split(". ")[0].replace(str(GOLDEN), "…")
