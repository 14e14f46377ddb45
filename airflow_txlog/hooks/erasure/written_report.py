"""A written report: what the XCom of a task has about it, and the errors if it is incomplete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_txlog.contract.erasure.report import ErasureReport
from airflow_txlog.contract.wording import plural
from airflow_txlog.errors import ErasureIncomplete
from airflow_txlog.hooks.erasure.published_report import PublishedReport

# The requests that an error names.
_MOST_NAMED = 20


@dataclass(frozen=True)
class WrittenReport:
    """A report, and the places of its files."""

    report: ErasureReport
    place: PublishedReport

    @property
    def left(self) -> dict[str, int]:
        """Return for each incomplete table how many objects do not pass, or else how many have to go later."""
        return {each.table: each.num_left or each.num_waits for each in self.report.tables if not each.is_complete}

    @property
    def entry(self) -> dict[str, Any]:
        """Return what the XCom has about it."""
        return {
            "complete": self.report.is_complete,
            "report": self.place.uri,
            "page": self.place.page_uri,
            "left": self.left,
            "recheck_on": next((each["on"] for each in self.report.rechecks), None),
        }


def incomplete_one(written: WrittenReport) -> ErasureIncomplete:
    """Return the error of the only request of a task."""
    request_id, left, uri = written.report.request_id, written.left, written.place.uri
    if not left:
        return ErasureIncomplete(
            f"Request {request_id} is not complete: every table is under a legal hold, so nothing was verified. The "
            f"report {uri} names each. Erase them when the holds end.",
            request_id=request_id,
            report=uri,
            left=left,
        )
    # A table that was not verified has none.
    names = ", ".join(f"{table} ({plural(count, 'object')})" if count else table for table, count in left.items())
    return ErasureIncomplete(
        f"Request {request_id} is not complete: objects hold a subject, could not be read, or may go only later; or a "
        f"table was not erased or not verified: {names}. The report {uri} has the reasons. Erase what "
        "is left, and verify again.",
        request_id=request_id,
        report=uri,
        left=left,
    )


def incomplete_several(incomplete: Sequence[WrittenReport], count: int) -> ErasureIncomplete:
    """Return the error of the requests that are incomplete, of `count` requests."""
    ids = [each.report.request_id for each in incomplete]
    more = f" and {len(ids) - _MOST_NAMED} more" if len(ids) > _MOST_NAMED else ""
    return ErasureIncomplete(
        f"{len(ids)} of {plural(count, 'request')} are not complete: {', '.join(ids[:_MOST_NAMED])}{more}. Objects "
        "hold a subject, could not be read, or may go only later; a table was not erased or not verified; or every "
        f"table is under a legal hold. The report of each request, in {incomplete[0].place.uri.rpartition('/')[0]}, "
        "names them. Erase what is left, and verify again.",
        requests={each.report.request_id: {"report": each.place.uri, "left": each.left} for each in incomplete},
    )
