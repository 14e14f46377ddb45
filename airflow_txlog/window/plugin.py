"""The window in Airflow: a page "Delta tables" in the navigation, and a tab of each task and of each run.

Every process of Airflow imports this module, the workers of tasks included. The invariant: it imports nothing but
Airflow's base class for plugins and its configuration; the window is made at its first request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from airflow.providers.common.compat.sdk import AirflowPlugin, conf

_PREFIX = "/txlog"
_Message = MutableMapping[str, Any]
_window: list[Any] = []


async def window_when_needed(
    scope: _Message, receive: Callable[[], Awaitable[_Message]], send: Callable[[_Message], Awaitable[None]]
) -> None:
    """Answer a request by the window, which is made off the event loop if this is the first one."""
    if not _window:
        made = await asyncio.to_thread(_make)
        if not _window:
            _window.append(made)
    await _window[0](scope, receive, send)


def _make() -> Any:
    from airflow_txlog.window.airflow_site import airflow_window

    return airflow_window()


def is_on() -> bool:
    """Return whether `[txlog] window` shows the pages, which is the default; not for a value that is misspelled."""
    return str(conf.get("txlog", "window", fallback="on")).strip().lower() in ("on", "true", "1", "yes", "t", "y")


def _view(name: str, route: str, page: str, destination: str, **more: str) -> dict[str, str]:
    # Relative: Airflow's UI may live below a path.
    href = f"{_PREFIX[1:]}/{page}"
    return {"name": name, "href": href, "destination": destination, "url_route": route, **more}


_TASK = "dag_id={DAG_ID}&run_id={RUN_ID}&task_id={TASK_ID}&map_index={MAP_INDEX}"
_VIEWS = [
    _view("Delta tables", "txlog", "", "nav", category="browse"),
    _view("Delta table", "txlog-task", f"task?{_TASK}", "task_instance"),
    _view("Delta tables", "txlog-run", "run?dag_id={DAG_ID}&run_id={RUN_ID}", "dag_run"),
]


class TxlogPlugin(AirflowPlugin):
    """The plugin that the entry point `airflow.plugins` names. It adds nothing if `[txlog] window` is off."""

    name = "txlog"
    fastapi_apps = [{"name": "Delta tables", "app": window_when_needed, "url_prefix": _PREFIX}] if is_on() else []
    external_views = _VIEWS if is_on() else []
