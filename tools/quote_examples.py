"""Puts the marked regions of the example DAGs into the pages that quote them, below the comments that name them.

`<!-- example_dags/FILE.py: REGION -->` is followed by a Python block; this script replaces the block by the lines of
the file between `[START REGION]` and `[END REGION]`. A test holds the two equal.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
QUOTING_IN_PART = [
    ROOT / "docs" / name for name in ("apply-changes.md", "bring-your-tables.md", "python-rows.md", "staged-changes.md")
]
"""Pages with blocks of their own too, which a test runs."""
QUOTE = re.compile(r"<!-- (example_dags/\w+\.py): (\w+) -->\n```python\n(.*?)```", re.DOTALL)


def region(path: Path, name: str) -> str:
    """Return the lines between the markers of a region, without their common indentation."""
    match = re.search(rf"# \[START {name}\]\n(.*?)[ ]*# \[END {name}\]", path.read_text(), re.DOTALL)
    if match is None:
        raise LookupError(f"{path} has no region {name}")
    return textwrap.dedent(match.group(1))


def quoted(text: str) -> str:
    """Return the page with every quote renewed."""

    def renew(match: re.Match[str]) -> str:
        return f"<!-- {match[1]}: {match[2]} -->\n```python\n{region(ROOT / match[1], match[2])}```"

    return QUOTE.sub(renew, text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(quoted(page.read_text()))
