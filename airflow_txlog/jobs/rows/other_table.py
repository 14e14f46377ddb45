"""Rows for another table: those that an expectation sends to quarantine, or samples of a dry run.

The rows wait in files of the inputs folder, which the saved work names. Each attempt that has passed its checks first
appends them, under an application transaction of this work, and then makes its own commit, unless it is a dry run; so a
row is never in neither table. The invariant: the rows are in the other table once, whatever retries do. A job whose own
commit then fails for good leaves them there. Source: soundness B5.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pyarrow as pa

from airflow_txlog.contract.job import ApplicationTransaction, JobResult, JobSpec
from airflow_txlog.contract.operations import LimitedOperation, RowsInProcess, Write
from airflow_txlog.contract.wording import plural
from airflow_txlog.datafiles.parquet.reading import DataFile, open_data_file
from airflow_txlog.datafiles.staged_files import first_of_types
from airflow_txlog.datafiles.tasks.scan_and_write import Task
from airflow_txlog.engine import DeltaTable, Transaction
from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.table.schema.column_mapping import MODE_PROPERTY, forbidden_names, table_schema
from airflow_txlog.engine.table.schema.rules import read_rules
from airflow_txlog.engine.table.schema.schema import from_arrow
from airflow_txlog.engine.table.schema.types import bare_columns
from airflow_txlog.errors import InvalidJobSpec, JobError, TableNotFound, TxlogError, UnsupportedFeature
from airflow_txlog.exactly_once.transactions import find_done
from airflow_txlog.jobs.context import FixedTexts, JobContext
from airflow_txlog.jobs.files.stage import MOST_SAMPLES, TaskRows, layout_for, stage
from airflow_txlog.jobs.resume.attempts import Change, run_attempts
from airflow_txlog.jobs.resume.memory import ROWS, Memory, Segment, rules_at
from airflow_txlog.jobs.source.materialized import input_scan


def check_other_table(context: JobContext, table_id: str) -> None:
    """Raise an error, before anything is staged, if rows cannot be put into the other table.

    Raises InvalidJobSpec if it is the job's own table (whose id is `table_id`) by any name, or for samples a folder
    inside of it, and as `_check_rules`.
    """
    uri, name = _uri_of(context), _argument(context)
    if uri is None:
        return
    table, snapshot = DeltaTable.at(uri, context.spec.access), None
    with contextlib.suppress(TableNotFound):
        snapshot = table.snapshot()
    is_inside = context.is_dry_run and table.uri.startswith(f"{context.root}/")
    if table.uri == context.root or is_inside or (snapshot is not None and snapshot.metadata.id == table_id):
        what = f"a folder inside of the table {context.root}" if is_inside else f"the table {context.root} itself"
        raise InvalidJobSpec(
            f"{name} is {what}. Name another one. Nothing was staged.",
            argument=name,
        )
    if snapshot is not None:
        _check_rules(snapshot.metadata, table.uri, name)


def begin_samples(context: JobContext, memory: Memory) -> None:
    """Forget the samples of an earlier attempt with all that it staged, so that this one takes its own."""
    if context.takes_samples:
        memory.forget()
        context.saved_inputs.elsewhere = ()


def _check_rules(metadata: Metadata, uri: str, argument: str) -> None:
    """Raise UnsupportedFeature if a row could break a rule of the other table, or would need a value of it."""
    schema = table_schema(metadata, uri)
    rules = read_rules(metadata, schema, uri)
    if rules.must_check or rules.fills or any(not field.nullable for field in schema):
        raise UnsupportedFeature(
            f"{uri} has constraints, NOT NULL columns, generated or identity columns, defaults or lengths of text, and "
            f"the table that {argument} names must have none. Name another one. Nothing was committed.",
            table=uri,
            feature="rules of the table",
            needed_to="write",
        )


def to_other_table(context: JobContext) -> Callable[[], None] | None:
    """Return the step that appends the rows for the other table; None without one."""
    uri = _uri_of(context)
    if uri is None:
        return None
    if context.saved_inputs.reads_target and not context.is_dry_run:
        raise InvalidJobSpec(
            f"The source reads the table {context.root} itself, so that each attempt may find other rows, and "
            "expect_or_quarantine writes rows once. Use expect_or_drop, or another source. Nothing was committed.",
            argument="expect_or_quarantine",
        )
    return lambda: _append(context, uri)


def _uri_of(context: JobContext) -> str | None:
    return operation.appends_to if isinstance(operation := context.operation, LimitedOperation) else None


def _argument(context: JobContext) -> str:
    return "samples_to" if context.is_dry_run else "quarantine_uri"


def _words(context: JobContext) -> str:
    return "samples" if context.is_dry_run else "quarantine"


def _append(context: JobContext, uri: str) -> None:
    count, found = sum(file.num_records for file in context.saved_inputs.elsewhere), context.num_elsewhere
    if found is None:
        job = _Append(context, uri)
        try:
            # Without rows, an earlier try may still have put some there.
            result = job.run() if count else find_done(job.spec)
        except TxlogError as error:
            raise type(error)(f"The {_words(context)} of {context.root}: {error.message}", **error.facts) from error
        # A log that was cleaned does not have the count of an earlier try.
        found = context.num_elsewhere = 0 if result is None else result.metrics.get("numOutputRows", count)
        if result is not None:
            context.log(f"{plural(found, 'row')} in {_argument(context)}: {uri}, version {result.version}")
    if found != count and not context.is_dry_run:
        raise JobError(
            f"An earlier try or attempt of this work has put {plural(found, 'row')} into quarantine at {uri}, and this "
            f"one has {count}: the source has changed in between. Nothing was committed to {context.root}. Look at the "
            "rows in quarantine, delete those of this work, and clear the task."
        )


def _application(context: JobContext) -> ApplicationTransaction | None:
    """Return the identity of the append, which differs for other work of the same task.

    Other work is that on other tables, after a clear, or after another watermark; and a dry run with other arguments
    under one idempotency key, because no commit to the table refuses it.
    """
    own, chosen = context.spec.application, context.saved_inputs.range
    if own is None:
        return None
    follows = "" if chosen is None else f"\0{chosen.table_id}\0{chosen.after}\0{chosen.base}"
    if context.is_dry_run and own.check_digest:
        follows += f"\0{context.spec.digest()}"
    work = hashlib.sha256(f"{context.root}\0{own.began_ms}{follows}".encode(errors="surrogatepass")).hexdigest()
    return replace(own, app_id=f"{own.app_id}/{_words(context)}/{work[:16]}")


class _Append:
    """The append to the other table, by the executor of the job."""

    def __init__(self, context: JobContext, uri: str) -> None:
        self._from = context
        self._memory = Memory()
        self._files = context.saved_inputs.elsewhere
        described = context.spec
        self.spec = spec = JobSpec(
            operation=Write(source=RowsInProcess(), schema_evolution=True),
            table_uri=uri,
            application=_application(context),
            annotations=described.annotations,
            conflict_deadline_s=described.conflict_deadline_s,
            strict_writers=described.strict_writers,
            access=described.access,
            saved_work_key=described.saved_work_key,
        )
        self._context = JobContext(
            spec=spec,
            executor=context.executor,
            table=DeltaTable.at(uri, spec.access, limits=context.limits, strict_writers=spec.strict_writers),
            log=lambda line: context.log(f"{_words(context)}: {line}"),
            current_time=context.current_time,
            texts=FixedTexts(operation=spec.operation, parameters={}),
        )

    def run(self) -> JobResult:
        """Append the rows, unless an earlier try has. Raises TxlogError."""
        return run_attempts(self._context, self._plan, memory=self._memory, begin_absent=self._begin_absent)

    def _begin_absent(self) -> Transaction:
        columns = bare_columns(from_arrow(self._schema))
        return self._context.table.begin_create(
            columns, [], {MODE_PROPERTY: "name"} if forbidden_names(columns) else {}
        )

    @property
    def _schema(self) -> pa.Schema:
        first = self._files[0]
        file = DataFile(
            store=self._from.store, path=first.store_path, size_bytes=first.size_bytes, num_records=first.num_records
        )
        with open_data_file(file) as parquet:
            return parquet.schema_arrow.remove_metadata()

    def _plan(self, tx: Transaction) -> Change:
        context, memory, schema = self._context, self._memory, self._schema
        if tx.snapshot is None:
            memory.forget()
        else:
            tx.evolve_schema(bare_columns(from_arrow(schema)))
            memory.begin(rules_at(tx.snapshot))
        protocol, metadata = tx.protocol, tx.metadata
        assert protocol is not None
        assert metadata is not None
        if not memory.segments:
            _check_rules(metadata, context.root, _argument(self._from))
            # One task sees all samples, of which it writes the first of each type.
            scan = input_scan(self._from, self._files, schema, in_one=self._from.is_dry_run)
            steps = (partial(first_of_types, MOST_SAMPLES),) if self._from.is_dry_run else ()
            rows = TaskRows(Task(source=scan, steps=steps))
            new = stage(context, layout_for(context, protocol, metadata, tx.clustering), [(rows, None)])
            memory.add([Segment(kind=ROWS, inputs=frozenset(), files=tuple(new.files))])
        staged = [file for segment in memory.segments for file in segment.files]
        return Change(
            operation="WRITE",
            parameters={"mode": "Append", "partitionBy": json.dumps(list(metadata.partition_columns))},
            staged=staged,
            metrics={
                "numFiles": len(staged),
                "numOutputRows": sum(file.num_records for file in staged),
                "numOutputBytes": sum(file.size_bytes for file in staged),
            },
            is_creation=tx.snapshot is None,
        )
