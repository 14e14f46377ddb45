"""What an executor without Spark raises for work that needs one. The planner then goes on with Spark."""

from __future__ import annotations

from airflow_txlog.errors import InvalidInput


class NeedsSpark(Exception):
    """`args[0]` is why, as the rest of the sentence "Spark is needed: ".

    `unread` is the error of a file of the source that Arrow cannot decode, and Spark's own reader may.
    """

    def __init__(self, why: str, unread: InvalidInput | None = None) -> None:
        super().__init__(why)
        self.unread = unread
