"""Glue and the Hive Metastore behind one interface for tests: what others write into them, and what they hold then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pymetastore.hive_metastore import ThriftHiveMetastore, ttypes
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport

from airflow_txlog.catalogs.base import Catalog
from airflow_txlog.catalogs.glue import GlueCatalog
from airflow_txlog.catalogs.hive import HiveCatalog
from tests.helpers import glue


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


class GlueBackend:
    """moto, through a botocore client that is not the one under test."""

    def __init__(self, endpoint: str) -> None:
        from botocore.session import get_session

        self.root = "s3://lake"
        self.catalog: GlueCatalog = glue.catalog(endpoint)
        self._client = get_session().create_client(
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
    """The metastore, through a Thrift client of its own."""

    def __init__(self, host: str, port: int, root: str) -> None:
        self.root = root
        self.catalog: HiveCatalog = HiveCatalog("hive_test", [(host, port)])
        transport = TBufferedTransport(TSocket(host, port))
        transport.open()
        self._client = ThriftHiveMetastore.Client(TBinaryProtocol(transport))

    def create_database(self, name: str) -> None:
        place = f"file:{self.root}/{name}.db"
        self._client.create_database(ttypes.Database(name=name, locationUri=place, parameters={}))

    def put(self, record: Record) -> None:
        database, table = record.name.split(".")
        self._client.create_table(
            ttypes.Table(
                dbName=database,
                tableName=table,
                owner="other",
                tableType=record.kind,
                parameters={"EXTERNAL": "TRUE", **record.parameters},
                partitionKeys=[],
                viewOriginalText="SELECT 1" if record.kind == "VIRTUAL_VIEW" else None,
                sd=ttypes.StorageDescriptor(
                    cols=[ttypes.FieldSchema(name=name, type=kind) for name, kind in record.columns],
                    location=record.location or None,
                    inputFormat=record.input_format,
                    serdeInfo=ttypes.SerDeInfo(parameters=dict(record.serde_parameters)),
                    bucketCols=[],
                    sortCols=[],
                    parameters={},
                ),
            )
        )

    def get(self, name: str) -> Record:
        found: Any = self._client.get_table(*name.split("."))
        return Record(
            name=name,
            kind=found.tableType,
            location=found.sd.location,
            input_format=found.sd.inputFormat,
            parameters=found.parameters,
            serde_parameters=found.sd.serdeInfo.parameters,
            columns=[(each.name, each.type) for each in found.sd.cols],
        )
