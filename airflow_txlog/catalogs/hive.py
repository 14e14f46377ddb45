"""Hive Metastore, by Thrift: one connection for each call.

The metastore must accept plain Thrift, without Kerberos. Its names are in small letters. Source: Hive 2.3 to 4.0,
hive_metastore.thrift: get_table, get_database, create_table, alter_table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pymetastore.hive_metastore import ThriftHiveMetastore, ttypes
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TException
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport, TTransportException

from airflow_txlog.catalogs.base import CatalogColumn, Description, Entry, check_place, name_parts, not_found
from airflow_txlog.catalogs.hive_tables import (
    INPUT_FORMAT,
    OUTPUT_FORMAT,
    SERDE,
    HiveTable,
    column_records,
    hive_entry,
    is_newer,
    new_parameters,
    parameters_of,
)
from airflow_txlog.catalogs.places import PLACEHOLDER, table_place
from airflow_txlog.clock import SYSTEM_CLOCK, Clock
from airflow_txlog.errors import CatalogRefused, CatalogUnavailable

_Value = TypeVar("_Value")

_TRIES = 3
_TIMEOUT_MS = 20_000
# Source: Hive's package.jdo, COLUMNS_V2.COMMENT and TYPE_NAME.
_COMMENT_CHARACTERS = 256
# As Spark writes it for a table whose columns the metastore refuses: engines read the columns from the log.
_NO_COLUMNS = [{"Name": "col", "Type": "array<string>", "Comment": "from deserializer"}]


class HiveCatalog:
    """The catalog of one metastore, at the first of its addresses that answers.

    `user`: the name that the metastore records as the owner, and by which it may grant permissions.
    """

    def __init__(
        self,
        connection: str,
        addresses: Sequence[tuple[str, int]],
        *,
        user: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.connection = connection
        self._addresses = addresses
        self._user = user
        self._clock = clock

    def find(self, name: str) -> Entry:
        """Return the table's entry, by one request."""
        database, table = self._names(name)
        return self._entry(self._call(name, lambda client: client.get_table(database, table)))

    def place_for(self, name: str) -> str:
        """Return the location of the database, with the table's name as a folder."""
        database, table = self._names(name)
        location = self._call(name, lambda client: client.get_database(database)).locationUri or ""
        return table_place(self.connection, name, f"{location.rstrip('/')}/{table}" if location else "")

    def register(self, table: Description) -> None:
        """Create the table's entry as an external table, or update the one of the same place."""
        database, name = self._names(table.name)
        # Hadoop's client of S3 knows this scheme alone.
        place = table.uri.replace("s3://", "s3a://", 1) if table.uri.startswith("s3://") else table.uri
        place = f"file://{place}" if place.startswith("/") else place
        record = ttypes.Table(
            dbName=database,
            tableName=name,
            owner=self._user or "airflow",
            createTime=self._clock.now_ms() // 1000,
            tableType="EXTERNAL_TABLE",
            parameters=new_parameters(table),
            partitionKeys=[],
            sd=ttypes.StorageDescriptor(
                cols=_fields(column_records(table, _COMMENT_CHARACTERS)),
                location=place,
                inputFormat=INPUT_FORMAT,
                outputFormat=OUTPUT_FORMAT,
                serdeInfo=ttypes.SerDeInfo(
                    serializationLib=SERDE, parameters={"path": place, "serialization.format": "1"}
                ),
                bucketCols=[],
                sortCols=[],
                parameters={},
            ),
        )
        try:
            self._create(table.name, record)
        except CatalogRefused as error:
            if error.facts.get("status") != "AlreadyExistsException":
                raise
            check_place(self.find(table.name), table)
            self.update(table)

    def _create(self, name: str, record: Any) -> None:
        """Create the entry. A metastore without a client of the store cannot look at the place, as Spark avoids too."""
        try:
            self._call(name, lambda client: client.create_table(record))
            return
        except CatalogRefused as error:
            if error.facts.get("status") == "InvalidObjectException":
                # A column's name or type that this metastore does not accept.
                record.sd.cols = _fields(_NO_COLUMNS)
            elif error.facts.get("status") == "MetaException":
                database = self._call(name, lambda client: client.get_database(record.dbName))
                record.sd.location = f"{database.locationUri.rstrip('/')}/{record.tableName}{PLACEHOLDER}"
            else:
                raise
        self._call(name, lambda client: client.create_table(record))

    def update(self, table: Description) -> bool:
        """Write columns and properties, unless the entry is of a later version, or of a table's manifests.

        Columns that this metastore refuses to change stay as they are.
        """
        database, name = self._names(table.name)
        record = self._call(table.name, lambda client: client.get_table(database, name))
        check_place(self._entry(record), table)
        parameters = record.parameters or {}
        keys = {each.name for each in record.partitionKeys or ()}
        columns = _fields(
            [each for each in column_records(table, _COMMENT_CHARACTERS) if each["Name"].lower() not in keys]
        )
        wanted = parameters_of(table, parameters)
        # The metastore's own mark of the last change.
        parameters.pop("transient_lastDdlTime", None)
        is_same = {**wanted, "transient_lastDdlTime": ""} == {**parameters, "transient_lastDdlTime": ""}
        is_same = is_same and _shapes(columns) == _shapes(record.sd.cols)
        if is_same or is_newer(parameters, table) or self._record(record).has_manifests:
            return False
        record.parameters, before = wanted, record.sd.cols
        record.sd.cols = columns
        try:
            self._call(table.name, lambda client: client.alter_table(database, name, record))
        except CatalogRefused as error:
            # It compares columns by their positions, and refuses a type that old Hive files would not have.
            if error.facts.get("status") != "InvalidOperationException" or parameters == wanted:
                raise
            record.sd.cols = before
            self._call(table.name, lambda client: client.alter_table(database, name, record))
        return True

    def _names(self, name: str) -> tuple[str, str]:
        database, table = name_parts(name.lower(), 2)
        return database, table

    def _record(self, found: Any) -> HiveTable:
        keys = found.partitionKeys or ()
        return HiveTable(
            name=f"{found.dbName}.{found.tableName}",
            kind=found.tableType or "",
            location=found.sd.location or "",
            input_format=found.sd.inputFormat or "",
            parameters=found.parameters or {},
            serde_parameters=(found.sd.serdeInfo.parameters if found.sd.serdeInfo else None) or {},
            columns=tuple(
                CatalogColumn(name=each.name, type_text=each.type or "", comment=each.comment)
                for each in (*(found.sd.cols or ()), *keys)
            ),
            partition_columns=tuple(each.name for each in keys),
        )

    def _entry(self, found: Any) -> Entry:
        host, port = self._addresses[0]
        # Source: OpenLineage, "Naming", Hive.
        return hive_entry(
            self.connection,
            self._record(found),
            namespace=f"hive://{host}:{port}",
            dataset=f"{found.dbName}.{found.tableName}",
        )

    # --- requests ---------------------------------------------------------------------------------------------------

    def _call(self, name: str, ask: Callable[[Any], _Value]) -> _Value:
        """Return the answer. Raises TableNotInCatalog, CatalogRefused, CatalogUnavailable."""
        facts = {"connection": self.connection, "name": name}
        for attempt in range(_TRIES):
            for host, port in self._addresses:
                try:
                    return self._asked(host, port, ask)
                except ttypes.NoSuchObjectException:
                    raise not_found(self.connection, name) from None
                except (TTransportException, OSError) as error:
                    failed = type(error).__name__
                except TException as error:
                    kind = type(error).__name__
                    raise CatalogRefused(
                        f"The catalog {self.connection!r} (Hive Metastore at {host}:{port}) refused the request about "
                        f"{name}: {kind}: {getattr(error, 'message', '') or ''}".rstrip(": "),
                        status=kind,
                        **facts,
                    ) from None
            if attempt < _TRIES - 1:
                self._clock.sleep(0.2 * 2**attempt)
        places = ", ".join(f"{host}:{port}" for host, port in self._addresses)
        raise CatalogUnavailable(
            f"The catalog {self.connection!r} (Hive Metastore at {places}) did not answer about {name} in {_TRIES} "
            f"tries: {failed}. Nothing was read or written.",
            **facts,
        )

    def _asked(self, host: str, port: int, ask: Callable[[Any], _Value]) -> _Value:
        socket = TSocket(host, port)
        socket.setTimeout(_TIMEOUT_MS)
        transport = TBufferedTransport(socket)
        transport.open()
        try:
            client = ThriftHiveMetastore.Client(TBinaryProtocol(transport))
            if self._user:
                client.set_ugi(self._user, [])
            return ask(client)
        finally:
            transport.close()


def _fields(columns: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [ttypes.FieldSchema(name=each["Name"], type=each["Type"], comment=each.get("Comment")) for each in columns]


def _shapes(columns: Sequence[Any] | None) -> list[tuple[str, str, str]]:
    # The metastore keeps names in small letters.
    return [(each.name.lower(), each.type, each.comment or "") for each in columns or ()]
