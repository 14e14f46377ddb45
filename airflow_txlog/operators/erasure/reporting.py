"""The base of the operators that report on an erasure: they verify tables, and write one report for a request."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_txlog.contract.erasure.report import (
    CHECKLIST,
    NO_ROW_FOUND,
    ErasureReport,
    Findings,
    Times,
    check_request_id,
    found_no_row,
)
from airflow_txlog.contract.operations import Operation, VerifyErasure
from airflow_txlog.errors import (
    InvalidInput,
    InvalidJobSpec,
    TableError,
    TxlogError,
    UnsupportedFeature,
)
from airflow_txlog.hooks.upkeep import find_tables
from airflow_txlog.hooks.work_key import records_key
from airflow_txlog.locations import shown
from airflow_txlog.operators.arguments.given import has_template, keys_of, moment_of, path_text, place_list, revealed
from airflow_txlog.operators.many_jobs import ManyJobsOperator
from airflow_txlog.operators.progress import report_result

if TYPE_CHECKING:
    from airflow_txlog.contract.job import JobSpec

# The requests that a log names.
_MOST_NAMED = 20


class ErasureOperator(ManyJobsOperator):
    """Base of the operators that report on an erasure.

    :param tables: the tables, each with the column that identifies subjects, or a member of a struct
        (`{"/lake/users": "email", "/lake/orders": "customer.email"}`). Paths, URIs, or names under the base of the
        connection. (templated)
    :param subjects: the keys of the people to erase: a list of values, which every table is searched for, or a source
        (`sources.files(…)`, `sources.table(…)`, `sources.query(…)`), which may have a column for each kind of key. A
        source that lacks a column for one of the tables is refused before any table changes, and so is a value that is
        not exactly one of this column's type: `7` is not a string, and `"007"` is not a number. (templated)
    :param request_id: the controller's id of the request, without personal data. It names the report. (templated)
    :param requests: several requests instead of `subjects` and `request_id`: the subjects of each by its id
        (`{"r-17": ["a@example.org"], "r-18": files(…)}`). They are worked on together, and each gets its own report.
        Another task's output may give them; then let it name sources, because Airflow keeps XComs. (templated)
    :param source_column: the column of a source that has the keys, for all tables. If you leave it out, a source of one
        column gives that one. From a source of several columns, and from a CSV file with a header and without a schema,
        each table takes the column with the name of its key: with
        `tables={"/lake/users": "email", "/lake/orders": "user_id"}`, `email` for users and `user_id` for orders.
        (templated)
    :param report_uri: the folder for the report, outside of every table. (templated)
    :param requested_at: the time of the request, as a datetime or as ISO 8601. (templated)
    :param signing_conn_id: a connection whose password is an Ed25519 private key, which signs the report: PEM, or 64
        hexadecimal digits. With None the report is not signed, and its check fails.
    :param declared: the controller's statements about places that no program here can read, by the names of
        `contract.erasure.report.CHECKLIST`: `{"backups": "expire on 2027-01-31"}`. The report takes the last date in a
        statement, if it is not past, as the day to check again. (templated)
    :param legal_hold: tables that are skipped, each with the reason, in any spelling of their places. The report names
        them as out of scope. (templated)
    :param readers_in: tables, or folders with tables at any depth. The report names each that reads one of `tables`, by
        an increment or as a shallow clone, and is not among them. (templated)
    :param require_complete: fail with ErasureIncomplete, after the report is written, unless it is complete.
    :param sensitive: whether Airflow's Rendered Templates and logs show asterisks for the subjects.
    """

    template_fields: Sequence[str] = (
        *("tables", "subjects", "source_column", "request_id", "requests", "report_uri", "requested_at"),
        *("declared", "legal_hold", "readers_in", "spark_conf"),
    )

    def __init__(
        self,
        *,
        tables: Mapping[str, str],
        report_uri: str,
        subjects: Sequence[Any] | Mapping[str, Any] | None = None,
        request_id: str | None = None,
        requests: Mapping[str, Sequence[Any] | Mapping[str, Any]] | None = None,
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
        self.requests = requests
        self.report_uri = report_uri
        self.requested_at = requested_at
        self.signing_conn_id = signing_conn_id
        self.declared = declared
        self.legal_hold = legal_hold
        if readers_in is not None and not has_template(readers_in):
            place_list("readers_in", readers_in)
        self.readers_in = readers_in
        self.require_complete = require_complete
        self.sensitive = sensitive
        self._readers: Sequence[str] = ()
        self.has_no_subject = False

    def check_arguments(self) -> None:
        """Raise InvalidJobSpec for arguments that are no template and cannot be right."""
        for name in ("tables", "legal_hold", "declared"):
            value = getattr(self, name)
            if value is None or has_template(value):
                continue
            if not isinstance(value, Mapping) or not all(isinstance(each, str) and each for each in value.values()):
                raise InvalidJobSpec(f"{name} must be a mapping of texts to texts. Nothing was read.", argument=name)
        if self.requested_at is not None and not has_template(self.requested_at):
            moment_of("requested_at", self.requested_at)
        if not has_template(self.tables) and not self.tables:
            raise InvalidJobSpec("tables names no table. Nothing was read.", argument="tables")
        unknown = set() if has_template(self.declared) else set(self.declared or ()) - CHECKLIST.keys()
        if unknown:
            raise InvalidJobSpec(
                f"declared has {shown(sorted(unknown)[0])!r}, which is no item of the checklist. Its items: "
                f"{', '.join(CHECKLIST)}. Nothing was read.",
                argument="declared",
            )
        self._check_requests()

    def _check_requests(self) -> None:
        one = [name for name in ("subjects", "request_id") if getattr(self, name) is not None]
        if self.requests is None:
            if len(one) < 2:
                raise InvalidJobSpec(
                    "Give subjects and request_id, or the subjects of several requests as requests. Nothing was read.",
                    argument="requests",
                )
            if not has_template(self.request_id):
                check_request_id(self.request_id)
            return
        if one:
            raise InvalidJobSpec(
                f"Both requests and {one[0]} are given. Put all subjects into requests, by the ids of their requests. "
                "Nothing was read.",
                argument="requests",
            )
        if isinstance(self.requests, Mapping):
            for request_id in self.requests:
                check_request_id(request_id)
        if has_template(self.requests):
            return
        if not isinstance(self.requests, Mapping):
            raise InvalidJobSpec(
                "requests must be a mapping of ids to subjects. A template gives a mapping "
                'where it is one expression, such as "{{ params.requests }}", and render_template_as_native_obj=True; '
                "so does another task's output. Nothing was read.",
                argument="requests",
            )

    def check_literals(self) -> None:
        if self.requests is not None and not has_template(self.requests) and not self.requests:
            # There is no job whose record could be checked: nothing will be done.
            self.check_arguments()
            return
        super().check_literals()

    @property
    def by_request(self) -> dict[str, Any]:
        """The subjects of each request, as they are given."""
        if self.requests is None:
            return {str(self.request_id): self.subjects}
        return dict(self.requests)

    def subjects_by(self, column: str) -> dict[str, Any]:
        """Return the fields of a record that have the subjects, as values of a column."""
        if self.requests is None:
            subjects = keys_of("subjects", column, self.subjects, self.source_column)
            return {"subjects": subjects, "request_id": self.request_id, "statements": self._statements}
        if not isinstance(self.requests, Mapping):
            raise InvalidJobSpec("requests is known when the task runs.", argument="requests")
        given = self.requests.items()
        requests = {each: keys_of(f"requests.{each}", column, keys, self.source_column) for each, keys in given}
        return {"requests": requests, "statements": self._statements}

    @property
    def _statements(self) -> list[str]:
        """Return the author's texts that the report shows, without those that a template has yet to render."""
        given = (each for each in (self.declared, self.legal_hold) if isinstance(each, Mapping))
        return [text for each in given for text in each.values()]

    def check_ready(self) -> Sequence[Sequence[str]]:
        """Raise before hours of work, and before anything is deleted, for whatever would fail at their end.

        Return the tables by kind of key column if the sources of the subjects must be read for each kind first.

        Raises InvalidJobSpec for wrong arguments, UnknownColumn for a column that a table lacks, the errors of
        `signing_key`, and those of the store for a folder of the report that cannot be written.
        """
        # Here: parsing a DAG imports no engine.
        from airflow_txlog.hooks.erasure.early_checks import check_folder, check_sources, check_subjects
        from airflow_txlog.hooks.erasure.published_report import signing_key

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
        if self.readers_in is not None:
            self._readers = find_tables(self.hook, place_list("readers_in", self.readers_in), argument="readers_in")
        tables = {table: column for table, column in self.tables.items() if not self.is_skipped(table)}
        given = {request_id: revealed(subjects) for request_id, subjects in self.by_request.items()}
        check_sources(self.hook, names, given)
        lists = {request_id: each for request_id, each in given.items() if isinstance(each, list | tuple)}
        has_sources = len(lists) < len(given)
        alike = check_subjects(self.hook, tables, lists, self._statements, is_part=has_sources)
        check_folder(self.hook, self.report_uri, names)
        # The job of a table reads its source before it changes the table.
        return alike if len(alike) > 1 and has_sources else ()

    def fields_of(self, argument: str) -> Collection[str]:
        if argument in ("subjects", "requests"):
            return ("tables", "subjects", "requests", "source_column")
        if argument == "statements":
            return ("declared", "legal_hold")
        return (argument,)

    def spec_for(self, context: Mapping[str, Any], operation: Operation, table_uri: str) -> JobSpec:
        return super().spec_for(context, operation, table_uri).replace(records_key=self._records_key)

    @cached_property
    def _records_key(self) -> str | None:
        return records_key()

    def job_arguments(self) -> dict[str, Any]:
        """Return the fields of the verification by the first column: the others differ from it in nothing else."""
        self.check_arguments()
        columns = [] if has_template(self.tables) else list(self.tables.values())
        # A name below the base of the connection is known when the task runs.
        is_known = self.txlog_conn_id is None and not has_template(self.report_uri)
        return self.verification(columns[0] if columns else "column", self.report_uri if is_known else "/")

    def verification(self, column: str, report_uri: str) -> dict[str, Any]:
        """Return the fields of the record that verifies a table by a column."""
        return {**self.subjects_by(column), "report_uri": path_text(report_uri)}

    def held(self, table: str) -> str | None:
        """Return the reason of a table's legal hold, in any spelling of its place; None without a hold."""
        place = self.hook.table(table).place
        hold = (self.legal_hold or {}).items()
        return next((reason for name, reason in hold if self.hook.table(name).place == place), None)

    def is_skipped(self, table: str) -> bool:
        """Return whether the task leaves a table alone, so that no argument has to fit it."""
        return self.held(table) is not None

    def verified(
        self, context: Mapping[str, Any], records: Mapping[str, Sequence[str]] | None = None
    ) -> dict[str, list[Findings]]:
        """Return the findings on each table, in order, by request. A table that cannot be opened is not verified.

        `records`: the names of the records that an erasure has left, by the table's canonical URI; None if no erasure
        was tried. Raises InvalidInput, and the errors of the runner.
        """
        report_uri = self.hook.table_uri(self.report_uri)
        found: dict[str, list[Findings]] = {request_id: [] for request_id in self.by_request}
        for table, column in self.tables.items():
            uri = self.hook.table_uri(table)
            reason = self.held(table)
            if reason is not None:
                held = Findings(table=uri, column=column, state="out of scope", reason=reason)
                _add(found, dict.fromkeys(found, held))
                continue
            fields = self.verification(column, report_uri)
            fields |= {"records": (records or {}).get(self.hook.table(uri).uri, ())}
            record = self.record_of(VerifyErasure, fields, self.hook)
            try:
                result = self.run_job(context, self.spec_for(context, record, uri), f"{uri}/verify")
            except (TableError, UnsupportedFeature, InvalidInput) as error:
                # Before a deletion the author can still correct a wrong argument.
                if isinstance(error, InvalidInput) and not records:
                    raise
                self.log.warning("%s is not verified: %s", uri, error)
                reason = f"{type(error).__name__}, see the task's log"
                not_verified = Findings(table=uri, column=column, state="not verified", reason=reason)
                _add(found, dict.fromkeys(found, not_verified))
                continue
            report_result(context, result, result.seconds)
            if result.details.findings is None:
                if records is None:
                    self.has_no_subject = True
                    return {}
                reason = "the source of the subjects, which had rows before, has none any more"
                emptied = Findings(table=uri, column=column, state="not verified", reason=reason)
                _add(found, dict.fromkeys(found, emptied))
                continue
            _add(found, {name: Findings(**each) for name, each in result.details.findings.items()})
        return found

    def _not_covered(self, covered: Sequence[str]) -> list[dict[str, str]]:
        """Return the tables of `readers_in` that read a covered one, and are not covered themselves."""
        found = []
        for place in self._readers:
            table = self.hook.table(place)
            if table.uri in covered:
                continue
            try:
                reads = ", ".join(table.reads_of(covered))
            except (TxlogError, OSError) as error:
                reads = f"unknown ({type(error).__name__})"
            if reads:
                self.log.warning("%s is not covered by the request, and reads: %s", table.uri, reads)
                found.append({"table": table.uri, "reads": reads})
        return found

    def reports(self, found: Mapping[str, Sequence[Findings]], times: Mapping[str, Times]) -> list[ErasureReport]:
        """Return the report of each request."""
        from airflow_txlog.hooks.erasure.published_report import time_of_report

        created, tables = time_of_report(), next(iter(found.values()))
        not_covered = self._not_covered([each.table for each in tables])
        return [
            ErasureReport(
                request_id=request_id,
                tables=own,
                times=times[request_id],
                declared=self.declared or {},
                not_covered=not_covered,
                created=created,
            )
            for request_id, own in found.items()
        ]

    def published(self, reports: Sequence[ErasureReport]) -> dict[str, Any]:
        """Write the reports, and return the XCom. Raises ErasureIncomplete if one must be complete, and is not."""
        from airflow_txlog.hooks.erasure.published_report import publish_reports
        from airflow_txlog.hooks.erasure.written_report import WrittenReport, incomplete_one, incomplete_several

        folder = self.hook.table_uri(self.report_uri)
        written = list(publish_reports(self.hook, folder, reports, self.signing_conn_id))
        results = [WrittenReport(report, place) for report, place in zip(reports, written, strict=True)]
        for each in results[:_MOST_NAMED]:
            report = each.report
            state = "complete" if report.is_complete else "incomplete"
            self.log.info("the report of request %s is %s: %s", report.request_id, state, each.place.uri)
            for table in report.tables:
                self.log.info("%s: %s", table.table, table.summary)
            if found_no_row((table.steps, table.num_deleted_rows) for table in report.tables):
                self.log.warning("request %s: %s", report.request_id, NO_ROW_FOUND)
        if written and written[0].public_key is not None:
            self.log.info("signed; check it with the public key %s", written[0].public_key)
        incomplete = [each for each in results if not each.report.is_complete]
        if len(results) > 1:
            self.log.info("%d of %d reports are complete", len(results) - len(incomplete), len(results))
        if incomplete and self.require_complete:
            raise (
                incomplete_one(incomplete[0]) if self.requests is None else incomplete_several(incomplete, len(results))
            )
        if self.requests is None:
            return {"request_id": self.request_id, **results[0].entry, "public_key": written[0].public_key}
        days = [each.entry["recheck_on"] for each in results if each.entry["recheck_on"]]
        return {
            "requests": {each.report.request_id: each.entry for each in results},
            "num_requests": len(results),
            "num_complete": len(results) - len(incomplete),
            "complete": not incomplete,
            "recheck_on": min(days, default=None),
            "public_key": written[0].public_key if written else None,
        }

    def no_subject(self) -> dict[str, Any] | None:
        """Return the XCom of a task whose source had no row, as in a week without requests; None otherwise."""
        if not self.has_no_subject:
            return None
        self.log.info(
            "request %s names no subject: nothing was erased or verified, and there is no report", self.request_id
        )
        places = dict.fromkeys(("report", "page", "recheck_on", "public_key"))
        return {"request_id": self.request_id, "complete": True, "left": {}, "num_subjects": 0, **places}

    def nothing_requested(self) -> dict[str, Any] | None:
        """Return the XCom of a task that was given no request, such as that of a week without one; None otherwise."""
        if self.by_request:
            return None
        self.log.info("there is no request: nothing is done")
        return self.published([])


def _add(found: Mapping[str, list[Findings]], of_table: Mapping[str, Findings]) -> None:
    for request_id, findings in of_table.items():
        found[request_id].append(findings)
