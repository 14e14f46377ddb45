"""Everyday statements on tables that nobody tuned for: the tables, their sources, and one record for each statement.

A statement is written once, as a job has it. `statement_cases` derives what deltalake and delta-spark are asked for.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.helpers.paths import ROOT

NO_GENERATOR = "no tpchgen-cli: tools/ensure_tpchgen.sh fetches it"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A kind of table. `make` writes the data files below `table` and each source into a folder of its own.

    Rows are ordered by `key`. Results are compared by all columns once, and by `key` and `compared` in later rounds.
    """

    make: Callable[[Path, float], None]
    key: tuple[str, ...]
    compared: tuple[str, ...] = ()
    partition_columns: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Statement:
    """An operation of ours; `source` names the shape's folder of rows, and `keys` the column of a delete by keys.

    `deltalake`: parts of our SQL, with what DataFusion calls the same.
    """

    shape: Shape
    operation: str
    source: str | None = None
    keys: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    deltalake: Mapping[str, str] = field(default_factory=dict)


def generator() -> str | None:
    """Return the path of `tpchgen-cli`, None where it is not installed."""
    return next(filter(None, (shutil.which("tpchgen-cli", path=str(path)) for path in _GENERATOR_FOLDERS)), None)


_GENERATOR_FOLDERS = (ROOT / ".venv" / "tpchgen" / "bin", Path(sys.executable).parent)


def write_files(folder: Path, tables: Iterable[pa.Table]) -> None:
    """Write each table as one Parquet file."""
    folder.mkdir(parents=True)
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"part-{number:05d}.parquet", store_schema=False)


def _make_lineitem(folder: Path, scale: float) -> None:
    """Six million rows in two files; more than that in sixteen."""
    files = 2 if scale <= 1 else 16
    command = [str(generator()), "parquet", "--quiet", "-s", str(scale), "-T", "lineitem", "--parts", str(files)]
    subprocess.run([*command, "--field-ids", "false", "-o", str(folder)], check=True)
    made = sorted((folder / "lineitem").iterdir())
    # File by file: the table may be larger than the memory.
    write_files(folder / "table", map(_plain_rows, made))
    keys = pa.concat_tables(pq.read_table(path, columns=["l_orderkey"]) for path in made)["l_orderkey"]
    rng = np.random.default_rng(1)
    orders = pc.unique(keys)
    chosen = rng.choice(len(orders), min(1_500, len(orders) // 2), replace=False)
    write_files(folder / "keys", [pa.table({"l_orderkey": orders.take(pa.array(chosen))})])
    # Forty thousand changes: a tenth deletes, a fifth inserts orders that are new, and the rest updates.
    changed = rng.choice(len(keys), max(len(keys) // 150, 20), replace=False)
    changes = _rows_at(changed, made)
    operations = np.array(["D", "I", "I", *["U"] * 7])[np.arange(len(changed)) % 10]
    new_keys = pc.add(changes["l_orderkey"], pa.array((operations == "I") * pc.max(orders).as_py()))
    changes = changes.set_column(0, "l_orderkey", new_keys).append_column("op", pa.array(operations))
    write_files(folder / "changes", [changes])
    shutil.rmtree(folder / "lineitem")


def _plain_rows(path: Path) -> pa.Table:
    """Return the rows of a file with nullable columns, and with strings instead of views of strings."""
    rows, kinds = pq.read_table(path), {pa.string_view(): pa.string()}
    return rows.cast(pa.schema([(each.name, kinds.get(each.type, each.type)) for each in rows.schema]))


def _rows_at(numbers: np.ndarray, paths: Sequence[Path]) -> pa.Table:
    """Return the rows of these numbers, in this order; the rows of all files are numbered."""
    order, found, start = np.argsort(numbers), [], 0
    ascending = numbers[order]
    for path in paths:
        end = start + pq.read_metadata(path).num_rows
        of_file = ascending[(ascending >= start) & (ascending < end)] - start
        found.append(_plain_rows(path).take(pa.array(of_file)))
        start = end
    return pa.concat_tables(found).take(pa.array(np.argsort(order)))


def _nested(ids: np.ndarray, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    numbers = pa.array(rng.integers(0, 50_000, len(ids)))
    text = numbers.cast(pa.string())
    tags = pa.ListArray.from_arrays(
        pa.array(np.arange(len(ids) + 1, dtype=np.int32) * 2),
        pc.binary_join_element_wise("tag", pa.array(rng.integers(0, 99, 2 * len(ids))).cast(pa.string()), ""),
    )
    return pa.table(
        {
            "id": pa.array(ids),
            "kind": pa.array((ids % 12).astype(np.int32)),
            "name": pc.binary_join_element_wise("name", text, "-"),
            "amount": pa.array(rng.integers(0, 1_000_000, len(ids))),
            "day": pa.array(rng.integers(18_000, 20_000, len(ids)).astype(np.int32)).cast(pa.date32()),
            "address": pa.StructArray.from_arrays(
                [pc.binary_join_element_wise("city", text, " "), numbers.cast(pa.int32())], names=["city", "zip"]
            ),
            "tags": tags,
        }
    )


def _make_nested(folder: Path, scale: float) -> None:
    """Two million rows in four files whose ids lie everywhere; a million rows and keys, half of which are new."""
    count = max(int(2_000_000 * scale), 400) // 4 * 4
    write_files(folder / "table", (_nested(np.arange(start, count, 4), start) for start in range(4)))
    write_files(folder / "all", (_nested(count + np.arange(start, count, 4), start) for start in range(4)))
    rng = np.random.default_rng(5)
    some = rng.permutation(np.arange(count // 2, 3 * count // 2))[: count // 2]
    write_files(folder / "rows", [_nested(some, 6)])
    write_files(folder / "keys", [pa.table({"id": rng.permutation(count)[: count // 2]})])


def _make_wide(folder: Path, scale: float) -> None:
    """1,000 rows of an id and 1,500 columns that are doubles and texts in turn."""
    rows, columns = 1_000, max(2, round(1_500 * scale))
    kinds = [pa.array([float(n)] * rows) if n % 2 else pa.array([f"v{n}"] * rows) for n in range(columns)]
    named = {f"c{n}": values for n, values in enumerate(kinds)}
    write_files(folder / "table", [pa.table({"id": pa.array(range(rows)), **named})])
    write_files(folder / "rows", [pa.table({"id": pa.array(range(rows // 2, rows + rows // 2)), **named})])


def _make_partitions(folder: Path, scale: float) -> None:
    """Four rows for each of 5,000 partitions, and a table that has one row."""
    partitions = max(2, round(5_000 * scale))
    ids = np.arange(1, 4 * partitions + 1)
    write_files(folder / "rows", [pa.table({"id": ids, "v": pa.array(ids).cast(pa.string()), "p": ids % partitions})])
    write_files(folder / "table" / "p=0", [pa.table({"id": pa.array([0]), "v": ["0"]})])


def _make_tiny(folder: Path, scale: float) -> None:
    """1,000 files of ten rows each, and as many to append. A value lies in a tenth of them, and prunes none."""
    files = max(3, round(1_000 * scale))
    for name, first in (("table", 0), ("rows", 10 * files)):
        ids = first + np.arange(10 * files)
        rows = pa.table(
            {"id": ids, "v": pc.binary_join_element_wise("v", pa.array(ids * 7919 % 97).cast(pa.string()), "")}
        )
        write_files(folder / name, (rows.take(pa.array(np.arange(n, 10 * files, files))) for n in range(files)))


def _make_small(folder: Path, scale: float) -> None:
    """1,000 rows in one file; a tenth as many to merge, half of them new. No scale makes it smaller."""
    for name, ids in (("table", np.arange(1_000)), ("rows", np.arange(950, 1_050))):
        amounts = pa.array(ids * 7919 % 97 / 4)
        texts = pc.binary_join_element_wise(name, pa.array(ids).cast(pa.string()), " ")
        write_files(folder / name, [pa.table({"id": ids, "amount": amounts, "text": texts})])


def _mixed(ids: np.ndarray, seed: int) -> pa.Table:
    """Rows whose key is a region and a number, with texts of which four in ten are null, decimals and a struct."""
    rng = np.random.default_rng(seed)
    count = len(ids)

    def texts(kind: str, values: int) -> pa.Array:
        found = pc.binary_join_element_wise(kind, pa.array(rng.integers(0, values, count)).cast(pa.string()), " ")
        return pc.if_else(pa.array(rng.random(count) < 0.4), pa.scalar(None, pa.string()), found)

    def decimals() -> pa.Array:
        return pa.array(rng.integers(0, 10**9, count)).cast(pa.decimal128(19, 0)).cast(pa.decimal128(23, 4))

    return pa.table(
        {
            "region": pc.binary_join_element_wise("r", pa.array(ids % 9).cast(pa.string()), "-"),
            "id": pa.array(ids),
            **{f"text{n}": texts(f"text{n}", 100 * 10**n) for n in range(5)},
            **{f"price{n}": decimals() for n in range(3)},
            "ratio": pa.array(rng.random(count)),
            "flag": pa.array(rng.random(count) < 0.5),
            "at": pa.array(rng.integers(0, 10**15, count)).cast(pa.timestamp("us", "UTC")),
            "place": pa.StructArray.from_arrays([texts("street", 5_000), pa.array(rng.random(count))], ["street", "x"]),
        }
    )


def _make_mixed(folder: Path, scale: float) -> None:
    """800,000 rows in four files; a tenth as many to merge, half of them new, at most a hundred of these twice."""
    count = max(int(800_000 * scale), 400) // 4 * 4
    write_files(folder / "table", (_mixed(np.arange(start, count, 4), start) for start in range(4)))
    rng = np.random.default_rng(9)
    old, new = rng.permutation(count)[: count // 20], count + rng.permutation(count // 20)
    rows = _mixed(np.concatenate([old, new]), 10)
    write_files(folder / "rows", [rows])
    write_files(folder / "repeated", [pa.concat_tables([rows, rows.slice(rows.num_rows - min(100, len(new)))])])


def _make_columns(folder: Path, scale: float) -> None:
    """60,000 rows of 200 columns: integers, doubles, texts and dates in turn, a third of them null."""
    rows = max(int(60_000 * scale), 100)

    def table(first: int) -> pa.Table:
        rng = np.random.default_rng(first)
        columns: dict[str, pa.Array] = {"id": pa.array(first + np.arange(rows))}
        for number in range(200):
            found = pa.array(rng.integers(0, 20_000, rows))
            kinds = (pa.int64(), pa.float64(), pa.string(), pa.date32())
            kind = kinds[number % 4]
            found = found.cast(pa.int32()).cast(kind) if kind == pa.date32() else found.cast(kind)
            columns[f"c{number}"] = pc.if_else(pa.array(rng.random(rows) < 1 / 3), pa.scalar(None, kind), found)
        return pa.table(columns)

    write_files(folder / "table", [table(0)])
    write_files(folder / "rows", [table(rows)])


LINEITEM = Shape(
    make=_make_lineitem, key=("l_orderkey", "l_linenumber"), compared=("l_quantity", "l_extendedprice", "l_shipdate")
)
NESTED = Shape(make=_make_nested, key=("id",), compared=("kind", "amount"))
WIDE = Shape(make=_make_wide, key=("id",))
PARTITIONS = Shape(make=_make_partitions, key=("id",), partition_columns=("p",))
TINY = Shape(make=_make_tiny, key=("id",), compared=("v",))
SMALL = Shape(make=_make_small, key=("id",), compared=("amount", "text"))
MIXED = Shape(make=_make_mixed, key=("region", "id"), compared=("text1", "price1"))
COLUMNS = Shape(make=_make_columns, key=("id",), compared=("c1", "c2"))

_SAME_LINE = "t.l_orderkey = s.l_orderkey AND t.l_linenumber = s.l_linenumber"
_LINE = (
    *("l_orderkey", "l_partkey", "l_suppkey", "l_linenumber", "l_quantity", "l_extendedprice", "l_discount", "l_tax"),
    *("l_returnflag", "l_linestatus", "l_shipdate", "l_commitdate", "l_receiptdate", "l_shipinstruct", "l_shipmode"),
    "l_comment",
)
_OF_SOURCE = {name: f"s.{name}" for name in _LINE}
_BY_SOURCE = "not_matched_by_source"
# DataFusion replaces the first match of a pattern alone, unless it is told otherwise.
_ALL_MATCHES = {"'_')": "'_', 'g')"}


def _five_functions(text: str) -> str:
    """Return a chain of functions that Spark alone evaluates; the text concatenates two others."""
    return f"trim(lower(reverse(regexp_replace({text}, '[aeiou]+', '_'))))"


def _matched(then: str, condition: str, **more: Any) -> dict[str, Any]:
    return {"when": "matched", "then": then, "condition": condition, **more}


def _inserted(condition: str) -> dict[str, Any]:
    named = {name: f"s.{name}" for name in ("id", "kind", "name", "amount", "day", "address", "tags")}
    return {"when": "not_matched", "then": "insert", "condition": condition, "values": named}


_CHANGE_LINES = [
    _matched("delete", "s.op = 'D'"),
    _matched(
        "update",
        "s.op = 'U'",
        set={
            "l_quantity": "t.l_quantity + s.l_quantity",
            "l_discount": "s.l_discount",
            "l_comment": "concat('changed: ', upper(s.l_comment))",
        },
    ),
    {"when": "not_matched", "then": "insert", "condition": "s.op = 'I'", "values": _OF_SOURCE},
]
_FOURTEEN = [
    *(_matched("update", f"s.kind = {n}", set={"amount": f"t.amount + {n}", "name": "s.name"}) for n in range(5)),
    _matched("delete", "s.kind = 5 AND t.amount < 500000"),
    _matched("delete", "s.kind = 6"),
    *(_inserted(f"s.kind = {n}") for n in range(7, 12)),
    {"when": _BY_SOURCE, "then": "update", "condition": "t.amount < 1000", "set": {"amount": "t.amount + 1"}},
    {"when": _BY_SOURCE, "then": "delete", "condition": "t.amount > 999000"},
]

STATEMENTS = {
    "tpch-delete-keys": Statement(shape=LINEITEM, operation="delete", source="keys", keys="l_orderkey"),
    "tpch-cdc": Statement(
        shape=LINEITEM, operation="merge", source="changes", arguments={"on": _SAME_LINE, "clauses": _CHANGE_LINES}
    ),
    "tpch-by-source": Statement(
        shape=LINEITEM,
        operation="merge",
        source="changes",
        arguments={
            "on": _SAME_LINE,
            "clauses": [
                {"when": "matched", "then": "update", "set": {"l_tax": "s.l_tax", "l_comment": "s.l_comment"}},
                {"when": _BY_SOURCE, "then": "delete", "condition": "t.l_shipdate < DATE '1992-03-01'"},
            ],
        },
    ),
    "tpch-update": Statement(
        shape=LINEITEM,
        operation="update",
        arguments={
            "predicate": "year(l_shipdate) = 1995",
            "set": {"l_extendedprice": "round(l_extendedprice, 0)", "l_comment": "upper(l_comment)"},
        },
        deltalake={"year(": "date_part('year', "},
    ),
    "tpch-update-spark": Statement(
        shape=LINEITEM,
        operation="update",
        arguments={
            "predicate": "l_shipmode = 'AIR'",
            "set": {"l_comment": _five_functions("concat(l_comment, '!')")},
        },
        deltalake=_ALL_MATCHES,
    ),
    "tpch-merge-spark": Statement(
        shape=LINEITEM,
        operation="merge",
        source="changes",
        arguments={
            "on": _SAME_LINE,
            "clauses": [
                _matched("delete", "s.op = 'D'"),
                _matched("update", "s.op = 'U'", set={"l_comment": _five_functions("t.l_comment || s.l_comment")}),
                {"when": "not_matched", "then": "insert", "condition": "s.op = 'I'", "values": _OF_SOURCE},
            ],
        },
        deltalake=_ALL_MATCHES,
    ),
    "tpch-delete-orders": Statement(
        shape=LINEITEM, operation="delete", arguments={"predicate": "l_orderkey BETWEEN 1000 AND 1100"}
    ),
    "tpch-delete-like": Statement(
        shape=LINEITEM, operation="delete", arguments={"predicate": "l_comment LIKE '%special%requests%'"}
    ),
    "tpch-delete-most": Statement(shape=LINEITEM, operation="delete", arguments={"predicate": "l_quantity > 5"}),
    "nested-append": Statement(shape=NESTED, operation="write", source="all"),
    "nested-upsert": Statement(shape=NESTED, operation="upsert", source="rows", arguments={"keys": ["id"]}),
    "nested-delete-keys": Statement(shape=NESTED, operation="delete", source="keys", keys="id"),
    "nested-clauses": Statement(
        shape=NESTED, operation="merge", source="rows", arguments={"on": "t.id = s.id", "clauses": _FOURTEEN}
    ),
    "nested-update": Statement(
        shape=NESTED,
        operation="update",
        arguments={
            "predicate": "kind = 3",
            "set": {"address": "named_struct('city', upper(address.city), 'zip', address.zip)"},
        },
        deltalake={"address.city": "address['city']", "address.zip": "address['zip']"},
    ),
    "nested-z-order": Statement(shape=NESTED, operation="optimize", arguments={"zorder_by": ["kind", "day"]}),
    "wide-append": Statement(shape=WIDE, operation="write", source="rows"),
    "wide-delete": Statement(shape=WIDE, operation="delete", arguments={"predicate": "id = 5"}),
    "wide-upsert": Statement(shape=WIDE, operation="upsert", source="rows", arguments={"keys": ["id"]}),
    "mixed-append": Statement(shape=MIXED, operation="write", source="rows"),
    "mixed-upsert": Statement(shape=MIXED, operation="upsert", source="rows", arguments={"keys": ["region", "id"]}),
    "mixed-merge": Statement(
        shape=MIXED,
        operation="merge",
        source="repeated",
        arguments={
            "on": "t.region = s.region AND t.id = s.id",
            "clauses": [
                _matched("update", "s.flag", set={"price1": "s.price1", "text1": "coalesce(s.text1, t.text1)"})
            ],
        },
    ),
    "mixed-update": Statement(
        shape=MIXED,
        operation="update",
        arguments={"predicate": "text2 IS NULL AND ratio < 0.2", "set": {"text1": "coalesce(text1, text3)"}},
    ),
    "mixed-delete": Statement(
        shape=MIXED, operation="delete", arguments={"predicate": "price0 > 900000000 AND region = 'r-3'"}
    ),
    "columns-append": Statement(shape=COLUMNS, operation="write", source="rows"),
    "columns-update": Statement(
        shape=COLUMNS, operation="update", arguments={"predicate": "c0 < 100", "set": {"c1": "c1 + 1"}}
    ),
    "columns-delete": Statement(shape=COLUMNS, operation="delete", arguments={"predicate": "c0 < 100"}),
    "partitions-append": Statement(shape=PARTITIONS, operation="write", source="rows"),
    "tiny-delete": Statement(shape=TINY, operation="delete", arguments={"predicate": "v = 'v7'"}),
    "tiny-update": Statement(
        shape=TINY, operation="update", arguments={"predicate": "v = 'v7'", "set": {"v": "concat(v, '!')"}}
    ),
    "tiny-append": Statement(shape=TINY, operation="write", source="rows"),
    "tiny-optimize": Statement(shape=TINY, operation="optimize"),
    "small-append": Statement(shape=SMALL, operation="write", source="rows"),
    "small-upsert": Statement(shape=SMALL, operation="upsert", source="rows", arguments={"keys": ["id"]}),
    "small-delete": Statement(shape=SMALL, operation="delete", arguments={"predicate": "id = 5"}),
    "small-update": Statement(
        shape=SMALL, operation="update", arguments={"predicate": "id = 5", "set": {"text": "upper(text)"}}
    ),
}
