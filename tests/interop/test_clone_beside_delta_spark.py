"""Shallow clones beside delta-spark's own: of the same tables the same protocol, metadata, files and domains.

delta-spark reads, changes and vacuums ours, and delta-rs reads them. Skipped where delta-spark's jars are not there.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.paths import canonical_path
from tests.helpers.delta_spark import DeltaSpark
from tests.helpers.depth import by_hand
from tests.helpers.jobs import committed, files_on_disk, run
from tests.helpers.readers import rows_by_delta_rs
from tests.interop.reference.plain import plain_rows

pytestmark = [pytest.mark.spark, pytest.mark.slow("delta-spark in a JVM of its own")]

# What each table is made by, after its name; and what is done to it then.
TABLES = {
    "plain": ("(id BIGINT, day STRING) USING delta PARTITIONED BY (day)", ["DELETE FROM {} WHERE id = 1"]),
    "rich": (
        "(id BIGINT NOT NULL COMMENT 'key', day STRING, twice BIGINT GENERATED ALWAYS AS (id * 2)) USING delta "
        "PARTITIONED BY (day) COMMENT 'a table' TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', "
        "'delta.columnMapping.mode' = 'name', 'delta.enableRowTracking' = 'true', 'delta.enableChangeDataFeed' = "
        "'true', 'delta.enableInCommitTimestamps' = 'true', 'delta.appendOnly' = 'false', 'my.own' = 'x')",
        [
            "ALTER TABLE {} RENAME COLUMN day TO date",
            "ALTER TABLE {} ADD CONSTRAINT positive CHECK (id >= 0)",
            "DELETE FROM {} WHERE id = 1",
        ],
    ),
    "clustered": (
        "(id BIGINT, day STRING) USING delta CLUSTER BY (id) TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        ["OPTIMIZE {}", "DELETE FROM {} WHERE id = 1"],
    ),
}
# Of each table its own, on purpose or by chance.
OWN = ("id", "createdTime")
MATERIALIZED = "delta.rowTracking.materialized"


def of_log(place: Path) -> dict[str, Any]:
    """What a table's first commit holds, in a form that both writers' agree in where they mean the same."""
    lines = [json.loads(line) for line in (place / "_delta_log" / f"{0:020}.json").read_text().splitlines()]
    found: dict[str, Any] = {"add": [], "domainMetadata": []}
    for line in lines:
        for kind, action in line.items():
            if kind in ("add", "domainMetadata"):
                found[kind].append(action)
            else:
                found[kind] = action
    metadata, protocol = found["metaData"], found["protocol"]
    own = {name: value for name, value in metadata.items() if name not in OWN and value is not None}
    own["configuration"] = {name: value for name, value in own["configuration"].items() if MATERIALIZED not in name}
    for add in found["add"]:
        add["path"] = canonical_path(add["path"], place.as_uri())
        add["stats"] = json.loads(add["stats"])
        if "deletionVector" in add:
            vector = add["deletionVector"]
            vector["pathOrInlineDv"] = canonical_path(vector["pathOrInlineDv"], place.as_uri())
            vector.pop("maxRowIndex", None)
        add.pop("tags", None)
    for domain in found["domainMetadata"]:
        # delta-spark repeats the name of its own.
        domain["configuration"] = {**json.loads(domain["configuration"]), "domainName": domain["domain"]}
    return {
        "metadata": own,
        "protocol": {name: sorted(value) if isinstance(value, list) else value for name, value in protocol.items()},
        "files": sorted(found["add"], key=lambda add: str(add["path"])),
        "domains": sorted(found["domainMetadata"], key=lambda each: str(each["domain"])),
        "parameters": {name: str(value) for name, value in found["commitInfo"]["operationParameters"].items()},
    }


@pytest.fixture(scope="module")
def made(delta: DeltaSpark, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path], None]:
    """Copy one of TABLES to a folder; delta-spark makes each once."""
    folder = tmp_path_factory.mktemp("made")

    def copy(name: str, path: Path) -> None:
        if not (folder / name).exists():
            columns, steps = TABLES[name]
            table = f"delta.`{folder / name}`"
            delta.run(
                f"CREATE TABLE {table} {columns}",
                *(
                    f"INSERT INTO {table} (id, day) VALUES ({n}, 'x/y'), ({n + 1}, '{other}')"
                    for n, other in ((0, "x/y"), (2, "x/y"), (5, "b"))
                ),
                *(step.format(table) for step in steps),
            )
        shutil.copytree(folder / name, path)

    return copy


@pytest.mark.long("half a minute for each table")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "rich" else by_hand("another table")) for name in TABLES]
)
def test_a_shallow_clone_is_the_one_that_delta_spark_makes(
    delta: DeltaSpark, made: Callable[[str, Path], None], tmp_path: Path, name: str
) -> None:
    source, theirs, ours = (tmp_path / each for each in ("a b%c", "theirs", "ours"))
    made(name, source)
    delta.run(f"CREATE TABLE delta.`{theirs}` SHALLOW CLONE delta.`{source}`")
    committed(run(None, "clone", ours, source={"table": str(source)}, shallow=True))
    wanted, found = of_log(theirs), of_log(ours)
    assert found["protocol"] == wanted["protocol"]
    assert found["metadata"] == wanted["metadata"]
    assert found["domains"] == wanted["domains"]
    # Row ids are numbered in the order of the files, which delta-spark leaves to chance.
    for each in (wanted, found):
        for add in each["files"]:
            add.pop("baseRowId", None)
    assert found["files"] == wanted["files"]
    assert {**wanted["parameters"], "isShallow": "true"} == found["parameters"]
    was = delta.read(source)["rows"]
    assert delta.read(ours)["rows"] == was == delta.read(theirs)["rows"]
    for place in (ours, theirs):
        assert plain_rows(Table.open(place, allow_absolute_paths=True).to_arrow()) == was
        by_delta_rs = rows_by_delta_rs(str(place))
        assert by_delta_rs is not None
        assert plain_rows(by_delta_rs) == was
    # Both engines change it, and neither touches the source.
    before = files_on_disk(source)
    day, table = "date" if name == "rich" else "day", f"delta.`{ours}`"
    delta.run(
        f"INSERT INTO {table} (id, {day}) VALUES (9, 'x/y')",
        f"DELETE FROM {table} WHERE id = 2",
        f"OPTIMIZE {table}",
        f"VACUUM {table} RETAIN 0 HOURS",
    )
    committed(run(None, "delete", ours, predicate="id = 5", allow_absolute_paths=True))
    left = Table.open(ours, allow_absolute_paths=True)
    left.vacuum(0, check_retention=False, orphan_retention=dt.timedelta(days=1))
    assert sorted(left.to_arrow().column("id").to_pylist()) == [0, 3, 6, 9]
    assert sorted(row["id"] for row in delta.read(ours)["rows"]) == [0, 3, 6, 9]
    assert files_on_disk(source) == before
    assert delta.read(source)["rows"] == was


@pytest.mark.long("a table cloned, read and written by delta-spark")
def test_delta_spark_reads_a_deep_clone_and_writes_to_it(
    delta: DeltaSpark, made: Callable[[str, Path], None], tmp_path: Path
) -> None:
    source, ours = tmp_path / "s", tmp_path / "t"
    made("rich", source)
    committed(run(None, "clone", ours, source={"table": str(source)}))
    was = delta.read(source)["rows"]
    delta.run(f"INSERT INTO delta.`{source}` (id, date) VALUES (7, 'a')")
    committed(run(None, "clone", ours, source={"table": str(source)}, replace=True))
    assert delta.read(ours, 0)["rows"] == was
    assert delta.read(ours)["rows"] == delta.read(source)["rows"] == plain_rows(Table.open(ours).to_arrow())
    ids = delta.sql(f"SELECT id, _metadata.row_id AS row_id FROM delta.`{ours}` ORDER BY row_id")
    assert len({row["row_id"] for row in ids}) == 6
    delta.run(f"UPDATE delta.`{ours}` SET date = 'c' WHERE id = 0", f"VACUUM delta.`{ours}` RETAIN 0 HOURS")
    found = Table.open(ours).to_arrow().to_pylist()
    assert sorted((row["id"], row["date"], row["twice"]) for row in found) == [
        (0, "c", 0),
        (2, "x/y", 4),
        (3, "x/y", 6),
        (5, "x/y", 10),
        (6, "b", 12),
        (7, "a", 14),
    ]
