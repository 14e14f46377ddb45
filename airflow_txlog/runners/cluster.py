"""A Spark that runs elsewhere, as the connection that `spark_conn_id` names describes it.

`hooks.spark_connection` reads it, in the operator's process. The invariant: a secret stands in no `repr`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class ConnectServer:
    """A Spark Connect server. `url` is `sc://host:port/;…` and may hold its token."""

    url: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class ApplicationState:
    """What a cluster says of an application. `text`: its own words, for people; `ui`: where they can look at it."""

    is_alive: bool
    text: str
    ui: str | None = None


class Applications(Protocol):
    """The applications of a cluster that runs their drivers itself, by the names that they were submitted under.

    The name is chosen before the application is submitted, so that it can be found however the submission ended.
    """

    def settings(self, name: str, given: Mapping[str, str]) -> dict[str, str]:
        """The settings that give an application this name, beside those that it is given."""

    def look(self, name: str) -> ApplicationState:
        """Whether the application waits or runs. Raises what the cluster's interface raises; never quotes a secret."""

    def cancel(self, name: str) -> None:
        """Ask the cluster to end the application, if it runs. Raises what the cluster's interface raises."""


@dataclass(frozen=True, kw_only=True)
class SparkSubmit:
    """A cluster that takes applications by `spark-submit`.

    `command` is the program and its options as Airflow's own hook builds them, without an application. `applications`:
    those of the cluster, in cluster mode; None where the driver runs where `spark-submit` is called (client mode).
    """

    master: str
    command: tuple[str, ...]
    applications: Applications | None = field(default=None, repr=False)


Cluster = ConnectServer | SparkSubmit
