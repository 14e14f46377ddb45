"""Where the rows of a write or a merge come from: plain dicts, made by small functions.

Each function gives what `contract.operations.fields` reads; a dict written by hand does as well. The operator that
takes them templates the texts inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from airflow_txlog.operators.arguments.given import has_template, is_output, path_text, text_map


def files(
    path: str | PurePath | Sequence[str | PurePath],
    *,
    format: str = "parquet",
    options: Mapping[str, Any] | None = None,
    schema: str | None = None,
) -> dict[str, Any]:
    """Rows of files as Spark reads them: "parquet", "csv", "json" or "orc", with Spark's own options.

    `path` is absolute, or a URI: a file, a folder, a glob, or a list of them. Files in an object store need no jars;
    docs/operators.md says what is read how.

    `schema` is a DDL text such as "id BIGINT, day DATE"; without it Spark finds the schema out.
    """
    paths = path if isinstance(path, str | PurePath) or is_output(path) else [path_text(item) for item in path]
    return {
        "format": format,
        "path": path_text(paths),
        "options": text_map("options", options),
        "schema": schema,
    }


def table(uri: str, version: int | None = None) -> dict[str, Any]:
    """Rows of a Delta table at a version, or at its latest one when the job starts."""
    return {"table": uri, "version": version}


def query(sql: str, **views: Mapping[str, Any]) -> dict[str, Any]:
    """Rows of a Spark SQL query over named sources: `query("SELECT … FROM late WHERE day = :day", late=files(…))`.

    Values go through the operator's `parameters`, as `:name`.
    """
    return {"sql": sql, "views": {name: view if has_template(view) else dict(view) for name, view in views.items()}}
