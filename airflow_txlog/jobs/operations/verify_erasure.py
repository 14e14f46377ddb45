"""VERIFY_ERASURE: open every object below the table, and write down a verdict on each, for each request.

The lists of verdicts appear whole, under names that are made of their content, so a repeated try replaces nothing. The
subjects of all requests are looked for in one pass, and requests with equal verdicts share their lists. The invariant:
nothing is written below the table, and no right to write there is needed.
"""

from __future__ import annotations

import dataclasses
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_txlog import __version__
from airflow_txlog.contract.erasure.check_report import LEFT, places_of
from airflow_txlog.contract.erasure.report import MOST_SHOWN, Findings
from airflow_txlog.contract.job import Details, JobResult
from airflow_txlog.contract.operations import CheckSubjects, VerifyErasure
from airflow_txlog.contract.wording import plural
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.erasure.attribution import Attribution, Holders, Requests
from airflow_txlog.engine.erasure.described_files import DESCRIBED, UNKNOWN, is_gone
from airflow_txlog.engine.erasure.described_files import described as described_in
from airflow_txlog.engine.erasure.digests import DigestKey, digests_of
from airflow_txlog.engine.erasure.marked_errors import errors_marked
from airflow_txlog.engine.erasure.object_verdicts import ObjectVerdict, verify
from airflow_txlog.engine.erasure.readable_versions import readable_versions
from airflow_txlog.engine.log.names import LOG_DIRECTORY, commit_name
from airflow_txlog.engine.log.paths import canonical_paths
from airflow_txlog.engine.log.segment import look
from airflow_txlog.engine.table.snapshot.commit_times import moment_text
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.erasure_lists import (
    ErasureRecord,
    ListWriter,
    entry_of,
    lists_of,
    names_in,
    objects_in,
    read_record,
)
from airflow_txlog.jobs.source.given_keys import given_requests
from airflow_txlog.storage.base import FileInfo, Store

_PLACES_SHOWN = 300


def check_subjects(context: JobContext) -> JobResult:
    """Run the job of `context.spec`, which only reads the subjects. Raises what `given_requests` raises."""
    described, snapshot = context.record(CheckSubjects), context.table.snapshot()
    with context.step("read"):
        requests = given_requests(context, described, snapshot)
    count = 0 if requests is None else len(requests.forms.values)
    return context.result(
        is_committed=False, version=snapshot.version, read_version=snapshot.version, metrics={"numSubjects": count}
    )


def verify_erasure(context: JobContext) -> JobResult:
    """Run the job of `context.spec`; `details.findings` are the `Findings` as JSON, by the id of the request.

    Raises UnknownColumn; InvalidInput without subjects, for one that the column cannot hold, and for a folder of the
    report inside of the table; the errors of reading a source of subjects.
    """
    described, snapshot = context.record(VerifyErasure), context.table.snapshot()
    lists = lists_of(context, described.report_uri)
    with context.step("read"):
        requests = given_requests(context, described, snapshot)
    if requests is None:
        return context.result(
            is_committed=False, version=snapshot.version, read_version=snapshot.version, metrics={"numSubjects": 0}
        )
    start_ms = context.clock.now_ms()
    read = (read_record(lists, name, context.spec.records_key, context.log) for name in described.records)
    records = [each for each in read if each is not None]
    requests = requests.also_named(names_in(records, requests.forms.paths))
    with context.step("verify"), errors_marked(requests.forms):
        gone = _Described(snapshot, requests, lists, records) if described.records else None
        held = _verdicts(snapshot, requests, gone)
    keys = [DigestKey.of(text, "a key of the ledger") for text in context.spec.ledger_keys]
    readable = readable_versions(context.table)
    # A commit that came after the last listing was not opened.
    log, opened = look(snapshot.store, 0), {each.others.path for each in held}
    versions = (each for each in range(log.latest, -1, -1) if commit_name(each) in opened)
    common = Findings(
        table=snapshot.uri,
        column=described.column,
        table_id=snapshot.metadata.id,
        version=next(versions, snapshot.version),
        oldest_version=readable[0].start if readable else None,
        from_time=moment_text(start_ms),
        to_time=moment_text(context.clock.now_ms()),
        tools={"airflow_txlog": __version__, "pyarrow": pa.__version__, "python": platform.python_version()},
    )
    findings = _Findings(common, requests, held, records, keys, lists)
    with context.step("report"):
        by_request = {request_id: dataclasses.asdict(findings.of(request_id)) for request_id in requests.by_id}
    whole = Counter(_of_all(each) for each in held)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in whole.items())
    context.log(f"{plural(len(held), 'object')} opened: {counts}")
    result = context.result(
        is_committed=False,
        version=common.version,
        read_version=snapshot.version,
        metrics={"numObjects": len(held), "numSubjects": len(requests.forms.values)},
    )
    return dataclasses.replace(result, details=Details(findings=by_request))


class _Described:
    """The files that are gone after an erasure, and that an object of the log may still describe by values.

    If no list of the erasure has a file, a vacuum deleted it before the erasure, or it went before the verification
    opened it. Whether it held a subject is unknown.
    """

    def __init__(self, snapshot: Snapshot, requests: Requests, lists: Store, records: Sequence[ErasureRecord]) -> None:
        self._store, self._forms = snapshot.store, requests.forms
        named = [("", each) for each in records]
        # As the lists show them: with marks in the place of values.
        self._deleted = {
            request_id: {line["path"] for line in objects_in(lists, named, request_id) if not _is_of_log(line["path"])}
            for request_id in requests.by_id
        }
        live = canonical_paths(snapshot.files(columns=["path"]).column("path"), snapshot.uri).to_pylist()
        self._there = {*live, *(info.path for info in self._store.walk(lambda folder: None))}
        self._unopened = {path for path in self._there if not _is_of_log(path)}

    def note(self, target: FileInfo | str, found: ObjectVerdict) -> None:
        """Note an object that was opened. One that was gone by then was not."""
        if not isinstance(target, str) and found.verdict != "deleted":
            self._unopened.discard(target.path)

    def drop_unopened(self) -> bool:
        """Count the files that were there and were not opened as gone, if they are. Return whether there are some."""
        self._there -= self._unopened
        return bool(self._unopened)

    def added_to(self, held: Holders, target: FileInfo | str) -> Holders:
        """Return the verdicts with that of an object which describes a file of a request's subject."""
        if isinstance(target, str) or not _is_of_log(target.path):
            return held
        by_request = dict(held.by_request)
        shown: set[str] = set()
        reason = None
        try:
            gone = filter(self._is_gone, described_in(self._store, target, lambda path: path not in self._there))
            shown.update(map(self._forms.without_values, gone))
            is_unknown = bool(shown.difference(*self._deleted.values()))
        except FileNotFoundError:
            # An object that is gone has a verdict already.
            return held
        except OSError as error:
            is_unknown, reason = True, type(error).__name__
        except Exception:
            # Also one that is damaged; of another, no log has the form.
            is_unknown = True
        for request_id, paths in self._deleted.items():
            found = held.of(request_id)
            if found.passes and reason is not None:
                by_request[request_id] = dataclasses.replace(found, verdict="not readable", reason=reason)
            elif found.passes and (is_unknown or not shown.isdisjoint(paths)):
                traces = (*found.traces, DESCRIBED if not shown.isdisjoint(paths) else UNKNOWN)
                by_request[request_id] = dataclasses.replace(found, verdict="statistic only", traces=traces)
        return Holders(by_request, held.others)

    def _is_gone(self, path: str) -> bool:
        if is_gone(self._store, path):
            return True
        # It has appeared meanwhile. It may go again before it is opened.
        self._there.add(path)
        self._unopened.add(path)
        return False


def _is_of_log(path: str) -> bool:
    return path.startswith(f"{LOG_DIRECTORY}/")


def _verdicts(snapshot: Snapshot, requests: Requests, gone: _Described | None) -> list[Holders]:
    """Return the verdicts on each object: for the requests whose subject it holds, and for the others."""
    attribution = Attribution(snapshot.store, requests)
    # A verdict stays here as long as its id is looked for: not each is yielded.
    noted: dict[int, tuple[ObjectVerdict, Holders, FileInfo | str]] = {}

    def note(target: FileInfo | str, found: ObjectVerdict) -> None:
        holders = attribution.of(target, found)
        if gone is not None:
            gone.note(target, found)
            holders = gone.added_to(holders, target)
        noted[id(found)] = found, holders, target

    held: list[Holders] = []
    of_log: dict[int, FileInfo] = {}
    for found in verify(snapshot, requests.forms, note):
        _, holders, target = noted.get(id(found), (found, Holders({}, found), ""))
        if not isinstance(target, str) and _is_of_log(target.path):
            of_log[len(held)] = target
        held.append(holders)
        noted.clear()
    # What was read of the log by then may describe them.
    if gone is not None and gone.drop_unopened():
        for at, target in of_log.items():
            held[at] = gone.added_to(held[at], target)
    return held


def _of_all(held: Holders) -> str:
    return min((each.verdict for each in held.by_request.values()), default=held.others.verdict)


class _Findings:
    """The findings of each request, with the lists of its objects."""

    def __init__(
        self,
        common: Findings,
        requests: Requests,
        held: Sequence[Holders],
        records: Sequence[ErasureRecord],
        keys: Sequence[DigestKey],
        lists: Store,
    ) -> None:
        self._common, self._requests, self._keys, self._records = common, requests, keys, records
        self._writer = ListWriter(lists)
        # Requests differ in the objects that hold a subject of one, and in those that an erasure wrote.
        self._written = {path: size for each in records for path, size in each.written.items()}
        self._own = [each for each in held if each.by_request]
        self._equal = [each.others for each in held if not each.by_request]
        self._of_none: dict[bool, dict[str, Any]] = {}

    def of(self, request_id: str) -> Findings:
        """Return the findings of a request."""
        is_held = any(request_id in each.by_request for each in self._own)
        has_erased = any(each.deleted.get(request_id) for each in self._records)
        if not is_held and has_erased in self._of_none:
            facts = self._of_none[has_erased]
        else:
            facts = self._facts(request_id, has_erased)
            if not is_held:
                self._of_none[has_erased] = facts
        values = self._requests.by_id[request_id].values
        digests = self._writer.digests(digests_of(values, self._keys), self._keys) if self._keys else None
        return dataclasses.replace(self._common, num_subjects=len(values), digests=digests, **facts)

    def _facts(self, request_id: str, has_erased: bool) -> dict[str, Any]:
        equal = [self._rewritten(each) if has_erased else each for each in self._equal]
        own = [each.of(request_id) for each in self._own]
        # An empty folder is no object: only the request that its name shows has a verdict on it.
        own = [each for each in own if each.verdict != "absent" or each.digest is not None]
        # The lists of one request are one; those of several are shared by all that agree on an object.
        groups = [equal + own] if len(self._requests.by_id) == 1 else [equal, own]
        entries = [[entry_of(each) for each in group] for group in groups if group]
        left = (_shown(each) for part in entries for each in part if each["verdict"] in LEFT)
        return {
            "num_objects": sum(map(len, entries)),
            "verdicts": dict(Counter(each["verdict"] for part in entries for each in part)),
            "parts": [self._writer.objects(part) for part in entries],
            "left": [each for _, each in zip(range(MOST_SHOWN), left, strict=False)],
        }

    def _rewritten(self, found: ObjectVerdict) -> ObjectVerdict:
        """Return the verdict on an object that was read to its end, and which the erasure wrote."""
        is_written = found.verdict == "absent" and self._written.get(found.path) == found.size_bytes
        return dataclasses.replace(found, verdict="rewritten") if is_written else found


def _shown(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"path": entry["path"], "verdict": entry["verdict"], "places": places_of(entry)[:_PLACES_SHOWN]}
