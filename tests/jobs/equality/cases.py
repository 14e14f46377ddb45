"""Random tables and random statements on them, drawn by hypothesis: what the equality tests run.

A case is a table (schema, partitioning, properties, a few commits of rows) and some statements, one after the other.
Everything in it is plain data, so a failing case prints as what it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tests.jobs.equality.kinds import KEYS, KINDS, PARTITIONS, Kind

Row = tuple[Any, ...]
Draw = Any

_CURVED = {"int", "long", "string", "date", "double", "decimal"}
_NUMBERS = {"byte", "short", "int", "long"}
_PROPERTIES: list[dict[str, str]] = [
    {},
    {},
    {"delta.enableDeletionVectors": "true"},
    {"delta.enableDeletionVectors": "true"},
    {"delta.columnMapping.mode": "name"},
    {"delta.enableRowTracking": "true"},
    {"delta.enableChangeDataFeed": "true"},
    {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "true"},
]


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One job: its operation and arguments, and the rows of its source, which is registered under its own file."""

    operation: str
    arguments: dict[str, Any]
    source: tuple[Row, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Case:
    """A table and what is done to it. `columns` are names and kinds; `k` is the key that merges join on."""

    columns: tuple[tuple[str, str], ...]
    partition_by: tuple[str, ...]
    properties: dict[str, str]
    time_zone: str
    files: tuple[tuple[Row, ...], ...]
    statements: tuple[Statement, ...] = field(default=())

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(name, KINDS[kind].arrow) for name, kind in self.columns])

    def kind(self, name: str) -> Kind:
        return KINDS[dict(self.columns)[name]]

    def rows(self, rows: Sequence[Row]) -> pa.Table:
        """Rows as a table of the case's schema."""
        columns = list(zip(*rows, strict=True)) or [()] * len(self.columns)
        arrays = [pa.array(list(values), kind.type) for values, kind in zip(columns, self.schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self.schema)


@st.composite
def cases(draw: Draw, operation: str, statements: int = 2) -> Case:
    """A case whose first statement is of this operation and whose others are of any."""
    kinds = [draw(st.sampled_from(KEYS)), *draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4))]
    columns = tuple(zip(["k", *(f"c{number}" for number in range(1, len(kinds)))], kinds, strict=True))
    able = [name for name, kind in columns if kind in PARTITIONS]
    # One column must be left for the files.
    limit = min(2, len(columns) - 1)
    partition_by = tuple(draw(st.lists(st.sampled_from(able), max_size=limit, unique=True))) if able else ()
    case = Case(
        columns=columns,
        partition_by=partition_by,
        properties=draw(st.sampled_from(_PROPERTIES)),
        time_zone=draw(st.sampled_from(["UTC", "UTC", "America/New_York"])),
        files=tuple(draw(st.lists(_rows(columns), min_size=1, max_size=3))),
    )
    operations = [operation, *(draw(st.sampled_from(sorted(STATEMENTS))) for _ in range(statements - 1))]
    found = tuple(STATEMENTS[name](draw, case) for name in operations)
    return Case(**{**vars(case), "statements": found})


def _values(kind: str) -> Any:
    return st.one_of(st.sampled_from(KINDS[kind].values), st.sampled_from(KINDS[kind].values), st.none())


def _rows(columns: Sequence[tuple[str, str]], max_size: int = 7) -> Any:
    return st.lists(st.tuples(*(_values(kind) for _, kind in columns)), max_size=max_size).map(tuple)


# --- texts ----------------------------------------------------------------------------------------------------------


class _Texts:
    """Conditions and values over the columns of one or two relations; parameters are gathered as they are drawn."""

    def __init__(self, draw: Draw, case: Case, *aliases: str) -> None:
        self.draw = draw
        self.case = case
        self.names = [(f"{alias}.{name}" if alias else name, kind) for alias in aliases for name, kind in case.columns]
        self.parameters: dict[str, Any] = {}

    def scope(self) -> str:
        """A condition on one partition column, which may be compared with another of them and with nothing else."""
        inside = _Texts(self.draw, self.case, "")
        inside.names = [(name, kind) for name, kind in inside.names if name in self.case.partition_by]
        inside.parameters = self.parameters
        return inside.leaf(*self.draw(st.sampled_from(inside.names)))

    def condition(self, depth: int = 2) -> str:
        """A condition of which a row may be TRUE, FALSE or NULL."""
        shape = self.draw(st.integers(0, 5)) if depth else 0
        if shape == 5:
            return f"NOT ({self.condition(depth - 1)})"
        if shape >= 3:
            word = "AND" if shape == 3 else "OR"
            return f"({self.condition(depth - 1)}) {word} ({self.condition(depth - 1)})"
        return self.leaf(*self.draw(st.sampled_from(self.names)))

    def leaf(self, name: str, kind: str) -> str:
        draw, known = self.draw, KINDS[kind]
        shapes = ["null", "not null"]
        if known.is_ordered:
            shapes += ["compare", "compare", "compare", "in", "columns", "between", "coalesce"]
        if kind == "string":
            shapes += ["like", "length"]
        if kind == "boolean":
            shapes += ["bare"]
        if kind in _NUMBERS:
            shapes += ["modulo", "text"]
        shape = draw(st.sampled_from(shapes))
        value = known.literal(draw(_values(kind)))
        match shape:
            case "null":
                return f"{name} IS NULL"
            case "not null":
                return f"{name} IS NOT NULL"
            case "compare":
                return f"{name} {draw(st.sampled_from(_COMPARISONS))} {self.constant(kind)}"
            case "in":
                return f"{name} IN ({value}, {known.literal(draw(_values(kind)))})"
            case "between":
                return f"{name} BETWEEN {value} AND {known.literal(draw(_values(kind)))}"
            case "columns":
                other = draw(st.sampled_from([one for one, its in self.names if its == kind]))
                return f"{name} {draw(st.sampled_from(_COMPARISONS))} {other}"
            case "coalesce":
                return f"coalesce({name}, {value}) = {known.literal(draw(st.sampled_from(known.values)))}"
            case "like":
                return f"{name} LIKE {draw(st.sampled_from(_PATTERNS))}"
            case "length":
                return f"length({name}) > 1"
            case "bare":
                return name
            case "modulo":
                return f"{name} % 2 = 0"
            case _:
                return f"CAST({name} AS STRING) = '1'"

    def constant(self, kind: str) -> str:
        """A literal, or a parameter that holds the value where Python's value has the type by itself."""
        value = self.draw(_values(kind))
        if value is None or kind not in ("int", "string", "date", "double") or not self.draw(st.booleans()):
            return KINDS[kind].literal(value)
        if kind == "double" and value not in (0.0, 0.1, 1e300):
            return KINDS[kind].literal(value)  # JSON has neither NaN nor infinity
        if kind == "date" and value.year < 1000:
            return KINDS[kind].literal(value)  # Spark's own conversion of a date forgets the zeros of its year
        name = f"p{len(self.parameters)}"
        self.parameters[name] = value
        return f":{name}"

    def value(self, kind: str) -> str:
        """An expression that can be stored in a column of this kind without a cast that may fail."""
        draw, known = self.draw, KINDS[kind]
        literal = known.literal(draw(_values(kind)))
        same = [name for name, its in self.names if its == kind]
        if not same:
            return literal
        column = draw(st.sampled_from(same))
        shapes = [literal, column, column, "NULL", f"coalesce({column}, {literal})"]
        shapes.append(f"CASE WHEN {self.leaf(*draw(st.sampled_from(self.names)))} THEN {literal} ELSE {column} END")
        if kind == "string":
            shapes.append(f"upper({column})")
        if kind == "long":
            shapes.append(f"try_add({column}, 1)")
        return draw(st.sampled_from(shapes))

    def assignments(self, *, is_insert: bool) -> str | dict[str, str]:
        """What a clause of a merge assigns: every column from the source's of that name, or some."""
        if len(self.names) != len(self.case.columns) and self.draw(st.integers(0, 2)) == 0:
            return "*"
        if is_insert and self.draw(st.booleans()):
            return "*"
        return self.mapping()

    def mapping(self) -> dict[str, str]:
        """Some columns, and an expression for each."""
        names = [name for name, _ in self.case.columns]
        chosen = self.draw(st.lists(st.sampled_from(names), min_size=1, max_size=len(names), unique=True))
        return {name: self.value(dict(self.case.columns)[name]) for name in chosen}


_COMPARISONS = ["=", "<>", "<", "<=", ">", ">=", "<=>"]
_PATTERNS = ["'a%'", "'%'", "'_'", "'O\\'B%'", "'%\\\\%'"]


def _scope(draw: Draw, case: Case, texts: _Texts) -> dict[str, Any]:
    """A `partition_predicate`, one time in four where the table has partitions."""
    if not case.partition_by or draw(st.integers(0, 3)):
        return {}
    return {"partition_predicate": texts.scope()}


# --- statements -----------------------------------------------------------------------------------------------------


def _statement(
    operation: str, arguments: dict[str, Any], texts: _Texts, source: tuple[Row, ...] | None = None
) -> Statement:
    """With the parameters that its texts name; not every text that was drawn is used."""
    named = set(re.findall(r":(p\d+)", repr(arguments)))
    parameters = {name: value for name, value in texts.parameters.items() if name in named}
    return Statement(operation=operation, arguments={**arguments, "parameters": parameters}, source=source)


def _delete(draw: Draw, case: Case) -> Statement:
    texts = _Texts(draw, case, "")
    predicate = None if draw(st.integers(0, 9)) == 0 else texts.condition()
    arguments = {"predicate": predicate, **_scope(draw, case, texts)}
    return _statement("delete", arguments, texts)


def _update(draw: Draw, case: Case) -> Statement:
    texts = _Texts(draw, case, draw(st.sampled_from(["", "t"])))
    predicate = None if draw(st.integers(0, 9)) == 0 else texts.condition()
    bare = _Texts(draw, case, "")
    bare.parameters = texts.parameters
    arguments = {"set": texts.mapping(), "predicate": predicate, **_scope(draw, case, bare)}
    return _statement("update", arguments, texts)


def _write(draw: Draw, case: Case) -> Statement:
    texts = _Texts(draw, case, "")
    rows = draw(_rows(case.columns))
    modes = ["append", "append", "overwrite", "overwrite", *(["overwrite_partitions"] if case.partition_by else [])]
    arguments: dict[str, Any] = {"mode": draw(st.sampled_from(modes))}
    able = [name for name, kind in case.columns if KINDS[kind].is_ordered]
    if arguments["mode"] == "overwrite" and able and draw(st.booleans()):
        # Rows that lie where the predicate says, most of the time.
        name = draw(st.sampled_from([*case.partition_by, *able]))
        kind = dict(case.columns)[name]
        value = draw(st.sampled_from(KINDS[kind].values))
        said = "partition_predicate" if name in case.partition_by and draw(st.booleans()) else "replace_where"
        arguments[said] = f"{name} = {KINDS[kind].literal(value)}"
        at = [one for one, _ in case.columns].index(name)
        if draw(st.integers(0, 4)):
            rows = tuple((*row[:at], value, *row[at + 1 :]) for row in rows)
    return _statement("write", arguments, texts, rows)


def _merge(draw: Draw, case: Case) -> Statement:
    source = draw(_rows(case.columns, max_size=6))
    if draw(st.integers(0, 3)):
        source = tuple({repr(row[0]): row for row in source}.values())
    pair = _Texts(draw, case, "t", "s")
    on = _on(draw, case, pair)
    clauses = []
    matched = draw(st.integers(0, 3))
    for number in range(matched):
        condition = _condition(draw, pair, is_last=number == matched - 1)
        if draw(st.integers(0, 2)) == 0:
            clauses.append({"when": "matched", "then": "delete", **condition})
        else:
            assigned = pair.assignments(is_insert=False)
            clauses.append({"when": "matched", "then": "update", "set": assigned, **condition})
    alone = _Texts(draw, case, "s")
    alone.parameters = pair.parameters
    unmatched = draw(st.integers(0 if matched else 1, 2))
    for number in range(unmatched):
        condition = _condition(draw, alone, is_last=number == unmatched - 1)
        clauses.append(
            {"when": "not_matched", "then": "insert", "values": alone.assignments(is_insert=True), **condition}
        )
    target = _Texts(draw, case, "t")
    target.parameters = pair.parameters
    # Of all rows without a match, so not often.
    left = draw(st.sampled_from([0, 0, 1, 2]))
    for number in range(left):
        condition = _condition(draw, target, is_last=number == left - 1)
        if draw(st.booleans()):
            clauses.append({"when": "not_matched_by_source", "then": "delete", **condition})
        else:
            assigned = target.mapping()
            clauses.append({"when": "not_matched_by_source", "then": "update", "set": assigned, **condition})
    bare = _Texts(draw, case, "")
    bare.parameters = pair.parameters
    return _statement("merge", {"on": on, "clauses": clauses, **_scope(draw, case, bare)}, pair, source)


def _condition(draw: Draw, texts: _Texts, *, is_last: bool) -> dict[str, str]:
    if is_last and draw(st.booleans()):
        return {}
    return {"condition": texts.condition(1)}


def _on(draw: Draw, case: Case, pair: _Texts) -> str:
    shape = draw(st.integers(0, 7))
    other, _ = draw(st.sampled_from([entry for entry in case.columns if KINDS[entry[1]].is_ordered]))
    match shape:
        case 0 | 1:
            return "t.k = s.k"
        case 2:
            return "t.k <=> s.k"
        case 3:
            return f"t.k = s.k AND t.{other} <=> s.{other}"
        case 4:
            return f"t.k = s.k AND ({pair.condition(1)})"
        case 5:
            return f"s.k = t.k OR t.{other} = s.{other}"
        case 6:
            return "t.k < s.k"
        case _:
            joined = [f"t.{name} = s.{name}" for name in dict.fromkeys(["k", *case.partition_by])]
            return " AND ".join(joined)


def _optimize(draw: Draw, case: Case) -> Statement:
    texts = _Texts(draw, case, "")
    able = [name for name, kind in case.columns if kind in _CURVED and name not in case.partition_by]
    how: dict[str, Any] = draw(st.sampled_from([{}, {"purge": True}, *({"zorder_by": [name]} for name in able)]))
    return _statement("optimize", how, texts)


STATEMENTS = {"delete": _delete, "merge": _merge, "optimize": _optimize, "update": _update, "write": _write}
