"""The link from a task to the commit that it made, on a page of your own: a catalog, a browser of tables.

Airflow asks for it in the task's process, when the try has ended, and keeps the text. Where no page is configured, or
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
        return commit_url(hook.history_url, result.table_uri, result.version)


def commit_url(template: str | None, table_uri: str, version: int) -> str:
    """The address of a commit's page; empty without a template, or with one that is no address of the web."""
    if not template or not template.startswith(("https://", "http://")):
        return ""
    return template.replace("{version}", str(version)).replace("{table}", quote(table_uri, safe=""))
