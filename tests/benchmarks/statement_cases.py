"""The cases of `statements`: our job, deltalake and delta-spark, each on a table of its own that links the same files.

All rows of all sides are compared in the warm-up, and some of their columns in each round.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.feather as feather
import pyarrow.parquet as pq

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.engine import Table
from tests.benchmarks.events import commit_files
from tests.benchmarks.statements import STATEMENTS, Shape, Statement
from tests.helpers.delta_spark import DeltaSpark
from tests.helpers.specs import job_spec

Column = tuple[str, pa.Array]

if TYPE_CHECKING:
    from deltalake.table import TableMerger


@dataclass(kw_only=True)
class StatementSide:
    """One engine's statement; `execute` takes the table's path."""

    name: str
    shape: Shape
    input: Path
    table: Path
    execute: Callable[[Path], None]
    is_compared: bool = False

    def prepare(self) -> None:
        shutil.rmtree(self.table, ignore_errors=True)
        shutil.copytree(self.input / "table", self.table, copy_function=_link_data)

    def run(self) -> None:
        self.execute(self.table)

    def result(self) -> Iterator[Column]:
        """Yield the columns one by one, each in the order of the keys: all of a large table are too many at once."""
        table = Table.open(str(self.table))
        names = [*self.shape.key, *self.shape.compared] if self.is_compared else table.snapshot().schema.names
        self.is_compared = True
        keys = table.to_arrow(columns=list(self.shape.key))
        order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in self.shape.key])
        del keys
        for name in names:
            yield name, table.to_arrow(columns=[name])[name].take(order).combine_chunks()


def _link_data(file: str, to: str) -> None:
    """Nobody changes a data file."""
    (shutil.copyfile if "_delta_log" in file else os.link)(file, to)


def statement_sides(
    case: str, folder: Path, scale: float, run: Callable[[JobSpec], JobResult], child: DeltaSpark | None
) -> list[StatementSide]:
    """Return the sides of a case, whose input is made where it is not there yet; `run` runs a job of ours."""
    statement = STATEMENTS[case]
    shape = statement.shape
    made = folder / f"{case.partition('-')[0]}-{scale}"
    if not (made / "finished").exists():
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        shape.make(made, scale)
        schema = pq.read_schema(next((made / "table").rglob("*.parquet")))
        partitions = [pa.field(name, pa.int64()) for name in shape.partition_columns]
        commit_files(made / "table", schema, partitions, {})
        (made / "finished").touch()
    engines: dict[str, Callable[[Path], None]] = {
        "ours": lambda table: _run_ours(statement, made, table, run),
        "deltalake": lambda table: _run_deltalake(statement, made, table),
    }
    if child is not None:
        engines["delta-spark"] = lambda table: child.run(_sql(statement, made, table))
    return [
        StatementSide(name=name, shape=shape, input=made, table=folder / case / name, execute=execute)
        for name, execute in engines.items()
    ]


def equal_sides(folder: Path) -> Callable[[str, Iterable[Column]], None]:
    """Return a check that all sides leave the same rows, in each round; `folder` keeps the columns of the first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)

    def check(side: str, columns: Iterable[Column]) -> None:
        for name, values in columns:
            assert len(values), f"{side} left no rows"
            kept = folder / f"{name}.arrow"
            if not kept.exists():
                feather.write_feather(pa.table({name: values}), str(kept), compression="uncompressed")
                continue
            first = feather.read_table(str(kept), memory_map=True)[name]
            assert len(values) == len(first), f"{side} left {len(values)} rows, another side {len(first)}"
            assert first.equals(pa.chunked_array([values])), f"{side} left other values in {name}"

    return check


def _run_ours(statement: Statement, made: Path, table: Path, run: Callable[[JobSpec], JobResult]) -> None:
    arguments = dict(statement.arguments)
    if statement.operation == "delete":
        arguments.setdefault("predicate", None)
    if statement.source is not None:
        source = {"format": "parquet", "path": str(made / statement.source)}
        arguments |= {"keys": {"column": statement.keys, "source": source}} if statement.keys else {"source": source}
    result = run(job_spec(operation=statement.operation, table_uri=str(table), arguments=arguments))
    assert result.status in ("committed", "nothing_to_do"), result.error


def _merge(statement: Statement) -> tuple[str, list[dict[str, Any]]]:
    """Return the condition and the clauses of a statement that is a MERGE for the other engines."""
    if statement.keys is not None:
        return f"t.{statement.keys} = s.{statement.keys}", [{"when": "matched", "then": "delete"}]
    if statement.operation == "upsert":
        clauses = [
            {"when": "matched", "then": "update", "set": "*"},
            {"when": "not_matched", "then": "insert", "values": "*"},
        ]
        return " AND ".join(f"t.{key} = s.{key}" for key in statement.arguments["keys"]), clauses
    return statement.arguments["on"], statement.arguments["clauses"]


def _sql(statement: Statement, made: Path, table: Path) -> str:
    """Return the statement as delta-spark has it."""
    target, source, given = f"delta.`{table}`", f"parquet.`{made / (statement.source or '')}`", statement.arguments
    if statement.operation == "write":
        return f"INSERT INTO {target} SELECT * FROM {source}"
    if statement.operation == "optimize":
        order = f" ZORDER BY ({', '.join(given['zorder_by'])})" if given else ""
        return f"OPTIMIZE {target}{order}"
    if statement.operation == "update":
        return f"UPDATE {target} SET {_assignments(given['set'])} WHERE {given['predicate']}"
    if "predicate" in given:
        return f"DELETE FROM {target} WHERE {given['predicate']}"
    on, clauses = _merge(statement)
    return f"MERGE INTO {target} t USING {source} s ON {on} {' '.join(map(_clause_sql, clauses))}"


def _clause_sql(clause: Mapping[str, Any]) -> str:
    condition = f" AND {clause['condition']}" if "condition" in clause else ""
    then = clause["then"].upper()
    if then == "UPDATE":
        then += " SET *" if clause["set"] == "*" else f" SET {_assignments(clause['set'])}"
    elif then == "INSERT":
        values = clause["values"]
        then += " *" if values == "*" else f" ({', '.join(values)}) VALUES ({', '.join(values.values())})"
    return f"WHEN {clause['when'].upper().replace('_', ' ')}{condition} THEN {then}"


def _assignments(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def _run_deltalake(statement: Statement, made: Path, table: Path) -> None:
    from deltalake import DeltaTable, write_deltalake

    given = statement.arguments
    source = None if statement.source is None else made / statement.source
    if statement.operation == "write":
        # Batch by batch, as a user does whose rows may not fit into memory.
        write_deltalake(table, ds.dataset(source).scanner().to_reader(), mode="append")
        return
    opened = DeltaTable(table)
    if statement.operation == "optimize":
        opened.optimize.z_order(given["zorder_by"]) if given else opened.optimize.compact()
    elif statement.operation == "update":
        opened.update(
            {n: _theirs(v, statement) for n, v in given["set"].items()},
            predicate=_theirs(given["predicate"], statement),
        )
    elif "predicate" in given:
        opened.delete(_theirs(given["predicate"], statement))
    else:
        on, clauses = _merge(statement)
        merger = opened.merge(pq.read_table(source), on, source_alias="s", target_alias="t")
        for clause in clauses:
            merger = _add_clause(merger, clause, statement)
        merger.execute()


def _add_clause(merger: TableMerger, clause: Mapping[str, Any], statement: Statement) -> TableMerger:
    values = clause.get("set", clause.get("values"))
    method = f"when_{clause['when']}_{clause['then']}" + ("_all" if values == "*" else "")
    arguments: dict[str, Any] = {"predicate": clause.get("condition")}
    if isinstance(values, Mapping):
        arguments["updates"] = {name: _theirs(text, statement) for name, text in values.items()}
    added: TableMerger = getattr(merger, method)(**arguments)
    return added


def _theirs(text: str, statement: Statement) -> str:
    for ours, theirs in statement.deltalake.items():
        text = text.replace(ours, theirs)
    return text
