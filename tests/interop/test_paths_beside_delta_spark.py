"""delta-spark's VACUUM beside us: it knows every live file of ours, whatever stands in the partition values.

It compares the paths of the log with those of a listing as texts, so this is a test of spelling.
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest

from airflow_txlog.datafiles.partitioning import decode_add_path, encode_add_path
from airflow_txlog.engine import Table
from tests.helpers.delta_spark import DeltaSpark
from tests.helpers.rows import append
from tests.interop.reference.plain import plain_rows
from tests.interop.test_deltalake_reads_ours import PARTITION_STRINGS

pytestmark = [pytest.mark.spark, pytest.mark.slow("delta-spark in a JVM of its own")]

COLUMN = "größe:1%\u00a0é"
SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field(COLUMN, pa.string())])
VALUES = [
    *PARTITION_STRINGS,
    *("Zoë", "e\u0301", "日本語", "עברית", "🚀", "ﬁ", "İ", "\u200b", "\ufeff", "\u180e", "\ue000"),
    *("a\u00a0b", "\u1680", "\u2003", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\x80", "\x85", "\x9f"),
    *("-_.!~*'()", ":@&=+$,;", '<>"|`', "%C3%A9", "%", ".", "..", "é/%2F"),
]
ROWS = pa.table({"id": range(len(VALUES)), COLUMN: VALUES}, schema=SCHEMA)


def live_paths(table: Table) -> list[str]:
    return table.snapshot().files().column("path").to_pylist()


def in_the_old_spelling(table: Table, version: int) -> None:
    """The paths of a commit as this engine wrote them once: everything beyond ASCII percent-encoded."""
    commit = Path(table.uri.removeprefix("file://")) / "_delta_log" / f"{version:020d}.json"
    lines = [json.loads(line) for line in commit.read_text().split("\n") if line]
    for line in lines:
        if "add" in line:
            line["add"]["path"] = quote(decode_add_path(line["add"]["path"]), safe="/=+,;@&$!~'()*")
    commit.write_text("\n".join(map(json.dumps, lines)))


@pytest.mark.long("statements of delta-spark, seconds each")
def test_a_vacuum_of_delta_spark_leaves_every_live_file(delta: DeltaSpark, uri: str) -> None:
    table = Table.create(uri, SCHEMA, [COLUMN])
    append(table, ROWS)
    # What no commit names is taken, so that the listing is known to have reached these folders.
    orphans = [Path(uri) / decode_add_path(path).replace("part-", "orphan-") for path in live_paths(table)]
    for orphan in orphans:
        orphan.write_bytes(b"")
    delta.run(f"VACUUM delta.`{uri}` RETAIN 0 HOURS")
    assert not [orphan for orphan in orphans if orphan.exists()]
    assert plain_rows(Table.open(uri).to_arrow()) == plain_rows(ROWS)
    assert delta.read(uri)["rows"] == plain_rows(ROWS)


@pytest.mark.long("statements of delta-spark, seconds each")
def test_delta_spark_spells_paths_as_we_do(delta: DeltaSpark, uri: str) -> None:
    append(Table.create(uri, SCHEMA, [COLUMN]), ROWS)
    delta.run(f"UPDATE delta.`{uri}` SET id = id + 1000")
    paths = live_paths(Table.open(uri))
    assert len(paths) == len(VALUES)
    assert [encode_add_path(decode_add_path(path)) for path in paths] == paths


@pytest.mark.long("statements of delta-spark, seconds each")
def test_an_optimize_mends_a_table_whose_paths_delta_spark_does_not_know(delta: DeltaSpark, uri: str) -> None:
    rows = ROWS.rename_columns(["id", "p"])
    table = Table.create(uri, rows.schema, ["p"])
    append(table, rows)
    in_the_old_spelling(table, 1)
    table = Table.open(uri)
    assert plain_rows(table.to_arrow()) == plain_rows(rows)
    before = live_paths(table)
    doomed = delta.sql(f"VACUUM delta.`{uri}` RETAIN 0 HOURS DRY RUN")
    assert doomed, "delta-spark knows these paths now: there is nothing to mend"
    result = delta.job(operation="optimize", table_uri=uri, arguments={})
    assert result["status"] == "committed", result["error"]
    # Files that it knew are left alone: one file of a partition is nothing to compact.
    after = live_paths(table)
    assert len(set(before) - set(after)) == len(doomed)
    delta.run(f"VACUUM delta.`{uri}` RETAIN 0 HOURS")
    assert plain_rows(Table.open(uri).to_arrow()) == plain_rows(rows)
    assert delta.job(operation="optimize", table_uri=uri, arguments={})["status"] != "committed"
