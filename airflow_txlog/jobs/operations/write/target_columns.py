"""The columns of the table that a write creates or finds, and how these columns lay it out."""

from __future__ import annotations

import json
from collections.abc import Sequence

from airflow_txlog.contract.operations import Write
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.commit.content.clustering import clustered_by
from airflow_txlog.engine.table.schema.schema import parse_schema
from airflow_txlog.engine.table.schema.types import StructType, bare_columns, path_text
from airflow_txlog.errors import PartitionMismatch, SchemaMismatch
from airflow_txlog.errors.names import did_you_mean, shown_names
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.sql.columns import SchemaJson, check_source_names


def created_schema(columns: SchemaJson) -> StructType:
    """Return the columns of a new table: the source's, all of them nullable, as every Spark writer has it."""
    check_source_names([field["name"] for field in columns["fields"]])
    untyped = [field["name"] for field in columns["fields"] if field["type"] == "void"]
    if untyped:
        raise SchemaMismatch(
            f"The table cannot be created: the source's columns {untyped} have no type (NULL). Cast them in the "
            "source's SQL. Nothing was staged.",
            columns=untyped,
        )
    return bare_columns(parse_schema(json.dumps(columns)))


def check_layout(context: JobContext, snapshot: Snapshot) -> None:
    """Raise PartitionMismatch if the job names other partition columns, or clustering columns, than the table has."""
    asked, columns = context.record(Write).partition_by, snapshot.partition_columns
    if asked is not None and [name.lower() for name in asked] != [name.lower() for name in columns]:
        raise PartitionMismatch(
            f"{context.root} is partitioned by {list(columns)}, and the job says {list(asked)}. Leave partition_by "
            "out, or write to another table. Nothing was staged.",
            table=context.root,
        )
    wanted = context.record(Write).cluster_by
    if wanted is None:
        return
    clustering = [path_text(path) for path in clustered_by(snapshot)]
    if [name.replace("`", "").lower() for name in wanted] != [name.replace("`", "").lower() for name in clustering]:
        raise PartitionMismatch(
            f"{context.root} is clustered by {clustering or 'nothing'}, and the job names {list(wanted)}. Leave "
            "cluster_by out, or change the table with DeltaAlterTableOperator(cluster_by=[…]). Nothing was staged.",
            table=context.root,
        )


def spelled(names: Sequence[str], schema: StructType) -> list[str]:
    """Return the names by the spelling of the schema. Raises SchemaMismatch."""
    found = [(name, schema.find(name)) for name in names]
    missing = [name for name, field in found if field is None]
    if missing:
        raise SchemaMismatch(
            f"partition_by names {missing}.{did_you_mean(missing[0], schema.names)} The source's columns are: "
            f"{shown_names(schema.names)}. Nothing was staged.",
            columns=missing,
        )
    return [field.name for _, field in found if field is not None]
