"""DeltaIncrementalOperator: process each new version of a source table once, into another table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow_txlog.contract.operations import Incremental, Operation
from airflow_txlog.operators.arguments.given import moment_text, version_number
from airflow_txlog.operators.checked import SourceOperator


class DeltaIncrementalOperator(SourceOperator):
    """Process the new versions of one source table into a Delta table, each once, in one commit.

    The commit contains the rows and the consumer's watermark, which is the last processed version of the source. The
    next run starts after it, regardless of lost events or XComs. A run that finds nothing new commits nothing.

    :param source: `sources.table(…)`, or `sources.query(…)` over views of which one is the driving table. Other
        tables of the query are read at their newest versions, which the watermark records. (templated)
    :param consumer: the watermark's name. Two tasks with one consumer share its work. (templated)
    :param driving: the view of the query that is read range by range. None is its only table.
    :param mode: "append" the rows of the query (a missing table is created), "upsert" them by `keys`, "merge" them by
        `on` and `clauses`, or apply them as events by `keys` and `sequence_by` ("apply_changes").
    :param keys: for "upsert" and "apply_changes", as in DeltaUpsertOperator. (templated)
    :param columns: for "upsert", as in DeltaUpsertOperator. (templated)
    :param on: for "merge", as in DeltaMergeOperator. (templated)
    :param clauses: for "merge", as in DeltaMergeOperator. (templated)
    :param target_alias: for "merge", the name of the table in the SQL texts.
    :param source_alias: for "merge", the name of the source in them.
    :param sequence_by: for "apply_changes", as in DeltaApplyChangesOperator. (templated)
    :param apply_as_deletes: the same. (templated)
    :param column_list: the same. (templated)
    :param except_column_list: the same. (templated)
    :param ignore_null_updates: the same.
    :param ignore_null_updates_column_list: the same. (templated)
    :param ignore_null_updates_except_column_list: the same. (templated)
    :param tombstone_hours: the same.
    :param stored_as_scd_type: the same.
    :param track_history_column_list: the same.
    :param start_column: the same.
    :param end_column: the same.
    :param current_column: the same.
    :param changes: False: the driving view has the rows that were added. True: it has change rows, with the columns
        `_change_type` (insert, delete, update_preimage, update_postimage), `_commit_version` and `_commit_timestamp`.
    :param starting: the start of the first run: all rows of the source ("snapshot"), a version, or the first version at
        or after a time. A consumer that already has a watermark continues there. (templated)
    :param max_versions: the maximum number of versions in one run. A run processes whole versions, and at least one.
    :param max_files: the maximum number of files in one run.
    :param max_bytes: the maximum number of bytes in the files of one run.
    :param skip_change_commits: skip versions that change or remove rows, together with the rows that they add. By
        default a consumer of added rows fails on such a version with SourceGap.
    :param on_gap: the reaction if the changes after the watermark cannot be read: "fail" with SourceGap, or replace the
        rows of the table with the rows of the query over the whole source ("full", in the modes "append" and "upsert").
    :param on_schema_change: the reaction to source columns that are missing in the table: "fail" the task, add them
        ("append_new_columns") or leave them out ("ignore").
    :param partition_by: partition columns of a table that is created here.
    :param cluster_by: clustering columns of a table that is created here.
    :param properties: table properties of a table that is created here.

    Example: `DeltaIncrementalOperator(task_id="silver", table_uri="/lake/silver", source=table("/lake/bronze"),
    consumer="silver")`. Other arguments: `DataChangingOperator` and `TxlogOperator`.
    """

    operation: ClassVar[type[Operation]] = Incremental
    may_create = True
    template_fields: Sequence[str] = (
        *SourceOperator.template_fields,
        "source",
        "consumer",
        "keys",
        "columns",
        "on",
        "clauses",
        "sequence_by",
        "apply_as_deletes",
        "column_list",
        "except_column_list",
        "ignore_null_updates_column_list",
        "ignore_null_updates_except_column_list",
        "starting",
    )
    # `on_schema_change` decides.
    schema_evolution = False

    def __init__(
        self,
        *,
        source: Mapping[str, Any],
        consumer: str,
        driving: str | None = None,
        mode: str = "append",
        keys: str | Sequence[str] | None = None,
        columns: str | Sequence[str] | None = None,
        on: str | None = None,
        clauses: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        target_alias: str = "t",
        source_alias: str = "s",
        sequence_by: str | None = None,
        apply_as_deletes: str | None = None,
        column_list: str | Sequence[str] | None = None,
        except_column_list: str | Sequence[str] | None = None,
        ignore_null_updates: bool = False,
        ignore_null_updates_column_list: str | Sequence[str] | None = None,
        ignore_null_updates_except_column_list: str | Sequence[str] | None = None,
        tombstone_hours: float = 168,
        stored_as_scd_type: int = 1,
        track_history_column_list: str | Sequence[str] | None = None,
        start_column: str = "__START_AT",
        end_column: str = "__END_AT",
        current_column: str | None = None,
        changes: bool = False,
        starting: int | str = "snapshot",
        max_versions: int | None = None,
        max_files: int | None = None,
        max_bytes: int | None = None,
        skip_change_commits: bool = False,
        on_gap: str = "fail",
        on_schema_change: str = "fail",
        partition_by: str | Sequence[str] | None = None,
        cluster_by: str | Sequence[str] | None = None,
        properties: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.consumer = consumer
        self.driving = driving
        self.mode = mode
        self.keys = keys
        self.columns = columns
        self.on = on
        self.clauses = clauses
        self.target_alias = target_alias
        self.source_alias = source_alias
        self.sequence_by = sequence_by
        self.apply_as_deletes = apply_as_deletes
        self.column_list = column_list
        self.except_column_list = except_column_list
        self.ignore_null_updates = ignore_null_updates
        self.ignore_null_updates_column_list = ignore_null_updates_column_list
        self.ignore_null_updates_except_column_list = ignore_null_updates_except_column_list
        self.tombstone_hours = tombstone_hours
        self.stored_as_scd_type = stored_as_scd_type
        self.track_history_column_list = track_history_column_list
        self.start_column = start_column
        self.end_column = end_column
        self.current_column = current_column
        self.changes = changes
        self.starting = starting
        self.max_versions = max_versions
        self.max_files = max_files
        self.max_bytes = max_bytes
        self.skip_change_commits = skip_change_commits
        self.on_gap = on_gap
        self.on_schema_change = on_schema_change
        self.partition_by = partition_by
        self.cluster_by = cluster_by
        self.properties = properties
        self.check_literals()

    def job_arguments(self) -> dict[str, Any]:
        return {**super().job_arguments(), "starting": version_number(moment_text(self.starting))}
