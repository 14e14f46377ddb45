"""Links from a task to pages of your own, a catalog or a browser of tables: to its commit, and to its table.

Airflow asks for them in the task's process, when the try has ended, and keeps the text. Where no page is configured, or
the try committed nothing, there is no link. The invariant: a link is made of the configured text, the table's URI and
the version, and of nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.providers.common.compat.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class CommitLink(BaseOperatorLink):
    """`history_url` of the connection's extra, else of `[txlog]`, with `{table}` and `{version}` filled in."""

    name = "Commit"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The link, or an empty text: then Airflow shows none."""
        result, hook = getattr(operator, "last_result", None), getattr(operator, "hook", None)
        if result is None or hook is None or result.version is None or result.status == "nothing_to_do":
            return ""
        return page_url(hook.history_url, result.table_uri, result.version)


class TableLink(BaseOperatorLink):
    """`table_url` of the connection's extra, else of `[txlog]`, with `{table}` filled in; also where all was done."""

    name = "Table"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The link, or an empty text: then Airflow shows none."""
        result, hook = getattr(operator, "last_result", None), getattr(operator, "hook", None)
        return "" if result is None or hook is None else page_url(hook.table_url, result.table_uri)


def page_url(template: str | None, table_uri: str, version: int | None = None) -> str:
    """The address of a page; empty without a template, or with one that is no address of the web."""
    if not template or not template.startswith(("https://", "http://")):
        return ""
    # The table last: its URI may hold what stands for the version.
    numbered = template if version is None else template.replace("{version}", str(version))
    return numbered.replace("{table}", quote(table_uri, safe=""))
