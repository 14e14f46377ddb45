"""HTML from facts. Every text of a table or of Airflow is escaped, and unprintable characters are shown as escapes."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import Any
from urllib.parse import urlencode

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from airflow_txlog.window import charts
from airflow_txlog.window.facts import terms
from airflow_txlog.window.facts.one_commit import resolution
from airflow_txlog.window.facts.timeline import Point
from airflow_txlog.window.facts.version_lines import HIDDEN_VALUE

SCRIPT = (
    'const r=document.documentElement;function theme(){let t=null;try{t=localStorage.getItem("theme")}catch(e){}'
    'if(t==="dark"||t==="light")r.dataset.theme=t;else delete r.dataset.theme}theme();'
    'addEventListener("storage",theme);const s=1000*Number(r.dataset.refresh);function again(){fetch(location.href,'
    '{method:"HEAD"}).then(()=>location.reload(),()=>{r.dataset.lost="";setTimeout(again,s)})}if(s)setTimeout(again,s)'
)
"""The only script: it follows the theme of Airflow's UI, and reloads pages of running tasks if the server answers."""
_HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'self'; script-src 'sha256-{_HASH}'; "
    "connect-src 'self'; frame-ancestors 'self'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""The headers of every answer. The policy names the script by its hash, so that no other script runs."""


def style_sheet() -> bytes:
    return (resources.files("airflow_txlog.window") / "style.css").read_bytes()


def render(template: str, **values: Any) -> bytes:
    """Return a page."""
    return _ENVIRONMENT.get_template(template).render(**values).encode("utf-8", "backslashreplace")


def to_json(facts: Any) -> bytes:
    """Return facts as one JSON document."""
    return (json.dumps(facts, indent=1, default=_plain) + "\n").encode()


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def _printable(value: Any) -> Any:
    """Return a text with its unprintable characters escaped: some would reverse or hide what follows."""
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in value)


def size_text(count: int | None) -> str:
    """Return bytes as a text such as `3.2 GiB`."""
    if count is None:
        return "unknown"
    size, unit = float(count), "bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if size < 1024 or unit == "PiB":
            break
        size /= 1024
    return count_text(count, "byte") if unit == "bytes" else f"{size:,.1f} {unit}"


def number_text(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"


def count_text(count: int, noun: str) -> str:
    """Return a number with its noun, `1 file` or `2 files`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def signed_text(part: str) -> str:
    """Return a change of rows such as `+2000` with separators."""
    return f"{part[:1]}{int(part[1:]):,}" if part[1:].isdigit() else part


def bold_count(count: int, noun: str) -> Markup:
    """Return `count_text` with a bold number."""
    number, _, word = count_text(count, noun).partition(" ")
    return Markup("<b>{}</b> {}").format(number, word)


def moment_text(milliseconds: int | None) -> str:
    """Return a moment in UTC, to the second; empty for an impossible one."""
    try:
        return "" if milliseconds is None else f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return ""


def when(milliseconds: int | None, now_ms: int) -> Markup:
    """Return a moment as its distance from now, with the exact time."""
    exact = moment_text(milliseconds)
    if milliseconds is None or not exact:
        return Markup('<span class="quiet">unknown</span>')
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        exact.replace(" ", "T"), exact, distance(milliseconds, now_ms)
    )


def distance(milliseconds: int, now_ms: int) -> str:
    """Return `4 min ago`, or `in 3 h`."""
    seconds = abs(now_ms - milliseconds) / 1000
    if seconds < 1:
        return "now"
    text = duration_text(1000 * (round(seconds) if seconds < 60 else seconds)).replace(".0 s", " s")
    return f"{text} ago" if milliseconds <= now_ms else f"in {text}"


def duration_text(milliseconds: float | None) -> str:
    """Return a duration as `350 ms`, `4.2 s`, `3 min`, `5 h` or `12 days`."""
    if milliseconds is None:
        return ""
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{milliseconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"


def link(page: str, **parameters: Any) -> str:
    """Return a relative link to a page; parameters that are None are left out."""
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"{page}?{urlencode(given)}" if given else page


def short_name(uri: str) -> str:
    """Return the last part of a table's URI."""
    return uri.rstrip("/").rpartition("/")[2] or uri


def term(name: str, shown: str | None = None) -> Markup:
    """Return a word with its explanation, linked to the glossary."""
    return Markup('<a class="term" href="#term-{}"><dfn title="{}">{}</dfn></a>').format(
        name.replace(" ", "-"), terms.GLOSSARY[name], shown or name
    )


def chart_of(name: str, title: str, points: Sequence[Point], text: Callable[[int], str]) -> Markup:
    """Return the chart of one of the totals over versions."""

    def number(point: Point) -> int | None:
        found: int | None = getattr(point.totals, name)
        return found

    return charts.line_chart(f"chart-{name}", title, points, number, text)


_ENVIRONMENT = Environment(
    loader=PackageLoader("airflow_txlog.window"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_printable,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {
    "bytes": size_text,
    "number": number_text,
    "count": count_text,
    "bold": bold_count,
    "signed": signed_text,
    "moment": moment_text,
    "duration": duration_text,
    "short": short_name,
}
_ENVIRONMENT.globals |= {
    "script": Markup(SCRIPT),
    "glossary": terms.GLOSSARY,
    "resolution": resolution,
    "hidden_value": HIDDEN_VALUE,
    "when": when,
    "link": link,
    "term": term,
    "chart_of": chart_of,
    "outcome_bars": charts.outcome_bars,
    "size_text": size_text,
    "number_text": number_text,
}
