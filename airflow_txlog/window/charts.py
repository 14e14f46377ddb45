"""Charts as inline SVG: a line over versions, and small bars of failed checks.

No chart has a script, a style attribute or a text of a table: numbers and versions only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from markupsafe import Markup

from airflow_txlog.window.facts.timeline import Point

_WIDTH, _HEIGHT = 300, 96
_LEFT, _RIGHT, _TOP, _BOTTOM = 4, 4, 8, 8


def line_chart(
    id: str, title: str, given: Sequence[Point], number: Callable[[Point], int | None], text: Callable[[int], str]
) -> Markup:
    """Return a chart of one number over versions, oldest first; with a note if no version shows the number."""
    known = [(point, value) for point in given if (value := number(point)) is not None]
    if not known:
        return Markup('<p class="quiet">Not known for these versions.</p>')
    values = [value for _, value in known]
    low, high = min(values), max(values)
    first, last = known[0][0].version, known[-1][0].version
    summary = (
        f"{text(values[-1])} at version {last}; between {text(low)} and {text(high)} since version {first}."
        if len(known) > 1
        else f"{text(values[-1])} at version {last}."
    )
    places = [(_x(point.version, first, last), _y(value, low, high)) for point, value in known]
    path = " ".join(f"{'M' if number == 0 else 'L'}{x:.1f} {y:.1f}" for number, (x, y) in enumerate(_steps(places)))
    base = _HEIGHT - _BOTTOM
    area = f"{path} L{places[-1][0]:.1f} {base} L{places[0][0]:.1f} {base} Z"
    marks = Markup("").join(
        Markup('<circle cx="{}" cy="{}" r="6" class="hit"><title>version {}: {}</title></circle>').format(
            f"{x:.1f}", f"{y:.1f}", point.version, text(value)
        )
        for (point, value), (x, y) in zip(known, places, strict=True)
    )
    end_x, end_y = places[-1]
    return Markup(
        '<svg class="chart" viewBox="0 0 {w} {h}" role="img" aria-labelledby="{id}-t {id}-d">'
        '<title id="{id}-t">{title}</title><desc id="{id}-d">{summary}</desc>'
        '<line class="axis" x1="{left}" y1="{base}" x2="{right}" y2="{base}"></line>'
        '<path class="area" d="{area}"></path><path class="line" d="{path}"></path>'
        '<circle class="end" cx="{x}" cy="{y}" r="3"></circle>{marks}</svg>'
    ).format(
        w=_WIDTH,
        h=_HEIGHT,
        id=id,
        title=title,
        summary=summary,
        left=_LEFT,
        right=_WIDTH - _RIGHT,
        base=base,
        area=area,
        path=path,
        x=f"{end_x:.1f}",
        y=f"{end_y:.1f}",
        marks=marks,
    )


def _x(version: int, first: int, last: int) -> float:
    width = _WIDTH - _LEFT - _RIGHT
    return _WIDTH - _RIGHT if last == first else _LEFT + width * (version - first) / (last - first)


def _y(value: int, low: int, high: int) -> float:
    """Return the height of a value. The axis starts at zero unless all values are close to one another."""
    floor = 0 if low < 0.9 * high or high == 0 else low - (high - low or 1)
    height = _HEIGHT - _TOP - _BOTTOM
    return _TOP + height * (1 - (value - floor) / ((high - floor) or 1))


def _steps(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the corners of a line that is level between versions: nothing changes between two commits."""
    found = [places[0]]
    for before, after in itertools.pairwise(places):
        found += [(after[0], before[1]), after]
    return found


def outcome_bars(id: str, title: str, versions: Sequence[int], failed: Sequence[int]) -> Markup:
    """Return one bar per version: its height grows with the rows that failed; a low bar if none did."""
    shown = list(zip(versions, failed, strict=True))[-60:]
    most = max((count for _, count in shown), default=0)
    bars = Markup("").join(
        Markup(
            '<rect class="{}" x="{}" y="{}" width="4" height="{}"><title>version {}: {} rows failed</title></rect>'
        ).format("failed" if count else "passed", number * 5, 24 - height, height, version, f"{count:,}")
        for number, (version, count) in enumerate(shown)
        for height in (3 if not count else 8 + round(16 * count / most),)
    )
    return Markup(
        '<svg class="bars" viewBox="0 0 {} 24" width="{}" height="24" role="img" aria-labelledby="{id}-t">'
        '<title id="{id}-t">{}</title>{}</svg>'
    ).format(len(shown) * 5, len(shown) * 5, title, bars, id=id)
