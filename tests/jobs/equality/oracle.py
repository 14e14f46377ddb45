"""What plain Spark SQL says a statement makes of a table's rows: no files, no log, no code of ours.

The rows lie in a view; a statement becomes one query over it, from joins and CASE alone. What a query cannot say, such
as which merge is ambiguous, is counted by another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.helpers.jobs import spark_view
from tests.jobs.equality.cases import Case, Statement
from tests.jobs.equality.kinds import KINDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Errors that a statement must end in, as the result names them.
AMBIGUOUS = "AmbiguousMerge"
OUTSIDE = "PartitionMismatch"
BROKEN = "ConstraintViolation"

Answer = pa.Table | str


class Oracle:
    """The rows of one case, statement by statement."""

    def __init__(self, spark: SparkSession, case: Case) -> None:
        self._spark = spark
        self._case = case
        self._names = [name for name, _ in case.columns]
        self.rows = self._stored(case.rows([row for file in case.files for row in file]))

    def run(self, statement: Statement) -> Answer:
        """The rows afterwards, or the error that the statement must end in; remembers neither."""
        return getattr(self, f"_{statement.operation}")(statement.arguments, statement)

    # --- statements -------------------------------------------------------------------------------------------------

    def _delete(self, arguments: Mapping[str, Any], statement: Statement) -> Answer:
        gone = _all(arguments["predicate"] or "TRUE", arguments.get("partition_predicate") or "TRUE")
        self._view("t", self.rows)
        return self._query(f"SELECT {self._columns('t')} FROM t WHERE NOT coalesce({gone}, FALSE)", arguments)

    def _update(self, arguments: Mapping[str, Any], statement: Statement) -> Answer:
        scope = arguments.get("partition_predicate") or "TRUE"
        hit = f"coalesce({_all(arguments['predicate'] or 'TRUE', scope)}, FALSE)"
        self._view("rows", self.rows)
        self._spark.sql(f"SELECT t.*, {hit} AS hit FROM rows t", args=_args(arguments)).createOrReplaceTempView("t")
        values = {name: arguments["set"].get(name, name) for name, _ in self._case.columns}
        images = ", ".join(
            f"CASE WHEN hit THEN CAST(({values[name]}) AS {KINDS[kind].sql}) ELSE {name} END AS {name}"
            for name, kind in self._case.columns
        )
        outside = f"SELECT 1 FROM (SELECT {images}, hit FROM t) WHERE hit AND NOT coalesce(({scope}), FALSE)"
        if scope != "TRUE" and self._count(outside, arguments):
            return OUTSIDE
        return self._query(f"SELECT {images} FROM t", arguments)

    def _write(self, arguments: Mapping[str, Any], statement: Statement) -> Answer:
        new = self._stored(self._case.rows(statement.source or ()))
        if arguments["mode"] == "append":
            return pa.concat_tables([self.rows, new])
        self._view("t", self.rows)
        self._view("s", new)
        if arguments["mode"] == "overwrite_partitions":
            same = " AND ".join(f"t.{name} <=> s.{name}" for name in self._case.partition_by)
            kept = self._query(f"SELECT {self._columns('t')} FROM t LEFT ANTI JOIN s ON {same}", arguments)
            return pa.concat_tables([kept, new])
        scope = arguments.get("partition_predicate") or arguments.get("replace_where")
        if scope is None:
            return new
        if self._count(f"SELECT 1 FROM s WHERE NOT coalesce(({scope}), FALSE)", arguments):
            named = scope.split(" ")[0]
            return OUTSIDE if named in self._case.partition_by else BROKEN
        kept = self._query(f"SELECT {self._columns('t')} FROM t WHERE NOT coalesce(({scope}), FALSE)", arguments)
        return pa.concat_tables([kept, new])

    def _optimize(self, arguments: Mapping[str, Any], statement: Statement) -> Answer:
        return self.rows

    def _merge(self, arguments: Mapping[str, Any], statement: Statement) -> Answer:
        self._view("all_rows", self.rows)
        self._view("s", self._case.rows(statement.source or ()), number="source_row")
        scope = arguments.get("partition_predicate") or "TRUE"
        self._spark.sql(
            f"SELECT * FROM (SELECT *, coalesce(({scope}), FALSE) AS in_scope FROM all_rows)", args=_args(arguments)
        ).createOrReplaceTempView("scoped")
        self._spark.sql("SELECT * FROM scoped WHERE in_scope").createOrReplaceTempView("t")
        matched = [clause for clause in arguments["clauses"] if clause["when"] == "matched"]
        unmatched = [clause for clause in arguments["clauses"] if clause["when"] == "not_matched"]
        left = [clause for clause in arguments["clauses"] if clause["when"] == "not_matched_by_source"]
        one_delete = len(matched) == 1 and matched[0]["then"] == "delete" and "condition" not in matched[0]
        pairs = (
            f"SELECT t.target_row, s.source_row, {_deciding(matched)} AS clause FROM t JOIN s ON ({arguments['on']})"
        )
        many = f"SELECT target_row FROM ({pairs}) GROUP BY target_row HAVING count(*) > 1"
        if matched and not one_delete and self._count(many, arguments):
            return AMBIGUOUS
        alone = (
            f"SELECT t.target_row, {_deciding(left)} AS clause "
            f"FROM t LEFT ANTI JOIN ({pairs}) m ON t.target_row = m.target_row"
        )
        acted = (
            f"(SELECT DISTINCT target_row FROM ({pairs}) WHERE clause IS NOT NULL "
            f"UNION ALL SELECT target_row FROM ({alone}) WHERE clause IS NOT NULL)"
        )
        kept = f"SELECT {self._columns('a')} FROM scoped a LEFT ANTI JOIN {acted} p ON a.target_row = p.target_row"
        updated = (
            f"SELECT {self._images(matched, 't')} FROM ({pairs}) p JOIN t ON t.target_row = p.target_row "
            f"JOIN s ON s.source_row = p.source_row WHERE p.clause IN ({_numbers(matched, 'update')})"
        )
        changed = (
            f"SELECT {self._images(left, 't')} FROM ({alone}) p JOIN t ON t.target_row = p.target_row "
            f"WHERE p.clause IN ({_numbers(left, 'update')})"
        )
        inserted = (
            f"SELECT {self._images(unmatched, None)} FROM (SELECT *, {_deciding(unmatched)} AS clause FROM s) p "
            f"JOIN s ON s.source_row = p.source_row "
            f"LEFT ANTI JOIN ({pairs}) m ON p.source_row = m.source_row WHERE p.clause IS NOT NULL"
        )
        queries = ((updated, matched), (inserted, unmatched), (changed, left))
        new = [query for query, clauses in queries if clauses]
        for query in new:
            if scope != "TRUE" and self._count(
                f"SELECT 1 FROM ({query}) WHERE NOT coalesce(({scope}), FALSE)", arguments
            ):
                return OUTSIDE
        return self._query(" UNION ALL ".join([kept, *new]), arguments)

    # --- pieces -----------------------------------------------------------------------------------------------------

    def _images(self, clauses: list[dict[str, Any]], target: str | None) -> str:
        """Each column as the acting clause leaves it."""
        columns = []
        for name, kind in self._case.columns:
            branches = ""
            for number, clause in enumerate(clauses):
                if clause["then"] == "delete":
                    continue
                assigned = clause["set"] if clause["then"] == "update" else clause["values"]
                otherwise = "NULL" if target is None else f"{target}.{name}"
                value = f"s.{name}" if assigned == "*" else assigned.get(name, otherwise)
                branches += f" WHEN p.clause = {number} THEN CAST(({value}) AS {KINDS[kind].sql})"
            columns.append(
                f"CASE {branches} END AS {name}" if branches else f"CAST(NULL AS {KINDS[kind].sql}) AS {name}"
            )
        return ", ".join(columns)

    def _columns(self, alias: str) -> str:
        return ", ".join(f"{alias}.{name}" for name in self._names)

    def _view(self, name: str, rows: pa.Table, number: str = "target_row") -> None:
        numbers = pa.array(range(rows.num_rows), pa.int64())
        spark_view(self._spark, name, rows.append_column(number, numbers))

    def _query(self, sql: str, arguments: Mapping[str, Any]) -> pa.Table:
        found = self._spark.sql(sql, args=_args(arguments)).toArrow()
        return self._stored(found.cast(self._case.schema))

    def _count(self, sql: str, arguments: Mapping[str, Any]) -> int:
        return self._spark.sql(f"SELECT count(*) FROM ({sql})", args=_args(arguments)).collect()[0][0]

    def _stored(self, rows: pa.Table) -> pa.Table:
        """The rows as a table can hold them: a partition value is a text in the log, and an empty one is null."""
        for name in self._case.partition_by:
            column = rows.column(name)
            if pa.types.is_string(column.type):
                values = [value or None for value in column.to_pylist()]
                index = rows.schema.get_field_index(name)
                rows = rows.set_column(index, name, pa.array(values, pa.string()))
        return rows


def _deciding(clauses: list[dict[str, Any]]) -> str:
    branches = " ".join(
        f"WHEN ({clause.get('condition') or 'TRUE'}) THEN {number}" for number, clause in enumerate(clauses)
    )
    return f"CASE {branches} END" if clauses else "CAST(NULL AS INT)"


def _numbers(clauses: list[dict[str, Any]], action: str) -> str:
    numbers = [str(number) for number, clause in enumerate(clauses) if clause["then"] == action]
    return ", ".join(numbers) or "-1"


def _all(*texts: str) -> str:
    return " AND ".join(f"({text})" for text in texts)


def _args(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    return arguments.get("parameters") or None
