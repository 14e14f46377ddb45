"""A table as Hive describes it, which Glue copied: where a Delta table is in such a record, and how we write one.

    written by                where the table's place is
    Spark, an external table  the serde's `path`; `location` ends in `-__PLACEHOLDER__` and leads nowhere
    Spark, a managed table    the serde's `path`, and the same in `location`
    Athena, a crawler         `location`, often with a slash at its end
    a crawler, of manifests   `location`, which is the folder of the manifests below the table

Invariant: a record of another format is refused by its format's name. What others wrote into a record stays there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_txlog.catalogs.base import TABLE_ID, VERSION, CatalogColumn, Description, Entry
from airflow_txlog.catalogs.places import ALL_STORES, MANIFESTS, table_place, without_manifests
from airflow_txlog.errors import NotADeltaTable
from airflow_txlog.locations import is_absolute

# By which each kind of writer marks a table of Delta.
_FORMATS = ("spark.sql.sources.provider", "table_type", "classification")
_STORAGE_HANDLER = "storage_handler"
# As Spark writes them for a table that only its data source can read. No engine uses them for a Delta table.
INPUT_FORMAT = "org.apache.hadoop.mapred.SequenceFileInputFormat"
OUTPUT_FORMAT = "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat"
SERDE = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"
# As Spark writes it for a table whose columns Hive cannot hold: engines read the columns from the log.
NO_COLUMNS = [{"Name": "col", "Type": "array<string>", "Comment": "from deserializer"}]
_MANIFEST_FORMAT = "SymlinkTextInputFormat"


@dataclass(frozen=True, slots=True, kw_only=True)
class HiveTable:
    """The parts of a record that locate a table. `kind` is EXTERNAL_TABLE, MANAGED_TABLE, VIRTUAL_VIEW, …"""

    name: str
    kind: str
    location: str
    input_format: str
    parameters: Mapping[str, str]
    serde_parameters: Mapping[str, str]
    columns: tuple[CatalogColumn, ...] = ()
    partition_columns: tuple[str, ...] = field(default=())

    @property
    def has_manifests(self) -> bool:
        """Whether the record is of a table's manifests, for engines that do not know Delta."""
        at_manifests = self.location.rstrip("/").endswith(f"/{MANIFESTS}")
        return at_manifests and self.input_format.endswith(_MANIFEST_FORMAT)


def hive_entry(
    connection: str, table: HiveTable, *, namespace: str, dataset: str, stores: Collection[str] = ALL_STORES
) -> Entry:
    """Return the entry of a Delta table. Raises NotADeltaTable, UnusablePlace."""
    format_name = _format_of(table)
    if format_name is not None:
        raise NotADeltaTable(
            f"{table.name} in the catalog {connection!r} is not a Delta table: it is {format_name}. Nothing was read.",
            connection=connection,
            name=table.name,
            format=format_name,
        )
    location = table.serde_parameters.get("path") or ""
    if not is_absolute(location):
        # Of manifests and of other engines; a relative path is the option of some other reader.
        location = without_manifests(table.location) if table.has_manifests else table.location
    return Entry(
        name=table.name,
        uri=table_place(connection, table.name, location, stores),
        namespace=namespace,
        dataset=dataset,
        is_managed=table.kind == "MANAGED_TABLE",
        properties=dict(table.parameters),
        columns=table.columns,
        partition_columns=table.partition_columns,
    )


def _format_of(table: HiveTable) -> str | None:
    """Return the format of a table that is not Delta, or None."""
    if table.kind.upper() in ("VIRTUAL_VIEW", "MATERIALIZED_VIEW"):
        return "a view"
    marks = {table.parameters.get(name, "").casefold(): name for name in _FORMATS}
    is_handled = table.parameters.get(_STORAGE_HANDLER, "").endswith(".DeltaStorageHandler")
    if "delta" in marks or is_handled or table.has_manifests:
        return None
    found = [value for name in _FORMATS if (value := table.parameters.get(name))]
    return found[0] if found else table.input_format.rpartition(".")[2] or "of no named format"


def parameters_of(table: Description, given: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of a record that has `given` so far.

    Properties of Delta that the table no longer has are removed. Everything else that others wrote stays.
    """
    kept = {
        name: value
        for name, value in given.items()
        if not name.startswith("delta.") or name.startswith("delta.lastCommit") or name in table.properties
    }
    marks = {TABLE_ID: table.table_id, VERSION: str(table.version)}
    if table.comment:
        marks["comment"] = one_line(table.comment)
    return {**kept, **table.properties, **marks}


def new_parameters(table: Description) -> dict[str, str]:
    """Return the parameters of a new record, by which Athena, Spark, Trino and a crawler know a Delta table."""
    return {
        "EXTERNAL": "TRUE",
        "table_type": "delta",
        "classification": "delta",
        "spark.sql.sources.provider": "delta",
        # Spark reads the columns from the log, and demands this property.
        "spark.sql.sources.schema": '{"type":"struct","fields":[]}',
        **parameters_of(table, {}),
    }


def column_records(table: Description, limit: int) -> list[dict[str, Any]]:
    """Return the columns as `{"Name", "Type", "Comment"}`, with comments of at most `limit` units of UTF-16."""
    if any(column.is_odd for column in table.columns):
        return NO_COLUMNS
    records = []
    for column in table.columns:
        record = {"Name": column.name, "Type": column.type_text}
        records.append(record | ({"Comment": one_line(column.comment, limit)} if column.comment else {}))
    return records


def one_line(text: str, limit: int | None = None) -> str:
    """Return a text without control characters, and of at most `limit` units of UTF-16, as Java counts.

    Glue refuses a line break, and PostgreSQL under a metastore a NUL.
    """
    line = "".join(each if each.isprintable() else " " for each in text)
    return line if limit is None else line.encode("utf-16-le", "replace")[: 2 * limit].decode("utf-16-le", "ignore")
