"""The page of each operator: its example runs unchanged in another folder, and logs the lines on the page.

TXLOG_NEW_LOGS=1 writes the logs on the pages anew, for you to read.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG

from airflow_txlog.operators.base import TxlogOperator
from airflow_txlog.testing import Lake
from tests.helpers.paths import ROOT
from tests.helpers.rows import append

pytestmark = pytest.mark.airflow

FOLDER = ROOT / "docs" / "operators"
EXAMPLE = re.compile(r"^<!-- run by tests/test_operator_pages.py -->\n```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
LOG = re.compile(r"^## Log\n(?:\n[^`]*?)?\n```text\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINE = re.compile(r"^\S+ \[(?:info|warning|error)\s*\] (.*?)\s*\[(?:airflow\.task\.\w+\.)?airflow_txlog\.\S+\] loc=")
# What a task of Airflow, which has a task instance, does not log.
OF_THE_TEST = ("execute() was called without a task instance", "there is no task instance", "cannot be called outside")
DAY = dt.date(2026, 1, 1)
ORDERS = [{"day": DAY, "order_id": number, "amount": 10.0 * number} for number in (1, 2, 3)]
USERS = [{"user_id": 1, "email": "ann@example.org"}, {"user_id": 2, "email": "joe@example.org"}]


def put(path: str, rows: list[dict[str, Any]]) -> None:
    """Write rows as a Parquet file."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def _write(lake: Lake) -> None:
    put(lake.uri("in/orders/2026-01-01/a.parquet"), ORDERS)


def _audit(lake: Lake) -> None:
    lake.table("lake/orders", [{**ORDERS[0], "order_id": 0}])
    _write(lake)


def _merge(lake: Lake) -> None:
    lake.table("lake/orders", ORDERS)
    put(lake.uri("in/corrections/2026-01-01/a.parquet"), [{**ORDERS[1], "amount": 25.0}, {**ORDERS[2], "order_id": 4}])


def _upsert(lake: Lake) -> None:
    rows = [{"country": "NO", **user, "last_seen": DAY} for user in USERS]
    lake.table("lake/users", rows, partition_by=["country"])
    put(lake.uri("in/users/2026-01-01/a.parquet"), [{**rows[1], "email": "j@example.org"}, {**rows[1], "user_id": 3}])


def _update(lake: Lake) -> None:
    old = {"note": None, "last_seen": dt.date(2025, 6, 1)}
    schema = pa.schema({"user_id": pa.int64(), "email": pa.string(), "note": pa.string(), "last_seen": pa.date32()})
    lake.table("lake/users", pa.Table.from_pylist([{**user, **old} for user in USERS], schema))


def _delete(lake: Lake) -> None:
    lake.table("lake/users", USERS)


def _truncate(lake: Lake) -> None:
    lake.table("lake/staging", ORDERS)


def _prices(lake: Lake) -> None:
    lake.table("lake/prices", [{"item": 1, "price": 2.5}, {"item": 2, "price": 4.0}])


def _snapshot(lake: Lake) -> None:
    shops = [{"shop": number, "city": "Oslo"} for number in range(1, 9)]
    lake.table("lake/shops", shops)
    put(
        lake.uri("in/shops/2026-01-01/a.parquet"),
        [{"shop": 1, "city": "Bergen"}, *shops[1:7], {"shop": 9, "city": "Bodø"}],
    )


def _changes(lake: Lake) -> None:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    lake.table(
        "lake/customers", [{"id": 1, "name": "ann", "changed_at": at}, {"id": 2, "name": "joe", "changed_at": at}]
    )
    hour = dt.timedelta(hours=1)
    events = [
        {"id": 1, "name": "ann b.", "changed_at": at + hour, "op": "u"},
        {"id": 2, "name": None, "changed_at": at + 2 * hour, "op": "d"},
        {"id": 2, "name": "late", "changed_at": at + hour, "op": "u"},
    ]
    put(lake.uri("in/events/2026-01-01T00/a.parquet"), events)


def _bronze(lake: Lake) -> None:
    lake.table("lake/bronze", ORDERS)


def _orders(lake: Lake) -> None:
    lake.table("lake/orders", ORDERS)


def _convert(lake: Lake) -> None:
    put(lake.uri("lake/events/day=2026-01-01/shop=oslo/a.parquet"), [{"event": 1}, {"event": 2}])
    put(lake.uri("lake/events/day=2026-01-02/shop=oslo/a.parquet"), [{"event": 3}])


def _restore(lake: Lake) -> None:
    lake.table("lake/flights", [{"flight": 1}])
    lake.table("lake/flights", [{"flight": 2}])


def _rollback(lake: Lake) -> None:
    lake.table("lake/orders", ORDERS)
    of_the_run = {"airflow.dag_id": "orders", "airflow.run_id": "r1", "airflow.task_id": "load"}
    append(lake.table("lake/orders").table, ORDERS, tags=of_the_run)


def _report(lake: Lake) -> None:
    lake.table("lake/orders", [{"order_id": 1, "shop": 1}])
    lake.table("lake/shops", [{"shop": 1, "city": "Oslo"}])


def _erase(lake: Lake) -> None:
    lake.table("lake/users", USERS)
    lake.table(
        "lake/orders", [{"order_id": number, "customer": {"email": USERS[number - 1]["email"]}} for number in (1, 2)]
    )
    for name in ("2026-01-01", "r-17"):
        path = Path(lake.uri(f"requests/{name}.csv"))
        path.parent.mkdir(exist_ok=True)
        path.write_text("email\njoe@example.org\n" if name != "r-17" else "eve@example.org\n")


def _events(lake: Lake) -> None:
    for number in range(4):
        lake.table("lake/events", [{"day": DAY, "event": number}], partition_by=["day"])


def _flights(lake: Lake) -> None:
    lake.table("lake/flights", [{"day": DAY, "flight": 1}], partition_by=["day"])


PREPARED: dict[str, Callable[[Lake], None]] = {
    "alter-table": _orders,
    "apply-changes": _changes,
    "apply-snapshot": _snapshot,
    "audit": _audit,
    "checkpoint": _events,
    "clone": _orders,
    "convert": _convert,
    "delete": _delete,
    "discard": _prices,
    "erase": _erase,
    "erasure-verify": _erase,
    "incremental": _bronze,
    "merge": _merge,
    "optimize": _events,
    "pin-versions": _report,
    "publish": _prices,
    "restore": _restore,
    "rollback": _rollback,
    "table-version-sensor": _flights,
    "truncate": _truncate,
    "update": _update,
    "upkeep": _events,
    "upsert": _upsert,
    "vacuum": _events,
    "write": _write,
}
"""What must be there before the example of a page runs."""


NOT_RUN: dict[str, tuple[str, ...]] = {"pin-versions": ("report",)}
PARAMS: dict[str, dict[str, Any]] = {"rollback": {"run_id": "r1"}}


def example(page: Path, lake: Lake) -> DAG:
    """Return the DAG of a page's example, with its folders in the lake."""
    (block,) = EXAMPLE.findall(page.read_text())
    found: dict[str, Any] = {}
    moved = re.sub(r'"/(lake|in|requests|reports|backup)\b', rf'"{lake.folder}/\1', block)
    named = re.sub(r"^(with DAG\(.*\)):$", r"\1 as dag:", moved, flags=re.MULTILINE)
    exec(compile(named, page.name, "exec"), found)
    dag: DAG = found["dag"]
    return dag


def run(lake: Lake, task: Any, xcoms: dict[str, Any], params: dict[str, Any]) -> Any:
    """Run a task of an example and return its XCom."""
    if not isinstance(task, TxlogOperator):
        context: Any = {"ds": str(DAY), "params": params, "run_id": "test"}
        task.render_template_fields(context)
        return task.execute(context)
    # A staged change waits under the identity of its work, which an Airflow task has anyway.
    staging = getattr(task, "publish", True) is False
    arguments = {"idempotency_key": "test"} if staging else {}
    return lake.run(task, arguments=arguments, xcoms=xcoms, params=params)


def normal(line: str) -> str:
    """Return a line of a log without what differs from run to run."""
    for pattern, instead in (
        (r"\b\d+(\.\d+)? s\b", "0.1 s"),
        (r"(Bytes\w*|Size\w*) \d+", r"\1 1234"),
        # Left out where it is zero.
        (r"\w+Ms \d+(, |$)", ""),
        (r", $", ""),
        (r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", "2026-01-01T00:00:00+00:00"),
        (r"at most [1-9]\d* bytes", "at most 1234 bytes"),
        (r"\d+(\.\d+)? [KM]?i?B\b", "1.2 KiB"),
        (r"\d{8}T\d{12}", "20260101T000000000000"),
    ):
        line = re.sub(pattern, instead, line)
    return line


PAGES = sorted(page for page in FOLDER.glob("*.md") if EXAMPLE.search(page.read_text()))


def case(page: Path) -> Any:
    marks = [pytest.mark.spark, pytest.mark.long("a Spark for one page")]
    return pytest.param(page, id=page.stem, marks=marks if page.stem == "audit" else [])


@pytest.mark.parametrize("page", map(case, PAGES))
def test_the_example_of_an_operator_runs_and_logs_what_its_page_shows(
    page: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if page.stem == "audit":
        request.getfixturevalue("spark")
    monkeypatch.setenv("AIRFLOW_VAR_TXLOG_SAVED_WORK_SECRET", "0123456789" * 4)
    lake = Lake(tmp_path)
    PREPARED[page.stem](lake)
    dag = example(page, lake)
    capfd.readouterr()
    xcoms: dict[str, Any] = {}
    for task in dag.topological_sort():
        if task.task_id not in NOT_RUN.get(page.stem, ()):
            xcoms[task.task_id] = run(lake, task, xcoms, dag.params.dump() | PARAMS.get(page.stem, {}))
    said = [LINE.match(line) for line in capfd.readouterr().out.splitlines()]
    lines = [line[1].replace(str(tmp_path), "") for line in said if line]
    found = [line for line in lines if not any(text in line for text in OF_THE_TEST)]
    (shown,) = LOG.findall(page.read_text())
    if os.environ.get("TXLOG_NEW_LOGS"):
        text = page.read_text()
        start = text.index(shown, text.index("## Log"))
        page.write_text(text[:start] + "".join(f"{line}\n" for line in found) + text[start + len(shown) :])
        return
    assert list(map(normal, found)) == list(map(normal, shown.splitlines()))


def test_every_page_of_an_operator_has_an_example_that_runs() -> None:
    assert {page.stem for page in PAGES} == PREPARED.keys()
