"""The documentation site: each page is in the nav, each parameter in a table, and `make docs` has no warning."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_txlog import operators
from airflow_txlog.operators.many_jobs import ManyJobsOperator
from tests.helpers.paths import ROOT
from tools import parameters, site_hooks


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without the objects that it names."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)

CONFIGURATION: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)


def leaves(nav: Any) -> list[str]:
    """Return the pages of a nav, in order."""
    if isinstance(nav, str):
        return [nav]
    return [page for each in (nav.values() if isinstance(nav, dict) else nav) for page in leaves(each)]


def test_the_nav_names_every_page_once() -> None:
    outside = [path for path in site_hooks.outside_pages() if "/" not in path and path.endswith(".md")]
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    named = leaves(site_hooks.with_operators(CONFIGURATION["nav"]))
    expected = {*pages, *map(site_hooks.page_of, outside)}
    assert expected - set(named) == set(), "put these pages into the nav of mkdocs.yml"
    assert sorted(named) == sorted(expected)


def test_a_link_out_of_the_docs_leads_to_a_page_of_the_site() -> None:
    text = "[a](../README.md#in) [b](../tools/rooms.py) [c](checks.md) [d](https://x.org) `[e](../y)`\n"
    assert site_hooks.with_site_links("index.md", text.replace("`[e](../y)`", "")) == (
        "[a](repository/README.md#in) [b](repository/tools/rooms.py.md) [c](checks.md) [d](https://x.org) \n"
    )
    assert site_hooks.with_site_links("repository/README.md", "[a](docs/checks.md) [b](example_dags)") == (
        "[a](../checks.md) [b](example_dags/index.md)"
    )


def test_markdown_of_github_is_written_for_the_site() -> None:
    written = "Text:\n- one\n  more\n  - two\n\n| a |\n|---|\n| `x \\| y` |"
    shown = "Text:\n\n- one\n  more\n    - two\n\n| a |\n|---|\n| `x | y` |"
    assert site_hooks.for_python_markdown(written) == shown


def test_each_documented_class_has_its_table_on_one_page() -> None:
    found = {
        name: page
        for page in (ROOT / "docs" / "operators").glob("*.md")
        for name, _ in parameters.TABLE.findall(page.read_text())
    }
    assert sorted(found) == sorted(each.__name__ for each in parameters.DOCUMENTED)
    for each in parameters.DOCUMENTED:
        page = found[each.__name__]
        if each in parameters.SHARED:
            assert page.stem == "shared"
            continue
        defined = inspect.getsourcefile(each)
        assert defined is not None
        links = re.findall(r"^\[Source\]\((.*)\)$", page.read_text(), re.MULTILINE)
        assert Path(defined) in [(page.parent / link).resolve() for link in links], each.__name__


@pytest.mark.parametrize("page", sorted(parameters.PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_the_tables_on_a_page_are_those_of_the_constructors(page: Path) -> None:
    assert parameters.with_tables(page.read_text()) == page.read_text(), "run: python -m tools.parameters"


@pytest.mark.parametrize("page", sorted(parameters.REFERENCE.glob("*.md")), ids=lambda page: page.stem)
def test_the_summaries_on_a_page_of_the_reference_are_those_of_the_docstrings(page: Path) -> None:
    text = page.read_text()
    assert parameters.with_summaries(text) == text, "run: python -m tools.parameters"
    (table,) = parameters.SUMMARIES.findall(text)
    rows = re.findall(r"^\| `([\w.]+)` \| (\S.*) \|$", table, re.MULTILINE)
    assert len(rows) == len(table.strip().splitlines()) - 2, "each name has a summary"
    for path, _ in parameters.DIRECTIVE.findall(text):
        described = parameters.named(path)
        assert inspect.ismodule(described) or described.__name__ in dict(rows)


def test_every_operator_sensor_trigger_and_hook_of_the_package_is_documented() -> None:
    defined = {
        name
        for folder in ("operators", "sensors", "triggers", "hooks")
        for path in (ROOT / "airflow_txlog" / folder).rglob("*.py")
        for name in re.findall(r"^class ([A-Z]\w+(?:Operator|Sensor|Trigger|Hook))\(", path.read_text(), re.MULTILINE)
    }
    bases = {
        *("RenderedOperator", "TemplatedOperator", "NamedTableOperator", "ManyJobsOperator"),
        *(each.__name__ for each in parameters.INCLUDED),
        "RowWritingHook",
    }
    assert defined - bases == {each.__name__ for each in parameters.DOCUMENTED}


@pytest.mark.parametrize("cls", parameters.DOCUMENTED, ids=lambda cls: cls.__name__)
def test_the_tables_of_a_class_have_every_argument_of_its_constructors(cls: type) -> None:
    listed = [each.name for each in (*parameters.own_parameters(cls), *parameters.shared_parameters(cls))]
    assert len(listed) == len(set(listed))
    owners = [cls] if cls in parameters.SHARED else cls.__mro__
    taken = {
        name
        for owner in owners
        if owner.__module__.startswith("airflow_txlog.") and "__init__" in vars(owner)
        for name, found in inspect.signature(vars(owner)["__init__"]).parameters.items()
        if name != "self" and found.kind is not found.VAR_KEYWORD
    }
    if issubclass(cls, ManyJobsOperator):
        taken -= parameters.NOT_OF_MANY_JOBS
    assert set(listed) == taken
    own = {each.name for each in parameters.own_parameters(cls)}
    table = parameters.table_of(cls)
    assert [name for name in listed if (f"\n| `{name}` |" if name in own else f"`{name}`") not in table] == []


@pytest.mark.parametrize("cls", parameters.DOCUMENTED, ids=lambda cls: cls.__name__)
def test_a_docstring_marks_exactly_the_templated_parameters(cls: type) -> None:
    texts = parameters.meanings_of(cls)
    marked = {name for name, text in texts.items() if parameters.TEMPLATED.search(text)}
    if cls is operators.DeltaAlterTableOperator:
        assert "All arguments except `allow_reader_upgrade`\n    are templated." in str(cls.__doc__)
        marked = texts.keys() - {"allow_reader_upgrade"}
    fields = set(getattr(cls, "template_fields", ()))
    assert marked == fields & texts.keys()


# A term that a newcomer would type, and a page that must be among the first three of its results.
FOUND = {
    "upsert": "operators/upsert/",
    "delete": "operators/delete/",
    "GDPR": "erasure/",
    "retry": "operators/shared/#retries",
    "schema change": "bring-your-tables/",
    "Spark": "spark-connect/",
    "S3": "stores/",
    "conflict": "concepts/#conflicts",
    "backfill": "how-to/#a-backfill",
    "rollback": "operators/rollback/",
    "merge": "operators/merge/",
    "CDC": "apply-changes/",
    "vacuum": "operators/vacuum/",
    "unit test": "testing/",
    "which task wrote": "production/#which-task-wrote-a-version",
    "monitor": "production/#monitor-and-alert",
    "dev prod": "production/",
    "cost": "production/#costs-on-an-object-store",
    "full refresh": "increments/#before-a-full-refresh",
    "stuck in deferred": "troubleshooting/#a-task-is-stuck-in-deferred",
    "DAG import error": "troubleshooting/#dag-import-error",
    "Spark cannot start": "troubleshooting/#spark-cannot-start",
    "zombie": "troubleshooting/#zombie-a-task-without-a-heartbeat",
    "TableNotFound": "troubleshooting/#tablenotfound",
    "ConcurrentWrite": "troubleshooting/#concurrentwrite",
    # The first words of messages. The page is named if several of its entries have most of the words.
    "s3 lake orders has no _delta_log with a commit": "troubleshooting/",
    "The rows do not fit the table": "operators/write/#rows-that-fit-the-table",
    "this task would insert 60 rows and min_inserted_rows demands 88": "troubleshooting/#expectationfailed",
    "The delete job was killed (SIGKILL) as happens to a process when memory runs out": "troubleshooting/#joblost",
    "The connection aws_lake (storage_conn_id) gives no credentials": "troubleshooting/#credentialsunavailable",
    "table_uri must be an absolute path or a URI; found None": "troubleshooting/#invalidjobspec",
    "Task did not emit heartbeat within time limit": "troubleshooting/#zombie-a-task-without-a-heartbeat",
}


@pytest.mark.long("builds the whole site, in an environment that it may have to install")
def test_make_docs_has_no_warning_and_the_search_finds_what_newcomers_type() -> None:
    ensured = subprocess.run([ROOT / "tools" / "ensure_docs.sh"], capture_output=True, text=True, check=False)
    if ensured.returncode != 0:
        pytest.skip(f"MkDocs could not be installed: {ensured.stderr[-300:]}")
    done = subprocess.run(["make", "docs"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    shown = (ROOT / "build" / "site" / "operators" / "merge" / "index.html").read_text()
    assert "<code>conflict_deadline_s</code>" in shown
    assert "<!-- parameters" not in shown
    if shutil.which("node") is None:
        pytest.skip("the search is tried with node")
    command = ["node", ROOT / "tools" / "search_site.js", ROOT / "build" / "site", *FOUND]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    wrong = {term: found[term][:3] for term, page in FOUND.items() if page not in str(found[term][:3])}
    assert wrong == {}
