"""What Airflow's pages show of a connection and of a delete; the pictures are left in build/pages to be looked at."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from urllib.parse import quote

import pyarrow as pa
import pytest

from airflow_txlog.get_provider_info import get_provider_info
from tests.airflow.scheduled.browser import CHROMEDRIVER, Browser
from tests.airflow.scheduled.deployment import HISTORY_URL, Deployment
from tests.airflow.scheduled.jobs import Lake
from tests.helpers.depth import by_hand
from tests.helpers.paths import ROOT

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.timeout(3600),
    pytest.mark.long("a whole Airflow over PostgreSQL, and a browser"),
    by_hand("pages of Airflow in a browser"),
    pytest.mark.skipif(not CHROMEDRIVER.exists(), reason="no Chromium: tools/ensure_chromium.sh fetches one"),
]

PERSON = "mary.canary@home.example"
SCHEMA = pa.schema([("id", pa.int64()), ("email", pa.string()), ("day", pa.date32())])
PICTURES = ROOT / "build" / "pages"


@pytest.fixture(scope="module")
def browser(airflow: Deployment) -> Iterator[Browser]:
    """A browser of these tests."""
    browser = Browser(airflow.folder / "browser")
    try:
        browser.start()
        yield browser
    finally:
        browser.stop()


def test_the_form_of_a_connection_shows_each_field_and_keeps_no_setting_that_was_not_given(
    airflow: Deployment, browser: Browser
) -> None:
    browser.open(f"{airflow.address}/connections", "Add Connection")
    browser.click("//button[contains(., 'Add Connection')]")
    browser.type("//input[@name='connection_id']", "lake")
    browser.type("//input[@role='combobox']", "txlog\ue007")
    browser.shows("Base folder or URI")
    assert not {"Schema", "Login", "Password", "Port"} & set(browser.text().splitlines())
    browser.picture(PICTURES / "connection.png")
    browser.type("//input[@name='host']", "/lake")
    browser.click("//button[contains(., 'Extra Fields')][not(contains(., 'JSON'))]")
    (connection_type,) = get_provider_info()["connection-types"]
    for field in connection_type["conn-fields"].values():
        browser.shows(field["label"])
        browser.shows(field["description"])
    assert "null" not in browser.text().splitlines()
    browser.picture(PICTURES / "connection_extra.png", height=2000)
    browser.click("//button[contains(., 'Save')]")
    airflow.until(lambda: airflow.api("GET", "connections")["total_entries"], "the connection is saved")
    saved = airflow.api("GET", "connections/lake")
    assert (saved["conn_type"], saved["host"]) == ("txlog", "/lake")
    assert not any(json.loads(saved["extra"] or "{}").values())


def test_a_delete_shows_its_sql_its_commit_and_no_value(airflow: Deployment, browser: Browser) -> None:
    airflow.person.write_text(PERSON)
    lake = Lake(airflow, "forget_twice", SCHEMA, ["email"])
    lake.append([{"id": n, "email": email, "day": None} for n, email in enumerate(["aa", PERSON, "zz"])])
    airflow.trigger("forget_twice", "once", table=lake.uri)
    assert airflow.wait("forget_twice", ["once"]) == {"once": "success"}
    task = f"{airflow.address}/dags/forget_twice/runs/once/tasks/forget"

    browser.open(f"{task}/rendered_templates", "email = :email")
    browser.shows("AND email <> 'zz'")
    browser.shows('"email": "***"')
    browser.shows('"spark.sql.shuffle.partitions": "2"')
    sources = [browser.source()]
    browser.picture(PICTURES / "rendered.png")
    browser.open(f"{task}/details", "Commit")
    sources.append(browser.source())
    browser.picture(PICTURES / "link.png")
    page = HISTORY_URL.replace("{table}", quote(lake.uri, safe="")).replace("{version}", "2")
    assert f'href="{html.escape(page)}"' in sources[-1]
    browser.open(f"{task}_again/details", "Max Tries")
    sources.append(browser.source())
    browser.picture(PICTURES / "no_link.png")
    assert "Commit" not in browser.text().split()
    assert HISTORY_URL.partition("{")[0] not in sources[-1]
    browser.open(task, "1 row deleted")
    sources.append(browser.source())
    assert not [source for source in sources if "canary" in source.lower()]
