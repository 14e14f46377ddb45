"""The provider metadata that Airflow registers. Imports nothing: Airflow reads it before its configuration is ready."""

from __future__ import annotations

from typing import Any

_NAME = "Delta tables (txlog)"
_OPERATORS = (
    *("write", "merge", "upsert", "delete", "update", "publish"),
    *("changes.incremental", "changes.apply_changes", "changes.apply_snapshot"),
    "erasure.erase",
    "erasure.verify",
    *("alter", "truncate", "restore", "runs", "convert", "clone"),
    *("maintenance.optimize", "maintenance.checkpoint_and_vacuum", "maintenance.upkeep"),
)

RUNNERS = ("child", "in_process", "warm", "connect", "submit")


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description, valid by Airflow's `provider_info.schema.json`."""
    return {
        "package-name": "airflow-provider-txlog",
        "name": _NAME,
        "description": "Transactional pipelines: append, merge, delete, checkpoint and vacuum Delta tables from "
        "PySpark, without jars, exactly once per task.",
        "integrations": [
            {
                "integration-name": _NAME,
                "external-doc-url": "https://github.com/delta-io/delta/blob/master/PROTOCOL.md",
                "tags": ["software"],
            }
        ],
        "operators": _modules("operators", *_OPERATORS),
        "sensors": _modules("sensors", "table_version"),
        "triggers": _modules("triggers", "submitted_job", "table_version"),
        "hooks": _modules("hooks", "txlog", "unity"),
        "extra-links": ["airflow_txlog.links.pages.CommitLink", "airflow_txlog.links.pages.TableLink"],
        "connection-types": [_connection_type(), _unity_connection_type()],
        "cli": ["airflow_txlog.cli.definition.get_cli_commands"],
        "config": {
            "txlog": {
                "description": "Settings of the txlog provider (transactional Delta tables).",
                "options": _options(),
            }
        },
    }


def _modules(folder: str, *names: str) -> list[dict[str, Any]]:
    modules = [f"airflow_txlog.{folder}.{name}" for name in names]
    return [{"integration-name": _NAME, "python-modules": modules}]


def _connection_type() -> dict[str, Any]:
    return {
        "connection-type": "txlog",
        "hook-class-name": "airflow_txlog.hooks.txlog.TxlogHook",
        "hook-name": _NAME,
        "ui-field-behaviour": {
            "hidden-fields": ["schema", "login", "password", "port"],
            "relabeling": {"host": "Base folder or URI"},
            "placeholders": {"host": "/lake"},
        },
        "conn-fields": _connection_fields(),
    }


def _unity_connection_type() -> dict[str, Any]:
    return {
        "connection-type": "txlog_unity",
        "hook-class-name": "airflow_txlog.hooks.unity.UnityCatalogHook",
        "hook-name": "Unity Catalog (txlog)",
        "ui-field-behaviour": {
            "hidden-fields": ["login", "extra", "schema"],
            "relabeling": {"host": "URL", "password": "Token"},
            "placeholders": {"host": "https://catalog.example.com"},
        },
    }


def _connection_fields() -> dict[str, Any]:
    """Return the fields in the order of the form."""
    runner = _field("Runner", "string", "Where jobs run, unless the operator sets it. Empty: [txlog] runner.")
    # Without null, which the form would offer as a choice.
    runner["schema"]["enum"] = list(RUNNERS)
    return {
        "runner": runner,
        "spark_conn_id": _field(
            "Spark connection",
            "string",
            "The connection of the cluster that the runner uses (spark_connect for the runner connect, spark for "
            "submit). Empty for a runner that starts its own Spark.",
        ),
        "spark_conf": _field(
            "Spark settings", "object", "A JSON object of Spark settings for every job, without secrets."
        ),
        **_place_fields(),
        "history_url": _field(
            "Page of a commit",
            "string",
            "A URL with {table} and {version} in it. Each task that commits links to it. Empty: [txlog] history_url.",
        ),
        "table_url": _field(
            "Page of a table",
            "string",
            "A URL with {table} in it. Each task links to it. Empty: [txlog] table_url.",
        ),
        **_erasure_fields(),
        "strict_writers": _field(
            "Strict writers",
            "boolean",
            "Refuse a table if an engine that recently wrote it may overwrite other commits on its store. Otherwise a "
            "warning is logged.",
        ),
        "single_writer": _field(
            "Single writer",
            "boolean",
            "Allow tables on file systems without a proven put-if-absent (hdfs, sftp, …). Two tasks that write one "
            "table at the same time lose a commit there without an error.",
        ),
        "allow_absolute_paths": _field(
            "Allow absolute paths",
            "boolean",
            "Read rows of files outside of a table's folder, which a shallow clone references, with this worker's "
            "permissions. Only for tables whose writers you trust with this.",
        ),
    }


def _place_fields() -> dict[str, Any]:
    return {
        "storage_conn_id": _field(
            "Storage connection",
            "string",
            "The connection (aws, google_cloud_platform, wasb or adls) whose credentials open the tables' store. "
            "Empty: each process uses its own identity.",
        ),
        "storage_options": _field(
            "Storage options",
            "object",
            "A JSON object with options for the tables' stores (see docs/stores.md). Put secrets in "
            "the storage connection.",
        ),
        "catalog_conn_id": _field(
            "Catalog connection",
            "string",
            "The connection (aws, hive_metastore or txlog_unity) of the catalog in which tables have names, such as "
            "sales.orders. Empty: tables are named by their places.",
        ),
    }


def _erasure_fields() -> dict[str, Any]:
    return {
        "erasure_ledger": _field(
            "Ledger of erasures",
            "string",
            "The Delta table with digests of erased subjects. Restores, rollbacks, publications, clones, conversions "
            "and full refreshes are refused if they would bring one back.",
        ),
        "erasure_key_conn_id": _field(
            "Key of the ledger",
            "string",
            "The connection whose password is the key of the ledger's digests.",
        ),
        "erasure_on_return": _field(
            "Erased subjects that return",
            "string",
            "refuse (the default), or delete: restores, rollbacks and conversions leave their rows out.",
        ),
    }


def _field(label: str, kind: str, description: str) -> dict[str, Any]:
    # The form edits a JSON object as one.
    return {"label": label, "description": description, "schema": {"type": [kind, "null"]}}


def _options() -> dict[str, Any]:
    return {
        "deployment_id": _option(
            "Identifies this Airflow deployment in the transactions and commits of its tasks. It must differ between "
            "deployments that write the same tables. Empty: Airflow's own ids distinguish them, which is sufficient "
            "from Airflow 3.3 on.",
            example="production-eu",
        ),
        "runner": _option(
            "Where jobs run, unless the operator or its connection sets it: child (a child process of the task), "
            "warm (a Spark that the tasks of a machine share), connect (a Spark Connect server), submit (spark-submit "
            "to a cluster) or in_process (a Spark session that the process shares; for tests and demos).",
            example="warm",
            default="child",
        ),
        "history_url": _option(
            "The page for a commit in your catalog or table browser. Each task that commits links to it in Airflow's "
            "UI. An http or https URL in which {table} is replaced by the table's URI and {version} by the version. "
            "Without it there is no link.",
            example="https://lake.example.com/history?table={table}&version={version}",
        ),
        "table_url": _option(
            "The page for a table in your catalog or table browser. Each task links to it in Airflow's UI. An http or "
            "https URL in which {table} is replaced by the table's URI. Without it there is no link.",
            example="https://lake.example.com/table?uri={table}",
        ),
        "window": _option(
            "Whether Airflow's UI has the page of Delta tables, and the tabs of tasks and runs: on or off. It is read "
            "when the API server starts.",
            example="off",
            default="on",
        ),
        "window_tables": _option(
            "Which tables the window opens: all (all tables that DAGs name; those in no base folder of a connection "
            "with the API server's own identity) or connections (only tables in the base folder of a connection of "
            "type txlog).",
            example="connections",
            default="all",
        ),
        "window_connections": _option(
            "Connections of type txlog in a secrets backend, separated by commas. The window finds those in the "
            "database and in environment variables by itself.",
            example="lake, lake_of_finance",
        ),
        "cores": _option(
            "The number of cores of each Spark that a task starts on its worker, and of Spark's concurrent tasks. A "
            "number, or * for all cores of the machine, which is the default. spark.master in the spark_conf of a "
            "connection or an operator, such as local[4], overrides it. Not for the runners connect and submit.",
            example="2",
        ),
        "heap": _option(
            "The heap of each Spark that a task starts on its worker, such as 512m or 4g. The default is 2g. Its "
            "process needs more memory than that (docs/sizing.md). spark.driver.memory in the spark_conf of a "
            "connection or an operator overrides it. Not for the runners connect and submit.",
            example="4g",
        ),
    }


def _option(description: str, *, example: str, default: str = "") -> dict[str, Any]:
    return {
        "description": description,
        "version_added": "0.1.0",
        "type": "string",
        "example": example,
        "default": default,
    }
