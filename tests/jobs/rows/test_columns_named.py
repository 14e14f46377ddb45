"""Alone in showing which columns a text can mean: the other side's names do not make us read a column of ours."""

from __future__ import annotations

import pytest

from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType
from airflow_txlog.jobs.sql.columns import columns_named

SCHEMA = StructType([StructField(name, Primitive.LONG) for name in ("id", "name", "s2")])


@pytest.mark.parametrize(
    ("text", "alias", "expected"),
    [
        ("t.id = s.id AND s.name > 2", "s", {"id"}),
        ("t.id = s.id AND s.name > 2", "", {"id", "name"}),
        ("CAST(`S`.`name` AS INT)", "s", set()),
        ("s.id.name", "s", {"name"}),
        ("x.s.id", "s", {"id"}),
        ("name + s.id", "s", {"name"}),
        # A column of the alias's name: what stands behind it may be its member.
        ("s2.id", "s2", {"s2", "id"}),
    ],
)
def test_a_name_behind_the_other_alias_is_not_ours(text: str, alias: str, expected: set[str]) -> None:
    assert columns_named(text, SCHEMA, alias) == expected
