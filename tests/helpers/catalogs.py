"""Glue and the Hive Metastore behind one interface for tests: what others write into them, and what they hold then."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_txlog.catalogs.base import Catalog
from airflow_txlog.catalogs.glue import GlueCatalog
from airflow_txlog.catalogs.hive import HiveCatalog
from tests.helpers import glue
from tests.helpers.metastore import Metastore


@dataclass(frozen=True, kw_only=True)
class Record:
    """A table's record as an engine writes it: each field as Hive and Glue have it."""

    name: str
    location: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    serde_parameters: Mapping[str, str] = field(default_factory=dict)
    kind: str = "EXTERNAL_TABLE"
    input_format: str = "org.apache.hadoop.mapred.SequenceFileInputFormat"
    columns: Sequence[tuple[str, str]] = (("col", "array<string>"),)


class Backend(Protocol):
    """One catalog's server. `root`: a place below which tables may be."""

    root: str
    catalog: Catalog

    def create_database(self, name: str) -> None: ...

    def put(self, record: Record) -> None: ...

    def get(self, name: str) -> Record: ...

    def drop(self, name: str) -> None: ...


@functools.cache
def _session() -> Any:
    """A session that reads the description of Glue once."""
    from botocore.session import get_session

    return get_session()


class GlueBackend:
    """moto, through a botocore client that is not the one under test."""

    def __init__(self, endpoint: str, root: str = "s3://lake") -> None:
        self.root = root
        self.catalog: GlueCatalog = glue.catalog(endpoint)
        self._client = _session().create_client(
            "glue",
            region_name=glue.REGION,
            endpoint_url=endpoint,
            aws_access_key_id=glue.KEYS[0],
            aws_secret_access_key=glue.KEYS[1],
        )

    def create_database(self, name: str) -> None:
        self._client.create_database(DatabaseInput={"Name": name, "LocationUri": f"{self.root}/{name}.db/"})

    def put(self, record: Record) -> None:
        database, table = record.name.split(".")
        self._client.create_table(
            DatabaseName=database,
            TableInput={
                "Name": table,
                "TableType": record.kind,
                "Parameters": dict(record.parameters),
                "StorageDescriptor": {
                    "Location": record.location,
                    "InputFormat": record.input_format,
                    "Columns": [{"Name": name, "Type": kind} for name, kind in record.columns],
                    "SerdeInfo": {"Parameters": dict(record.serde_parameters)},
                },
            },
        )

    def drop(self, name: str) -> None:
        database, table = name.split(".")
        self._client.delete_table(DatabaseName=database, Name=table)

    def get(self, name: str) -> Record:
        database, table = name.split(".")
        found = self._client.get_table(DatabaseName=database, Name=table)["Table"]
        storage = found["StorageDescriptor"]
        return Record(
            name=name,
            kind=found["TableType"],
            location=storage["Location"],
            input_format=storage["InputFormat"],
            parameters=found["Parameters"],
            serde_parameters=storage["SerdeInfo"]["Parameters"],
            columns=[(each["Name"], each["Type"]) for each in storage["Columns"]],
        )


class HiveBackend:
    """The metastore, by the Java classes of Hive itself, which run in its JVM."""

    def __init__(self, metastore: Metastore, root: str) -> None:
        self.root = root
        self.catalog: HiveCatalog = HiveCatalog("hive_test", [(metastore.host, metastore.port)])
        self._handler = metastore.handler
        self._api = metastore.jvm.org.apache.hadoop.hive.metastore.api

    def create_database(self, name: str) -> None:
        self._handler.create_database(self._api.Database(name, "", f"file:{self.root}/{name}.db", {}))

    def put(self, record: Record) -> None:
        serde = self._api.SerDeInfo()
        serde.setParameters(dict(record.serde_parameters))
        storage = self._api.StorageDescriptor()
        storage.setCols([self._api.FieldSchema(name, kind, None) for name, kind in record.columns])
        storage.setInputFormat(record.input_format)
        storage.setSerdeInfo(serde)
        if record.location:
            storage.setLocation(record.location)
        table = self._api.Table()
        database, name = record.name.split(".")
        table.setDbName(database)
        table.setTableName(name)
        table.setOwner("other")
        table.setTableType(record.kind)
        table.setParameters({"EXTERNAL": "TRUE", **record.parameters})
        table.setPartitionKeys([])
        table.setSd(storage)
        if record.kind == "VIRTUAL_VIEW":
            table.setViewOriginalText("SELECT 1")
        self._handler.create_table(table)

    def drop(self, name: str) -> None:
        self._handler.drop_table(*name.split("."), False)

    def get(self, name: str) -> Record:
        found: Any = self._handler.get_table(*name.split("."))
        storage = found.getSd()
        return Record(
            name=name,
            kind=found.getTableType(),
            location=storage.getLocation(),
            input_format=storage.getInputFormat(),
            parameters=dict(found.getParameters()),
            serde_parameters=dict(storage.getSerdeInfo().getParameters()),
            columns=[(each.getName(), each.getType()) for each in storage.getCols()],
        )
