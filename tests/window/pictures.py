"""Writes the README's two pictures of the window: `python -m tests.window.pictures`, after `tools/ensure_chromium.sh`.

The table, its place and the time of day are always the same, so a picture changes only if the page does.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from airflow_txlog.engine import Table
from airflow_txlog.window.app import Ask, Shown, Window, commit_page, table_page
from airflow_txlog.window.markup import link
from airflow_txlog.window.site import KnownTable, StandAlone, View
from tests.airflow.scheduled.browser import Browser
from tests.helpers.paths import ROOT
from tests.window.serving import alone
from tests.window.tables import Hands, busy_table

PLACE = "s3://lake/orders"
BEGAN_MS = 1_795_600_000_000
LOOKED_AFTER_MS = 7 * 3_600_000
PICTURES = {
    "window-table.png": ("table", {}, 900),
    "window-commit.png": ("commit", {"version": 28}, 640),
}


class Pictured(StandAlone):
    """A table of this machine that is shown as one of a lake."""

    def __init__(self, folder: str) -> None:
        super().__init__([PLACE])
        self._folder = folder
        self._view = View(tables={PLACE: KnownTable(uri=PLACE, place=folder)})

    def open(self, known: KnownTable) -> Table:
        return super().open(replace(known, place=self._folder))


async def _table(window: Window, ask: Ask) -> Shown:
    shown = await table_page(window, ask)
    return replace(shown, facts=replace(shown.facts, uri=PLACE), key=None)


async def _commit(window: Window, ask: Ask) -> Shown:
    shown = await commit_page(window, ask)
    return replace(shown, facts=replace(shown.facts, uri=PLACE))


def take(folder: Path, target: Path) -> None:
    """Make the table, serve it, and write the pictures."""
    busy_table(str(folder / "orders"), Hands(BEGAN_MS))
    window = Window(
        Pictured(str(folder / "orders")),
        {"table": _table, "commit": _commit},
        clock=Hands(BEGAN_MS + LOOKED_AFTER_MS),
    )
    browser = Browser(folder / "home")
    browser.start()
    try:
        with alone(window) as port:
            for name, (page, more, height) in PICTURES.items():
                browser.open(f"http://127.0.0.1:{port}/{link(page, uri=PLACE, **more)}", "Delta tables")
                browser.run("document.documentElement.style.overflow = 'hidden'")
                browser.picture(target / name, 1100, height)
    finally:
        browser.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        take(Path(made), ROOT / "docs" / "pictures")
