"""What is asked of executors, and what is said of their memory, without a cluster (tests/cluster has one)."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import pytest

from airflow_txlog.datafiles.failures import TaskFailed, error_in
from airflow_txlog.datafiles.installed import OLDEST, Probe, packages_for, unfit
from airflow_txlog.datafiles.tasks import in_worker
from airflow_txlog.datafiles.tasks.scan_and_write import without_values
from airflow_txlog.errors import InvalidJobSpec, UnfitExecutor, UnsupportedStore
from airflow_txlog.jobs.spark.executors import MERGE_MEMORY_MIB, TASK_MEMORY_MIB, memory_warning, wait_of
from tests.helpers.paths import ROOT


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    """Nothing is remembered of other packages, and what these tests say is installed is forgotten."""
    unfit.cache_clear()
    yield
    unfit.cache_clear()


@pytest.mark.parametrize(
    ("master", "conf", "said"),
    [
        ("spark://host:7077", {"spark.executor.cores": "8"}, None),
        ("yarn", {}, "an executor has 384 MiB outside the JVM, and its 1 tasks"),
        ("yarn", {"spark.executor.memory": "16g"}, None),
        ("yarn", {"spark.executor.memory": "16g", "spark.executor.cores": "4"}, "has 1638 MiB .* its 4 tasks"),
        ("yarn", {"spark.executor.cores": "4", "spark.executor.memoryOverhead": "3g"}, None),
        ("yarn", {"spark.executor.cores": "4", "spark.executor.memoryOverhead": "3071"}, "memoryOverhead=3072m"),
        ("yarn", {"spark.executor.cores": "4", "spark.task.cpus": "2", "spark.executor.memoryOverhead": "1536m"}, None),
        ("yarn", {"spark.executor.pyspark.memory": "1g"}, None),
        ("k8s://https://host", {"spark.executor.memory": "2g"}, None),
    ],
)
def test_too_little_memory_outside_the_jvm_is_warned_of_by_the_settings_name(
    master: str, conf: dict[str, str], said: str | None
) -> None:
    found = memory_warning(master, conf, TASK_MEMORY_MIB)
    assert (found is None) == (said is None), found
    if said is not None:
        assert found is not None
        assert "spark.executor.memoryOverhead" in found
        assert re.search(said, found)


@pytest.mark.parametrize("given", ["10m", "true", "-1", "0", "nan", "inf", ""])
def test_the_wait_for_executors_is_a_number_of_seconds(given: str) -> None:
    with pytest.raises(InvalidJobSpec, match=r"a number of seconds, above 0\. Nothing was read"):
        wait_of(given)
    assert wait_of("2.5") == 2.5


def test_the_bound_of_a_task_has_room_for_what_its_writers_hold() -> None:
    from airflow_txlog.storage.limits import USUAL

    assert USUAL.buffered_bytes + 2 * USUAL.row_group_bytes + 200 * 2**20 <= TASK_MEMORY_MIB * 2**20


def test_the_bound_of_a_merges_task_has_room_for_the_source_s_keys_and_rows() -> None:
    from airflow_txlog.storage.limits import USUAL

    # Keys are held twice: as they are read, and in the table that rows are looked up in.
    assert 2 * USUAL.merge_key_bytes + USUAL.held_source_bytes <= (MERGE_MEMORY_MIB - TASK_MEMORY_MIB) * 2**20


def test_the_oldest_releases_are_those_that_the_package_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    assert set(asked) >= {f"{name}>={version}" for name, version in OLDEST.items()}


@pytest.mark.parametrize(
    ("scheme", "packages"),
    [
        ("file", ("pyarrow", "fsspec")),
        ("s3", ("pyarrow", "fsspec", "botocore")),
        ("gs", ("pyarrow", "fsspec", "google-auth", "urllib3")),
        ("abfss", ("pyarrow", "fsspec", "azure-storage-blob", "azure-identity")),
    ],
)
def test_the_stores_client_is_asked_for_where_a_table_is_on_one(scheme: str, packages: tuple[str, ...]) -> None:
    assert packages_for(scheme) == packages


def test_a_probe_says_what_is_missing_and_what_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "botocore":
            raise metadata.PackageNotFoundError
        return {"pyarrow": "16.1.0", "fsspec": "2024.12.0"}[name]

    monkeypatch.setattr(metadata, "version", version)
    answer = json.loads(Probe(packages=packages_for("s3"), pause_s=0.0)(0))
    assert answer["wrong"] == ["pyarrow is 16.1.0, and must be 20 or newer", "botocore is not installed"]


def test_a_worker_of_an_executor_that_came_late_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "1.0")
    in_worker._prepare.cache_clear()
    # As Spark calls the step of a task, which then never runs.
    with pytest.raises(TaskFailed) as caught:
        in_worker.InWorker(pytest.fail)(iter(()))
    error = error_in(str(caught.value))
    assert isinstance(error, UnfitExecutor)
    assert "pyarrow is 1.0, and" in str(error)
    assert error.facts["host"]


def test_a_worker_that_lacks_the_client_of_the_store_is_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only an executor that came late: the others are asked before the first task."""

    @without_values
    def task(self: object, batches: Iterator[Any]) -> Iterator[Any]:
        raise UnsupportedStore("needs the package botocore", uri="s3a://lake/t", filesystem="s3")
        yield

    with pytest.raises(TaskFailed) as unsupported:
        list(task(None, iter(())))
    assert isinstance(error_in(str(unsupported.value)), UnsupportedStore)
    found = metadata.version

    def version(name: str) -> str:
        if name == "botocore":
            raise metadata.PackageNotFoundError(name)
        return found(name)

    unfit.cache_clear()
    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(TaskFailed) as lacking:
        list(task(None, iter(())))
    error = error_in(str(lacking.value))
    assert isinstance(error, UnfitExecutor)
    assert error.facts["missing"] == ["botocore is not installed"]
