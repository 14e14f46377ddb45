"""ERASE: delete the rows of some subjects, and then every object that holds a value of one and that may go.

The jobs of DELETE and OPTIMIZE delete the rows and purge the files with deletion vectors; `engine.erasure.removal` does
the rest. Each step depends only on the state of the table, so no application transaction is needed: a job that runs
again also deletes rows that have returned, and completes the remaining steps. The invariant: the subjects are in the
ledger before the first row is deleted, so that no job brings them back after a killed erasure. Source: soundness B5.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.contract.job import Details, JobResult
from airflow_txlog.contract.operations import Delete, Erase, KeyValues, Operation, Optimize
from airflow_txlog.contract.parameters import encode_parameter
from airflow_txlog.contract.wording import plural
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.checkpointing import named_sidecars
from airflow_txlog.engine.erasure.attribution import Attribution, Holders, Requests
from airflow_txlog.engine.erasure.forgotten_deletions import remembers_deletions
from airflow_txlog.engine.erasure.marked_errors import errors_marked
from airflow_txlog.engine.erasure.object_verdicts import Held, ObjectVerdict
from airflow_txlog.engine.erasure.readable_versions import ended, readable_versions
from airflow_txlog.engine.erasure.removal import Removal, Wait, remove_traces
from airflow_txlog.engine.erasure.values.forms import Forms
from airflow_txlog.engine.erasure.values.key_columns import key_path
from airflow_txlog.engine.log.actions import decode_commit
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.log.paths import canonical_paths
from airflow_txlog.engine.log.segment import look
from airflow_txlog.engine.table.schema.features import check_maintained_here
from airflow_txlog.engine.table.snapshot.commit_times import moment_text
from airflow_txlog.engine.table.snapshot.scan import read_row_batches
from airflow_txlog.engine.upkeep.vacuum_plan import milliseconds
from airflow_txlog.exactly_once.transactions import remove_saved_work
from airflow_txlog.jobs.context import FixedTexts, JobContext, SavedInputs
from airflow_txlog.jobs.files.erased_subjects import record_erasure
from airflow_txlog.jobs.files.erasure_lists import (
    ErasureRecord,
    ListWriter,
    earlier_records,
    entry_of,
    lists_of,
    names_in,
    object_of,
    objects_in,
    place_of,
    remove_plans,
    unverified_requests,
)
from airflow_txlog.jobs.files.killed_runs import KilledRuns, is_recorded, killed_runs
from airflow_txlog.jobs.operations.delete.job import delete
from airflow_txlog.jobs.operations.optimize.job import optimize
from airflow_txlog.jobs.source.given_keys import given_requests
from airflow_txlog.jobs.sql.gate import quoted
from airflow_txlog.storage.base import Store

_WAITS_SHOWN = 20
_MINUTE_MS = 60_000


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
        self._written: dict[str, int] = {}
        self._plans: list[tuple[str, ErasureRecord]] = []
        self._run_id = context.clock.unique_id()
        self._killed = KilledRuns()
        self._unverified: set[str] = set()
        self._said: set[str] = set()
        self._readable: list[range] | None = None
        self._names: list[str] = []
        # A verdict stays here as long as its id.
        self._holders: dict[int, tuple[ObjectVerdict, Holders]] = {}

    def run(self) -> JobResult:
        context = self._context
        check_maintained_here(context.store, "ERASE")
        # A table that may not be written here is refused before anything is done.
        snapshot = context.table.begin().snapshot
        assert snapshot is not None
        report_uri = self._described.report_uri
        lists = None if report_uri is None else lists_of(context, report_uri)
        with context.step("read"):
            requests = given_requests(context, self._described, snapshot)
        if requests is None:
            return context.result(
                is_committed=False, version=snapshot.version, read_version=snapshot.version, metrics={"numSubjects": 0}
            )
        with errors_marked(requests.forms):
            return self._erase(snapshot, requests, lists)

    def _erase(self, snapshot: Snapshot, requests: Requests, lists: Store | None) -> JobResult:
        context = self._context
        self._readable = readable_versions(context.table)
        self._log_plan(snapshot, requests, self._readable)
        if lists is not None:
            self._killed = self._killed_before(snapshot, requests, lists)
            requests = requests.also_named(self._names)
        self._names = list(requests.forms.paths)
        self._record(snapshot, requests)
        forms = requests.forms
        self._plan("delete", requests, lists)
        deleted = delete(self._as(self._delete(snapshot, forms)))
        self._ends("delete", deleted, num_rows=_num_deleted(deleted).get("numDeletedRows"))
        # Its keys are written down there; what is left would count as an object that cannot be read.
        remove_saved_work(context.store, context.inputs_folder)
        self._plan("purge", requests, lists)
        purged = self._ends("purge", optimize(self._as(Optimize(purge=True))))
        self._keep_written(forms)
        with context.step("remove"):
            removal = self._remove(requests, lists)
        for wait in removal.waits[:_WAITS_SHOWN]:
            context.log(f"{wait.path} stays until {moment_text(wait.until_ms)}: {wait.why}")
        metrics = {
            "numSubjects": len(forms.values),
            **_num_deleted(deleted),
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
        return dataclasses.replace(result, details=Details(erasure=self._report(removal, requests, lists)))

    def _record(self, snapshot: Snapshot, requests: Requests) -> None:
        if self._described.requests is None and self._described.request_id is None:
            return
        with self._context.step("record"):
            count = record_erasure(self._context, snapshot, requests.by_id)
            if count is not None:
                # The delete may find no row, and commit nothing. A job that has compared its rows with the ledger
                # before loses to this commit, or its rows are seen by the delete. An earlier try may have recorded
                # them and been killed before this commit.
                self._context.table.begin().commit("ERASE", record_empty=True)
        if count is not None:
            self._context.log(f"{plural(count, 'subject')} recorded in the ledger of erasures")

    def _delete(self, snapshot: Snapshot, forms: Forms) -> Delete:
        """Return the delete of the subjects' rows: by keys, or for a member of a struct and CHAR by a condition."""
        column, values = self._described.column, self._stored_keys(snapshot, forms).to_pylist()
        field = snapshot.delta_schema.find(column)
        # A value of CHAR is stored padded: Spark compares it.
        if field is not None and not field.is_char:
            return Delete(predicate=None, keys=KeyValues(column=column, values=encode_parameter(values, "keys")))
        path = quoted(column) if field is not None else ".".join(quoted(part) for part in column.split("."))
        given = {f"subject_{number}": encode_parameter(value, "subject") for number, value in enumerate(values)}
        return Delete(predicate=f"{path} IN ({', '.join(f':{name}' for name in given)})", parameters=given)

    def _stored_keys(self, snapshot: Snapshot, forms: Forms) -> pa.Array:
        """Return the values of the key to delete: also the spellings in the table that were not tried."""
        if not len(forms.normal_forms):
            return forms.key_values
        path = [each.name for each in key_path(snapshot, self._described.column)]
        found = [forms.key_values]
        for batch in read_row_batches(snapshot, path[:1]):
            rows = batch.column(0)
            stored = pc.unique(pc.struct_field(rows, path[1:]) if path[1:] else rows).drop_null()
            found.append(stored.filter(forms.are_values(stored)))
        return pa.concat_arrays(found).unique()

    def _killed_before(self, snapshot: Snapshot, requests: Requests, lists: Store) -> KilledRuns:
        """Return what earlier runs did for these requests and did not record."""
        ids, uri, key = list(requests.by_id), self._context.table.uri, self._context.spec.records_key
        plans = earlier_records(lists, uri, ids, key, self._log_once, is_plan=True)
        records = earlier_records(lists, uri, ids, key, self._log_once)
        # Only for the report: in a record of this run, it would be signed.
        self._unverified = unverified_requests(lists, uri, ids, key, self._log_once)
        self._names = list(names_in((each for _, each in (*plans, *records)), requests.forms.paths))
        return killed_runs([each for _, each in plans], [each for _, each in records], ids, snapshot.version)

    def _log_once(self, line: str) -> None:
        """Log what may be found several times."""
        if line not in self._said:
            self._said.add(line)
            self._context.log(line)

    def _plan(self, doing: str, requests: Requests, lists: Store | None, going: Iterable[ObjectVerdict] = ()) -> None:
        """Record the next step first, so that a kill cannot lose it."""
        if lists is not None:
            self._plans.append(self._write_record(going, list(requests.by_id), lists, doing=doing))

    def _remove(self, requests: Requests, lists: Store | None) -> Removal:
        attribution = Attribution(self._context.store, requests)

        def note(going: Sequence[Held]) -> None:
            for info, found in going:
                # It is deleted for all of them: a request that only its statistics show may be left out.
                self._holders[id(found)] = found, attribution.of(info, found, may_miss=True)
            self._plan("remove", requests, lists, (each.verdict for each in going))

        removal = remove_traces(
            self._context.table,
            requests.forms,
            writer_ms=milliseconds(self._described.writer_hours),
            cuts_log=self._described.cut_log,
            say=self._context.log,
            note=note,
        )
        files: dict[str, int | str] = {
            "deleted_files": removal.deleted_files,
            "deleted_log_files": removal.deleted_log_files,
        }
        if removal.num_tombstones:
            files["num_tombstones"] = removal.num_tombstones
        if removal.deleted_files or removal.deleted_log_files or self._killed.readable:
            files["ended_versions"] = ended(self._killed.before(self._readable), readable_versions(self._context.table))
            self._context.log(f"versions that can no longer be read: {files['ended_versions'] or 'none'}")
        self._step("remove", removal.version, **files)
        if removal.checkpoint is not None:
            store = self._context.store
            named = named_sidecars(store).versions
            sidecars = [path for path, last in named.items() if last == removal.checkpoint]
            there = look(store, removal.checkpoint).checkpoints.get(removal.checkpoint, ())
            infos = [*(info for each in there for info in each.files), *map(store.stat, sidecars)]
            self._written |= {info.path: info.size_bytes for info in infos if info is not None}
        return removal

    def _keep_written(self, forms: Forms) -> None:
        """Keep the paths and sizes of the data files that the commits of this run have added."""
        store = self._context.store
        for step in self._steps:
            with store.open_input(commit_name(step["version"])) as source:
                commit = decode_commit(step["version"], source.read(), commit_name(step["version"]))
            # A file that only gets a deletion vector is an old one.
            old = {each.path for each in commit.removes}
            adds = [each for each in commit.adds if each.path not in old]
            paths = canonical_paths(pa.array([each.path for each in adds], pa.string()), store.root).to_pylist()
            for path, add in zip(paths, adds, strict=True):
                self._written[forms.without_values(path)] = add.size

    # --- the report -------------------------------------------------------------------------------------------------

    def _log_plan(self, snapshot: Snapshot, requests: Requests, readable: list[range] | None) -> None:
        first = readable[0].start if readable else "an unknown one"
        several = f" of {len(requests.by_id)} requests" if len(requests.by_id) > 1 else ""
        self._context.log(
            f"plan: erase {plural(len(requests.forms.values), 'subject')}{several} from version {snapshot.version}; "
            f"versions can be read from {first} on. Those that need a file with a subject end, also for readers that "
            "read one now"
        )
        if self._described.cut_log:
            self._context.log(
                "if the log holds a subject, or describes a file that held one, it will begin at a new checkpoint, and "
                "all versions before that end. "
                f"Files and commits that a writer may need stay {self._described.writer_hours:g} hours"
            )
        if remembers_deletions(snapshot):
            self._context.log(
                "the table remembers the deletions of applied changes. The tombstones of a subject are erased, too: an "
                "older event that arrives later inserts the subject again"
            )

    def _ends(self, name: str, result: JobResult, **facts: int | None) -> JobResult:
        if result.status == "committed" and result.version is not None:
            self._step(name, result.version, **facts)
        return result

    def _step(self, name: str, version: int, **facts: int | str | None) -> None:
        now_ms = self._context.clock.now_ms()
        self._steps.append({"name": name, "version": version, "at": moment_text(now_ms), **facts})

    def _report(self, removal: Removal, requests: Requests, lists: Store | None) -> dict[str, Any]:
        ids = list(requests.by_id)
        runs, deleted = [], {}
        if lists is not None:
            uri, log, key = self._context.table.uri, self._log_once, self._context.spec.records_key
            found = earlier_records(lists, uri, ids, key, log)
            plans = earlier_records(lists, uri, ids, key, log, is_plan=True)
            lost = self._unlisted(lists, plans, found, requests.forms)
            found.append(self._write_record(removal.gone, ids, lists, lost))
            if lost is not None:
                remove_plans(lists, dict([*self._done_with(lists, plans, ids), *self._plans]).items(), log)
            runs = [{"name": name, "requests": each.requests, "steps": each.steps} for name, each in found]
            for request_id in ids:
                parts = [part for _, each in found for part in each.deleted.get(request_id, ())]
                deleted[request_id] = list({part["name"]: part for part in parts}.values())
        # Rounded up to minutes, so that they stay few.
        ends = sorted({-(-wait.until_ms // _MINUTE_MS) * _MINUTE_MS for wait in removal.waits})
        return {
            "steps": self._steps,
            "runs": runs,
            "cut": removal.cut,
            **_first_of(removal.waits),
            # No verdict shows whose they are.
            "unshown": _first_of([wait for wait in removal.waits if not wait.is_shown]),
            "ends_ms": ends,
            "until_ms": removal.until_ms,
            "num_tombstones": removal.num_tombstones,
            "deleted": deleted,
            "unverified": sorted(self._unverified),
        }

    def _write_record(
        self,
        verdicts: Iterable[ObjectVerdict],
        ids: Sequence[str],
        lists: Store,
        lost: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        *,
        doing: str = "",
    ) -> tuple[str, ErasureRecord]:
        """Write down the deleted objects, with those that an earlier run deleted and did not list (`lost`).

        `doing`: the step that comes next. The record is a plan then, with the objects that are about to go. The run
        after a kill continues from it.
        """
        is_plan = bool(doing)
        writer, deleted = ListWriter(lists, self._context.spec.records_key), {}
        uri, found = self._context.table.uri, list(verdicts)
        # The requests are in the name of a plan's list: another run deletes an equal one with its own plan.
        kind = f"planned-objects-{place_of(' '.join((uri, *sorted(ids))))}" if is_plan else f"deleted-{place_of(uri)}"
        for request_id in ids:
            entries = {object_of(each): each for each in self._of_request(found, request_id)}
            entries |= {object_of(each): each for each in (lost or {}).get(request_id, ())}
            if entries:
                deleted[request_id] = [writer.objects(entries.values(), kind)]
        if is_plan:
            record = ErasureRecord(
                requests=ids,
                steps=list(self._steps),
                deleted=deleted,
                runs=[self._run_id],
                names=self._names,
                doing=doing,
                begun=moment_text(self._context.clock.now_ms()),
                version=self._context.table.latest_version(),
                readable=None if self._readable is None else [(each.start, each.stop) for each in self._readable],
            )
        else:
            record = ErasureRecord(
                requests=ids,
                steps=[*self._killed.steps, *self._steps],
                written=self._written,
                deleted=deleted,
                runs=[*self._killed.runs, self._run_id],
                names=self._names,
            )
        return writer.record(uri, record, is_plan=is_plan), record

    def _unlisted(
        self,
        lists: Store,
        plans: Sequence[tuple[str, ErasureRecord]],
        done: Sequence[tuple[str, ErasureRecord]],
        forms: Forms,
    ) -> dict[str, list[Mapping[str, Any]]] | None:
        """Return by request the objects that a run has planned to delete, that are gone, and that no run has listed.

        None if it is unknown which are gone.
        """
        found: dict[str, list[Mapping[str, Any]]] = {}
        there: set[str] | None = None
        for request_id in {name for _, plan in plans for name in plan.deleted}:
            listed = {object_of(each) for each in objects_in(lists, done, request_id)}
            planned = [each for each in objects_in(lists, plans, request_id) if object_of(each) not in listed]
            if planned and there is None:
                unreadable: list[str] = []
                there = {forms.without_values(info.path) for info in self._context.store.walk(unreadable.append)}
                if unreadable:
                    return None
            found[request_id] = [each for each in planned if each["path"] not in (there or ())]
        return found

    def _done_with(
        self, lists: Store, plans: Sequence[tuple[str, ErasureRecord]], ids: Sequence[str]
    ) -> list[tuple[str, ErasureRecord]]:
        """Return the plans whose objects and steps are recorded for all of their requests, `ids` among them."""
        others = {each for _, plan in plans for each in plan.requests} - set(ids)
        if not others:
            return list(plans)
        uri, log, key = self._context.table.uri, self._log_once, self._context.spec.records_key
        whole = dict(earlier_records(lists, uri, {*ids, *others}, key, log, is_plan=True))
        records = earlier_records(lists, uri, others, key, log)
        listed = {each: set(map(object_of, objects_in(lists, records, each))) for each in others}

        def is_listed(name: str, plan: ErasureRecord) -> bool:
            own = others.intersection(plan.requests)
            if not is_recorded(plan, [each for _, each in records], own):
                return False
            return all(object_of(each) in listed[of] for of in own for each in objects_in(lists, [(name, plan)], of))

        return [(name, whole[name]) for name, _ in plans if name in whole and is_listed(name, whole[name])]

    def _of_request(self, verdicts: Iterable[ObjectVerdict], request_id: str) -> Iterator[Mapping[str, Any]]:
        """Yield the lines on the objects that held a subject of a request, with the digest and the places of then."""
        for found in verdicts:
            held = self._holders[id(found)][1] if id(found) in self._holders else Holders({}, found)
            # A file without traces went because it cannot be read, or because the log names it by a subject.
            if request_id in held.by_request or not held.by_request:
                yield entry_of(dataclasses.replace(held.of(request_id), verdict="deleted", reason=None))

    def _as(self, operation: Operation) -> JobContext:
        """Return this job as that of one step: it commits, logs and measures as the step's own."""
        spec = self._context.spec.replace(operation=operation)
        texts = FixedTexts(operation=operation, parameters=operation.bound_parameters)
        self._context.has_inputs = True
        # Keys that a step has written down are its own: Spark, and the next step, would look for them in vain.
        step = dataclasses.replace(self._context, spec=spec, texts=texts, saved_inputs=SavedInputs())
        # Its inputs lie in the folder that is deleted after this job.
        step.job_id = self._context.job_id
        return step


def _first_of(waits: Sequence[Wait]) -> dict[str, Any]:
    """Return the last ones of some waits, and the number of all."""
    last = sorted(waits, key=lambda each: -each.until_ms)[:_WAITS_SHOWN]
    shown = [{"path": wait.path, "until": moment_text(wait.until_ms), "why": wait.why} for wait in last]
    return {"waits": shown, "num_waits": len(waits)}


def _num_deleted(deleted: JobResult) -> dict[str, int]:
    """Return the metric of the deleted rows; nothing if whole files went whose rows the log does not state."""
    name = "numDeletedRows"
    known = {name: 0} | deleted.metrics if deleted.status == "nothing_to_do" else deleted.metrics
    return {name: known[name]} if name in known else {}
