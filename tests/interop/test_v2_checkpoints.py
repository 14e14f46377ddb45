"""V2 checkpoints of ours, read by delta-rs, with the commits before them gone so that nothing else can be read."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.checkpoints.reading import sidecars_of
from airflow_txlog.storage import LocalStore
from tests.helpers.checkpoints import list_checkpoints
from tests.helpers.limits import limited
from tests.helpers.readers import rows_by_deltalake
from tests.helpers.rows import append, bag

STRUCTS = {"delta.checkpoint.writeStatsAsStruct": "true"}
STRUCTS_ALONE = STRUCTS | {"delta.checkpoint.writeStatsAsJson": "false"}


def rows(start: int) -> pa.Table:
    utc = datetime.UTC
    return pa.table(
        {
            "id": pa.array(range(start, start + 9), pa.int64()),
            "day": pa.array([datetime.date(2024, 1, 1 + i % 3) for i in range(9)], pa.date32()),
            "s": pa.array([None if i == 4 else f'{i}"é' for i in range(9)], pa.string()),
            "d": pa.array([decimal.Decimal(start + i) / 4 for i in range(9)], pa.decimal128(12, 2)),
            "t": pa.array([datetime.datetime(2024, 1, 1, 2, 3, 4, 567891 + i, utc) for i in range(9)]),
            "f": pa.array([i + 0.1 for i in range(9)], pa.float32()),
            "inner": pa.array(
                [{"a": i, "b": "x"} for i in range(9)], pa.struct([("a", pa.int32()), ("b", pa.string())])
            ),
        }
    )


def cut_before(table: Path, version: int) -> None:
    for number in range(version):
        (table / "_delta_log" / f"{number:020d}.json").unlink()


@pytest.mark.parametrize("policy", ["v2", "classic"])
@pytest.mark.parametrize("properties", [{}, STRUCTS, STRUCTS_ALONE], ids=str)
def test_a_checkpoint_of_ours_is_all_that_delta_rs_needs(
    tmp_path: Path, policy: str, properties: dict[str, str]
) -> None:
    store = limited(LocalStore(str(tmp_path / "t")), checkpoint_group_rows=2, checkpoint_sidecar_rows=4)
    table = Table.create(store, rows(0).schema, ["day"], {"delta.checkpointPolicy": policy, **properties})
    for start in range(0, 36, 9):
        append(table, rows(start))
    before = bag(table.to_arrow())
    table.checkpoint()
    version = table.snapshot().version
    cut_before(tmp_path / "t", version)
    (checkpoint,) = list_checkpoints(table.store)
    assert bool(sidecars_of(table.store, checkpoint)) == (policy == "v2")
    assert bag(Table.open(tmp_path / "t").to_arrow()) == before
    theirs = DeltaTable(tmp_path / "t")
    assert theirs.version() == version
    assert bag(rows_by_deltalake(str(tmp_path / "t"))) == before
    append(table, rows(100))
    assert DeltaTable(tmp_path / "t").version() == table.snapshot().version
