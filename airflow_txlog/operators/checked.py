"""The bases of the operators that check their change before they publish it: limits, and expectations on new rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_txlog.contract.job import ApplicationTransaction
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.operators.arguments.given import path_text
from airflow_txlog.operators.base import DataChangingOperator


class LimitedOperator(DataChangingOperator):
    """Base of the operators that remove rows.

    If a limit is violated, the task fails with ExpectationFailed on its first try, makes no commit and leaves no file.
    A fraction is a number from 0 to 1. It refers to the live rows in the partitions of `partition_predicate`, or in the
    whole table without it (docs/checks.md).

    :param max_deleted_rows: the maximum number of rows that may be deleted, or replaced by an overwrite.
    :param max_deleted_fraction: the same, as a fraction.
    :param max_files_rewritten: the maximum number of data files that may leave the table or get a deletion vector.
    :param dry_run: report the change by partition in the XCom and the log, and neither write nor commit anything.
    :param samples_to: in a dry run, the path or the URI of another table, to which at most a hundred inserted, a
        hundred deleted and a hundred updated rows are appended, before and after the change (docs/checks.md). It is
        created if it does not exist. Refused if the task is `sensitive`. (templated)
    """

    template_fields: Sequence[str] = (*DataChangingOperator.template_fields, "samples_to")

    def __init__(
        self,
        *,
        max_deleted_rows: int | None = None,
        max_deleted_fraction: float | None = None,
        max_files_rewritten: int | None = None,
        dry_run: bool = False,
        samples_to: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.samples_to = path_text(samples_to)
        self.is_dry_run = dry_run
        self.max_deleted_rows = max_deleted_rows
        self.max_deleted_fraction = max_deleted_fraction
        self.max_files_rewritten = max_files_rewritten

    def job_arguments(self) -> dict[str, Any]:
        if self.samples_to is not None and self.sensitive:
            raise InvalidJobSpec(
                "samples_to would copy rows of a sensitive task to another table. Leave samples_to out, or set "
                "sensitive=False if these rows are no personal data.",
                argument="samples_to",
            )
        return super().job_arguments()

    def application(self, context: Mapping[str, Any], table_uri: str) -> ApplicationTransaction | None:
        """Return none for a dry run without samples, which commits to no table."""
        is_done_each_time = self.is_dry_run and self.samples_to is None
        return None if is_done_each_time else super().application(context, table_uri)


class CheckedOperator(LimitedOperator):
    """Base of the operators that add or change rows.

    A row passes an expectation only if its condition is TRUE; NULL fails. Each is `{name: SQL condition}` over the
    table's columns, with `:name` for values. The counts are in the task's XCom, its log and the commit.

    :param expect: count the new rows that fail, and keep them. (templated)
    :param expect_or_fail: fail the task with ExpectationFailed on its first try if a new row fails. The task makes no
        commit and leaves no file. (templated)
    :param unique: columns whose values no two rows in the operation's scope may share after the operation. A row with
        NULL in one of them equals no row. Otherwise the task fails with ExpectationFailed. (templated)
    :param max_updated_rows: the maximum number of rows that may be updated.
    :param max_updated_fraction: the same, as a fraction.
    :param min_inserted_rows: the minimum number of rows that must be inserted or written.
    :param max_inserted_rows: the maximum number of rows that may be inserted or written.
    """

    template_fields: Sequence[str] = (*LimitedOperator.template_fields, "expect", "expect_or_fail", "unique")

    def __init__(
        self,
        *,
        expect: Mapping[str, str] | None = None,
        expect_or_fail: Mapping[str, str] | None = None,
        unique: str | Sequence[str] | None = None,
        max_updated_rows: int | None = None,
        max_updated_fraction: float | None = None,
        min_inserted_rows: int | None = None,
        max_inserted_rows: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.expect = expect
        self.expect_or_fail = expect_or_fail
        self.unique = unique
        self.max_updated_rows = max_updated_rows
        self.max_updated_fraction = max_updated_fraction
        self.min_inserted_rows = min_inserted_rows
        self.max_inserted_rows = max_inserted_rows


class SourceOperator(CheckedOperator):
    """Base of the operators that write the rows of a source.

    :param expect_or_drop: conditions on the rows of the source. Rows that fail are counted and dropped before the
        operation. (templated)
    :param expect_or_quarantine: the same, but rows that fail are appended to another table. (templated)
    :param quarantine_uri: the path or the URI of that table. It is created if it does not exist, and gets new columns
        of the source. Its rows have the additional column `failed_expectations`. (templated)
    :param deduplicate_by: use only one of the source rows that have the same values in these columns. A row with NULL
        in one of them equals no row. (templated)
    :param deduplicate_order_by: columns, each with ASC (the default) or DESC. The first row in this order is used, and
        NULL comes last. (templated)
    """

    template_fields: Sequence[str] = (
        *CheckedOperator.template_fields,
        "expect_or_drop",
        "expect_or_quarantine",
        "quarantine_uri",
        "deduplicate_by",
        "deduplicate_order_by",
    )

    def __init__(
        self,
        *,
        expect_or_drop: Mapping[str, str] | None = None,
        expect_or_quarantine: Mapping[str, str] | None = None,
        quarantine_uri: str | None = None,
        deduplicate_by: str | Sequence[str] | None = None,
        deduplicate_order_by: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.expect_or_drop = expect_or_drop
        self.expect_or_quarantine = expect_or_quarantine
        self.quarantine_uri = path_text(quarantine_uri)
        self.deduplicate_by = deduplicate_by
        self.deduplicate_order_by = deduplicate_order_by
