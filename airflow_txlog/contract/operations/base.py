"""The base of all records of operations, and their register.

A record holds all facts about an operation outside its job: its fields with defaults and checks, which of them are SQL
texts and the names that these may use (`Sees`), and the class-level facts of `Operation`. Invariant: an operation that
exists is valid, and its JSON reads back as an equal one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

import msgspec

from airflow_txlog.contract.operations.fields import (
    AnySource,
    Conditions,
    Count,
    Location,
    Parameters,
    PartitionText,
    RowsInProcess,
    Share,
    SomeColumnNames,
)
from airflow_txlog.contract.operations.reading import (
    PLACE,
    Change,
    Part,
    Sees,
    check_names,
    fields_of,
    kinds_of,
    read,
    want,
)
from airflow_txlog.contract.parameters import decode_parameter

_Record = TypeVar("_Record", bound="Operation")

REPLACED = "replaced"
"""The rows that an overwrite removed. The rows that it wrote are counted separately."""


class Operation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="operation"):
    """One operation on one table. Each operation is a registered subclass, whose `tag` is its name.

    A field accepts the wire's form of a value, such as a mapping for a source or a clause, and holds the record. Raises
    InvalidJobSpec, whose `argument` is the dotted name of the invalid field: `arguments.clauses[0].set`.
    """

    name: ClassVar[str]
    """The name on the wire, in results and for people: the tag."""
    job: ClassVar[str]
    """The function that runs it, as `module:name`. It takes the job's context; only the job's process imports it."""
    needs_spark: ClassVar[bool] = False
    """Whether the job evaluates SQL and gets a `JobContext`; otherwise it gets a `LogContext`."""
    changes_rows: ClassVar[bool] = False
    """Whether its commit carries an application transaction. The others are idempotent by nature (soundness B5)."""
    runs_jobs: ClassVar[bool] = False
    """Whether its job gets a `LogContext` although it `needs_spark`, and runs other jobs, which may need a Spark."""
    may_wait: ClassVar[bool] = False
    """Whether its change may be staged now and published later, on what other commits have left by then."""
    uses_ledger: ClassVar[bool] = False
    """Whether its job gets the ledger of erased subjects: it may bring their rows back, or erases them."""
    how_to_create: ClassVar[str] = (
        "DeltaWriteOperator creates a table, and DeltaConvertOperator makes one of Parquet files."
    )
    """For people: how the table that the operation needs comes into being."""
    rows: ClassVar[Mapping[str, str]] = {}
    """For people: the change of the rows that a metric of its commit counts, by the metric's name."""

    def __post_init__(self) -> None:
        for name, kind in kinds_of(type(self)).items():
            msgspec.structs.force_setattr(self, name, read(kind, getattr(self, name), f"{PLACE}.{name}"))
        self.check()

    def check(self) -> None:
        """Raise InvalidJobSpec if the fields contradict each other."""

    @property
    def bound_parameters(self) -> dict[str, Any]:
        """The named parameters of the SQL texts as Python values: date, datetime, Decimal, bytes, str, numbers."""
        return {}

    @property
    def acting(self) -> Operation:
        """The operation that does the work: this one, or the one that it applies to its own choice of rows."""
        return self

    @property
    def job_here(self) -> str:
        """The function that runs it with these values: `job`, or a simpler one that loads less."""
        return self.job

    @property
    def counts_from_first_try(self) -> bool:
        """Whether a commit that landed since the work's first try began is a conflict, also for a retry."""
        return False

    @property
    def holds_rows(self) -> bool:
        """Whether its rows are in this process, which then does the work of the job however large it is."""
        return False

    @property
    def may_spare_spark(self) -> bool:
        """Whether a job that `needs_spark` is tried without it first, until a step needs it, before it stages."""
        return False

    def likely_spares_spark(self, *, is_spark_here: bool) -> bool:
        """Return whether a process that tries without Spark is worth its start.

        A guess from the texts and the kind of the source. `is_spark_here`: Spark reads this machine's disk.
        """
        return False

    def arguments(self) -> dict[str, Any]:
        """Return all fields as JSON."""
        data: dict[str, Any] = json.loads(json.dumps(msgspec.to_builtins(self)))
        del data["operation"]
        return data

    def given_arguments(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults: the same in a release whose records have more fields."""
        found: dict[str, Any] = _given(self)
        del found[_KIND]
        return found

    def with_texts(self: _Record, change: Change) -> _Record:
        """Return the same operation with its SQL texts replaced."""
        kinds = kinds_of(type(self))
        return type(self)(**{name: read(kind, getattr(self, name), name, change) for name, kind in kinds.items()})

    def with_parts(self: _Record, change: Callable[[Part], Part]) -> _Record:
        """Return the same operation with each record inside it replaced, the inner ones first."""
        return type(self)(**{name: _changed(getattr(self, name), change) for name in self.__struct_fields__})

    def texts(self) -> list[tuple[str, str, Sees]]:
        """Return the SQL texts, each with the name of its field and the names that it may use."""
        found: list[tuple[str, str, Sees]] = []
        for name, kind in kinds_of(type(self)).items():

            def keep(text: str, sees: Sees, name: str = name) -> str:
                found.append((name, text, sees))
                return text

            if kind.has_texts:
                read(kind, getattr(self, name), name, keep)
        return found

    def parts(self) -> Iterator[tuple[str, Part]]:
        """Yield every record inside this one with its dotted name."""
        for name in self.__struct_fields__:
            yield from _parts(getattr(self, name), f"{PLACE}.{name}")


_KIND = ""


def _given(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        held = ((field, getattr(value, field.name)) for field in fields_of(type(value)).values())
        given = {field.name: _given(inner) for field, inner in held if inner != _default_of(field)}
        # Two records may differ only in a default, as clauses of a merge do in `then`.
        return given | {_KIND: type(value).__name__}
    if isinstance(value, dict):
        return {name: _given(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_given(inner) for inner in value]
    return value


def _default_of(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _parts(value: Any, place: str) -> Iterator[tuple[str, Part]]:
    inner: Iterable[tuple[str, Any]] = ()
    if isinstance(value, Part):
        yield place, value
        inner = ((f"{place}.{name}", getattr(value, name)) for name in value.__struct_fields__)
    elif isinstance(value, dict):
        inner = ((f"{place}.{name}", item) for name, item in value.items())
    elif isinstance(value, tuple):
        inner = ((f"{place}[{index}]", item) for index, item in enumerate(value))
    for below, item in inner:
        yield from _parts(item, below)


def _changed(value: Any, change: Callable[[Part], Part]) -> Any:
    if isinstance(value, Part):
        inner = {name: _changed(getattr(value, name), change) for name in value.__struct_fields__}
        return change(msgspec.structs.replace(value, **inner))
    if isinstance(value, dict):
        return {name: _changed(item, change) for name, item in value.items()}
    return tuple(_changed(item, change) for item in value) if isinstance(value, tuple) else value


class ScopedOperation(Operation, frozen=True, kw_only=True):
    """An operation with SQL texts and their parameters, limited to the partitions of `partition_predicate`.

    `parameters` are JSON scalars, or scalars tagged by `parameters.encode_parameter`.
    """

    partition_predicate: PartitionText | None = None
    parameters: Parameters | None = None

    @property
    def bound_parameters(self) -> dict[str, Any]:
        return {name: decode_parameter(value) for name, value in (self.parameters or {}).items()}


class LimitedOperation(ScopedOperation, frozen=True, kw_only=True):
    """An operation that makes no commit if it would remove more rows, or replace more files, than these limits allow.

    A fraction is one of the operation's scope: of the live rows in the partitions that `partition_predicate` accepts,
    before the operation. `max_files_rewritten`: the files that leave the table or get a deletion vector. `dry_run`:
    report the change, and write nothing. `samples_to`: then append some of the changed rows to this other table.
    """

    may_wait = True

    max_deleted_rows: Count | None = None
    max_deleted_fraction: Share | None = None
    max_files_rewritten: Count | None = None
    dry_run: bool = False
    samples_to: Location | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        want("arguments.samples_to", self.dry_run or self.samples_to is None, "None without dry_run", self.samples_to)

    @property
    def does_more_than_commit(self) -> bool:
        """Whether its job makes no commit, or two, so that no later job can make it."""
        return self.dry_run

    @property
    def appends_to(self) -> str | None:
        """The other table that its job appends rows to."""
        return self.samples_to

    @property
    def limits_old_rows(self) -> bool:
        """Whether the rows that leave must be counted before the commit."""
        return self.max_deleted_rows is not None or self.max_deleted_fraction is not None


class CheckedOperation(LimitedOperation, frozen=True, kw_only=True):
    """An operation that judges each row that it adds or changes by conditions with names, before the commit.

    A row passes only if the condition is TRUE. Rows that fail are counted; if one fails a condition of
    `expect_or_fail`, there is no commit. The limits are as those of `LimitedOperation`. `unique`: columns whose values
    no two rows of the operation's scope may share afterwards.
    """

    max_updated_rows: Count | None = None
    max_updated_fraction: Share | None = None
    min_inserted_rows: Count | None = None
    max_inserted_rows: Count | None = None
    expect: Conditions = msgspec.field(default_factory=dict)
    expect_or_fail: Conditions = msgspec.field(default_factory=dict)
    unique: SomeColumnNames | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_expectations()

    def check_expectations(self) -> None:
        """Raise InvalidJobSpec if the checks contradict each other."""
        seen = set[str]()
        for name, given in (
            ("expect", self.expect),
            ("expect_or_fail", self.expect_or_fail),
            ("expect_or_drop", {name: text for name, text in self.dropping.items() if name not in self.quarantining}),
            ("expect_or_quarantine", self.quarantining),
        ):
            want(f"arguments.{name}", not seen & given.keys(), "a mapping of names that no other expectation has")
            seen |= given.keys()
        distinct = len({column.lower() for column in self.unique or ()}) == len(self.unique or ())
        want("arguments.unique", distinct, "a list of different column names", self.unique)
        check = f"unique({', '.join(self.unique or ())})".lower()
        possible = all(name.lower() != check for name in self.expectations)
        want("arguments.unique", possible, "a list whose check, unique(…), has the name of no expectation", self.unique)
        possible = self.unique is None or not self.dry_run
        want("arguments.unique", possible, "None in a dry run, which writes no file to look into", self.unique)

    @property
    def dropping(self) -> dict[str, str]:
        """The conditions that drop the rows of the source which fail, by name."""
        return {}

    @property
    def quarantining(self) -> dict[str, str]:
        """Those of them that write the rows to another table."""
        return {}

    @property
    def expectations(self) -> dict[str, str]:
        """All conditions by name."""
        return self.expect | self.expect_or_fail | self.dropping


class SourceOperation(CheckedOperation, frozen=True, kw_only=True):
    """An operation that writes the rows of a source. `schema_evolution`: the table gets the source's new columns.

    `expect_or_drop`: conditions on the rows of the source; those that fail are left out. `expect_or_quarantine`: the
    same, and they are written to the table `quarantine_uri`. `deduplicate_by`: of the rows that share these columns the
    first one by `deduplicate_order_by` is used, column names with an optional ASC or DESC.
    """

    how_to_create = (
        "Create it once, with the columns that its rows are to have: without rows by Table.create of "
        "airflow_txlog.engine, or by DeltaWriteOperator, which stores the rows of its source as they are."
    )

    source: AnySource
    schema_evolution: bool = False
    expect_or_drop: Conditions = msgspec.field(default_factory=dict)
    expect_or_quarantine: Conditions = msgspec.field(default_factory=dict)
    quarantine_uri: Location | None = None
    deduplicate_by: SomeColumnNames | None = None
    deduplicate_order_by: SomeColumnNames | None = None

    def check_expectations(self) -> None:
        super().check_expectations()
        possible = self.deduplicate_order_by is None or self.deduplicate_by is not None
        want("arguments.deduplicate_order_by", possible, "None without deduplicate_by", self.deduplicate_order_by)
        both = self.expect_or_drop.keys() & self.expect_or_quarantine.keys()
        want("arguments.expect_or_quarantine", not both, "a mapping of names that no other expectation has")
        fits = (self.quarantine_uri is None) == (not self.expect_or_quarantine)
        want("arguments.quarantine_uri", fits, "given exactly if expect_or_quarantine is", self.quarantine_uri)

    @property
    def dropping(self) -> dict[str, str]:
        return self.expect_or_drop | self.expect_or_quarantine

    @property
    def quarantining(self) -> dict[str, str]:
        return self.expect_or_quarantine

    @property
    def does_more_than_commit(self) -> bool:
        return self.dry_run or bool(self.expect_or_quarantine)

    @property
    def appends_to(self) -> str | None:
        return self.samples_to if self.dry_run else self.quarantine_uri

    @property
    def holds_rows(self) -> bool:
        return isinstance(self.source, RowsInProcess)


OPERATIONS: dict[str, type[Operation]] = {}
"""The operations by name. `register` fills it."""


def register(cls: type[_Record]) -> type[_Record]:
    """Register the record of an operation, as a decorator: from here on a job's description may name it."""
    name = cls.__struct_config__.tag
    assert isinstance(name, str), f"{cls.__name__} has no tag"
    assert name not in OPERATIONS, f"{cls.__name__} has the tag of another operation"
    cls.name = name
    OPERATIONS[name] = cls
    return cls


def operation_named(name: Any) -> type[Operation]:
    """Return the record of this name. Raises InvalidJobSpec."""
    known = isinstance(name, str) and name in OPERATIONS
    want("operation", known, f"one of {sorted(OPERATIONS)}", name)
    return OPERATIONS[name]


def read_operation(cls: type[_Record], arguments: Any) -> _Record:
    """Return the operation with these arguments, rendered or from the wire. Raises InvalidJobSpec by argument."""
    want(PLACE, isinstance(arguments, Mapping), "its arguments in a mapping", arguments)
    check_names(cls, arguments, PLACE, cls.name)
    return cls(**arguments)
