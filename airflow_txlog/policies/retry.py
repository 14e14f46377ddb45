"""Airflow's retries of a task: the third ring, around the commit loop and the job.

`TxlogError.retryable` determines whether another try can help. Airflow has retry policies since 3.3. For earlier
versions `raise_for_airflow` converts an error that must not be retried into AirflowFailException. Invariant: an error
that another try cannot fix fails the task immediately, with the reason.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from airflow.providers.common.compat import sdk

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.errors import TxlogError
from airflow_txlog.policies.rings import Ring, ring_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.providers.common.compat.sdk import RetryDecision, RetryPolicy
else:
    # By feature, not by version: Airflow 3.3 added the class, and a backport would work, too.
    RetryPolicy = getattr(sdk, "RetryPolicy", object)

HAS_RETRY_POLICY = hasattr(sdk, "RetryPolicy")

REASON_MAX_CHARS = 400  # Airflow keeps 500 characters of a reason


class TxlogRetryPolicy(RetryPolicy):
    """Retry errors that another try may fix, and fail immediately on all others. The default of every operator here.

    - A TxlogError whose `retryable` is true (a conflict, a lost race, a lost job) is retried, up to the task's
      `retries`. The delay is `delay`, doubled with each try up to `max_delay`, and randomized by ±50 %, so that mapped
      tasks that conflicted do not start at the same time again.
    - For a possibly transient error (a JobError: Spark, the machine, a store; SourceNotFound; any error from other
      code), `otherwise` applies: "fail", or "default" for Airflow's own rule (`retries`, `retry_delay`). Choose
      "default" to put this policy first in a ChainRetryPolicy.
    - Any other TxlogError fails the task, regardless of `retries`.

    `rings.RETRIED` lists every class. Replace the policy with the operator's `retry_policy=`.
    """

    def __init__(
        self,
        *,
        otherwise: Literal["fail", "default"] = "fail",
        delay: timedelta = timedelta(seconds=5),
        max_delay: timedelta = timedelta(minutes=2),
        random_fraction: Callable[[], float] = SYSTEM_CLOCK.random,
    ) -> None:
        if otherwise not in ("fail", "default"):
            raise ValueError(f'otherwise must be "fail" or "default"; found {otherwise!r}')
        self.otherwise = otherwise
        self.delay = delay
        self.max_delay = max_delay
        self._random_fraction = random_fraction

    def evaluate(self, exception: BaseException, try_number: int, max_tries: int, context: Any = None) -> RetryDecision:
        """Return the decision about one failed try, with the reason that Airflow logs."""
        ring = ring_of(exception)
        if ring is Ring.POLICY:
            return sdk.RetryDecision.retry(delay=self.delay_after(try_number), reason=_reason(exception))
        if ring is Ring.NONE:
            return sdk.RetryDecision.fail(reason=f"running again cannot help: {_reason(exception)}")
        if self.otherwise == "default":
            return sdk.RetryDecision.default()
        return sdk.RetryDecision.fail(
            reason=f'{_reason(exception).rstrip(".")}. TxlogRetryPolicy(otherwise="default") leaves such an error to '
            "`retries`."
        )

    def delay_after(self, try_number: int) -> timedelta:
        """Return how long to wait after this try (counted from 1)."""
        # The exponent is bounded before it is raised: a task may have many tries.
        doubled: timedelta = self.delay * 2 ** min(max(try_number - 1, 0), 16)
        return min(doubled, self.max_delay) * (0.5 + self._random_fraction())


def raise_for_airflow(error: TxlogError) -> NoReturn:
    """Raise the error; without retry policies one that is not retryable becomes AirflowFailException."""
    if HAS_RETRY_POLICY or error.retryable:
        raise error
    raise sdk.AirflowFailException(f"running again cannot help: {_reason(error)}") from error


def _reason(exception: BaseException) -> str:
    first_line = str(exception).strip().split("\n", 1)[0]
    return f"{type(exception).__name__}: {first_line}"[:REASON_MAX_CHARS]
