"""Exactly once per task: the application transaction of every try, after soundness A10.

The table is a real one, in memory; what Airflow knows of a task instance and keeps for it are two small classes that
follow Airflow 3.3.2 as observed: the state store goes with its DagRun, a clear keeps it and changes `max_tries`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.clock import SYSTEM_CLOCK, Clock
from airflow_txlog.contract.job import ApplicationTransaction, JobResult, JobSpec
from airflow_txlog.contract.operations import Delete
from airflow_txlog.contract.wording import summary_lines
from airflow_txlog.engine import Table
from airflow_txlog.engine.upkeep.rollback import NOT_DONE
from airflow_txlog.errors import IdempotencyKeyReused, InvalidJobSpec, TableMoved, TransactionExpired
from airflow_txlog.exactly_once.transactions import done_in, find_done, recorded_version
from airflow_txlog.storage import PLAIN
from tests.conftest import ManualClock
from tests.helpers.specs import job_spec

pytestmark = pytest.mark.airflow

# One moment for all tries of a test that is not about time: when the work was first tried is part of the identity.
NOW = ManualClock(SYSTEM_CLOCK.now_ms())


@dataclass
class StateStore:
    """The task state store of one task instance of one DagRun."""

    values: dict[str, Any] = field(default_factory=dict)
    retentions: list[dt.timedelta | None] = field(default_factory=list)

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)

    def set(self, key: str, value: Any, *, retention: dt.timedelta | None = None) -> None:
        self.values[key] = value
        self.retentions.append(retention)


@dataclass(frozen=True)
class Try:
    """What a try of a task instance sees of itself."""

    dag_id: str = "load"
    task_id: str = "a"
    run_id: str = "scheduled__2024-01-01T00:00:00+00:00"
    map_index: int = -1
    try_number: int = 1
    max_tries: int = 2

    def retried(self) -> Try:
        """The next try: nothing else changes, whatever is cleared elsewhere in the run."""
        return replace(self, try_number=self.try_number + 1)

    def cleared(self, retries: int = 2) -> Try:
        """The next try after a clear of this task: `max_tries` is the tries so far and the retries again."""
        return replace(self, try_number=self.try_number + 1, max_tries=self.try_number + retries)


@pytest.fixture
def table(memory_uri: str) -> Table:
    return Table.create(memory_uri, pa.schema([("id", pa.int64())]))


@pytest.fixture
def spec(table: Table) -> JobSpec:
    return job_spec(operation="delete", table_uri=table.uri, arguments={"predicate": "id = 1"})


def identity(
    table: Table,
    ti: Try,
    store: StateStore | None,
    key: str | None = None,
    run_started: dt.datetime | None = None,
    clock: Clock = NOW,
) -> ApplicationTransaction:
    from airflow_txlog.hooks.identity import application_transaction

    context: dict[str, Any] = {"ti": ti, "task": SimpleNamespace(retries=2)}
    if store is not None:
        context["task_state_store"] = store
    else:

        @dataclass
        class Run:
            start_date: dt.datetime | None = run_started

        context["dag_run"] = Run()
    return application_transaction(context, lambda app_id: recorded_version(table, app_id), key, clock)


def commit(table: Table, spec: JobSpec, application: ApplicationTransaction) -> int:
    """What the job's data-changing commit leaves: a file, the transaction, the tags."""
    tx = table.begin()
    tx.add(
        path=f"{tx.snapshot.version if tx.snapshot else 0}.parquet",
        partition_values={},
        size=1,
        modification_time=1,
        stats=None,
    )
    tx.set_application(application.app_id, application.version)
    return tx.commit("DELETE", {}, {"numDeletedRows": "3"}, tags=spec.replace(application=application).commit_tags())


def done(spec: JobSpec, application: ApplicationTransaction) -> JobResult | None:
    return find_done(spec.replace(application=application))


OF_THIS_WORK = {"app_id": "a", "version": 3, "max_tries": 2, "first_tried_ms": 5}
HELD = {
    "nothing": None,
    "a number of this work": OF_THIS_WORK,
    "a number before a clear": {**OF_THIS_WORK, "max_tries": 1},
    "a number whose task succeeded": {**OF_THIS_WORK, "succeeded": True},
    "a refusal of these tries": {"app_id": "a", "max_tries": 2, "refused": True},
    "a refusal before a clear": {"app_id": "a", "max_tries": 1, "refused": True},
}
AFTER_THE_TABLE = {
    "nothing": "FIND_EARLIER",
    "a number of this work": "USE_KEPT",
    "a number before a clear": "TAKE_NEXT",
    "a number whose task succeeded": "TAKE_NEXT",
    "a refusal of these tries": "FIND_EARLIER",
    "a refusal before a clear": "TAKE_NEXT",
}


@pytest.mark.parametrize("held", HELD)
def test_what_a_try_does_next_follows_from_what_is_kept_and_what_the_table_was_asked_for(held: str) -> None:
    from airflow_txlog.hooks.identity import Asked, KeptNumber, next_step

    def kept(name: str) -> KeptNumber | None:
        return KeptNumber.in_store(StateStore({"txlog.transaction": HELD[name]}))

    before = "USE_KEPT" if held == "a number of this work" else "ASK_TABLE"
    assert next_step(kept(held), None, 2).name == before
    for at_the_time in HELD:
        asked = Asked(kept=kept(at_the_time), app_id="a", recorded=2)
        expected = AFTER_THE_TABLE[held] if at_the_time == held else before
        assert next_step(kept(held), asked, 2).name == expected, at_the_time


@pytest.mark.parametrize("held", [name for name, data in HELD.items() if data is not None])
def test_a_number_is_kept_in_the_form_in_which_it_is_read(held: str) -> None:
    from airflow_txlog.hooks.identity import KeptNumber

    store, again = StateStore({"txlog.transaction": HELD[held]}), StateStore()
    found = KeptNumber.in_store(store)
    assert found is not None
    found.keep(again)
    assert again.values == store.values


def test_a_retry_after_the_commit_finds_it_done_and_says_where(table: Table, spec: JobSpec) -> None:
    ti, store = Try(), StateStore()
    first = identity(table, ti, store)
    assert done(spec, first) is None
    version = commit(table, spec, first)
    commit(table, spec, ApplicationTransaction(app_id="another task", version=1))
    second = identity(table, ti.retried(), store)
    assert second == first
    found = done(spec, second)
    assert found is not None
    assert (found.status, found.version, found.metrics) == ("already_done", version, {"numDeletedRows": 3})


KEY = "5ec2e7" + 58 * "0"


@pytest.mark.parametrize(
    ("first_key", "second_key", "other", "is_known"),
    [
        (KEY, KEY, "id = 2", True),
        (KEY, KEY, None, False),
        # Without the key of a try, its digest cannot be compared, and without any key there is none.
        (KEY, None, "id = 2", False),
        (None, KEY, "id = 2", False),
        (None, None, "id = 2", False),
    ],
)
def test_a_retry_with_edited_arguments_is_told_that_nothing_was_done_by_them(
    table: Table, spec: JobSpec, first_key: str | None, second_key: str | None, other: str | None, is_known: bool
) -> None:
    ti, store = Try(), StateStore()
    version = commit(table, spec.replace(saved_work_key=first_key), identity(table, ti, store))
    edited = spec if other is None else spec.replace(operation=Delete(predicate=other))
    found = done(edited.replace(saved_work_key=second_key), identity(table, ti.retried(), store))
    assert found is not None
    assert (found.status, found.version) == ("already_done", version)
    lines = [line for line in summary_lines(found, 1.0) if "have changed since" in line]
    assert len(lines) == is_known
    if is_known:
        assert f"since version {version}, which did this work" in lines[0]
        assert "id = 2" not in str(found.to_json()), "no argument is in a result"


def test_a10_clearing_b_does_not_repeat_a(table: Table, spec: JobSpec) -> None:
    """A is killed after its commit; somebody clears B, which raises the run's clear_number; A is retried."""
    a, a_store = Try(task_id="a"), StateStore()
    b, b_store = Try(task_id="b"), StateStore()
    kept = identity(table, a, a_store)
    commit(table, spec, kept)
    commit(table, spec, identity(table, b, b_store))
    commit(table, spec, identity(table, b.cleared(), b_store))
    again = identity(table, a.retried(), a_store)
    assert again == kept
    assert done(spec, again) is not None


def test_a10_clearing_a_task_repeats_it(table: Table, spec: JobSpec) -> None:
    ti, store = Try(), StateStore()
    first = identity(table, ti, store)
    commit(table, spec, first)
    second = identity(table, ti.cleared(), store)
    assert second == replace(first, version=first.version + 1)
    assert done(spec, second) is None
    # And a retry of the cleared task is a retry again.
    commit(table, spec, second)
    assert identity(table, ti.cleared().retried(), store) == second


@pytest.mark.parametrize("is_cleared", [True, False], ids=["cleared", "retried"])
def test_a_task_whose_work_was_rolled_back_writes_again(table: Table, spec: JobSpec, is_cleared: bool) -> None:
    ti, store = Try(), StateStore()
    first = identity(table, ti, store)
    commit(table, spec, first)
    tx = table.begin()
    tx.set_application(first.app_id, NOT_DONE)
    tx.commit("ROLLBACK", {})
    again = identity(table, ti.cleared() if is_cleared else ti.retried(), store)
    assert again == first
    assert done(spec, again) is None
    commit(table, spec, again)
    assert done(spec, again) is not None


@pytest.mark.parametrize("key", [None, "a key"])
def test_a23_only_a_try_that_none_can_have_preceded_says_that_it_is_the_first(table: Table, key: str | None) -> None:
    ti, store = Try(), StateStore()
    assert identity(table, ti, store, key).is_first_try
    assert not identity(table, ti, store, key).is_first_try, "another copy of the same try"
    assert not identity(table, ti.retried(), store, key).is_first_try
    # After a clear it is the first one of new work; an author's key names the same work.
    assert identity(table, ti.cleared(), store, key).is_first_try == (key is None)
    assert identity(table, ti.cleared(), store, "another key").is_first_try


@pytest.mark.parametrize("key", [None, "a key"])
def test_a23_without_a_state_store_the_numbers_of_a_task_show_its_first_try(table: Table, key: str | None) -> None:
    ti, began = Try(), dt.datetime.fromtimestamp(NOW.now_ms() / 1000, dt.UTC)
    for each, is_first in (
        (ti, True),
        (ti.retried(), False),
        (ti.retried().retried(), False),
        (ti.retried().cleared(), True),
        (ti.retried().cleared().retried(), False),
    ):
        assert identity(table, each, None, key, began).is_first_try == is_first


def test_a10_recreated_run_is_not_skipped(table: Table, spec: JobSpec) -> None:
    """The DagRun is deleted, its state with it, and the scheduler makes the same run id again."""
    ti = Try()
    commit(table, spec, identity(table, ti, StateStore()))
    recreated = identity(table, ti, StateStore())
    assert done(spec, recreated) is None


def test_a10_a_second_deployment_with_the_same_ids_is_not_skipped(
    table: Table, spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    ti = Try()
    first = identity(table, ti, StateStore())
    commit(table, spec, first)
    monkeypatch.setenv("AIRFLOW__TXLOG__DEPLOYMENT_ID", "staging")
    second = identity(table, ti, StateStore())
    assert second.app_id != first.app_id
    assert done(spec, second) is None


def test_a10_two_copies_of_one_try_hold_one_number_whatever_their_order(table: Table, spec: JobSpec) -> None:
    """The second copy reads the table before the store, so it cannot see the commit and miss the kept number."""
    ti, store = Try(), StateStore()
    first = identity(table, ti, store)
    before_commit = identity(table, ti, store)
    commit(table, spec, first)
    after_commit = identity(table, ti, store)
    assert first == before_commit == after_commit

    # The copy that read the table before the first one kept its number, and wrote the store after it committed.
    late_store, late_ti = StateStore(), Try(task_id="late")
    from airflow_txlog.hooks.identity import application_transaction

    def read_then_overtaken(app_id: str) -> int | None:
        recorded = recorded_version(table, app_id)
        commit(table, spec, identity(table, late_ti, late_store))
        return recorded

    late = application_transaction({"ti": late_ti, "task_state_store": late_store}, read_then_overtaken)
    assert done(spec, late) is not None


def test_a10_a_copy_that_outlived_a_clear_does_not_double_the_work(table: Table, spec: JobSpec) -> None:
    ti, store = Try(), StateStore()
    zombie = identity(table, ti, store)
    cleared = identity(table, ti.cleared(), store)
    assert cleared == zombie  # one of them wins, and the other finds it done
    commit(table, spec, zombie)
    assert done(spec, cleared) is not None


def test_a10_a_deployment_renamed_between_two_tries_does_not_make_new_work(
    table: Table, spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    ti, store = Try(), StateStore()
    first = identity(table, ti, store)
    commit(table, spec, first)
    monkeypatch.setenv("AIRFLOW__TXLOG__DEPLOYMENT_ID", "renamed")
    assert identity(table, ti.retried(), store) == first


def test_a10_hook_writes_twice(table: Table, spec: JobSpec) -> None:
    """A @task that writes twice through the hook names each write; the second is not taken for the first."""
    from airflow_txlog.hooks.txlog import TxlogHook

    class Committing:
        def run(self, spec: JobSpec, *, log: Any) -> JobResult:
            found = find_done(spec)
            if found is not None:
                return found
            assert spec.application is not None
            version = commit(table, spec, spec.application)
            return JobResult(
                status="committed", operation=spec.operation.name, table_uri=spec.table_uri, version=version
            )

        def kill(self) -> None:
            raise AssertionError("nothing is killed here")

    hook, runner = TxlogHook(), Committing()
    with pytest.raises(TypeError, match="idempotency_key"):
        hook.run("delete", table.uri, {"predicate": "id = 1"}, runner=runner)  # type: ignore[call-arg]
    statuses = [
        hook.run("delete", table.uri, {"predicate": predicate}, idempotency_key=key, runner=runner).status
        for key, predicate in (("run1/a", "id = 1"), ("run1/b", "id = 1"), ("run1/a", "id = 1"))
    ]
    assert statuses == ["committed", "committed", "already_done"]


def test_a10_constant_key_is_an_error(table: Table, spec: JobSpec) -> None:
    """`idempotency_key="daily-load"`: the second day's work is other work under the same name."""
    monday = identity(table, Try(), StateStore(), key="daily-load")
    assert (monday.app_id, monday.version, monday.check_digest) == ("daily-load", 1, True)
    version = commit(table, spec, monday)
    tuesday = spec.replace(operation=Delete(predicate="id = 2"))
    with pytest.raises(IdempotencyKeyReused) as caught:
        done(tuesday, identity(table, Try(run_id="tuesday"), StateStore(), key="daily-load"))
    assert caught.value.version == version  # type: ignore[attr-defined]
    assert done(spec, monday) is not None


def test_a10_an_empty_key_is_an_error(table: Table) -> None:
    with pytest.raises(InvalidJobSpec, match="idempotency_key"):
        identity(table, Try(), StateStore(), key=" ")


@pytest.mark.parametrize("key", [None, "nightly"])
def test_a_try_that_finds_its_table_elsewhere_than_an_earlier_one_changes_nothing(
    table: Table, key: str | None
) -> None:
    """Its name in the catalog was given to another table in between: the work may be done in the first one."""
    from airflow_txlog.hooks.identity import application_transaction

    store, first = StateStore(), Try()

    def tried(ti: Try, place: str | None) -> ApplicationTransaction:
        context = {"ti": ti, "task_state_store": store}
        return application_transaction(context, lambda app_id: recorded_version(table, app_id), key, place=place)

    chosen = tried(first, "file:///lake/a")
    with pytest.raises(TableMoved) as raised:
        tried(first.retried(), "file:///lake/b")
    assert (raised.value.facts["expected"], raised.value.facts["found"]) == ("file:///lake/a", "file:///lake/b")
    assert not raised.value.retryable
    again = tried(first.retried(), "file:///lake/a")
    assert (again.app_id, again.version) == (chosen.app_id, chosen.version)
    # A task that does not name its table, or has been cleared, goes where it is told.
    assert tried(first.retried(), None).app_id == chosen.app_id
    cleared = first.retried().cleared()
    tried(cleared, "file:///lake/b")
    with pytest.raises(TableMoved):
        tried(cleared.retried(), "file:///lake/a")


def test_a10_without_a_state_store_the_number_is_max_tries(table: Table, spec: JobSpec) -> None:
    started = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=1)
    ti = Try()
    first = identity(table, ti, None, run_started=started)
    assert first.version == ti.max_tries
    commit(table, spec, first)
    assert done(spec, identity(table, ti.retried(), None, run_started=started)) is not None
    assert done(spec, identity(table, ti.cleared(retries=5), None, run_started=started)) is None


def test_a10_without_a_state_store_an_earlier_life_of_the_run_is_an_error_and_not_done(
    table: Table, spec: JobSpec
) -> None:
    long_ago = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
    commit(table, spec, identity(table, Try(), None, run_started=long_ago))
    later = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=1)
    with pytest.raises(IdempotencyKeyReused):
        done(spec, identity(table, Try(), None, run_started=later))


def test_a_state_store_that_fails_fails_the_task(table: Table) -> None:
    class Broken(StateStore):
        def get(self, key: str, default: Any = None) -> Any:
            raise ConnectionError("no answer")

    with pytest.raises(ConnectionError):
        identity(table, Try(), Broken())


def test_the_number_is_kept_for_ever(table: Table) -> None:
    from airflow.sdk.execution_time.context import NEVER_EXPIRE

    store = StateStore()
    identity(table, Try(), store)
    # Airflow tells it by the object's identity.
    assert [retention is NEVER_EXPIRE for retention in store.retentions] == [True]


def test_a_table_that_does_not_exist_yet_gives_the_first_number(memory_uri: str) -> None:
    assert recorded_version(Table.at(memory_uri, PLAIN), "x") is None
    missing = job_spec(operation="write", table_uri=memory_uri, arguments={"source": {"table": "/s"}})
    assert done(missing, ApplicationTransaction(app_id="x", version=1)) is None


def test_the_app_id_names_the_task_instance(table: Table) -> None:
    application = identity(table, Try(map_index=3), StateStore())
    assert application.app_id == "airflow_txlog/tests/load/a/scheduled__2024-01-01T00:00:00+00:00/3"


# --- a table that forgets transactions (soundness B4) ---------------------------------------------------------------

DAY_MS = 86_400_000


def looked_up(table: Table, spec: JobSpec, application: ApplicationTransaction, clock: Any) -> JobResult | None:
    return done_in(table.store, table.snapshot(), spec.replace(application=application), clock)


@pytest.mark.parametrize("has_state_store", [True, False])
def test_b4_a_retry_after_the_retention_does_not_take_forgotten_for_not_done(
    table: Table, spec: JobSpec, clock: Any, has_state_store: bool
) -> None:
    """A table that we made forgets after 30 days; a checkpoint then drops the transaction."""
    ti, store = Try(), StateStore() if has_state_store else None
    started = dt.datetime.fromtimestamp(clock.now_ms() / 1000, dt.UTC)
    first = identity(table, ti, store, run_started=started, clock=clock)
    assert first.first_tried_ms == clock.now_ms()
    assert looked_up(table, spec, first, clock) is None
    clock.time_ms += 30 * DAY_MS - 1
    second = identity(table, ti.retried(), store, run_started=started, clock=clock)
    assert looked_up(table, spec, second, clock) is None
    clock.time_ms += 1
    third = identity(table, ti.retried(), store, run_started=started, clock=clock)
    with pytest.raises(TransactionExpired) as caught:
        looked_up(table, spec, third, clock)
    assert not caught.value.retryable
    assert (caught.value.app_id, caught.value.retention_ms) == (first.app_id, 30 * DAY_MS)
    assert caught.value.first_tried_ms == first.first_tried_ms


def test_b4_what_is_still_recorded_is_done_however_old_it_is(table: Table, spec: JobSpec, clock: Any) -> None:
    store = StateStore()
    first = identity(table, Try(), store, clock=clock)
    version = commit(table, spec, first)
    clock.time_ms += 400 * DAY_MS
    found = looked_up(table, spec, identity(table, Try().retried(), store, clock=clock), clock)
    assert found is not None
    assert found.version == version


def test_b4_a_task_that_was_cleared_is_new_work_of_now(table: Table, spec: JobSpec, clock: Any) -> None:
    ti, store = Try(), StateStore()
    identity(table, ti, store, clock=clock)
    clock.time_ms += 400 * DAY_MS
    again = identity(table, ti.cleared(), store, clock=clock)
    assert again.first_tried_ms == clock.now_ms()
    assert looked_up(table, spec, again, clock) is None


def test_b4_a_table_that_never_forgets_is_believed(memory_uri: str, clock: Any) -> None:
    from airflow_txlog.engine.log.actions import Metadata

    table = Table(Table.create(f"{memory_uri}-x", pa.schema([("id", pa.int64())])).store)
    metadata: Metadata = table.snapshot().metadata
    configuration = {k: v for k, v in metadata.configuration.items() if k != "delta.setTransactionRetentionDuration"}
    tx = table.begin()
    tx.set_metadata(
        Metadata(
            id=metadata.id,
            schema_string=metadata.schema_string,
            partition_columns=[],
            configuration=configuration,
        )
    )
    tx.commit("UNSET TBLPROPERTIES")
    spec = job_spec(operation="delete", table_uri=table.uri, arguments={"predicate": "id = 1"})
    old = ApplicationTransaction(app_id="a", version=1, first_tried_ms=0)
    assert looked_up(table, spec, old, clock) is None


# --- an author's key -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make_store", [StateStore, lambda: None], ids=["3.3", "before 3.3"])
def test_the_first_try_of_an_authors_key_is_known_to_its_retries_and_over_a_clear(
    table: Table, make_store: Callable[[], StateStore | None]
) -> None:
    clock = ManualClock(NOW.now_ms())
    started = dt.datetime.fromtimestamp(clock.now_ms() / 1000, dt.UTC)
    ti, store = Try(), make_store()

    def first_tried(ti: Try, key: str = "key") -> int | None:
        return identity(table, ti, store, key=key, run_started=started, clock=clock).first_tried_ms

    first = first_tried(ti)
    assert first == clock.now_ms()
    clock.time_ms += 3_600_000
    assert first_tried(ti.retried()) == first
    assert first_tried(ti.retried().cleared()) == first
    if store is not None:
        assert first_tried(ti, key="another") == clock.now_ms()


def test_a_commit_has_the_label_of_a_mapped_task_unless_its_values_are_personal() -> None:
    from airflow_txlog.hooks.identity import annotations_of

    class Labelled(Try):
        rendered_map_index = "mary@home.example"

    context = {"ti": Labelled(map_index=3)}
    assert annotations_of(context)["map_label"] == "mary@home.example"
    assert annotations_of(context, is_sensitive=True)["map_label"] is None
    assert annotations_of({"ti": Try()})["map_label"] is None
