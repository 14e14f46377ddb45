"""What the metadata of a table may only raise: a commit that brings older metadata back keeps the furthest of both.

This is the one list of such facts. RESTORE applies it, and `validation` refuses any other commit that would lower one.
Facts that do not live in the metadata stay because nothing brings them back: the protocol, the row id mark in its
domain, application transactions. The invariant: an id or a number that was handed out once is not handed out again.
Source: soundness A24; delta-spark, IdentityColumn.copySchemaWithMergedHighWaterMarks; protocol, "Identity Columns",
"Column Mapping", "Checkpoint Protection".
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.table.schema.column_mapping import MAX_ID_PROPERTY, table_schema
from airflow_txlog.engine.table.schema.rules import IDENTITY_PREFIX
from airflow_txlog.engine.table.schema.schema import parse_schema, schema_to_json
from airflow_txlog.engine.table.schema.types import StructField, StructType

# The highest column id; the version before which no checkpoint may be deleted.
GROWING_PROPERTIES = (MAX_ID_PROPERTY, "delta.requireCheckpointProtectionBeforeVersion")

MARK_KEY = f"{IDENTITY_PREFIX}highWaterMark"


def keep_furthest(now: Metadata, coming: Metadata, table: str) -> Metadata:
    """Return `coming` with every growing fact at the furthest value of both; `coming` itself if it has them all."""
    configuration = dict(coming.configuration)
    for name in GROWING_PROPERTIES:
        before, after = _number(now.configuration.get(name)), _number(configuration.get(name))
        if before is not None and (after is None or after < before):
            configuration[name] = now.configuration[name]
    schema = coming.schema_string
    if MARK_KEY in (now.schema_string or ""):
        schema = _with_furthest_marks(now, coming, table)
    if configuration == coming.configuration and schema == coming.schema_string:
        return coming
    return msgspec.structs.replace(coming, configuration=configuration, schema_string=schema)


def lowered_facts(now: Metadata, coming: Metadata, table: str) -> list[str]:
    """Return the names of the facts that `coming` would lower: properties, and columns with an identity mark."""
    kept = keep_furthest(now, coming, table)
    if kept is coming:
        return []
    found = [name for name in GROWING_PROPERTIES if kept.configuration.get(name) != coming.configuration.get(name)]
    schemas = zip(table_schema(kept, table), table_schema(coming, table), strict=True)
    return found + [f"{MARK_KEY} of column {one.name!r}" for one, other in schemas if one.metadata != other.metadata]


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and text.isascii() else None


def _with_furthest_marks(now: Metadata, coming: Metadata, table: str) -> str | None:
    """Return the coming schema, in which a column is the same one as before if it has the same physical name."""
    marks = {member.physical_name.lower(): _int(member, "highWaterMark") for member in table_schema(now, table)}
    schema = parse_schema(coming.schema_string)
    names = [member.physical_name.lower() for member in table_schema(coming, table)]
    fields = tuple(_with_mark(member, marks.get(name)) for member, name in zip(schema, names, strict=True))
    return coming.schema_string if fields == tuple(schema) else schema_to_json(StructType(fields))


def _with_mark(member: StructField, mark: int | None) -> StructField:
    start, step, own = (_int(member, name) for name in ("start", "step", "highWaterMark"))
    if mark is None or start is None or not step:
        return member
    # Steps from the start to the mark, or beyond it where the column counted otherwise then.
    steps = -((start - mark) // step)
    if steps < 0 or (own is not None and (own - start) // step >= steps):
        return member
    return replace(member, metadata={**member.metadata, MARK_KEY: start + steps * step})


def _int(member: StructField, name: str) -> int | None:
    value = member.metadata.get(f"{IDENTITY_PREFIX}{name}")
    return value if isinstance(value, int) and not isinstance(value, bool) else None
