"""Alone in showing which value of an identity column comes next, and how metadata records the furthest one."""

from __future__ import annotations

import msgspec
import pytest

from airflow_txlog import errors
from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.table.schema.identities import (
    IdentityColumn,
    identity_column,
    moves_marks_only,
    read_identities,
    with_marks,
)
from airflow_txlog.engine.table.schema.schema import parse_schema, schema_to_json
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType


def metadata(*columns: StructField) -> Metadata:
    schema = StructType((*columns, StructField("n", Primitive.LONG)))
    return Metadata(id="t", schema_string=schema_to_json(schema), partition_columns=[], configuration={})


@pytest.mark.parametrize(
    ("start", "step", "mark", "values"),
    [
        (1, 1, None, [1, 2, 3]),
        (1, 1, 7, [8, 9, 10]),
        (10, 5, 10, [15, 20, 25]),
        (0, -2, None, [0, -2, -4]),
        (0, -2, -4, [-6, -8, -10]),
        # Marks that no value of the column has: of another writer, or of another start or step.
        (0, 2, 5, [6, 8, 10]),
        (0, -3, -4, [-6, -9, -12]),
        (0, 2, -9, [0, 2, 4]),
        (0, -2, 9, [0, -2, -4]),
    ],
)
def test_values_follow_the_mark_in_steps_from_the_start(
    start: int, step: int, mark: int | None, values: list[int]
) -> None:
    identity = IdentityColumn(name="id", start=start, step=step, mark=mark)
    assert [identity.value(number) for number in range(3)] == values


@pytest.mark.parametrize(("start", "step"), [(2**63 - 3, 1), (2 - 2**63, -1)])
def test_a_column_ends_where_a_bigint_ends(start: int, step: int) -> None:
    identity = IdentityColumn(name="id", start=start, step=step)
    identity.check_has(0, "t")
    identity.check_has(3, "t")
    with pytest.raises(errors.ConstraintViolation, match="fewer values left than the 4") as caught:
        identity.check_has(4, "t")
    assert caught.value.facts["column"] == "id"


def test_a_column_for_a_new_table_is_read_back() -> None:
    schema = StructType((identity_column("a", start=3, step=-2, takes_values=True), identity_column("b")))
    assert read_identities(parse_schema(schema_to_json(schema)), "t") == {
        "a": IdentityColumn(name="a", start=3, step=-2, takes_values=True),
        "b": IdentityColumn(name="b", start=1, step=1),
    }
    with pytest.raises(errors.CorruptTable, match="step"):
        identity_column("c", step=0)


def test_a_commit_that_moves_marks_changes_nothing_else_of_the_metadata() -> None:
    before = metadata(identity_column("a"), identity_column("b"))
    after = with_marks(before, {"b": 7})
    schema = parse_schema(after.schema_string)
    assert {name: each.mark for name, each in read_identities(schema, "t").items()} == {"a": None, "b": 7}
    assert moves_marks_only(before, after)
    assert not moves_marks_only(before, before)
    assert not moves_marks_only(before, msgspec.structs.replace(after, configuration={"k": "v"}))
    assert not moves_marks_only(metadata(identity_column("a", step=2), identity_column("b")), after)
