"""The archive of Spark's classes: what makes it usable, who makes it, and that a start never fails because of it."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_txlog.jobs import archive_main
from airflow_txlog.jobs.spark import class_archive, session
from tests.helpers.depth import by_hand
from tests.helpers.paths import ROOT

_MAKER = (sys.executable, "-m", "airflow_txlog.jobs.archive_main")
# Starts a Spark and prints the archives that its JVM has mapped.
_START = """
from airflow_txlog.jobs.spark.session import local_session
spark = local_session({"spark.driver.memory": "512m"})
assert spark.range(3).count() == 3
maps = open(f"/proc/{spark.sparkContext._gateway.proc.pid}/maps").read().splitlines()
print("mapped", sorted({line.split()[-1] for line in maps if "/archives/" in line}))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of archives of this test, in which this process has chosen none yet."""
    for name in (*class_archive._JAVA_OPTIONS, *class_archive._SPARK_OPTIONS, "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(class_archive.FOLDER, str(tmp_path / "archives"))
    monkeypatch.setattr(class_archive, "_chosen", None)
    monkeypatch.setattr(class_archive.atexit, "register", lambda *_: None)
    return tmp_path / "archives"


def path() -> Path:
    found = class_archive.archive_path()
    assert found is not None
    return found


def put(content: bytes = b"classes") -> Path:
    """An archive as `put` leaves it, which no JVM has made."""
    made = path().parent / "made"
    made.write_bytes(content)
    class_archive.put(made, path())
    return path()


def options() -> str:
    """What a process that starts now would give its JVM."""
    class_archive._chosen = None
    return class_archive.jvm_options()


def test_an_archive_is_used_as_long_as_it_is_the_one_that_was_made(folder: Path) -> None:
    assert options() == ""
    archive = put()
    assert f'"-XX:SharedArchiveFile={archive}"' in options()
    os.utime(archive)
    assert str(archive) in options(), "touched, and its hash is the same"
    archive.write_bytes(b"claSSes")
    assert options() == "", "other bytes of the same size"
    put()
    archive.write_bytes(b"class")
    assert options() == "", "truncated: a JVM would die of it"
    times = put().stat()
    archive.write_bytes(b"class")
    os.utime(archive, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert options() == "", "truncated by a copy that keeps the time"
    put()
    archive.with_suffix(".json").write_text("{")
    assert options() == "", "no record"
    put()
    archive.unlink()
    assert options() == "", "no archive"


def test_a_process_keeps_the_options_that_it_has_chosen(folder: Path) -> None:
    put()
    chosen = options()
    class_archive.remove(path())
    assert class_archive.jvm_options() == chosen
    assert class_archive.give_up() == path()
    assert class_archive.jvm_options() == ""
    assert class_archive.give_up() is None


def test_another_java_or_another_spark_has_another_archive(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = put()
    for home in ("java", "java-2"):
        (tmp_path / home / "bin").mkdir(parents=True)
        (tmp_path / home / "lib").mkdir()
        (tmp_path / home / "bin" / "java").touch()
        (tmp_path / home / "lib" / "modules").touch()
    found = {ours}
    for home in ("java", "java-2"):
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / home))
        found.add(path())
    (tmp_path / "java-2" / "lib" / "modules").write_bytes(b"a new build in its place")
    found.add(path())
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    found.add(path())
    (tmp_path / "spark" / "jars" / "one.jar").touch()
    found.add(path())
    os.utime(tmp_path / "spark" / "jars" / "one.jar", (1, 1))
    found.add(path())
    assert len(found) == 7
    assert options() == ""


def test_without_java_or_without_a_private_folder_there_is_no_archive(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put()
    folder.chmod(0o755)
    assert options() == "", "others can read it"
    folder.chmod(0o700)
    assert options() != ""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert options() == ""
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert options() == ""
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "archives", tmp_path / "missing" / "archives"):
        monkeypatch.setenv(class_archive.FOLDER, str(place))
        assert options() == ""
    monkeypatch.setenv(class_archive.FOLDER, "/proc/archives")
    assert options() == "", "a folder that cannot be made"
    monkeypatch.setenv(class_archive.FOLDER, str(tmp_path / 'a"b'))
    assert options() == "", "an option that would end in the middle"
    monkeypatch.setenv(class_archive.FOLDER, str(tmp_path / "a:b"))
    assert options() == "", "two archives"


@pytest.mark.parametrize("variable", ["SPARK_CONF_DIR", "HADOOP_CONF_DIR", "SPARK_DIST_CLASSPATH"])
def test_a_folder_of_settings_on_the_class_path_allows_no_archive(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    (tmp_path / "conf").mkdir()
    monkeypatch.setenv(variable, str(tmp_path / "conf"))
    put()
    assert options() != "", "an empty one does"
    (tmp_path / "conf" / "log4j2.properties").touch()
    assert class_archive.archive_path() is None
    assert options() == ""


@pytest.mark.parametrize("given", ["-Xshare:off", "-XX:SharedArchiveFile=/mine.jsa"])
def test_an_archive_of_the_users_own_choice_stands(folder: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    put()
    assert options() != ""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", given)
    assert options() == ""
    monkeypatch.delenv("JDK_JAVA_OPTIONS")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--driver-java-options {given} pyspark-shell")
    assert options() == ""
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS")
    monkeypatch.setenv(class_archive.FOLDER, "off")
    assert options() == ""


@pytest.mark.parametrize("name", ["spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions"])
def test_an_archive_that_a_job_chooses_stands(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    put()
    started: list[dict[str, str]] = []
    monkeypatch.setattr(session, "start_jvm", started.append)
    for given in ("-Dmine=1", "-Dmine=1 -XX:ArchiveClassesAtExit=/mine.jsa"):
        class_archive._chosen = None
        session._start_jvm({name: given})
    ours = [str(path()) in each["spark.driver.extraJavaOptions"] for each in started]
    assert ours == [True, False]


@pytest.mark.spark
def test_a_java_that_refuses_an_archive_says_nothing_and_logs_what_its_user_wants(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = os.environ.get("JAVA_HOME")
    java, made = f"{home}/bin/java" if home else "java", folder.parent / "made.jsa"
    making = [java, f"-XX:ArchiveClassesAtExit={made}", "-Xlog:disable", "-version"]
    subprocess.run(making, capture_output=True, check=True)
    of_another_java = bytearray(made.read_bytes())
    of_another_java[200:208] = b"x" * 8
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xlog:gc:stderr")
    # Java 17 reports the second one on standard output, unless it is told not to.
    for content in (b"x" * 100_000, bytes(of_another_java)):
        put(content)
        done = subprocess.run([java, *shlex.split(options()), "-version"], capture_output=True, text=True, check=True)
        assert done.stdout == ""
        assert "[gc] Using" in done.stderr
        assert "archive" not in done.stderr


def test_the_oldest_of_many_archives_are_deleted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for number in range(6):
        monkeypatch.setenv("SPARK_CONF_DIR", str(number))
        made.append(put())
        os.utime(made[-1], (number + 1, number + 1))
    assert [each.exists() for each in made] == [False, False, True, True, True, True]
    assert not made[0].with_suffix(".json").exists()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The variables of each maker that would have started, on a machine with memory enough."""
    found: list[dict[str, str]] = []
    monkeypatch.setattr(class_archive.subprocess, "Popen", lambda *arguments, **more: found.append(more["env"]))
    monkeypatch.setattr(class_archive, "free_bytes", lambda: 2 * 1024**3)
    return found


def test_an_archive_that_was_tried_today_is_not_tried_again_today(
    folder: Path, monkeypatch: pytest.MonkeyPatch, started: list[dict[str, str]]
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    class_archive._make_later(path())
    assert [name for name in started[0] if "SECRET" in name] == []
    class_archive._make_later(path())
    assert len(started) == 1, "the maker runs, or was killed"
    attempt = class_archive.attempt_of(path())
    hours_ago = time.time() - 7200
    os.utime(attempt, (hours_ago, hours_ago))
    class_archive._make_later(path())
    assert len(started) == 1
    os.utime(attempt, (1, 1))
    class_archive._make_later(path())
    assert len(started) == 2
    attempt.unlink()
    put()
    class_archive._make_later(path())
    assert len(started) == 2, "there is one"


def test_tasks_that_differ_in_a_variable_make_one_archive_an_hour(
    folder: Path, monkeypatch: pytest.MonkeyPatch, started: list[dict[str, str]]
) -> None:
    for task in range(3):
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Dtask={task}")
        class_archive._make_later(path())
    assert len(started) == 1
    for attempt in folder.glob("*.attempt"):
        attempt.unlink()
    made = put()
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dtask=3")
    class_archive._make_later(path())
    assert len(started) == 1
    os.utime(made, (1, 1))
    class_archive._make_later(path())
    assert len(started) == 2


def test_a_maker_needs_free_memory_a_mark_and_the_same_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, started: list[dict[str, str]]
) -> None:
    with monkeypatch.context() as busy:
        busy.setattr(class_archive, "free_bytes", lambda: 2 * 1024**3 - 1)
        class_archive._make_later(path())
    class_archive._make_later(folder / "missing" / "archive.jsa")
    assert started == []
    assert not list(folder.glob("*.attempt"))
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv(class_archive.FOLDER, "archives")
    class_archive._make_later(path())
    assert [each[class_archive.FOLDER] for each in started] == [str(folder)]


def test_a_maker_deletes_what_killed_makers_of_any_archive_have_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(folder.parent))
    ours = path()
    (folder / "making-1" / "table").mkdir(parents=True)
    (folder / "making-1" / "archive").write_bytes(b"half of one")
    for name in ("old.attempt", "new.attempt"):
        (folder / name).touch()
    os.utime(folder / "old.attempt", (1, 1))
    temporary: list[Path] = []

    def run_jobs(table: Path, archive: Path) -> None:
        temporary.append(Path(tempfile.gettempdir()))
        assert temporary[0].name.startswith("making-"), "Spark's files are with the maker's"
        assert class_archive.attempt_of(ours).exists()
        archive.write_bytes(b"classes")

    monkeypatch.setattr(archive_main, "_run_jobs", run_jobs)
    with open(folder / "lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert archive_main.make() is None, "another process makes one"
        assert (folder / "making-1").exists()
    assert archive_main.make() == ours
    assert temporary[0].parent == folder
    assert {each.name for each in folder.iterdir()} == {
        ours.name,
        ours.with_suffix(".json").name,
        "lock",
        "new.attempt",
    }
    assert archive_main.make() == ours
    assert len(temporary) == 1, "there is one"


def start_spark(folder: Path) -> str:
    """The archives that the JVM of a new process has mapped. One that crashes says so in a file of this folder."""
    command, environment = [sys.executable, "-c", _START], os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


@pytest.mark.spark
@pytest.mark.long("six starts of a Spark, one of them archived")
@by_hand("a minute of two cores")
def test_one_of_two_makers_makes_the_archive_and_a_spark_starts_with_it_or_without(folder: Path) -> None:
    killed = subprocess.Popen(_MAKER, cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL)
    while not list(folder.glob("making-*")):
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert options() == ""
    assert class_archive.attempt_of(path()).exists(), "nobody tries it again today"
    makers = [subprocess.Popen(_MAKER, cwd=ROOT, text=True, stdout=subprocess.PIPE) for _ in range(2)]
    said = [maker.communicate()[0].splitlines()[-1] for maker in makers]
    assert sorted(maker.returncode for maker in makers) == [0, 1], said
    assert str(path()) in said
    assert not list(folder.glob("making-*")), "what the killed one left is gone too"
    assert not class_archive.attempt_of(path()).exists()
    assert start_spark(folder.parent) == f"mapped ['{path()}']"
    # Whatever the record says: garbage, and an archive that ends in the middle.
    whole = path().read_bytes()
    for broken in (b"x" * len(whole), whole[: len(whole) // 2]):
        put(broken)
        assert "mapped" in start_spark(folder.parent)
    assert not path().exists(), "a Spark that started without it alone has deleted it"


@pytest.fixture(autouse=True)
def chosen_again() -> Iterator[None]:
    """This process chooses again after each test."""
    before = class_archive._chosen
    yield
    class_archive._chosen = before


def test_the_record_says_size_and_hash(folder: Path) -> None:
    record = json.loads(put(b"abc").with_suffix(".json").read_text())
    assert record["size"] == 3
    assert record["sha256"] == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["SPARK_LOCAL_DIRS", "JAVA_TOOL_OPTIONS", "SPARK_SUBMIT_OPTS"])
def test_options_of_the_machine_are_noticed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in ("SPARK_LOCAL_DIRS", "LOCAL_DIRS"):
        monkeypatch.delenv(each, raising=False)
    assert not class_archive.has_given_options()
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "metrics.properties").touch()
    assert class_archive.has_given_options()
    monkeypatch.delenv("SPARK_CONF_DIR")
    monkeypatch.setenv(name, "x")
    assert class_archive.has_given_options()
