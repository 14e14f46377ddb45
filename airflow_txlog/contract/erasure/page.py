"""The page of an erasure report, for a data protection officer who reads or prints it.

One HTML file without scripts or other files. The invariant: every text is escaped, and the page has nothing that the
signed document lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from airflow_txlog.contract.erasure.check_report import OUT_OF_SCOPE, VERIFIED
from airflow_txlog.contract.erasure.report import NO_ROW_FOUND, found_no_row

_STYLE = """
:root { color-scheme: light; --line: #d5dbe1; --soft: #f4f6f8; --text: #1c2733; --muted: #5b6876; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; color: var(--text);
  max-width: 60rem; margin: 2.5rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; overflow-wrap: anywhere; }
p { margin: .4rem 0; } .muted { color: var(--muted); } .id { overflow-wrap: anywhere; font-family: ui-monospace,
  "Liberation Mono", monospace; font-size: .85em; }
.result { border-left: .45rem solid; padding: .8rem 1.1rem; margin: 1.2rem 0; background: var(--soft); }
.result strong { font-size: 1.15rem; } .complete { border-color: #1d7f4f; } .incomplete { border-color: #b3261e; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1rem; font-size: .93em; }
th, td { text-align: left; vertical-align: top; padding: .4rem .7rem .4rem 0; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere; }
td + td, th + th { overflow-wrap: break-word; min-width: 6.5rem; }
th { color: var(--muted); font-weight: 600; } td.number, th.number { text-align: right; padding-right: 1.2rem;
  white-space: nowrap; } td.pending { color: #8a5300; }
@media print { body { margin: 0; max-width: none; font-size: 11pt; } h2, h3 { break-after: avoid; } tr { break-inside:
  avoid; } .result { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""

_TIMES = {
    "requested": "Erasure requested",
    "gone_from_latest_version": "Gone from the latest version",
    "gone_from_storage": "Gone from storage",
    "gone_from_log": "Gone from the log",
}
_VERDICTS = {
    "absent": "read to its end, and no subject is in it",
    "rewritten": "written by the erasure in place of others, read to its end, and no subject is in it",
    "deleted": "deleted",
    "found": "holds a subject",
    "statistic only": "holds a statistic that is, or may be, a subject's value",
    "not readable": "could not be read, so nothing is known about it",
}


def page_of(body: Mapping[str, Any], public_key: str | None, document: str) -> str:
    """Return the page of a report's body. `document`: the name of the signed file."""
    request = escape(body["request_id"])
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Erasure report {request}</title><style>{_STYLE}</style></head><body>",
            f'<h1>Erasure report</h1><p class="muted">Request {request}, report of {_moment(body["created"])}</p>',
            *_result(body),
            *_scope(body.get("scope", ())),
            *_times(body),
            *_tables(body["tables"]),
            *_checklist(body["checklist"]),
            *_rechecks(body.get("rechecks", ())),
            *_not_covered(body["not_covered"]),
            *_proof(body, public_key, document),
            "</body></html>\n",
        )
    )


def _result(body: Mapping[str, Any]) -> Iterable[str]:
    tables = body["tables"]
    objects = sum(table["num_objects"] for table in tables)
    held = [table for table in tables if table["state"] == OUT_OF_SCOPE]
    is_complete = body["complete"]
    yield f'<div class="result {"complete" if is_complete else "incomplete"}">'
    if is_complete:
        text = "Every object below the tables was opened, and none holds a subject."
        yield f"<strong>Complete</strong><p>{text}</p>"
    else:
        text = (
            "Some objects hold a subject, could not be read, or may go only later; or a table was not erased or not "
            "verified. "
            "This proves no erasure."
        )
        yield f"<strong>Not complete</strong><p>{text}</p>"
    yield f"<p>{_number(len(tables) - len(held), 'table')}, {_number(objects, 'object')}.</p>"
    if found_no_row((table["steps"], table.get("num_deleted_rows")) for table in tables):
        yield f"<p>{NO_ROW_FOUND}</p>"
    if held:
        yield f"<p>{_number(len(held), 'table')} under a legal hold: not erased, and not part of this result.</p>"
    yield "</div>"


def _scope(texts: Sequence[str]) -> Iterable[str]:
    if texts:
        yield "<h2>What a complete report covers</h2><ul>"
        yield from (f"<li>{escape(text)}</li>" for text in texts)
        yield "</ul>"


def _times(body: Mapping[str, Any]) -> Iterable[str]:
    times = body["times"]
    verified = [table["to_time"] for table in body["tables"] if table["to_time"]]
    rows = [(name, _moment(times[key]) if times[key] else "not recorded here") for key, name in _TIMES.items()]
    rows.append(("Verified in storage", _moment(max(verified)) if verified else "not verified"))
    yield "<h2>When</h2>"
    yield from _rows((), rows)


def _tables(tables: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    yield "<h2>Tables</h2>"
    for table in tables:
        yield f'<h3 class="id">{escape(table["table"])}</h3>'
        if table["state"] != VERIFIED:
            yield f"<p>{escape(str(table['state'])).capitalize()}: {escape(str(table['reason']))}</p>"
        if not table["num_objects"]:
            continue
        oldest = f"Oldest readable version: {_known(table['oldest_version'])}, newest: {table['version']}."
        yield f"<p>Subjects by the column <span class='id'>{escape(table['column'])}</span>. {oldest}</p>"
        yield from _erased(table)
        verdicts = [(name, count, _VERDICTS.get(name, "")) for name, count in sorted(table["verdicts"].items())]
        yield from _rows(("verdict", "objects", "meaning"), verdicts)
        if table["steps"]:
            steps = [(_step(each), _known(each.get("version")), _time_of(each)) for each in table["steps"]]
            yield from _rows(("step", "version", "at"), steps)
        if table["left"]:
            left = [(each["path"], each["verdict"], each["places"]) for each in table["left"]]
            yield from _rows(("object", "verdict", "place"), left)
            more = sum(table["verdicts"].get(name, 0) for name in ("found", "statistic only", "not readable"))
            if more > len(left):
                yield f"<p>The first {len(left)} of {more} are shown.</p>"
        if waits := table.get("waits"):
            yield from _rows(
                ("object that has to stay", "until", "why"),
                [(each["path"], _moment(each["until"]), each["why"]) for each in waits],
            )
            if table["num_waits"] > len(waits):
                yield f"<p>The last {len(waits)} of {table['num_waits']} are shown.</p>"
        if table["digests"]:
            yield f'<p class="muted">Keyed digests of the {table["num_subjects"]} subjects: '
            yield f'<span class="id">{escape(table["digests"]["name"])}</span></p>'
        for part in table["parts"]:
            listed = f"{_number(part['num_objects'], 'object')}, each with its digest: "
            yield f'<p class="muted">{listed}<span class="id">{escape(part["name"])}</span></p>'


def _known(value: Any) -> str:
    return "unknown" if value is None else str(value)


def _erased(table: Mapping[str, Any]) -> Iterable[str]:
    """Yield how much went, and which versions ended with it."""
    rows, objects = table.get("num_deleted_rows"), table.get("num_erased_objects")
    if table["steps"] or rows is not None:
        text = f"Erased: {_count(rows, 'row')}, {_count(objects, 'object')}."
        yield f"<p>{'No row and no object of the subjects was found.' if rows == objects == 0 else text}</p>"
        if rows is None:
            yield "<p>A run of the erasure was stopped before it noted what it had deleted.</p>"
    ended = [str(step["ended_versions"]) for step in table["steps"] if step.get("ended_versions")]
    if ended:
        yield f"<p>Versions that can no longer be read: {escape(', '.join(ended))}.</p>"
    if table["digests"] is None:
        yield '<p class="muted">No key for digests is configured, so the report does not show who the subjects are.</p>'


def _count(count: int | None, noun: str) -> str:
    return f"an unknown number of {noun}s" if count is None else _number(count, noun)


def _time_of(step: Mapping[str, Any]) -> str:
    if step.get("at") is None:
        return f"unknown, after {_moment(step['begun'])}" if step.get("begun") else "unknown"
    return _moment(step["at"])


def _step(step: Mapping[str, Any]) -> str:
    count = step.get("num_tombstones", 0)
    return f"{step['name']} (with {_number(count, 'tombstone')})" if count else str(step["name"])


def _checklist(items: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    yield "<h2>Declared by the controller</h2>"
    yield '<p class="muted">No program that wrote this report can read these places.</p>'
    yield "<table><tr><th>Statement</th><th>Declaration</th></tr>"
    for item in items:
        declared = item["declared"]
        cell = f"<td>{escape(declared)}</td>" if declared else '<td class="pending">not declared</td>'
        yield f"<tr><td>{escape(item['statement'])}</td>{cell}</tr>"
    yield "</table>"


def _rechecks(days: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    if days:
        yield "<h2>Check again</h2>"
        what = {"waits": "objects that have to stay"}
        yield from _rows(("on", "because of"), [(each["on"], what.get(each["item"], each["item"])) for each in days])


def _not_covered(tables: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    if tables:
        yield "<h2>Tables that read these, and are not covered</h2>"
        yield from _rows(("table", "reads"), [(each["table"], each["reads"]) for each in tables])


def _proof(body: Mapping[str, Any], public_key: str | None, document: str) -> Iterable[str]:
    yield "<h2>How to check this report</h2>"
    if public_key is None:
        yield "<p>This report is not signed, and proves nothing.</p>"
        return
    yield f"<p>The signed document is <span class='id'>{escape(document)}</span>. Check it with the public key that "
    yield "the controller has published, not with the one below:</p>"
    yield f"<p class='id'>python check_report.py {escape(document)} PUBLIC_KEY</p>"
    tools = sorted({f"{name} {version}" for table in body["tables"] for name, version in table["tools"].items()})
    yield from _rows((), [("Signed by (Ed25519)", public_key), ("Opened by", ", ".join(tools))])


def _rows(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterable[str]:
    yield "<table>"
    if names:
        yield f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in names)}</tr>"
    for row in rows:
        yield f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>"
    yield "</table>"


def _moment(text: str | None) -> str:
    """Return a time in ISO 8601 as people read it, escaped for HTML."""
    return escape((text or "").replace("T", " ").replace("+00:00", " UTC"))


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
