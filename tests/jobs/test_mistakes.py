"""Alone in showing that simple mistakes are refused before Spark starts, with a suggestion, for each operation and each
of its texts. That nothing else is refused: tests/jobs/sql/test_certain_mistakes.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.exactly_once.transactions import work_folder
from airflow_txlog.jobs.run import run_job
from tests.helpers.jobs import KEY, application, error_of, files_on_disk, rows
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec

STRUCT = pa.table({"id": [1], "n": [{"x": 1, "y": 2}], "s": ["a"], "t": ["b"]})


class Asked(Exception):
    """The job needs a Spark."""


def job(table: Table, operation: str, arguments: dict[str, Any], **more: Any) -> JobResult:
    """Run a job until it needs Spark."""
    spec = job_spec(operation=operation, table_uri=table.uri, arguments=arguments)
    return run_job(spec, None, start=asked, **more)


def asked() -> Any:
    raise Asked


def refusal(table: Table | str, operation: str, arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the error of a job that needs no Spark, and stages nothing."""
    uri = table if isinstance(table, str) else table.uri
    before = files_on_disk(table) if isinstance(table, Table) else None
    spec = job_spec(operation=operation, table_uri=uri, arguments=arguments, **more)
    error = error_of(run_job(spec, None, start=asked))
    assert "Asked" not in error["message"], error
    assert not isinstance(table, Table) or files_on_disk(table) == before
    return error


def asks(result: JobResult) -> bool:
    """Return whether a job needs Spark, because it has no mistake that is found before."""
    return "Asked" in error_of(result)["message"]


def merge(**given: Any) -> dict[str, Any]:
    """A merge that only Spark can do, of a source whose columns only Spark knows, unless others are given."""
    update = {"when": "matched", "then": "update", "set": {"name": "upper(s.name)"}}
    return {"source": {"sql": "SELECT 1"}, "on": "t.id = s.id", "clauses": [update], **given}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make_table(tmp_path / "t", rows(10), partition_by=["day"])


@pytest.fixture
def source(tmp_path: Path) -> dict[str, Any]:
    """Parquet files that a merge may read; `unknown` is no column of the table."""
    pq.write_table(rows(3).append_column("extra", pa.array([1, 2, 3])), tmp_path / "in.parquet")
    return {"format": "parquet", "path": str(tmp_path / "in.parquet")}


UPDATE = {"when": "matched", "then": "update"}
INSERT = {"when": "not_matched", "then": "insert"}
LEFT = {"when": "not_matched_by_source", "then": "delete"}


def test_a_wrong_alias_is_refused_with_the_aliases_and_the_columns_of_each_side(
    table: Table, source: dict[str, Any]
) -> None:
    error = refusal(table, "merge", merge(source=source, on="target.id = source.id"))
    assert error["message"] == (
        "The text 'target.id = source.id' names 'target.id', and no column and no rows that it sees are called "
        "'target'. "
        "In a MERGE the table is called t and the source s: write t.name or s.name (target_alias and source_alias set "
        "these names). The columns of the table are: id, day, name, amount; those of the source are: id, day, "
        "name, amount, extra. Nothing was read."
    )
    assert error["facts"]["column"] == "target.id"


@pytest.mark.parametrize(
    ("operation", "arguments", "column", "message"),
    [
        ("delete", {"predicate": "naem = 'x'"}, "naem", "Did you mean 'name'?"),
        ("delete", {"predicate": "lower(NAEM) = 'x' OR amuont IS NULL"}, "NAEM", "Did you mean 'name'?"),
        ("delete", {"predicate": "txlog_rows.idd = 1"}, "txlog_rows.idd", "Did you mean 'id'?"),
        ("delete", {"predicate": "month = '2024-01'"}, "month", "The columns of the table are: id, day, name, amount."),
        ("delete", {"predicate": "id = 1", "partition_predicate": "id = 1"}, "id", "partition columns only (day)"),
        ("delete", {"predicate": None, "partition_predicate": "year(dya) = 1"}, "dya", "Did you mean 'day'?"),
        ("delete", {"predicate": None, "keys": {"column": "idd", "values": [1]}}, "idd", "Did you mean 'id'?"),
        ("alter", {"add_constraints": {"short": "length(naem) < 9"}}, "naem", "Did you mean 'name'?"),
        ("update", {"set": {"name": "upper(naem)"}}, "naem", "called t. target_alias sets this name."),
        ("update", {"set": {"name": "removed"}}, "removed", """put it into quotes: "'removed'". The"""),
        ("update", {"set": {"name": "target.name"}}, "target.name", "no rows that it sees are called 'target'."),
        ("delete", {"predicate": "t.id = 1"}, "t.id", "called 't'. Write the column without an alias: id."),
        ("update", {"set": {"naem": "upper(name)"}}, "naem", "Did you mean 'name'?"),
        ("update", {"set": {"name": "upper(name)"}, "predicate": "t.idd = 1"}, "t.idd", "Did you mean 'id'?"),
        ("optimize", {"zorder_by": ["naem"]}, "naem", "Did you mean 'name'?"),
        ("optimize", {"partition_predicate": "upper(name) = 'A'"}, "name", "partition columns only (day)"),
        ("merge", merge(on="t.idd = s.id"), "t.idd", "Did you mean 'id'?"),
        ("merge", merge(source={"sql": "SELECT t FROM range(3)"}, on="t.idd = s.id"), None, None),
        ("merge", merge(on="target.id = source.id"), "target.id", "In a MERGE the table is called t and the source s"),
        ("merge", merge(source={"sql": "SELECT target FROM range(3)"}, on="target.id = s.id"), None, None),
        ("merge", merge(source={"sql": "SELECT inline(f('target')) FROM range(3)"}, on="target.id = s.id"), None, None),
        ("merge", merge(source={"sql": "SELECT id, inline(f(1)) FROM range(3)"}, on="target.id = s.id"), None, None),
        ("merge", merge(source={"sql": "SELECT * FROM VALUES (f(1))"}, on="col1.a = s.id"), None, None),
        ("merge", merge(source={"sql": "TABLE r"}, on="target.id = s.id"), None, None),
        ("merge", merge(clauses=[{**UPDATE, "set": {"naem": "s.name"}}]), "naem", "Did you mean 'name'?"),
        ("merge", merge(clauses=[{**UPDATE, "set": {"t.naem": "s.name"}}]), "t.naem", "does not have"),
        ("merge", merge(clauses=[{**UPDATE, "set": "*", "condition": "t.idd > 1"}]), "t.idd", "Did you mean 'id'?"),
        ("merge", merge(clauses=[{**INSERT, "values": {"idd": "s.id"}}]), "idd", "Did you mean 'id'?"),
        ("merge", merge(clauses=[{**LEFT, "condition": "naem = 'x'"}]), "naem", "Did you mean 'name'?"),
        ("merge", merge(partition_predicate="year(dya) = 1"), "dya", "Did you mean 'day'?"),
        ("upsert", {"source": {"sql": "SELECT 1"}, "keys": ["idd"]}, "idd", "Did you mean 'id'?"),
        ("upsert", {"source": {"sql": "SELECT 1"}, "keys": ["id"], "columns": ["naem"]}, "naem", "mean 'name'?"),
        (
            "write",
            {"source": {"sql": "SELECT 1"}, "mode": "overwrite", "replace_where": "naem = 'x'"},
            "naem",
            "Did you mean 'name'?",
        ),
        (
            "write",
            {"source": {"sql": "SELECT 1"}, "mode": "overwrite", "partition_predicate": "naem = 'x'"},
            "naem",
            "partition columns only (day)",
        ),
    ],
)  # fmt: skip
def test_a_misspelt_column_is_refused_before_spark_is_asked(
    table: Table, operation: str, arguments: dict[str, Any], column: str | None, message: str | None
) -> None:
    if column is None:
        assert asks(job(table, operation, arguments)), "`t` may be a struct of the source"
        return
    error = refusal(table, operation, arguments)
    assert error["type"] == "UnknownColumn"
    assert error["facts"]["column"] == column
    assert message is not None
    assert message in error["message"]


@pytest.mark.parametrize(
    ("operation", "arguments", "words"),
    [
        ("delete", {"predicate": "id = 1"}, "columns belongs into predicate. Nothing"),
        ("delete", {"predicate": None, "keys": {"column": "id", "values": [1]}}, "it names name. Nothing"),
        ("update", {"set": {"name": "'x'"}}, "columns belongs into predicate. Nothing"),
        ("merge", merge(), "columns belongs into on, or into the condition of a clause. Nothing"),
        ("write", {"source": {"sql": "SELECT 1"}, "mode": "overwrite"}, "columns belongs into replace_where. Nothing"),
        ("write", {"source": {"sql": "SELECT 1"}}, "it names name. Nothing"),
        ("optimize", {}, "it names name. Nothing"),
    ],
)
def test_a_condition_beyond_the_partitions_is_sent_to_a_parameter_that_the_operator_has(
    table: Table, operation: str, arguments: dict[str, Any], words: str
) -> None:
    error = refusal(table, operation, {**arguments, "partition_predicate": "upper(name) = 'A'"})
    assert words in error["message"]


@pytest.mark.parametrize(
    ("more", "column", "message"),
    [
        ({"on": "t.id = s.idd"}, "s.idd", "Did you mean 'id'?"),
        ({"on": "t.id = source.id"}, "source.id", "no rows that it sees are called 'source'."),
        ({"on": "t.id = source.id"}, "source.id", "the table is called t and the source s: write t.name or s.name"),
        ({"clauses": [{**INSERT, "condition": "t.id > 1", "values": "*"}]}, "t.id", "the source s"),
        ({"clauses": [{**LEFT, "condition": "extra > 1"}]}, "extra", "of the table are"),
        ({"clauses": [{**UPDATE, "set": {"name": "upper(s.naem)"}}]}, "s.naem", "Did you mean 'name'?"),
        ({"schema_evolution": True, "clauses": [{**UPDATE, "set": {"extraa": "1 + 1"}}]}, "extraa", "'extra'"),
    ],
)
def test_the_columns_of_a_source_that_can_be_read_are_known(
    table: Table, source: dict[str, Any], more: dict[str, Any], column: str, message: str
) -> None:
    error = refusal(table, "merge", merge(source=source, **more))
    assert error["type"] == "UnknownColumn"
    assert error["facts"]["column"] == column
    assert message in error["message"]


def test_a_name_that_both_sides_have_is_refused_with_the_aliases(table: Table, source: dict[str, Any]) -> None:
    error = refusal(table, "merge", merge(source=source, on="id = s.id AND upper(t.name) = 'A'"))
    assert error["type"] == "InvalidPredicate"
    assert "'id', which both the table and the source have" in error["message"]
    assert "the table is called t and the source s" in error["message"]


def test_the_keys_of_a_source_are_looked_for_among_its_columns(table: Table, source: dict[str, Any]) -> None:
    error = refusal(table, "upsert", {"source": {**source, "schema": None}, "keys": ["id"], "schema_evolution": True,
                                   "columns": ["naem"]})  # fmt: skip
    assert (error["type"], error["facts"]["column"]) == ("UnknownColumn", "naem")
    keys = {"column": "id", "source": {**source}, "source_column": "nmae"}
    error = refusal(table, "delete", {"predicate": None, "keys": keys, "partition_predicate": "year(day) = 1"})
    assert "has no column 'nmae'. Did you mean 'name'?" in error["message"]


@pytest.mark.parametrize(
    ("operation", "arguments", "kind", "message"),
    [
        ("delete", {"predicate": "id = "}, "InvalidPredicate", "nothing comes after ="),
        ("delete", {"predicate": "(lower(name) = 'a'"}, "InvalidPredicate", "has a ( without its )"),
        ("delete", {"predicate": "name = 'O"}, "InvalidPredicate", "closing quote"),
        ("delete", {"predicate": "id = 1 mail = 2"}, "InvalidPredicate", "is missing before mail"),
        ("delete", {"predicate": "lowr(name) = 'a'"}, "UnsupportedPredicate", "Did you mean 'lower'?"),
        ("delete", {"predicate": "id = (SELECT 1)"}, "UnsupportedPredicate", "a subquery"),
        ("delete", {"predicate": "sum(id) = 1"}, "UnsupportedPredicate", "the aggregate function sum()"),
        ("delete", {"predicate": "lower(name) = :n"}, "InvalidPredicate", "needs a value for its parameter :n"),
        (
            "delete",
            {"predicate": "lower(name) = ':u'", "parameters": {"u": "x"}},
            "InvalidPredicate",
            "write :u without quotes",
        ),
        ("update", {"set": {"name": "upper("}}, "InvalidPredicate", "without its"),
        ("optimize", {"partition_predicate": "day = "}, "InvalidPredicate", "nothing comes after ="),
        ("merge", merge(on="t.id = s.id AND"), "InvalidPredicate", "nothing comes after AND"),
        ("merge", merge(clauses=[{**LEFT, "condition": "t.id >="}]), "InvalidPredicate", "nothing comes after >="),
        ("merge", merge(source={"sql": "SELECT 'a FROM b"}), "InvalidJobSpec", "closing quote"),
        ("write", {"source": {"sql": "SELECT * FROM usr", "views": {"us": {"table": "/t"}}}}, "InvalidJobSpec", "us"),
        ("write", {"source": {"sql": "SELECT * FROM a JOIN `b c` ON true"}}, "InvalidJobSpec", "reads 'a', and"),
        ("merge", merge(target_alias="x", source_alias="X", on="x.id = 1"), "InvalidJobSpec", "must differ"),
        ("write", {"source": {"sql": "SELECT 1"}, "partition_by": ["name"]}, "PartitionMismatch", "partition_by"),
        ("write", {"source": {"sql": "SELECT 1"}, "cluster_by": ["name"]}, "PartitionMismatch", "clustered by nothing"),
        ("optimize", {"full": True}, "InvalidJobSpec", "no clustering columns"),
    ],
)  # fmt: skip
def test_a_text_that_spark_cannot_read_is_refused_before_it_is_asked(
    table: Table, operation: str, arguments: dict[str, Any], kind: str, message: str
) -> None:
    error = refusal(table, operation, arguments)
    assert error["type"] == kind, error
    assert message in error["message"]


@pytest.mark.parametrize("operation", ["write", "upsert", "merge", "delete", "query", "table"])
@pytest.mark.parametrize("what", ["nothing", "an empty folder", "hidden files"])
def test_a_source_that_is_not_there_is_refused_before_spark_is_asked(
    table: Table, tmp_path: Path, operation: str, what: str
) -> None:
    folder = tmp_path / "in"
    if what != "nothing":
        folder.mkdir()
    if what == "hidden files":
        (folder / "_SUCCESS").touch()
        (folder / ".part.crc").touch()
    view = {"format": "csv", "path": str(folder), "options": {"header": "true"}}
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "write": ("write", {"source": view}),
        "upsert": ("upsert", {"source": view, "keys": ["id"]}),
        "merge": ("merge", merge(source=view)),
        "delete": ("delete", {"predicate": None, "keys": {"column": "id", "source": view}}),
        "query": ("write", {"source": {"sql": "SELECT * FROM v", "views": {"v": view}}}),
        "table": ("write", {"source": {"table": str(folder)}}),
    }
    error = refusal(table, *cases[operation])
    assert error["type"] == "SourceNotFound"
    assert str(folder) in error["message"]


def test_a_source_in_an_object_store_is_looked_for_too(table: Table, tmp_path: Path, shelf: str) -> None:
    def view(path: str) -> dict[str, Any]:
        return {"source": {"format": "csv", "path": f"{shelf}{tmp_path}/{path}"}}

    assert refusal(table, "write", view("in"))["type"] == "SourceNotFound"
    assert refusal(table, "write", view("in/*.csv"))["type"] == "SourceNotFound"
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("1\n")
    for there in ("in", "in/", "in/a.csv", "in/*.csv"):
        assert asks(job(table, "write", view(there))), there


def test_only_what_is_certain_is_refused_of_a_source(table: Table, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    of_schema = {"format": "csv", "path": str(tmp_path / "in"), "schema": "id long"}
    assert asks(
        run_job(job_spec(operation="write", table_uri=table.uri, arguments={"source": of_schema}), None, start=asked)
    )
    elsewhere = job_spec(operation="write", table_uri=table.uri, arguments={"source": {"format": "csv", "path": "/no"}})
    assert asks(run_job(elsewhere, None, start=asked, is_spark_here=False)), "the path is one of another machine"
    glob = {"format": "csv", "path": str(tmp_path / "in" / "*.csv"), "schema": "id long"}
    assert asks(
        run_job(job_spec(operation="write", table_uri=table.uri, arguments={"source": glob}), None, start=asked)
    )


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT m.from sender FROM (SELECT 1 AS from) m",
        "SELECT id, from sender, join joined FROM (SELECT 1 AS id, 2 AS from, 3 AS join)",
        "SELECT from sender FROM (SELECT 1 AS from)",
        "SELECT 1 + from total FROM (SELECT 1 AS from)",
    ],
)
def test_a_column_called_from_or_join_begins_no_clause(table: Table, sql: str) -> None:
    assert asks(job(table, "write", {"source": {"sql": sql}}))


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("delete", {"predicate": "reverse(NAME) = 'A' AND txlog_rows.`id` > 1 AND day < current_date"}),
        ("delete", {"predicate": "exists(array(id), each -> each = amount)"}),
        ("delete", {"predicate": "name RLIKE 'a' OR extract(doy FROM day) = 1 OR CAST(id AS foo) = 1"}),
        ("update", {"set": {"T.name": "upper(t.Name)", "amount": "DEFAULT"}, "predicate": "length(t.name) = 1"}),
        ("merge", merge(clauses=[{**UPDATE, "set": {"`name`": "concat(s.whatever, other)"}}])),
        ("merge", merge(schema_evolution=True, clauses=[{**UPDATE, "set": {"new": "s.new + t.new"}}])),
        ("upsert", {"source": {"sql": "SELECT 1"}, "keys": ["ID"], "columns": ["new"], "schema_evolution": True}),
        ("write", {"source": {"sql": "SELECT 1"}, "mode": "overwrite", "replace_where": "length(name) > 1"}),
        ("write", {"source": {"sql": "WITH a AS (SELECT 1) SELECT extract(day FROM b) FROM a"}}),
        ("write", {"source": {"sql": "SELECT * FROM range(3) r JOIN (VALUES (1)) v ON true"}}),
        ("optimize", {"partition_predicate": "weekofyear(DAY) = 20"}),
    ],
)
def test_a_job_without_a_mistake_asks_for_spark(table: Table, operation: str, arguments: dict[str, Any]) -> None:
    assert asks(job(table, operation, arguments))


@pytest.mark.parametrize(
    ("predicate", "mistake"),
    [
        ("sign(n.x) + 1 = 2", None),
        ("sign(n.z) + 1 = 2", "n.z"),
        ("sign(s.x) + 1 = 2", None),
        ("sign(n.x.y) + 1 = 2", None),
        ("sign(m.x) + 1 = 2", "m.x"),
    ],
)
def test_members_of_a_struct_are_known(tmp_path: Path, predicate: str, mistake: str | None) -> None:
    nested = make_table(tmp_path / "t", STRUCT)
    if mistake is None:
        assert asks(job(nested, "delete", {"predicate": predicate}))
    else:
        assert refusal(nested, "delete", {"predicate": predicate})["facts"]["column"] == mistake


def test_a_table_that_is_not_there_is_refused_before_spark_is_asked(tmp_path: Path) -> None:
    error = refusal(str(tmp_path / "none"), "merge", merge())
    assert error["type"] == "TableNotFound"


def test_a_new_table_has_the_partition_columns_that_the_job_names(tmp_path: Path) -> None:
    write = {"source": {"sql": "SELECT 1"}, "partition_by": ["day"], "partition_predicate": "year(dya) = 1"}
    assert refusal(str(tmp_path / "new"), "write", write)["facts"]["column"] == "dya"


def test_a_new_table_is_partitioned_by_columns_of_its_source(tmp_path: Path, source: dict[str, Any]) -> None:
    partitioned = {"source": source, "partition_by": ["dya"], "partition_predicate": "year(dya) = 1"}
    for write in (partitioned, {"source": source, "cluster_by": ["dya"], "properties": {"delta.constraints.a": "f()"}}):
        error = refusal(str(tmp_path / "new"), "write", write)
        assert error["type"] == "SchemaMismatch"
        assert "Did you mean 'day'?" in error["message"]


def test_an_append_only_table_is_refused_before_spark_is_asked(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(1), properties={"delta.appendOnly": "true"})
    assert refusal(table, "delete", {"predicate": "length(name) = 1"})["type"] == "AppendOnlyViolation"


def test_work_that_is_done_has_no_mistake(table: Table, tmp_path: Path) -> None:
    """Its source may be gone by the time of its retry."""
    source = tmp_path / "in.parquet"
    pq.write_table(rows(3, start=100), source)
    arguments: dict[str, Any] = {"source": {"format": "parquet", "path": str(source)}}
    spec = job_spec(operation="write", table_uri=table.uri, arguments=arguments, application=application())
    assert run_job(spec, None).status == "committed"
    source.unlink()
    assert run_job(spec, None, start=asked).status == "already_done"
    assert asks(run_job(spec, None, start=asked, always_starts=True)), "a cluster wants to be asked"
    assert error_of(run_job(spec.replace(application=None), None, start=asked))["type"] == "SourceNotFound"


def test_a_source_that_an_earlier_try_may_have_written_down_is_not_looked_for(table: Table, tmp_path: Path) -> None:
    view = {"format": "csv", "path": str(tmp_path / "gone.csv")}
    spec = job_spec(operation="merge", table_uri=table.uri, arguments=merge(source=view), application=application())
    spec = spec.replace(saved_work_key=KEY)
    assert error_of(run_job(spec, None, start=asked))["type"] == "SourceNotFound"
    folder = work_folder(table.uri, spec.application, KEY)
    assert folder is not None
    table.store.put_if_absent(f"{folder}/memory-of-an-earlier-try", b"")
    assert asks(run_job(spec, None, start=asked))


@pytest.mark.parametrize(
    "text", ["day = 2024-01-31", "id > 1 AND NOT txlog_rows.day IN (DATE '2024-01-01', 2024-01-31)"]
)
def test_a_date_without_quotes_is_named_as_a_subtraction(table: Table, text: str) -> None:
    error = refusal(table, "delete", {"predicate": text})
    assert error["type"] == "InvalidPredicate"
    assert "2024-01-31, which is a subtraction: write DATE '2024-01-31', or a parameter" in error["message"]
    for unclear in ("id = 2024-01-31", "day IN ('2024-01-01', 2024-01-31)", "day = 2024 - 1", "day = 31-12-2024"):
        assert asks(job(table, "delete", {"predicate": f"{unclear} AND soundex(name) = 'A'"}))
    # In these rows t may be a struct.
    assert asks(job(table, "merge", merge(source={"sql": "SELECT t FROM range(3)"}, on="t.day = 2024-01-31")))


@pytest.mark.parametrize(
    "query",
    [
        "SELECT from_json(note, 't STRUCT<day: DATE>').* FROM v",
        "SELECT id FROM v UNION ALL TABLE v",
        "FROM v |> SELECT id |> EXTEND 1 AS x",
        "SELECT * FROM range(3)",
    ],
)
def test_what_may_be_a_struct_of_the_alias_is_no_certain_mistake(table: Table, tmp_path: Path, query: str) -> None:
    (tmp_path / "in.csv").write_text("id,note\n1,a\n")
    of_files = {"format": "csv", "path": f"{tmp_path}/in.csv", "options": {"header": "true"}}
    views = {"v": of_files} if " v" in query else {}
    assert asks(job(table, "merge", merge(source={"sql": query, "views": views}, on="t.naem = s.id")))


def test_an_expression_is_no_text_that_lacks_its_quotes(table: Table) -> None:
    assert "put it into quotes" not in refusal(table, "update", {"set": {"name": "upper(naem)"}})["message"]


@pytest.mark.parametrize("ending", ["csv", "json", "csv.gz"])
def test_a_file_of_another_format_than_parquet_is_named_with_its_format(table: Table, ending: str) -> None:
    path = Path(table.uri.removeprefix("file://")).parent / f"in.{ending}"
    path.write_text("id,day\n1,2024-01-01\n")
    lines: list[str] = []
    job(table, "write", {"source": {"format": "parquet", "path": str(path)}}, log=lines.append)
    assert any(line.endswith(f'the format is parquet: pass format="{ending[:4].rstrip(".")}"') for line in lines), lines


def test_a_file_in_the_place_of_the_table_is_called_a_file(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("id")
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"id": [1]}), tmp_path / "in" / "a.parquet")
    source = {"format": "parquet", "path": str(tmp_path / "in")}
    for operation, arguments in (("delete", {"predicate": "id = 1"}), ("write", {"source": source, "create": False})):
        error = refusal(str(tmp_path / "t"), operation, arguments)
        assert (error["type"], "is a file, and a table is a folder." in error["message"]) == ("TableNotFound", True)
