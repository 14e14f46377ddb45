"""Each alteration alone, killed at every request of its store, or overtaken by a commit: the table has it once."""

from __future__ import annotations

import functools
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.jobs.run import run_job
from airflow_txlog.storage import LocalStore
from tests.helpers.jobs import application, committed, ids, rows, run
from tests.helpers.racing import Killed, before_commit
from tests.helpers.rows import append, bag, make_table
from tests.helpers.specs import job_spec

ALTERATIONS: dict[str, dict[str, Any]] = {
    "set a property": {"set_properties": {"delta.appendOnly": "true"}},
    "unset a property": {"unset_properties": ["team"]},
    "deletion vectors": {"add_features": ["deletionVectors"]},
    "change feed": {"add_features": ["changeDataFeed"]},
    "row ids": {"add_features": ["rowTracking"]},
    "timestamps": {"add_features": ["inCommitTimestamp"]},
    "mapping": {"add_features": ["columnMapping"]},
    "V2 checkpoints": {"add_features": ["v2Checkpoint"]},
    "no domains": {"drop_features": ["domainMetadata"]},
    "no vacuum check": {"drop_features": ["vacuumProtocolCheck"]},
    "add": {"add_columns": {"note": "STRING"}},
    "rename": {"rename_columns": {"name": "label"}},
    "drop": {"drop_columns": ["name"]},
    "widen": {"change_types": {"day": "TIMESTAMP_NTZ"}},
    "comment": {"set_comments": {"id": "the key"}},
    "constraint": {"add_constraints": {"positive": "id >= 0"}},
    "no constraint": {"drop_constraints": ["finite"]},
    "not null": {"set_not_null": ["id"]},
    "null": {"drop_not_null": ["amount"]},
    "cluster": {"cluster_by": ["id"]},
}
PROPERTIES = {
    "team": "a",
    "delta.feature.domainMetadata": "supported",
    "delta.feature.vacuumProtocolCheck": "supported",
    "delta.constraints.finite": "amount < 1000000",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Table]:
    """Make a table at version 3, with a constraint, a property, a listed feature and a column that forbids null."""
    folder = tmp_path_factory.mktemp("made") / "t"
    table = make_table(folder, rows(4), rows(4, start=10), properties=PROPERTIES)
    committed(run(None, "alter", table, set_not_null=["amount"]))

    def copy(to: Path) -> Table:
        shutil.copytree(folder, to)
        return Table.open(to)

    return copy


def alter(table: Table, name: str, identity: Any) -> JobResult:
    arguments = {"allow_reader_upgrade": True, **ALTERATIONS[name]}
    return run_job(job_spec(operation="alter", table_uri=table.uri, arguments=arguments, application=identity), None)


class _Requests:
    """Counts the requests to stores of this disk, and kills the caller at one of them, before or after it is done."""

    def __init__(self, kill_at: int, *, is_done: bool) -> None:
        self.count, self._kill_at, self._is_done = 0, kill_at, is_done
        # Files are read in threads.
        self._lock = threading.Lock()

    def wrapped(self, request: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(request)
        def counted(*given: Any, **named: Any) -> Any:
            with self._lock:
                self.count += 1
                is_it = self.count == self._kill_at
            if is_it and not self._is_done:
                raise Killed
            try:
                return request(*given, **named)
            finally:
                if is_it:
                    raise Killed

        return counted


@contextmanager
def requests(kill_at: int, *, is_done: bool) -> Iterator[None]:
    found = _Requests(kill_at, is_done=is_done)
    with pytest.MonkeyPatch.context() as patch:
        for name in (
            "read",
            "list",
            "stat",
            "put_if_absent",
            "put",
            "open_new",
            "put_new",
            "open_output",
            "open_input",
        ):
            patch.setattr(LocalStore, name, found.wrapped(getattr(LocalStore, name)))
        yield


def state(table: Table) -> tuple[Any, ...]:
    snapshot = table.snapshot()
    return snapshot.version, snapshot.protocol, snapshot.schema.names, sorted(snapshot.properties), bag(table)


# Of the others there are more like each of these.
SHORT = ("add", "constraint", "row ids", "widen")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in SHORT else pytest.mark.long("another alteration")) for name in ALTERATIONS],
)
def test_an_alteration_that_is_killed_at_any_request_is_done_once(
    made: Callable[[Path], Table], tmp_path: Path, name: str
) -> None:
    table = made(tmp_path / "whole")
    committed(alter(table, name, application()))
    expected = state(Table.open(table.uri))
    assert expected[0] == 4
    for is_done in (False, True):
        number, is_killed = 1, True
        while is_killed:
            table, identity = made(tmp_path / f"{number}-{is_done}"), application()
            try:
                with requests(number, is_done=is_done):
                    alter(table, name, identity)
                is_killed = False
            except Killed:
                number += 1
            again = alter(table, name, identity)
            assert again.status in ("committed", "already_done"), again.error
            assert state(Table.open(table.uri)) == expected, f"request {number}, done: {is_done}"
        assert number > 4, "it reads and it commits"


@pytest.mark.parametrize("name", ALTERATIONS)
def test_an_append_that_lands_first_stays_and_the_alteration_follows(
    made: Callable[[Path], Table], tmp_path: Path, name: str
) -> None:
    table = made(tmp_path / "t")
    with before_commit(lambda _: append(table, rows(2, start=50))):
        assert committed(alter(table, name, application())).version == 5
    assert ids(Table.open(table.uri)) == [*range(4), *range(10, 14), 50, 51]
    if name == "row ids":
        assert table.snapshot().files().column("base_row_id").null_count == 0
