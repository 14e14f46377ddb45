"""Run the package with other versions of Airflow, Python, Spark and pyarrow, and write the table of docs/support.md.

    python tools/compatibility.py [NAME ...]     e.g. airflow-3.0; without a name, all combinations

Each combination gets an environment of its own in a temporary folder, with the wheel built from what is committed. It
needs the network, Java, and the Python versions (through pyenv or on PATH). A combination that was not run in this call
keeps its line. Pairs of versions are covered, not all combinations.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "support.md"
START, END = "<!-- written by tools/compatibility.py -->\n", "<!-- end -->"
HEAD = "| Airflow | Python | Spark | pyarrow | result | on |\n|---|---|---|---|---|---|\n"
TESTS = (
    "tests/testing",
    "tests/engine/commit",
    "tests/airflow/test_operators.py",
    "tests/airflow/test_hook_and_sensor.py",
)
# What the tests import, and no user needs.
TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "deltalake", "duckdb", "polars", "psutil")


@dataclass(frozen=True)
class Combination:
    """Versions that are installed together. `also`: further bounds, without which that Airflow does not run."""

    airflow: str
    python: str
    spark: str
    pyarrow: str
    also: tuple[str, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        return f"airflow-{self.airflow}-python-{self.python}-spark-{self.spark}-pyarrow-{self.pyarrow}"


# Later releases of it reject requests of Airflow's own client.
OLD = ("fastapi<0.117",)
# Later releases of them break the API that runs a task of that Airflow. Airflow 3.3 has the first bound itself.
BEFORE_3_3 = ("fastapi<0.137", "starlette<1.1", "cadwyn<7", "svcs<26")
# The lower bounds of pyproject.toml; a test compares them.
OLDEST = (
    "apache-airflow-providers-common-compat==1.22.0",
    "botocore==1.36.0",
    "fsspec==2024.12.0",
    "msgspec==0.21.0",
    "sqlglot==25.34.0",
)
COMBINATIONS = (
    Combination("3.3.2", "3.11", "4.2.0", "26.0.1"),
    Combination("3.3.2", "3.12", "4.3.0", "25.0.1"),
    Combination("3.3.2", "3.13", "4.1.4", "24.0.0"),
    Combination("3.2.2", "3.12", "4.0.5", "23.0.1", BEFORE_3_3),
    Combination("3.2.2", "3.11", "4.2.1", "22.0.0", BEFORE_3_3),
    Combination("3.1.8", "3.13", "4.3.0", "22.0.0", OLD),
    Combination("3.1.8", "3.11", "4.1.4", "21.0.0", OLD),
    Combination("3.0.6", "3.12", "4.0.0", "20.0.0", (*OLD, *OLDEST)),
)


def main(names: list[str]) -> None:
    """Run the combinations whose names contain one of the words, and write their lines."""
    chosen = [each for each in COMBINATIONS if not names or any(name in each.name for name in names)]
    results = read_lines()
    for each in chosen:
        results[each] = run(each)
        print(f"{each.name}: {results[each]}", flush=True)
        write_lines(results)


def run(versions: Combination) -> str:
    """Return the result of one combination: "passed", or which step failed."""
    with tempfile.TemporaryDirectory(prefix="txlog-compatibility-") as folder:
        work = Path(folder)
        log = ROOT / "build" / "compatibility" / f"{versions.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as out:
            for step in (install, run_readme, run_tests):
                failure = step(versions, work, out)
                if failure is not None:
                    return failure
    return "passed"


def install(versions: Combination, work: Path, out: object) -> str | None:
    """Make the environment. Return what failed, or None."""
    python = python_of(versions.python)
    if python is None:
        return f"not run: no Python {versions.python} here"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(work / "clone")], check=True)
    subprocess.run([python, "-m", "venv", str(work / "venv")], check=True)
    wanted = [
        f"{work}/clone[spark,connect,s3]",
        f"apache-airflow=={versions.airflow}",
        f"pyspark=={versions.spark}",
        f"pyarrow=={versions.pyarrow}",
        *versions.also,
    ]
    pip = [f"{work}/venv/bin/python", "-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check"]
    if subprocess.run([*pip, *wanted], stdout=out, stderr=out, check=False).returncode:  # type: ignore[call-overload]
        return "not installable"
    if subprocess.run([*pip, *TOOLS], stdout=out, stderr=out, check=False).returncode:  # type: ignore[call-overload]
        return "not run: the tests' tools cannot be installed"
    return None


def run_readme(versions: Combination, work: Path, out: object) -> str | None:
    """Run the README's DAG through Airflow. Return what failed, or None."""
    block = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert block is not None
    (work / "dags").mkdir()
    (work / "dags" / "gdpr.py").write_text(block[1].replace("/tmp/lake/users", f"{work}/users"))
    airflow = f"{work}/venv/bin/airflow"
    for command in ([airflow, "db", "migrate"], [airflow, "dags", "test", "gdpr"]):
        if run_in(work, command, out):
            return f"`airflow {' '.join(command[1:])}` failed"
    rows = (
        f"from airflow_txlog.engine import Table; assert Table.open({str(work / 'users')!r}).to_arrow().num_rows == 1"
    )
    return "the README's DAG left wrong rows" if run_in(work, [f"{work}/venv/bin/python", "-c", rows], out) else None


def run_tests(versions: Combination, work: Path, out: object) -> str | None:
    """Run the tests of the clone. Return what failed, or None."""
    command = [f"{work}/venv/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    return "tests failed" if run_in(work, command, out, folder=work / "clone") else None


def run_in(work: Path, command: list[str], out: object, *, folder: Path | None = None) -> int:
    """Run a command in the environment, with an Airflow of its own. Return its exit code."""
    kept = ("HOME", "JAVA_HOME", "LANG", "TMPDIR")
    environment = {name: os.environ[name] for name in kept if name in os.environ} | {
        "PATH": f"{work}/venv/bin:{os.environ['PATH']}",
        "AIRFLOW_HOME": f"{work}/airflow",
        "AIRFLOW__CORE__DAGS_FOLDER": f"{work}/dags",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(command, cwd=folder or work, env=environment, stdout=out, stderr=out, check=False)  # type: ignore[call-overload]
    return int(done.returncode)


def python_of(version: str) -> str | None:
    """Return the interpreter of a version such as "3.12"; None without one."""
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(found[-1]) if found else shutil.which(f"python{version}")


def read_lines(page: Path = PAGE) -> dict[Combination, str]:
    """Return the results that the page has, each with its day."""
    text = page.read_text()
    table = text[text.index(START) + len(START) : text.index(END)]
    cells = [[cell.strip() for cell in line.strip("|\n ").split("|")] for line in table.splitlines()[2:]]
    return {Combination(*each[:4]): f"{each[4]} | {each[5]}" for each in cells if len(each) == 6}


def write_lines(results: dict[Combination, str], page: Path = PAGE) -> None:
    """Write the table, with today's day at the new results."""
    today = dt.date.today().isoformat()
    lines = ""
    for each in COMBINATIONS:
        result, _, day = results.get(each, "not run | –").partition(" | ")
        lines += f"| {each.airflow} | {each.python} | {each.spark} | {each.pyarrow} | {result} | {day or today} |\n"
    text = page.read_text()
    page.write_text(text[: text.index(START) + len(START)] + HEAD + lines + text[text.index(END) :])


if __name__ == "__main__":
    main(sys.argv[1:])
