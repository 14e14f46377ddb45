"""A session on a Spark Connect server, for one job whose driver side is this process.

The environment of this process names the server and the session (`ConnectTarget`), because the URL may hold a token.
The invariants: a server that does not answer is an error within seconds. Work of earlier tries that still runs there is
cancelled before the job starts. A setting that the server would ignore is an error. The session is released when the
job ends, unless it belongs to a pool (`is_pooled`). A process that has opened such a session stays in Connect mode.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote, urlparse

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.errors import InvalidJobSpec, SparkUnavailable, TxlogError
from airflow_txlog.jobs.spark.installation import check_one_version, no_client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET = "TXLOG_CONNECT"
"""The variable of the environment that holds a ConnectTarget as JSON."""

# PySpark's own policy retries for ten minutes at every call.
_RETRY_S, _LONGEST_WAIT_MS = 8.0, 1_000
# Failures further apart are not of one outage.
_APART_S = 60.0
# A server that is suspended, and not dead, accepts a connection and never answers.
OPEN_S = "TXLOG_CONNECT_OPEN_S"
_OPEN_S = 30.0

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectTarget:
    """A session of a Spark Connect server. `url` may hold a token, so this is in no command line and no log.

    `abandoned`: sessions of tries that did not end normally, to be cancelled and released before the job starts.
    `is_pooled`: the session stays open for another job when this one ends.
    """

    url: str
    session_id: str
    abandoned: tuple[str, ...] = ()
    is_pooled: bool = False

    def environment(self) -> dict[str, str]:
        """Return the variables for the driver's process."""
        return {TARGET: json.dumps(asdict(self))}

    @classmethod
    def of_environment(cls) -> ConnectTarget:
        """Return the target in this process's environment. Raises InvalidJobSpec if there is none."""
        given = os.environ.get(TARGET)
        if given is None:
            raise InvalidJobSpec(f"No Spark Connect server is named ({TARGET} in the environment).", argument="runner")
        fields = json.loads(given)
        return cls(**(fields | {"abandoned": tuple(fields["abandoned"])}))


def connect_session(spark_conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return the session that the environment names, in which nothing runs. Raises SparkUnavailable, JobError."""
    check_one_version()
    target = ConnectTarget.of_environment()
    url = checked_url(target.url)
    # The text before and after the host may be a secret.
    place = urlparse(f"http{url[2:]}").netloc.rpartition("@")[2].partition(";")[0]
    log.info("connecting to Spark: sc://%s", place)
    try:
        spark = _within(float(os.environ.get(OPEN_S) or _OPEN_S), lambda: _opened(url, target))
    except TxlogError:
        raise
    except ImportError as error:
        raise no_client(error) from error
    except Exception as error:
        raise _unavailable(place, error) from error
    _open.append(spark)
    return spark


def checked_url(url: str) -> str:
    """Return the URL, `localhost` for an address of this machine: others need TLS. Raises InvalidJobSpec."""
    # Parsed as PySpark parses it.
    parts = urlparse(f"http{url[2:]}")
    if not url.startswith("sc://") or not parts.hostname:
        raise InvalidJobSpec("A Spark Connect server is named as sc://host:port.", argument="spark_conn_id")
    given = dict(pair.partition("=")[::2] for pair in parts.params.split(";"))
    has_token = "token" in given or "SPARK_CONNECT_AUTHENTICATE_TOKEN" in os.environ
    if not has_token or unquote(given.get("use_ssl", "")).lower() == "true" or parts.hostname == "localhost":
        return url
    if not _is_loopback(parts.hostname):
        raise InvalidJobSpec(
            f"The Spark Connect server {parts.netloc} is given a token and no TLS, so that the token could be read on "
            'the way, and PySpark would not send it. Set use_ssl in the extra of the connection ({"use_ssl": true}), '
            "or take the token out. Nothing was sent.",
            argument="spark_conn_id",
        )
    port = "" if parts.port is None else f":{parts.port}"
    return f"sc{parts._replace(netloc=f'localhost{port}').geturl()[4:]}"


def with_parameter(url: str, name: str, value: str) -> str:
    """Return the URL of a server with one more parameter."""
    has_path = "/" in url.removeprefix("sc://")
    return f"{url}{';' if has_path else '/;'}{name}={quote(value, safe='')}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# --- opening --------------------------------------------------------------------------------------------------------


def _opened(url: str, target: ConnectTarget) -> SparkSession:
    for session_id in target.abandoned:
        left = _session(url, session_id)
        # The server may have forgotten or released it.
        with contextlib.suppress(Exception):
            _end(left)
        left.client.close()
    spark = _session(url, target.session_id)
    spark.client.interrupt_all()
    spark.release_session_on_close = not target.is_pooled
    return spark  # type: ignore[no-any-return]


def _session(url: str, session_id: str) -> Any:
    """Return a session object of this id, without a request to the server."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - so that a missing part of PySpark is an error of the job
    from pyspark.sql.types import UserDefinedType  # noqa: PLC0415

    # PySpark requests a schema from the server and loads, or unpickles, the class that a file's footer names in it.
    UserDefinedType.fromJson = classmethod(_no_class)  # type: ignore[method-assign, assignment]
    # Only this builder sets the mode in which functions such as `expr` need no JVM.
    spark: Any = SparkSession.builder.remote(with_parameter(url, "session_id", session_id)).create()
    spark.client.set_retry_policies([_retry_policy()])
    return spark


def _retry_policy() -> Any:
    """Return PySpark's policy for some seconds of an outage; after them, every call to a dead server fails at once."""
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415

    class Policy(DefaultPolicy):
        since_s = last_s = -_APART_S

        def can_retry(self, e: BaseException) -> bool:
            if not super().can_retry(e):
                return False
            now_s = SYSTEM_CLOCK.monotonic_s()
            if now_s - self.last_s > _APART_S:
                self.since_s = now_s
            self.last_s = now_s
            return now_s - self.since_s < _RETRY_S

    return Policy(max_backoff=_LONGEST_WAIT_MS, max_server_retry_delay=_LONGEST_WAIT_MS)


def _no_class(cls: type, json: Any) -> Any:
    raise InvalidJobSpec(
        "A class is named for the type of a column, and would be loaded to read it. Give the columns' plain types as "
        "schema. Nothing was read.",
        argument="source",
    )


def _end(spark: Any) -> None:
    spark.client.interrupt_all()
    spark.client.release_session()


def _within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of a call. Raises TimeoutError if it takes longer, and the errors of the call."""
    found: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="txlog-connect", daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not found:
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    return found[0]


def _unavailable(place: str, error: Exception) -> TxlogError:
    status = status_of(error)
    if status == "UNAUTHENTICATED":
        return SparkUnavailable(
            f"The Spark Connect server at {place} refused the token. Nothing was started.", retryable=False
        )
    if status != "UNAVAILABLE" and not isinstance(error, TimeoutError):
        raise error
    found = status or str(error)
    return SparkUnavailable(
        f"The Spark Connect server at {place} does not answer ({found}). Nothing was started: is it running, and of "
        "PySpark's version here?",
        cause_type=found,
        place=place,
    )


def status_of(error: BaseException) -> str | None:
    """Return the name of gRPC's status of an error, such as UNAVAILABLE; None for an error that is not Connect's."""
    ask = getattr(error, "getGrpcStatusCode", None) or getattr(error, "code", None)
    try:
        return str(ask().name) if ask is not None else None
    except Exception:  # another `code`
        return None


# --- killing --------------------------------------------------------------------------------------------------------

_open: list[Any] = []


def end_sessions() -> None:
    """Cancel the work of this process on the server and release the session, because the process ends now."""
    for spark in _open:
        with contextlib.suppress(Exception):
            _end(spark)


# --- settings -------------------------------------------------------------------------------------------------------


def settings_of(spark: Any, names: Iterable[str]) -> dict[str, str | None]:
    """Return the session's values of these settings, None for one that is not set, in one request."""
    names = list(names)
    return dict(zip(names, spark.client.get_config_with_defaults(*((name, None) for name in names)), strict=True))


def change_settings(spark: Any, values: Mapping[str, str | None]) -> None:
    """Set settings of the session, or unset those that are None, in one request each. Raises Spark's errors."""
    from pyspark.sql.connect import proto  # noqa: PLC0415

    wanted = {name: value for name, value in values.items() if value is not None}
    unset = [name for name, value in values.items() if value is None]
    if wanted:
        spark.conf._set_all(wanted, silent=False)
    if unset:
        spark.client.config(proto.ConfigRequest.Operation(unset=proto.ConfigRequest.Unset(keys=unset)))
