"""Links from a task to pages of your own, a catalog or a browser of tables: to its commit, and to its table.

Airflow takes the names of a task's links from its DAG, and builds the links in the task's process after the try. It
shows a heading for every name, and keeps an XCom for every link, even an empty one. So a task has only links that may
have a target. Invariant: a link consists of the configured text, the table's URI and the version only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseOperatorLink, conf

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class CommitLink(BaseOperatorLink):
    """`history_url` of the connection's extra, else of `[txlog]`, with `{table}` and `{version}` filled in."""

    name = "Commit"
    option = "history_url"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the link, or an empty text: then Airflow shows none."""
        result, hook = getattr(operator, "last_result", None), getattr(operator, "hook", None)
        if result is None or hook is None or result.version is None or result.status == "nothing_to_do":
            return ""
        return page_url(hook.history_url, result.table_uri, result.version)


class TableLink(BaseOperatorLink):
    """`table_url` of the connection's extra, else of `[txlog]`, with `{table}` filled in; also if the work was already
    done.
    """

    name = "Table"
    option = "table_url"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the link, or an empty text: then Airflow shows none."""
        result, hook = getattr(operator, "last_result", None), getattr(operator, "hook", None)
        return "" if result is None or hook is None else page_url(hook.table_url, result.table_uri)


_LINKS = (CommitLink(), TableLink())


def links_of(task: Any) -> list[BaseOperatorLink]:
    """Return the links of a task or a mapped operator; once the task has run, only those that lead somewhere.

    Before that, a link counts if its page is configured, or if the task has a connection: it may name the page, and is
    not read while a DAG is parsed.
    """
    if getattr(task, "has_begun", False):
        try:
            return [link for link in _LINKS if link.get_link(task, ti_key=None)]  # type: ignore[arg-type]
        except AirflowNotFoundException:
            # `airflow dags test` serializes a task again after its end, in a process that reads no connection.
            return list(_LINKS)
    if _may_have_connection(task):
        return list(_LINKS)
    return [link for link in _LINKS if conf.get("txlog", link.option, fallback="")]


def _may_have_connection(task: Any) -> bool:
    if not hasattr(task, "partial_kwargs"):
        return task.txlog_conn_id is not None
    expanded = getattr(getattr(task, "expand_input", None), "value", None)
    if not isinstance(expanded, Mapping):
        return True  # the arguments from another task are not known yet
    defaults = [getattr(each, "default_args", None) or {} for each in (task.get_dag(), task.task_group)]
    return any("txlog_conn_id" in given for given in (task.partial_kwargs, expanded, *defaults))


def page_url(template: str | None, table_uri: str, version: int | None = None) -> str:
    """Return the address of a page; empty without a template, or with one that is not an address of the web."""
    if not template or not template.startswith(("https://", "http://")):
        return ""
    # The table last: its URI may contain the version's placeholder.
    numbered = template if version is None else template.replace("{version}", str(version))
    return numbered.replace("{table}", quote(table_uri, safe=""))
