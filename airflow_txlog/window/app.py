"""The window as an ASGI application: one table of pages, each with its facts as HTML or as JSON.

Every request is authenticated before anything else, whatever its path and verb. Facts are computed away from the event
loop and are kept for all users. Names that a user may not see are left out before a page is rendered. The invariant: a
table is opened only if the site knows it and the user may see it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from airflow_txlog.clock import SYSTEM_CLOCK, Clock
from airflow_txlog.engine import Table
from airflow_txlog.errors import TableNotFound, TxlogError, VersionNotFound
from airflow_txlog.locations import scheme_of, split
from airflow_txlog.window import markup
from airflow_txlog.window.answers import USUAL_LIMITS, AnswerLimits, Answers, NotYet, TooBusy, TooLate
from airflow_txlog.window.facts.one_commit import OneCommit, commit_facts
from airflow_txlog.window.facts.overview import TableFacts, table_facts
from airflow_txlog.window.facts.summary import TableSummary, table_summary
from airflow_txlog.window.facts.timeline import PAGE, WIDE
from airflow_txlog.window.facts.version_lines import KeptLines, clipped
from airflow_txlog.window.site import KnownTable, Refused, Site, View

log = logging.getLogger(__name__)

TABLES_ON_A_PAGE = 50
_AT_ONCE = 4
_LIST_S = 3.0
_SUMMARY_FRESH_S = 30.0
_UNCHANGED_S = 30.0
_AGES_S = 15
_MOST_RENDERED, _MOST_RENDERED_BYTES = 100, 16 * 2**20
_MOST_MESSAGE = 1_500
_MOST_OPEN, _MOST_OPEN_FILES = 32, 1_000_000
_NOT_FOUND = "There is no such page, or you may not see it."
_NO_TABLE = "No such table is known here, or you may not see it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request of a user for a page."""

    query: Mapping[str, str]
    view: View
    now_ms: int

    def number(self, name: str) -> int | None:
        """Return a whole number of the query; None without one. Raises Refused (400)."""
        text = self.query.get(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise Refused(400, f"{name} is a whole number.")
        return int(text)

    def table(self) -> KnownTable:
        """Return the table that the query names. Raises Refused (404) also for one that the user may not see."""
        known = self.view.tables.get(self.query.get("uri", ""))
        if known is None:
            raise Refused(404, _NO_TABLE)
        return known


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A page: its facts, and the template that shows them."""

    template: str
    facts: Any
    values: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200
    key: Hashable = None
    """Equal pages are rendered once; None: this page is rendered for each request."""


Page = Callable[["Window", Ask], Awaitable[Shown]]


class OpenTables:
    """Tables that were opened, with the newest snapshot of each; those not used for longest are let go."""

    def __init__(self) -> None:
        self._open: OrderedDict[Hashable, tuple[Table, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, known: KnownTable, open_table: Callable[[KnownTable], Table]) -> Table:
        with self._lock:
            if known.key in self._open:
                self._open.move_to_end(known.key)
                return self._open[known.key][0]
        table = open_table(known)
        with self._lock:
            return self._open.setdefault(known.key, (table, 0))[0]

    def forget(self, known: KnownTable) -> None:
        with self._lock:
            self._open.pop(known.key, None)

    def note(self, known: KnownTable, files: int) -> None:
        """Note how many files a table has, and let other tables go if there are too many."""
        with self._lock:
            if files and known.key in self._open:
                self._open[known.key] = (self._open[known.key][0], files)
            while len(self._open) > 1 and (
                len(self._open) > _MOST_OPEN or sum(count for _, count in self._open.values()) > _MOST_OPEN_FILES
            ):
                self._open.popitem(last=False)


class Window:
    """The ASGI application of a site. `pages` is its table of routes, by path."""

    def __init__(
        self,
        site: Site,
        pages: Mapping[str, Page] | None = None,
        *,
        limits: AnswerLimits = USUAL_LIMITS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.site = site
        self.pages: dict[str, Page] = {"": tables_page, "table": table_page, "commit": commit_page, **(pages or {})}
        self.answers = Answers(limits, clock, chars_in_facts)
        self.clock = clock
        self.kept = KeptLines()
        self._tables = OpenTables()
        self._rendered: OrderedDict[Hashable, tuple[Any, bytes]] = OrderedDict()
        self._rendered_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] == "http":
            response = await self._respond(Request(scope, receive))
            await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        as_json = request.query_params.get("format") == "json"
        try:
            user = await self.site.user(request)
            if request.method not in ("GET", "HEAD"):
                raise Refused(405, "The window only shows: use GET.")
            path = page_path(request.scope)
            if path == "style.css":
                return self._response(request, 200, _STYLE, "text/css; charset=utf-8")
            page = self.pages.get(path)
            if page is None:
                raise Refused(404, _NOT_FOUND)
            view = await self.site.view(user)
            ask = Ask(query=dict(request.query_params), view=view, now_ms=self.clock.now_ms())
            shown = await page(self, ask)
            # Large pages take a while, and other requests of this process wait for the event loop.
            if as_json:
                content = await asyncio.to_thread(markup.to_json, shown.facts)
            else:
                content = await self._html(shown, ask.now_ms)
            status = shown.status
        except Exception as error:
            status, message = problem_of(error)
            refused = {"error": message, "status": status}
            content = (
                markup.to_json(refused)
                if as_json
                else markup.render("message.html", status=status, message=message, refresh=0)
            )
        kind = "application/json" if as_json else "text/html; charset=utf-8"
        return self._response(request, status, content, kind)

    def _response(self, request: Request, status: int, content: bytes, kind: str) -> Response:
        headers = dict(markup.HEADERS)
        if status == 405:
            headers["Allow"] = "GET, HEAD"
        if status in (503, 504):
            headers["Retry-After"] = "5"
        return Response(b"" if request.method == "HEAD" else content, status, headers, kind)

    async def _html(self, shown: Shown, now_ms: int) -> bytes:
        values = {
            "facts": shown.facts,
            "now_ms": now_ms,
            "refresh": 0,
            "is_airflow": self.site.is_airflow,
            **shown.values,
        }
        if shown.key is None:
            return await asyncio.to_thread(markup.render, shown.template, **values)
        key = (shown.key, now_ms // (1000 * _AGES_S))
        known = self._rendered.get(key)
        if known is not None and known[0] is shown.facts:
            return known[1]
        content = await asyncio.to_thread(markup.render, shown.template, **values)
        before = self._rendered.pop(key, None)
        self._rendered_bytes += len(content) - (0 if before is None else len(before[1]))
        self._rendered[key] = (shown.facts, content)
        while len(self._rendered) > _MOST_RENDERED or self._rendered_bytes > _MOST_RENDERED_BYTES:
            self._rendered_bytes -= len(self._rendered.popitem(last=False)[1][1])
        return content

    # --- facts, computed on threads ---------------------------------------------------------------------------------

    async def of_table(
        self, known: KnownTable, what: Hashable, compute: Callable[[Table], Any], fresh_s: float | None = None
    ) -> Any:
        """Return facts of a table. Raises TooLate, TooBusy, and the errors of the table and its store."""

        def work() -> Any:
            try:
                facts = compute(self._tables.get(known, self.site.open))
            except Exception:
                # Its credentials may have changed: it is opened anew the next time.
                self._tables.forget(known)
                raise
            if isinstance(facts, TableFacts) and facts.version is None:
                self._tables.forget(known)
            self._tables.note(known, files_in(facts))
            return facts

        return await self.answers.get((known.key, what), store_of(known.uri), work, fresh_s)

    async def table(self, known: KnownTable, before: int | None, chart: int) -> TableFacts:
        """Return the facts of the page of a table; read again only if there is a new version, or after a while."""

        def compute(table: Table) -> TableFacts:
            now_ms, before_now = self.clock.now_ms(), self.answers.last((known.key, what))
            if (
                isinstance(before_now, TableFacts)
                and before_now.version is not None
                and now_ms - before_now.read_ms < 1000 * _UNCHANGED_S
                and table.latest_version() == before_now.version
            ):
                return before_now
            return table_facts(table, self.kept, before=before, chart=chart, now_ms=now_ms)

        what = _table_key(before, chart)
        facts: TableFacts = await self.of_table(known, what, compute)
        return facts

    def last_table(self, known: KnownTable, before: int | None, chart: int) -> TableFacts | None:
        """Return the facts of a page of a table as they were read last; None if they are not known any more."""
        found = self.answers.last((known.key, _table_key(before, chart)))
        return found if isinstance(found, TableFacts) else None


def _table_key(before: int | None, chart: int) -> Hashable:
    return "table", before, chart


_STYLE = markup.style_sheet()


def files_in(facts: object) -> int:
    """Return the number of live files that facts of a table state; 0 if they state none."""
    if isinstance(facts, TableFacts):
        return facts.totals.files or 0
    return facts.files or 0 if isinstance(facts, TableSummary) else 0


def chars_in_facts(facts: object) -> int:
    """Return about the memory that facts take; 0 for small ones."""
    return facts.chars if isinstance(facts, TableFacts | OneCommit) else 0


def store_of(uri: str) -> str:
    """Return the store of a table: the scheme and the bucket or host."""
    return f"{scheme_of(uri)}://{split(uri).authority}"


def page_path(scope: Scope) -> str:
    """Return the path of a page, without that of the window and, if a proxy has not removed it, of Airflow."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    if not path.startswith(root):
        root = root.removeprefix(str(scope.get("app_root_path", "")))
    # A slash at the end would lead the relative links astray.
    return path.removeprefix(root).removeprefix("/")


def problem_of(error: Exception) -> tuple[int, str]:
    """Return the status and the message of a request that failed."""
    if isinstance(error, Refused):
        return error.status, error.message
    status, message = _problem(error)
    return status, clipped(message, _MOST_MESSAGE)


def _problem(error: Exception) -> tuple[int, str]:
    if isinstance(error, TooLate):
        return 504, f"{error} It is still being read: try again in a few seconds."
    if isinstance(error, TooBusy):
        return 503, str(error)
    if isinstance(error, TableNotFound | VersionNotFound):
        return 404, str(error)
    if isinstance(error, TxlogError):
        return 502, f"{type(error).__name__}: {error}"
    log.warning("The window failed", exc_info=error)
    if isinstance(error, OSError):
        return 502, f"The store did not answer as expected ({type(error).__name__}). The log of the server says more."
    return 500, f"The page could not be made ({type(error).__name__}). The log of the server says more."


# --- pages ----------------------------------------------------------------------------------------------------------


async def tables_page(window: Window, ask: Ask) -> Shown:
    """Show the tables that the user may see. A table whose store is slow is listed without its numbers."""
    start = ask.number("from") or 0
    known = [ask.view.tables[uri] for uri in sorted(ask.view.tables)]
    page = known[start : start + TABLES_ON_A_PAGE]
    room = asyncio.Semaphore(_AT_ONCE)

    async def summary(each: KnownTable) -> Any:
        async with room:
            return await window.of_table(
                each, "summary", lambda table: table_summary(table, window.kept), _SUMMARY_FRESH_S
            )

    tasks = [asyncio.create_task(summary(each)) for each in page]
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=_LIST_S)
        for task in late:
            task.cancel()
    rows = []
    is_waiting = False
    for each, task in zip(page, tasks, strict=True):
        row: dict[str, Any] = {"table": each, "summary": None, "problem": None}
        if not task.done() or task.cancelled():
            is_waiting = True
        elif (error := task.exception()) is not None:
            is_waiting = is_waiting or isinstance(error, NotYet)
            row["problem"] = None if isinstance(error, NotYet) else problem_of(_as_exception(error))[1]
        else:
            row["summary"] = task.result().for_user(ask.view.sees)
        if each.is_certain or row["problem"] is None:
            rows.append(row)
    rows.sort(key=_urgency)
    following = start + TABLES_ON_A_PAGE
    facts = {
        "tables": rows,
        "count": len(known) - (len(page) - len(rows)),
        "from": start,
        "next": following if following < len(known) else None,
        "is_complete": not is_waiting,
    }
    return Shown(template="tables.html", facts=facts, values={"refresh": 5 if is_waiting else 0})


def _urgency(row: Mapping[str, Any]) -> int:
    """Return the place of a table in the list: first those that need attention."""
    if row["summary"] is None:
        return 0 if row["problem"] else 3
    return {"broken": 1, "attention": 2}.get(row["summary"].state, 4)


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(type(error).__name__)


async def table_page(window: Window, ask: Ask) -> Shown:
    """Show one table; the versions before `before`, if it is given."""
    known = ask.table()
    before, chart = ask.number("before"), WIDE if ask.number("span") == WIDE else PAGE
    status, note = 200, ""
    try:
        facts = await window.table(known, before, chart)
    except (NotYet, OSError) as error:
        stale = window.last_table(known, before, chart)
        # Who may not read the table any more, or finds it gone, does not see what it was.
        if stale is None or isinstance(error, PermissionError | FileNotFoundError):
            raise
        status, message = problem_of(error)
        facts, note = stale, f"{message} You see the table as it was read before."
    hidden = frozenset(
        each.by.dag_id for each in facts.timeline.lines if each.by.dag_id and not ask.view.sees(each.by.dag_id)
    )
    key = None if hidden or note or any(each.by.dag_id for each in facts.staged) else (known.key, before, chart)
    values = {"note": note, "known": known, "before": before, "chart": chart, "page": PAGE, "wide": WIDE}
    if key is None:
        facts = facts.for_user(ask.view.sees)
    return Shown(template="table.html", facts=facts, values=values, status=status, key=key)


async def commit_page(window: Window, ask: Ask) -> Shown:
    """Show one commit of a table."""
    known, version = ask.table(), ask.number("version")
    if version is None:
        raise Refused(400, "version is missing.")
    facts = await window.of_table(known, ("commit", version), lambda table: commit_facts(table, window.kept, version))
    return Shown(template="commit.html", facts=facts.for_user(ask.view.sees), values={"known": known})
