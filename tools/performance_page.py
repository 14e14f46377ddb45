"""Puts the figures of a run of `make bench` into docs/performance.md, as tables, and draws docs/performance.svg and,
of `CASES=growth`, docs/growth.svg.

`python tools/performance_page.py [FILE ...]`, build/bench.json by default: a line of JSON for each case and peer. Of a
case that several files have, the last counts.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
_NAMES = ("performance.md", "performance.svg", "growth.svg", "statements.svg")
PAGE, CHART, GROWTH, STATEMENTS = (ROOT / "docs" / name for name in _NAMES)
# The kinds of tables of tests/benchmarks/statements.py: their cases have a table and a chart of their own.
SHAPES = ("tpch", "nested", "wide", "partitions", "tiny", "small", "mixed", "columns")
COLOURS = {"pyspark": "#4878a8", "pyspark-antijoin": "#86aed4", "deltalake": "#d98841", "delta-spark": "#6a9f58"}
PEERS = tuple(COLOURS)
# The chart's width, its left margin, the height of a bar, and the ratios at its edges.
WIDTH, LEFT, BAR, LOW, HIGH = 860, 190, 11, 1 / 16, 4.0


def compared(lines: list[dict[str, Any]], workers: int = 0) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the line of each case and peer that the page shows, in the order of the run; `workers` of a cluster."""
    cases: dict[str, dict[str, dict[str, Any]]] = {}
    for line in lines:
        if line.get("peer") in PEERS and line.get("ratio_by_round") and line.get("workers", 0) == workers:
            cases.setdefault(str(line["case"]), {})[str(line["peer"])] = line
    return cases


def table(cases: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Return a row for each case: our seconds, and ours divided by each peer's."""
    rows = [f"| case | ours, s | {' | '.join(f'of {peer}' for peer in PEERS)} |", "|---|" + "---|" * (len(PEERS) + 1)]
    for case, peers in cases.items():
        ours = next(iter(peers.values()))["ours_s"]
        ratios = [f"{peers[peer]['ratio_by_round']:.2f}" if peer in peers else "" for peer in PEERS]
        rows.append(f"| {case} | {ours:.3g} | {' | '.join(ratios)} |")
    return "\n".join(rows)


def chart(cases: dict[str, dict[str, dict[str, Any]]], key: str = "ratio_by_round") -> str:
    """Draw a bar for each case and peer on a scale of powers of two; left of the line at 1 we are faster."""

    def at(ratio: float) -> float:
        share = (math.log2(min(max(ratio, LOW), HIGH)) - math.log2(LOW)) / (math.log2(HIGH) - math.log2(LOW))
        return LEFT + share * (WIDTH - LEFT - 60)

    parts, y = [], 30
    for case, peers in cases.items():
        middle = f"{y + BAR * len(peers) / 2 + 4:.0f}"
        parts.append(f'<text x="{LEFT - 10}" y="{middle}" text-anchor="end">{escape(case)}</text>')
        for peer, line in peers.items():
            ratio = float(line[key])
            start, end = sorted((at(1.0), at(ratio)))
            size = f'x="{start:.1f}" y="{y}" width="{max(end - start, 1):.1f}" height="{BAR - 2}"'
            title = f"<title>{escape(case)}, {peer}: {ratio:.2f}</title>"
            parts.append(f'<rect {size} fill="{COLOURS[peer]}">{title}</rect>')
            y += BAR
        y += 8
    for power in range(int(math.log2(LOW)), int(math.log2(HIGH)) + 1):
        x, name = at(2.0**power), f"1/{2**-power}" if power < 0 else str(2**power)
        stroke = "#333" if power == 0 else "#ddd"
        parts.insert(0, f'<line x1="{x:.1f}" y1="22" x2="{x:.1f}" y2="{y}" stroke="{stroke}"/>')
        parts.append(f'<text x="{x:.1f}" y="16" text-anchor="middle">{name}</text>')
    for number, peer in enumerate(PEERS):
        x = LEFT + 150 * number
        parts.append(f'<rect x="{x}" y="{y + 8}" width="10" height="10" fill="{COLOURS[peer]}"/>')
        parts.append(f'<text x="{x + 15}" y="{y + 17}">of {peer}</text>')
    size = f'width="{WIDTH}" height="{y + 28}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"]) + "\n"


def growth(lines: list[dict[str, Any]]) -> dict[str, dict[float, dict[str, Any]]]:
    """Return the line of each kind of work and size of the table, in millions of rows."""
    cases: dict[str, dict[float, dict[str, Any]]] = {}
    for line in lines:
        if "million_rows" in line:
            cases.setdefault(str(line["case"]).removeprefix("growth-"), {})[float(line["million_rows"])] = line
    return cases


def growth_table(cases: dict[str, dict[float, dict[str, Any]]]) -> str:
    """Return a row for each size: seconds, and nanoseconds for each byte of the table's files."""
    names = [f"{case}, {unit}" for case in cases for unit in ("s", "ns/byte")]
    rows = [f"| million rows | MB | {' | '.join(names)} |", "|---|" + "---|" * (len(names) + 1)]
    for size in sorted({size for lines in cases.values() for size in lines}):
        lines = [lines[size] for lines in cases.values()]
        figures = [f"{line['ours_s']:.3g} | {line['ns_per_byte']:.3g}" for line in lines]
        rows.append(f"| {size:.3g} | {lines[0]['mb']:.0f} | {' | '.join(figures)} |")
    return "\n".join(rows)


def growth_chart(cases: dict[str, dict[float, dict[str, Any]]]) -> str:
    """Draw a line for each kind of work: nanoseconds for each byte over the table's size, on a scale of powers."""
    sizes = sorted({size for lines in cases.values() for size in lines})
    most = max(line["ns_per_byte"] for lines in cases.values() for line in lines.values()) * 1.1
    left, top, wide, high = 60, 20, 520, 240

    def at(size: float, cost: float) -> tuple[float, float]:
        share = (math.log2(size) - math.log2(sizes[0])) / max(math.log2(sizes[-1]) - math.log2(sizes[0]), 1e-9)
        return left + share * wide, top + high * (1 - cost / most)

    parts = []
    for size in sizes:
        x, y = at(size, 0.0)
        parts.append(f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{y + 16:.1f}" text-anchor="middle">{size:.3g} M rows</text>')
    step = 10 ** math.floor(math.log10(most)) / 5
    for number in range(int(most / step) + 1):
        x, y = at(sizes[0], number * step)
        parts.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x + wide:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{number * step:g}</text>')
    ends: list[tuple[float, str, str]] = []
    for (case, lines), colour in zip(cases.items(), COLOURS.values(), strict=False):
        points = [at(size, line["ns_per_byte"]) for size, line in sorted(lines.items())]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        ends.append((points[-1][1], case, colour))
    names_y = 0.0
    for end_y, case, colour in sorted(ends):
        # Names of lines that end close together stand below each other.
        names_y = max(end_y + 4, names_y + 12)
        parts.append(f'<text x="{left + wide + 8}" y="{names_y:.1f}" fill="{colour}">{escape(case)}</text>')
    parts.append(f'<text x="{left - 40}" y="12">ns for each byte of the table</text>')
    head = '<svg xmlns="http://www.w3.org/2000/svg" width="660" height="290" font-family="sans-serif" font-size="11">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"]) + "\n"


def put(name: str, figures: str, page: Path = PAGE) -> None:
    """Put figures between the marks of this name on the page."""
    marks = re.compile(rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)", re.DOTALL)
    page.write_text(marks.sub(lambda match: f"{match[1]}{figures}\n{match[2]}", page.read_text()))


def machine() -> str:
    """Return where the figures were taken, in one line."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    names = ("pyspark", "pyarrow", "deltalake")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    python = platform.python_version()
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}, Python {python}; {versions}."


def plain_table(lines: list[dict[str, Any]], columns: dict[str, str]) -> str:
    """Return a row for each line; `columns` gives the title of each key, and a key `a.b` is the member `b` of `a`."""
    rows = [f"| {' | '.join(columns.values())} |", "|" + "---|" * len(columns)]
    for line in lines:
        cells = []
        for key in columns:
            found: Any = line
            for part in key.split("."):
                found = (found or {}).get(part)
            cells.append("" if found is None else _figure(found) if isinstance(found, float) else str(found))
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _figure(value: float) -> str:
    """Return three digits, or all digits of a whole number that is larger."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


STATEMENT = {
    "case": "case",
    "scale": "`SCALE`",
    "peer": "peer",
    "ours_s": "ours, s",
    "ratio_by_round": "of its time",
    "ours_cpu_s": "ours, CPU s",
    "cpu_ratio": "of its CPU time",
}
S3 = {
    "case": "case",
    "delay_ms": "added to a request, ms",
    "ours_s": "ours, s",
    "ratio_by_round": "of `deltalake`'s time",
    "cpu_ratio": "of its CPU time",
    "ours_requests": "our requests",
    "peer_requests": "its requests",
}
HEAVY = {
    "case": "case",
    "ours_s": "ours, s",
    "ratio": "of pyspark",
    "ours_peak_mb.driver": "driver, MB",
    "ours_peak_mb.worker": "largest Python worker, MB",
    "ours_peak_mb.jvm": "JVM, MB",
}
GROWTH_LINEITEM = {
    "case": "case",
    "million_rows": "million rows",
    "mb": "MB",
    "ours_s": "ours, s",
    "ours_cpu_s": "ours, CPU s",
    "cpu_ns_per_byte": "CPU ns/byte",
}
MEMORY = {"case": "case", "ours_mb": "ours, MB", "peer_mb": "deltalake, MB", "ratio": "of deltalake"}
TASK = {
    "case": "case",
    "runner": "runner",
    "wall_s": "whole process, s",
    "job_s": "the job in it, s",
    "peak_mb": "MB",
    "server_mb": "server, MB",
}


def main(files: list[Path]) -> None:
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    statements = [line for line in lines if str(line["case"]).partition("-")[0] in SHAPES and line.get("cpu_ratio")]
    if found := compared(statements):
        put("statements", plain_table([each for peers in found.values() for each in peers.values()], STATEMENT))
        STATEMENTS.write_text(chart(found, "cpu_ratio"))
    if on_s3 := [line for line in lines if str(line["case"]).startswith("s3-") and line.get("ratio_by_round")]:
        put("s3", plain_table(on_s3, S3))
    if cases := compared([line for line in lines if line not in statements and line not in on_s3]):
        put("figures", f"{machine()}\n\n{table(cases)}")
        CHART.write_text(chart(cases))
    for workers in (1, 2):
        if found := compared(lines, workers):
            put(f"workers-{workers}", table(found))
    of_lineitem = [line for line in lines if str(line["case"]).startswith("growth-tpch-")]
    if of_lineitem:
        put("growth-tpch", plain_table(of_lineitem, GROWTH_LINEITEM))
    if grown := growth([line for line in lines if line not in of_lineitem]):
        put("growth", growth_table(grown))
        GROWTH.write_text(growth_chart(grown))
    for name, columns in (("heavy", HEAVY), ("memory", MEMORY), ("task", TASK)):
        # Tasks that start together have a page of their own.
        if chosen := [line for line in lines if line["case"].startswith(f"{name}-") and "tasks" not in line]:
            put(name, plain_table(chosen, columns))


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]] or [ROOT / "build" / "bench.json"])
