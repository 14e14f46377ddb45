"""The rows of erased subjects that a commit would bring back, found by the digests of a ledger.

Only files that come into the table are read, and of these the columns of the ledger alone; a partition column is read
from the log. The invariants: a file that cannot be read, or a digest whose key is missing, is an error and never a
pass; and every commit that was compared with the ledger is compared again if another one comes first, because an
erasure may have recorded its subjects and deleted their rows in between.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.parquet.conversion import leaves
from airflow_txlog.datafiles.parquet.reading import DataFile, open_data_file, read_batches, table_columns
from airflow_txlog.engine.erasure.digests import DigestKey, canonical_forms, signed
from airflow_txlog.engine.erasure.ledger import ErasedSubjects, Ledger
from airflow_txlog.engine.erasure.values.key_columns import struct_paths
from airflow_txlog.engine.erasure.values.plain import plain_array
from airflow_txlog.engine.log.actions import Add, Cdc, Metadata
from airflow_txlog.engine.log.columns import adds_to_table, table_to_adds
from airflow_txlog.engine.log.paths import canonical_path
from airflow_txlog.engine.table.columns.partitions import typed_partition_columns
from airflow_txlog.engine.table.schema.column_mapping import (
    ID_KEY,
    MAX_ID_PROPERTY,
    arrow_schema,
    mapping_mode,
    table_schema,
)
from airflow_txlog.engine.table.schema.types import ArrayType, MapType, StructField, StructType, VariantType
from airflow_txlog.engine.table.snapshot.files import action_keys, file_keys, stated_count
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import SubjectReturns
from airflow_txlog.storage.base import Store, check_may_read

_AT_ONCE = 4
_COLUMN_IDS = re.compile(rf'"{re.escape(ID_KEY)}":\s*(\d+)')
_MOST_REQUESTS_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """Files that come into a table, with the metadata for reading them. `root`: their paths are relative to it.

    `store` opens them. With `is_trusted`, the caller knows that it may read files outside of `root`.
    """

    files: Sequence[Add]
    metadata: Metadata
    root: str
    store: Store
    is_trusted: bool = False


@dataclass(slots=True)
class Returning:
    """The rows of one file that hold an erased subject. `is_whole`: every row does, by the file's partition."""

    add: Add
    columns: set[str] = field(default_factory=set)
    requests: set[str] = field(default_factory=set)
    positions: list[pa.Array] = field(default_factory=list)
    """Their ordinals in the file, by column; a row may occur twice."""
    is_whole: bool = False
    is_exact: bool = True
    """Whether the rows certainly are the subjects': another column may have the same value by chance."""

    @property
    def rows(self) -> pa.Array:
        """The ordinals of the rows, ascending; of a whole file those of the rows that were compared."""
        return pc.unique(pa.chunked_array(self.positions, pa.int64())).sort()

    @property
    def count(self) -> int:
        stated = stated_count(self.add.stats) if self.is_whole else None
        return len(self.rows) if stated is None else stated


LeaveOut = Callable[[Snapshot | None, Incoming, Sequence[Returning]], list[Add | None]]
"""Writes files again without their rows of erased subjects; None for a file of which no row is left."""


class ReturnGuard:
    """Lets no commit bring erased subjects back into a table. See `engine.commit.content.attempt.Guard`.

    `uris` and `table_ids`: further tables whose erasures count, such as the source of a clone. `every_table`: the
    erasures of all tables count, because the files may be of any. `leave_out`: the rows are left out of the files, and
    the commit is not refused.
    """

    def __init__(
        self,
        ledger: Ledger,
        store: Store,
        *,
        uris: Collection[str] = (),
        table_ids: Collection[str] = (),
        every_table: bool = False,
        leave_out: LeaveOut | None = None,
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._uris = {store.root, *uris}
        self._table_ids = set(table_ids)
        self._every_table = every_table
        self._leave_out = leave_out
        self._incoming: Incoming | None = None
        self._version: int | None = None

    def admitted(
        self, snapshot: Snapshot | None, metadata: Metadata | None, adds: Sequence[Add], changes: Sequence[Cdc]
    ) -> Sequence[Add]:
        """Return the files that the commit may add: all of them, or copies of some. Raises the errors of `check`."""
        assert metadata is not None
        root = self._store.root
        have = set[str]()
        if snapshot is not None and adds:
            live = snapshot.state.files.at_paths({canonical_path(add.path, root) for add in adds})
            have = set(file_keys(live, root).to_pylist())
        # A file with another deletion vector may show rows that the present one deletes.
        coming = [add for add, key in zip(adds, action_keys(adds, root), strict=True) if key not in have]
        files = [*coming, *map(_as_add, changes)]
        self._table_ids.add(metadata.id)
        # Files that stay show the columns again that come back, and no copies take their place.
        shows_again = snapshot is not None and _columns_come_back(snapshot.metadata, metadata)
        if snapshot is not None and shows_again:
            files += table_to_adds(snapshot.files(), data_change=False)
        incoming = Incoming(files=files, metadata=metadata, root=root, store=self._store)
        if self._leave_out is None or changes or shows_again:
            self.check(incoming)
            return adds
        instead = self.without_subjects(snapshot, incoming)
        return [each for add in adds if (each := instead.get(add.path, add)) is not None]

    def without_subjects(self, snapshot: Snapshot | None, incoming: Incoming) -> dict[str, Add | None]:
        """Return the copies without erased subjects, by the paths of their files. Raises the errors of `check`."""
        version = self._ledger.version() if incoming.files else None
        found = self.returning(incoming) if incoming.files else []
        if found and (self._leave_out is None or not all(each.is_exact for each in found)):
            raise self._refused(found)
        copies = self._leave_out(snapshot, incoming, found) if found and self._leave_out is not None else []
        instead = {each.add.path: copy for each, copy in zip(found, copies, strict=True)}
        left = [each for add in incoming.files if (each := instead.get(add.path, add)) is not None]
        # An erasure that is recorded from now on is one that these files were not compared with.
        self._incoming, self._version = replace(incoming, files=left), version
        return instead

    def in_table(self, snapshot: Snapshot) -> list[Returning]:
        """Return the live files of the table that hold erased subjects. Raises the errors of `returning`.

        Another engine, which reads no ledger, may have brought them back.
        """
        self._table_ids.add(snapshot.metadata.id)
        files = table_to_adds(snapshot.files(), data_change=False)
        return self.returning(
            Incoming(files=files, metadata=snapshot.metadata, root=self._store.root, store=self._store)
        )

    def check(self, incoming: Incoming) -> None:
        """Raise SubjectReturns if a file holds an erased subject.

        Raises LedgerKeyMissing, TableNotFound without a ledger; CorruptDataFile, OutsideTable and UnsupportedFeature
        for a file that cannot be read.
        """
        if incoming != self._incoming:
            self._incoming, self._version = incoming, None
        self.check_again()

    def check_again(self) -> None:
        """Compare the files again if the ledger has changed. Raises as `check` does."""
        if self._incoming is None or not self._incoming.files:
            return
        version = self._ledger.version()
        if version != self._version:
            found = self.returning(self._incoming)
            if found:
                raise self._refused(found)
            self._version = version

    def returning(self, incoming: Incoming) -> list[Returning]:
        """Return the files with rows of erased subjects, and those rows. Raises the other errors of `check`."""
        erased = self._ledger.erased_from(*(((), ()) if self._every_table else (self._uris, self._table_ids)))
        if not erased:
            return []
        search = _Search.of(incoming, erased, self._ledger)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="txlog-ledger") as pool:
            try:
                return [each for each in pool.map(search.in_file, range(len(incoming.files))) if each.requests]
            finally:
                # After an error no other file is opened.
                pool.shutdown(wait=False, cancel_futures=True)

    def _refused(self, found: Sequence[Returning]) -> SubjectReturns:
        requests = sorted({request for each in found for request in each.requests})
        columns = sorted({column for each in found for column in each.columns})
        rows = sum(each.count for each in found)
        named = ", ".join(requests[:_MOST_REQUESTS_NAMED])
        more = f" and {len(requests) - _MOST_REQUESTS_NAMED} more" if len(requests) > _MOST_REQUESTS_NAMED else ""
        return SubjectReturns(
            f"{self._store.root}: erased subjects would return. {rows} rows in {len(found)} files that come into the "
            f"table hold them, in {', '.join(columns)}; request {named}{more} has erased them, as the ledger "
            f"{self._ledger.uri} shows. Nothing was committed. Choose a version or a source without these rows, or "
            "erase them there first.",
            table=self._store.root,
            requests=requests,
            column=columns[0],
            rows=rows,
            files=len(found),
        )


class Compared:
    """The guard of a commit whose files were compared in their source: it compares them again, and admits them."""

    def __init__(self, guard: ReturnGuard) -> None:
        self._guard = guard

    def admitted(
        self, snapshot: Snapshot | None, metadata: Metadata | None, adds: Sequence[Add], changes: Sequence[Cdc]
    ) -> Sequence[Add]:
        """Return the files, compared again if the ledger has changed. Raises the errors of `ReturnGuard.check`."""
        self._guard.check_again()
        return adds

    def check_again(self) -> None:
        self._guard.check_again()


def _columns_come_back(present: Metadata, metadata: Metadata) -> bool:
    """Return whether the table gets a column that was dropped: one by an id that it lacks and has handed out before."""
    highest = int(present.configuration.get(MAX_ID_PROPERTY, 0))
    there, then = (set(_COLUMN_IDS.findall(each.schema_string or "")) for each in (present, metadata))
    return any(int(each) <= highest for each in then - there)


def _as_add(change: Cdc) -> Add:
    return Add(
        path=change.path,
        partition_values=change.partition_values,
        size=change.size,
        modification_time=0,
        data_change=True,
    )


@dataclass(frozen=True, slots=True)
class _Sought:
    """A column in which subjects are sought. `member`: the names of the struct's members below it.

    `every_leaf`: each value below the column counts, because it is nested now, or the ledger names no column of the
    table.
    """

    name: str
    member: tuple[str, ...]
    erased: Sequence[ErasedSubjects]
    every_leaf: bool = False

    @property
    def path(self) -> str:
        return ".".join((self.name, *self.member))

    def arrays(self, column: pa.Array) -> Iterator[tuple[pa.Array, bool]]:
        """Yield the values to compare, and whether each is of the row at the same place."""
        values = pc.struct_field(column, list(self.member)) if self.member else column
        if not self.every_leaf:
            yield values, True
            return
        for leaf in leaves(plain_array(values)):
            yield leaf, len(leaf) == len(column)


@dataclass(frozen=True)
class _Search:
    incoming: Incoming
    sought: Sequence[_Sought]
    schema: pa.Schema
    constants: Mapping[str, pa.Array]
    keys: Mapping[tuple[str, ...], list[DigestKey]]

    @classmethod
    def of(cls, incoming: Incoming, erased: Sequence[ErasedSubjects], ledger: Ledger) -> _Search:
        metadata = incoming.metadata
        columns = table_schema(metadata, incoming.root)
        sought = list(_sought(columns, erased))
        whole = arrow_schema(columns, mapping_mode(metadata.configuration, incoming.root))
        names = list(dict.fromkeys(each.name for each in sought))
        files = adds_to_table(incoming.files)
        # A timestamp without a zone may be any instant: an error, and no pass.
        typed = typed_partition_columns(files, columns, metadata.partition_columns, only=names)
        return cls(
            incoming=incoming,
            sought=sought,
            schema=pa.schema([whole.field(name).with_nullable(True) for name in names if name not in typed]),
            constants={name: values.for_rows(name) for name, values in typed.items()},
            keys={chain: ledger.keys_of(chain) for each in erased for chain in each.requests},
        )

    def in_file(self, number: int) -> Returning:
        incoming = self.incoming
        add = incoming.files[number]
        found = Returning(add)
        for each in self.sought:
            if each.name in self.constants:
                self._compare(self.constants[each.name].slice(number, 1), each, found, 0)
        found.is_whole = bool(found.requests)
        if not self.schema.names:
            return found
        path = canonical_path(add.path, incoming.root)
        if not incoming.is_trusted:
            check_may_read(incoming.root, path, incoming.store.access)
        file = DataFile(store=incoming.store, path=path, size_bytes=add.size)
        with open_data_file(file) as parquet:
            for start, batch in read_batches(file, parquet, list(self.schema)):
                columns = table_columns(file, batch, self.schema)
                for name, column in zip(self.schema.names, columns, strict=True):
                    for each in self.sought:
                        if each.name == name:
                            self._compare(column, each, found, start)
        return found

    def _compare(self, column: pa.Array, sought: _Sought, found: Returning, start: int) -> None:
        """Note the rows of a column that hold a subject; the first one has the ordinal `start`."""
        for values, is_by_row in sought.arrays(column):
            requests, rows = self._matches(values, sought.erased)
            if requests:
                found.requests |= requests
                found.columns.add(sought.path)
                found.positions.append(pc.add(rows if is_by_row else pa.array([0], pa.int64()), start))
                found.is_exact &= not sought.every_leaf

    def _matches(self, values: pa.Array, erased: Sequence[ErasedSubjects]) -> tuple[set[str], pa.Array]:
        """Return the requests whose subjects are among the values, and the places of these."""
        encoded = values if pa.types.is_dictionary(values.type) else plain_array(values).dictionary_encode()
        hits, requests = [], set[str]()
        for index, form in enumerate(canonical_forms(encoded.dictionary)):
            if form is None:
                continue
            for each in erased:
                for chain, digests in each.requests.items():
                    request = digests.get(signed(form, self.keys[chain]))
                    if request is not None:
                        requests.add(request)
                        hits.append(index)
        if not hits:
            return requests, pa.array([], pa.int64())
        is_hit = pc.is_in(encoded.indices, value_set=pa.array(hits, encoded.indices.type))
        return requests, pc.indices_nonzero(is_hit).cast(pa.int64())


def _sought(columns: StructType, erased: Sequence[ErasedSubjects]) -> Iterator[_Sought]:
    """Yield the columns in which the subjects may be: those that the ledger names, else every column.

    A column that was renamed since is known by its physical name; one that has its name now counts, too. One that the
    table does not have at all may have had another name, so no column is left out then.
    """
    by_name: dict[str, list[tuple[StructField, ...]]] = {}
    by_physical: dict[str, list[tuple[StructField, ...]]] = {}
    for path in struct_paths(columns):
        # A column's name may have dots, as the path of a member has.
        by_name.setdefault(".".join(each.name for each in path).lower(), []).append(path)
        by_physical.setdefault(".".join(each.physical_name for each in path), []).append(path)
    unknown: list[ErasedSubjects] = []
    for each in erased:
        found = dict.fromkeys([*by_physical.get(each.physical_column, ()), *by_name.get(each.column.lower(), ())])
        if not found:
            unknown.append(each)
        for path in found:
            kind, member = path[-1].type, tuple(each.name for each in path[1:])
            if not isinstance(kind, VariantType):
                is_nested = isinstance(kind, (StructType, ArrayType, MapType))
                yield _Sought(path[0].name, member, [each], every_leaf=is_nested)
    if unknown:
        for column in columns:
            if not isinstance(column.type, VariantType):
                yield _Sought(column.name, (), unknown, every_leaf=True)
