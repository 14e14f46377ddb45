"""The window in a real API server and a headless Chromium: each page in each state, looked at, validated, audited.

The pictures are left in build/window, or in the folder that TXLOG_PICTURES names, to be looked at.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.window.app import Ask, Page, Shown, Window
from airflow_txlog.window.markup import link
from airflow_txlog.window.site import Refused, StandAlone
from tests.airflow.scheduled.browser import CHROMEDRIVER, Browser
from tests.helpers.paths import ROOT
from tests.window.seeded import RACE
from tests.window.serving import alone

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.long("an API server and a browser"),
    pytest.mark.skipif(not CHROMEDRIVER.exists(), reason="no Chromium: tools/ensure_chromium.sh fetches one"),
]

PICTURES = Path(os.environ.get("TXLOG_PICTURES", ROOT / "build" / "window"))
CHECKS = Path(os.environ.get("TXLOG_PAGE_CHECKS", ROOT / ".venv" / "page-checks"))
needs_checks = pytest.mark.skipif(
    not (CHECKS / "ready").exists(), reason="no html-validate and axe-core: tools/ensure_page_checks.sh installs them"
)
GIVE_UP_S = 240
SHOWN = """
const frame = document.querySelector("iframe"), shown = frame && frame.contentDocument && frame.contentDocument.body
return shown ? shown.innerText : ""
"""


@dataclass(frozen=True)
class Served:
    """An API server, the folder of its tables, and the run of the task that met another commit."""

    address: str
    folder: Path
    run_id: str

    def page(self, name: str, **more: Any) -> str:
        """The address of a page of the window."""
        return f"{self.address}/txlog/{link(name, **more)}"

    def table(self, name: str, **more: Any) -> str:
        return self.page("table", uri=str(self.folder / name), **more)

    def pages(self) -> dict[str, str]:
        task = {"dag_id": RACE, "run_id": self.run_id, "task_id": "forget", "map_index": "{MAP_INDEX}"}
        return {
            "tables": self.page(""),
            "orders": self.table("orders"),
            "hostile": self.table("hostile"),
            "empty": self.table("empty"),
            "long": self.table("long"),
            "older": self.table("long", before=5000),
            "broken": self.table("broken"),
            "missing": self.table("missing"),
            "commit": self.page("commit", uri=str(self.folder / "orders"), version=28),
            "hostile commit": self.page("commit", uri=str(self.folder / "hostile"), version=1),
            "task": self.page("task", **task),
            "task of others": self.page("task", **(task | {"task_id": "other"})),
            "run": self.page("run", dag_id=RACE, run_id=self.run_id),
        }


@pytest.fixture(scope="module")
def served(airflow_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("airflow")
    shutil.copy(airflow_database, home / "airflow.db")
    (home / "plugins").mkdir()
    (home / "dags").mkdir()
    (home / "dags" / "outcomes.py").symlink_to(ROOT / "tests" / "airflow" / "dags" / "outcomes.py")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    settings = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__API__BASE_URL": address,
        "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of this test, which is long enough for its algorithm " * 2,
        "PYTHONPATH": str(ROOT),
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
    environment = inherited | settings
    asked = "from importlib.metadata import entry_points as e; print([x.name for x in e(group='airflow.plugins')])"
    listed = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout
    if "'txlog'" not in listed:
        # An environment that was installed before the entry point was added.
        (home / "plugins" / "window.py").write_text("from airflow_txlog.window.plugin import TxlogPlugin")
    folder = tmp_path_factory.mktemp("lake")
    command = [sys.executable, "-m", "airflow", "api-server", "--port", str(port), "--host", "127.0.0.1"]
    with (home / "server.log").open("w") as log:
        process = subprocess.Popen([*command, "--workers", "1"], env=environment, stdout=log, stderr=log, cwd=home)
    try:
        # The tables and the run are made while the server starts.
        seed = [sys.executable, "-m", "tests.window.seeded", str(folder)]
        seeded = subprocess.run(seed, env=environment, capture_output=True, text=True, cwd=ROOT)
        assert seeded.returncode == 0, seeded.stderr[-3000:]
        run_id = next(line.split()[1] for line in seeded.stdout.splitlines() if line.startswith("RUN "))
        _until_up(address, process, home / "server.log")
        yield Served(address, folder, run_id)
    finally:
        process.terminate()
        process.wait(60)


def _until_up(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + GIVE_UP_S
    while True:
        try:
            if httpx.get(f"{address}/api/v2/version").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.5)


@pytest.fixture(scope="module")
def browser(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser that is logged in."""
    browser = Browser(tmp_path_factory.mktemp("browser") / "home")
    try:
        browser.start()
        browser.open(f"{served.address}/", "Browse")
        yield browser
    finally:
        browser.stop()


def in_theme(browser: Browser, theme: str) -> None:
    browser.run("localStorage.setItem('theme', arguments[0])", theme)


def test_the_navigation_leads_to_the_tables_and_on_to_a_table(served: Served, browser: Browser) -> None:
    in_theme(browser, "light")
    browser.open(f"{served.address}/plugin/txlog", "Browse")
    browser._until(lambda: "need attention" in browser.run(SHOWN), "the list in the frame")
    browser.picture(PICTURES / "navigation.png", 1360, 800)
    browser.run("document.querySelector('iframe').contentDocument.querySelector('a[href*=\"orders\"]').click()")
    browser._until(lambda: "Over 30 versions" in browser.run(SHOWN), "the table in the frame")
    browser.picture(PICTURES / "navigation_table.png", 1360, 1000)


def test_the_tab_of_a_task_shows_its_race(served: Served, browser: Browser) -> None:
    in_theme(browser, "light")
    browser.open(f"{served.address}/dags/{RACE}/runs/{served.run_id}/tasks/forget/plugin/txlog-task", "forget")
    browser._until(lambda: "The race" in browser.run(SHOWN), "the race in the frame")
    browser.picture(PICTURES / "task_tab.png", 1360, 900)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 500])
def test_each_page_is_shown_in_each_state_without_an_error_of_the_browser(
    served: Served, browser: Browser, theme: str, width: int
) -> None:
    in_theme(browser, theme)
    for name, address in served.pages().items():
        browser.open(address, "Delta tables")
        browser.picture(PICTURES / f"{name.replace(' ', '_')}_{theme}_{width}.png", width, 1500)
        assert browser.run("return document.documentElement.dataset.theme") == theme
        # No page is wider than its window, but for tables that scroll by themselves.
        assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth"), name
        styled = "return getComputedStyle(document.querySelector('main')).maxWidth"
        assert browser.run(styled) == "1240px", "the style sheet was not applied"
        assert browser.run("return window.hostile === undefined && document.scripts.length === 1"), name


class Refusing(StandAlone):
    """A site at which each request gets one answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__([])
        self._refused = Refused(status, message)

    async def user(self, request: Request) -> Any:
        raise self._refused


def running(at_ms: int, *, is_silent: bool) -> Any:
    """The facts of the page of a running task."""
    from airflow_txlog.window.airflow_site import Doing, TaskFacts, TasksPage
    from airflow_txlog.window.known_tables import TaskRow

    row = TaskRow(
        dag_id="nightly",
        run_id="scheduled",
        task_id="merge",
        map_index=-1,
        state="running",
        try_number=2,
        started_ms=at_ms - 60_000,
        ended_ms=None,
        table_uri="s3://lake/orders",
        result=None,
    )
    doing = Doing(
        step="rewrite",
        done=12,
        total=40,
        unit="files",
        seconds=33.0,
        bytes_per_s=85 * 2**20,
        remaining_s=81,
        attempt=2,
        conflicts=1,
        at_ms=at_ms,
        is_silent=is_silent,
    )
    nothing: dict[str, Any] = {"status": "", "read_version": None, "version": None, "seconds": None, "commit": None}
    task = TaskFacts(row=row, uri="s3://lake/orders", doing=doing, **nothing)
    return TasksPage(dag_id="nightly", run_id="scheduled", task_id="merge", tasks=(task,))


def page_of(facts: Any, refresh: int) -> Page:
    async def page(window: Window, ask: Ask) -> Shown:
        return Shown(template="tasks.html", facts=facts, values={"refresh": refresh})

    return page


def test_pages_that_are_forbidden_empty_or_running_are_shown(browser: Browser) -> None:
    now_ms = SYSTEM_CLOCK.now_ms()
    pages = {
        "running": page_of(running(now_ms, is_silent=False), 0),
        "silent": page_of(running(now_ms - 600_000, is_silent=True), 0),
    }
    shown = [
        (Window(StandAlone([])), "", "No table is known yet"),
        (Window(Refusing(403, "You may not see this DAG.")), "task", "Not allowed"),
        (Window(Refusing(401, "Log in to Airflow first.")), "", "Log in first"),
        (Window(StandAlone([]), pages), "running", "about 1 min left"),
        (Window(StandAlone([]), pages), "silent", "has been silent since then"),
    ]
    for window, path, text in shown:
        with alone(window) as port:
            browser.open(f"http://127.0.0.1:{port}/{path}", text)
            for width in (1280, 500):
                browser.picture(PICTURES / f"{text.replace(' ', '_')}_{width}.png", width, 700)
                assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth"), text


def test_a_page_stays_and_says_so_while_the_server_is_gone(browser: Browser) -> None:
    window = Window(StandAlone([]), {"running": page_of(running(SYSTEM_CLOCK.now_ms(), is_silent=False), 1)})
    lost = "return document.documentElement.dataset.lost !== undefined"
    with alone(window) as port:
        browser.open(f"http://127.0.0.1:{port}/running", "about 1 min left")
    browser._until(lambda: browser.run(lost), "the page says that the server is gone")
    assert "about 1 min left" in browser.text()
    with alone(window, port):
        browser._until(lambda: not browser.run(lost), "the page is loaded again")
        assert "about 1 min left" in browser.text()
        browser.open("about:blank", "")


def test_ten_thousand_commits_are_shown_within_a_second(served: Served, browser: Browser) -> None:
    browser.open(served.page(""), "Delta tables")
    started = time.perf_counter()
    browser.open(served.table("long", span=1000), "Timeline")
    assert time.perf_counter() - started < 1.0


@needs_checks
def test_the_html_of_each_page_is_valid(served: Served, browser: Browser, tmp_path: Path) -> None:
    cookies = {each["name"]: each["value"] for each in browser._send("GET", f"/session/{browser._session}/cookie")}
    (tmp_path / "wrong.html").write_text("<!DOCTYPE html><html><body><p><div></p><b></body></html>")
    for name, address in served.pages().items():
        (tmp_path / f"{name}.html").write_text(httpx.get(address, cookies=cookies).text)
    tool = [
        "node",
        str(CHECKS / "node_modules/html-validate/bin/html-validate.mjs"),
        "--preset",
        "standard",
        "-f",
        "json",
    ]
    files = sorted(str(path) for path in tmp_path.glob("*.html"))
    done = subprocess.run([*tool, *files], capture_output=True, text=True, cwd=CHECKS)
    found = {Path(each["filePath"]).name: each["messages"] for each in json.loads(done.stdout) if each["messages"]}
    assert found.pop("wrong.html")
    assert found == {}


@needs_checks
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(served: Served, browser: Browser, theme: str) -> None:
    in_theme(browser, theme)
    axe = (CHECKS / "node_modules/axe-core/axe.min.js").read_text()
    # Of a second theme, only the colors are others.
    rules = {} if theme == "light" else {"runOnly": ["color-contrast"]}
    run = (
        f"window.found = null; axe.run(document, {json.dumps(rules)}).then(all => window.found = all.violations.map("
        "each => [each.id, each.impact, each.nodes.map(node => node.html)]))"
    )
    for name, address in served.pages().items():
        browser.open(address, "Delta tables")
        browser.run("document.querySelectorAll('details').forEach(each => each.open = true)")
        browser.run(f"{axe}; window.axe = axe; {run}")
        found = browser._until(lambda: browser.run("return JSON.stringify(window.found)") != "null", "axe")
        assert found
        assert json.loads(browser.run("return JSON.stringify(window.found)")) == [], name
