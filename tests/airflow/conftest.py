"""A real Airflow for the tests: a home of its own, SQLite, and two bundles of DAGs (the examples and `dags/`)."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "example_dags"
DAGS = Path(__file__).resolve().parent / "dags"


def _bundle(name: str, path: Path) -> dict[str, Any]:
    return {
        "name": name,
        "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
        "kwargs": {"path": str(path), "refresh_interval": 0},
    }


# Airflow reads its home when it is first imported, so this stands at import time and not in a fixture.
_HOME = tempfile.mkdtemp(prefix="airflow-txlog-tests-")
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
os.environ.update(
    {
        "AIRFLOW_HOME": _HOME,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(
            [_bundle("examples", EXAMPLES), _bundle("tests", DAGS)]
        ),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_HOME}/airflow.db",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__TXLOG__DEPLOYMENT_ID": "tests",
    }
)
assert "airflow.configuration" not in sys.modules, "Airflow was imported before its home was set"


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    """An initialised Airflow database."""
    from airflow.utils.db import initdb

    initdb()
    return Path(_HOME)


@pytest.fixture
def dag_of(airflow_home: Path) -> Callable[[str, str], Any]:
    """A DAG of one of the bundles, parsed afresh: `dag_of("retries", "retry_conflict")` is a file and a DAG id."""
    from airflow.dag_processing.dagbag import DagBag

    def parse(file_name: str, dag_id: str) -> Any:
        folder = EXAMPLES if (EXAMPLES / f"{file_name}.py").exists() else DAGS
        bag = DagBag(dag_folder=str(folder / f"{file_name}.py"), bundle_path=folder)
        assert not bag.import_errors, bag.import_errors
        return bag.dags[dag_id]

    return parse
