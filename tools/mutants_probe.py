"""A pytest plugin of `tools.mutants`: proves which copy of the package is tested, and reports the first failure.

A fault counts as caught only where the code with the fault in it has run. So the test process, a child process and
Spark's Python workers are each asked where they import the package from; any other place ends the run with exit code
4, as does a module with a fault in it that cannot be imported.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

COPY, MODULE, REPORT = "TXLOG_MUTANTS_COPY", "TXLOG_MUTANTS_MODULE", "TXLOG_MUTANTS_REPORT"

# Pickled by value, because no module has a function of this name: a Spark worker needs nothing of ours to run it.
_location = eval("lambda _: __import__('airflow_txlog').__file__")


def _check(file: object, where: str) -> None:
    if not Path(str(file)).is_relative_to(os.environ[COPY]):
        pytest.exit(f"{where} imports the package from {file}, which is not in {os.environ[COPY]}", returncode=4)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Import the package, the module that holds the fault, and the package once more in a child process."""
    _check(_location(None), "the test process")
    if module := os.environ.get(MODULE):
        try:
            importlib.import_module(module)
        except Exception as error:
            pytest.exit(f"{module} cannot be imported: {type(error).__name__}: {error}", returncode=4)
    code = "import airflow_txlog; print(airflow_txlog.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tempfile.gettempdir(), capture_output=True, text=True, check=False
    )
    _check(found.stdout.strip() or found.stderr, "a child process")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Iterator[Any]:
    """Ask the workers of a Spark session when the suite's fixture has started it."""
    result = yield
    if fixturedef.argname == "spark":
        for file in result.sparkContext.parallelize([0], 1).map(_location).collect():
            _check(file, "a Spark worker")
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[Any]:
    """Write down the first test that failed, and how."""
    report = yield
    path = Path(os.environ[REPORT])
    if report.failed and call.excinfo is not None and not path.exists():
        path.write_text(json.dumps({"test": item.nodeid, "error": call.excinfo.typename}))
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if a module of the package was imported from elsewhere."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "airflow_txlog" and getattr(module, "__file__", None):
            _check(module.__file__, f"the test process ({name})")
