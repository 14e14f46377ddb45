"""SubmittedJobTrigger: wait until a job whose driver runs on a cluster has ended.

It queries only the cluster. The outcome of the job is in its result, which the task reads when it resumes. Invariants:
Airflow keeps only names of a trigger; the triggerer's event loop neither calls the cluster nor imports more than this
module.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

if TYPE_CHECKING:
    from airflow_txlog.runners.base import Applications, ApplicationState

POLL_S = 15.0


class SubmittedJobTrigger(BaseTrigger):
    """Fires when the application of this name has ended, with `{"text": …}` for the task's log.

    :param spark_conn_id: the connection of the cluster, of type `spark`.
    :param name: the name that the application was submitted under.
    :param poll_s: seconds between two questions.
    """

    unanswered_polls = 40
    """After this many unanswered requests the task resumes, and reports that."""

    def __init__(self, *, spark_conn_id: str, name: str, poll_s: float = POLL_S) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.spark_conn_id = spark_conn_id
        self.name = name
        self.poll_s = poll_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class, and the arguments of an equal trigger."""
        arguments = {"spark_conn_id": self.spark_conn_id, "name": self.name, "poll_s": self.poll_s}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        unanswered = 0
        while True:
            try:
                found = await sync_to_async(self._look, thread_sensitive=False)()
                unanswered = 0
                if not found.is_alive:
                    yield _event(f"{self.name} has ended: {found.text}")
                    return
            except Exception as error:
                unanswered += 1
                self.log.warning("no answer about %s (%s)", self.name, type(error).__name__)
                if unanswered >= self.unanswered_polls:
                    yield _event(f"no answer about {self.name} ({type(error).__name__})")
                    return
            await asyncio.sleep(self.poll_s)

    async def on_kill(self) -> None:
        """Cancel the job on its cluster, when a person ends or clears the task. The next try reads the table's log."""
        self.log.info("cancelling %s", self.name)
        await sync_to_async(self._cancel, thread_sensitive=False)()

    def _look(self) -> ApplicationState:
        return self._applications().look(self.name)

    def _cancel(self) -> None:
        self._applications().cancel(self.name)

    def _applications(self) -> Applications:
        from airflow_txlog.hooks.spark_connection import open_applications

        return open_applications(self.spark_conn_id)


def _event(text: str) -> TriggerEvent:
    return TriggerEvent({"text": text})  # type: ignore[no-untyped-call]
