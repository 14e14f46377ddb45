"""A try that finds no number kept asks the table's log: after a loss, and over an upgrade or a downgrade in between.

Airflow before 3.3 has no task state store, so there the number of a task is its `max_tries`. The classes of
`test_identity` stand for what Airflow knows of a task instance, and the table is a real one.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.contract.job import ApplicationTransaction, JobSpec
from airflow_txlog.engine import Table
from airflow_txlog.errors import IdempotencyKeyReused
from airflow_txlog.exactly_once.transactions import find_done, recorded_version, recorded_work
from tests.airflow.test_identity import StateStore, Try, commit
from tests.helpers.specs import job_spec

MakeStore = Callable[[], StateStore | None]

pytestmark = pytest.mark.airflow

STARTED = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=1)


def no_store() -> None:
    return None


@dataclass(frozen=True)
class TryOfAirflow(Try):
    """A try with its own id, as Airflow gives one to each."""

    id: str = "first"

    def retried(self) -> Try:
        return TryOfAirflow(**(self.__dict__ | {"try_number": self.try_number + 1, "id": str(uuid.uuid4())}))


@dataclass(frozen=True)
class Run:
    start_date: dt.datetime | None = STARTED


@pytest.fixture(autouse=True)
def default_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW__TXLOG__DEPLOYMENT_ID")


@pytest.fixture
def table(memory_uri: str) -> Table:
    return Table.create(memory_uri, pa.schema([("id", pa.int64())]))


def spec_of(
    table: Table,
    ti: Try,
    store: StateStore | None,
    started: dt.datetime | None = STARTED,
    read: Callable[[str], int | None] | None = None,
) -> JobSpec:
    """The job of one try, as the operator describes it."""
    from airflow_txlog.hooks.identity import annotations_of, application_transaction

    context: dict[str, Any] = {"ti": ti, "dag_run": Run(started)}
    if store is not None:
        context["task_state_store"] = store
    application = application_transaction(
        context,
        read or (lambda app_id: recorded_version(table, app_id)),
        recorded_work=lambda app_id_end: recorded_work(table, app_id_end),
    )
    return job_spec(
        operation="delete",
        table_uri=table.uri,
        arguments={"predicate": "id = 1"},
        application=application,
        annotations=annotations_of(context),
    )


def do(table: Table, spec: JobSpec) -> str:
    """Run a job: "already_done", or "committed"."""
    if find_done(spec) is not None:
        return "already_done"
    assert spec.application is not None
    commit(table, spec, spec.application)
    return "committed"


@pytest.mark.parametrize(
    ("first", "second"),
    [(no_store, StateStore), (StateStore, no_store), (StateStore, StateStore), (no_store, no_store)],
    ids=["to 3.3", "from 3.3", "lost", "before 3.3"],
)
@pytest.mark.parametrize("configured", ["", "production"])
def test_a_retry_finds_the_commit_of_a_try_of_which_nothing_is_kept(
    table: Table, first: MakeStore, second: MakeStore, configured: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__TXLOG__DEPLOYMENT_ID", configured)
    ti, store = TryOfAirflow(), second()
    assert do(table, spec_of(table, ti, first())) == "committed"
    assert do(table, spec_of(table, ti.retried(), store)) == "already_done"
    assert do(table, spec_of(table, ti.retried().retried(), store)) == "already_done"


@pytest.mark.parametrize(("first", "second"), [(no_store, StateStore), (StateStore, no_store)])
def test_a_clear_over_an_upgrade_is_new_work(table: Table, first: MakeStore, second: MakeStore) -> None:
    ti, store = TryOfAirflow(), second()
    assert do(table, spec_of(table, ti, first())) == "committed"
    cleared = ti.cleared(retries=4)
    assert do(table, spec_of(table, cleared, store)) == "committed"
    assert do(table, spec_of(table, cleared.retried(), store)) == "already_done"


@pytest.mark.parametrize("make_store", [StateStore, no_store], ids=["to 3.3", "before 3.3"])
def test_a_retry_finds_the_commit_of_a_release_with_other_app_ids(table: Table, make_store: MakeStore) -> None:
    """That release named the deployment by a hash of the API's URL, and tagged neither `max_tries` nor the start."""
    ti = TryOfAirflow()
    old = ApplicationTransaction(app_id=f"airflow_txlog/e3b0c44298fc/load/a/{ti.run_id}/-1", version=ti.max_tries)
    spec = spec_of(table, ti, no_store())
    tags = {name: value for name, value in spec.annotations.items() if name not in ("max_tries", "run_started")}
    assert do(table, spec.replace(application=old, annotations=tags)) == "committed"
    assert do(table, spec_of(table, ti.retried(), make_store())) == "already_done"


@pytest.mark.parametrize("make_store", [StateStore, no_store], ids=["lost", "before 3.3"])
def test_a_retry_finds_its_commit_after_the_deployment_was_given_an_id(
    table: Table, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ti = TryOfAirflow()
    assert do(table, spec_of(table, ti, make_store())) == "committed"
    monkeypatch.setenv("AIRFLOW__TXLOG__DEPLOYMENT_ID", "production")
    assert do(table, spec_of(table, ti.retried(), make_store())) == "already_done"


def test_a_clear_before_3_3_is_new_work_where_the_tags_of_the_first_commit_are_lost(table: Table) -> None:
    """Log cleanup deletes commits, and their tags with them; the number stays in the table."""
    ti = TryOfAirflow()
    spec = spec_of(table, ti, no_store())
    assert do(table, spec.replace(annotations={})) == "committed"
    assert do(table, spec_of(table, ti.retried(), no_store())) == "already_done"
    assert do(table, spec_of(table, ti.cleared(retries=4), no_store())) == "committed"


def test_a_number_that_an_earlier_release_kept_is_used(table: Table) -> None:
    ti, store = TryOfAirflow(), StateStore()
    store.set("txlog.transaction", {"app_id": "old", "version": 7, "max_tries": ti.max_tries})
    application = spec_of(table, ti.retried(), store).application
    assert application is not None
    assert (application.app_id, application.version) == ("old", 7)


@pytest.mark.parametrize("make_store", [StateStore, no_store])
def test_a_retry_does_not_take_another_deployments_commit_for_its_own(table: Table, make_store: MakeStore) -> None:
    """All ids are equal but those that Airflow makes itself, and the number of our first try was lost."""
    ours, theirs = TryOfAirflow(), TryOfAirflow(id="theirs")
    spec_of(table, ours, make_store())
    their_start = STARTED + dt.timedelta(seconds=1)
    assert do(table, spec_of(table, theirs, make_store(), their_start)) == "committed"
    assert do(table, spec_of(table, ours.retried(), make_store())) == "committed"
    assert do(table, spec_of(table, theirs.retried(), no_store(), their_start)) == "already_done"


def test_a_retry_refuses_to_guess_about_a_commit_from_before_its_run(table: Table) -> None:
    """An earlier run of the same name left it, or this very task before its run was set back to the queue."""
    ti = TryOfAirflow()
    assert do(table, spec_of(table, ti, no_store(), STARTED)) == "committed"
    later = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=1)
    with pytest.raises(IdempotencyKeyReused, match="before this run began"):
        spec_of(table, ti.retried(), StateStore(), later)
    # A first try is new work, whatever an earlier run of that name did.
    assert do(table, spec_of(table, TryOfAirflow(id="recreated"), StateStore(), later)) == "committed"


def test_a_clear_after_that_refusal_is_new_work_also_where_the_tags_are_lost(table: Table) -> None:
    """As the refusal advises. Without tags nothing else shows that the commit is from before the clear."""
    ti, store = TryOfAirflow(), StateStore()
    spec = spec_of(table, ti, no_store(), STARTED)
    assert do(table, spec.replace(annotations={})) == "committed"
    later = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=1)
    refused = ti.retried()
    for _ in range(2):
        with pytest.raises(IdempotencyKeyReused, match="clear the task"):
            spec_of(table, refused, store, later)
        refused = refused.retried()
    cleared = refused.cleared(retries=4)
    assert do(table, spec_of(table, cleared, store, later)) == "committed"
    assert do(table, spec_of(table, cleared.retried(), store, later)) == "already_done"


def test_two_copies_of_a_cleared_try_hold_one_number(table: Table) -> None:
    """The second copy reads what is kept, then the first one keeps its number and commits, then the second goes on."""
    ti, store = TryOfAirflow(), StateStore()
    assert do(table, spec_of(table, ti, store)) == "committed"
    cleared = ti.cleared()
    overtaken: list[str] = []

    def read_when_overtaken(app_id: str) -> int | None:
        if not overtaken:
            overtaken.append(do(table, spec_of(table, cleared, store)))
        return recorded_version(table, app_id)

    assert do(table, spec_of(table, cleared, store, read=read_when_overtaken)) == "already_done"
    assert overtaken == ["committed"]
    assert table.snapshot().num_files == 2
