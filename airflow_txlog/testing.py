"""Helpers for the tests of DAG authors: tables in a temporary folder, operators without Airflow's database, conflicts.

Put `pytest_plugins = ["airflow_txlog.testing"]` into the `conftest.py` at the root of your tests. Then a test gets the
fixture `lake`. Without pytest, use `Lake(folder)`. Every job of a test runs in the test's own process; Spark starts
only if the job needs it. Invariant: nothing here reads Airflow's database, a connection, or anything outside the
folder.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_txlog import storage
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.names import LogKind, parse_name
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.locations import LOCAL, Access, local_path
from airflow_txlog.storage import LocalStore

try:
    import pytest
except ImportError:
    # Only the fixture needs it.
    pytest = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator

_KEYS = itertools.count(1)
_DEFAULT_DATE = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class TableUnderTest:
    """A Delta table of a test. Every method reads its latest version anew."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    @property
    def table(self) -> Table:
        """The table, opened through the engine. Raises TableNotFound."""
        return Table.open(self.uri)

    @property
    def version(self) -> int:
        """The number of the latest version."""
        return self.table.latest_version()

    @property
    def operations(self) -> list[str]:
        """The operations of the commits as the table's history names them ("WRITE", "MERGE", …), oldest first."""
        return [str(commit.get("operation")) for commit in reversed(self.table.history())]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows as dictionaries, ordered by their values."""
        return _ordered(self.table.to_arrow().to_pylist())

    def append(self, rows: Sequence[Mapping[str, Any]] | pa.Table) -> int:
        """Append rows in one commit, as another writer would, and return its version."""
        return _append(self.uri, rows)

    def assert_rows(self, expected: Sequence[Mapping[str, Any]]) -> None:
        """Raise AssertionError unless the table has exactly these rows, in any order.

        The message counts the differences and shows at most five rows of each kind.
        """
        found, wanted = self.rows, _ordered(expected)
        if found == wanted:
            return
        missing, unexpected = list(wanted), []
        for row in found:
            if row in missing:
                missing.remove(row)
            else:
                unexpected.append(row)
        raise AssertionError(
            f"{self.uri} at version {self.version} has {len(found)} rows, and {len(wanted)} are expected: "
            f"{len(missing)} are missing {missing[:5]}, {len(unexpected)} are unexpected {unexpected[:5]}"
        )

    def assert_operations(self, *expected: str) -> None:
        """Raise AssertionError unless the last commits are of these operations, oldest first."""
        found = self.operations[-len(expected) :]
        if found != list(expected):
            raise AssertionError(f"the last commits of {self.uri} are {found}; expected {list(expected)}")


class Lake:
    """A folder of Delta tables, and the way to run operators on them.

    :param folder: where the tables are; it is created.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def uri(self, name: str) -> str:
        """Return the URI of a table of this lake, whether it exists or not."""
        return str(self.folder / name)

    def table(
        self,
        name: str,
        rows: Sequence[Mapping[str, Any]] | pa.Table | None = None,
        *,
        partition_by: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> TableUnderTest:
        """Return a table of this lake; with `rows`, create it or append them.

        `rows`: dictionaries or an Arrow table. Its types become those of a new table. An Arrow table without rows
        creates an empty table.
        """
        found = TableUnderTest(self.uri(name))
        if rows is not None:
            _append(found.uri, rows, partition_by=partition_by, properties=properties)
        return found

    def run(
        self,
        operator: BaseOperator,
        *,
        arguments: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        logical_date: dt.datetime = _DEFAULT_DATE,
        xcoms: Mapping[str, Any] | None = None,
        **context: Any,
    ) -> Any:
        """Run a copy of an operator as a task would, without Airflow's database, and return its XCom.

        `arguments` replace those of the DAG file, such as `{"table_uri": lake.uri("users")}`. Templates are rendered
        with `params`, `ds`, `ts`, `run_id`, `logical_date` and the values in `context`. `xcoms`: the outputs of other
        tasks by their ids, for `{{ ti.xcom_pull("task") }}`. The job runs in this process, whichever runner the
        operator names. There is no task instance, so each call is new work. To test that a second run changes nothing,
        give the operator an `idempotency_key`.

        Raises the job's typed error.
        """
        day = logical_date.strftime("%Y-%m-%d")
        pulled = dict(xcoms or {})
        given: Any = {
            "params": dict(params or {}),
            "logical_date": logical_date,
            "ds": day,
            "ds_nodash": day.replace("-", ""),
            "ts": logical_date.isoformat(),
            "run_id": f"test__{logical_date.isoformat()}",
            "ti": SimpleNamespace(xcom_pull=lambda task_ids=None, **_: pulled.get(task_ids)),
            **context,
        }
        task = operator.prepare_for_execution()
        here = {"runner": "in_process"} if hasattr(task, "runner") else {}
        for name, value in {**(arguments or {}), **here}.items():
            if not hasattr(task, name):
                raise AttributeError(f"{type(task).__name__} has no argument {name!r}")
            setattr(task, name, value)
        task.render_template_fields(given)
        del given["ti"]
        try:
            return task.execute(given)
        except AirflowFailException as error:
            # Without retry policies (before Airflow 3.3), it stands for an error that must not be retried.
            raise error.__cause__ or error from None

    @contextlib.contextmanager
    def overtaken(self, name: str, by: Callable[[], object]) -> Iterator[None]:
        """Let another writer commit to a table first: `by` runs right before the next commit to it.

        `by` may run an operator, or append to the table. Afterwards the job inside the block finds its version taken.
        It commits if the two changes do not conflict. Otherwise it does its work again, or raises the conflict.

        Raises AssertionError at the end if nothing was committed inside the block: `by` did not run.
        """
        root, is_over = self.uri(name), False

        class Overtaken(LocalStore):
            def put_if_absent(self, path: str, data: bytes) -> bool:
                nonlocal is_over
                parsed = parse_name(path)
                is_commit = parsed is not None and parsed.kind is LogKind.COMMIT
                if is_commit and not is_over and local_path(self.root) == root:
                    is_over = True
                    by()
                return super().put_if_absent(path, data)

        def opened(uri: str, access: Access) -> storage.Store:
            path = local_path(uri)
            return usual(uri, access) if path is None else Overtaken(path, access)

        usual = storage.STORES[LOCAL]
        storage.STORES[LOCAL] = opened
        try:
            yield
        finally:
            storage.STORES[LOCAL] = usual
        if not is_over:
            raise AssertionError(f"nothing was committed to {root} inside the block, so nothing was overtaken")


def lake(tmp_path: Path) -> Lake:
    """Return a `Lake` in a folder of this test: a fixture, if pytest is installed."""
    return Lake(tmp_path / "lake")


if pytest is not None:
    lake = pytest.fixture(lake)


def _append(uri: str, rows: Sequence[Mapping[str, Any]] | pa.Table, **creation: Any) -> int:
    arrow = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist([dict(row) for row in rows])
    result = TxlogHook().append(uri, arrow, idempotency_key=f"test-{next(_KEYS)}", **creation)
    assert result.version is not None, "an append commits, or raises"
    return result.version


def _ordered(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return sorted((dict(row) for row in rows), key=lambda row: repr(sorted(row.items())))
