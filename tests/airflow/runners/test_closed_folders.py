"""A Spark Connect server that may not read or write what its client may: an error that says so, and no row is changed.

The server runs as root without the right to pass over permissions, and what is closed belongs to another user: such a
server runs also where another user of the machine may not run this Python.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.jobs.spark.connect import ConnectTarget
from airflow_txlog.runners.warm.server import stop_all
from tests.helpers.connected import run_connected
from tests.helpers.depth import by_hand
from tests.helpers.jobs import SCHEMA, insert, rows, update
from tests.helpers.rows import bag, make_table
from tests.helpers.specs import job_spec

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.slow("a Spark Connect server"),
    pytest.mark.long("a server of its own, and two dozen jobs on it"),
    by_hand("another server is started"),
]

NOBODY = 65534
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
SERVER = """
import json
from airflow_txlog.runners.warm.server import lease_session
lease = lease_session({"spark.driver.memory": "1g"}, lambda line: None)
lease.end(is_well=True)
print(json.dumps(lease.url))
"""


def bound_by_permissions() -> None:
    """In a process that is about to start: what it starts may read only what its user may."""
    for right in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        if ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, right, 0, 0, 0):
            raise OSError


def closed(path: Path, mode: int = 0o700) -> Path:
    path.chmod(mode)
    os.chown(path, NOBODY, NOBODY)
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server that permissions bind."""
    if sys.platform != "linux" or os.geteuid():
        pytest.skip("only root on Linux can start a server that permissions bind and it itself not")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TXLOG_WARM_FOLDER", str(tmp_path_factory.mktemp("servers") / "warm"))
        try:
            try:
                done = subprocess.run(
                    [sys.executable, "-c", SERVER],
                    preexec_fn=bound_by_permissions,
                    capture_output=True,
                    text=True,
                    check=False,
                )
            except subprocess.SubprocessError:
                pytest.skip("this root may not give up rights")
            assert done.returncode == 0, done.stderr[-3000:]
            yield json.loads(done.stdout.splitlines()[-1])
        finally:
            stop_all()


def source_files(folder: Path, start: int = 50) -> Path:
    folder.mkdir(parents=True)
    pq.write_table(rows(2, start=start), folder / "f.parquet")
    return folder


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Sources of which something is closed to the server, by what."""
    root = tmp_path_factory.mktemp("sources")
    closed(source_files(root / "closed"))
    source_files(root / "parts" / "p=1")
    closed(source_files(root / "parts" / "p=2", 60))
    source_files(root / "above" / "inner")
    closed(root / "above")
    closed(source_files(root / "file") / "f.parquet")
    (root / "csv").mkdir()
    (root / "csv" / "f.csv").write_text("id,day,name,amount\n50,2024-01-01,x,1.0\n")
    closed(root / "csv")
    closed(Path(make_table(root / "table", rows(3, start=70), schema=SCHEMA).uri.removeprefix("file://")))
    make_table(root / "days", rows(3, start=70), rows(3, start=80, day=None), schema=SCHEMA, partition_by=["day"])
    closed(root / "days" / "day=2024-01-01")

    def files(path: str, form: str = "parquet", **options: str) -> dict[str, Any]:
        return {"format": form, "path": f"{root}/{path}", "options": options}

    both = {"format": "parquet", "path": [f"{root}/parts/p=1", f"{root}/closed"]}
    return {
        "a folder": files("closed"),
        "a folder of a partition": files("parts"),
        "a folder below one": files("parts", recursiveFileLookup="true"),
        "a folder that a glob names": files("parts/*"),
        "a folder of two": both,
        "a folder, with a schema": files("closed") | {"schema": "id BIGINT, day DATE, name STRING, amount DOUBLE"},
        "a folder of a query": {"sql": f"SELECT id, day, name, amount FROM parquet.`{root}/parts`"},
        "the folder above": files("above/inner"),
        "the folder above a glob": files("above/*"),
        "a file": files("file"),
        "a folder of CSV": files("csv", "csv", header="true"),
        "a table": {"table": f"{root}/table"},
        "a folder of a table": {"table": f"{root}/days"},
    }


MERGE: dict[str, Any] = {"on": "t.id = s.id", "clauses": [update(), insert()]}
WRITTEN = {"sql": "SELECT id, DATE'2024-01-01' AS day, 'm' AS name, 1D AS amount FROM range(1, 3)"}


def run_all(server: str, specs: list[JobSpec]) -> list[JobResult]:
    return run_connected(ConnectTarget(url=server, session_id=str(uuid.uuid4())), specs)


def test_a_source_that_is_closed_to_the_server_is_neither_empty_nor_a_part_of_its_rows(
    server: str, sources: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    table = make_table(tmp_path / "t", rows(10), schema=SCHEMA)
    before, version = bag(table), table.latest_version()
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        **{f"write from {name}": ("write", {"source": source}) for name, source in sources.items()},
        "merge": ("merge", {"source": sources["a folder of a partition"], **MERGE}),
        "merge of a table": ("merge", {"source": sources["a folder of a table"], **MERGE}),
        "overwrite": ("write", {"source": sources["a folder of a partition"], "mode": "overwrite"}),
        "keys": ("delete", {"predicate": None, "keys": {"column": "id", "source": sources["a folder"]}}),
    }
    specs = [
        job_spec(operation=operation, table_uri=table.uri, arguments=arguments, unrestricted=("query",))
        for operation, arguments in asked.values()
    ]
    errors = {name: result.error or {} for name, result in zip(asked, run_all(server, specs), strict=True)}
    # As Java has it, where a folder above is closed there is nothing at the path.
    above = errors.pop("write from the folder above")
    assert (above["type"], "PATH_NOT_FOUND" in above["message"]) == ("SourceNotFound", True)
    assert {name: error.get("type") for name, error in errors.items()} == dict.fromkeys(errors, "JobError")
    assert [error["message"] for error in errors.values() if "Permission denied" not in error["message"]] == []
    assert [error["message"] for error in errors.values() if "has no right to it" not in error["message"]] == []
    assert str(sources["a folder"]["path"]) in errors["write from a folder"]["message"]
    assert (bag(table), table.latest_version()) == (before, version)


@pytest.mark.parametrize("what", ["read", "written"])
def test_a_table_that_is_closed_to_the_server_is_not_changed(server: str, tmp_path: Path, what: str) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=10, day=None), schema=SCHEMA, partition_by=["day"])
    folders = [path for path in (tmp_path / "t").iterdir() if path.name.startswith("day=")]
    for folder in folders if what == "read" else [tmp_path / "t", *folders]:
        closed(folder, 0o700 if what == "read" else 0o755)
    before, version = bag(table), table.latest_version()
    specs = [
        job_spec(operation=operation, table_uri=table.uri, arguments=arguments, unrestricted=("query",))
        for operation, arguments in [
            ("delete", {"predicate": "pmod(id, 1000) = 2"}),
            ("update", {"set": {"name": "reverse(name)"}, "predicate": "id < 12"}),
            ("merge", {"source": WRITTEN, **MERGE}),
        ]
    ]
    errors = [result.error or {} for result in run_all(server, specs)]
    assert [error.get("type") for error in errors] == ["JobError"] * len(specs)
    assert [error["message"] for error in errors if "Permission denied" not in error["message"]] == []
    assert (bag(table), table.latest_version()) == (before, version)
