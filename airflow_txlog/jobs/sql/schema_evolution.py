"""Schema evolution of a job: the columns and types that its rows bring become the table's, in the job's own commit.

The engine decides what may change (`engine/table/schema/evolution`). Here the rows' schema is put before it, columns
that a rule of the table reads keep their type, and every attempt and try gives new columns the same physical names,
because files that were staged under them are kept. The invariant: the table that rows are staged for is the table as
the commit leaves it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from airflow_txlog.contract.operations import AnyClause, DeleteClause, SourceOperation, UpdateClause
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.table.schema.rules import read_rules
from airflow_txlog.engine.table.schema.schema import parse_schema
from airflow_txlog.engine.table.schema.types import bare_columns
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.sql.column_names import check_distinct, check_names_are_free
from airflow_txlog.jobs.sql.gate import columns_named

SchemaJson: TypeAlias = Mapping[str, Any]
"""The columns of rows: Spark's JSON, which is the log's too."""

_NAMES = uuid.UUID("0a3c1f6e-54b5-5b0e-8c8e-3d1f2a9b7c64")


def evolved_metadata(context: JobContext, tx: Transaction, rows: SchemaJson) -> Metadata:
    """Return the table's metadata as the transaction leaves it, so that rows with these columns can be stored.

    Without the job's `schema_evolution` it stays. Raises SchemaMismatch, UnsupportedFeature.
    """
    assert tx.snapshot is not None
    if not context.record(SourceOperation).schema_evolution:
        return tx.snapshot.metadata
    names = [field["name"] for field in rows["fields"]]
    check_distinct(names, "The source")
    check_names_are_free(names, "The source")
    schema = bare_columns(parse_schema(json.dumps(rows)))
    fixed = _columns_of_rules(tx.snapshot)
    evolution = tx.evolve_schema(schema, fixed=fixed, new_name=lambda number: _name(context, number))
    if evolution.added:
        context.log(f"the table gets the columns {', '.join(evolution.added)}")
    if evolution.widened:
        context.log(f"the table's types are widened: {', '.join(evolution.widened)}")
    assert tx.metadata is not None
    return tx.metadata


def evolved_by_source(context: JobContext, tx: Transaction, source: SchemaJson | None) -> Metadata:
    """As `evolved_metadata` for all columns of the source; None: those of the source whose rows are staged already."""
    assert tx.snapshot is not None
    if not context.record(SourceOperation).schema_evolution:
        return tx.snapshot.metadata
    if source is not None:
        context.saved_inputs.source_schema = dict(source)
    assert context.saved_inputs.source_schema is not None
    return evolved_metadata(context, tx, context.saved_inputs.source_schema)


def assigned_columns(source: SchemaJson, clauses: Sequence[AnyClause], target_alias: str) -> SchemaJson:
    """Return the source's columns that a MERGE stores under their own name: those that `*` or an assignment names."""
    names: set[str] = set()
    for clause in clauses:
        if isinstance(clause, DeleteClause):
            continue
        assigned = clause.set if isinstance(clause, UpdateClause) else clause.values
        if isinstance(assigned, str):
            return source
        for name in assigned:
            bare = name.strip().strip("`").lower()
            names |= {bare, bare.removeprefix(target_alias.lower() + ".").strip("`")}
    return {**source, "fields": [field for field in source["fields"] if field["name"].lower() in names]}


def _columns_of_rules(snapshot: Snapshot) -> frozenset[str]:
    """Return the columns that a rule of the table reads: under another type it might judge them differently."""
    rules = read_rules(snapshot.metadata, snapshot.delta_schema, snapshot.uri)
    texts = [check.sql for check in rules.checks] + list(rules.generated.values())
    found = frozenset(rules.generated) | frozenset(rules.identities)
    for text in texts:
        named = columns_named(text, snapshot.delta_schema)
        found |= frozenset(snapshot.delta_schema.names) if named is None else named
    return found


def _name(context: JobContext, number: int) -> str:
    """Return a physical name that no other column ever had, and that this work gives its column every time."""
    application = context.spec.application
    work = context.job_id if application is None else f"{application.app_id} {application.version}"
    unique = uuid.uuid5(_NAMES, f"{context.root} {work} {number}")
    return f"col-{unique}"
