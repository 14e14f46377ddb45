"""JobSpec and JobResult: everything that crosses from an operator to its job and back, as JSON.

A spec describes the work on one table; a result reports what was done, or the typed error that prevented it. Neither
knows Airflow, Spark or the engine. A spec holds URIs and SQL text. Its only secrets are keys, which are in the JSON
only on request; the job's process gets credentials by its own identity.

Invariant: a `JobSpec` or `JobResult` that exists is valid, and its JSON reads back as an equal one.

How the job uses `JobSpec.application`, the application transaction (soundness A10, A11):

1. Before it reads anything, and again at every refresh, it looks `app_id` up in the snapshot. A recorded version of at
   least `version` means that the work is done: the result is `already_done`.
2. `check_digest` (the author named the work): the commit that recorded it must carry this spec's digest as
   `tags[DIGEST_TAG]`. If it does not, the name was used for other work: `IdempotencyKeyReused`.
3. `not_before_ms` (no state store keeps the number): a transaction recorded before that moment belongs to an earlier
   use of the same run id: `IdempotencyKeyReused`.
4. `first_tried_ms` (the earliest possible moment of the work's first try): a table that forgets transactions sooner
   (delta.setTransactionRetentionDuration) cannot prove that the work is not done: `TransactionExpired`. `is_first_try`:
   no earlier try of this work is possible, so work that counts from its first try does not look for commits that have
   landed since then.
5. The data-changing commit sets `app_id` to `version`, and its commitInfo carries `spec.commit_tags()`.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import hmac
import json
import os
import re
import tempfile
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from airflow_txlog.contract.operations import LimitedOperation, Operation, operation_named, read_operation
from airflow_txlog.contract.operations.fields import ChangeId, SecretKey, Text, TextMap
from airflow_txlog.contract.operations.reading import missing, plain, read_fields, unknown, want, whole
from airflow_txlog.contract.restrictions import RESTRICTED, check_restrictions
from airflow_txlog.errors import InvalidJobSpec, TxlogError, UnsupportedStore, from_dict
from airflow_txlog.locations import ABSOLUTE, PLAIN, Access, CatalogTable, local_path, scheme_of

_Value = TypeVar("_Value")

DIGEST_TAG = "txlog.digest"
ANNOTATION_TAG_PREFIX = "airflow."

OPEN_FILES = "/dev/fd/"
"""The folder of a process's own open files, by their numbers."""

STATUSES = frozenset({"committed", "staged", "nothing_to_do", "already_done", "failed"})

Milliseconds = Annotated[int, Meta(description="milliseconds since the epoch")]
Counts = Annotated[dict[Text, int], Meta(description="a mapping of text to integers")]


@dataclass(frozen=True, kw_only=True)
class ApplicationTransaction:
    """The identity under which one task changes one table at most once; see the head of this module."""

    app_id: Annotated[str, Meta(min_length=1, description="a non-empty text")]
    version: Annotated[int, Meta(ge=0, description="an integer from 0 on")]
    check_digest: bool = False
    not_before_ms: Milliseconds | None = None
    first_tried_ms: Milliseconds | None = None
    is_first_try: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        read_fields(self, "application.")

    @property
    def began_ms(self) -> int | None:
        """When this work began, if other work may have its number: a task that is cleared before any commit gets the
        same one again. None if a clear makes no new work (an author's key), or changes the number (`max_tries`).
        """
        return None if self.check_digest or self.not_before_ms is not None else self.first_tried_ms


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """One job on one table.

    `operation`: the record of the work. In JSON it is two names: `operation`, the operation's name, and `arguments`,
    its fields, of which those with their default may be missing. A source, a view, keys and a clause are mappings
    there: `{"table": uri}`, `{"format": "parquet", "path": uri}`, `{"sql": "SELECT …", "views": {name: VIEW}}`,
    `{"column": name, "values": […]}`, `{"when": "matched", "then": "update", "set": "*"}`. `result_uri`: the file to
    which the job writes its JobResult; null: none. `annotations` (dag_id, task_id, run_id, map_index, try_number, …)
    become the commit's tags and decide nothing. `conflict_deadline_s`: how long the job keeps trying after its first
    conflict with another commit; 0: that conflict fails it. `publish` false: stage the change, for a job of `Publish`
    with the same `application` and `saved_work_key` to commit. `remakes`: the staged change whose place this one takes,
    because a conflict forbids that one. `strict_writers`: refuse a table whose last commits name
    an engine that would replace ours (docs/writers.md). `access`: how every process opens the stores of the job's
    tables. It refers to credentials and holds no secret. `unrestricted`: which texts are the DAG author's own: "query",
    "options", "spark_conf" (docs/operators/shared.md). Others are restricted, here and in the job, to texts that cannot
    load code. `saved_work_key` (64 hexadecimal digits): the key with which the tries of this work name and sign their
    saved work; null: the job trusts and saves none. It is a secret and decides nothing, so specs that differ only in it
    are equal, and it is not in the `repr`. `ledger_uri`: the ledger of erased subjects, for an operation that may bring
    rows back; with `leaves_out_erased` it leaves their rows out, if it can, and is not refused. `ledger_keys`: the keys
    of its digests, the oldest first; they are secrets, as `saved_work_key` is. So is `records_key`, with which the runs
    of an erasure sign the records of their work; null: they are not signed.

    Raises InvalidJobSpec, whose `argument` is the dotted name of the invalid field.
    """

    operation: Annotated[Operation, Meta(description="a record of an operation")]
    table_uri: Annotated[str, Meta(pattern=ABSOLUTE, description="an absolute path or a URI", extra={"is_place": True})]
    result_uri: Text | None = None
    application: Annotated[ApplicationTransaction, Meta(description="an application transaction")] | None = None
    time_zone: Annotated[str, Meta(pattern=r"\S", description="a time zone's name")] = "UTC"
    spark_conf: TextMap = field(default_factory=dict)
    annotations: Annotated[dict[str, Any], Meta(description="a mapping")] = field(default_factory=dict)
    conflict_deadline_s: Annotated[int, Meta(ge=0, description="a whole number of seconds from 0 on")] = 3600
    publish: bool = True
    remakes: ChangeId | None = None
    strict_writers: bool = False
    access: Annotated[Access, Meta(description="an Access")] = PLAIN
    unrestricted: Annotated[tuple[str, ...], Meta(description="a list")] = ()
    ledger_uri: Annotated[str, Meta(pattern=ABSOLUTE, description="an absolute path or a URI")] | None = None
    leaves_out_erased: bool = False
    ledger_keys: Annotated[tuple[str, ...], Meta(description="a list")] = field(default=(), repr=False, compare=False)
    saved_work_key: SecretKey | None = field(default=None, repr=False, compare=False)
    records_key: SecretKey | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Read into copies: the spec does not follow its caller's dicts.
        read_fields(self)
        plain("annotations", self.annotations)
        _check_access(self.access)
        options = copy.deepcopy(self.access.storage_options)
        object.__setattr__(self, "access", dataclasses.replace(self.access, storage_options=options))
        if self.application is not None:
            possible, name = self.operation.changes_rows, self.operation.name
            want("application", possible, f"null: {name} carries no transaction")
        want("publish", self.publish or self.operation.may_wait, f"true: a change by {self.operation.name} cannot wait")
        is_whole = isinstance(self.operation, LimitedOperation) and self.operation.does_more_than_commit
        want("publish", self.publish or not is_whole, "true with dry_run, and with expect_or_quarantine")
        for item in self.unrestricted:
            want("unrestricted", item in RESTRICTED, f"a list of some of {list(RESTRICTED)}", item, is_shown=True)
        object.__setattr__(self, "unrestricted", tuple(sorted(set(self.unrestricted))))
        check_restrictions(self.operation, self.spark_conf, self.unrestricted)

    def digest(self, *, with_key: bool = True) -> str:
        """Return the SHA-256 (hex) of operation, table, arguments and time zone, keyed by `saved_work_key`.

        It is equal for every try of a task. Because of the key, a reader of the table's log cannot guess the person
        that a delete was for. `with_key=False`: the digest of a task that had no key.
        """
        what = {
            "operation": self.operation.name,
            "table_uri": self.table_uri,
            # Without defaults: work under an idempotency_key stays the same in a release that has more arguments.
            "arguments": self.operation.given_arguments(),
            "time_zone": self.time_zone,
        }
        text = json.dumps(what, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        if with_key and self.saved_work_key is not None:
            return hmac.new(bytes.fromhex(self.saved_work_key), text.encode(), hashlib.sha256).hexdigest()
        return hashlib.sha256(text.encode()).hexdigest()

    def commit_tags(self) -> dict[str, str]:
        """Return the tags of the commit's `commitInfo`: the digest, and the annotations as `airflow.<name>`.

        A digest without a key, which could be guessed, is included only if a later try must compare it.
        """
        is_compared = self.application is not None and self.application.check_digest
        tags = {DIGEST_TAG: self.digest()} if is_compared or self.saved_work_key is not None else {}
        for name, value in self.annotations.items():
            if value is not None:
                tags[ANNOTATION_TAG_PREFIX + name] = value if isinstance(value, str) else json.dumps(value)
        return tags

    def replace(self, **changes: Any) -> JobSpec:
        """Return a copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)

    def to_json(self, *, with_key: bool = False) -> str:
        """Return one JSON object with every field except the keys: `saved_work_key`, `ledger_keys`, `records_key`.

        `with_key`: include these too, only for a file that no other user can read and that does not outlive the job.
        """
        data = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        data |= {"operation": self.operation.name, "arguments": self.operation.arguments()}
        data["access"] = dataclasses.asdict(self.access)
        if self.application is not None:
            data["application"] = dataclasses.asdict(self.application)
        if not with_key:
            del data["saved_work_key"], data["ledger_keys"], data["records_key"]
        return json.dumps(data, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> JobSpec:
        """Return the spec that `to_json` wrote. Raises InvalidJobSpec, also for an unknown field."""
        data = _object_of(cls, "spec", text)
        if "operation" not in data:
            raise missing("operation", "a job")
        data["operation"] = read_operation(operation_named(data["operation"]), data.pop("arguments", {}))
        application = data.get("application")
        if application is not None:
            data["application"] = _build(ApplicationTransaction, "application", application)
        if "access" in data:
            data["access"] = _access_of(data["access"])
        return _build(cls, "", data)


@dataclass(kw_only=True)
class Lineage:
    """The data that a job read and wrote.

    `columns`: the type of each column of the table. `views`: the columns of each view of the source, by its name in the
    query, "" without a query; `sizes`: its `rows`, `bytes` and number of `files`, if known exactly.
    `versions`: the versions of tables that the source reads at their latest one, by URI; None if two were read.
    """

    columns: dict[str, str] = field(default_factory=dict)
    views: dict[str, list[str]] = field(default_factory=dict)
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    versions: dict[str, int | None] = field(default_factory=dict)

    def forget_source(self) -> None:
        """Forget the source, because it is evaluated again."""
        self.views, self.sizes, self.versions = {}, {}, {}


@dataclass(frozen=True, kw_only=True)
class Details:
    """The parts of a result beyond counts.

    `arguments_changed`: the work was already done, with other arguments than the spec's. `files` (the first ones),
    `dry_run` and `mode` are those of a vacuum; those of a convert are the files that it left out. `upkeep`: the steps
    that were due, `[{"step", "why", "done", …}]`. `staged`: the handle of a staged change. `partitions`: the change by
    partition, of a dry run. `findings`: the `erasure.report.Findings` of a verification, by request. `erasure`: the
    steps of an erasure, the objects that have to wait, and the lists of deleted objects. `met`: the other commits that
    the work met, and how each was resolved, in the form of `engine.commit.content.met`; None without any. `lineage` is
    None if the job knows none, or if it is too long.
    """

    arguments_changed: bool = False
    files: list[str] = field(default_factory=list)
    dry_run: bool | None = None
    mode: str | None = None
    upkeep: list[dict[str, Any]] = field(default_factory=list)
    staged: dict[str, Any] | None = None
    partitions: list[dict[str, Any]] = field(default_factory=list)
    findings: dict[str, Any] | None = None
    erasure: dict[str, Any] | None = None
    met: dict[str, Any] | None = None
    lineage: Lineage | None = None


def _are_steps(steps: list[dict[str, Any]]) -> bool:
    return all(isinstance(s.get("name"), str) and isinstance(s.get("seconds"), int | float) for s in steps)


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """The outcome of one job.

    - `status`: "committed"; "staged" (`details.staged` is the handle, `metrics` those of the commit to come);
      "nothing_to_do" (no commit was needed); "already_done" (an earlier try or a second copy
      did it); "failed" (`error` is the reason; nothing of this job is in the table unless the error states otherwise).
    - `version`: the commit's version; for "already_done" the version that did the work, or null with `at_or_before` if
      the log no longer shows it. `read_version`: the version that the work was computed from; null for a table that
      this job created.
    - `metrics`: the integer metrics of the commit. `files`: counts named `considered`, `pruned`, `rewritten`, `added`,
      `removed`, and `deletion_vectors` (files that got one). `steps`: `[{"name", "seconds"}]` in order. `attempts`: how
      often the work was planned.
    - `error`: `TxlogError.to_dict()`, only for "failed". `table_name`: in the catalog, if the task has named it.
    """

    status: Annotated[str, Meta(description=f"one of {sorted(STATUSES)}", extra={"holds": STATUSES.__contains__})]
    operation: Annotated[str, Meta(description="a text")]
    table_uri: Annotated[str, Meta(description="a text", extra={"is_place": True})]
    version: Annotated[int, Meta(description="an integer")] | None = None
    at_or_before: Annotated[int, Meta(description="an integer")] | None = None
    read_version: Annotated[int, Meta(description="an integer")] | None = None
    metrics: Counts = field(default_factory=dict)
    files: Counts = field(default_factory=dict)
    steps: Annotated[
        list[dict[str, Any]], Meta(description="a list of {name, seconds}", extra={"holds": _are_steps})
    ] = field(default_factory=list)
    attempts: int = 1
    details: Annotated[Details, Meta(description="details of a result")] = Details()
    table_name: Text | None = None
    error: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        # The text of an error may be cut, and is reported all the same.
        read_fields(self, but="error")
        plain("error", self.error)
        want("error", (self.error is not None) == (self.status == "failed"), "given exactly when the job failed")

    @property
    def seconds(self) -> float:
        """The time of all steps together."""
        return float(sum(step["seconds"] for step in self.steps))

    def typed_error(self) -> TxlogError | None:
        """Return the error of a failed job as the class that it raised; None if it did not fail."""
        return None if self.error is None else from_dict(self.error)

    def to_json(self) -> str:
        """Return one JSON object with every field."""
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> JobResult:
        """Return the result that `to_json` wrote; a field of a newer release is ignored. Raises InvalidJobSpec."""
        data = _object_of(cls, "result", text)
        details = data.get("details") or {}
        want("details", isinstance(details, dict), "a JSON object", details)
        if details.get("lineage") is not None:
            details["lineage"] = _build(Lineage, "details.lineage", details["lineage"], may_have_more=True)
        data["details"] = _build(Details, "details", details, may_have_more=True)
        return _build(cls, "", data, may_have_more=True)


def _access_of(data: Any) -> Access:
    want("access", isinstance(data, dict), "a JSON object", data)
    tables = data.get("catalog_tables", [])
    want("access.catalog_tables", isinstance(tables, list), "a list", tables)
    built = tuple(_build(CatalogTable, f"access.catalog_tables[{index}]", each) for index, each in enumerate(tables))
    return _build(Access, "access", {**data, "catalog_tables": built})


# How the clients of object stores name their secrets.
_SECRET = re.compile(r"secret|password|token|credential|connection_string|(^|_)(key|sas)$", re.IGNORECASE)


def _check_access(access: Access) -> None:
    options, connection = access.storage_options, access.storage_conn_id
    whole("storage_options", options)
    want("storage_options", isinstance(options, dict), "a mapping")
    plain("storage_options", options)
    _check_no_secret("storage_options", options)
    whole("storage_conn_id", connection)
    is_name = connection is None or (isinstance(connection, str) and connection.strip() != "")
    want("storage_conn_id", is_name, "the name of a connection, or null", connection)
    for name in ("allow_absolute_paths", "single_writer"):
        want(name, isinstance(getattr(access, name), bool), "true or false", getattr(access, name))
    for index, table in enumerate(access.catalog_tables):
        for name, found in dataclasses.asdict(table).items():
            is_valid = isinstance(found, bool) if name == "is_managed" else isinstance(found, str) and found != ""
            is_valid = is_valid or (name in ("storage_conn_id", "new_properties") and found is None)
            want(f"catalog_tables[{index}].{name}", is_valid, "a non-empty text, or true or false", found)


def _check_no_secret(name: str, options: Any) -> None:
    """Raise InvalidJobSpec if an option is named like a secret: a spec is written down, and sent to executors."""
    if isinstance(options, dict):
        for key, value in options.items():
            expected = "left out: name a profile, or let each process use its own identity"
            want(f"{name}.{key}", _SECRET.search(key) is None, expected, "")
            _check_no_secret(f"{name}.{key}", value)
    elif isinstance(options, list):
        for index, value in enumerate(options):
            _check_no_secret(f"{name}[{index}]", value)


def _object_of(cls: type, what: str, text: str | bytes) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as e:
        raise InvalidJobSpec(f"The job's {what} is not JSON: {e}.", argument=what) from e
    want(what, isinstance(data, dict), f"a JSON object describing a {cls.__name__}", data)
    return dict(data)


def _build(cls: type[_Value], prefix: str, data: Any, *, may_have_more: bool = False) -> _Value:
    want(prefix or cls.__name__, isinstance(data, dict), "a JSON object", data)
    known = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name in data:
        if name not in known and not may_have_more:
            raise unknown(f"{prefix}.{name}".lstrip("."), known)
    for name, spec in known.items():
        required = spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING
        if required and name not in data:
            raise missing(f"{prefix}.{name}".lstrip("."), cls.__name__)
    return cls(**{name: value for name, value in data.items() if name in known})


# --- at rest --------------------------------------------------------------------------------------------------------


def write_document(uri: str, text: str) -> None:
    """Write a spec or a result to a local path or a `file:` URI, whole or not at all, with mode 0600.

    Creates missing directories. A path in OPEN_FILES is a file that its reader created and holds open: a process that
    dies in the middle leaves a part, and the old content is overwritten and not truncated first, so that the room
    reserved for the file stays reserved.

    Raises UnsupportedStore for any other scheme.
    """
    path = _document_path(uri)
    if path.startswith(OPEN_FILES):
        with open(path, "r+", encoding="utf-8") as f:
            f.write(text)
            f.truncate()
        return
    directory = os.path.dirname(path) or "."
    os.makedirs(directory, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=directory, prefix=".", suffix=".tmp")  # mkstemp makes it 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_document(uri: str) -> str | None:
    """Return the text that `write_document` wrote to a URI, or None if there is none."""
    try:
        with open(_document_path(uri), encoding="utf-8") as f:
            return f.read()
    except FileNotFoundError:
        return None


def read_spec(uri: str) -> JobSpec:
    """Return the spec at a URI. Raises InvalidJobSpec if there is none, or if it is not valid."""
    text = read_document(uri)
    if text is None:
        raise InvalidJobSpec(f"There is no job description at {uri}.", argument="spec")
    return JobSpec.from_json(text)


def read_result(uri: str) -> JobResult | None:
    """Return the result at a URI, or None if the job left none, or only a part of one."""
    text = read_document(uri)
    try:
        json.loads(text or "")
    except ValueError:
        return None
    return JobResult.from_json(text or "")


def _document_path(uri: str) -> str:
    path = local_path(uri)
    if path is None:
        scheme = scheme_of(uri)
        raise UnsupportedStore(
            f"Job documents can be kept on a local path only for now; {uri} is on {scheme}.", uri=uri, filesystem=scheme
        )
    return path
