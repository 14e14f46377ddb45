"""The ledger of erased subjects in a job: an erasure records them, and no other job brings them back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from airflow_txlog.contract.wording import plural
from airflow_txlog.engine import DeltaTable, Snapshot
from airflow_txlog.engine.erasure.digests import DigestKey
from airflow_txlog.engine.erasure.ledger import Ledger
from airflow_txlog.engine.erasure.returns import Incoming, ReturnGuard, Returning
from airflow_txlog.engine.erasure.values.forms import Forms
from airflow_txlog.engine.log.actions import Add
from airflow_txlog.errors import LedgerKeyMissing
from airflow_txlog.jobs.context import LogContext
from airflow_txlog.jobs.files.rows_left_out import RowsLeftOut


def guard_of(
    context: LogContext,
    *,
    uris: Collection[str] = (),
    table_ids: Collection[str] = (),
    every_table: bool = False,
    may_leave_out: bool = False,
) -> ReturnGuard | None:
    """Return the guard of the job's table; None if the job has no ledger. The arguments are those of `ReturnGuard`.

    `may_leave_out`: the job can leave rows out, because the files were not staged by it. It does so if its connection
    wants that.

    Raises LedgerKeyMissing for a ledger without any key.
    """
    spec, ledger = context.spec, _ledger_of(context)
    if ledger is None:
        return None

    def leave_out(snapshot: Snapshot | None, incoming: Incoming, found: Sequence[Returning]) -> list[Add | None]:
        copies = RowsLeftOut(context, snapshot, incoming)
        with context.step("leave out"):
            made = [copies.copy(number, each) for number, each in enumerate(found)]
        rows, files = sum(each.count for each in found), plural(len(found), "file")
        context.log(f"{plural(rows, 'row')} of erased subjects in {files} left out again, as the ledger demands")
        return made

    return ReturnGuard(
        ledger,
        context.store,
        uris=uris,
        table_ids=table_ids,
        every_table=every_table,
        leave_out=leave_out if may_leave_out and spec.leaves_out_erased else None,
    )


def record_erasure(context: LogContext, snapshot: Snapshot, requests: Mapping[str, Forms]) -> int | None:
    """Record the subjects of each request in the ledger; return how many rows of it are new, None without one.

    An erasure calls it before it deletes the first row. Raises LedgerKeyMissing, TableNotFound.
    """
    ledger = _ledger_of(context)
    return None if ledger is None else ledger.record_each(snapshot, requests)


def _ledger_of(context: LogContext) -> Ledger | None:
    spec = context.spec
    if spec.ledger_uri is None:
        return None
    if not spec.ledger_keys:
        raise LedgerKeyMissing(
            f"{context.root}: the job has the ledger {spec.ledger_uri} of erased subjects, and no key of its digests. "
            "Nothing was read. Run the task again with the connection of the ledger's key.",
            ledger=spec.ledger_uri,
            key_ids=[],
        )
    keys = [DigestKey.of(text, "a key of the ledger") for text in spec.ledger_keys]
    return Ledger(DeltaTable.at(spec.ledger_uri, context.store.access, limits=context.limits), keys)
