"""The example DAGs parse anywhere: no error, nothing heavy, and nothing read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
MOST_MODULES = 130


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
