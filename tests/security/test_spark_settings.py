"""What `spark_conf` holds stands in no command line and no environment, and in no file that outlives its reading."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_txlog.jobs.spark.launch import _properties_file, _submit_arguments
from airflow_txlog.runners.child_process import ChildProcessRunner
from tests.helpers.jobs import rows
from tests.helpers.paths import ROOT
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec

CANARY = "canary-of-the-settings"
needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="this system has no /proc")


@needs_proc
@pytest.mark.spark
@pytest.mark.long("the child starts a Spark of its own")
def test_no_process_of_a_job_shows_a_setting(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(10))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    spec = job_spec(
        operation="update",
        table_uri=table.uri,
        arguments={"set": {"name": "'x'"}, "predicate": "pmod(id, 100) < 5"},
        spark_conf={
            "spark.master": "local[2]",
            "spark.hadoop.fs.s3a.secret.key": CANARY,
            "spark.test.odd": f" {CANARY} = # : \\ é\n\U0001f600",
            "spark.sql.shuffle.partitions": "3",
        },
        unrestricted=("spark_conf",),
    )
    watcher = subprocess.Popen(
        [sys.executable, "-c", WATCH, str(os.getpid()), CANARY[:-1], CANARY[-1], str(temporary)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watcher.stdout is not None
    assert watcher.stdout.readline() == "watching\n"
    said: list[str] = []
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(temporary)
    try:
        result = ChildProcessRunner().run(spec, log=said.append)
    finally:
        os.environ.pop("TMPDIR")
        if before is not None:
            os.environ["TMPDIR"] = before
        watcher.terminate()
    output, _ = watcher.communicate(timeout=120)
    assert result.status == "committed"
    assert re.search(r"^jvms \[\d", output), "the watcher has seen no JVM"
    assert "SHOWN" not in output, output
    assert not any(CANARY in line for line in said)


# Looks again and again through the processes under one, itself left out, and through a folder of temporary files.
WATCH = """
import os, signal, sys, time
from pathlib import Path
root, canary, folder = int(sys.argv[1]), (sys.argv[2] + sys.argv[3]).encode(), Path(sys.argv[4])
jvms, shown = set(), set()
def say(*_):
    print("jvms", sorted(jvms))
    for each in sorted(shown):
        print("SHOWN", each)
    sys.stdout.flush()
    os._exit(0)
signal.signal(signal.SIGTERM, say)
print("watching", flush=True)
while True:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                pass
    found = {root}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    for pid in found - {root, os.getpid()}:
        for name in ("cmdline", "environ"):
            try:
                text = Path(f"/proc/{pid}/{name}").read_bytes()
            except OSError:
                continue
            if name == "cmdline" and b"org.apache.spark" in text:
                jvms.add(pid)
            if canary in text:
                shown.add(f"{name} {text[:300]!r}")
    # A folder may go while it is listed, which os.walk passes over.
    for path in (Path(place, name) for place, _, names in os.walk(folder) for name in names):
        try:
            if path.is_file() and canary in path.read_bytes() and path.stat().st_mode & 0o077:
                shown.add(str(path))
        except OSError:
            pass
    time.sleep(0.05)
"""


def properties(text: str) -> dict[str, str]:
    """What Java's Properties read, for a text in which everything odd is escaped."""
    read = re.compile(r"\\u([0-9a-f]{4})")

    def plain(part: str) -> str:
        units = b"".join(
            int(found[1], 16).to_bytes(2, "big") if found[1] else found[0].encode("utf-16-be")
            for found in re.finditer(r"\\u([0-9a-f]{4})|.", part)
        )
        return units.decode("utf-16-be")

    assert read.sub("", text).isascii()
    return {plain(name): plain(value) for name, _, value in (line.partition("=") for line in text.splitlines())}


@needs_proc
def test_the_settings_file_is_this_users_alone_and_has_no_name() -> None:
    settings = {"spark.a": f"{CANARY} = : # ! \\ \n\t é \U0001f600 ", "spark.odd name=": "x", "other": "left out"}
    with _properties_file(settings) as path:
        assert os.stat(path).st_mode & 0o777 == 0o600
        assert os.stat(path).st_nlink == 0
        text = Path(path).read_text(encoding="ascii")
        del settings["other"]
        assert properties(text) == settings
    assert not os.path.exists(path)


def test_the_arguments_that_a_user_gives_spark_submit_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--packages a:b:1 pyspark-shell")
    with _submit_arguments("/proc/1/fd/3"):
        given = os.environ["PYSPARK_SUBMIT_ARGS"]
        assert given == "--properties-file /proc/1/fd/3 --load-spark-defaults --packages a:b:1 pyspark-shell"
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == "--packages a:b:1 pyspark-shell"


@needs_proc
def test_a_process_whose_files_others_may_not_open_gives_them_a_name() -> None:
    """As a task of Airflow, whose supervisor has forbidden it before it forked: Spark's JVM is such another process."""
    code = """
import ctypes, os, subprocess
from airflow_txlog.jobs.spark.launch import _properties_file
# Loaded while this process may still read the folder of Python.
"".encode("utf-16-be")
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
PR_SET_DUMPABLE = 4
ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
with _properties_file({"spark.a": "b"}) as path:
    assert os.stat(path).st_mode & 0o777 == 0o600
    print(subprocess.run(["cat", path], capture_output=True, text=True, check=True).stdout)
assert not os.path.exists(path)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout.strip() == "spark\\u002ea=b", done.stderr
