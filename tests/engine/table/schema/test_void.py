"""Void columns: left out of files, and refused where something would be lost with them."""

from __future__ import annotations

import pytest

from airflow_txlog.engine.table.schema.features import check_rows_have_place
from airflow_txlog.engine.table.schema.types import ArrayType, DataType, MapType, Primitive, StructField, StructType
from airflow_txlog.errors import UnsupportedFeature

VOID, LONG = Primitive.VOID, Primitive.LONG


def struct(**members: DataType) -> StructType:
    return StructType(tuple(StructField(name, kind) for name, kind in members.items()))


@pytest.mark.parametrize(
    ("schema", "column"),
    [
        (struct(id=LONG, c=ArrayType(VOID)), "c"),
        (struct(id=LONG, c=MapType(LONG, VOID)), "c"),
        (struct(id=LONG, c=MapType(VOID, LONG)), "c"),
        (struct(id=LONG, c=struct(a=VOID, b=VOID)), "c"),
        (struct(id=LONG, c=ArrayType(struct(a=LONG, b=struct(x=VOID)))), "c.element.b"),
        (struct(id=LONG, c=MapType(LONG, ArrayType(ArrayType(VOID)))), "c.value.element"),
        (struct(p=LONG, c=VOID), "c"),
    ],
)
def test_what_holds_nothing_but_void_is_refused_by_name(schema: StructType, column: str) -> None:
    """Protocol RFC "Void Type": writers must reject operations that would write new data files in those cases."""
    with pytest.raises(UnsupportedFeature, match=f"column '{column}' holds nothing but void") as caught:
        check_rows_have_place(schema, ["P"], "t")
    assert caught.value.needed_to == "write"


@pytest.mark.parametrize(
    "schema",
    [
        struct(id=LONG, c=VOID),
        struct(id=LONG, c=struct(a=VOID, b=LONG)),
        struct(id=LONG, c=ArrayType(struct(a=VOID, b=LONG))),
        struct(id=LONG, p=VOID),
    ],
)
def test_void_beside_something_else_is_written(schema: StructType) -> None:
    check_rows_have_place(schema, ["p"], "t")
