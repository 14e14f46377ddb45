"""The ledger: which subjects were erased from which tables, as keyed digests in a small Delta table.

An erasure records its subjects before it deletes the first row, so that an operation which would bring them back knows
them. One row is one subject in one column of one table, for one request. The invariants: no value is in the ledger, and
a row leaves it only for one of the same subject under another key.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.parquet.writing import Layout, PartitionedWriter
from airflow_txlog.engine.commit.transaction import Transaction
from airflow_txlog.engine.delta_table import DeltaTable
from airflow_txlog.engine.erasure.digests import DigestKey, canonical_forms, signed
from airflow_txlog.engine.erasure.values.forms import Forms
from airflow_txlog.engine.log.actions import Add
from airflow_txlog.engine.table.snapshot.scan import read_rows
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import CommitConflict, LedgerKeyMissing, ProtocolChanged, TableNotFound
from airflow_txlog.storage import StoreReference

SCHEMA = pa.schema(
    [
        pa.field("table_uri", pa.string(), nullable=False),
        pa.field("table_id", pa.string(), nullable=False),
        pa.field("request_id", pa.string(), nullable=False),
        pa.field("recorded_at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("column", pa.string(), nullable=False),
        pa.field("physical_column", pa.string(), nullable=False),
        pa.field("digest", pa.string(), nullable=False),
        pa.field("keys", pa.string(), nullable=False),
    ]
)
_INDEXED = 4
"""The first columns have statistics, by which a table's rows are found. Those of digests would find nothing."""
_TRIES = 20

Chain = tuple[str, ...]
"""The ids of the keys of a digest, the oldest first."""


@dataclass(frozen=True, kw_only=True)
class ErasedSubjects:
    """The subjects that were erased from one column, by their digests; each with its request.

    `column` and `physical_column` are paths with dots, as the column had them then.
    """

    column: str
    physical_column: str
    requests: Mapping[Chain, Mapping[bytes, str]]


def create_ledger(table: DeltaTable) -> bool:
    """Create the ledger at this place unless it exists. Return whether this call created it."""
    if table.is_there():
        return False
    properties = {"delta.dataSkippingNumIndexedCols": str(_INDEXED)}
    with suppress(ProtocolChanged):
        table.begin_create(SCHEMA, (), properties).commit("CREATE TABLE", {"partitionBy": []})
        return True
    return False


def recorded_in(table: DeltaTable) -> list[dict[str, Any]]:
    """Return the erasures of a ledger, oldest first: `request_id`, `table`, `column`, `subjects` (their number),
    `recorded_at` (milliseconds since 1970) and `keys`.
    """
    columns = ["request_id", "table_uri", "column", "keys"]
    rows = read_rows(table.snapshot(), None, [*columns, "recorded_at"])
    groups = rows.group_by(columns).aggregate([("recorded_at", "min"), ("recorded_at", "count")])
    found = [
        {
            "request_id": row["request_id"],
            "table": row["table_uri"],
            "column": row["column"],
            "subjects": row["recorded_at_count"],
            "recorded_at": int(row["recorded_at_min"].timestamp() * 1000),
            "keys": row["keys"].split(),
        }
        for row in groups.to_pylist()
    ]
    return sorted(found, key=lambda each: (each["recorded_at"], each["request_id"], each["table"], each["column"]))


class Ledger:
    """A ledger, with the keys of its digests, the newest last. New rows have digests by the newest one."""

    def __init__(self, table: DeltaTable, keys: Sequence[DigestKey]) -> None:
        self._table = table
        self._keys = {key.id: key for key in keys}
        self._newest = keys[-1]
        self._read: tuple[int, pa.Table] | None = None

    @property
    def uri(self) -> str:
        return self._table.uri

    # --- erasures ---------------------------------------------------------------------------------------------------

    def record(self, request_id: str, snapshot: Snapshot, forms: Forms) -> int:
        """Record the subjects of a request in a table, and return how many rows are new.

        Rows that are there already, from an earlier try, are not written again. Raises TableNotFound without a ledger.
        """
        return self.record_each(snapshot, {request_id: forms})

    def record_each(self, snapshot: Snapshot, requests: Mapping[str, Forms]) -> int:
        """Record the subjects of several requests, each with its own, in one commit: see `record`."""
        table_id, now_s = snapshot.metadata.id, self._table.clock.now_ms() / 1000
        rows: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
        for row in self._rows(snapshot.uri, table_id):
            # Another column of the table may have the same value.
            rows.setdefault((row["request_id"], row["column"], row["physical_column"]), []).append(row)
        found: list[dict[str, Any]] = []
        for request_id, forms in requests.items():
            column, physical = tuple(forms.paths)[:2]
            have = self._requests_of(rows.get((request_id, column, physical), ()))
            for form in dict.fromkeys(canonical_forms(forms.key_values)):
                assert form is not None
                if not any(self._signed(form, chain) in digests for chain, digests in have.items()):
                    found.append(
                        {
                            "table_uri": snapshot.uri,
                            "table_id": table_id,
                            "request_id": request_id,
                            "recorded_at": dt.datetime.fromtimestamp(now_s, dt.UTC),
                            "column": column,
                            "physical_column": physical,
                            "digest": self._newest.sign(form).hex(),
                            "keys": self._newest.id,
                        }
                    )
        if found:
            tx = self._table.begin()
            self._commit(tx, pa.Table.from_pylist(found, SCHEMA), {"mode": "Append"})
        return len(found)

    # --- checks -----------------------------------------------------------------------------------------------------

    def version(self) -> int:
        """Return the latest version of the ledger. Raises TableNotFound."""
        try:
            return self._table.latest_version()
        except TableNotFound as error:
            raise self._absent(error) from error

    def erased_from(self, uris: Collection[str], table_ids: Collection[str]) -> list[ErasedSubjects]:
        """Return the subjects that were erased from the tables at these places or with these ids, column by column.

        Both empty: from any table. Raises TableNotFound without a ledger; LedgerKeyMissing if the key of a digest is
        not among those given.
        """
        rows = list(self._rows(*uris, *table_ids))
        by_column: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for row in rows:
            by_column.setdefault((row["column"], row["physical_column"]), []).append(row)
        return [
            ErasedSubjects(column=column, physical_column=physical, requests=self._requests_of(of_column))
            for (column, physical), of_column in by_column.items()
        ]

    def keys_of(self, chain: Chain) -> list[DigestKey]:
        """Return the keys of a chain. Raises LedgerKeyMissing."""
        missing = [each for each in chain if each not in self._keys]
        if missing:
            raise LedgerKeyMissing(
                f"the ledger {self.uri} has digests by the keys {', '.join(missing)}, and the keys given are "
                f"{', '.join(self._keys)}. Whether subjects would return is unknown, so nothing was committed. Add the "
                "missing keys to the connection of the ledger (`previous_secrets` of its extra, the oldest first).",
                ledger=self.uri,
                key_ids=missing,
            )
        return [self._keys[each] for each in chain]

    def _requests_of(self, rows: Iterable[Mapping[str, Any]]) -> dict[Chain, dict[bytes, str]]:
        found: dict[Chain, dict[bytes, str]] = {}
        for row in rows:
            found.setdefault(tuple(row["keys"].split()), {})[bytes.fromhex(row["digest"])] = row["request_id"]
        for chain in found:
            self.keys_of(chain)
        return found

    def _signed(self, form: bytes, chain: Chain) -> bytes:
        return signed(form, self.keys_of(chain))

    def _rows(self, *tables: str) -> Iterable[Mapping[str, Any]]:
        rows = self._all_rows()
        if tables:
            wanted = pa.array(tables, pa.string())
            is_wanted = (pc.is_in(rows.column(name), value_set=wanted) for name in ("table_uri", "table_id"))
            rows = rows.filter(pc.or_(*is_wanted))
        return rows.to_pylist()  # type: ignore[no-any-return]

    def _all_rows(self) -> pa.Table:
        try:
            snapshot = self._table.snapshot()
        except TableNotFound as error:
            raise self._absent(error) from error
        if self._read is None or self._read[0] != snapshot.version:
            self._read = snapshot.version, read_rows(snapshot, None, SCHEMA.names)
        return self._read[1]

    def _absent(self, error: TableNotFound) -> TableNotFound:
        return TableNotFound(
            f"the ledger of erased subjects at {self.uri} does not exist, so whether subjects would return is unknown. "
            "Nothing was committed. Correct its URI, or create it with `airflow txlog ledger create`.",
            **error.facts,
        )

    # --- keys -------------------------------------------------------------------------------------------------------

    def rotate(self) -> int:
        """Digest every row once more by the newest key, and return how many rows have changed.

        Older keys are not needed for it, but for the checks: a value is compared by all keys of a row. Raises
        TableNotFound; CommitConflict if other commits kept landing.
        """
        for number in range(_TRIES):
            tx = self._table.begin()
            files = tx.read_whole_table()
            assert tx.snapshot is not None
            rows = read_rows(tx.snapshot, None, SCHEMA.names).to_pylist()
            old = [row for row in rows if row["keys"].split()[-1] != self._newest.id]
            for row in old:
                row["digest"] = self._newest.sign(bytes.fromhex(row["digest"])).hex()
                row["keys"] = f"{row['keys']} {self._newest.id}"
            if not old:
                return 0
            tx.remove(files)
            try:
                self._commit(tx, pa.Table.from_pylist(rows, SCHEMA), {"mode": "Overwrite"})
            except CommitConflict:
                # An erasure has recorded more rows.
                if number + 1 == _TRIES:
                    raise
                continue
            return len(old)
        return 0

    # --- writing ----------------------------------------------------------------------------------------------------

    @cached_property
    def _layout(self) -> Layout:
        return Layout(
            store=StoreReference.of(self._table.store),
            schema=SCHEMA,
            partition_columns=(),
            job_id=self._table.clock.unique_id().replace("-", "")[:16],
            num_indexed_columns=_INDEXED,
        )

    def _commit(self, tx: Transaction, rows: pa.Table, parameters: Mapping[str, Any]) -> None:
        writer = PartitionedWriter(self._layout, self._table.store)
        try:
            for batch in rows.to_batches():
                writer.write(batch)
            files = writer.finish()
        except BaseException:
            writer.abandon()
            raise
        tx.add(
            Add(
                path=file.path,
                partition_values={},
                size=file.size_bytes,
                modification_time=file.modification_time_ms,
                data_change=True,
                stats=file.stats,
            )
            for file in files
        )
        tx.commit("WRITE", parameters)
