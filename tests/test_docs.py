"""Nothing in the README or the docs that does not work: their Python runs here, and their links lead somewhere."""

from __future__ import annotations

import datetime as dt
import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog import operators
from airflow_txlog.engine.commit.content.property_names import spelled
from airflow_txlog.engine.log.actions import Metadata, Protocol
from airflow_txlog.engine.table.predicate import plain_condition
from airflow_txlog.engine.table.schema import features
from airflow_txlog.engine.table.schema.properties import TableProperties, _Setting
from airflow_txlog.engine.table.schema.schema import parse_schema
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType
from airflow_txlog.errors import UnsupportedFeature
from airflow_txlog.get_provider_info import get_provider_info
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.storage import limits
from tests.helpers import airflow_forks
from tests.helpers.paths import ROOT
from tests.helpers.rows import make_table
from tests.helpers.staged import stage

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def python_blocks(page: Path) -> list[str]:
    return PYTHON_BLOCK.findall(page.read_text())


def dag_blocks(page: Path) -> list[str]:
    """The blocks that define a DAG of their own; the others are quotes of the example DAGs."""
    return [block for block in python_blocks(page) if "with DAG(" in block]


def test_the_engine_page_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "engine.md"
    namespace: dict[str, object] = {}
    for number, block in enumerate(python_blocks(page), 1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), namespace)
    assert namespace["version"] == 1


def test_the_recipes_for_rows_from_python_run_from_top_to_bottom(tmp_path: Path) -> None:
    """Each as it stands, in other folders."""
    page = ROOT / "docs" / "python-rows.md"
    of_examples, *blocks = python_blocks(page)
    assert "@task" in of_examples
    namespace: dict[str, object] = {}
    for number, block in enumerate(blocks, 1):
        text = block.replace("/tmp/lake", str(tmp_path))
        exec(compile(text, f"{page.name}, block {number}", "exec"), namespace)
    assert "result" in namespace, "the last block ran"


def test_the_check_of_a_staged_change_finds_a_wrong_row(tmp_path: Path) -> None:
    """The page's functions as they stand, on another table."""
    (block,) = [each for each in python_blocks(ROOT / "docs" / "staged-changes.md") if "def check(" in each]
    orders = make_table(tmp_path / "orders", pa.table({"amount": [1]}))
    namespace: dict[str, Any] = {}
    exec(compile(block.replace("/lake/orders", str(tmp_path / "orders")), "staged-changes.md", "exec"), namespace)
    checks = [namespace[name].function for name in ("check", "check_with_duckdb")]
    good, bad = (stage("update", orders, set={"amount": value}) for value in ("amount + 1", "-amount"))
    for check in checks:
        check({"staged": good})
        with pytest.raises(AssertionError):
            check({"staged": bad})


def test_quotes_of_the_example_dags_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("quote_examples", ROOT / "tools" / "quote_examples.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    for page in tool.PAGES:
        text = page.read_text()
        assert tool.quoted(text) == text, "run `python tools/quote_examples.py`"
        if page in tool.QUOTING_IN_PART or not tool.QUOTE.search(text):
            continue
        assert len(tool.QUOTE.findall(text)) + len(dag_blocks(page)) == len(python_blocks(page)), (
            "a block is neither a quote of an example nor a DAG that this module parses"
        )


def airflow_environment(home: Path, dags: Path) -> dict[str, str]:
    """What a child needs to be an Airflow of its own, in a process of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
    return inherited | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        # A module beside the database hides an installed one.
        "PYTHONPATH": f"{home}{os.pathsep}{ROOT}",
        "PYTHONWARNINGS": "ignore",
    }


def run_airflow(home: Path, dags: Path, *commands: list[str]) -> list[str]:
    """Run these commands of an Airflow that is loaded once; return what each prints."""
    printed = []
    with airflow_forks.command(home) as programs:
        for command in commands:
            done = subprocess.run(
                [programs / "airflow", *command],
                env=airflow_environment(home, dags),
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
            printed.append(done.stdout + done.stderr)
    return printed


@pytest.mark.airflow
def test_dags_of_the_pages_parse(tmp_path: Path) -> None:
    dags = tmp_path / "dags"
    dags.mkdir()
    blocks = [block for page in PAGES for block in dag_blocks(page)]
    assert len(blocks) >= 2
    for number, block in enumerate(blocks):
        (dags / f"page_{number}.py").write_text(block)
    names = re.findall(r'DAG\(dag_id="(\w+)"', "\n".join(blocks))
    code = (
        "from airflow.dag_processing.dagbag import DagBag\n"
        f"bag = DagBag({str(dags)!r})\n"
        "assert not bag.import_errors, bag.import_errors\n"
        f"assert sorted(bag.dags) == {sorted(names)!r}, bag.dags\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=airflow_environment(tmp_path, dags),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]


BY_QUERY = """
from airflow.sdk import DAG
from airflow_txlog.operators import DeltaDeleteOperator, DeltaWriteOperator, query

USERS = "SELECT * FROM VALUES ('41', 'ann@example.org'), ('42', 'joe@example.org') AS users(user_id, email)"
with DAG(dag_id="by_query", params={"user_id": "42"}, default_args={"table_uri": "/tmp/lake/users", "retries": 5}):
    load = DeltaWriteOperator(task_id="load", source=query(USERS), mode="overwrite")
    load >> DeltaDeleteOperator(
        task_id="forget_user", predicate="user_id = :user", parameters={"user": "{{ params.user_id }}"}
    )
"""


@pytest.mark.airflow
@pytest.mark.spark
@pytest.mark.long("a real DAG run, whose task starts a Spark of its own; make test runs other DAGs with other children")
def test_a_dag_with_a_query_starts_a_spark_of_its_own(tmp_path: Path, airflow_database: Path) -> None:
    """The one test of the default runner from a DAG to the commit."""
    from airflow_txlog.engine import Table

    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "by_query.py").write_text(BY_QUERY.replace("/tmp/lake/users", str(tmp_path / "users")))
    shutil.copy(airflow_database, tmp_path / "airflow.db")
    run_airflow(tmp_path, dags, ["dags", "test", "by_query"])
    table = Table.open(str(tmp_path / "users"))
    assert table.to_arrow().to_pylist() == [{"user_id": "41", "email": "ann@example.org"}]


@pytest.mark.airflow
@pytest.mark.long("two real DAG runs")
def test_the_dags_of_the_readme_and_of_the_hook_run_without_spark(tmp_path: Path, airflow_database: Path) -> None:
    """As they stand; only the folders of the tables are others."""
    from airflow_txlog.engine import Table

    (forget,), (count,) = dag_blocks(ROOT / "README.md"), dag_blocks(ROOT / "docs" / "operators" / "txlog-hook.md")
    lines = [line for line in forget.splitlines() if line.strip()]
    assert len(lines) <= 10, "the README promises ten lines"
    assert re.findall(r'"(/\S*/users)"', forget) == ["/tmp/lake/users"], "a folder that every user may make"
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "gdpr.py").write_text(forget.replace("/tmp/lake/users", str(tmp_path / "users")))
    moved = count.replace("/lake/orders", str(tmp_path / "users")).replace("/lake/counts", str(tmp_path / "counts"))
    (dags / "count_orders.py").write_text(moved)
    # A Spark that cannot be imported.
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("raise ImportError(name='pyspark')")
    shutil.copy(airflow_database, tmp_path / "airflow.db")
    run_airflow(tmp_path, dags, ["dags", "test", "gdpr"], ["dags", "test", "count_orders"])
    users, counts = (Table.open(str(tmp_path / name)) for name in ("users", "counts"))
    assert users.to_arrow().to_pylist() == [{"user_id": 41, "email": "ann@example.org"}]
    assert users.history(1)[0]["operation"] == "DELETE"
    assert counts.to_arrow().column("orders").to_pylist() == [1]


@pytest.mark.airflow
@pytest.mark.long("two real DAG runs")
def test_the_first_table_is_loaded_from_its_csv_and_read_behind_its_sensor_without_java(
    tmp_path: Path, airflow_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page as it stands, its file included; only the folders of the files and of the table are others."""
    from airflow_txlog.engine import Table

    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no java"))
    page = (ROOT / "docs" / "first-table.md").read_text()
    (name,) = re.findall(r"^`/tmp/in/(.*)`:$", page, re.MULTILINE)
    (rows,) = re.findall(r"^```csv\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_text(rows)
    dags = tmp_path / "dags"
    dags.mkdir()
    for number, block in enumerate(dag_blocks(ROOT / "docs" / "first-table.md")):
        moved = block.replace('"/tmp/in/', f'"{tmp_path}/in/').replace('"/tmp/lake/', f'"{tmp_path}/lake/')
        (dags / f"page_{number}.py").write_text(moved)
    shutil.copy(airflow_database, tmp_path / "airflow.db")
    commands = [line.split()[1:] for line in page.splitlines() if line.startswith("airflow dags test ")]
    assert len(commands) == 2
    printed = run_airflow(tmp_path, dags, *commands)[-1]
    (returned,) = re.findall(r"`sales` returns `(.*)`", page)
    assert returned in printed
    table = Table.open(str(tmp_path / "lake" / "orders"))
    assert (table.to_arrow().num_rows, table.snapshot().partition_columns) == (3, ["day"])


# The variables by which processes of ours find each other.
INTERNAL = {
    "TXLOG_PROGRESS_LINES",
    "TXLOG_CONNECT",
    "TXLOG_CREDENTIALS_FOLDER",
    "TXLOG_CREDENTIALS_TOKEN",
    "TXLOG_CREDENTIALS_URL",
}


def test_a_class_that_a_page_calls_is_imported_there_or_in_the_reference() -> None:
    """A reader finds out from where: on the page, in the reference, or in the table of public names."""
    public = re.findall(
        r"^\| `(airflow_txlog[\w.]*)` \| (.*) \|$", (ROOT / "docs" / "support.md").read_text(), re.MULTILINE
    )
    modules = {name: module for module, names in public for name in re.findall(r"`([A-Z]\w+)`", names)}
    assert modules["TxlogRetryPolicy"] == "airflow_txlog.policies.retry"
    reference = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    unknown = []
    for page in PAGES:
        text = page.read_text()
        code = "\n".join(re.findall(r"`[^`]+`|^```.*?^```", text, re.DOTALL | re.MULTILINE))
        for name in sorted(set(re.findall(r"\b([A-Z]\w+)\(", code)) & modules.keys()):
            is_shown = modules[name] in text or re.search(rf"import .*\b{name}\b", text) or f".{name}\n" in reference
            unknown += [] if is_shown else [(page.name, name)]
    assert not unknown


def test_the_protocol_page_names_every_property_that_the_engine_obeys() -> None:
    names = {each._name for each in vars(TableProperties).values() if isinstance(each, _Setting)}
    assert len(names) > 20
    text = (ROOT / "docs" / "protocol-support.md").read_text()
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


def test_the_table_of_properties_shows_valid_examples_and_the_defaults() -> None:
    settings = {each._name: each for each in vars(TableProperties).values() if isinstance(each, _Setting)}
    text = (ROOT / "docs" / "protocol-support.md").read_text()
    rows = re.findall(r"^\| `((?:delta|txlog)\.[\w.]+)` \| .* \| (.*) \| `(.+)` \|$", text, re.MULTILINE)
    assert len(rows) > 20
    for name, default, example in rows:
        assert spelled(name, "t") == name
        if (setting := settings.get(name)) is None:
            continue
        assert setting._parse(example) != setting._default, name
        if (shown := re.fullmatch("`(.*)`", default)) is not None:
            assert setting._parse(shown[1]) == setting._default, name
        else:
            assert setting._default is None, name


def arguments_of(function: Callable[..., object]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in ("self", "kwargs", "others")]


def not_named(names: list[str], *pages: str) -> list[str]:
    """Those that the pages show neither in backquotes nor as `name=`."""
    text = "".join((ROOT / "docs" / page).read_text() for page in pages)
    return [name for name in names if re.search(rf"`{name}`|\b{name}=", text) is None]


def section_of(page: str, heading: str) -> str:
    """A section of the page, with those below it."""
    text = (ROOT / "docs" / page).read_text()
    (found,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return str(found)


def test_the_guide_to_an_alter_has_every_argument() -> None:
    section = section_of("bring-your-tables.md", "Alter a table")
    cells = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`(\w+)", cell)}
    assert [name for name in arguments_of(operators.DeltaAlterTableOperator.__init__) if name not in named] == []


@pytest.mark.parametrize("method", ["append", "overwrite", "upsert", "delete", "_write"])
def test_the_page_on_rows_has_every_argument_of_the_hook(method: str) -> None:
    inner = ("method", "arguments")
    names = [name for name in arguments_of(getattr(TxlogHook, method)) if name not in inner]
    assert not_named(names, "python-rows.md") == []


def test_the_conditions_that_the_page_on_jobs_without_spark_calls_plain_are_plain() -> None:
    page = (ROOT / "docs" / "jobs-without-spark.md").read_text()
    section = page.split("## Plain expressions")[1].split("## ")[0]
    texts = [text for text in re.findall(r"\(`([^`]+)`\)", section) if re.search("[=<]| LIKE ", text)]
    assert len(texts) > 3
    types = {"id": Primitive.LONG, "name": Primitive.STRING, "seen_at": Primitive.TIMESTAMP}
    schema = StructType(tuple(StructField(name, kind) for name, kind in types.items()))
    now = dt.datetime.now(dt.UTC)
    for text in texts:
        # A job binds the current time as a parameter.
        used = {"since": now} if "<" in text else {}
        bound = plain_condition(text.replace("now()", ":since"), schema, used, time_zone="UTC")
        assert not isinstance(bound, str), (text, bound)


def test_the_settings_page_has_every_option_field_and_variable() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    listed = [re.findall(r"`(\w+)`", row) for row in re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE)]
    described = get_provider_info()
    options, fields = described["config"]["txlog"]["options"], described["connection-types"][0]["conn-fields"]
    modules = [path.read_text() for path in (ROOT / "airflow_txlog").rglob("*.py")]
    variables = {name for text in modules for name in re.findall(r'"(TXLOG_[A-Z_]+)"', text)} - INTERNAL
    assert sorted(name for row in listed for name in row) == sorted([*options, *fields, *variables])
    for limit in vars(limits).values():
        if isinstance(limit, limits.Limit):
            assert f"| `{limit.setting}` | {limit.default} (" in page


LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
LINK_TO_A_SECTION = re.compile(r"\]\(([^)#\s:]*)#([^)\s]+)\)")


def sections(page: Path) -> set[str]:
    """The anchors of a page: those that it names, and those that GitHub makes of its headings."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    words = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    named = re.findall(r'<a id="([^"]+)"', text)
    return {*named, *(re.sub(r"[^\w\- ]", "", each).replace(" ", "-") for each in words)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text()) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []
    to_sections = [
        (page.parent / target if target else page, section)
        for target, section in LINK_TO_A_SECTION.findall(page.read_text())
        if not target or target.endswith(".md")
    ]
    assert [section for other, section in to_sections if section not in sections(other)] == []


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = set(LINK.findall((folder / "README.md").read_text()))
    assert {path.name for path in folder.glob("*.md")} - {"README.md"} == listed


def test_every_decision_says_what_must_never_happen() -> None:
    for page in (ROOT / "docs" / "decisions").glob("*.md"):
        if page.stem != "README":
            found = re.findall(r"^\*\*(\w+(?: aside)?)\.\*\*", page.read_text(), re.MULTILINE)
            assert found == ["Problem", "Choice", "Set aside", "Never"], f"{page.name}: {found}"


# Features that a reader must know of, besides those that the engine names.
OTHER_READER_FEATURES = {"catalogOwned-preview", "variantShredding", "variantShredding-preview"}


def feature_rows() -> dict[str, tuple[str, str]]:
    """What the protocol page says of each feature: (read, write)."""
    page = (ROOT / "docs" / "protocol-support.md").read_text()
    table = page[page.index("| feature |") : page.index("## The log")].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table if line.startswith("|")]
    return {name: (read, write) for names, read, write, _ in rows for name in names.split(", ") if " " not in name}


def accepts(check: Callable[..., None], protocol: Protocol) -> bool:
    """Whether a table that lists the feature, and in which nothing uses it, passes."""
    schema_string = '{"type":"struct","fields":[]}'
    metadata = Metadata(id="an id", schema_string=schema_string, partition_columns=[])
    try:
        check(protocol, metadata, parse_schema(schema_string), "memory://t")
    except UnsupportedFeature:
        return False
    return True


@pytest.mark.parametrize("name", feature_rows())
def test_the_protocol_page_tells_what_the_engine_does(name: str) -> None:
    read, write = feature_rows()[name]
    in_reader_list = name in features.READABLE | OTHER_READER_FEATURES
    protocol = Protocol(
        min_reader_version=3 if in_reader_list else 1,
        min_writer_version=7,
        reader_features=[name] if in_reader_list else None,
        writer_features=[name],
    )
    says_no = re.compile(r"refused(?! when)")
    assert accepts(features.check_readable, protocol) == (not says_no.match(read))
    assert accepts(features.check_writable, protocol) == (not says_no.match(write))


def test_the_protocol_page_names_every_feature_that_the_engine_knows() -> None:
    known = features.READABLE | features.WRITABLE | features.WRITABLE_WHILE_UNUSED
    assert known - feature_rows().keys() == set()
