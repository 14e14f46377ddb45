"""Clauses with conditions, and of rows without a match, that tasks evaluate: no test here starts a Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_txlog.engine import Table
from airflow_txlog.jobs.resume import attempts
from airflow_txlog.storage.limits import Limits
from tests.helpers.jobs import committed, delete, error_of, insert, run, update
from tests.helpers.rows import append, bag, make_table

SCHEMA = pa.schema([("k", pa.int64()), ("p", pa.string()), ("v", pa.string()), ("n", pa.int32())])
OLD = [(1, "a", "old", 1), (2, "a", "old", 2), (None, "a", "old", 3), (4, "a", None, None)]
LATER = [(5, "b", "old", 5), (6, "b", "old", 6), (7, "b", "old", None)]
SOURCE = pa.schema([("k", pa.int64()), ("op", pa.string()), ("v", pa.string()), ("n", pa.int32())])
CHANGES = [(1, "D", "x", 10), (2, "U", "new", 20), (5, None, "x", 50), (6, "U", None, 60), (8, "I", "new", 80)]
CHANGES += [(None, "I", "no key", 90), (9, "U", "no row", 100)]
BY_SOURCE = "not_matched_by_source"
CDC = [
    delete("s.op = 'D'"),
    update({"v": "s.v", "n": "s.n"}, "s.op = 'U' AND (t.n < 6 OR s.v IS NOT NULL)"),
    insert({"k": "s.k", "p": "'c'", "v": "v"}, "op = 'I'"),
]
TABLES: list[dict[str, Any]] = [
    {},
    {"partition_by": ["p"]},
    {"properties": {"delta.enableDeletionVectors": "true"}},
    {"properties": {"delta.enableChangeDataFeed": "true"}, "partition_by": ["p"]},
    {"properties": {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "true"}},
    {"properties": {"delta.columnMapping.mode": "name"}},
    {"properties": {"delta.enableRowTracking": "true"}},
]


def table_of(rows: Sequence[tuple[Any, ...]], schema: pa.Schema = SCHEMA) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema)


def target_in(folder: Path, **more: Any) -> Table:
    table = make_table(folder, table_of(OLD), **more)
    append(table, table_of(LATER))
    return table


def merge(table: Table, source: pa.Table, *clauses: dict[str, Any], **more: Any) -> Any:
    folder = Path(table.uri.removeprefix("file://")).with_name("source")
    folder.mkdir(exist_ok=True)
    pq.write_table(source, folder / "a.parquet")
    given = {"format": "parquet", "path": str(folder)}
    return run(None, "merge", table, source=given, on="t.k = s.k", clauses=list(clauses), **more)


@pytest.mark.parametrize("more", TABLES, ids=str)
def test_the_first_clause_whose_condition_is_true_acts(tmp_path: Path, more: dict[str, Any]) -> None:
    """A null is not true: no clause acts on the row 5, nor on the source's row 9, which no row has."""
    table = target_in(tmp_path / "t", **more)
    result = committed(merge(table, table_of(CHANGES, SOURCE), *CDC))
    kept = [OLD[2], OLD[3], *LATER]
    new = [(2, "a", "new", 20), (8, "c", "new", None), (None, "c", "no key", None)]
    assert bag(table.to_arrow()) == bag(table_of([*kept, *new]))
    counted = ("Inserted", "MatchedUpdated", "MatchedDeleted", "Updated", "Deleted")
    assert [result.metrics[f"numTargetRows{name}"] for name in counted] == [2, 1, 1, 1, 1]
    assert_told(table, [OLD[0]], [OLD[1]], new[:1], new[1:])


@pytest.mark.parametrize("more", TABLES, ids=str)
def test_rows_that_no_source_row_matches_are_updated_and_deleted(tmp_path: Path, more: dict[str, Any]) -> None:
    """One clause leaves a row out, also one whose condition is null, and a row without a key has no match."""
    table = target_in(tmp_path / "t", **more)
    clauses = [
        update({"v": "s.v"}, "s.op = 'U'"),
        delete("n = 3", when=BY_SOURCE),
        update({"v": "'left'", "n": "t.n"}, "t.n IS NULL", when=BY_SOURCE),
    ]
    result = committed(merge(table, table_of(CHANGES, SOURCE), *clauses))
    new = [(2, "a", "new", 2), (6, "b", None, 6), (4, "a", "left", None), (7, "b", "left", None)]
    assert bag(table.to_arrow()) == bag(table_of([OLD[0], LATER[0], *new]))
    counted = ("MatchedUpdated", "NotMatchedBySourceUpdated", "NotMatchedBySourceDeleted", "Updated", "Deleted")
    assert [result.metrics[f"numTargetRows{name}"] for name in counted] == [2, 2, 1, 4, 1]
    assert_told(table, [OLD[2]], [OLD[1], LATER[1], OLD[3], LATER[2]], new, [])


def assert_told(table: Table, *kinds: list[tuple[Any, ...]]) -> None:
    """The feed, if the table has one: rows that were deleted, old images, new images, rows that were inserted."""
    if table.snapshot().metadata.configuration.get("delta.enableChangeDataFeed") != "true":
        return
    changes = table.changes(table.latest_version(), table.latest_version())
    of = changes.column("_change_type").to_pylist()
    for kind, rows in zip(("delete", "update_preimage", "update_postimage", "insert"), kinds, strict=True):
        told = changes.filter(pa.array([each == kind for each in of])).select(SCHEMA.names)
        assert bag(told) == bag(table_of(rows)), kind


@pytest.mark.parametrize("condition", [None, "t.n > 100"])
def test_without_a_source_row_every_row_is_one_without_a_match(tmp_path: Path, condition: str | None) -> None:
    table = target_in(tmp_path / "t")
    result = merge(table, SOURCE.empty_table(), update({"v": "s.v"}), delete(condition, when=BY_SOURCE))
    assert result.status == ("committed" if condition is None else "nothing_to_do")
    assert table.to_arrow().num_rows == (0 if condition is None else 7)


def test_two_source_rows_of_one_row_are_refused_even_if_a_clause_acts_on_one(tmp_path: Path) -> None:
    table = target_in(tmp_path / "t")
    source = table_of([(1, "U", "x", 1), (1, "D", "x", 1)], SOURCE)
    for clauses in ([update({"v": "s.v"}, "s.op = 'U'")], [delete("s.op = 'D'"), delete(when=BY_SOURCE)]):
        assert error_of(merge(table, source, *clauses))["type"] == "AmbiguousMerge"
    assert table.latest_version() == 2


@pytest.mark.parametrize("more", TABLES, ids=str)
def test_an_unconditional_delete_takes_a_row_that_several_match(tmp_path: Path, more: dict[str, Any]) -> None:
    table = target_in(tmp_path / "t", **more)
    source = table_of([(1, "U", "x", 1), (1, "D", "x", 1), (7, "D", "x", 1)], SOURCE)
    committed(merge(table, source, delete(), update({"n": "0"}, when=BY_SOURCE)))
    left = [(k, p, v, 0) for k, p, v, _ in [*OLD, *LATER] if k not in (1, 7)]
    assert bag(table.to_arrow()) == bag(table_of(left))


def test_a_source_that_no_task_holds_at_once_gives_the_same_rows(tmp_path: Path) -> None:
    table = target_in(tmp_path / "t")
    clauses = [*CDC, update({"v": "'left'"}, "t.n IS NULL", when=BY_SOURCE)]
    limits = Limits(held_source_bytes=1, taken_source_rows=1, looked_up_bytes=1)
    committed(merge(table, table_of(CHANGES, SOURCE), *clauses, limits=limits))
    new = [(2, "a", "new", 20), (8, "c", "new", None), (None, "c", "no key", None)]
    left = [(4, "a", "left", None), (7, "b", "left", None)]
    assert bag(table.to_arrow()) == bag(table_of([OLD[2], *LATER[:2], *new, *left]))


def test_columns_of_both_sides_that_are_called_as_helpers_are_told_apart(tmp_path: Path) -> None:
    """Names that both sides have, and names that a key has in the join."""
    names = ["k", "k0", "row", "address", "clause"]
    table = make_table(tmp_path / "t", pa.table({name: [1, 2, 3] for name in names}))
    source = pa.table({name: pa.array([2, 3, 4]) for name in names})
    clauses = [
        delete("t.k0 = 2 AND s.row = 2 AND t.clause = 2"),
        update({"row": "s.address", "clause": "t.k0"}, "s.clause = 3"),
        update({"address": "7"}, "address = 1", when=BY_SOURCE),
    ]
    committed(merge(table, source, *clauses))
    assert bag(table.to_arrow()) == bag(pa.table({**{n: [1, 3] for n in names}, "address": [7, 3]}))


def test_a_row_that_lands_meanwhile_is_judged_like_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = target_in(tmp_path / "t")
    commit, winners = attempts.commit_change, [table_of([(8, "b", "winner", 0), (11, "b", "winner", 3)])]

    def beaten(*args: Any, **named: Any) -> Any:
        while winners:
            append(table, winners.pop())
        return commit(*args, **named)

    monkeypatch.setattr(attempts, "commit_change", beaten)
    result = committed(merge(table, table_of(CHANGES, SOURCE), *CDC, delete("n = 3", when=BY_SOURCE)))
    assert result.attempts == 2
    kept = [OLD[3], *LATER, (8, "b", "winner", 0)]
    assert bag(table.to_arrow()) == bag(table_of([*kept, (2, "a", "new", 20), (None, "c", "no key", None)]))


def test_conditions_and_values_compute_with_columns_of_both_sides(tmp_path: Path) -> None:
    table = target_in(tmp_path / "t")
    clauses = [
        update({"n": "t.n + s.n", "v": "concat('now ', upper(s.v))"}, "t.n < s.n AND coalesce(s.op, 'U') = 'U'"),
        insert({"k": "s.k + 1", "v": "CASE WHEN s.n > 90 THEN 'much' ELSE s.v END"}, "s.op <> 'D'"),
    ]
    committed(merge(table, table_of(CHANGES, SOURCE), *clauses))
    new = [(2, "a", "now NEW", 22), (5, "b", "now X", 55), (6, "b", None, 66)]
    inserted = [(9, None, "new", None), (None, None, "no key", None), (10, None, "much", None)]
    assert bag(table.to_arrow()) == bag(table_of([OLD[0], OLD[2], OLD[3], LATER[2], *new, *inserted]))


def test_conditions_read_columns_whose_names_begin_with_a_dot(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", pa.table({"k": [1, 2], ".n": [1, 2], "n": [7, 7]}))
    clause = update({"n": "s.`.n`"}, "t.`.n` > s.`.n`")
    committed(merge(table, pa.table({"k": [1, 2], ".n": [1, 1]}), clause))
    assert bag(table.to_arrow()) == bag(pa.table({"k": [1, 2], ".n": [1, 2], "n": [7, 1]}))


def test_only_rows_that_no_earlier_clause_takes_can_make_a_condition_fail(tmp_path: Path) -> None:
    """Spark alone raises the error of a sum that is too large: where a row has one, the job continues with it."""
    table = target_in(tmp_path / "t")
    source = table_of([(1, "D", "x", 2**31 - 1), (2, "U", "x", 7)], SOURCE)
    clauses = [delete("s.op = 'D'"), update({"n": "t.n + s.n"}, "t.n + s.n > 8")]
    error = error_of(merge(table, source, *reversed(clauses)))
    assert error["facts"]["needs_spark"]
    assert table.latest_version() == 2
    committed(merge(table, source, *clauses))
    assert bag(table.to_arrow()) == bag(table_of([*OLD[2:], *LATER, (2, "a", "old", 9)]))


# --- any clauses ----------------------------------------------------------------------------------------------------

_KEYS = st.one_of(st.none(), st.integers(0, 5))
_TEXTS, _NUMBERS = st.sampled_from([None, "a", "b"]), st.sampled_from([None, 0, 1, 2])
_TARGETS = st.lists(st.tuples(_KEYS, st.sampled_from(["a", "b"]), _TEXTS, _NUMBERS), max_size=9)
_SOURCES = st.lists(st.tuples(_KEYS, _TEXTS, _TEXTS, _NUMBERS), max_size=7)
# SQL, and the same of a target row and a source row as a function that returns None for null.
_OF_TARGET = {"t.n = 1": lambda t, s: _equal(t[3], 1), "t.v <> 'a'": lambda t, s: _not(_equal(t[2], "a"))}
_OF_SOURCE = {"s.n = 1": lambda t, s: _equal(s[3], 1), "s.op IS NULL": lambda t, s: s[1] is None}
_OF_NONE = {None: lambda t, s: True, "TRUE": lambda t, s: True, "FALSE": lambda t, s: False}
_CONDITIONS = {
    "matched": {**_OF_TARGET, **_OF_SOURCE, **_OF_NONE},
    "not_matched": {**_OF_SOURCE, **_OF_NONE},
    BY_SOURCE: {**_OF_TARGET, **_OF_NONE},
}
_VALUES = {"'c'": lambda t, s: "c", "NULL": lambda t, s: None}
_ASSIGNED = {
    "matched": {"s.v": lambda t, s: s[2], "t.p": lambda t, s: t[1], "s.op": lambda t, s: s[1], **_VALUES},
    "not_matched": {"s.v": lambda t, s: s[2], "op": lambda t, s: s[1], **_VALUES},
    BY_SOURCE: {"t.p": lambda t, s: t[1], **_VALUES},
}


def _equal(one: object, other: object) -> bool | None:
    return None if one is None or other is None else one == other


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


@st.composite
def _clauses(draw: Any) -> list[dict[str, Any]]:
    found = []
    for when, most in (("matched", 3), ("not_matched", 2), (BY_SOURCE, 2)):
        conditions = draw(st.lists(st.sampled_from(list(_CONDITIONS[when])), max_size=most))
        for number, condition in enumerate(conditions):
            condition = "TRUE" if condition is None and number + 1 < len(conditions) else condition
            columns = draw(st.lists(st.sampled_from(["v", "p"]), min_size=1, unique=True))
            assigned = {name: draw(st.sampled_from(list(_ASSIGNED[when]))) for name in columns}
            if when == "not_matched":
                found.append(insert(assigned, condition))
            elif draw(st.booleans()):
                found.append(update(assigned, condition, when))
            else:
                found.append(delete(condition, when))
    return found or [delete()]


def _expected(target: list[Any], source: list[Any], clauses: list[dict[str, Any]]) -> list[Any] | None:
    """The rows that the merge leaves; None if it is ambiguous."""

    def new(when: str, t: Any, s: Any) -> Any:
        """What becomes of the row: it stays as it is, or it is gone (None)."""
        for clause in (each for each in clauses if each["when"] == when):
            if _CONDITIONS[when][clause.get("condition")](t, s):
                if clause["then"] == "delete":
                    return None
                given = clause.get("set", clause.get("values"))
                texts = {name: _ASSIGNED[when][text](t, s) for name, text in given.items()}
                row = t or (None, None, None, None)
                return (row[0], texts.get("p", row[1]), texts.get("v", row[2]), row[3])
        return t

    kinds = [(each["then"], each.get("condition")) for each in clauses if each["when"] == "matched"]
    left, met = [], set()
    for t in target:
        matches = [at for at, s in enumerate(source) if t[0] is not None and s[0] == t[0]]
        met.update(matches)
        if len(matches) > 1 and kinds and kinds != [("delete", None)]:
            return None
        left.append(new("matched", t, source[matches[0]]) if matches else new(BY_SOURCE, t, None))
    left += [new("not_matched", None, s) for at, s in enumerate(source) if at not in met]
    return [row for row in left if row is not None]


@given(target=_TARGETS, source=_SOURCES, clauses=_clauses(), more=st.sampled_from(TABLES[:6]))
def test_any_clauses_leave_what_the_rules_of_merge_say(
    tmp_path_factory: Any, target: list[Any], source: list[Any], clauses: list[dict[str, Any]], more: dict[str, Any]
) -> None:
    table = make_table(tmp_path_factory.mktemp("any") / "t", table_of(target[:4]), table_of(target[4:]), **more)
    result = merge(table, table_of(source, SOURCE), *clauses)
    expected = _expected(target, source, clauses)
    if expected is None:
        assert error_of(result)["type"] == "AmbiguousMerge"
    else:
        assert result.status in ("committed", "nothing_to_do"), result.error
        assert bag(table.to_arrow()) == bag(table_of(expected))
