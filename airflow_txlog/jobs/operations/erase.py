"""ERASE: delete the rows of some subjects, and then every object that holds a value of one and that may go.

The jobs of DELETE and OPTIMIZE delete the rows and purge the files with deletion vectors; `engine.erasure.removal` does
the rest. Each step depends only on the state of the table, so no application transaction is needed: a job that runs
again also deletes rows that have returned, and completes the remaining steps. The invariant: the subjects are in the
ledger before the first row is deleted, so that no job brings them back after a killed erasure. Source: soundness B5.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from airflow_txlog.contract.job import Details, JobResult
from airflow_txlog.contract.operations import Delete, Erase, KeyValues, Operation, Optimize
from airflow_txlog.contract.parameters import encode_parameter
from airflow_txlog.contract.wording import plural
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.erasure.forgotten_deletions import remembers_deletions
from airflow_txlog.engine.erasure.forms import Forms
from airflow_txlog.engine.erasure.object_verdicts import ObjectVerdict
from airflow_txlog.engine.erasure.removal import Removal, remove_traces
from airflow_txlog.engine.log.segment import look
from airflow_txlog.engine.table.schema.features import check_maintained_here
from airflow_txlog.engine.table.snapshot.commit_times import moment_text
from airflow_txlog.engine.upkeep.vacuum_plan import milliseconds
from airflow_txlog.exactly_once.transactions import remove_saved_work
from airflow_txlog.jobs.context import FixedTexts, JobContext
from airflow_txlog.jobs.files.erased_subjects import record_erasure
from airflow_txlog.jobs.operations.delete.job import delete
from airflow_txlog.jobs.operations.optimize.job import optimize
from airflow_txlog.jobs.operations.verify_erasure import entry_of, list_name, lists_of, write_list
from airflow_txlog.jobs.source.given_keys import given_keys
from airflow_txlog.jobs.sql.gate import SqlGate, quoted
from airflow_txlog.storage.base import Store

_WAITS_SHOWN = 20
# The kinds of lists: of the objects that are gone, and of those that were about to go.
_DELETED, _PLANNED = "deleted", "planned"


def erase(context: JobContext) -> JobResult:
    """Run the job of `context.spec`; `details.erasure` has the steps and the waits.

    Raises UnknownColumn; InvalidInput without subjects, and for one that the column cannot hold; the errors of a delete
    by keys, of a purge and of a removal.
    """
    return _Erasure(context).run()


class _Erasure:
    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._described = context.record(Erase)
        self._steps: list[dict[str, Any]] = []

    def run(self) -> JobResult:
        context = self._context
        check_maintained_here(context.store, "ERASE")
        # A table that may not be written here is refused before anything is done.
        snapshot = context.table.begin().snapshot
        assert snapshot is not None
        report_uri = self._described.report_uri
        lists = None if report_uri is None else lists_of(context, report_uri)
        with context.step("read"):
            keys, _ = given_keys(context, SqlGate(context), self._described.keys, snapshot)
            forms = Forms.of(snapshot, self._described.keys.column, keys)
        self._log_plan(snapshot, forms)
        self._record(snapshot, forms)
        deleted = self._ends("delete", delete(self._as(self._delete(snapshot, forms))))
        # Its keys are written down there; what is left would count as an object that cannot be read.
        remove_saved_work(context.store, context.inputs_folder)
        purged = self._ends("purge", optimize(self._as(Optimize(purge=True))))
        with context.step("remove"):
            removal = remove_traces(
                context.table,
                forms,
                writer_ms=milliseconds(self._described.writer_hours),
                cuts_log=self._described.cut_log,
                say=context.log,
                note=partial(self._plan_deletion, lists),
            )
        self._step("remove", removal.version)
        for wait in removal.waits[:_WAITS_SHOWN]:
            context.log(f"{wait.path} stays until {moment_text(wait.until_ms)}: {wait.why}")
        metrics = {
            "numSubjects": len(forms.values),
            "numDeletedRows": deleted.metrics.get("numDeletedRows", 0),
            "numRemovedFiles": purged.metrics.get("numRemovedFiles", 0),
            "numDeletedFiles": removal.deleted_files,
            "numDeletedLogFiles": removal.deleted_log_files,
        }
        result = context.result(
            is_committed=removal.version > snapshot.version or removal.cut is not None,
            version=removal.version,
            read_version=snapshot.version,
            metrics=metrics,
        )
        return dataclasses.replace(result, details=Details(erasure=self._report(removal, lists, forms)))

    def _record(self, snapshot: Snapshot, forms: Forms) -> None:
        request_id = self._described.request_id
        if request_id is not None:
            with self._context.step("record"):
                count = record_erasure(self._context, request_id, snapshot, forms)
                if count is not None:
                    # The delete may find no row, and commit nothing. A job that has compared its rows with the ledger
                    # before loses to this commit, or its rows are seen by the delete. An earlier try may have recorded
                    # them and been killed before this commit.
                    self._context.table.begin().commit("ERASE", record_empty=True)
            if count is not None:
                self._context.log(f"{plural(count, 'subject')} recorded in the ledger of erasures")

    def _delete(self, snapshot: Snapshot, forms: Forms) -> Delete:
        """Return the delete of the subjects' rows: by keys, or for a member of a struct by a condition."""
        column, values = self._described.keys.column, forms.values.to_pylist()
        if snapshot.delta_schema.find(column) is not None:
            return Delete(predicate=None, keys=KeyValues(column=column, values=encode_parameter(values, "keys")))
        path = ".".join(quoted(part) for part in column.split("."))
        given = {f"subject_{number}": encode_parameter(value, "subject") for number, value in enumerate(values)}
        return Delete(predicate=f"{path} IN ({', '.join(f':{name}' for name in given)})", parameters=given)

    # --- the report -------------------------------------------------------------------------------------------------

    def _log_plan(self, snapshot: Snapshot, forms: Forms) -> None:
        first = look(self._context.store, 0).earliest
        self._context.log(
            f"plan: erase {plural(len(forms.values), 'subject')} from version {snapshot.version}; versions can be read "
            f"from {first} on. Those that need a file with a subject end, also for readers that read one now"
        )
        if self._described.cut_log:
            self._context.log(
                "if the log holds a subject, it will begin at a new checkpoint, and all versions before that end. "
                f"Files and commits that a writer may need stay {self._described.writer_hours:g} hours"
            )

        if remembers_deletions(snapshot):
            self._context.log(
                "the table remembers the deletions of applied changes. The tombstones of a subject are erased, too: an "
                "older event that arrives later inserts the subject again"
            )

    def _ends(self, name: str, result: JobResult) -> JobResult:
        if result.status == "committed" and result.version is not None:
            self._step(name, result.version)
        return result

    def _step(self, name: str, version: int) -> None:
        self._steps.append({"name": name, "version": version, "at": moment_text(self._context.clock.now_ms())})

    def _report(self, removal: Removal, lists: Store | None, forms: Forms) -> dict[str, Any]:
        gone = [_as_deleted(each) for each in removal.gone]
        waits = [
            {"path": wait.path, "until": moment_text(wait.until_ms), "why": wait.why}
            for wait in sorted(removal.waits, key=lambda each: -each.until_ms)[:_WAITS_SHOWN]
        ]
        return {
            "steps": self._steps,
            "cut": removal.cut,
            "waits": waits,
            "num_waits": len(removal.waits),
            "until_ms": removal.until_ms,
            "num_tombstones": removal.num_tombstones,
            "deleted": [] if lists is None else self._lists(lists, gone, forms),
        }

    def _kind(self, what: str) -> str:
        """Return the start of the names of the lists of this request and table."""
        # The copies of a table have one id.
        place = hashlib.sha256(self._context.table.uri.encode()).hexdigest()[:16]
        return f"{what}-{self._described.request_id}-{place}"

    def _plan_deletion(self, lists: Store | None, verdicts: Sequence[ObjectVerdict]) -> None:
        """Write down which objects are about to go. A try that is killed after a deletion lists them by this."""
        if lists is not None and verdicts:
            write_list(lists, map(_as_deleted, verdicts), self._kind(_PLANNED))

    def _lists(self, lists: Store, gone: Sequence[Mapping[str, Any]], forms: Forms) -> list[dict[str, Any]]:
        """Write the list of the deleted objects; return it and those of earlier tries, before a wait or a kill."""
        listed = {_object_of(each) for _, entries in self._written(lists, self._kind(_DELETED)) for each in entries}
        # An earlier try may have deleted some of these, and been killed before it listed them.
        planned = [each for _, entries in self._written(lists, self._kind(_PLANNED)) for each in entries]
        planned = [each for each in planned if _object_of(each) not in listed]
        if planned:
            unreadable: list[str] = []
            there = {forms.without_values(info.path) for info in self._context.store.walk(unreadable.append)}
            # Whether an object below such a folder is gone is unknown.
            planned = [each for each in planned if each["path"] not in there and not unreadable]
        new = {_object_of(each): each for each in (*planned, *gone) if _object_of(each) not in listed}
        if new:
            write_list(lists, [*new.values()], self._kind(_DELETED))
        found = []
        for data, entries in self._written(lists, self._kind(_DELETED)):
            name, digest = list_name(data, self._kind(_DELETED)), hashlib.sha256(data).hexdigest()
            found.append({"name": name, "sha256": digest, "num_objects": len(entries)})
        return found

    def _written(self, lists: Store, kind: str) -> Iterator[tuple[bytes, list[dict[str, Any]]]]:
        """Yield the lists of a kind, each with its bytes."""
        for name in sorted(info.path for info in lists.walk(lambda folder: None, prefix=f"{kind}-")):
            with lists.open_input(name) as source:
                data = source.read()
            if name != list_name(data, kind):
                self._context.log(f"{name} is not the list that an earlier try wrote, and is left out of the report")
                continue
            yield data, [json.loads(line) for line in gzip.decompress(data).splitlines()]

    def _as(self, operation: Operation) -> JobContext:
        """Return this job as that of one step: it commits, logs and measures as the step's own."""
        spec = self._context.spec.replace(operation=operation)
        texts = FixedTexts(operation=operation, parameters=operation.bound_parameters)
        step = dataclasses.replace(self._context, spec=spec, texts=texts)
        # Its inputs lie in the folder that is deleted after this job.
        step.job_id = self._context.job_id
        return step


def _as_deleted(verdict: ObjectVerdict) -> dict[str, Any]:
    """Return the line on an object that held a subject: the digest, the method and the places are those of then."""
    return entry_of(dataclasses.replace(verdict, verdict="deleted", reason=None))


def _object_of(entry: Mapping[str, Any]) -> tuple[str, str | None]:
    return entry["path"], entry.get("digest")
