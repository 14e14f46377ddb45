"""The table of who retries what agrees with what the code does for every error."""

from __future__ import annotations

import re

import pytest

from airflow_txlog import errors
from airflow_txlog.errors import JobLost, SourceNotFound, TxlogError
from airflow_txlog.policies.retry import TxlogRetryPolicy
from airflow_txlog.policies.rings import RETRIED, Ring, markdown, ring_of
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.airflow


def raised_classes() -> set[type[TxlogError]]:
    """Every class of `errors` that can be met: those without subclasses, and those that some code raises."""
    text = "".join(path.read_text() for path in (ROOT / "airflow_txlog").rglob("*.py"))
    raised = set(re.findall(r"\braise (\w+)\(|\breturn (\w+)\(", text))
    names = {name for pair in raised for name in pair}
    classes = {value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, TxlogError)}
    return {cls for cls in classes if not cls.__subclasses__() or cls.__name__ in names}


def an_error(cls: type[TxlogError]) -> TxlogError:
    if "has_application_transaction" in cls.fact_names:
        return cls("x", has_application_transaction=True)
    return cls("x")


def test_every_error_that_can_be_met_is_in_the_table() -> None:
    assert raised_classes() - RETRIED.keys() == set()


@pytest.mark.parametrize("cls", RETRIED, ids=lambda cls: cls.__name__)
def test_the_policy_does_what_the_table_says(cls: type[TxlogError]) -> None:
    from airflow.sdk.definitions.retry_policy import RetryAction

    ring, why = RETRIED[cls]
    actions = [TxlogRetryPolicy(otherwise=o).evaluate(an_error(cls), 1, 5).action for o in ("fail", "default")]
    expected = {
        Ring.JOB: [RetryAction.RETRY, RetryAction.RETRY],
        Ring.POLICY: [RetryAction.RETRY, RetryAction.RETRY],
        Ring.AIRFLOW: [RetryAction.FAIL, RetryAction.DEFAULT],
        Ring.NONE: [RetryAction.FAIL, RetryAction.FAIL],
    }
    assert actions == expected[ring], why


def test_the_job_itself_plans_again_for_what_the_table_says() -> None:
    from airflow_txlog.jobs.resume.attempts import _WORTH_ANOTHER_ATTEMPT

    planned_again = {cls for cls in RETRIED if issubclass(cls, _WORTH_ANOTHER_ATTEMPT)}
    assert planned_again == {cls for cls, (ring, _) in RETRIED.items() if ring is Ring.JOB}


@pytest.mark.parametrize(
    ("error", "ring"),
    [
        (JobLost("x", has_application_transaction=False), Ring.AIRFLOW),
        (JobLost("x"), Ring.AIRFLOW),
        (errors.CommitStateUnknown("x", has_application_transaction=False), Ring.NONE),
        (SourceNotFound("x"), Ring.AIRFLOW),
        (OSError(28, "No space left on device"), Ring.AIRFLOW),
        (PermissionError("x"), Ring.AIRFLOW),
        (errors.ConcurrentWrite("x", retryable=False), Ring.NONE),
        (errors.JobError("x", retryable=True), Ring.POLICY),
    ],
    ids=repr,
)
def test_an_error_that_differs_from_its_class_is_retried_by_another_ring(error: Exception, ring: Ring) -> None:
    assert ring_of(error) is ring


def test_a_lost_job_keeps_over_the_process_boundary_whether_it_can_be_recognised() -> None:
    for has_transaction in (True, False):
        lost = errors.from_dict(JobLost("x", has_application_transaction=has_transaction).to_dict())
        assert (type(lost), lost.retryable) == (JobLost, has_transaction)


def test_the_documents_print_the_table() -> None:
    assert markdown() in (ROOT / "docs" / "errors.md").read_text()
