"""The example DAGs parse anywhere: no error, nothing heavy, and nothing read. An import error names its task."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, TaskGroup

from airflow_txlog import operators
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.operators import DeltaDeleteOperator
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.airflow

EXAMPLES = ROOT / "example_dags"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_an_example_parses(name: str, airflow_home: Path) -> None:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(dag_folder=str(EXAMPLES / f"{name}.py"), bundle_path=EXAMPLES)
    assert not bag.import_errors
    # One DAG of the file's name, except where one DAG starts another.
    several = {
        "orders_by_version": {"orders_load", "orders_totals"},
        "increments": {f"increments_{table}" for table in ("bronze", "silver", "gold")},
    }
    assert set(bag.dags) == several.get(name, {name})


# What the dag processor imports for our examples that it has not imported for a DAG without tasks.
PACKAGES = {"airflow", "airflow_txlog", "packaging"}
MOST_MODULES = 132


def test_parsing_the_examples_imports_little_beyond_an_empty_dag_and_touches_nothing(tmp_path: Path) -> None:
    """No Spark, Arrow, pandas, SQL parser or client of a store. Counted: seconds would be those of the machine."""
    paths = [str(EXAMPLES / f"{name}.py") for name in NAMES]
    code = (
        "import json, runpy, sys\n"
        "from airflow.sdk import DAG\n"
        "with DAG('empty'):\n    before = set(sys.modules)\n"
        "sys.addaudithook(lambda event, args: print('CONNECT', args) if event == 'socket.connect' else None)\n"
        f"for path in {paths!r}:\n    runpy.run_path(path)\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))\n"
    )
    folder = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=EXAMPLES.parent,
        env={"PATH": "", "HOME": str(tmp_path), "AIRFLOW_HOME": str(tmp_path), "TXLOG_DEMO_FOLDER": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    imported = json.loads(done.stdout.splitlines()[-1])
    assert {name.partition(".")[0] for name in imported} - sys.stdlib_module_names <= PACKAGES
    assert "airflow_txlog.operators.base" in imported
    # One of the examples names its tables in a catalog.
    assert not [name for name in imported if name.startswith("airflow_txlog.catalogs")]
    assert len(imported) <= MOST_MODULES
    assert "CONNECT" not in done.stdout
    assert not folder.exists()


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ('DeltaWriteOperator(task_id="load", table_uri="/t", source="/in")', "DeltaWriteOperator (task_id: load): "),
        (
            'DeltaWriteOperator(task_id="load", table_uri="/t", source=query("SELECT 1", raw="/in"))',
            "DeltaWriteOperator (task_id: load): source.views.raw is a text",
        ),
        ('DeltaDeleteOperator(task_id="a", table_uri="/t", predicate="a ==")', "DeltaDeleteOperator (task_id: a): "),
        ('DeltaUpsertOperator(task_id="a", table_uri="/t")', "DeltaUpsertOperator (task_id: a): missing keyword"),
        ('DeltaDeleteOperator(task_id="a", table_uri="/t", predicate="x.sql")', "DeltaDeleteOperator (task_id: a): "),
        (
            'DeltaPublishOperator(task_id="a", staged=None)',
            "DeltaPublishOperator (task_id: a): staged must be",
        ),
        ('PinVersionsOperator(task_id="a", tables=5)', "PinVersionsOperator (task_id: a): tables is of type int"),
        ('TableVersionSensor(task_id="a", table_uri="/t")', "TableVersionSensor (task_id: a): Nothing to wait for"),
        ('TableVersionSensor(task_id="a", table_uri="/t", version=1, timeout=-1)', "TableVersionSensor (task_id: a): "),
        ('TableVersionTrigger("/t", since="2024-01-01")', "TableVersionTrigger (table_uri: /t): "),
        ('TableVersionTrigger("/t", newer_than="x")', "TableVersionTrigger (table_uri: /t): newer_than must be a"),
        ('files("/in", options=5)', "options is of type int"),
        ('when_matched_update({"a": 5})', "set.a is of type int"),
    ],
)
def test_an_import_error_names_the_task_and_the_line_of_the_dag_file(
    airflow_home: Path, tmp_path: Path, call: str, named: str
) -> None:
    from airflow.dag_processing.dagbag import DagBag

    names = [name for name in operators.__all__ if f"{name}(" in call]
    lines = [
        "from airflow.sdk import DAG, TaskGroup",
        f"from airflow_txlog.operators import {', '.join(names)}" if names else "",
        "from airflow_txlog.sensors.table_version import TableVersionSensor",
        "from airflow_txlog.triggers.table_version import TableVersionTrigger",
        'with DAG("orders", schedule=None):',
        f"    {call}",
    ]
    (tmp_path / "orders.py").write_text("\n".join(lines))
    (found,) = DagBag(dag_folder=str(tmp_path / "orders.py"), bundle_path=tmp_path).import_errors.values()
    assert named in found
    # Airflow reads a SQL file after the whole DAG file, and shows no line.
    assert "x.sql" in call or 'orders.py", line 6, in <module>' in found


def test_an_import_error_names_the_group_of_the_task() -> None:
    with DAG("d", schedule=None), TaskGroup("nightly"), pytest.raises(InvalidJobSpec) as caught:
        DeltaDeleteOperator(task_id="forget", table_uri="t", predicate="a = 1")
    assert caught.value.message.startswith("DeltaDeleteOperator (task_id: nightly.forget): ")
    assert str(caught.value) == caught.value.message
    assert pickle.loads(pickle.dumps(caught.value)).message == caught.value.message


def test_an_error_in_a_users_subclass_keeps_its_failing_line() -> None:
    def days(text: str) -> int:
        return int(text)

    class Forget(DeltaDeleteOperator):
        def __init__(self, *, after: str, **kwargs: Any) -> None:
            super().__init__(predicate=f"day < {days(after)}", **kwargs)

    def places(call: Callable[[], object]) -> list[str]:
        with pytest.raises((ValueError, InvalidJobSpec)) as caught:
            call()
        return [place.name for place in caught.traceback][2:]

    assert places(lambda: Forget(task_id="a", table_uri="/t", after="x"))[-1] == "days"
    assert places(lambda: DeltaDeleteOperator(task_id="a", table_uri="/t", predicate="a ==")) == ["__call__"]
