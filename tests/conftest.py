"""Fixtures shared by the whole suite: one Spark session a process, tables in memory and on disk, a clock that obeys."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark's Python workers must be the interpreter that runs the tests, or they miss pyarrow.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

# What a test tells the reader of the run: `record_property(TOLD, line)`. It crosses from a worker to the terminal.
TOLD = "told"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The lines that tests told, after the run, in order: nothing that was read or refused goes unsaid."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    lines = sorted(str(value) for report in reports for name, value in report.user_properties if name == TOLD)
    if lines:
        terminalreporter.section("tables")
        for line in lines:
            terminalreporter.write_line(line)


SHARED = Path(__file__).resolve().parents[2] / "shared"


class ManualClock:
    """A clock whose hands move only when they are told to, and whose chances and names are a plain sequence."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.time_ms = now_ms
        self.slept: list[float] = []
        self._ids = 0

    def now_ms(self) -> int:
        return self.time_ms

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time_ms += int(seconds * 1000)

    def random(self) -> float:
        return 0.5

    def unique_id(self) -> str:
        self._ids += 1
        return f"00000000-0000-4000-8000-{self._ids:012d}"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def memory_uri(request: pytest.FixtureRequest) -> str:
    """A table URI in memory that no other test uses."""
    import uuid

    return f"memory://{request.node.name.split('[')[0]}-{uuid.uuid4().hex}"


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """The folder of scenarios and golden tables beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip("the folder ../shared with scenarios and golden tables is not here")
    return SHARED


@pytest.fixture(scope="session")
def golden_folder() -> Path:
    """Golden Delta tables: TXLOG_GOLDEN, or ../shared/golden."""
    folder = Path(os.environ.get("TXLOG_GOLDEN", SHARED / "golden"))
    if not folder.is_dir():
        pytest.skip(f"no golden tables at {folder} (set TXLOG_GOLDEN)")
    return folder


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one Spark session of this pytest process: two cores, UTC, no UI."""
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("airflow_txlog tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "2g")
        # Thousands of small queries, each run once: the JVM's second compiler costs half of the suite's time.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
