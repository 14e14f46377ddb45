"""What a step raises that needs Spark, in a job that was begun without: the job is then begun again with it."""

from __future__ import annotations


class NeedsSpark(Exception):
    """`args[0]` is why, as the rest of the sentence "Spark is needed: "."""
