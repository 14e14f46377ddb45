"""Where deletion vectors are stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_txlog.engine.log.vectors import vector_file
from airflow_txlog.engine.log.wire import decode_commit
from airflow_txlog.errors import CorruptTable

GOLDEN = Path(__file__).resolve().parents[4] / "shared" / "golden"
ROOT = "file:///lake/t"


@pytest.mark.parametrize(
    ("storage_type", "place", "expected"),
    [
        # The examples of the protocol, "Deletion Vector Descriptor Schema".
        ("u", "ab^-aqEH.-t@S}K{vb[*k^", "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"),
        ("u", "^-aqEH.-t@S}K{vb[*k^", "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"),
        ("p", "file:///lake/t/a%20b.bin", "a b.bin"),
        ("p", "s3://mytable/deletion_vector_x.bin", "s3://mytable/deletion_vector_x.bin"),
        ("i", "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", None),
    ],
)
def test_a_vector_is_found_where_the_protocol_puts_it(storage_type: str, place: str, expected: str | None) -> None:
    assert vector_file(storage_type, place, ROOT) == expected


@pytest.mark.parametrize(
    ("storage_type", "place"),
    [("x", "^-aqEH.-t@S}K{vb[*k^"), ("u", "short"), ("u", ""), ("u", "^-aqEH.-t@S}K{vb[*k~"), ("u", "#" * 20)],
)
def test_a_vector_that_lies_nobody_knows_where_is_an_error(storage_type: str, place: str) -> None:
    with pytest.raises(CorruptTable):
        vector_file(storage_type, place, ROOT)


def test_every_vector_of_the_golden_table_is_on_disk() -> None:
    table = GOLDEN / "dv-partitioned-with-checkpoint"
    if not table.exists():
        pytest.skip(f"no golden table at {table}")
    found = set()
    for path in sorted((table / "_delta_log").glob("*.json")):
        for add in decode_commit(0, path.read_bytes(), path.name).adds:
            if add.deletion_vector is not None:
                place = vector_file(add.deletion_vector.storage_type, add.deletion_vector.path_or_inline_dv, ROOT)
                assert place is not None
                found.add(place)
    assert found
    assert found <= {path.name for path in table.glob("*.bin")}
