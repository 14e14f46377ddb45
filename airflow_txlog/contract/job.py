"""JobSpec and JobResult: everything that crosses from an operator to its job and back, as JSON.

A spec says what to do to one table; a result says what was done, or which typed error forbade it. Neither knows of
Airflow, Spark or the engine. A spec holds URIs and SQL text; credentials reach the job's process by that process's own
identity. Its one secret is `saved_work_key`, which is in its JSON only where that is asked for.

Invariant: a `JobSpec` or `JobResult` that exists is valid, and is equal to what its own JSON reads back to.

What the job does with `JobSpec.application`, the application transaction (soundness A10, A11):

1. Before anything is read, and again at every refresh, it looks `app_id` up in the snapshot. A recorded version at or
   above `version` means the work is done: the result is `already_done`.
2. `check_digest` (the author's own name for the work): the commit that recorded it must carry this spec's digest as
   `tags[DIGEST_TAG]`, else the name was used for other work, which is `IdempotencyKeyReused`.
3. `not_before_ms` (no state store to keep the number in): a transaction recorded before that moment belongs to an
   earlier life of the same run id, and is `IdempotencyKeyReused` too.
4. `first_tried_ms` (when the work was first tried, at the earliest): a table that forgets transactions sooner than that
   (delta.setTransactionRetentionDuration) cannot show that the work is not done, which is `TransactionExpired`.
   `is_first_try` (no try of this work can have come before): work that counts from its first try need not
   look for what has landed since then.
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
from typing import Any, TypeVar

from airflow_txlog.contract.operations import Operation, operation_named, read_operation
from airflow_txlog.contract.operations.refusals import (
    invalid,
    is_int,
    is_text,
    is_text_map,
    missing,
    plain,
    unknown,
    want,
    want_place,
    whole,
)
from airflow_txlog.contract.restrictions import RESTRICTED, check_restrictions
from airflow_txlog.errors import InvalidJobSpec, TxlogError, UnsupportedStore, from_dict
from airflow_txlog.locations import PLAIN, Access, is_absolute, local_path, scheme_of

_Value = TypeVar("_Value")

DIGEST_TAG = "txlog.digest"
ANNOTATION_TAG_PREFIX = "airflow."

OPEN_FILES = "/dev/fd/"
"""The folder in which a process finds its own open files, by their numbers."""

_KEY = re.compile("[0-9a-f]{64}")
STATUSES = frozenset({"committed", "nothing_to_do", "already_done", "failed"})


@dataclass(frozen=True, kw_only=True)
class ApplicationTransaction:
    """The identity under which one task changes one table at most once; see the head of this module."""

    app_id: str
    version: int
    check_digest: bool = False
    not_before_ms: int | None = None
    first_tried_ms: int | None = None
    is_first_try: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        want("application.app_id", isinstance(self.app_id, str) and self.app_id != "", "a non-empty text")
        whole("application.app_id", self.app_id)
        want("application.version", is_int(self.version) and self.version >= 0, "an integer from 0 on")
        for name in ("check_digest", "is_first_try"):
            want(f"application.{name}", isinstance(getattr(self, name), bool), "true or false")
        for name in ("not_before_ms", "first_tried_ms"):
            value = getattr(self, name)
            want(f"application.{name}", value is None or is_int(value), "milliseconds since the epoch, or null")


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """One job on one table.

    `operation` is one of `contract.operations`: what to do, with its arguments. In JSON it is two names, `operation`
    with the operation's own and `arguments` with its fields, of which those that hold their default may be missing.
    A source, a view, keys and a clause are mappings there: `{"table": uri}`, `{"format": "parquet", "path": uri}`,
    `{"sql": "SELECT …", "views": {name: VIEW}}`, `{"column": name, "values": […]}`,
    `{"when": "matched", "then": "update", "set": "*"}`. Every path is absolute, or a URI.
    `annotations` (dag_id, task_id, run_id, map_index, try_number, …) go into the commit's tags and decide nothing.
    `conflict_deadline_s` bounds how long the job itself goes on after its first conflict with another commit, keeping
    all work that still holds; 0: that conflict fails it.
    `strict_writers` refuses a table whose last commits name an engine that would replace ours (docs/writers.md).
    `access` says how the stores of the job's tables are opened, in every process. It holds references to credentials,
    never a secret: it is written down with the rest of the spec.
    `unrestricted` names what is the DAG author's own text: "query", "options", "spark_conf" (docs/operators.md). What
    it does not name is restricted to what cannot load code, here and in the job.
    `result_uri` is where the job puts its JobResult; null: nowhere.
    `saved_work_key` (64 hexadecimal digits) is what the tries of this work name and sign their saved work with; null:
    the job trusts no work that another process saved, and saves none. A secret: it decides nothing about the work, so
    specs that differ in it are equal, and it is neither in the `repr` nor, unless asked for, in the JSON.

    Raises InvalidJobSpec, whose `argument` is the dotted name of what is wrong.
    """

    operation: Operation
    table_uri: str
    result_uri: str | None = None
    application: ApplicationTransaction | None = None
    time_zone: str = "UTC"
    spark_conf: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, Any] = field(default_factory=dict)
    conflict_deadline_s: int = 3600
    strict_writers: bool = False
    access: Access = PLAIN
    unrestricted: tuple[str, ...] = ()
    saved_work_key: str | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        want("operation", isinstance(self.operation, Operation), "a record of an operation", self.operation)
        named = is_text(self.table_uri) and is_absolute(self.table_uri)
        want("table_uri", named, "an absolute path or a URI", self.table_uri, is_shown=True)
        want_place("table_uri", self.table_uri)
        want("result_uri", self.result_uri is None or is_text(self.result_uri), "a text or null", self.result_uri)
        want("time_zone", is_text(self.time_zone), "a time zone's name", self.time_zone)
        for name in ("time_zone", "spark_conf", "annotations"):
            whole(name, getattr(self, name))
        want("spark_conf", is_text_map(self.spark_conf), "a mapping of text to text", self.spark_conf)
        want("annotations", isinstance(self.annotations, dict), "a mapping", self.annotations)
        plain("annotations", self.annotations)
        valid_deadline = is_int(self.conflict_deadline_s) and self.conflict_deadline_s >= 0
        want("conflict_deadline_s", valid_deadline, "a whole number of seconds from 0 on", self.conflict_deadline_s)
        want("strict_writers", isinstance(self.strict_writers, bool), "true or false", self.strict_writers)
        _check_access(self.access)
        key = self.saved_work_key
        is_key = key is None or (isinstance(key, str) and _KEY.fullmatch(key) is not None)
        want("saved_work_key", is_key, "64 hexadecimal digits, or null")
        if self.application is not None:
            want("application", isinstance(self.application, ApplicationTransaction), "an application transaction")
            operation = self.operation
            want("application", operation.changes_rows, f"null: {operation.name} carries no transaction")
        want("unrestricted", isinstance(self.unrestricted, list | tuple), "a list", self.unrestricted)
        for item in self.unrestricted:
            want("unrestricted", item in RESTRICTED, f"a list of some of {list(RESTRICTED)}", item, is_shown=True)
        # The copies detach the spec from its caller's dicts, so that it stays what was validated.
        object.__setattr__(self, "spark_conf", dict(self.spark_conf))
        options = copy.deepcopy(self.access.storage_options)
        object.__setattr__(self, "access", dataclasses.replace(self.access, storage_options=options))
        object.__setattr__(self, "annotations", copy.deepcopy(self.annotations))
        object.__setattr__(self, "unrestricted", tuple(sorted(set(self.unrestricted))))
        check_restrictions(self.operation, self.spark_conf, self.unrestricted)

    def digest(self, *, with_key: bool = True) -> str:
        """SHA-256 (hex) of what the job does: operation, table, arguments, time zone; keyed by `saved_work_key`.

        With the key, a reader of the table's log cannot try out which subjects a delete was for. Equal for every try
        of a task; the result's place, Spark's settings, the annotations and the transaction's number are left out.
        `with_key=False`: of a task that had no key.
        """
        what = {
            "operation": self.operation.name,
            "table_uri": self.table_uri,
            # Without defaults: work under an idempotency_key is the same for a release that knows more arguments.
            "arguments": self.operation.given_arguments(),
            "time_zone": self.time_zone,
        }
        text = json.dumps(what, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        if with_key and self.saved_work_key is not None:
            return hmac.new(bytes.fromhex(self.saved_work_key), text.encode(), hashlib.sha256).hexdigest()
        return hashlib.sha256(text.encode()).hexdigest()

    def commit_tags(self) -> dict[str, str]:
        """What the commit's `commitInfo.tags` carry: the digest, and the annotations as `airflow.<name>`.

        A digest without a key, which could be tried out, is there only where a later try must compare it.
        """
        is_compared = self.application is not None and self.application.check_digest
        tags = {DIGEST_TAG: self.digest()} if is_compared or self.saved_work_key is not None else {}
        for name, value in self.annotations.items():
            if value is not None:
                tags[ANNOTATION_TAG_PREFIX + name] = value if isinstance(value, str) else json.dumps(value)
        return tags

    def replace(self, **changes: Any) -> JobSpec:
        """A copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)

    def to_json(self, *, with_key: bool = False) -> str:
        """One JSON object with every field but `saved_work_key`.

        `with_key`: with that too. Only for what no other user can read and what does not outlive the job.
        """
        data = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        data |= {"operation": self.operation.name, "arguments": self.operation.arguments()}
        data["access"] = dataclasses.asdict(self.access)
        if self.application is not None:
            data["application"] = dataclasses.asdict(self.application)
        if not with_key:
            del data["saved_work_key"]
        return json.dumps(data, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> JobSpec:
        """The spec that `to_json` wrote. Raises InvalidJobSpec; an unknown field is an error, not ignored."""
        data = _object_of(cls, "spec", text)
        if "operation" not in data:
            raise missing("operation", "a job")
        data["operation"] = read_operation(operation_named(data["operation"]), data.pop("arguments", {}))
        application = data.get("application")
        if application is not None:
            data["application"] = _build(ApplicationTransaction, "application", application)
        if "access" in data:
            data["access"] = _build(Access, "access", data["access"])
        return _build(cls, "", data)


@dataclass(kw_only=True)
class Lineage:
    """What a job came to know of what it read and wrote.

    `columns`: the type of each of the table's columns. `views`: the columns of each view of the source, by its name in
    the query, "" without a query; `sizes`: its `rows`, `bytes` and number of `files`, each where it is known exactly.
    `versions`: of tables that the source reads at their latest version, by URI; None where two were read.
    """

    columns: dict[str, str] = field(default_factory=dict)
    views: dict[str, list[str]] = field(default_factory=dict)
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    versions: dict[str, int | None] = field(default_factory=dict)

    def forget_source(self) -> None:
        """Begin anew with a source that is evaluated again."""
        self.views, self.sizes, self.versions = {}, {}, {}


@dataclass(frozen=True, kw_only=True)
class Details:
    """What a result reports beyond counts.

    `arguments_changed`: the work was done already, from other arguments than the spec's. `files` (the first of them),
    `dry_run` and `mode` are those of a vacuum. `lineage` is None where the job knows none, or where it is too long.
    """

    arguments_changed: bool = False
    files: list[str] = field(default_factory=list)
    dry_run: bool | None = None
    mode: str | None = None
    lineage: Lineage | None = None


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """What one job did.

    - `status`: "committed"; "nothing_to_do" (no commit was needed); "already_done" (an earlier try or a second copy
      did it); "failed" (`error` says why, and nothing of this job is in the table unless `error` says otherwise).
    - `version`: the commit's version; for "already_done" the version that did it, or null with `at_or_before` when
      the log no longer shows it. `read_version`: the version the committed work was computed from; null for a table
      that this job created.
    - `metrics`: the operation metrics of the commit, integers. `files`: counts named `considered`, `pruned`,
      `rewritten`, `added`, `removed`, and `deletion_vectors` (files that got one). `steps`: `[{"name", "seconds"}]`
      in order. `attempts`: how often it was planned.
    - `details`: what is reported beyond counts.
    - `error`: `TxlogError.to_dict()`, for "failed" only.
    """

    status: str
    operation: str
    table_uri: str
    version: int | None = None
    at_or_before: int | None = None
    read_version: int | None = None
    metrics: dict[str, int] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)
    attempts: int = 1
    details: Details = Details()
    error: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        want("status", self.status in STATUSES, f"one of {sorted(STATUSES)}", self.status)
        want("error", (self.error is not None) == (self.status == "failed"), "given exactly when the job failed")
        for name in ("operation", "table_uri"):
            want(name, isinstance(getattr(self, name), str), "a text", getattr(self, name))
        for name in ("version", "at_or_before", "read_version"):
            value = getattr(self, name)
            want(name, value is None or is_int(value), "an integer or null", value)
        for name in ("metrics", "files"):
            counts = getattr(self, name)
            valid = isinstance(counts, dict) and all(is_text(k) and is_int(v) for k, v in counts.items())
            want(name, valid, "a mapping of text to integers", counts)
        valid_steps = isinstance(self.steps, list) and all(
            isinstance(s, dict) and is_text(s.get("name")) and isinstance(s.get("seconds"), int | float)
            for s in self.steps
        )
        want("steps", valid_steps, "a list of {name, seconds}", self.steps)
        want("details", isinstance(self.details, Details), "details of a result", self.details)
        plain("error", self.error)

    @property
    def seconds(self) -> float:
        """The time of all steps together."""
        return float(sum(step["seconds"] for step in self.steps))

    def typed_error(self) -> TxlogError | None:
        """The error of a failed job as the class that was raised there; None when it did not fail."""
        return None if self.error is None else from_dict(self.error)

    def to_json(self) -> str:
        """One JSON object with every field."""
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


# What the clients of object stores call their secrets.
_SECRET = re.compile(r"secret|password|token|credential|connection_string|(^|_)(key|sas)$", re.IGNORECASE)


def _check_access(access: Access) -> None:
    want("access", isinstance(access, Access), "how stores are opened", access)
    options, connection = access.storage_options, access.storage_conn_id
    whole("storage_options", options)
    want("storage_options", isinstance(options, dict), "a mapping")
    plain("storage_options", options)
    _check_no_secret("storage_options", options)
    whole("storage_conn_id", connection)
    want("storage_conn_id", connection is None or is_text(connection), "the name of a connection, or null", connection)
    for name in ("allow_absolute_paths", "single_writer"):
        want(name, isinstance(getattr(access, name), bool), "true or false", getattr(access, name))


def _check_no_secret(name: str, options: Any) -> None:
    """Raises InvalidJobSpec where an option is named as a secret is: a spec is written down, and sent to executors."""
    if isinstance(options, dict):
        for key, value in options.items():
            is_secret = _SECRET.search(key) is not None
            expected = "left out: name a profile, or let each process use its own identity"
            want(f"{name}.{key}", not is_secret, expected, "")
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
    more = [name for name in data if name not in known]
    if more and not may_have_more:
        raise unknown(f"{prefix}.{more[0]}".lstrip("."), known)
    for name, spec in known.items():
        required = spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING
        if required and name not in data:
            raise invalid(f"{prefix}.{name}".lstrip("."), "given", None)
    return cls(**{name: value for name, value in data.items() if name in known})


# --- at rest --------------------------------------------------------------------------------------------------------


def write_document(uri: str, text: str) -> None:
    """Put a spec or a result at a URI: whole or not at all, readable by its owner only (mode 0600).

    A local path or a `file:` URI; any other scheme raises UnsupportedStore. Missing directories are made. A path in
    OPEN_FILES is a file that its reader made and holds open: a process that dies in the middle leaves a part, and what
    the file held before is overwritten and not cut first, so that room which was taken for it stays taken.
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
    """The text that `write_document` put at a URI, or None where there is none."""
    try:
        with open(_document_path(uri), encoding="utf-8") as f:
            return f.read()
    except FileNotFoundError:
        return None


def read_spec(uri: str) -> JobSpec:
    """The spec at a URI. Raises InvalidJobSpec when there is none, or when it is not valid."""
    text = read_document(uri)
    if text is None:
        raise InvalidJobSpec(f"There is no job description at {uri}.", argument="spec")
    return JobSpec.from_json(text)


def read_result(uri: str) -> JobResult | None:
    """The result at a URI, or None when the job left none, or a part of one."""
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
