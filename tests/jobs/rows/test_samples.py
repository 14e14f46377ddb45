"""Alone in showing that a dry run's samples are change rows of the commit that it foresees, once in their table."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.errors import CommitContention, InvalidJobSpec
from airflow_txlog.jobs.rows import other_table
from tests.helpers.depth import depth
from tests.helpers.jobs import application, committed, error_of, files_on_disk, run
from tests.helpers.racing import killed
from tests.helpers.rows import bag, make_table
from tests.jobs.rows.test_expectations import (
    FEATURES,
    HISTORIES,
    OPERATIONS,
    SCHEMA,
    changed_rows,
    file_of,
    fitting,
    random_rows,
    simple,
    source,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEED = {"delta.enableChangeDataFeed": "true"}
REMOVING: dict[str, dict[str, Any]] = {
    "delete": {"predicate": "n > 3 OR p = 'x'"},
    "partition": {"predicate": "p = 'x'"},
}


def sampled(place: Path) -> Counter[Any]:
    return bag(Table.open(str(place)).to_arrow(), *SCHEMA.names, "_change_type")


def check_samples(spark: SparkSession | None, folder: Path, name: str, seed: int) -> None:
    """The samples are the change rows of the same commit on a table with a change data feed."""
    rng = random.Random(seed)
    files = [fitting(random_rows(rng, range(start, start + 12)), name, is_target=True) for start in (0, 12, 24)]
    operation, arguments, _ = (OPERATIONS | HISTORIES).get(name) or ("delete", lambda _: REMOVING[name], "")
    features = dict(rng.choice(FEATURES)) | ({} if spark is None else {"delta.constraints.some": "n IS NULL OR n < 99"})
    table = make_table(folder / "t", *files, partition_by=["p"], properties=features)
    fed = make_table(folder / "f", *files, partition_by=["p"], properties=features | FEED)
    more = arguments(file_of(folder / "s", fitting(random_rows(rng, range(20, 50)), name, is_target=False)))
    if spark is not None:
        more["expect"] = {"a": "array_max(array(n, 0)) > 3"}
    before, place = files_on_disk(table), folder / "samples"
    plain = run(spark, operation, table, dry_run=True, **more)
    tried = run(spark, operation, table, dry_run=True, samples_to=str(place), **more)
    assert (tried.status, tried.details.partitions) == ("nothing_to_do", plain.details.partitions), tried.error
    assert files_on_disk(table) == before
    committed(run(spark, operation, fed, **more))
    assert sampled(place) == changed_rows(fed), (name, seed)


@pytest.mark.parametrize("name", [*OPERATIONS, *HISTORIES, *REMOVING])
def test_samples_are_the_change_rows_of_the_commit(tmp_path: Path, name: str) -> None:
    for seed in range(depth(1, 3)):
        check_samples(None, tmp_path / str(seed), name, seed)


@pytest.mark.long("Spark runs many jobs")
@pytest.mark.spark
def test_samples_by_spark_are_the_same(tmp_path: Path, spark: SparkSession) -> None:
    for name in ("append", "update", "merge"):
        check_samples(spark, tmp_path / name, name, 3)


@pytest.mark.parametrize("properties", [{}, {"delta.enableDeletionVectors": "true"}])
def test_at_most_a_hundred_rows_of_each_type_are_samples_and_images_are_of_the_same_rows(
    tmp_path: Path, properties: dict[str, str]
) -> None:
    rows = pa.table({"id": range(400), "p": ["x"] * 400, "n": [1] * 400, "s": ["a"] * 400}, schema=SCHEMA)
    table = make_table(tmp_path / "t", rows.slice(0, 150), rows.slice(150), properties=properties)
    merge = {
        "source": source(tmp_path / "s", range(100, 700)),
        "source_alias": "o",
        "on": "t.id = o.id",
        "clauses": [
            {"when": "matched", "then": "delete", "condition": "t.id >= 250"},
            {"when": "matched", "then": "update", "set": {"s": "o.s"}},
            {"when": "not_matched", "then": "insert", "values": "*"},
        ],
    }
    for number, (operation, more) in enumerate((("merge", merge), ("write", {"source": merge["source"]}))):
        place = tmp_path / f"samples-{number}"
        tried = run(None, operation, table, dry_run=True, samples_to=str(place), **more)
        assert tried.status == "nothing_to_do", tried.error
        found = Table.open(str(place)).to_arrow().to_pylist()
        counts = Counter(row["_change_type"] for row in found)
        kinds = ["delete", "insert", "update_postimage", "update_preimage"] if operation == "merge" else ["insert"]
        assert counts == dict.fromkeys(kinds, 100)
        ids = {kind: {row["id"] for row in found if row["_change_type"] == kind} for kind in counts}
        if operation == "merge":
            assert ids["update_preimage"] == ids["update_postimage"]
            assert len(ids["update_preimage"]) == 100
    overwrite = {"source": merge["source"], "mode": "overwrite", "dry_run": True, "samples_to": str(tmp_path / "o")}
    run(None, "write", table, **overwrite)
    found = Table.open(str(tmp_path / "o")).to_arrow(columns=["_change_type"]).column(0).to_pylist()
    assert Counter(found) == {"insert": 100, "delete": 100}


def test_samples_have_columns_of_any_name_and_values_of_any_partition(tmp_path: Path) -> None:
    places = ["a/b", "", None, "ü=%", "a b"]
    rows = pa.table({"id": range(10), "a.b c": [{"u": k} for k in range(10)], "p=1/2": places * 2})
    properties = {"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"}
    table, place = make_table(tmp_path / "t", rows, partition_by=["p=1/2"], properties=properties), tmp_path / "samples"
    committed(run(None, "delete", table, predicate="id = 0"))
    for predicate in ("`p=1/2` = 'a/b'", "`p=1/2` IS NULL AND id < 5"):
        tried = run(None, "delete", table, predicate=predicate, dry_run=True, samples_to=str(place))
        assert tried.status == "nothing_to_do", tried.error
    found = Table.open(str(place)).to_arrow().to_pylist()
    assert sorted((row["id"], row["a.b c"]["u"], row["p=1/2"], row["_change_type"]) for row in found) == [
        (1, 1, None, "delete"),
        (2, 2, None, "delete"),
        (5, 5, "a/b", "delete"),
    ]


def test_samples_of_a_table_that_does_not_exist_yet_are_its_first_rows(tmp_path: Path) -> None:
    rows = source(tmp_path / "s", range(3))
    result = run(None, "write", tmp_path / "new", dry_run=True, source=rows, samples_to=str(tmp_path / "samples"))
    assert result.status == "nothing_to_do", result.error
    assert not (tmp_path / "new" / "_delta_log").exists()
    types = Table.open(str(tmp_path / "samples")).to_arrow(columns=["_change_type"]).column(0).to_pylist()
    assert types == ["insert"] * 3


def test_samples_are_appended_once_for_each_work_and_not_if_a_check_fails(tmp_path: Path) -> None:
    table, place, work = simple(tmp_path / "t"), tmp_path / "samples", application()
    more: dict[str, Any] = {"set": {"s": "'b'"}, "predicate": "id < 3", "dry_run": True, "samples_to": str(place)}
    assert error_of(run(None, "update", table, max_updated_rows=2, **more))["type"] == "ExpectationFailed"
    assert error_of(run(None, "update", table, expect_or_fail={"a": "s = 'a'"}, **more))["type"] == "ExpectationFailed"
    assert not place.exists()
    at, was_killed = 0, True
    while was_killed:
        # A try is killed after each change of the stores, and the next one goes on.
        at, was_killed = at + 1, killed(lambda: run(None, "update", table, application=work, **more), at, after=True)
    assert at > 3
    assert run(None, "update", table, application=work, **more).details.partitions
    samples = Table.open(str(place))
    assert (samples.to_arrow().num_rows, samples.snapshot().version) == (6, 0)
    run(None, "update", table, application=application(), **more)
    assert samples.to_arrow().num_rows == 12
    # The work itself is not done.
    del more["dry_run"], more["samples_to"]
    committed(run(None, "update", table, application=work, **more))


@pytest.mark.parametrize("operation", ["delete", "write"])
def test_a_dry_run_that_plans_again_takes_only_the_samples_of_its_last_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    table, place, append = simple(tmp_path / "t"), tmp_path / "samples", other_table._append
    overwrite = {"source": source(tmp_path / "s", range(200, 203)), "mode": "overwrite"}
    arguments = {"delete": {"predicate": "id < 30"}, "write": overwrite}[operation]
    attempts: list[str] = []

    def lost_at_first(context: Any, uri: str) -> None:
        attempts.append(uri)
        if len(attempts) == 1:
            committed(run(None, "delete", table, predicate="id < 3 OR id > 90"))
            raise CommitContention("others commit to the samples all the time", table=uri)
        append(context, uri)

    monkeypatch.setattr(other_table, "_append", lost_at_first)
    tried = run(None, operation, table, dry_run=True, samples_to=str(place), **arguments)
    assert (tried.status, len(attempts)) == ("nothing_to_do", 2), tried.error
    found = Table.open(str(place)).to_arrow().to_pylist()
    new = [] if operation == "delete" else [200, 201, 202]
    wanted = [("delete", id) for id in range(3, 30 if operation == "delete" else 91)] + [("insert", id) for id in new]
    assert sorted((row["_change_type"], row["id"]) for row in found) == wanted


def test_other_arguments_under_one_idempotency_key_give_other_samples(tmp_path: Path) -> None:
    table, place = simple(tmp_path / "t"), tmp_path / "samples"
    more: dict[str, Any] = {"predicate": "id = 1", "dry_run": True, "samples_to": str(place)}
    key = application(check_digest=True)
    for value in ("'b'", "'b'", "'c'"):
        run(None, "update", table, application=key, set={"s": value}, **more)
    found = Table.open(str(place)).to_arrow(columns=["s", "_change_type"]).to_pylist()
    assert sorted(row["s"] for row in found if row["_change_type"] == "update_postimage") == ["b", "c"]


def test_a_table_that_cannot_have_the_samples_is_named_before_anything_is_read(tmp_path: Path) -> None:
    table = simple(tmp_path / "t")
    more: dict[str, Any] = {"predicate": "id < 3", "dry_run": True}
    itself = error_of(run(None, "delete", table, samples_to=str(tmp_path / "t"), **more))
    assert (itself["type"], itself["facts"]["argument"]) == ("InvalidJobSpec", "samples_to")
    for folder in ("samples", "_delta_log/samples"):
        inside = error_of(run(None, "delete", table, samples_to=f"{tmp_path}/t/{folder}", **more))
        assert (inside["type"], inside["facts"]["argument"]) == ("InvalidJobSpec", "samples_to")
    strict = Table.create(str(tmp_path / "strict"), pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    assert "samples_to" in error_of(run(None, "delete", table, samples_to=strict.uri, **more))["message"]
    named = make_table(tmp_path / "n", pa.table({"id": [1], "_change_type": ["mine"]}))
    refused = error_of(run(None, "delete", named, samples_to=str(tmp_path / "q"), **more))
    assert (refused["type"], refused["facts"]["columns"]) == ("SchemaMismatch", ["_change_type"])
    with pytest.raises(InvalidJobSpec, match="samples_to must be None without dry_run"):
        run(None, "delete", table, predicate="id < 3", samples_to=str(tmp_path / "q"))
