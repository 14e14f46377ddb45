"""One fuzzed job: a sound table on disk, damaged in one place by a seed, and a job that runs on it.

The job must commit the right rows, or end with an error of ours and leave the table as it was. What is right: the rows
as the damaged table was read before, changed by the operation. Anything else is a `Fault`.
"""

from __future__ import annotations

import datetime as dt
import functools
import io
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_txlog import errors
from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.jobs.run import run_job
from tests.engine.fuzz import mutations
from tests.helpers.jobs import SCHEMA, rows
from tests.helpers.rows import append
from tests.helpers.specs import job_spec
from tests.helpers.vectors import allow_vectors, mask_by_us

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHAPES = ("plain", "vectors", "classic", "v2")
LAST = 3
DAYS = [dt.date(2024, 1, 1), dt.date(2024, 1, 2)]
# What an error of ours may not be: it stands for what no one foresaw.
UNFORESEEN = {"JobError", "JobLost", "TxlogError"}


class Fault(AssertionError):
    """A raw error, wrong rows, or a table that a failed job changed."""


def run(spark: SparkSession, folder: Path, seed: int) -> str:
    """What came of the case: the operation and `right rows`, or the name of the typed error. Raises Fault."""
    chance = random.Random(f"hostile table {seed}")
    root = folder / f"t{seed}"
    shutil.copytree(sound(folder, chance.choice(SHAPES)), root)
    try:
        kind = chance.choice(sorted(DAMAGES))
        DAMAGES[kind](root, chance)
        operation = chance.choice(sorted(JOBS))
        return f"{operation}: {_outcome(spark, root, kind, operation)}"
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _outcome(spark: SparkSession, root: Path, kind: str, operation: str) -> str:
    before = _read(root)
    arguments, model = JOBS[operation]
    given = dict(arguments)
    spec = job_spec(operation=operation, table_uri=str(root), arguments=given)
    # An OPTIMIZE finds out by the table whether it needs Spark.
    has_session = operation not in ("vacuum", "checkpoint", "truncate", "optimize")
    result = run_job(spec, spark if has_session else None, start=lambda: spark)
    error = result.error
    if error is not None:
        if error["type"] in UNFORESEEN:
            raise Fault(f"{kind}, {operation}: {error['type']}: {error['message'][:600]}")
        _check_same(kind, operation, before, _read(root), lambda found: found)
        return str(error["type"])
    _check_same(kind, operation, before, _read(root), model)
    _check_places(root, result)
    return "right rows" if before is not None else "done, and unreadable before"


def _read(root: Path) -> list[dict[str, Any]] | None:
    """The rows, or None where reading them is refused. Raises Fault for a raw error."""
    try:
        return list(Table.open(root).to_arrow().to_pylist())
    except errors.TxlogError:
        return None
    except Exception as error:
        raise Fault(f"reading raised {error!r}") from error


_Rows = list[dict[str, Any]]


def _check_same(
    kind: str, operation: str, before: _Rows | None, after: _Rows | None, model: Callable[[_Rows], _Rows]
) -> None:
    if before is None:
        return
    if after is None:
        raise Fault(f"{kind}, {operation}: the table could be read before, and cannot now")
    # Statistics that lie prune files that hold rows, as the protocol allows; columns of other names are no model's.
    if kind in LYING or (before and not {"id", "name"} <= before[0].keys()):
        return
    wanted, found = _bag(model(before)), _bag(after)
    if wanted != found:
        missing, more = list((wanted - found).items())[:3], list((found - wanted).items())[:3]
        raise Fault(f"{kind}, {operation}: missing {missing}, more {more}")


def _bag(found: _Rows) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for row in found)


def _check_places(root: Path, result: JobResult) -> None:
    """Nothing that the seeds name outside of the table was made."""
    for name in ("outside", "x"):
        if (root.parent / name).exists():
            raise Fault(f"{result.operation} made {name} outside of the table")


# --- sound tables -----------------------------------------------------------------------------------------------------


@functools.cache
def sound(folder: Path, shape: str) -> Path:
    """A table of 40 rows in four files, partitioned by day, with constraints; versions 0 to LAST."""
    root = folder / f"sound-{shape}"
    properties = {
        "delta.constraints.positive": "amount >= 0",
        "delta.checkpointInterval": "1000",
        "delta.checkpointPolicy": "v2" if shape == "v2" else "classic",
    }
    table = Table.create(root, SCHEMA, ["day"], properties)
    for number in range(2):
        append(table, pa.concat_tables([rows(10, start=20 * number + 10 * n, day=day) for n, day in enumerate(DAYS)]))
    if shape == "vectors":
        allow_vectors(table)
        mask_by_us(table, {0: [1, 3]})
    else:
        append(table, rows(5, start=100))
    if shape in ("classic", "v2"):
        table.checkpoint()
        append(table, rows(5, start=200))
    return root


# --- damage -----------------------------------------------------------------------------------------------------------


def _commits(root: Path) -> list[Path]:
    return sorted((root / "_delta_log").glob("*[0-9].json"))


def _commit_bytes(root: Path, chance: random.Random) -> None:
    path = chance.choice(_commits(root))
    path.write_bytes(mutations.damaged_bytes(path.read_bytes(), chance))


def _commit_lines(root: Path, chance: random.Random) -> None:
    path = chance.choice(_commits(root))
    path.write_bytes(mutations.damaged_lines(path.read_bytes(), chance))


def _field(action: str, name: str) -> Callable[[Path, random.Random], None]:
    """One field of the actions of one kind is damaged, in one commit that has some."""

    def damage(root: Path, chance: random.Random) -> None:
        having = [path for path in _commits(root) if f'"{action}"' in path.read_text()]
        if not having:
            return
        path = chance.choice(having)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if action in line and chance.random() < 0.7:
                value = line[action].get(name)
                line[action][name] = (
                    mutations.damaged_json(value, chance)
                    if isinstance(value, str) and value[:1] == "{"
                    else mutations.damaged_value(value, chance)
                )
        path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8", errors="surrogatepass")

    return damage


_HOSTILE_PATHS = [
    *("a%00b", "x" * 300, "a/" * 3000 + "b", "a//b", "", ".", "%", "\ud800"),
    *("../outside", "/etc/passwd", "file:///etc/passwd"),
    *("_delta_log/00000000000000000000.json", "day=2024-01-01"),
]


def _path(root: Path, chance: random.Random) -> None:
    """An add or a remove names something else than a file of the table."""
    path = chance.choice(_commits(root)[1:])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        for action in ("add", "remove"):
            if action in line and chance.random() < 0.5:
                line[action]["path"] = chance.choice(_HOSTILE_PATHS)
    path.write_text("\n".join(json.dumps(line) for line in lines))


def _data_file(root: Path, chance: random.Random) -> None:
    files = sorted(each for each in root.rglob("*") if each.is_file() and "_delta_log" not in each.parts)
    path = chance.choice(files)
    match chance.randrange(4):
        case 0:
            path.unlink()
        case 1:
            path.write_bytes(b"")
        case 2:
            path.write_bytes(mutations.damaged_bytes(path.read_bytes(), chance))
        case 3:
            _same_size(path, chance)


def _same_size(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice([1, 3, 20])):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def _other_schema(root: Path, chance: random.Random) -> None:
    """A data file of other columns than the table's, with the size that its add action says."""
    places = [
        (path, number)
        for path in _commits(root)
        for number, line in enumerate(path.read_text().splitlines())
        if line.startswith('{"add":')
    ]
    path, at = chance.choice(places)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    add = lines[at]["add"]
    file = root / add["path"]
    if not file.exists():
        return
    found = pq.read_table(file, partitioning=None)
    name = chance.choice(found.column_names)
    index = found.column_names.index(name)
    kinds = [pa.string(), pa.int8(), pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.binary(), pa.bool_()]
    column = pa.nulls(found.num_rows, chance.choice(kinds))
    changed = found.drop_columns([name]) if chance.random() < 0.3 else found.set_column(index, name, column)
    buffer = io.BytesIO()
    pq.write_table(changed, buffer)
    file.write_bytes(buffer.getvalue())
    add["size"] = len(buffer.getvalue())
    if chance.random() < 0.7:
        add.pop("stats", None)
    path.write_text("\n".join(map(json.dumps, lines)))


def _log_file(root: Path, chance: random.Random) -> None:
    """A checkpoint, a sidecar or the hint is damaged; mostly nothing else leads to its version."""
    log = root / "_delta_log"
    files = [each for each in sorted(log.rglob("*")) if "checkpoint" in each.name]
    if not files:
        return
    path = chance.choice(files)
    path.write_bytes(mutations.damaged_bytes(path.read_bytes(), chance))
    if chance.random() < 0.7 and "checkpoint" in path.name:
        for version in range(LAST + 1):
            (root / commit_name(version)).unlink(missing_ok=True)


def _names(root: Path, chance: random.Random) -> None:
    """Files of the log are missing, doubled under other numbers, or empty."""
    for _ in range(chance.randint(1, 2)):
        path = chance.choice(sorted(each for each in (root / "_delta_log").iterdir() if each.is_file()))
        match chance.randrange(3):
            case 0:
                path.unlink()
            case 1:
                path.write_bytes(b"")
            case 2:
                version = chance.choice([0, 3, 5, 9, 2**63 - 1, 10**19])
                path.with_name(f"{version:020d}{path.name[20:]}").write_bytes(path.read_bytes())


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "commit bytes": _commit_bytes,
    "commit lines": _commit_lines,
    "schemas": _field("metaData", "schemaString"),
    "properties": _field("metaData", "configuration"),
    "partition columns": _field("metaData", "partitionColumns"),
    "protocols": _field("protocol", "writerFeatures"),
    "statistics": _field("add", "stats"),
    "partition values": _field("add", "partitionValues"),
    "sizes": _field("add", "size"),
    "vectors": _field("add", "deletionVector"),
    "removed": _field("remove", "partitionValues"),
    "paths": _path,
    "data files": _data_file,
    "other schemas": _other_schema,
    "checkpoints and hints": _log_file,
    "names": _names,
}
# With these the rows that an operation finds need not be those that it should.
LYING = {"statistics", "commit lines", "commit bytes", "checkpoints and hints", "other schemas"}

# --- jobs and their models --------------------------------------------------------------------------------------------


def _is(test: Callable[[Any], bool]) -> Callable[[dict[str, Any]], bool]:
    return lambda row: row["id"] is not None and test(row["id"])


_COLUMNS = "CAST(id AS BIGINT) AS id, CAST('2024-01-01' AS DATE) AS day, 'm' AS name, 1.5D AS amount"
_ONE = {"sql": f"SELECT {_COLUMNS} FROM VALUES (900) AS v(id)"}
_TWO = {"sql": f"SELECT {_COLUMNS} FROM VALUES (1), (900) AS v(id)"}
_CLAUSES = [
    {"when": "matched", "then": "update", "set": {"name": "s.name"}},
    {"when": "not_matched", "then": "insert", "values": "*"},
]
_NEW = {"id": 900, "day": dt.date(2024, 1, 1), "name": "m", "amount": 1.5}


def _changed(found: _Rows, test: Callable[[dict[str, Any]], bool], name: str) -> _Rows:
    return [row | {"name": name} if test(row) else row for row in found]


def _with_new(found: _Rows) -> _Rows:
    """And the new row, with nothing in the columns that it does not have."""
    return [*found, {**dict.fromkeys(found[0] if found else ()), **_NEW}]


def _merged(found: _Rows) -> _Rows:
    changed = _changed(found, _is(lambda value: value == 1), "m")
    missing = [row for row in _with_new(found)[-1:] if not any(_is(lambda value: value == 900)(each) for each in found)]
    ones = [row for row in found if _is(lambda value: value == 1)(row)]
    return [*changed, *missing, *([] if ones else [row | {"id": 1} for row in _with_new(found)[-1:]])]


JOBS: dict[str, tuple[dict[str, Any], Callable[[_Rows], _Rows]]] = {
    "write": ({"source": _ONE}, _with_new),
    "update": (
        {"set": {"name": "'u'"}, "predicate": "id < 5"},
        lambda found: _changed(found, _is(lambda value: value < 5), "u"),
    ),
    "delete": (
        {"predicate": "id >= 25"},
        lambda found: [row for row in found if not _is(lambda value: value >= 25)(row)],
    ),
    "merge": ({"source": _TWO, "on": "t.id = s.id", "clauses": _CLAUSES}, _merged),
    "optimize": ({}, lambda found: found),
    "vacuum": ({"retention_hours": 0, "check_retention": False}, lambda found: found),
}
