"""Runs the demo pipeline with real Airflow and real Spark, and shows it as it goes: `make demo [STORE=s3] [RUNNER=…]`.

Airflow runs in a child process with a home, a database and a table of its own under build/demo; everything it prints
goes to build/demo/airflow.log. Our operators write a line to a progress file as each task ends, and this front end
shows those. In the end the table is read by us and by another implementation, and the two must agree.

With STORE=s3 the table is in a bucket of the S3 server that TXLOG_TEST_S3 names ("endpoint key secret";
tools/with_stores.sh starts one), and the tasks open it by an Airflow connection. With RUNNER=cluster the jobs run on a
standalone Spark cluster of two workers, which is started for them; with RUNNER=warm on a Spark that they share.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import get_session
from deltalake import DeltaTable

from airflow_txlog.engine import Table
from airflow_txlog.runners.warm.folders import FOLDER as WARM_FOLDER
from airflow_txlog.runners.warm.server import stop_all
from tools.standalone_cluster import StandaloneCluster

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "demo"
# Only a folder that bears this file is ever wiped.
MARKER = FOLDER / ".made-by-make-demo"
LOG = FOLDER / "airflow.log"
PROGRESS = FOLDER / "progress.jsonl"
LAKE = FOLDER / "lake"
TABLE_NAME = "flights"
BUCKET = "txlog-demo"
REGION = "us-east-1"
# What executors find the keys of the S3 server by, which the cluster's machines have and the tasks have not.
KEYS = {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret"}
DAG_ID = "demo_flights"
# The aircraft that the pipeline forgets (its parameter's default), and where its number stands.
FORGOTTEN_COLUMN = "tailnum"
FORGOTTEN_VALUE = "N725MQ"
LOG_TAIL_LINES = 30
# What a run can hang on at most: Airflow and Spark start in 20 s together, the work takes as long again.
DEADLINE_S = 900


class DemoFailed(Exception):
    """The demo cannot say OK; the text says why."""


class Place(NamedTuple):
    """Where the table is, and how it is opened: by Airflow's tasks, by us and by `deltalake`."""

    table_uri: str
    environment: Mapping[str, str] = {}
    options: Mapping[str, Any] = {}
    deltalake_options: Mapping[str, str] = {}

    def shown(self) -> str:
        if not self.options:
            return shown(Path(self.table_uri))
        return f"{self.table_uri} on {self.options['endpoint_url']}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.demo")
    parser.add_argument("--store", choices=["file", "s3"], default="file", help="where the table is")
    parser.add_argument(
        "--runner", choices=["in_process", "warm", "cluster"], default="in_process", help="where jobs run"
    )
    given = parser.parse_args(arguments)
    os.environ[WARM_FOLDER] = str(FOLDER / "warm")
    began = time.monotonic()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # A front end that is told to go takes Airflow and Spark with it: SystemExit runs the clean-up on its way.
    for told in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(told, lambda number, _: sys.exit(128 + number))
    try:
        prepare_folder()
        place = place_on_s3() if given.store == "s3" else Place(table_uri=str(LAKE / TABLE_NAME))
        print(f"Airflow and Spark start, which takes 20 s or so. Their log is {shown(LOG)}")
        with spark_of(given.runner, place) as variables:
            run_pipeline(place._replace(environment={**place.environment, **variables}))
        print_history(place)
        version, rows = agreed_count(place)
    except DemoFailed as failure:
        print_log_tail()
        print(f"demo: FAILED {failure}")
        return 1
    except KeyboardInterrupt:
        print("\ndemo: FAILED interrupted")
        return 130
    finally:
        # A warm Spark outlives the tasks that used it.
        stop_all()
    print(f"The table is at {place.shown()}, {time.monotonic() - began:.0f} s in all.")
    print(f"demo: OK version={version} rows={rows}")
    return 0


def prepare_folder() -> None:
    """Make an empty folder for the demo. Raises DemoFailed for a folder that the demo did not make."""
    if FOLDER.exists() and any(FOLDER.iterdir()) and not MARKER.exists():
        raise DemoFailed(f"{FOLDER} exists and was not made by the demo (it has no {MARKER.name}): move it away")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    MARKER.touch()
    LOG.touch()


def place_on_s3() -> Place:
    """Return a new folder in the demo's bucket, which is created, and the Airflow connections that lead to it.

    Raises DemoFailed if there is no server, or if it cannot create the bucket.
    """
    given = os.environ.get("TXLOG_TEST_S3", "").split()
    if len(given) != 3:
        raise DemoFailed("no S3 server: run `make demo STORE=s3`, or set TXLOG_TEST_S3='endpoint key secret'")
    endpoint, key, secret = given
    keys = {"aws_access_key_id": key, "aws_secret_access_key": secret}
    try:
        client = get_session().create_client("s3", endpoint_url=endpoint, region_name=REGION, **keys)
        if BUCKET not in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}:
            client.create_bucket(Bucket=BUCKET)
    except (BotoCoreError, ClientError, ValueError) as error:
        raise DemoFailed(f"the S3 server at {endpoint} makes no bucket ({type(error).__name__})") from None
    base = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    aws = {
        "conn_type": "aws",
        "login": key,
        "password": secret,
        "extra": {"endpoint_url": endpoint, "region_name": REGION},
    }
    txlog = {"conn_type": "txlog", "host": base, "extra": {"storage_conn_id": "demo_s3"}}
    return Place(
        table_uri=f"{base}/{TABLE_NAME}",
        environment={
            "AIRFLOW_CONN_DEMO_S3": json.dumps(aws),
            "AIRFLOW_CONN_DEMO_LAKE": json.dumps(txlog),
            "TXLOG_DEMO_CONN_ID": "demo_lake",
        },
        options={"endpoint_url": endpoint, "region": REGION, "key": key, "secret": secret},
        # Without keys deltalake would ask the machine's metadata address.
        deltalake_options={
            **{name.upper(): value for name, value in keys.items()},
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_REGION": REGION,
            "AWS_ALLOW_HTTP": "true",
        },
    )


@contextlib.contextmanager
def spark_of(runner: str, place: Place) -> Iterator[dict[str, str]]:
    """Yield the environment that lets Airflow's processes run jobs there. A cluster runs inside the context."""
    if runner != "cluster":
        yield {"TXLOG_DEMO_RUNNER": runner}
        return
    keys = {f"AWS_{name}": place.options[option] for name, option in KEYS.items() if option in place.options}
    with StandaloneCluster(FOLDER / "cluster", environment=keys) as cluster:
        print(f"A Spark cluster of two workers is up: {cluster.master}, its UI at {cluster.ui}")
        yield {
            "TXLOG_DEMO_RUNNER": "submit",
            "TXLOG_DEMO_SPARK_CONN_ID": "demo_cluster",
            "AIRFLOW_CONN_DEMO_CLUSTER": json.dumps({"conn_type": "spark", "host": cluster.master}),
        }


def environment() -> dict[str, str]:
    """Return the environment of the child, without anything of this machine's own Airflow."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW_", "TXLOG_DEMO_"))}
    return inherited | {
        "AIRFLOW_HOME": str(FOLDER / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "example_dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{FOLDER / 'airflow' / 'airflow.db'}",
        "TXLOG_DEMO_FOLDER": str(LAKE),
        "TXLOG_PROGRESS_FILE": str(PROGRESS),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONWARNINGS": "ignore",
        "PYTHONUNBUFFERED": "1",
    }


def run_pipeline(place: Place) -> None:
    """Make Airflow's database, run the DAG once, and print a line for every task that ends."""
    for command in (["db", "migrate"], ["dags", "test", DAG_ID]):
        for line in progress_of(["-m", "airflow", *command], place.environment):
            print(line, flush=True)


def progress_of(arguments: Sequence[str], connections: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run a child to its end, and yield what its tasks report as they report it.

    `connections` are added to its environment.

    Raises DemoFailed when the child fails or takes longer than the deadline. However this ends, no process of the
    child's group is left.
    """
    deadline = time.monotonic() + DEADLINE_S
    with LOG.open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=environment() | dict(connections or {}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            reports = ProgressReports()
            while child.poll() is None:
                if time.monotonic() > deadline:
                    raise DemoFailed(f"`airflow {' '.join(arguments[2:])}` did not end within {DEADLINE_S} s")
                yield from reports.new_lines()
                time.sleep(0.1)
            yield from reports.new_lines()
        finally:
            end_group(child)
    if child.returncode != 0:
        raise DemoFailed(f"`airflow {' '.join(arguments[2:])}` ended with exit code {child.returncode}")


def end_group(child: subprocess.Popen[bytes]) -> None:
    """End whatever is left of the child and of what it started, Spark's JVM included."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, sent)
        except ProcessLookupError:
            return
        for _ in range(50):
            if child.poll() is not None:
                break
            time.sleep(0.1)


class ProgressReports:
    """The lines that tasks append to the progress file, each shown once."""

    def __init__(self) -> None:
        self._read = 0
        self._shown = 0

    def new_lines(self) -> Iterator[str]:
        if not PROGRESS.exists():
            return
        data = PROGRESS.read_bytes()[self._read :]
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            self._shown += 1
            yield task_line(self._shown, json.loads(line))


def task_line(number: int, report: dict[str, Any]) -> str:
    """Return a line such as `[2/7] merge_corrections   v2 -> v3   12 of 365 files rewritten   812 rows   1.9 s`"""
    total = report.get("tasks")
    label = f"[{number}/{total}]" if total else f"[{number}]"
    columns = [
        f"{label} {report['task_id']:<22}",
        f"{versions(report):<12}",
        f"{files(report):<28}",
        f"{rows(report):>13}",
        f"{report['seconds']:6.1f} s",
    ]
    return "  ".join(columns).rstrip()


def versions(report: dict[str, Any]) -> str:
    before, after, status = report.get("read_version"), report.get("version"), report["status"]
    if status not in ("committed", "done"):
        return {"nothing_to_do": "no change", "already_done": "already done"}.get(status, status)
    if after is None:
        return ""
    return f"v{after}" if before in (None, -1, after) else f"v{before} -> v{after}"


def files(report: dict[str, Any]) -> str:
    counts = report.get("files") or {}
    if counts.get("rewritten"):
        return f"{counts['rewritten']} of {counts.get('considered', 0)} files rewritten"
    for verb in ("removed", "added"):
        if counts.get(verb):
            return f"{files_text(counts[verb])} {verb}"
    return ""


def files_text(count: int) -> str:
    return f"{count} file" if count == 1 else f"{count} files"


def rows(report: dict[str, Any]) -> str:
    return "" if report.get("rows") is None else f"{report['rows']:,} rows"


def print_history(place: Place) -> None:
    """Print the table's versions, the oldest first."""
    lines = [("version", "time", "operation", "what", "rows", "by")]
    for commit in reversed(Table.open(place.table_uri, storage_options=place.options).history()):
        metrics = commit.get("operationMetrics") or {}
        lines.append(
            (
                str(commit["version"]),
                dt.datetime.fromtimestamp(commit["timestamp"] / 1000).strftime("%H:%M:%S"),
                str(commit.get("operation", "")),
                file_changes(metrics),
                row_changes(metrics),
                str((commit.get("tags") or {}).get("airflow.task_id", "")),
            )
        )
    print()
    print(aligned(lines))
    print()


def file_changes(metrics: dict[str, Any]) -> str:
    added = next((metrics[n] for n in ("numTargetFilesAdded", "numAddedFiles", "numFiles") if n in metrics), None)
    removed = next((metrics[n] for n in ("numTargetFilesRemoved", "numRemovedFiles") if n in metrics), None)
    found = [(sign, int(count)) for sign, count in (("+", added), ("-", removed)) if count is not None]
    return " ".join(sign + files_text(count) for sign, count in found if count)


ROW_METRICS = {
    "numOutputRows": "written",
    "numTargetRowsInserted": "inserted",
    "numTargetRowsUpdated": "updated",
    "numTargetRowsDeleted": "deleted",
    "numDeletedRows": "deleted",
}


def row_changes(metrics: dict[str, Any]) -> str:
    if "numTargetRowsInserted" in metrics:
        metrics = {name: value for name, value in metrics.items() if name != "numOutputRows"}
    found = [(int(metrics[name]), verb) for name, verb in ROW_METRICS.items() if name in metrics]
    return ", ".join(f"{count:,} {verb}" for count, verb in found if count)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return the rows as columns of equal width, with a rule under the first."""
    widths = [max(len(line[index]) for line in lines) for index in range(len(lines[0]))]
    shown_lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    shown_lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in shown_lines)


def agreed_count(place: Place) -> tuple[int, int]:
    """Return version and number of rows, as this engine and `deltalake` read them, without the forgotten aircraft.

    Raises DemoFailed if the two differ.
    """
    ours = Table.open(place.table_uri, storage_options=place.options)
    theirs = DeltaTable(place.table_uri, storage_options=dict(place.deltalake_options))
    columns = [FORGOTTEN_COLUMN]
    counted = {}
    for reader, version, table in (
        ("airflow_txlog", ours.snapshot().version, ours.to_arrow(columns=columns)),
        ("deltalake", theirs.version(), theirs.to_pyarrow_table(columns=columns)),
    ):
        forgotten = table[FORGOTTEN_COLUMN].to_pylist().count(FORGOTTEN_VALUE)
        print(
            f"Read by {reader + ':':<15} version {version}, {table.num_rows:,} rows, {forgotten} of {FORGOTTEN_VALUE}"
        )
        if forgotten:
            raise DemoFailed(f"{reader} still reads {forgotten} rows of the forgotten {FORGOTTEN_VALUE}")
        counted[reader] = (version, table.num_rows)
    if counted["airflow_txlog"] != counted["deltalake"]:
        raise DemoFailed(f"the readers differ: version and rows are {counted}")
    return counted["airflow_txlog"]


def print_log_tail() -> None:
    if not LOG.exists():
        return
    tail = LOG.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    if not tail:
        return
    print(f"\n--- the last {len(tail)} lines of {shown(LOG)} ---")
    print("\n".join(tail))
    print("---")


def shown(path: Path) -> str:
    """Return a path as you would type it here."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    sys.exit(main())
