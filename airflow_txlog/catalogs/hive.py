"""Hive Metastore, by Thrift: one connection for each request.

The metastore must accept plain Thrift, without Kerberos. Its names are in small letters. Source: Hive 2.3 to 4.0,
hive_metastore.thrift: get_table, get_database, create_table, alter_table, set_ugi.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_txlog.catalogs.base import (
    CatalogColumn,
    Description,
    Entry,
    check_place,
    is_newer,
    name_parts,
    not_found,
    of_service,
    spelled,
    well_formed,
)
from airflow_txlog.catalogs.hive_tables import (
    INPUT_FORMAT,
    NO_COLUMNS,
    OUTPUT_FORMAT,
    SERDE,
    HiveTable,
    column_records,
    hive_entry,
    new_parameters,
    parameters_of,
)
from airflow_txlog.catalogs.places import PLACEHOLDER, table_place
from airflow_txlog.catalogs.thrift_calls import Kind, Struct, ThriftConnection, Value, structs, text, texts
from airflow_txlog.clock import SYSTEM_CLOCK, Clock
from airflow_txlog.errors import CatalogRefused, CatalogUnavailable
from airflow_txlog.locations import CatalogTable

_TRIES = 3
_TIMEOUT_S = 20.0
# Source: Hive's package.jdo, COLUMNS_V2.COMMENT.
_COMMENT_CHARACTERS = 256
# The metastore's own mark of the last change.
_LAST_CHANGE = "transient_lastDdlTime"

# The numbers of fields.
_NAME, _DATABASE, _OWNER, _CREATED, _STORAGE, _KEYS, _PARAMETERS, _KIND = 1, 2, 3, 4, 7, 8, 9, 12
_COLUMNS, _LOCATION, _INPUT, _OUTPUT, _SERDE, _BUCKETS, _SORTS, _MORE = 1, 2, 3, 4, 7, 8, 9, 10
_SERDE_LIBRARY, _SERDE_PARAMETERS = 2, 3
_DATABASE_LOCATION = 3

# The refusals of columns, among others.
_OF_COLUMNS = ("InvalidObjectException", "InvalidOperationException", "MetaException")

# The exceptions that each call declares, by their fields.
_RAISED = {
    "set_ugi": ("MetaException",),
    "get_table": ("MetaException", "NoSuchObjectException"),
    "get_database": ("NoSuchObjectException", "MetaException"),
    "create_table": (
        "AlreadyExistsException",
        "InvalidObjectException",
        "MetaException",
        "NoSuchObjectException",
    ),
    "alter_table": ("InvalidOperationException", "MetaException"),
}


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
        self.new_tables: dict[str, CatalogTable] = {}
        self._addresses = addresses
        self._user = user
        self._clock = clock

    def find(self, name: str) -> Entry:
        """Return the table's entry, by one request."""
        found = self._table(name)
        with well_formed(self.connection, name):
            return self._entry(name, found)

    def place_for(self, name: str) -> str:
        """Return the location of the database, with the table's name as a folder."""
        database, table = self._names(name)
        location = self._database_location(name, database)
        return table_place(self.connection, name, f"{location.rstrip('/')}/{table}" if location else "")

    def register(self, table: Description) -> None:
        """Create the table's entry as an external table, or update the one of the same place."""
        database, name = self._names(table.name)
        # Hadoop's client of S3 knows this scheme alone.
        place = table.uri.replace("s3://", "s3a://", 1) if table.uri.startswith("s3://") else table.uri
        place = f"file://{place}" if place.startswith("/") else place
        serde = {"path": place, "serialization.format": "1"}
        storage = {
            _COLUMNS: _fields(column_records(table, _COMMENT_CHARACTERS)),
            _LOCATION: text(place),
            _INPUT: text(INPUT_FORMAT),
            _OUTPUT: text(OUTPUT_FORMAT),
            _SERDE: Value(Kind.STRUCT, {_SERDE_LIBRARY: text(SERDE), _SERDE_PARAMETERS: texts(serde)}),
            _BUCKETS: Value(Kind.LIST, [], (Kind.STRING,)),
            _SORTS: structs([]),
            _MORE: texts({}),
        }
        record = {
            _NAME: text(name),
            _DATABASE: text(database),
            _OWNER: text(self._user or "airflow"),
            _CREATED: Value(Kind.I32, self._clock.now_ms() // 1000),
            _STORAGE: Value(Kind.STRUCT, storage),
            _KEYS: structs([]),
            _PARAMETERS: texts(new_parameters(table)),
            _KIND: text("EXTERNAL_TABLE"),
        }
        try:
            self._create(table.name, database, record, storage)
        except CatalogRefused as error:
            if error.facts.get("status") != "AlreadyExistsException":
                raise
            check_place(self.find(table.name), table)
            self.update(table)

    def _create(self, name: str, database: str, record: Struct, storage: Struct) -> None:
        """Create the entry, if it is refused without what this metastore does not accept.

        One without a client of the store cannot look at the place; Spark avoids that too. Of columns it may refuse a
        name, a type or a length.
        """
        location, columns, without = storage[_LOCATION], storage[_COLUMNS], _fields(NO_COLUMNS)
        placeholder: Value | None = None
        for number, listed in enumerate((columns, columns, without, without)):
            storage[_COLUMNS] = listed
            storage[_LOCATION] = placeholder if number % 2 and placeholder is not None else location
            try:
                self._call("create_table", name, {1: Value(Kind.STRUCT, record)})
                return
            except CatalogRefused as error:
                refused, status = error, error.facts.get("status")
                if status not in _OF_COLUMNS:
                    raise
                if placeholder is None:
                    place = self._database_location(name, database).rstrip("/")
                    placeholder = text(f"{place}/{record[_NAME].value}{PLACEHOLDER}")
        raise refused

    def update(self, table: Description) -> bool:
        """Write columns and properties, unless the entry is of a later version, or of a table's manifests.

        Columns that this metastore refuses to change stay as they are.
        """
        record = self._table(table.name)
        with well_formed(self.connection, table.name):
            check_place(self._entry(table.name, record), table)
            storage: Struct = record[_STORAGE].value
            before, parameters = storage[_COLUMNS], dict(_read(record, _PARAMETERS, {}))
            last_change = parameters.pop(_LAST_CHANGE, None)
            keys = {_read(each, 1, "") for each in _read(record, _KEYS, [])}
            records = column_records(table, _COMMENT_CHARACTERS)
            columns = _fields([each for each in records if each["Name"].lower() not in keys])
            wanted = parameters_of(table, parameters)
            is_same = wanted == parameters and _shapes(columns) == _shapes(before)
            if is_same or is_newer(parameters, table) or self._hive_table(table.name, record).has_manifests:
                return False
        kept = {} if last_change is None else {_LAST_CHANGE: last_change}
        record[_PARAMETERS], storage[_COLUMNS] = texts({**wanted, **kept}), columns
        try:
            self._alter(table.name, record)
        except CatalogRefused as error:
            # It compares columns by their positions, and refuses a type that old files of Hive would not have.
            if error.facts.get("status") not in _OF_COLUMNS:
                raise
            if wanted == parameters:
                return False
            storage[_COLUMNS] = before
            self._alter(table.name, record)
        return True

    def _alter(self, name: str, record: Struct) -> None:
        database, table = self._names(name)
        self._call("alter_table", name, {1: text(database), 2: text(table), 3: Value(Kind.STRUCT, record)})

    def _names(self, name: str) -> tuple[str, str]:
        database, table = name_parts(name.lower(), 2)
        return database, table

    def _table(self, name: str) -> Struct:
        database, table = self._names(name)
        return self._call("get_table", name, {1: text(database), 2: text(table)})

    def _database_location(self, name: str, database: str) -> str:
        found = self._call("get_database", name, {1: text(database)})
        with well_formed(self.connection, name):
            return str(_read(found, _DATABASE_LOCATION, ""))

    def _hive_table(self, name: str, found: Struct) -> HiveTable:
        storage = _read(found, _STORAGE, {})
        keys = _read(found, _KEYS, [])
        return HiveTable(
            # As it was asked for, whatever the answer says.
            name=spelled(*self._names(name)),
            kind=_read(found, _KIND, ""),
            location=_read(storage, _LOCATION, ""),
            input_format=_read(storage, _INPUT, ""),
            parameters=_read(found, _PARAMETERS, {}),
            serde_parameters=_read(_read(storage, _SERDE, {}), _SERDE_PARAMETERS, {}),
            columns=tuple(
                CatalogColumn(name=_read(each, 1, ""), type_text=_read(each, 2, ""), comment=_read(each, 3, None))
                for each in (*_read(storage, _COLUMNS, []), *keys)
            ),
            partition_columns=tuple(_read(each, 1, "") for each in keys),
        )

    def _entry(self, name: str, found: Struct) -> Entry:
        host, port = self._addresses[0]
        table = self._hive_table(name, found)
        # Source: OpenLineage, "Naming", Hive.
        return hive_entry(self.connection, table, namespace=f"hive://{host}:{port}", dataset=table.name)

    # --- requests ---------------------------------------------------------------------------------------------------

    def _call(self, call: str, name: str, arguments: Struct) -> Struct:
        """Return the answer's struct. Raises TableNotInCatalog, CatalogRefused, CatalogUnavailable."""
        facts = {"connection": self.connection, "name": name}
        for attempt in range(_TRIES):
            for host, port in self._addresses:
                try:
                    answer = self._asked(host, port, call, arguments)
                except OSError as error:
                    failed = of_service(f"{type(error).__name__}: {error}")
                    continue
                raised = next((number for number in answer if number), None)
                with well_formed(self.connection, name):
                    if raised is None:
                        return {**answer[0].value} if 0 in answer else {}
                    kind, why = _RAISED[call][raised - 1], of_service(_read(answer[raised].value, 1, ""))
                if kind == "NoSuchObjectException":
                    raise not_found(self.connection, name)
                raise CatalogRefused(
                    f"The catalog {self.connection!r} (Hive Metastore at {host}:{port}) refused {call} of {name}: "
                    f"{kind}: {why}",
                    status=kind,
                    **facts,
                )
            if attempt < _TRIES - 1:
                self._clock.sleep(0.2 * 2**attempt)
        places = ", ".join(f"{host}:{port}" for host, port in self._addresses)
        raise CatalogUnavailable(
            f"The catalog {self.connection!r} (Hive Metastore at {places}) did not answer about {name} in {_TRIES} "
            f"tries: {failed}. Nothing was read or written.",
            **facts,
        )

    def _asked(self, host: str, port: int, call: str, arguments: Struct) -> Struct:
        connection = ThriftConnection(host, port, _TIMEOUT_S)
        try:
            if self._user:
                connection.call("set_ugi", {1: text(self._user), 2: Value(Kind.LIST, [], (Kind.STRING,))})
            return connection.call(call, arguments)
        finally:
            connection.close()


def _read(found: Struct, number: int, default: Any) -> Any:
    return found[number].value if number in found else default


def _fields(columns: Sequence[Mapping[str, Any]]) -> Value:
    fields = []
    for each in columns:
        comment = {3: text(each["Comment"])} if each.get("Comment") else {}
        fields.append({1: text(each["Name"]), 2: text(each["Type"]), **comment})
    return structs(fields)


def _shapes(columns: Value) -> list[tuple[str, str, str]]:
    # The metastore keeps names in small letters.
    return [(_read(each, 1, "").lower(), _read(each, 2, ""), _read(each, 3, "")) for each in columns.value]
