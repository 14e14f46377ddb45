"""Each thing that a table does, with each harm done to each kind of request that it makes, on a real S3 server.

What a table does is run once unharmed, which shows the kinds of its requests; then once for each kind and each fault,
the harm done to the first request of the kind. Whatever came of it: the table can be read and is what it was or what it
should be, the same work done again ends as if there had been no harm, once, and VACUUM sweeps what is left over.
The number of cases is printed after the run: one fault for each kind, and all for a commit's put; with
TXLOG_TEST_FAULTS=all every fault for every kind.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.errors import CorruptTable, TxlogError
from airflow_txlog.storage import Access, bucket, object_files, open_store
from tests.conftest import REPORTED
from tests.helpers import s3
from tests.helpers.fault_proxy import FAULTS, FaultProxy
from tests.helpers.harm import is_drawn, left_over, three_days_later
from tests.helpers.rows import append

SCHEMA = pa.schema([("id", pa.int64())])
PROPERTIES = {"delta.deletedFileRetentionDuration": "interval 0 hours", "delta.enableChangeDataFeed": "true"}
# As long as a request waits for an answer, and longer.
PATIENCE_S, LATE_S = 1, 1.4


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultProxy]:
    with FaultProxy(s3.options()["endpoint_url"], late_s=LATE_S) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def _small_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a few kilobytes are read as large ones are: the end first, then what is wanted before it."""
    monkeypatch.setattr(object_files, "TAIL_BYTES", 1024)


def through(proxy: FaultProxy, uri: str) -> Table:
    """The table by way of the proxy; its server is asked again whether it keeps conditions."""
    options = {**s3.options(), "endpoint_url": proxy.endpoint, "timeout_s": PATIENCE_S}
    bucket._PROVED.clear()
    return Table(open_store(uri, Access(storage_options=options)))


def rows(start: int, count: int = 300) -> pa.Table:
    return pa.table({"id": pa.array(range(start, start + count), pa.int64())}, schema=SCHEMA)


def many_rows() -> pa.Table:
    """A file of three parts, whatever the codec."""
    count = 12 * 1024 * 1024 // 8
    values = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(random.Random(1).randbytes(8 * count))])
    return pa.table({"id": values}, schema=SCHEMA)


def ids(table: Table) -> pa.Array:
    return sort(table.to_arrow())


def found_at(uri: str) -> pa.Array | None:
    """Not through the proxy; None where there is no table."""
    options = s3.options()
    return ids(Table.open(uri, storage_options=options)) if Table.exists(uri, options) else None


def added(before: pa.Array | None, rows: pa.Table) -> pa.Array:
    more = rows.column("id").combine_chunks()
    return more.sort() if before is None else pa.concat_arrays([before, more]).sort()


def sort(rows: pa.Table) -> pa.Array:
    return rows.column("id").combine_chunks().sort()


def create_once(table: Table) -> None:
    """As a task does it: nothing where an earlier try has made it."""
    if not Table.exists(table.store):
        table.begin_create(SCHEMA, (), PROPERTIES).commit("CREATE TABLE")


def nothing_made(uri: str) -> Table:
    """The place of a table to come. Not through the proxy."""
    return Table.at(uri, s3.access())


def made(uri: str) -> Table:
    """Version 4: three appends, and a removed file that VACUUM may take; a checkpoint at 2. Not through the proxy."""
    table = Table.create(uri, SCHEMA, properties=PROPERTIES, storage_options=s3.options())
    append(table, rows(0))
    append(table, rows(1000))
    table.checkpoint()
    tx = table.begin()
    tx.remove(tx.read("id < 1000"))
    tx.commit("DELETE")
    append(table, rows(2000))
    return table


def append_once(table: Table) -> None:
    """As a job does it: nothing where an earlier try has landed."""
    if table.snapshot().application_version("app") is None:
        append(table, rows(3000), application=("app", 1))


def large_append(table: Table) -> None:
    """A file of several parts."""
    if table.snapshot().application_version("large") is None:
        append(table, many_rows(), application=("large", 1))


LONG_CASE = pytest.mark.long("a fault for each kind of request")


@dataclasses.dataclass(frozen=True)
class Case:
    """What is done to the table, and the rows that it adds."""

    do: Callable[[Table], Any]
    adds: pa.Table | None = None
    writes: bool = True
    kinds: tuple[str, ...] = ()
    """The kinds of request that no other case has; none: all."""
    begin: Callable[[str], Table] = made
    """Makes what it is done to."""


CASES = {
    "create": Case(create_once, rows(0, 0), begin=nothing_made),
    "commit": Case(append_once, rows(3000), kinds=("PUT commit",)),
    "append": Case(append_once, rows(3000)),
    "large append": Case(large_append, many_rows(), kinds=("POST uploads", "PUT uploadId", "POST uploadId")),
    "read": Case(lambda table: ids(table), writes=False),
    "time travel": Case(lambda table: sort(table.to_arrow(version=1)), writes=False),
    "changes": Case(lambda table: sort(table.changes(1)), writes=False),
    "history": Case(lambda table: table.history(), writes=False),
    "checkpoint": Case(lambda table: table.checkpoint()),
    # Later, because a store's clock has whole seconds: whether a commit of this one counts as passed would be chance.
    "vacuum": Case(lambda table: three_days_later(table).vacuum(0, check_retention=False)),
    "lite vacuum": Case(lambda table: three_days_later(table).vacuum(0, check_retention=False, mode="lite")),
    "clean": Case(lambda table: table.clean_log()),
    "check": Case(lambda table: table.check(), writes=False),
    "restore": Case(lambda table: table.restore(version=table.latest_version())),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name == "commit" else LONG_CASE) for name in CASES])
def test_no_fault_of_the_store_hurts_a_table(
    name: str,
    proxy: FaultProxy,
    record_property: Callable[[str, object], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The least that S3 takes for a part that is not the last.
    monkeypatch.setattr("airflow_txlog.storage.s3.S3Bucket.part_bytes", 5 * 1024 * 1024)
    case = CASES[name]
    proxy.take()
    case.do(through(proxy, case.begin(s3.new_folder()).uri))
    made_requests = proxy.take()
    kinds = sorted(case.kinds or made_requests)
    assert set(kinds) <= set(made_requests)
    failures, outcomes = [], 0
    # From another row on in each case, so that a request which many of them make meets many faults.
    for row, kind in enumerate(kinds, start=list(CASES).index(name)):
        for column, fault in enumerate(FAULTS):
            if not is_drawn(row, column) and (name, kind) != ("append", "PUT commit"):
                continue
            outcomes += 1
            try:
                harmed(proxy, case, kind, fault)
            except AssertionError as error:
                failures.append(f"{kind}, {fault}: {error}")
    record_property(REPORTED, f"faults of a store: {name}: {outcomes} cases, {len(kinds)} kinds of request")
    assert not failures, "\n".join(failures)


def harmed(proxy: FaultProxy, case: Case, kind: str, fault: str) -> None:
    straight = case.begin(s3.new_folder())
    before = found_at(straight.uri)
    after = before if case.adds is None else added(before, case.adds)
    answer = None if case.writes else case.do(straight)
    table = through(proxy, straight.uri)
    proxy.harm(kind, fault)
    try:
        given = case.do(table)
    except CorruptTable as error:
        raise AssertionError(f"a fault of the store is called damage: {error!r}") from error
    except (TxlogError, OSError) as error:
        outcome = repr(error)
    else:
        outcome = "done"
        assert case.writes or given == answer, "it answers other than without a fault"
    assert proxy.is_done, "the request was not made"
    found = found_at(straight.uri)
    assert found in (before, after), f"the rows are neither those before nor those after ({outcome})"
    assert outcome != "done" or found == after, "done, and it is not there"
    case.do(through(proxy, straight.uri))
    if case.writes:
        again = Table.open(straight.uri, storage_options=s3.options())
        assert ids(again) == after, f"done again, and the rows differ ({outcome})"
        assert {finding.code for finding in again.check()} <= {"retention_short"}, outcome
        assert left_over(again) == set(), outcome
        assert found_at(straight.uri) == after
