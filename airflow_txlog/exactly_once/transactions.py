"""Whether the work of a job is in its table already, and how its tries recognize what they leave for each other.

`contract.job` defines a recorded transaction. The invariants: "done" is never guessed: it is read from the log,
uncached, or the lookup raises. No file is trusted for its place or its name, because any process that may write the
table's folder may put files there: only the holder of a key can compute the name of the folder of saved work, and
everything read back from it is signed with the same key. The task derives the key from a secret of the Airflow
deployment (`hooks/work_key.py`) and gives it to the job in `JobSpec.saved_work_key`. Without a key, work saved by
another process is not trusted. Source: docs/decisions/saved-work.md; soundness A10, A11.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_txlog.clock import SYSTEM_CLOCK, Clock
from airflow_txlog.contract.job import DIGEST_TAG, ApplicationTransaction, Details, JobResult, JobSpec
from airflow_txlog.contract.operations import Publish
from airflow_txlog.engine import DeltaTable
from airflow_txlog.engine.commit.content.met import How, Meeting, meetings_of, operation_name
from airflow_txlog.engine.log.actions import Commit, decode_commit
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.many_files import Deletion, delete_files
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import IdempotencyKeyReused, TableNotFound, TransactionExpired
from airflow_txlog.locations import PRIVATE_PREFIX
from airflow_txlog.storage.base import Store

# A retry follows its first try by hours at most, so the commit is near the head. The bound keeps a lookup from reading
# a log of a million commits; beyond it the result carries `at_or_before`.
MAX_COMMITS_READ = 10_000
# A lookup that only fills a line of the job's log is not worth more requests.
_MOST_COMMITS_FOR_A_LINE = 100


def recorded_version(table: DeltaTable, app_id: str) -> int | None:
    """Return the version of `app_id` in the table's latest snapshot; None without one, or without a table."""
    try:
        return table.snapshot().application_version(app_id)
    except TableNotFound:
        return None


@dataclass(frozen=True, kw_only=True)
class RecordedWork:
    """An application transaction in a table. `tags`: its commit's; empty if the log has lost it."""

    app_id: str
    version: int
    recorded_ms: int | None
    tags: Mapping[str, str]


def recorded_work(table: DeltaTable, app_id_end: str) -> list[RecordedWork]:
    """Return the transactions in the table's latest snapshot whose app id ends so, newest first."""
    try:
        snapshot = table.snapshot()
    except TableNotFound:
        return []
    # Work that a rollback has undone has a negative number.
    found = [t for t in snapshot.state.transactions.values() if t.app_id.endswith(app_id_end) and t.version >= 0]
    work = []
    for transaction in sorted(found, key=lambda t: t.last_updated or 0, reverse=True):
        wanted = ApplicationTransaction(app_id=transaction.app_id, version=transaction.version)
        commit = _commit_of(table.store, snapshot.version, wanted)
        tags = (commit.info or {}).get("tags") if commit is not None else None
        work.append(
            RecordedWork(
                app_id=transaction.app_id,
                version=transaction.version,
                recorded_ms=transaction.last_updated,
                tags=tags or {},
            )
        )
    return work


def find_done(spec: JobSpec) -> JobResult | None:
    """Return an "already_done" result if the table's log holds the transaction of `spec`.

    The result carries the version and the metrics of the commit that did the work, or `at_or_before` if the log no
    longer shows that commit. Raises IdempotencyKeyReused if other work was done under this identity, TransactionExpired
    if the table may have forgotten it.
    """
    if spec.application is None:
        return None
    try:
        table = DeltaTable.at(spec.table_uri, spec.access)
        snapshot = table.snapshot()
    except TableNotFound:
        return None
    return done_in(table.store, snapshot, spec)


def done_in(store: Store, snapshot: Snapshot, spec: JobSpec, clock: Clock = SYSTEM_CLOCK) -> JobResult | None:
    """Return the result of `find_done` for a snapshot that is already loaded."""
    wanted = spec.application
    recorded = None if wanted is None else snapshot.state.transactions.get(wanted.app_id)
    if wanted is not None and recorded is None:
        _check_not_expired(snapshot, wanted, clock.now_ms())
    if wanted is None or recorded is None or recorded.version < wanted.version:
        return None
    if wanted.not_before_ms is not None and (recorded.last_updated or 0) < wanted.not_before_ms:
        raise _reused(snapshot, wanted, "was recorded before this run began: an earlier run of that name did its work")
    commit = _commit_of(store, snapshot.version, wanted)
    info: dict[str, Any] = {} if commit is None else commit.info or {}
    if wanted.check_digest:
        _check_digest(snapshot, spec, wanted, commit, info)
    done = Meeting(
        version=None if commit is None else commit.version, how=How.ALREADY_DONE, operation=operation_name(info)
    )
    return JobResult(
        status="already_done",
        operation=spec.operation.name,
        table_uri=spec.table_uri,
        version=None if commit is None else commit.version,
        at_or_before=snapshot.version if commit is None else None,
        read_version=info.get("readVersion"),
        metrics=_metrics(info),
        details=Details(arguments_changed=_has_other_arguments(spec, info), met=meetings_of(info).and_(done).as_json()),
    )


def earlier_run(store: Store, snapshot: Snapshot, spec: JobSpec) -> str | None:
    """Return the log line that an earlier run of this very task has committed, before the task was cleared."""
    wanted = spec.application
    recorded = None if wanted is None else snapshot.state.transactions.get(wanted.app_id)
    if wanted is None or recorded is None or recorded.version >= wanted.version:
        return None
    if recorded.version < 0:
        return f"a rollback has undone what this task has committed before: this {spec.operation.name} is done again"
    if wanted.check_digest:
        return None
    earlier = ApplicationTransaction(app_id=wanted.app_id, version=recorded.version)
    commit = _commit_of(store, snapshot.version, earlier, most=_MOST_COMMITS_FOR_A_LINE)
    at = f"before version {snapshot.version}" if commit is None else f"version {commit.version}"
    return (
        f"an earlier run of this task has committed {at} already, and the task was cleared since: this "
        f"{spec.operation.name} is done again"
    )


def _check_not_expired(snapshot: Snapshot, wanted: ApplicationTransaction, now_ms: int) -> None:
    """Raise TransactionExpired if the table may have forgotten a transaction of which it knows no number (B4)."""
    retention_ms = snapshot.table_properties.set_transaction_retention_ms
    if retention_ms is None or wanted.first_tried_ms is None or now_ms - wanted.first_tried_ms < retention_ms:
        return
    raise TransactionExpired(
        f"Table {snapshot.uri} does not know the application transaction {wanted.app_id!r}, but it forgets them after "
        f"{retention_ms / 86_400_000:g} days (delta.setTransactionRetentionDuration), and this work was first tried "
        f"{(now_ms - wanted.first_tried_ms) / 86_400_000:.1f} days ago: it may be done or not. Nothing was done now. "
        f"Look into the table's history for the run; if its work is missing, {how_to_repeat(wanted)} to have it "
        "done.",
        table=snapshot.uri,
        app_id=wanted.app_id,
        version=wanted.version,
        first_tried_ms=wanted.first_tried_ms,
        retention_ms=retention_ms,
    )


def how_to_repeat(application: ApplicationTransaction) -> str:
    """Return the advice for making work new: an author's key names it whatever happens to the task."""
    return "give it another idempotency_key" if application.check_digest else "clear the task"


def _commit_of(store: Store, head: int, wanted: ApplicationTransaction, most: int = MAX_COMMITS_READ) -> Commit | None:
    """Return the commit that took the transaction to the wanted version; None if it is not among the last `most`."""
    reached: Commit | None = None
    for version in range(head, max(-1, head - most), -1):
        path = commit_name(version)
        try:
            commit = decode_commit(version, store.read(path), path)
        except FileNotFoundError:
            return None
        # A later number of the same id (a cleared task) does not hide the wanted one: it is read past.
        numbers = [t.version for t in commit.transactions if t.app_id == wanted.app_id]
        if numbers and numbers[0] < wanted.version:
            return reached
        if numbers:
            reached = commit
            if numbers[0] == wanted.version:
                return reached
    return reached if head < most else None


def _has_other_arguments(spec: JobSpec, info: Mapping[str, Any]) -> bool:
    """Return whether the commit of this work was made from other arguments, by their digests; False if unknown."""
    recorded = (info.get("tags") or {}).get(DIGEST_TAG)
    known = (spec.digest(), spec.digest(with_key=False))
    if isinstance(spec.operation, Publish):
        # The commit has the arguments of the work that staged the change.
        return False
    return recorded is not None and spec.saved_work_key is not None and recorded not in known


def _check_digest(
    snapshot: Snapshot, spec: JobSpec, wanted: ApplicationTransaction, commit: Commit | None, info: dict[str, Any]
) -> None:
    """Raise IdempotencyKeyReused unless the commit was certainly for this work: an author's key may name one only."""
    if commit is None:
        raise _reused(snapshot, wanted, "was used so long ago that the log no longer shows for what")
    # An earlier release, or a task without the secret of saved work, recorded one without a key.
    if (info.get("tags") or {}).get(DIGEST_TAG) not in (spec.digest(), spec.digest(with_key=False)):
        why = f"did other work at version {commit.version}"
        if spec.saved_work_key is None:
            why += ", or work that is not known again without the Variable txlog_saved_work_secret"
        raise _reused(snapshot, wanted, why, version=commit.version)


def check_staged_for(spec: JobSpec, snapshot: Snapshot, tags: Mapping[str, str], staged_ms: int) -> bool:
    """Return whether a change that waits under this identity was staged with other arguments.

    Raises IdempotencyKeyReused if it was staged for other work, as `done_in` does for a commit.
    """
    wanted = spec.application
    assert wanted is not None
    is_same = tags.get(DIGEST_TAG) in (spec.digest(), spec.digest(with_key=False))
    if wanted.not_before_ms is not None and staged_ms < wanted.not_before_ms:
        raise _reused(snapshot, wanted, "has staged a change before this run began, in an earlier run of that name")
    if wanted.check_digest and not is_same:
        raise _reused(snapshot, wanted, "has staged a change of other work, which waits to be published")
    return not is_same


def _reused(
    snapshot: Snapshot, wanted: ApplicationTransaction, why: str, *, version: int | None = None
) -> IdempotencyKeyReused:
    return IdempotencyKeyReused(
        f"Table {snapshot.uri}: the application transaction {wanted.app_id!r} (version {wanted.version}) {why}. "
        "Nothing was done now. Give the task an idempotency_key that names this work, such as one with "
        "{{ run_id }} in it.",
        table=snapshot.uri,
        app_id=wanted.app_id,
        version=version,
    )


def _metrics(info: dict[str, Any]) -> dict[str, int]:
    metrics = info.get("operationMetrics") or {}
    return {name: int(value) for name, value in metrics.items() if str(value).lstrip("-").isdigit()}


def remove_first_version_note(store: Store, application: ApplicationTransaction) -> None:
    """Delete the note of the version that the first try of some work met, and its folder if that is empty then."""
    path = first_version_note(application)
    store.delete(path)
    store.delete_empty_directory(path.rpartition("/")[0])


def remove_saved_work(store: Store, folder: str, kept: Collection[str] = ()) -> None:
    """Delete a folder of materialized inputs, large plans and saved work, except the files `kept`."""
    # The folder's name contains the work's id, and no log names a file in it.
    deletion = Deletion()
    delete_files(store, [info for info in store.list(folder) if info.path not in kept], deletion)
    deletion.check()
    with contextlib.suppress(FileNotFoundError):
        store.delete_empty_directory(folder)


_FORMAT = "airflow_txlog saved work 1"
_FOLDER_CHARACTERS = 32


class Seal:
    """Signs the files that the tries of one application transaction leave for each other in one table's folder.

    A signature covers the table's root, the transaction (app id and number), the kind of content, and the
    content, each preceded by its length, so that no two different things are signed alike.
    """

    def __init__(self, key: str, root: str, application: ApplicationTransaction) -> None:
        self._key = key.encode()
        self._of = (_FORMAT, root, application.app_id, str(application.version))

    def sign(self, kind: str, content: bytes) -> str:
        """Return the signature of content of this kind: 64 hexadecimal digits."""
        mac = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in (*(text.encode("utf-8", "surrogateescape") for text in (*self._of, kind)), content):
            mac.update(len(part).to_bytes(8, "big"))
            mac.update(part)
        return mac.hexdigest()

    def is_signed(self, kind: str, content: bytes, signature: str) -> bool:
        return hmac.compare_digest(self.sign(kind, content).encode(), signature.encode())


def seal_of(root: str, application: ApplicationTransaction | None, key: str | None) -> Seal | None:
    """Return the seal of this work on the table at `root`; None without a transaction or a key."""
    return None if application is None or key is None else Seal(key, root, application)


def work_folder(root: str, application: ApplicationTransaction | None, key: str | None) -> str | None:
    """Return the folder in the table that all tries of this work share, by a secret name; None without saved work."""
    seal = seal_of(root, application, key)
    return None if seal is None else folder_named(seal.sign("folder", b"")[:_FOLDER_CHARACTERS])


def first_version_note(application: ApplicationTransaction) -> str:
    """Return the path of the note of the first try's version, for all tries of the work, with a key or without."""
    identity = f"{application.app_id}\0{application.version}"
    return f"{folder_named(hashlib.sha256(identity.encode()).hexdigest()[:16])}/first-version"


def folder_named(name: str) -> str:
    """Return a folder for jobs' files next to a table's data, visible so that the VACUUM of any engine sweeps it."""
    return PRIVATE_PREFIX + name
