"""How large a task's Spark is: by the configuration, its connection and its operator; and what the machine has."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.jobs.spark import launch
from airflow_txlog.operators import CheckpointOperator

pytestmark = pytest.mark.airflow

GIB = 1024**3


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TXLOG__CORES", "2")
    monkeypatch.setenv("AIRFLOW__TXLOG__HEAP", "3g")


def conf_of(**arguments: Any) -> dict[str, str]:
    return CheckpointOperator(task_id="x", table_uri="/lake/t", **arguments).job_spec({}).spark_conf


def test_the_configuration_sizes_each_spark_that_a_task_starts(configured: None) -> None:
    sized = {"spark.master": "local[2]", "spark.driver.memory": "3g"}
    assert {runner: conf_of(runner=runner) for runner in (None, "child", "warm", "in_process")} == dict.fromkeys(
        (None, "child", "warm", "in_process"), sized
    )
    assert all(conf_of(runner=runner, spark_conn_id="cluster") == {} for runner in ("connect", "submit"))


def test_the_connection_goes_before_the_configuration_and_the_operator_before_both(
    configured: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"spark_conf": {"spark.master": "local[3]", "spark.driver.memory": "4g"}}
    monkeypatch.setenv("AIRFLOW_CONN_SIZED", json.dumps({"conn_type": "txlog", "extra": extra}))
    own = {"spark.master": "local[4]"}
    assert conf_of(txlog_conn_id="sized") == {"spark.master": "local[3]", "spark.driver.memory": "4g"}
    assert conf_of(txlog_conn_id="sized", spark_conf=own) == {"spark.master": "local[4]", "spark.driver.memory": "4g"}


def test_without_a_configuration_nothing_is_set() -> None:
    assert conf_of() == {}


@pytest.mark.parametrize(("name", "value"), [("CORES", "two"), ("CORES", "0"), ("HEAP", "2"), ("HEAP", "2 gigabytes")])
def test_a_size_that_spark_would_not_take_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"AIRFLOW__TXLOG__{name}", value)
    with pytest.raises(InvalidJobSpec, match=rf"\[txlog\] {name.lower()} .* must be a .*; found '{value}'"):
        TxlogHook().with_settings(CheckpointOperator(task_id="x", table_uri="/t")._spec("/t"), "child")


@pytest.mark.parametrize(
    ("text", "size"),
    [("2g", 2 * GIB), ("512m", GIB // 2), ("1024", GIB), ("2048K", 2 * 1024**2), ("2gb", 2 * GIB), ("2 g", None)],
)
def test_a_size_is_read_as_spark_reads_it(text: str, size: int | None) -> None:
    assert launch.size_bytes(text) == size


def files(root: Path, contents: dict[str, str]) -> Path:
    for name, text in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


# Version 2: the limit of the pod stands above the container's own, which has none. Version 1: the path is the
# machine's, and the container sees its own end only.
V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"
CGROUPS = {
    "2": {"proc/self/cgroup": "0::/pod/c\n", f"{V2}/pod/c/memory.max": "max\n", f"{V2}/pod/memory.max": "1048576\n"},
    "1": {"proc/self/cgroup": "9:cpu:/x\n4:memory:/abc\n", f"{V1}/memory.limit_in_bytes": "2097152\n"},
    "no limit": {"proc/self/cgroup": "0::/\n"},
    "no cgroup": {},
}


@pytest.mark.parametrize(
    ("contents", "expected"), [("2", 1048576), ("1", 2097152), ("no limit", None), ("no cgroup", None)]
)
def test_a_cgroup_s_memory_counts_where_it_is_less_than_the_machine_s(
    tmp_path: Path, contents: str, expected: int | None
) -> None:
    found, machine = launch.memory_bytes(files(tmp_path, CGROUPS[contents])), launch.memory_bytes(Path("/nowhere"))
    assert machine is not None
    assert machine > GIB // 2
    assert found == (machine if expected is None else expected)


# Of 9 MiB in use, 4 are of files that the kernel can drop.
_USED = 9 * 1024**2
USAGE = {
    "2": {
        f"{V2}/pod/memory.max": str(10 * 1024**2),
        f"{V2}/pod/memory.current": f"{_USED}\n",
        f"{V2}/pod/memory.stat": f"anon 1\ninactive_file {4 * 1024**2}\n",
    },
    "1": {
        f"{V1}/memory.limit_in_bytes": str(10 * 1024**2),
        f"{V1}/memory.usage_in_bytes": f"{_USED}\n",
        f"{V1}/memory.stat": f"inactive_file 7\ntotal_inactive_file {4 * 1024**2}\n",
    },
}


@pytest.mark.parametrize("version", ["1", "2"])
def test_free_memory_is_what_the_machine_and_the_cgroups_have_left(tmp_path: Path, version: str) -> None:
    assert launch.free_bytes(tmp_path) is None
    root = files(tmp_path, CGROUPS[version] | {"proc/meminfo": "MemTotal: 90000 kB\nMemAvailable:   8192 kB\n"})
    assert launch.free_bytes(root) == launch.memory_bytes(root), "no usage is known"
    files(root, USAGE[version])
    assert launch.free_bytes(root) == 5 * 1024**2
    files(root, {"proc/meminfo": "MemAvailable: 1 kB\n"})
    assert launch.free_bytes(root) == 1024


def test_the_free_memory_of_this_machine_is_a_part_of_it() -> None:
    free, all_of_it = launch.free_bytes(), launch.memory_bytes()
    assert free is not None
    assert all_of_it is not None
    assert 0 < free < all_of_it


def test_a_spark_for_which_the_machine_is_too_small_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    monkeypatch.setattr(launch, "memory_bytes", lambda: 2 * GIB)
    with caplog.at_level(logging.WARNING, logger="airflow_txlog"):
        launch.log_start({"spark.master": "local[2]", "spark.driver.memory": "1g"}, said.append)
        assert caplog.messages == []
        launch.log_start({}, said.append)
    assert said == ["starting Spark: local[2], 1g of heap", "starting Spark: local[*], 2g of heap"]
    (message,) = caplog.messages
    assert message.startswith("a Spark with 2g of heap can take 2432 MiB of memory, and there are 2048 MiB here")
