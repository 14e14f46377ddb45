"""The sources of a write or a merge, as plain dicts.

`contract.operations.fields` reads them. You may also write such a dict by hand. The operator renders the templates in
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Literal

from airflow_txlog.operators.arguments.construction import starts_at_caller
from airflow_txlog.operators.arguments.given import is_output, path_text, text_map


@starts_at_caller
def files(
    path: str | PurePath | Sequence[str | PurePath],
    *,
    format: str = "parquet",
    options: Mapping[str, Any] | None = None,
    schema: str | None = None,
) -> dict[str, Any]:
    """Return the rows of files as Spark reads them: "parquet", "csv", "json" or "orc", with Spark's own options.

    `path` is absolute, or a URI: a file, a folder, a glob, or a list of them. Files in an object store need no jars;
    docs/operators/sources.md describes how each is read.

    `schema` is a DDL string such as "id BIGINT, day DATE". Without it, the schema is inferred as by Spark.
    """
    paths = path if isinstance(path, str | PurePath) or is_output(path) else [path_text(item) for item in path]
    return {
        "format": format,
        "path": path_text(paths),
        "options": text_map("options", options),
        "schema": schema,
    }


def table(
    uri: str, version: int | None = None, *, staged: Any = None, as_of: Literal["run"] | None = None
) -> dict[str, Any]:
    """Return the rows of a Delta table at a version, or at its latest one when the job starts.

    `staged`: the output of a task with `publish=False`, to read the table as the staged change would leave it.
    `as_of="run"`: at the version that a `PinVersionsOperator` before this task has fixed for the DAG run.
    """
    given = {"staged": staged, "as_of": as_of}
    return {"table": uri, "version": version, **{name: value for name, value in given.items() if value is not None}}


def query(sql: str, **views: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows of a query over named sources: `query("SELECT … FROM late WHERE day = :day", late=files(…))`.

    Values go through the operator's `parameters`, as `:name`.
    """
    # The operator refuses what is no source.
    return {
        "sql": sql,
        "views": {name: dict(view) if isinstance(view, Mapping) else view for name, view in views.items()},
    }
