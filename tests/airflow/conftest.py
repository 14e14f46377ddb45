"""A real Airflow for the tests: a new home, SQLite, and a folder of DAGs that holds the examples and `dags/`."""

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

from tests.helpers.paths import ROOT

EXAMPLES = ROOT / "example_dags"
DAGS = Path(__file__).resolve().parent / "dags"


# Airflow reads its home when it is first imported, so this stands at import time and not in a fixture.
_HOME = tempfile.mkdtemp(prefix="airflow-txlog-tests-")
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
_DAGS_FOLDER = Path(_HOME) / "dags"
_DAGS_FOLDER.mkdir()
(_DAGS_FOLDER / "examples").symlink_to(EXAMPLES)
(_DAGS_FOLDER / "tests").symlink_to(DAGS)
os.environ.update(
    {
        "AIRFLOW_HOME": _HOME,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(_DAGS_FOLDER),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_HOME}/airflow.db",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        # Otherwise a run takes the assets of the DAG that an earlier test read from the same file in the last 30 s.
        "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "0",
        "AIRFLOW__TXLOG__DEPLOYMENT_ID": "tests",
    }
)
assert "airflow.configuration" not in sys.modules, "Airflow was imported before its home was set"


@pytest.fixture(scope="session")
def airflow_home(airflow_database: Path) -> Path:
    """Airflow's home, with a new database."""
    shutil.copy(airflow_database, Path(_HOME) / "airflow.db")
    return Path(_HOME)


@pytest.fixture
def signer(airflow_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a connection `signer`, whose key signs reports, and the deployment's secret."""
    seed = json.dumps({"conn_type": "generic", "password": bytes(range(32)).hex()})
    monkeypatch.setenv("AIRFLOW_CONN_SIGNER", seed)
    monkeypatch.setenv("AIRFLOW_VAR_TXLOG_SAVED_WORK_SECRET", "s" * 40)


@pytest.fixture(scope="session")
def dag_of(airflow_home: Path) -> Callable[[str, str], Any]:
    """A DAG of the examples or of `dags/`, parsed afresh: `dag_of("outcomes", "conflict")` names a file and a DAG."""
    from airflow.dag_processing.dagbag import DagBag

    def parse(file_name: str, dag_id: str) -> Any:
        _forget_assets()
        folder = EXAMPLES if (EXAMPLES / f"{file_name}.py").exists() else DAGS
        bag = DagBag(dag_folder=str(folder / f"{file_name}.py"), bundle_path=folder)
        assert not bag.import_errors, bag.import_errors
        return bag.dags[dag_id]

    return parse


def _forget_assets() -> None:
    """Free the names of assets: Airflow gives a name to one URI, and each test has its own."""
    from airflow.models.asset import AssetActive
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    with create_session() as session:
        session.execute(delete(AssetActive))
