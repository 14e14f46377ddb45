"""Rules of a table as values: what the metadata says, and what of it is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_txlog import errors
from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.table.schema.identities import IdentityColumn
from airflow_txlog.engine.table.schema.rules import Check, Length, RowRules, may_break_rules, read_rules
from airflow_txlog.engine.table.schema.schema import parse_schema

IDENTITY = {"delta.identity.start": 1, "delta.identity.step": 2}


def metadata(*fields: dict[str, Any], **configuration: str) -> Metadata:
    columns = [{"type": "string", "nullable": True, "metadata": {}, **field} for field in fields]
    return Metadata(
        id="t",
        schema_string=json.dumps({"type": "struct", "fields": columns}),
        partition_columns=[],
        configuration=configuration,
    )


def rules(what: Metadata) -> RowRules:
    return read_rules(what, parse_schema(what.schema_string), "memory://t")


def test_every_rule_of_the_metadata_is_read() -> None:
    what = metadata(
        {"name": "a", "metadata": {"delta.invariants": '{"expression":{"expression":"a > 3"}}'}},
        {"name": "g", "metadata": {"delta.generationExpression": "upper(a)"}},
        {"name": "d", "metadata": {"CURRENT_DEFAULT": "'x'"}},
        {
            "name": "i",
            "type": "long",
            "metadata": {**IDENTITY, "delta.identity.allowExplicitInsert": True},
        },
        {"name": "j", "type": "long", "metadata": {**IDENTITY, "delta.identity.highWaterMark": 7}},
        {"name": "c", "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "char(3)"}},
        {"name": "v", "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "VARCHAR( 5 )"}},
        **{"delta.constraints.small": "a < 9", "delta.constraints.big": "a > 1", "delta.appendOnly": "true"},
    )
    assert rules(what) == RowRules(
        checks=(
            Check(kind="CHECK", name="big", sql="a > 1"),
            Check(kind="CHECK", name="small", sql="a < 9"),
            Check(kind="INVARIANT", name="a", sql="a > 3"),
        ),
        generated={"g": "upper(a)"},
        defaults={"d": "'x'"},
        identities={
            "i": IdentityColumn(name="i", start=1, step=2, takes_values=True),
            "j": IdentityColumn(name="j", start=1, step=2, mark=7),
        },
        lengths={"c": Length(limit=3, is_padded=True), "v": Length(limit=5, is_padded=False)},
    )
    assert rules(what).fills == {"g", "d", "i", "j"}
    assert may_break_rules(what, parse_schema(what.schema_string))


def test_a_default_alone_is_no_rule_that_a_row_can_break() -> None:
    what = metadata({"name": "d", "metadata": {"CURRENT_DEFAULT": "'x'"}})
    assert not rules(what).must_check
    assert not may_break_rules(what, parse_schema(what.schema_string))


@pytest.mark.parametrize("text", ["a > 3", "[]", "{}", '{"expression":"a > 3"}', 3])
def test_an_invariant_of_another_form_is_a_corrupt_table(text: Any) -> None:
    what = metadata({"name": "a", "metadata": {"delta.invariants": text}})
    with pytest.raises(errors.CorruptTable, match="invariants"):
        rules(what)


@pytest.mark.parametrize(
    ("kind", "marks"),
    [
        ("long", {"delta.identity.start": 1}),
        ("long", {**IDENTITY, "delta.identity.step": 0}),
        ("long", {**IDENTITY, "delta.identity.step": "1"}),
        ("integer", IDENTITY),
    ],
)
def test_an_identity_column_that_no_engine_can_number_is_a_corrupt_table(kind: str, marks: dict[str, Any]) -> None:
    with pytest.raises(errors.CorruptTable, match="identity column 'i'"):
        rules(metadata({"name": "i", "type": kind, "metadata": marks}))


NESTED = [
    ("generatedColumns", {"delta.generationExpression": "1"}),
    ("identityColumns", {"delta.identity.start": 1}),
    ("allowColumnDefaults", {"CURRENT_DEFAULT": "1"}),
    ("char and varchar columns", {"__CHAR_VARCHAR_TYPE_STRING": "char(1)"}),
]


@pytest.mark.parametrize(("feature", "marks"), NESTED)
def test_a_rule_inside_a_struct_is_refused_by_name(feature: str, marks: dict[str, Any]) -> None:
    inner = {"type": "struct", "fields": [{"name": "m", "type": "string", "nullable": True, "metadata": marks}]}
    for kind in (inner, {"type": "array", "elementType": inner, "containsNull": True}):
        with pytest.raises(errors.UnsupportedFeature, match="'m' inside column 's'") as caught:
            rules(metadata({"name": "s", "type": kind}))
        assert caught.value.feature == feature


def test_a_length_inside_a_container_is_refused_by_name() -> None:
    kind = {"type": "array", "elementType": "string", "containsNull": True}
    what = metadata({"name": "s", "type": kind, "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "array<char(3)>"}})
    with pytest.raises(errors.UnsupportedFeature, match="array<char"):
        rules(what)
    assert may_break_rules(what, parse_schema(what.schema_string))
