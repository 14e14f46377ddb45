"""VERIFY_ERASURE: open every object below the table, and write down a verdict on each.

The list of verdicts appears whole, under a name that is made of its content, so a repeated try replaces nothing. The
invariant: nothing is written below the table, and no right to write there is needed.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_txlog import __version__
from airflow_txlog.contract.erasure.check_report import LEFT, places_of
from airflow_txlog.contract.erasure.report import MOST_SHOWN, Findings
from airflow_txlog.contract.job import Details, JobResult
from airflow_txlog.contract.operations import VerifyErasure
from airflow_txlog.contract.wording import plural
from airflow_txlog.engine.erasure.digests import DigestKey, digests_of
from airflow_txlog.engine.erasure.forms import Forms
from airflow_txlog.engine.erasure.object_verdicts import ObjectVerdict, verify
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.log.segment import look
from airflow_txlog.engine.table.snapshot.commit_times import moment_text
from airflow_txlog.errors import InvalidInput
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.source.given_keys import given_keys
from airflow_txlog.jobs.sql.gate import SqlGate
from airflow_txlog.storage import open_store
from airflow_txlog.storage.base import Store

_PLACES_SHOWN = 300


def verify_erasure(context: JobContext) -> JobResult:
    """Run the job of `context.spec`; `details.findings` are the `Findings` as JSON.

    Raises UnknownColumn; InvalidInput without subjects, for one that the column cannot hold, and for a folder of the
    report inside of the table; the errors of reading a source of subjects.
    """
    described, snapshot = context.record(VerifyErasure), context.table.snapshot()
    lists = lists_of(context, described.report_uri)
    with context.step("read"):
        subjects, _ = given_keys(context, SqlGate(context), described.keys, snapshot)
        forms = Forms.of(snapshot, described.keys.column, subjects)
    start_ms = context.clock.now_ms()
    with context.step("verify"):
        verdicts = list(verify(snapshot, forms))
    keys = [DigestKey.of(text, "a key of the ledger") for text in context.spec.ledger_keys]
    log, entries = look(snapshot.store, 0), [entry_of(each) for each in verdicts]
    # A commit that came after the last listing was not opened.
    opened = {each.path for each in verdicts}
    versions = (each for each in range(log.latest, -1, -1) if commit_name(each) in opened)
    found = Findings(
        table=snapshot.uri,
        column=described.keys.column,
        table_id=snapshot.metadata.id,
        version=next(versions, snapshot.version),
        oldest_version=log.earliest,
        num_subjects=len(forms.values),
        digests=_write_digests(lists, digests_of(forms.values, keys), keys) if keys else None,
        num_objects=len(entries),
        verdicts=dict(Counter(each.verdict for each in verdicts)),
        parts=[write_list(lists, entries)],
        left=[_shown(each) for each in entries if each["verdict"] in LEFT][:MOST_SHOWN],
        from_time=moment_text(start_ms),
        to_time=moment_text(context.clock.now_ms()),
        tools={"airflow_txlog": __version__, "pyarrow": pa.__version__, "python": platform.python_version()},
    )
    counts = ", ".join(f"{count} {verdict}" for verdict, count in found.verdicts.items())
    context.log(f"{plural(found.num_objects, 'object')} opened: {counts}")
    result = context.result(
        is_committed=False,
        version=found.version,
        read_version=snapshot.version,
        metrics={"numObjects": found.num_objects, "numSubjects": found.num_subjects},
    )
    return dataclasses.replace(result, details=Details(findings=dataclasses.asdict(found)))


def lists_of(context: JobContext, report_uri: str) -> Store:
    """Return the folder of the lists. Raises InvalidInput if it is inside of the table."""
    lists, uri = open_store(report_uri, context.spec.access), context.table.uri
    if f"{lists.root}/".startswith(f"{uri}/"):
        raise InvalidInput(
            f"The folder of the report, {lists.root}, is inside of the table {uri}, and would change what is verified. "
            "Nothing was read. Name a folder outside of every table."
        )
    return lists


def entry_of(verdict: ObjectVerdict) -> dict[str, Any]:
    """Return the line of a list."""
    return {name: value for name, value in dataclasses.asdict(verdict).items() if value not in (None, ())}


def _shown(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"path": entry["path"], "verdict": entry["verdict"], "places": places_of(entry)[:_PLACES_SHOWN]}


def write_list(lists: Store, entries: Iterable[Mapping[str, Any]], kind: str = "objects") -> dict[str, Any]:
    """Write verdicts as lines of JSON; return the file's name and digest, and their number."""
    lines = [json.dumps(entry, sort_keys=True) for entry in entries]
    return {**_write(lists, kind, "jsonl", lines), "num_objects": len(lines)}


def _write_digests(lists: Store, digests: pa.StringArray, keys: Sequence[DigestKey]) -> dict[str, Any]:
    """Write the keyed digests of the subjects, one a line; return the file's name and digest, and the keys' ids."""
    # In order: not in that of the subjects.
    return {**_write(lists, "subjects", "txt", sorted(digests.to_pylist())), "key_ids": [key.id for key in keys]}


def _write(lists: Store, kind: str, ending: str, lines: Sequence[str]) -> dict[str, Any]:
    data = gzip.compress("\n".join(lines).encode(), mtime=0)
    name = list_name(data, kind, ending)
    lists.put(name, data)
    return {"name": name, "sha256": hashlib.sha256(data).hexdigest()}


def list_name(data: bytes, kind: str, ending: str = "jsonl") -> str:
    """Return the name of a list with this content."""
    return f"{kind}-{hashlib.sha256(data).hexdigest()[:32]}.{ending}.gz"
