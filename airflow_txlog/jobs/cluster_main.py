"""The driver of a job in cluster mode: `spark-submit --deploy-mode cluster … cluster_main.py`, on another machine.

Spark sends this file and the package's zip (`--py-files`). One setting of its application leads it to its work and to
the place of its result, in the table's folder (`exchange`). The invariants: it reports its location before Spark's
first job; it does nothing if a later submission of the same work, or its own result, exists; and it ends with the
JVM that started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from typing import Any

# Python searches a script's folder first, whose modules are not top-level modules.
sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != os.path.dirname(os.path.abspath(__file__))]

from airflow_txlog import __version__  # noqa: E402
from airflow_txlog.clock import SYSTEM_CLOCK  # noqa: E402
from airflow_txlog.contract.job import JobResult, JobSpec  # noqa: E402
from airflow_txlog.errors import InvalidJobSpec, JobError  # noqa: E402
from airflow_txlog.exactly_once.exchange import KEY_SETTING, Exchange  # noqa: E402
from airflow_txlog.jobs.__main__ import EXIT_DONE, EXIT_FAILED, begin, exit_code, run_in_session  # noqa: E402


def main() -> int:
    """Run the job; return the exit code."""
    log = begin()

    def say(line: str) -> None:
        # The JVM passes it on, and may be gone. A commit must be reported nevertheless.
        with contextlib.suppress(OSError):
            log(line)

    given = _setting(KEY_SETTING)
    if given is None:
        say(f"The application has no setting {KEY_SETTING}: it was not submitted by a task. Nothing was done.")
        return EXIT_FAILED
    exchange, number, withheld = Exchange.received(given)
    try:
        document = exchange.get("spec", number)
    except JobError as error:
        say(str(error))
        return EXIT_FAILED
    if document is None:
        say(f"There is no job description {exchange.folder}/spec-{number} that its task has signed. Nothing was done.")
        return EXIT_FAILED
    name = document["name"]
    if exchange.last() != number or (exchange.get("result", number) or {}).get("submission") == name:
        say("A later try has submitted this work again, or it has its result already. Nothing was done.")
        return EXIT_DONE
    try:
        spec = JobSpec.from_json(json.dumps({**document["spec"], **withheld}))
    except InvalidJobSpec as error:
        # The task has made this spec of valid arguments, with its own package.
        result = _other_package(document["spec"], error)
        exchange.put("result", number, {**json.loads(result.to_json()), "submission": name})
        return exit_code(result)

    def report(spark: Any) -> None:
        context = spark.sparkContext
        where = {
            "application": context.applicationId,
            "master": context.master,
            "ui": context.uiWebUrl,
            "host": socket.gethostname(),
            "started_ms": SYSTEM_CLOCK.now_ms(),
        }
        exchange.put("driver", number, where)

    result = run_in_session(spec, "submitted", say, report)
    exchange.put("result", number, {**json.loads(result.to_json()), "submission": name})
    return exit_code(result)


def _other_package(spec: dict[str, Any], error: InvalidJobSpec) -> JobResult:
    """Return the result of a job whose description the package in the driver's image cannot read."""
    refused = InvalidJobSpec(
        f"The package airflow_txlog {__version__} in the driver's image cannot read the job that the worker's package "
        f"describes: they are of different releases. Install the worker's in the image. Nothing was read. ({error})",
        **error.facts,
    )
    return JobResult(status="failed", operation=spec["operation"], table_uri=spec["table_uri"], error=refused.to_dict())


def _setting(name: str) -> str | None:
    """Return a setting of the application, whose context does not exist yet."""
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - what comes before needs none

    SparkContext._ensure_initialized()
    found: str | None = SparkConf().get(name, None)
    return found


if __name__ == "__main__":
    sys.exit(main())
