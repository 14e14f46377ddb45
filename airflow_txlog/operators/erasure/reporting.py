"""The base of the operators that report on an erasure: they verify tables, and write one report for a request."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_txlog.contract.erasure.report import CHECKLIST, ErasureReport, Findings, check_request_id
from airflow_txlog.contract.operations import VerifyErasure
from airflow_txlog.contract.wording import plural
from airflow_txlog.errors import ErasureIncomplete, InvalidJobSpec, TableError, TxlogError, UnsupportedFeature
from airflow_txlog.hooks.erasure_report import publish_report, signing_key
from airflow_txlog.hooks.upkeep import find_tables
from airflow_txlog.locations import shown
from airflow_txlog.operators.arguments.given import has_template, keys_of, path_text
from airflow_txlog.operators.many_jobs import ManyJobsOperator
from airflow_txlog.operators.progress import report_result
from airflow_txlog.operators.runs import named_places

if TYPE_CHECKING:
    from airflow_txlog.contract.job import JobSpec
    from airflow_txlog.hooks.txlog import TxlogHook


class ErasureOperator(ManyJobsOperator):
    """Base of the operators that report on an erasure.

    :param tables: the tables, each with the column that identifies subjects, or a member of a struct
        (`{"/lake/users": "email", "/lake/orders": "customer.email"}`). Paths, URIs, or names under the base of the
        connection. (templated)
    :param subjects: the values that identify the subjects, the same for all tables: a list, or a source
        (`sources.files(…)`, `sources.table(…)`, `sources.query(…)`). (templated)
    :param source_column: the column of the source that has the values. Default: the only column, or the one with the
        name of the table's column. (templated)
    :param request_id: the controller's id of the request, without personal data. It names the report. (templated)
    :param report_uri: the folder for the report, outside of every table. (templated)
    :param requested_at: the time of the request, as a datetime or as ISO 8601. (templated)
    :param signing_conn_id: a connection whose password is an Ed25519 private key, which signs the report: PEM, or 64
        hexadecimal digits. With None the report is not signed, and its check fails.
    :param declared: the controller's statements about places that no program here can read, by the names of
        `contract.erasure.report.CHECKLIST`: `{"backups": "expire on 2027-01-31"}`. (templated)
    :param legal_hold: tables that are skipped, each with the reason, in any spelling of their places. The report names
        them as out of scope. (templated)
    :param readers_in: tables, or folders with tables at any depth. The report names each that reads one of `tables`, by
        an increment or as a shallow clone, and is not among them. (templated)
    :param require_complete: fail with ErasureIncomplete, after the report is written, unless it is complete.
    :param sensitive: whether Airflow's Rendered Templates and logs show asterisks for the `subjects`.
    """

    template_fields: Sequence[str] = (
        *("tables", "subjects", "source_column", "request_id", "report_uri", "requested_at", "declared"),
        *("legal_hold", "readers_in", "spark_conf"),
    )

    def __init__(
        self,
        *,
        tables: Mapping[str, str],
        subjects: Sequence[Any] | Mapping[str, Any],
        request_id: str,
        report_uri: str,
        source_column: str | None = None,
        requested_at: dt.datetime | str | None = None,
        signing_conn_id: str | None = None,
        declared: Mapping[str, str] | None = None,
        legal_hold: Mapping[str, str] | None = None,
        readers_in: str | Sequence[str] | None = None,
        require_complete: bool = True,
        sensitive: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.tables = tables
        self.subjects = subjects
        self.source_column = source_column
        self.request_id = request_id
        self.report_uri = report_uri
        self.requested_at = requested_at
        self.signing_conn_id = signing_conn_id
        self.declared = declared
        self.legal_hold = legal_hold
        self.readers_in = readers_in
        self.require_complete = require_complete
        self.sensitive = sensitive

    def check_arguments(self) -> None:
        """Raise InvalidJobSpec for arguments that are no template and cannot be right."""
        for name in ("tables", "legal_hold", "declared"):
            value = getattr(self, name)
            if value is None or has_template(value):
                continue
            if not isinstance(value, Mapping) or not all(isinstance(each, str) and each for each in value.values()):
                raise InvalidJobSpec(f"{name} must be a mapping of texts to texts. Nothing was read.", argument=name)
        if not has_template(self.tables) and not self.tables:
            raise InvalidJobSpec("tables names no table. Nothing was read.", argument="tables")
        unknown = set() if has_template(self.declared) else set(self.declared or ()) - CHECKLIST.keys()
        if unknown:
            raise InvalidJobSpec(
                f"declared has {shown(sorted(unknown)[0])!r}, which is no item of the checklist. Its items: "
                f"{', '.join(CHECKLIST)}. Nothing was read.",
                argument="declared",
            )
        if not has_template(self.request_id):
            check_request_id(self.request_id)

    def check_ready(self) -> None:
        """Raise before hours of work: InvalidJobSpec for wrong arguments, and the errors of `signing_key`."""
        self.check_arguments()
        if self.signing_conn_id is not None:
            signing_key(self.signing_conn_id)
        names: dict[str, str] = {}
        for table in self.tables:
            first = names.setdefault(self.hook.table(table).place, table)
            if first != table:
                raise InvalidJobSpec(
                    f"tables names one table twice, as {first} and {table}. Name it once. Nothing was read.",
                    argument="tables",
                )
        for name in self.legal_hold or ():
            if self.hook.table(name).place not in names:
                raise InvalidJobSpec(
                    f"legal_hold names {name}, which is none of the tables. If the name is wrong, a table under legal "
                    "hold would be erased. Correct the name, or remove it. Nothing was read.",
                    argument="legal_hold",
                )

    def fields_of(self, argument: str) -> Collection[str]:
        return ("tables", "subjects", "source_column") if argument == "keys" else (argument,)

    def _spec(self, table_uri: str, hook: TxlogHook | None = None) -> JobSpec:
        try:
            return super()._spec(table_uri, hook)
        except InvalidJobSpec as error:
            # The author knows the keys of the job by another name.
            message = error.message.replace("arguments.keys", "subjects")
            raise InvalidJobSpec(message, argument=error.facts.get("argument")) from error

    def job_arguments(self) -> dict[str, Any]:
        """Return the fields of the verification by the first column: the others differ from it in nothing else."""
        self.check_arguments()
        columns = [] if has_template(self.tables) else list(self.tables.values())
        # A name below the base of the connection is known when the task runs.
        is_known = self.txlog_conn_id is None and not has_template(self.report_uri)
        return self.verification(columns[0] if columns else "column", self.report_uri if is_known else "/")

    def verification(self, column: str, report_uri: str) -> dict[str, Any]:
        """Return the fields of the record that verifies a table by a column."""
        keys = keys_of("subjects", column, self.subjects, self.source_column)
        return {"keys": keys, "report_uri": path_text(report_uri)}

    def held(self, table: str) -> str | None:
        """Return the reason of a table's legal hold, in any spelling of its place; None without a hold."""
        place = self.hook.table(table).place
        hold = (self.legal_hold or {}).items()
        return next((reason for name, reason in hold if self.hook.table(name).place == place), None)

    def verified(self, context: Mapping[str, Any]) -> list[Findings]:
        """Return the findings on each table, in order. A table that cannot be opened is not verified.

        Raises InvalidInput, and the errors of the runner.
        """
        report_uri = self.hook.table_uri(self.report_uri)
        found = []
        for table, column in self.tables.items():
            uri = self.hook.table_uri(table)
            reason = self.held(table)
            if reason is not None:
                found.append(Findings(table=uri, column=column, state="out of scope", reason=reason))
                continue
            record = self.record_of(VerifyErasure, self.verification(column, report_uri), self.hook)
            try:
                result = self.run_job(context, self.spec_for(context, record, uri), f"{uri}/verify")
            except (TableError, UnsupportedFeature) as error:
                self.log.warning("%s is not verified: %s", uri, error)
                reason = f"{type(error).__name__}, see the task's log"
                found.append(Findings(table=uri, column=column, state="not verified", reason=reason))
                continue
            report_result(context, result, result.seconds)
            assert result.details.findings is not None
            found.append(Findings(**result.details.findings))
        return found

    def _not_covered(self, covered: Sequence[str]) -> list[dict[str, str]]:
        """Return the tables of `readers_in` that read a covered one, and are not covered themselves."""
        found = []
        for place in [] if self.readers_in is None else find_tables(self.hook, named_places(self.readers_in)):
            table = self.hook.table(place)
            if table.uri in covered:
                continue
            try:
                reads = ", ".join(table.reads_of(covered))
            except TxlogError as error:
                reads = f"unknown ({type(error).__name__})"
            if reads:
                self.log.warning("%s is not covered by the request, and reads: %s", table.uri, reads)
                found.append({"table": table.uri, "reads": reads})
        return found

    def published(self, report: ErasureReport) -> dict[str, Any]:
        """Write the report, and return the XCom. Raises ErasureIncomplete if it must be complete, and is not."""
        report = dataclasses.replace(report, not_covered=self._not_covered([each.table for each in report.tables]))
        written = publish_report(self.hook, self.hook.table_uri(self.report_uri), report, self.signing_conn_id)
        left = {each.table: each.num_left for each in report.tables if not each.is_complete}
        state = "complete" if report.is_complete else "incomplete"
        self.log.info("the report of request %s is %s: %s", report.request_id, state, written.uri)
        for each in report.tables:
            self.log.info("%s: %s", each.table, each.summary)
        if not report.is_complete and self.require_complete:
            if not left:
                raise ErasureIncomplete(
                    f"Request {report.request_id} is not complete: every table is under a legal hold, so nothing was "
                    f"verified. The report {written.uri} names each. Erase them when the holds end.",
                    request_id=report.request_id,
                    report=written.uri,
                    left=left,
                )
            names = ", ".join(f"{table} ({plural(count, 'object')})" for table, count in left.items())
            raise ErasureIncomplete(
                f"Request {report.request_id} is not complete: objects hold a subject, or could not be read, in "
                f"{plural(len(left), 'table')}: {names}. The report {written.uri} names each. Erase what is left, and "
                "verify again.",
                request_id=report.request_id,
                report=written.uri,
                left=left,
            )
        return {
            "request_id": report.request_id,
            "complete": report.is_complete,
            "report": written.uri,
            "page": written.page_uri,
            "public_key": written.public_key,
            "left": left,
        }
