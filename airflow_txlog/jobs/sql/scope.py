"""The files that a job may read: the author's conditions as the engine's predicates, and the partitions they accept.

A pruner never decides which partitions a predicate accepts, because it may accept too many. The invariants: the
registered predicate is the author's whole text, and everything else that narrows the files only narrows the work. A
partition is accepted only if Spark evaluates the author's own text to TRUE on its typed values; the engine replaces
Spark only if it is certain of the same result. A row filter has only leaves whose type all engines order and compare
alike (no floats, no decimals); any other leaf lets every row pass. Source: soundness A4, A9, A13.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.contract.operations import Delete, Merge, Operation, ScopedOperation, Update, Write
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.datafiles.tasks.scan_and_write import ROW_ID_COLUMN
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.table.columns.partitions import parse_partition_values
from airflow_txlog.engine.table.predicate import Predicate, plain_condition
from airflow_txlog.engine.table.predicate.reading import read_predicate
from airflow_txlog.engine.table.predicate.tree import comparable_type, constants_of
from airflow_txlog.engine.table.schema.column_mapping import partition_keys
from airflow_txlog.engine.table.schema.schema import arrow_type
from airflow_txlog.engine.table.schema.types import (
    CHAR_VARCHAR_KEY,
    DataType,
    DecimalType,
    Primitive,
    StructField,
    StructType,
)
from airflow_txlog.errors import CorruptTable, InvalidPredicate, PartitionMismatch, UnknownColumn
from airflow_txlog.errors.names import did_you_mean
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.spark.errors import collect
from airflow_txlog.jobs.sql.gate import SqlGate, aliased, quoted
from airflow_txlog.sql.evaluation import aligned, known_as, passing
from airflow_txlog.sql.expression import Call, Expression, Literal, all_of, any_of, columns_of, parts_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType as SparkSchema


def accepted_by_spark(gate: SqlGate, snapshot: Snapshot, text: str) -> dict[str, Any]:
    """Have Spark accept a condition on the table's rows; return the parameters that it uses."""
    from airflow_txlog.jobs.sql.schemas import as_spark_schema  # noqa: PLC0415 - only with Spark

    return gate.condition(text, aliased(gate.shape(as_spark_schema(snapshot.delta_schema))))


def read_condition(
    context: JobContext, snapshot: Snapshot, text: str, parameters: Mapping[str, Any], *, alias: str | None = None
) -> Predicate:
    """Return an accepted condition as the engine reads it; `parameters` are exactly those that it uses."""
    return read_predicate(
        text,
        snapshot.delta_schema,
        parameters=parameters,
        time_zone=context.spec.time_zone,
        alias=alias,
        # Spark has parsed the text and resolved its names; a part that the engine cannot read only prunes nothing.
        unknown_columns_are_opaque=True,
        lenient=True,
    )


def both(one: Predicate, other: Predicate | None) -> Predicate:
    """Return the conjunction of two predicates of one table."""
    return one if other is None else _joined("AND", all_of([one.tree, other.tree]), one, other)


def either(one: Predicate, other: Predicate) -> Predicate:
    """Return the disjunction of two predicates of one table."""
    return _joined("OR", any_of([one.tree, other.tree]), one, other)


def _joined(connector: str, tree: Expression, one: Predicate, other: Predicate) -> Predicate:
    columns = None if one.columns is None or other.columns is None else one.columns | other.columns
    return Predicate(f"(\n{one.sql}\n) {connector} (\n{other.sql}\n)", tree, columns)


@dataclass(frozen=True, kw_only=True)
class PartitionScope:
    """The partitions that an attempt may touch: those for which the accepted `text` is TRUE; None: all of them.

    `read` is the text as the engine reads it.
    """

    partitions: Partitions
    text: str | None = None
    read: Predicate | None = None

    def read_files(self, tx: Transaction, condition: Predicate) -> pa.Table:
        """Return the files inside that may hold a row of the condition, and register the condition as read.

        Files are a table `FILES`.
        """
        return self.files_inside(tx.read(both(condition, self.read)))

    def files_inside(self, files: pa.Table) -> pa.Table:
        """Return the files whose partition the scope accepts."""
        return files if self.text is None else self.files_accepted(self.text, files)

    def files_accepted(self, text: str, files: pa.Table) -> pa.Table:
        """Return the files for whose partition an accepted condition over partition columns is TRUE."""
        return files.filter(pa.array(self.partitions.accepted(text, self.partitions.tuples_of(files)), pa.bool_()))

    def check_inside(self, staged: Iterable[StagedFile]) -> None:
        """Raise PartitionMismatch for the first new file outside."""
        if self.text is not None:
            tuples = [self.partitions.tuple_of(file.partition_values) for file in staged]
            self.partitions.check_inside(self.text, tuples)

    def with_condition(self, condition: str) -> str:
        """Return the condition with the scope, as a commit describes it."""
        return condition if self.text is None else f"({self.text}) AND ({condition})"


def partition_scope(
    context: JobContext, gate: SqlGate, snapshot: Snapshot, partitions: Partitions | None = None
) -> PartitionScope:
    """Return the job's accepted `partition_predicate`, on the snapshot's partitions unless others are given."""
    text = context.record(ScopedOperation).partition_predicate
    if partitions is None:
        partitions = Partitions(context, gate, snapshot.delta_schema, snapshot.partition_columns)
    if text is None:
        return PartitionScope(partitions=partitions)
    used = partitions.check_scope(text)
    gate.check_clocks(text, snapshot.delta_schema.names)
    return PartitionScope(partitions=partitions, text=text, read=read_condition(context, snapshot, text, used))


Tuple = tuple[str | None, ...]
NOT_OF_PARTITIONS = "replace_where is more than a plain condition on partition columns"
"""Why Spark has to accept it."""


class Partitions:
    """The partition columns of a table, as Spark sees them. Raises CorruptTable if the schema lacks one.

    Spark decides once whether it accepts a partition.
    """

    def __init__(self, context: JobContext, gate: SqlGate, schema: StructType, columns: Sequence[str]) -> None:
        self._context = context
        self._gate = gate
        self.columns = list(columns)
        self._keys = partition_keys(schema, columns)
        self._fields = [_field_of(schema, name, context.root) for name in columns]
        self._schema = pa.schema([pa.field(field.name, arrow_type(field.type)) for field in self._fields])
        self._answers: dict[str, dict[Tuple, bool]] = {}
        self._read: dict[str, Expression | str] = {}

    def is_plain(self, text: str) -> bool:
        """Return whether the text is a plain condition on partition columns."""
        return not isinstance(self._plain(text), str)

    def speaks_of_partitions_only(self, text: str) -> bool:
        """Return whether Spark finds every name of an accepted condition among the partition columns."""
        if self.is_plain(text):
            return True
        try:
            self._context.executor.by_spark(NOT_OF_PARTITIONS, lambda: self._condition(text))
        except InvalidPredicate:
            return False
        return True

    def check_scope(self, text: str) -> dict[str, Any]:
        """Accept a `partition_predicate`; return the parameters that it uses.

        Raises InvalidPredicate when it names anything but partition columns.
        """
        plain = self._plain(text)
        if not isinstance(plain, str):
            used = self._gate.parameters_in(text)
            self._gate.used |= set(used)
            return used
        why = f"partition_predicate is more than a plain one of partition columns: it has {plain}"
        try:
            return self._context.executor.by_spark(why, lambda: self._condition(text))
        except UnknownColumn as error:
            operation = self._context.operation
            raise beyond_partitions(operation, text, error.facts.get("column"), self.columns) from error

    def _condition(self, text: str) -> dict[str, Any]:
        return self._gate.condition(text, aliased(self._gate.shape(self._spark_schema())))

    def _plain(self, text: str) -> Expression | str:
        """Return a plain condition of partition columns, bound to them, or the part that is not plain.

        Spark accepts a plain text and evaluates it as the engine does, so it is not needed.
        """
        if text not in self._read:
            schema, may_fail = StructType(tuple(self._fields)), not self._context.leaves_values_to_spark
            used, zone = self._gate.parameters_in(text), self._context.spec.time_zone
            self._read[text] = plain_condition(text, schema, used, may_fail=may_fail, time_zone=zone)
        return self._read[text]

    def tuples_of(self, files: pa.Table, columns: Sequence[str] | None = None) -> list[Tuple]:
        """Return the raw partition values of each file (rows of a table `FILES`), in order; see `tuple_of`."""
        rows = files.column("partition_values").to_pylist()
        return [self.tuple_of(dict(row or []), columns) for row in rows]

    def tuple_of(self, partition_values: Mapping[str, str | None], columns: Sequence[str] | None = None) -> Tuple:
        """Return the raw values of one file, as its add action has them, in the order of `columns` (None: all)."""
        keys = dict(zip(self.columns, self._keys, strict=True))
        return tuple(partition_values.get(keys[name]) for name in (self.columns if columns is None else columns))

    def check_inside(self, text: str, tuples: Sequence[Tuple]) -> None:
        """Raise PartitionMismatch for the first tuple for which the accepted scope `text` is not TRUE."""
        for entry, is_inside in zip(tuples, self.accepted(text, tuples), strict=True):
            if not is_inside:
                raise PartitionMismatch(
                    f"{self._context.root}: a row of the source or of the change lies in a partition of "
                    f"{', '.join(self.columns)} that {text!r} does not accept. Nothing was committed. Filter the "
                    "source, or accept more partitions.",
                    table=self._context.root,
                    partition=dict(zip(self.columns, entry, strict=True)),
                )

    def accepted(self, text: str, tuples: Sequence[Tuple]) -> list[bool]:
        """Return for each tuple of raw values whether the accepted condition `text` is TRUE for it."""
        answers = self._answers.setdefault(text, {})
        unknown = [entry for entry in dict.fromkeys(tuples) if entry not in answers]
        if unknown:
            answers.update(zip(unknown, self._ask(text, unknown), strict=True))
        return [answers[entry] for entry in tuples]

    def _ask(self, text: str, distinct: Sequence[Tuple]) -> list[bool]:
        plain = self._plain(text)
        if not isinstance(plain, str):
            answers: list[bool] = passing(plain, self._typed(distinct)).to_pylist()
            return answers
        from airflow_txlog.jobs.sql.schemas import compared_as_char  # noqa: PLC0415 - only with Spark

        view = self._context.view_name()
        frame = self._context.spark.createDataFrame(self._typed(distinct), self._spark_schema(ROW_ID_COLUMN))
        marks = {f.name: str(f.metadata[CHAR_VARCHAR_KEY]) for f in self._fields if CHAR_VARCHAR_KEY in f.metadata}
        compared_as_char(frame, marks).createOrReplaceTempView(view)
        query = f"SELECT {quoted(ROW_ID_COLUMN)} FROM {aliased(view)} WHERE (\n{text}\n)"
        found = collect(self._gate.run(query), "ask which partitions a predicate accepts")
        true_of = set(found.column(0).to_pylist())
        return [index in true_of for index in range(len(distinct))]

    def among(
        self, tuples: Sequence[Tuple], chosen: Sequence[Tuple], columns: Sequence[str] | None = None
    ) -> list[bool]:
        """Return for each tuple of raw values of `columns` (None: all) whether it is one of `chosen`, as typed values.

        Null equals null, and `1` and `01` are one integer. Raises CorruptTable for a text that is no value of its type.
        """
        if not tuples:
            return []
        fields = [self._fields[self.columns.index(name)] for name in (self.columns if columns is None else columns)]
        typed = self._typed([*tuples, *chosen], fields)
        codes = [_codes(typed.column(index), field.type) for index, field in enumerate(fields)]
        rows = list(zip(*codes, strict=True))
        wanted = set(rows[len(tuples) :])
        return [row in wanted for row in rows[: len(tuples)]]

    def _typed(self, tuples: Sequence[Tuple], fields: Sequence[StructField] | None = None) -> pa.Table:
        arrays, fields = [], self._fields if fields is None else fields
        for index, field in enumerate(fields):
            texts = pa.array([entry[index] for entry in tuples], pa.string())
            zone, instants = self._context.spec.time_zone, self._context.executor.instants
            parsed = parse_partition_values(texts, field.type, time_zone=zone, instants=instants)
            arrays.append(parsed.for_rows(field.name))
        numbers = pa.array(range(len(tuples)), pa.int64())
        return pa.table([*arrays, numbers], names=[*(field.name for field in fields), ROW_ID_COLUMN])

    def _spark_schema(self, *extra: str) -> SparkSchema:
        from airflow_txlog.jobs.sql.schemas import spark_schema  # noqa: PLC0415 - only with Spark

        return spark_schema(pa.schema([*self._schema, *(pa.field(name, pa.int64()) for name in extra)]))


def beyond_partitions(operation: Operation, text: str, name: str | None, columns: Sequence[str]) -> UnknownColumn:
    """Return the error for a `partition_predicate` that names more than the table's partition `columns`."""
    if columns:
        may_name = f"may name partition columns only ({', '.join(columns)})"
    else:
        may_name = "may name partition columns only, and the table has none"
    elsewhere: str | None = None
    match operation:
        case Delete(keys=None) | Update():
            elsewhere = "predicate"
        case Write() if operation.mode == "overwrite":
            elsewhere = "replace_where"
        case Merge():
            elsewhere = "on, or into the condition of a clause"
        case _:
            pass
    advice = "" if elsewhere is None else f" A condition on other columns belongs into {elsewhere}."
    return UnknownColumn(
        f"partition_predicate {text!r} {may_name}; it names {name}.{did_you_mean(name or '', columns)}{advice} Nothing "
        "was read.",
        predicate=text,
        column=name,
        columns=list(columns),
    )


def _codes(values: pa.ChunkedArray, data_type: DataType) -> list[int]:
    array = aligned(values.combine_chunks(), comparable_type(data_type))
    if pa.types.is_floating(array.type):
        array = pc.add(array, 0.0)  # -0.0 and 0.0 are one value, and adding zero leaves one of them
    codes: list[int] = array.dictionary_encode(null_encoding="encode").indices.to_pylist()
    return codes


def _field_of(schema: StructType, name: str, table: str) -> StructField:
    found = schema.find(name)
    if found is None:
        raise CorruptTable(f"{table}: the partition column {name!r} is not in the schema.", table=table)
    return found


PLAIN_TYPES = frozenset(
    (
        Primitive.BOOLEAN,
        Primitive.BYTE,
        Primitive.SHORT,
        Primitive.INTEGER,
        Primitive.LONG,
        Primitive.DATE,
        Primitive.TIMESTAMP,
        Primitive.TIMESTAMP_NTZ,
        Primitive.STRING,
    )
)


def is_exact(kind: DataType) -> bool:
    """Return whether two values of the type are equal to all engines exactly if they are the same."""
    return kind in PLAIN_TYPES or kind is Primitive.BINARY or isinstance(kind, DecimalType)


# Doubles too: `evaluation` compares them as Spark does.
_COMPARED_ALIKE = frozenset(map(comparable_type, (*PLAIN_TYPES, Primitive.DOUBLE)))


def row_filter_of(predicate: Predicate, scanned: Collection[str]) -> Expression | None:
    """Return the predicate's filter on the `scanned` columns; None if it has none that a worker may apply."""
    return _row_filter(predicate.tree, frozenset(scanned))


def _row_filter(node: Expression, scanned: frozenset[str]) -> Expression | None:
    match node:
        case Literal():
            return None
        case Call("and" | "or", children):
            found = [_row_filter(child, scanned) for child in children]
            parts = [part for part in found if part is not None]
            if node.operator == "or":
                return any_of(parts) if len(parts) == len(found) else None
            return all_of(parts) if parts else None
    calls = [known_as(part) is not None for part in parts_of(node) if isinstance(part, Call)]
    constants = constants_of(node)
    is_alike = constants is None or constants.type in _COMPARED_ALIKE
    return node if calls and all(calls) and is_alike and columns_of(node) <= scanned else None
