"""What Airflow registers of this package. Imports nothing: Airflow reads it before its own configuration is ready."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """The provider's description, valid by Airflow's `provider_info.schema.json`."""
    return {
        "package-name": "airflow-provider-txlog",
        "name": "Delta tables (txlog)",
        "description": "Transactional pipelines: append, merge, delete, checkpoint and vacuum Delta tables from "
        "PySpark, without jars, exactly once per task.",
        "integrations": [
            {
                "integration-name": "Delta tables (txlog)",
                "external-doc-url": "https://github.com/delta-io/delta/blob/master/PROTOCOL.md",
                "tags": ["software"],
            }
        ],
        "operators": [
            {
                "integration-name": "Delta tables (txlog)",
                "python-modules": [
                    "airflow_txlog.operators.write",
                    "airflow_txlog.operators.merge",
                    "airflow_txlog.operators.upsert",
                    "airflow_txlog.operators.delete",
                    "airflow_txlog.operators.update",
                    "airflow_txlog.operators.truncate",
                    "airflow_txlog.operators.restore",
                    "airflow_txlog.operators.optimize",
                    "airflow_txlog.operators.checkpoint",
                    "airflow_txlog.operators.vacuum",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": "Delta tables (txlog)",
                "python-modules": ["airflow_txlog.sensors.table_version"],
            }
        ],
        "triggers": [
            {
                "integration-name": "Delta tables (txlog)",
                "python-modules": ["airflow_txlog.triggers.submitted_job", "airflow_txlog.triggers.table_version"],
            }
        ],
        "hooks": [
            {
                "integration-name": "Delta tables (txlog)",
                "python-modules": ["airflow_txlog.hooks.txlog"],
            }
        ],
        "extra-links": ["airflow_txlog.links.pages.CommitLink", "airflow_txlog.links.pages.TableLink"],
        "connection-types": [_connection_type()],
        "cli": ["airflow_txlog.cli.definition.get_cli_commands"],
        "config": {"txlog": _config_section()},
    }


RUNNERS = ("child", "in_process", "warm", "connect", "submit")


def _connection_type() -> dict[str, Any]:
    return {
        "connection-type": "txlog",
        "hook-class-name": "airflow_txlog.hooks.txlog.TxlogHook",
        "hook-name": "Delta tables (txlog)",
        "ui-field-behaviour": {
            "hidden-fields": ["schema", "login", "password", "port"],
            "relabeling": {"host": "Base folder or URI"},
            "placeholders": {"host": "/lake"},
        },
        "conn-fields": _connection_fields(),
    }


def _connection_fields() -> dict[str, Any]:
    """In the order of the form. A JSON object is edited as one, and a null in an enum would be offered as a choice."""
    return {
        "runner": {
            "label": "Runner",
            "description": "Where jobs run unless the operator says otherwise. Empty: that of [txlog] runner.",
            "schema": {"type": ["string", "null"], "enum": list(RUNNERS)},
        },
        "spark_conn_id": {
            "label": "Spark connection",
            "description": "The connection of the cluster that the runner uses (spark_connect for the runner "
            "connect, spark for submit). Empty for a runner that starts its own Spark.",
            "schema": {"type": ["string", "null"]},
        },
        "spark_conf": {
            "label": "Spark settings",
            "description": "A JSON object of Spark settings for every job, without secrets.",
            "schema": {"type": ["object", "null"]},
        },
        "storage_conn_id": {
            "label": "Storage connection",
            "description": "The connection (aws, google_cloud_platform, wasb or adls) whose credentials open the "
            "tables' store. Empty: each process uses its own identity.",
            "schema": {"type": ["string", "null"]},
        },
        "storage_options": {
            "label": "Storage options",
            "description": "A JSON object: how the tables' stores are opened (docs/stores.md lists them). "
            "No secrets: those belong in the storage connection.",
            "schema": {"type": ["object", "null"]},
        },
        "history_url": {
            "label": "Page of a commit",
            "description": "An address with {table} and {version} in it, which each task that commits links to. "
            "Empty: that of [txlog] history_url.",
            "schema": {"type": ["string", "null"]},
        },
        "table_url": {
            "label": "Page of a table",
            "description": "An address with {table} in it, which each task links to. Empty: that of [txlog] table_url.",
            "schema": {"type": ["string", "null"]},
        },
        "strict_writers": {
            "label": "Strict writers",
            "description": "Refuse, and not only warn about, a table that was lately written by an engine whose "
            "commits would replace ours on its store.",
            "schema": {"type": ["boolean", "null"]},
        },
        "single_writer": {
            "label": "Single writer",
            "description": "Allow tables on file systems without a proven put-if-absent (hdfs, sftp, …). Two "
            "tasks that write one table at the same time lose a commit there without an error.",
            "schema": {"type": ["boolean", "null"]},
        },
        "allow_absolute_paths": {
            "label": "Allow absolute paths",
            "description": "Read rows of files that a table names outside of its own folder, as a shallow clone "
            "does, with this worker's permissions. Only for tables whose writers are trusted with that.",
            "schema": {"type": ["boolean", "null"]},
        },
    }


def _config_section() -> dict[str, Any]:
    return {
        "description": "Settings of the txlog provider (transactional Delta tables).",
        "options": {
            "deployment_id": {
                "description": "Names this Airflow deployment in the transactions that its tasks leave in tables; it "
                "must differ between deployments that write the same tables. Empty: ids that Airflow makes itself "
                "distinguish them, which is all that is needed from Airflow 3.3 on.",
                "version_added": "0.1.0",
                "type": "string",
                "example": "production-eu",
                "default": "",
            },
            "runner": {
                "description": "Where jobs run unless the operator or its connection says otherwise: child (a child "
                "process of the task), warm (a Spark that the tasks of a machine share), connect (a Spark Connect "
                "server), submit (spark-submit to a cluster) or in_process (a Spark session that the process shares; "
                "for tests and demos).",
                "version_added": "0.1.0",
                "type": "string",
                "example": "warm",
                "default": "child",
            },
            "history_url": {
                "description": "The page of a commit in a catalog or a browser of tables, which each task that commits "
                "links to in Airflow's UI: an http or https address in which {table} stands for the table's URI and "
                "{version} for the version. Without it there is no link.",
                "version_added": "0.1.0",
                "type": "string",
                "example": "https://lake.example.com/history?table={table}&version={version}",
                "default": "",
            },
            "table_url": {
                "description": "The page of a table in a catalog or a browser of tables, which each task links to in "
                "Airflow's UI: an http or https address in which {table} stands for the table's URI. Without it there "
                "is no link.",
                "version_added": "0.1.0",
                "type": "string",
                "example": "https://lake.example.com/table?uri={table}",
                "default": "",
            },
            "cores": {
                "description": "The cores of each Spark that a task starts on its worker: so many of Spark's own tasks "
                "run at once. A number, or * for all of the machine; empty: all. spark.master in the spark_conf of a "
                "connection or an operator, such as local[4], overrules it. Not for the runners connect and submit.",
                "version_added": "0.1.0",
                "type": "string",
                "example": "2",
                "default": "",
            },
            "heap": {
                "description": "The heap of each Spark that a task starts on its worker, such as 512m or 4g; empty: "
                "2g. Its process takes more than that (docs/sizing.md). spark.driver.memory in the spark_conf of a "
                "connection or an operator overrules it. Not for the runners connect and submit.",
                "version_added": "0.1.0",
                "type": "string",
                "example": "4g",
                "default": "",
            },
        },
    }
