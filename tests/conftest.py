"""Fixtures shared by the whole suite: one Spark session a process, tables in memory and on disk, a clock that obeys."""

from __future__ import annotations

import fcntl
import functools
import gc
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.helpers import in_memory, s3
from tests.helpers.depth import LONG, depth
from tests.helpers.java import JAVA_OPTIONS, PLAIN_QUERIES
from tests.helpers.turns import turn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.helpers.metastore import Metastore

# Before anything makes a temporary file: Airflow's home is one.
in_memory.keep_temporary_files_in_memory()
# Spark's Python workers must be the interpreter that runs the tests, or they miss pyarrow.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("JDK_JAVA_OPTIONS", JAVA_OPTIONS)
# Workers of one run would wait for each other. What shows the turns names a limit itself.
os.environ.setdefault("TXLOG_SPARK_STARTS", "0")
# Nothing is left behind by the tests that makes an archive of its own.
os.environ.setdefault("TXLOG_CLASS_ARCHIVES", "off")

# A line for the reader of the run: `record_property(REPORTED, line)`. It crosses from a worker to the terminal.
REPORTED = "reported"
DURATIONS_SHOWN = 16
SLOW_COLLECTION_S = 0.1
# Python looks for garbage after each 700 new objects; the tests make many, and few of them are garbage in cycles.
OBJECTS_BETWEEN_COLLECTIONS = 10_000


# What one worker runs all of: each starts something that takes seconds, delta-spark, a scheduler, a Hive Metastore with
# moto. Parts of the names of their files.
ONE_WORKER = {
    "delta-spark": ("delta_spark",),
    "scheduler": ("airflow/scheduled",),
    "catalogs": (
        "tests/catalogs/test_contract",
        "tests/catalogs/test_failures",
        "test_catalog_commands",
        "test_example_dags",
        "test_tables_by_name",
        "test_restricted_settings",
    ),
}


class ByFile(LoadScopeScheduling):
    """One worker runs a whole file, so that what a module shares is made once, and all files of one of ONE_WORKER.

    Not by marks of groups: with this release of pytest, xdist does not see them.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((name for name, parts in ONE_WORKER.items() if any(part in file for part in parts)), file)

    def _assign_work_unit(self, node: Any) -> None:
        """Assign the next scope: the first worker takes those that need Spark first, and the others take them last.

        They take about half of the time, and each further Spark session costs its start and its warm-up.
        """
        is_first = node is self.nodes[0]
        wanted = next((scope for scope, tests in self.workqueue.items() if _need_spark(tests) is is_first), None)
        if wanted is not None:
            self.workqueue.move_to_end(wanted, last=False)
        super()._assign_work_unit(node)


def _need_spark(tests: Iterable[str]) -> bool:
    return any(map(_names_spark, dict.fromkeys(test.partition("::")[0] for test in tests)))


@functools.cache
def _names_spark(file: str) -> bool:
    return "pytest.mark.spark" in (Path(__file__).parent.parent / file).read_text(encoding="utf-8")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Files in the order of collection: the slow ones first."""
    config.option.loadscopereorder = False
    return ByFile(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage: what is imported and collected stays to the end of the run.

    Examples that Hypothesis draws have no deadline, which a busy machine would miss, and fewer are drawn a run than by
    default: each run draws others, and `make test-long` draws more.
    """
    from hypothesis import HealthCheck, settings

    examples = depth(30, 60)
    settings.register_profile(
        "suite", deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("suite")
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
        gc.enable()
        gc.callbacks.append(_time_collections)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the tests of this depth, and start the slow ones first, so that no worker is left with one at the end."""
    from hypothesis import is_hypothesis_test

    chosen, others = [], []
    for item in items:
        for mark in item.iter_markers():
            if mark.name in ("slow", "long", "alone") and not mark.args:
                raise pytest.UsageError(f'{item.nodeid}: give the reason, as in pytest.mark.{mark.name}("why")')
        is_long = item.get_closest_marker("long")
        is_seeded = item.get_closest_marker("seeded") or is_hypothesis_test(getattr(item, "obj", None))
        (chosen if (is_long or is_seeded if LONG else not is_long) else others).append(item)
    if others:
        config.hook.pytest_deselected(items=others)
    items[:] = sorted(chosen, key=lambda item: item.get_closest_marker("slow") is None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test that is marked as `alone` wait for those of the other processes, and these for it."""
    with turn(is_alone=item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Leave what a worker has gathered to the end of its process: pytest would look through it five times."""
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """After the run: the lines that tests reported, and the seconds of each folder, so that CI shows both."""
    outcomes = [terminalreporter.stats.get(outcome, []) for outcome in ("passed", "failed", "skipped", "")]
    reports = [report for of_outcome in outcomes for report in of_outcome if hasattr(report, "user_properties")]
    lines = sorted({str(value) for report in reports for name, value in report.user_properties if name == REPORTED})
    if lines:
        terminalreporter.section("tables")
        for line in lines:
            terminalreporter.write_line(line)
    seconds: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for report in reports:
        folder = "/".join(report.nodeid.split("::")[0].split("/")[1:-1][:2]) or "."
        seconds[folder] += report.duration
        tests[folder] += report.when == "call"
    terminalreporter.section("seconds by folder")
    for folder, total in seconds.most_common(DURATIONS_SHOWN):
        terminalreporter.write_line(f"{total:8.1f} s {tests[folder]:5d} tests  {folder}")


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


@pytest.fixture(scope="module", autouse=True)
def _empty_memory() -> Iterator[None]:
    """Nothing of a module's tables in memory is left to the next: a listing looks through all that there is.

    What a module makes when it is imported stays.
    """
    from fsspec.implementations.memory import MemoryFileSystem

    before = set(MemoryFileSystem.store)
    yield
    for path in set(MemoryFileSystem.store) - before:
        del MemoryFileSystem.store[path]


_slow_collections: list[float] = []
_begun: list[float] = [0.0]


def _time_collections(phase: str, info: dict[str, int]) -> None:
    if info["generation"] < 2:
        return
    now_s = time.thread_time()
    if phase == "start":
        _begun[0] = now_s
    elif now_s - _begun[0] > SLOW_COLLECTION_S:
        _slow_collections.append(now_s - _begun[0])


@pytest.fixture(scope="module", autouse=True)
def _small_heap() -> Iterator[None]:
    """Where looking for garbage has become slow, what lives between two modules is not looked through again.

    Airflow's API server and the models of cloud clients stay, a million objects, half a second each time.
    """
    yield
    if _slow_collections:
        _slow_collections.clear()
        gc.collect()
        gc.freeze()
        _slow_collections.clear()


@pytest.fixture(scope="session")
def airflow_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with Airflow's tables, made once by whichever worker comes first; tests copy it."""
    base = tmp_path_factory.getbasetemp()
    home = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "airflow-database"
    home.mkdir(exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = home / "airflow.db"
        if not made.exists():
            making = home / "making.db"
            inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
            settings = {"AIRFLOW_HOME": str(home), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{making}"}
            command = [sys.executable, "-m", "airflow", "db", "migrate"]
            subprocess.run(command, env=inherited | settings, check=True, capture_output=True)
            making.rename(made)
    return made


@pytest.fixture(scope="session")
def metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metastore]:
    """A real Hive Metastore."""
    from tests.helpers.metastore import running

    with running(tmp_path_factory.mktemp("metastore")) as server:
        yield server


@pytest.fixture(scope="session")
def glue_endpoint() -> Iterator[str]:
    """The endpoint of AWS Glue as moto plays it."""
    from tests.helpers import glue

    with glue.running() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one Spark session of this pytest process: two cores, UTC, no UI."""
    from pyspark.sql import SparkSession

    # A job in this process may have started a session. Its workers lack the keys for S3 and the helper modules.
    if (of_a_job := SparkSession.getActiveSession()) is not None:
        of_a_job.stop()
    session = (
        SparkSession.builder.master("local[2]")
        .appName("airflow_txlog tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "2g")
        # Without the JVM's second compiler, which would cost more than it saves.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms1g -Xmn400m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.python.daemon.module", "loaded_daemon")
        .config("spark.executorEnv.PYTHONPATH", str(Path(__file__).parent / "helpers" / "daemon"))
        # Each broadcast of a few rows fills a page, which else has 32 MB.
        .config("spark.buffer.pageSize", "1m")
        # What Spark keeps for a UI: the text of each plan, and a thousand queries, jobs and stages.
        .config("spark.sql.ui.explainMode", "simple")
        .config("spark.sql.ui.retainedExecutions", "10")
        .config("spark.ui.retainedJobs", "100")
        .config("spark.ui.retainedStages", "100")
        .config("spark.ui.retainedTasks", "1000")
        # The workers' alone: a test whose driver is to have the keys too says so (tests/jobs/stores/conftest.py).
        .config(map={f"spark.executorEnv.{name}": value for name, value in s3.environment().items()})
        .config(map={} if LONG else PLAIN_QUERIES)
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
