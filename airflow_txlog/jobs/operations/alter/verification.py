"""Rows of a table, read by an ALTER: compared with new constraints and NOT NULL, or for values of identity columns.

All of them are read before the commit, which then conflicts with any commit that adds rows: an append that lands
first is read by the next attempt, and one that lands later meets the rule. Tasks compare what they can evaluate,
Spark the rest. The invariant: a file counts as read only for the rules, and under the columns, that it was read
with. Source: delta-spark, AlterTableAddConstraintDeltaCommand and IdentityColumn.syncIdentity.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.operations import Alter
from airflow_txlog.contract.operations.alter import AddedColumn
from airflow_txlog.contract.wording import plural
from airflow_txlog.datafiles.tasks.rule_checks import (
    BROKEN_SCHEMA,
    FURTHEST_SCHEMA,
    RULE_COLUMN,
    VALUE_COLUMN,
    NotNull,
    Rule,
    broken_rules,
    furthest_values,
)
from airflow_txlog.datafiles.tasks.scan_and_write import Task
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.alteration.altered import Altered
from airflow_txlog.engine.table.predicate import plain_condition
from airflow_txlog.engine.table.schema.identities import read_identities, without_marks
from airflow_txlog.engine.table.snapshot.files import file_keys
from airflow_txlog.errors import ConstraintViolation
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.frames import scan_frame
from airflow_txlog.jobs.files.scan import FilePlan, addressed_scan, plan_files
from airflow_txlog.jobs.operations.alter.job import planned
from airflow_txlog.jobs.resume.attempts import run_attempts
from airflow_txlog.jobs.spark.errors import collect
from airflow_txlog.jobs.sql.columns import check_names_are_free, columns_named
from airflow_txlog.jobs.sql.gate import SqlGate, aliased, quoted
from airflow_txlog.jobs.sql.scope import accepted_by_spark
from airflow_txlog.sql.expression import Expression
from airflow_txlog.sql.sql_text import is_constant

_DOING = "compare the rows with the new rules"


def alter_verified(context: JobContext) -> JobResult:
    """Run the job of `context.spec`; raises TxlogError."""
    rows = _Rows(context)
    return run_attempts(context, lambda tx: planned(context, tx, rows.verify))


@dataclass(frozen=True, slots=True)
class _Numbered:
    """An identity column through all attempts, whatever its mark."""

    physical_name: str
    start: int
    step: int


class _Rows:
    """The rows of the table through all attempts."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._gate = SqlGate(context)
        self._read: dict[object, set[str]] = {}
        self._furthest: dict[_Numbered, int] = {}

    def verify(self, tx: Transaction, found: Altered) -> Altered:
        """Return the alteration with marks of identity columns past the values of all rows.

        Raises ConstraintViolation if rows break a new rule, with their number and without a value.
        """
        context, before = self._context, tx.snapshot
        assert before is not None
        snapshot = before.with_metadata(found.of_rows)
        check_names_are_free(snapshot.schema.names, f"Table {context.root}")
        added = context.record(Alter).add_columns.values()
        defaults = [each.default for each in added if isinstance(each, AddedColumn) and each.default is not None]
        if not all(map(is_constant, defaults)):
            context.executor.by_spark(
                "the default of a new column is more than a constant",
                lambda: context.executor.accepted_rules(context, found.metadata),
            )
        texts = self._texts(found)
        plain = {name: self._plain(snapshot, text) for name, text in texts.items()}
        for name, text in texts.items():
            why = plain[name]
            if isinstance(why, str):
                context.executor.by_spark(
                    f"the constraint {name!r} is more than a plain condition: it has {why}",
                    partial(accepted_by_spark, self._gate, snapshot, text),
                )
        if found.constraints or found.not_null:
            with context.step("verify"):
                self._verify(snapshot, found, texts, plain)
        if not found.to_sync:
            return found
        with context.step("verify"):
            return found.synced(self._furthest_values(snapshot, found))

    def _texts(self, found: Altered) -> dict[str, str]:
        """Return the constraints, with the current time fixed."""
        fixed = {name.lower(): text for name, text in self._context.record(Alter).add_constraints.items()}
        return {name: fixed[name] for name in found.constraints}

    def _plain(self, snapshot: Snapshot, text: str) -> Expression | str:
        """Return the constraint as tasks evaluate it, or the reason why they cannot."""
        may_fail = not self._context.leaves_values_to_spark
        return plain_condition(text, snapshot.delta_schema, {}, may_fail=may_fail)

    def _verify(
        self, snapshot: Snapshot, found: Altered, texts: Mapping[str, str], plain: Mapping[str, Expression | str]
    ) -> None:
        context = self._context
        schema = json.dumps(without_marks(json.loads(found.of_rows.schema_string or "null")))
        known = self._read.setdefault((schema, *texts.items(), found.not_null), set())
        files, keys = self._unread(self._may_break(snapshot, found), known)
        context.log(f"{plural(files.num_rows, 'file')} of {snapshot.num_files} to compare with the new rules")
        if not files.num_rows:
            return
        plan = plan_files(snapshot, files, context.spec.time_zone, context.executor.instants)
        rules: dict[str, Rule] = {f"NOT NULL of column {'.'.join(path)!r}": NotNull(path) for path in found.not_null}
        rules |= {_named(name): rule for name, rule in plain.items() if not isinstance(rule, str)}
        columns = {path[0] for path in found.not_null}
        columns |= {
            name
            for each, rule in plain.items()
            if not isinstance(rule, str)
            for name in columns_named(texts[each], snapshot.delta_schema)
        }
        self._refuse_broken(found, self._counted(plan, frozenset(columns), rules))
        opaque = {_named(name): texts[name] for name, rule in plain.items() if isinstance(rule, str)}
        self._refuse_broken(found, self._counted_by_spark(snapshot, plan, opaque))
        known.update(keys)

    def _unread(self, files: pa.Table, known: Collection[str]) -> tuple[pa.Table, list[str]]:
        """Return the files that are not known, with their keys."""
        keys = file_keys(files, self._context.root)
        is_new = pc.invert(pc.is_in(keys, value_set=pa.array(sorted(known), pa.string())))
        return files.filter(is_new), keys.filter(is_new).to_pylist()

    def _may_break(self, snapshot: Snapshot, found: Altered) -> pa.Table:
        """Return the files that may hold a row which breaks a rule: statistics prove that the others have no null."""
        if found.constraints or any(len(path) > 1 for path in found.not_null):
            return snapshot.files()
        return snapshot.files(" OR ".join(f"{quoted(path[0])} IS NULL" for path in found.not_null))

    def _furthest_values(self, snapshot: Snapshot, found: Altered) -> dict[str, int]:
        """Return the furthest value of each identity column to synchronize, by name; none if its mark is past all.

        A row that a racing commit deletes after its file was read still counts.
        """
        context, schema = self._context, snapshot.delta_schema
        identities = read_identities(schema, context.root)
        columns = [identities[name] for name in found.to_sync]
        physical = {member.name: member.physical_name for member in schema}
        numbered = [_Numbered(physical[each.name], each.start, each.step) for each in columns]
        known = self._read.setdefault(tuple(numbered), set())
        beyond = (f"{quoted(each.name)} {each.beyond_mark[0]} {each.beyond_mark[1]}" for each in columns)
        files, keys = self._unread(snapshot.files(" OR ".join(beyond)), known)
        context.log(f"{plural(files.num_rows, 'file')} of {snapshot.num_files} to look for values of identity columns")
        if files.num_rows:
            plan = plan_files(snapshot, files, context.spec.time_zone, context.executor.instants)
            step = partial(furthest_values, tuple((each.name, each.step > 0) for each in columns))
            task = Task(source=addressed_scan(context, plan, frozenset(found.to_sync)), steps=(step,))
            rows = context.executor.run([task], FURTHEST_SCHEMA, "look for values of identity columns").to_pylist()
            for each in numbered:
                values = [row[VALUE_COLUMN] for row in rows if numbered[row[RULE_COLUMN]] == each]
                values += [self._furthest[each]] if each in self._furthest else []
                if values:
                    self._furthest[each] = max(values) if each.step > 0 else min(values)
            known.update(keys)
        found_values = {column.name: self._furthest.get(each) for column, each in zip(columns, numbered, strict=True)}
        return {name: value for name, value in found_values.items() if value is not None}

    def _counted(self, plan: FilePlan, columns: frozenset[str], rules: Mapping[str, Rule]) -> dict[str, int]:
        """Return how many rows break each of these rules, by tasks."""
        if not rules:
            return {}
        scan = addressed_scan(self._context, plan, columns)
        task = Task(source=scan, steps=(partial(broken_rules, tuple(rules.values())),))
        broken = self._context.executor.run([task], BROKEN_SCHEMA, _DOING)
        names, counts = list(rules), dict[str, int]()
        for number, count in zip(*(broken.column(name).to_pylist() for name in BROKEN_SCHEMA.names), strict=True):
            counts[names[number]] = counts.get(names[number], 0) + count
        return counts

    def _counted_by_spark(self, snapshot: Snapshot, plan: FilePlan, texts: Mapping[str, str]) -> dict[str, int]:
        """Return how many rows break each of these constraints, by Spark."""
        if not texts:
            return {}
        context = self._context
        columns = frozenset(name for text in texts.values() for name in columns_named(text, snapshot.delta_schema))
        view = context.view_name()
        scan_frame(context, addressed_scan(context, plan, columns)).createOrReplaceTempView(view)
        sums = ", ".join(f"sum(CASE WHEN (\n{text}\n) THEN 0 ELSE 1 END)" for text in texts.values())
        found = collect(self._gate.run(f"SELECT {sums} FROM {aliased(view)}"), _DOING)
        return {name: found.column(at)[0].as_py() or 0 for at, name in enumerate(texts)}

    def _refuse_broken(self, found: Altered, counts: Mapping[str, int]) -> None:
        root = self._context.root
        for what, count in counts.items():
            if count:
                constraint = next((name for name in found.constraints if _named(name) == what), "NOT NULL")
                raise ConstraintViolation(
                    f"{root}: {plural(count, 'row')} of the table {'break' if count > 1 else 'breaks'} {what}"
                    f"{f' ({found.constraints[constraint]})' if constraint in found.constraints else ''}. Nothing was "
                    "changed. Correct or delete such rows first.",
                    table=root,
                    constraint=constraint,
                    column=what.partition("'")[2].rstrip("'") if constraint == "NOT NULL" else None,
                )


def _named(constraint: str) -> str:
    return f"the constraint {constraint!r}"
