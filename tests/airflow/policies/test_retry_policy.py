"""The third ring: which errors another try of the task can win."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_txlog import errors
from airflow_txlog.policies.retry import TxlogRetryPolicy, raise_for_airflow

pytestmark = pytest.mark.airflow

RETRIED = [
    errors.ConcurrentAppend("x"),
    errors.ConcurrentDeleteRead("x"),
    errors.ConcurrentDeleteDelete("x"),
    errors.ConcurrentTransaction("x"),
    errors.MetadataChanged("x"),
    errors.ProtocolChanged("x"),
    errors.CommitContention("x"),
    errors.TableAlreadyExists("x"),
    errors.CommitStateUnknown("x", has_application_transaction=True),
    errors.JobLost("x", has_application_transaction=True),
]
FAILED = [
    errors.CommitStateUnknown("x", has_application_transaction=False),
    errors.UnsupportedFeature("x"),
    errors.SchemaMismatch("x"),
    errors.ConstraintViolation("x"),
    errors.ExpectationFailed("x"),
    errors.AmbiguousMerge("x"),
    errors.InvalidPredicate("x"),
    errors.TableNotFound("x"),
    errors.RetentionTooShort("x"),
    errors.IdempotencyKeyReused("x"),
    errors.CorruptCommit("x"),
    errors.JobError("x"),
    errors.JobLost("x", has_application_transaction=False),
    RuntimeError("x"),
]


@pytest.mark.parametrize("error", RETRIED, ids=lambda e: type(e).__name__)
def test_what_running_again_can_win_is_retried(error: errors.TxlogError) -> None:
    from airflow.sdk.definitions.retry_policy import RetryAction

    decision = TxlogRetryPolicy().evaluate(error, try_number=1, max_tries=5)
    assert decision.action is RetryAction.RETRY
    assert type(error).__name__ in str(decision.reason)


@pytest.mark.parametrize("error", FAILED, ids=lambda e: type(e).__name__)
def test_everything_else_fails_at_once_and_the_reason_names_it(error: Exception) -> None:
    from airflow.sdk.definitions.retry_policy import RetryAction

    decision = TxlogRetryPolicy().evaluate(error, try_number=1, max_tries=5)
    assert decision.action is RetryAction.FAIL
    assert type(error).__name__ in str(decision.reason)


def test_otherwise_default_leaves_what_is_not_ours_to_airflow() -> None:
    from airflow.sdk.definitions.retry_policy import RetryAction

    policy = TxlogRetryPolicy(otherwise="default")
    actions = [
        policy.evaluate(error, 1, 5).action
        for error in (RuntimeError("x"), errors.JobLost("x"), errors.SchemaMismatch("x"))
    ]
    assert actions == [RetryAction.DEFAULT, RetryAction.DEFAULT, RetryAction.FAIL]
    with pytest.raises(ValueError, match="otherwise"):
        TxlogRetryPolicy(otherwise="retry")  # type: ignore[arg-type]


def test_the_delay_doubles_to_its_bound_and_is_scattered() -> None:
    low = TxlogRetryPolicy(random_fraction=lambda: 0.0)
    high = TxlogRetryPolicy(random_fraction=lambda: 1.0)
    assert [low.delay_after(n).total_seconds() for n in (1, 2, 3, 100)] == [2.5, 5.0, 10.0, 60.0]
    assert high.delay_after(1) == timedelta(seconds=7.5)


def test_a_reason_is_one_short_line() -> None:
    error = errors.ConcurrentAppend("first line\n" + "x" * 1000)
    assert TxlogRetryPolicy().evaluate(error, 1, 5).reason == "ConcurrentAppend: first line"
    long = errors.ConcurrentAppend("x" * 1000)
    assert len(TxlogRetryPolicy().evaluate(long, 1, 5).reason or "") == 400


def test_without_retry_policies_an_error_that_must_not_be_retried_becomes_airflow_fail_exception(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from airflow_txlog.policies import retry

    with pytest.raises(errors.SchemaMismatch):
        raise_for_airflow(errors.SchemaMismatch("x"))
    # An Airflow of before 3.3 has no such class to import; everything else of it behaves as here.
    monkeypatch.setattr(retry, "HAS_RETRY_POLICY", False)
    with pytest.raises(AirflowFailException, match="SchemaMismatch") as caught:
        raise_for_airflow(errors.SchemaMismatch("x"))
    assert isinstance(caught.value.__cause__, errors.SchemaMismatch)
    with pytest.raises(errors.ConcurrentAppend):
        raise_for_airflow(errors.ConcurrentAppend("x"))
