"""A driver without Spark: it commits its work's transaction by the engine, and reports as a job's does.

As a process it is called as Spark's own: `plain_driver.py --properties-file FILE …`.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.engine import Table
from airflow_txlog.exactly_once.exchange import KEY_SETTING, Exchange
from tests.helpers.rows import append


def settings_in(file: Path) -> dict[str, str]:
    """What a properties file holds."""
    plain = re.sub(r"\\u([0-9a-f]{4})", lambda code: chr(int(code[1], 16)), file.read_text())
    return dict(line.split("=", 1) for line in plain.splitlines())


def drive(settings: Path, folder: Path, check: Callable[[], None] = lambda: None) -> None:
    """Do the work. `folder` says when to wait (`PlayedCluster.hold`); meanwhile `check` is called, which may raise."""
    exchange, number, withheld = Exchange.received(settings_in(settings)[KEY_SETTING])

    def wait(at: str) -> None:
        while (folder / f"hold-{at}").exists():
            check()
            time.sleep(0.02)

    wait("begin")
    document = exchange.get("spec", number)
    assert document is not None
    spec = JobSpec.from_json(json.dumps({**document["spec"], **withheld}))
    exchange.put("driver", number, {"application": "app-1", "master": "local[2]", "ui": None})
    wait("commit")
    given = folder / "result"
    if given.exists():
        result = JobResult.from_json(given.read_text())
    else:
        done = None if spec.application is None else (spec.application.app_id, spec.application.version)
        table = Table.at(spec.table_uri, spec.access)
        version = append(table, [{"user_id": 1000}], application=done, tags=spec.commit_tags())
        result = JobResult(status="committed", operation="delete", table_uri=spec.table_uri, version=version)
    wait("result")
    exchange.put("result", number, {**json.loads(result.to_json()), "submission": document["name"]})


if __name__ == "__main__":
    found = Path(sys.argv[sys.argv.index("--properties-file") + 1])
    drive(found, found.parents[1])
