"""Alone in showing which merges and upserts start no Spark, that these leave the rows that the texts ask for, and that
any other has changed nothing before it asks for Spark."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import JobSpec
from airflow_txlog.contract.operations.records import looks_plain
from airflow_txlog.engine import Table
from airflow_txlog.jobs.files import scan
from airflow_txlog.jobs.run import run_job
from airflow_txlog.storage.limits import LOCAL_FILE_BYTES, SMALL_JOB, Limits
from tests.helpers.jobs import application, committed, delete, error_of, files_on_disk, insert, run, update
from tests.helpers.rows import append, bag, make_table
from tests.helpers.specs import job_spec

ON = "t.k = s.k AND t.p = s.p"
SCHEMA = pa.schema([("k", pa.int64()), ("p", pa.string()), ("v", pa.string()), ("n", pa.int32())])
OLD = [(1, "a", "old", 1), (2, "a", "old", 2), (None, "a", "old", 3)]
LATER = [(2, "b", "old", 4), (3, "b", None, 5)]
# One that matches in each partition, a null that matches nothing, and one that no row has.
NEW = [(2, "a", "new", 20), (2, "b", "new", 40), (None, "a", "new", 60), (9, "c", None, 90)]


def table_of(*rows: tuple[Any, ...]) -> pa.Table:
    columns = zip(*rows, strict=True)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA)


def target_in(folder: Path, **more: Any) -> Table:
    table = make_table(folder, table_of(*OLD), **more)
    append(table, table_of(*LATER))
    return table


def source_in(folder: Path, rows: pa.Table | None = None) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    pq.write_table(table_of(*NEW) if rows is None else rows, folder / "a.parquet")
    return {"format": "parquet", "path": str(folder)}


def merge(table: Table, source: dict[str, Any], *clauses: dict[str, Any], on: str = ON, **more: Any) -> Any:
    return run(None, "merge", table, source=source, on=on, clauses=list(clauses), **more)


def why(result: Any) -> str:
    """Why a job that is tried without Spark needs it."""
    error = error_of(result)
    assert error["facts"].get("needs_spark"), error
    return str(error["message"])


KEPT = [(1, "a", "old", 1), (None, "a", "old", 3), (3, "b", None, 5)]
INSERTED = [(None, "a", "new", 60), (9, "c", None, 90)]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"partition_by": ["p"]},
        {"properties": {"delta.enableDeletionVectors": "true"}},
        {"properties": {"delta.enableChangeDataFeed": "true"}, "partition_by": ["p"]},
        {"properties": {"delta.columnMapping.mode": "name"}},
    ],
    ids=str,
)
def test_a_merge_of_columns_that_are_equal_needs_no_spark(tmp_path: Path, more: dict[str, Any]) -> None:
    table = target_in(tmp_path / "t", **more)
    lines: list[str] = []
    result = committed(merge(table, source_in(tmp_path / "in"), update("*"), insert("*"), log=lines.append))
    assert bag(table.to_arrow()) == bag(table_of(*KEPT, (2, "a", "new", 20), (2, "b", "new", 40), *INSERTED))
    assert result.metrics["numTargetRowsUpdated"] == 2
    assert result.metrics["numTargetRowsInserted"] == 2
    assert result.metrics["numSourceRows"] == 4
    assert any(line.startswith("without Spark: ") for line in lines)
    assert table.history(1)[0]["operation"] == "MERGE"
    if "delta.enableChangeDataFeed" in more.get("properties", {}):
        changed = table.changes(table.latest_version(), table.latest_version())
        kinds = changed.column("_change_type").to_pylist()
        assert sorted(kinds) == ["insert"] * 2 + ["update_postimage"] * 2 + ["update_preimage"] * 2


def test_clauses_may_delete_take_some_columns_and_bring_constants(tmp_path: Path) -> None:
    source = source_in(tmp_path / "in")
    table = target_in(tmp_path / "one")
    assigned = {"n": "s.n", "v": ":said"}
    values = {"k": "s.k", "p": "`s`.`P`", "n": "7"}
    on = "k = s.k AND t.p = s.p"
    committed(merge(table, source, update(assigned), insert(values), parameters={"said": "it's"}))
    expected = [*KEPT, (2, "a", "it's", 20), (2, "b", "it's", 40), (None, "a", None, 7), (9, "c", None, 7)]
    assert bag(table.to_arrow()) == bag(table_of(*expected))
    assert "'k', which both the table and the source have" in error_of(merge(table, source, delete(), on=on))["message"]
    other = target_in(tmp_path / "two", properties={"delta.enableDeletionVectors": "true"})
    committed(merge(other, source, delete()))
    assert bag(other.to_arrow()) == bag(table_of(*KEPT))


def test_clauses_calculate_with_columns_and_members_of_both_sides(tmp_path: Path) -> None:
    struct = pa.struct({"a": pa.int32(), "b": pa.string()})
    schema = pa.schema([("k", pa.int64()), ("st", struct), ("n", pa.int32())])
    old = [{"k": k, "st": {"a": k, "b": "x"}, "n": 10 * k} for k in range(4)]
    new = [{"k": k, "st": {"a": 2, "b": "y"}, "n": k} for k in range(1, 5)]
    table = make_table(tmp_path / "t", pa.Table.from_pylist(old, schema))
    source = source_in(tmp_path / "in", pa.Table.from_pylist(new, schema))
    changed = {"n": "t.n + s.n * 2", "st": "named_struct('a', t.st.a, 'b', concat(s.st.b, upper(t.st.b)))"}
    clauses = [
        update(changed, "t.n < s.n * 10 + 1 AND t.k <> 2"),
        delete("coalesce(t.n, 0) % 20 = 0"),
        insert({"k": "s.k", "n": "CASE WHEN s.st.a > 1 THEN s.n + 1 END"}),
    ]
    committed(merge(table, source, *clauses, on="t.k = s.k"))
    expected = [
        old[0],
        *({"k": k, "st": {"a": k, "b": "yX"}, "n": 12 * k} for k in (1, 3)),
        {"k": 4, "st": None, "n": 5},
    ]
    assert bag(table.to_arrow()) == bag(pa.Table.from_pylist(expected, schema))
    assert "a condition has a member of a struct" in why(merge(table, source, delete("t.st.a = 1"), on="t.k = s.k"))


@pytest.mark.parametrize(
    "on",
    [
        "t.k = s.k AND t.p = s.p AND t.p = 'b'",
        "t.n >= 4 AND t.k = s.k AND t.p = s.p AND t.v IS NOT NULL",
        "t.k = s.k AND s.p = t.p AND NOT (t.p IN ('a', 'z') OR t.v IS NULL)",
    ],
)
@pytest.mark.parametrize(
    "more",
    [{}, {"partition_by": ["p"]}, {"properties": {"delta.enableDeletionVectors": "true"}}],
    ids=["copies", "partitions", "deletion vectors"],
)
def test_on_may_also_demand_something_of_the_table_alone(tmp_path: Path, on: str, more: dict[str, Any]) -> None:
    table = target_in(tmp_path / "t", **more)
    result = committed(merge(table, source_in(tmp_path / "in"), update("*"), insert("*"), on=on))
    # The source's row of the other partition matches nothing now, and is inserted.
    expected = [*KEPT, (2, "a", "old", 2), (2, "a", "new", 20), (2, "b", "new", 40), *INSERTED]
    assert bag(table.to_arrow()) == bag(table_of(*expected))
    assert result.metrics["numTargetRowsUpdated"] == 1


def test_a_parameter_that_no_text_uses_is_refused(tmp_path: Path) -> None:
    table, source = target_in(tmp_path / "t"), source_in(tmp_path / "in")
    error = error_of(merge(table, source, update({"v": ":said", "n": "s.n"}), parameters={"said": "x", "more": 1}))
    assert error["type"] == "InvalidPredicate"
    assert ":more" in error["message"]


def test_the_rows_of_a_table_are_merged_without_spark(tmp_path: Path) -> None:
    table = target_in(tmp_path / "t")
    staged = make_table(tmp_path / "staged", table_of(*NEW[:2]), properties={"delta.enableDeletionVectors": "true"})
    append(staged, table_of(*NEW[2:]))
    committed(run(None, "delete", staged, predicate="k = 9"))
    committed(merge(table, {"table": staged.uri}, update("*"), insert("*")))
    expected = [*KEPT, (2, "a", "new", 20), (2, "b", "new", 40), (None, "a", "new", 60)]
    assert bag(table.to_arrow()) == bag(table_of(*expected))
    # Of itself every row with a key is updated, and the one without is inserted.
    result = committed(merge(table, {"table": table.uri}, update("*"), insert("*")))
    assert result.details.lineage is not None
    assert result.details.lineage.versions == {table.uri: 3}
    assert bag(table.to_arrow()) == bag(table_of(*expected, (None, "a", "old", 3), (None, "a", "new", 60)))


def test_a_source_without_a_row_changes_nothing(tmp_path: Path) -> None:
    table, source = target_in(tmp_path / "t"), source_in(tmp_path / "in", SCHEMA.empty_table())
    assert merge(table, source, update("*"), insert("*")).status == "nothing_to_do"
    assert table.latest_version() == 2


def test_only_the_partitions_that_the_source_names_are_read(tmp_path: Path) -> None:
    table = target_in(tmp_path / "t", partition_by=["p"])
    source = source_in(tmp_path / "in", table_of((3, "b", "new", 50)))
    result = committed(merge(table, source, update("*"), insert("*")))
    assert result.files["pruned"] == 1
    assert bag(table.to_arrow()) == bag(table_of(*OLD, LATER[0], (3, "b", "new", 50)))


NEEDS: list[tuple[dict[str, Any], str]] = [
    ({"on": "t.k = s.k OR t.p = s.p"}, "ON is more than equalities"),
    ({"on": "t.k <=> s.k"}, "ON is more than equalities"),
    ({"on": "t.k = s.n"}, "ON is more than equalities"),
    ({"on": "t.k = s.k AND s.p = 'a'"}, "ON is more than equalities"),
    ({"on": "t.k = s.k AND reverse(t.p) = 'a'"}, "ON is more than equalities"),
    ({"on": "t.k = s.k AND (t.p = 'a' OR s.n > 1)"}, "ON is more than equalities"),
    (
        {"on": "t.k = s.k AND t.p = 'a'", "clauses": [delete(when="not_matched_by_source")]},
        "ON is more than equalities",
    ),
    ({"on": "t.k = abs(s.k)"}, "ON is more than equalities"),
    ({"on": "t.k = s.k -- \\"}, "ON is more than equalities"),
    # A word that is a value, or a function, to Spark, whatever is called so.
    ({"on": "true.k = s.k", "target_alias": "true"}, "ON is more than equalities"),
    ({"on": "t.k = null.k", "source_alias": "null"}, "ON is more than equalities"),
    ({"on": "current_path.k = s.k", "target_alias": "current_path"}, "ON is more than equalities"),
    ({"clauses": [update({"v": "s.v -- \\"})]}, "a value has a backslash at its end"),
    ({"clauses": [update({"v": "reverse(s.v)"})]}, "a value has the function reverse()"),
    (
        {"clauses": [update({"v": "s.n"})]},
        "a value has the source's column n (int) for the table's column v (string)",
    ),
    ({"clauses": [update({"v": "DEFAULT"})]}, "a value has the assigned column v"),
    ({"clauses": [update("*", condition="reverse(s.v) = 'a'")]}, "a condition has the function reverse()"),
    ({"schema_evolution": True}, "evaluates SQL"),
    ({"source": {"sql": "SELECT 1 AS k"}}, "evaluates SQL"),
]


@pytest.mark.parametrize(("more", "reason"), NEEDS, ids=[str(more) for more, _ in NEEDS])
def test_what_only_spark_can_judge_or_compute_needs_it(tmp_path: Path, more: dict[str, Any], reason: str) -> None:
    table = target_in(tmp_path / "t")
    arguments = {"source": source_in(tmp_path / "in"), "on": ON, "clauses": [update("*"), insert("*")]} | more
    before = files_on_disk(table)
    assert reason in why(run(None, "merge", table, **arguments))
    assert files_on_disk(table) == before


@pytest.mark.parametrize(
    "more",
    [
        {"configuration": {"delta.constraints.positive": "sqrt(n) > 0"}},
        {"schema": pa.schema([SCHEMA[0], SCHEMA[1], SCHEMA[2], pa.field("n", pa.int32(), nullable=False)])},
    ],
    ids=["constraint", "not null"],
)
def test_rules_of_the_table_are_judged_by_spark(tmp_path: Path, more: dict[str, Any]) -> None:
    rows = table_of(*OLD)
    if "schema" in more:
        table = make_table(tmp_path / "t", rows.cast(more["schema"]))
        clauses = [insert({"k": "s.k", "p": "s.p"})]
        reason = "NOT NULL"
    else:
        table = make_table(tmp_path / "t", rows, properties=more["configuration"])
        clauses, reason = [update("*"), insert("*")], "the table has rules for new rows"
    assert reason in why(merge(table, source_in(tmp_path / "in"), *clauses))


def test_a_null_for_a_column_that_is_not_null_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([SCHEMA[0], SCHEMA[1], pa.field("v", pa.string(), nullable=False), SCHEMA[3]])
    table = make_table(tmp_path / "t", table_of(*OLD).cast(schema))
    error = error_of(merge(table, source_in(tmp_path / "in"), update("*"), insert("*")))
    assert error["type"] == "ConstraintViolation"
    assert table.latest_version() == 1


def test_more_than_the_limit_needs_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = target_in(tmp_path / "t")
    monkeypatch.setenv(SMALL_JOB.setting, str(LOCAL_FILE_BYTES * 3 // 2))
    before = files_on_disk(table)
    assert SMALL_JOB.setting in why(merge(table, source_in(tmp_path / "in"), update("*"), insert("*")))
    assert files_on_disk(table) == before


def test_a_source_with_a_column_that_no_file_holds_needs_spark(tmp_path: Path) -> None:
    table, staged = target_in(tmp_path / "t"), make_table(tmp_path / "staged", table_of(*NEW))
    tx = staged.begin()
    assert tx.metadata is not None
    schema = json.loads(tx.metadata.schema_string or "")
    schema["fields"].append({"name": "nothing", "type": "void", "nullable": True, "metadata": {}})
    tx.set_metadata(msgspec.structs.replace(tx.metadata, schema_string=json.dumps(schema)))
    tx.commit("ADD COLUMNS")
    before = files_on_disk(table)
    assert "of the type void" in why(merge(table, {"table": staged.uri}, update("*"), insert("*")))
    assert files_on_disk(table) == before


def test_rows_that_spark_has_to_bring_together_need_it_before_new_files_are_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source of several buckets, whose rows may land in any partition."""
    limits = Limits(bucket_bytes=1)
    # A task for each file of the source, so that each file of what is written down is a bucket.
    monkeypatch.setattr(scan, "task_count", lambda parallelism, sizes: len(sizes))
    table, source = target_in(tmp_path / "t", partition_by=["p"]), source_in(tmp_path / "in")
    pq.write_table(table_of((8, "d", "new", 80)), tmp_path / "in" / "b.parquet")
    staged: list[object] = []
    monkeypatch.setattr("airflow_txlog.jobs.rows.staging.stage", lambda *_, **__: staged.append(1) or [])
    before = files_on_disk(table)
    assert "more than one task may write" in why(merge(table, source, update("*"), insert("*"), limits=limits))
    assert not staged
    assert files_on_disk(table) == before


def test_a_bare_name_that_spark_takes_for_a_function_is_no_column(tmp_path: Path) -> None:
    rows = pa.table({"k": [1], "current_path": ["a"]})
    table = make_table(tmp_path / "t", pa.table({"k": [1], "v": ["old"]}))
    source = source_in(tmp_path / "in", rows)
    assert "the name current_path" in why(merge(table, source, update({"v": "current_path"}), on="t.k = s.k"))
    committed(merge(table, source, update({"v": "`current_path`"}), on="t.k = s.k"))
    assert table.to_arrow().to_pylist() == [{"k": 1, "v": "a"}]


def test_a_bare_name_that_is_a_column_and_a_clock_needs_spark(tmp_path: Path) -> None:
    day = pa.schema([("k", pa.int64()), ("current_date", pa.date32())])
    rows = pa.table({"k": [1], "current_date": [dt.date(2026, 1, 1)]}, day)
    table = make_table(tmp_path / "t", rows)
    source = source_in(tmp_path / "in", rows)
    result = merge(table, source, update({"k": "s.k", "current_date": "current_date"}), on="t.k = s.k")
    assert "a column and a clock" in why(result)


# --- upserts --------------------------------------------------------------------------------------------------------


def upsert(table: Table, source: dict[str, Any], *keys: str, **more: Any) -> Any:
    return run(None, "upsert", table, source=source, keys=list(keys), **more)


def test_an_upsert_by_plain_keys_needs_no_spark(tmp_path: Path) -> None:
    table = target_in(tmp_path / "t")
    source = source_in(tmp_path / "in", table_of(NEW[0], NEW[1], NEW[3]))
    result = committed(upsert(table, source, "K", "p", columns=["n"]))
    expected = [*KEPT, (2, "a", "old", 20), (2, "b", "old", 40), (9, "c", None, 90)]
    assert bag(table.to_arrow()) == bag(table_of(*expected))
    assert (result.metrics["numTargetRowsUpdated"], result.metrics["numTargetRowsInserted"]) == (2, 1)


def numbers(*values: str | None) -> pa.Array:
    return pa.array(values, pa.string()).cast(pa.decimal128(38, 2))


@pytest.mark.parametrize(
    ("held", "given"),
    [
        (numbers("1.10", "-2.00", "3.30", "12345678901234567.01"), numbers("-2.00", "12345678901234567.01", "9.00")),
        (pa.array([b"a", b"\xff", b"c", b"a\x00"]), pa.array([b"\xff", b"a\x00", b"a\x00\x00"])),
    ],
    ids=["decimal", "binary"],
)
def test_decimals_and_bytes_are_keys(tmp_path: Path, held: pa.Array, given: pa.Array) -> None:
    table = make_table(tmp_path / "t", pa.table({"k": held[:2], "v": ["old"] * 2}))
    append(table, pa.table({"k": held[2:], "v": ["old"] * 2}))
    result = committed(upsert(table, source_in(tmp_path / "in", pa.table({"k": given, "v": ["new"] * 3})), "k"))
    both = [held[0], held[2], *given]
    assert bag(table.to_arrow()) == bag(pa.table({"k": pa.array(both, held.type), "v": ["old"] * 2 + ["new"] * 3}))
    assert (result.metrics["numTargetRowsUpdated"], result.metrics["numTargetRowsInserted"]) == (2, 1)


@pytest.mark.parametrize(
    ("held", "given"),
    [(numbers("1.10", "-2.00"), numbers("-2.00", "9.00")), (pa.array([b"a", b"\xff"]), pa.array([b"\xff", b"z"]))],
    ids=["decimal", "binary"],
)
def test_decimals_and_bytes_identify_rows_of_a_merge_of_a_snapshot_and_of_replaced_rows(
    tmp_path: Path, held: pa.Array, given: pa.Array
) -> None:
    source = source_in(tmp_path / "in", pa.table({"k": given, "v": ["new"] * 2}))
    new, one = [*given], held[0]

    def rows_after(operation: str, **arguments: Any) -> Any:
        table = make_table(tmp_path / operation, pa.table({"k": held, "v": ["old"] * 2}))
        committed(run(None, operation, table, source=source, **arguments))
        return bag(table.to_arrow())

    both = bag(pa.table({"k": pa.array([one, *new], held.type), "v": ["old", "new", "new"]}))
    assert rows_after("merge", on="t.k = s.k", clauses=[update({"v": "s.v"}), insert("*")]) == both
    assert rows_after("write", mode="overwrite", replace_using=["k"]) == both
    all_new = bag(pa.table({"k": pa.array(new, held.type), "v": ["new"] * 2}))
    assert rows_after("apply_snapshot", keys=["k"], max_deleted_fraction=1.0) == all_new


def test_only_files_are_read_whose_decimals_may_be_those_of_the_source(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", pa.table({"k": numbers("1.10", "2.20"), "v": ["old"] * 2}))
    # Equal to the source's as doubles.
    append(table, pa.table({"k": numbers("12345678901234567.01", "12345678901234567.03"), "v": ["old"] * 2}))
    source = pa.table({"k": numbers("12345678901234567.02", "12345678901234567.03"), "v": ["new"] * 2})
    result = committed(upsert(table, source_in(tmp_path / "in", source), "k"))
    assert (result.metrics["numTargetRowsUpdated"], result.metrics["numTargetRowsInserted"]) == (1, 1)
    assert result.files["pruned"] == 1


@pytest.mark.parametrize(
    ("rows", "kind", "said"),
    [
        ([*NEW[:2], NEW[2], (None, "b", "x", 1)], "SchemaMismatch", "2 of 4 source rows have NULL in a key column"),
        ([NEW[0], (2, "b", "x", 1), (2, "b", "y", 2)], "AmbiguousMerge", "1 key (k, p) of the source stand in more"),
    ],
)
def test_keys_that_do_not_identify_a_row_are_refused(
    tmp_path: Path, rows: list[tuple[Any, ...]], kind: str, said: str
) -> None:
    table = target_in(tmp_path / "t")
    error = error_of(upsert(table, source_in(tmp_path / "in", table_of(*rows)), "k", "p"))
    assert error["type"] == kind
    assert said in error["message"]
    assert table.latest_version() == 2


def test_an_empty_key_of_a_partition_is_a_null(tmp_path: Path) -> None:
    """The log keeps it as null, which equals nothing: each run would insert it again."""
    table = target_in(tmp_path / "t", partition_by=["p"])
    source = source_in(tmp_path / "in", table_of((1, "", "x", 1), (2, "", "x", 1), (3, "a", "x", 1)))
    error = error_of(upsert(table, source, "k", "p"))
    assert error["type"] == "SchemaMismatch"
    assert "2 of 3 source rows have NULL in a key column (k, p), or an empty text" in error["message"]
    committed(upsert(target_in(tmp_path / "whole"), source, "k", "p"))
    held = pa.table({"k": [1], "p": pa.array([b"a"]), "v": ["old"]})
    given = source_in(tmp_path / "bytes", pa.table({"k": [1, 2], "p": pa.array([b"", b"a"]), "v": ["new"] * 2}))
    error = error_of(upsert(make_table(tmp_path / "b", held, partition_by=["p"]), given, "k", "p"))
    assert "1 of 2 source rows have NULL in a key column (k, p), or an empty text" in error["message"]


def test_keys_of_another_type_need_spark(tmp_path: Path) -> None:
    table = target_in(tmp_path / "t")
    texts = table_of(*NEW).set_column(0, "k", pa.array(["2", "2", None, "9"]))
    assert "the keys are not of one plain type" in why(upsert(table, source_in(tmp_path / "in", texts), "k"))


# --- conflicts and retries ------------------------------------------------------------------------------------------


def test_a_try_that_ended_is_resumed_with_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the source holds by then is not read again."""
    table, source = target_in(tmp_path / "t"), source_in(tmp_path / "in")
    arguments = {"source": source, "on": ON, "clauses": [update("*"), insert("*")]}
    spec = job_spec(
        operation="merge",
        table_uri=table.uri,
        arguments=arguments,
        application=application(),
        saved_work_key="5ec2e7" + 58 * "0",
    )
    with monkeypatch.context() as patched:
        patched.setattr("airflow_txlog.jobs.resume.attempts.commit_change", _dies)
        with pytest.raises(KeyboardInterrupt):
            run_job(spec, None)
    source_in(tmp_path / "in", table_of((1, "a", "later", 0)))
    lines: list[str] = []
    committed(run_job(spec, None, log=lines.append))
    assert any(line.startswith("resuming an earlier try: ") for line in lines)
    assert bag(table.to_arrow()) == bag(table_of(*KEPT, (2, "a", "new", 20), (2, "b", "new", 40), *INSERTED))
    assert run_job(spec, None).status == "already_done"


def test_a_conflict_is_met_without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row with the source's key is inserted between the search and the commit: it is updated, and no second one is
    inserted."""
    from airflow_txlog.jobs.resume import attempts

    table, source = target_in(tmp_path / "t"), source_in(tmp_path / "in")
    commit, winners = attempts.commit_change, [table_of((9, "c", "winner", 0))]

    def beaten(*args: Any, **named: Any) -> Any:
        while winners:
            append(table, winners.pop())
        return commit(*args, **named)

    monkeypatch.setattr(attempts, "commit_change", beaten)
    result = committed(merge(table, source, update("*"), insert("*")))
    assert result.attempts == 2
    assert bag(table.to_arrow()) == bag(table_of(*KEPT, (2, "a", "new", 20), (2, "b", "new", 40), *INSERTED))


def _dies(*_: Any) -> bool:
    raise KeyboardInterrupt


# --- guesses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("t.k = s.k AND (`p` <=> :p)", True),
        ("k IN (1, -2) AND NOT day BETWEEN DATE '2026-01-01' AND :end OR v IS NULL", True),
        ("k + 1 = 2", True),
        ("upper(v) = 'A'", True),
        ("`upper`(v) = 'A'", True),
        ("CASE WHEN k = 1 THEN 2 END", True),
        ("reverse(v) = 'A'", False),
        ("v RLIKE 'a'", False),
        ("v = 'unclosed", False),
        ("s.v", True),
        ("v + INTERVAL 1 DAY", True),
        ("v + INTERVAL '1 2' DAY TO HOUR", False),
    ],
)
def test_texts_that_are_likely_plain_are_tried_in_a_process_of_their_own(text: str, expected: bool) -> None:
    assert looks_plain(text) is expected


def test_a_merge_is_tried_where_its_source_is_in_reach(tmp_path: Path) -> None:
    def spec(**more: Any) -> JobSpec:
        arguments = {"source": source_in(tmp_path / "in"), "on": ON, "clauses": [update("*")]} | more
        return job_spec(operation="merge", table_uri=str(tmp_path / "t"), arguments=json.loads(json.dumps(arguments)))

    likely = [spec().operation.likely_spares_spark(is_spark_here=here) for here in (True, False)]
    assert likely == [True, False]
    in_store = spec(source={"format": "parquet", "path": "s3://bucket/in"})
    assert in_store.operation.likely_spares_spark(is_spark_here=False)
    of_table = spec(source={"table": "s3://bucket/staged"})
    assert of_table.operation.likely_spares_spark(is_spark_here=False)
    assert not spec(on="reverse(t.p) = s.p").operation.likely_spares_spark(is_spark_here=True)
    assert not spec(clauses=[update({"v": "reverse(s.v)"})]).operation.likely_spares_spark(is_spark_here=True)


def test_columns_that_are_called_as_aliases_might_be_do_not_need_spark(tmp_path: Path) -> None:
    names = ["s", "t", "target", "source"]
    old, new = (pa.table({name: [1, number] for name in names}) for number in (2, 3))
    table = make_table(tmp_path / "t", old)
    source = source_in(tmp_path / "in", new)
    committed(upsert(table, source, "s", "source"))
    assert bag(table.to_arrow()) == bag(pa.table({name: [1, 2, 3] for name in names}))
    committed(upsert(table, source, "t", columns=["s"]))
    predicate = table.history(1)[0]["operationParameters"]["predicate"]
    assert predicate == '["t.`t` = s.`t`"]', "as people would write it"
