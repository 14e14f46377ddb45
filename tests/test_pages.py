"""The pages for newcomers: their code runs, and each error class has an entry whose message the package raises."""

from __future__ import annotations

import ast
import datetime as dt
import inspect
import os
import re
import subprocess
import sys
import uuid
from contextlib import nullcontext
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog import errors, operators
from airflow_txlog.testing import Lake
from tests.helpers import airflow_forks, s3
from tests.helpers.paths import ROOT
from tests.helpers.rows import append

DOCS = ROOT / "docs"
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
SHELL = re.compile(r"^```bash\n(.*?)^```", re.DOTALL | re.MULTILINE)
ENTRY = re.compile(r"^### (\w+)\n\n```text\n(.*?)\n```\n\n(\w.*?)(?=^##|\Z)", re.DOTALL | re.MULTILINE)


def run_blocks(page: Path, moved: dict[str, str]) -> None:
    """Run the Python blocks of a page from top to bottom, with other folders."""
    namespace: dict[str, object] = {"__name__": page.stem}
    for number, block in enumerate(PYTHON.findall(page.read_text()), 1):
        for old, new in moved.items():
            block = block.replace(old, new)
        exec(compile(block, f"{page.name}, block {number}", "exec"), namespace)


def test_the_code_of_the_concepts_runs(tmp_path: Path) -> None:
    run_blocks(DOCS / "concepts.md", {"/tmp/lake": str(tmp_path)})


CONSTANT = re.compile(r'^(_?[A-Z][A-Z_]+) = "([^"\\]+)"$', re.MULTILINE)


@cache
def constants() -> dict[str, str]:
    """Return the texts that the package names, such as `_delta_log`."""
    modules = [path.read_text() for path in (ROOT / "airflow_txlog").rglob("*.py")]
    return dict(found for module in modules for found in CONSTANT.findall(module))


def template_of(node: ast.AST) -> str:
    """Return the text of an expression, with `…` for values; constants are resolved."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=values):
            return "".join(map(template_of, values))
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return template_of(left) + template_of(right)
        case ast.FormattedValue(value=ast.Name(id=name)):
            return constants().get(name, "…")
    return "…"


def flat(text: str) -> str:
    return re.sub("…+", "…", " ".join(text.split()))


@cache
def messages_of_the_package() -> list[str]:
    """Return every text of the package as a message has it: in one line, without the class in front."""
    texts = set()
    for path in (ROOT / "airflow_txlog").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_docstring = isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value
            if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp) and not is_docstring:
                texts.add(template_of(node))
    return sorted({re.sub(r"^[A-Z]\w+: ", "", flat(text)) for text in texts} - {"", "…"})


BEFORE = "…:,.() "
"""What a message may have before its first words: values, and signs between them."""


@cache
def all_messages() -> str:
    return "\n".join(messages_of_the_package())


@cache
def beginnings() -> str:
    return "".join(f"\n{text.lstrip(BEFORE)}" for text in messages_of_the_package())


def is_in_messages(part: str) -> bool:
    """Return whether some text of the package has the part, or two texts that a message joins have it."""
    halves = ((part[:at], part[at:].strip()) for at in range(len(part) + 1))
    return any(first in all_messages() and second in all_messages() for first, second in halves)


def begins_a_message(part: str) -> bool:
    """Return the same for the beginnings of texts."""
    halves = ((part[:at], part[at:].lstrip(BEFORE)) for at in range(len(part) + 1))
    return any(f"\n{first}" in beginnings() and f"\n{second}" in beginnings() for first, second in halves)


def entries() -> list[tuple[str, str, str]]:
    return ENTRY.findall((DOCS / "troubleshooting.md").read_text())


def test_every_error_class_has_one_entry() -> None:
    classes = {
        name for name, each in vars(errors).items() if inspect.isclass(each) and issubclass(each, errors.TxlogError)
    }
    page = (DOCS / "troubleshooting.md").read_text()
    bases = re.findall(r"`(\w+)`", page.split("## Base classes")[1])
    assert sorted([name for name, *_ in entries()] + bases) == sorted(classes)
    headings = re.findall(r"^### \w+$", page, re.MULTILINE)
    assert len(entries()) == len(headings), "an entry has messages, and below them the cause"


MESSAGES = [(name, line) for name, lines, _ in entries() for line in lines.splitlines()]


@pytest.mark.parametrize(("name", "line"), MESSAGES, ids=lambda value: value[:30])
def test_an_entry_has_the_first_words_of_messages_of_the_package(name: str, line: str) -> None:
    """A reader who searches the page for the beginning of a message finds its entry.

    The first long part of the line must be the beginning of a text of the package, and the others must be in one.
    """
    line = flat(line).rstrip("… ")
    parts = [part.strip(" ;:,.()") for part in re.split(r"…|; ", line)]
    assert [part for part in parts if not is_in_messages(part)] == []
    first = next((part for part in parts if len(part) > 8), None)
    assert first is not None, "too short to be found"
    inside = [text for text in messages_of_the_package() if first in text]
    assert begins_a_message(first), f"no message begins with {first!r}; some have it inside: {inside[:3]}"


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("airflow.jobs.scheduler_job_runner", "Task did not emit heartbeat within time limit ("),
        ("airflow.jobs.triggerer_job_runner", "Trigger failed to load code"),
        ("airflow.jobs.triggerer_job_runner", "Trigger failed to inflate"),
        ("airflow.sdk.execution_time.supervisor", "Process terminated by signal."),
    ],
)
def test_the_page_quotes_airflow_as_it_is_installed(module: str, text: str) -> None:
    found = find_spec(module)
    assert found is not None
    assert found.origin is not None
    assert text in Path(found.origin).read_text()
    assert text in (DOCS / "troubleshooting.md").read_text()


def normal(text: str) -> list[str]:
    """Return the lines of an output without the times and the widths of columns."""
    text = re.sub(r"\d{4}-\d\d-\d\d[T ][\d:.]+(Z|\+00:00)?", "TIME", text)
    return [re.sub(r"[ ─]+", " ", line).strip() for line in text.strip().splitlines()]


def run_script(script: str, folder: Path, airflow_database: Path, *, forks: bool = False, **variables: str) -> str:
    """Run a shell script with an Airflow of its own, without Java; return what it prints to standard output.

    `forks`: Airflow is loaded once, and each of its commands is a fork.
    """
    home = folder / "home"
    (home / "dags").mkdir(parents=True)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(home),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "JAVA_HOME": str(folder / "no java"),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
        "TMPDIR": str(folder),
        **variables,
    }
    (home / "airflow.db").write_bytes(airflow_database.read_bytes())
    command = ["bash", "-euo", "pipefail", "-c", script]
    with airflow_forks.command(folder) if forks else nullcontext("") as programs:
        environment["PATH"] = f"{programs}:{environment['PATH']}"
        done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout


@pytest.mark.airflow
@pytest.mark.long("a real DAG run")
def test_start_here_shows_its_output(tmp_path: Path, airflow_database: Path) -> None:
    """Every bash block runs as it stands; only the folders are others, and the database is a copy of a new one."""
    page = (DOCS / "start-here.md").read_text()
    for name in ("lake", "start-here"):
        page = page.replace(f"/tmp/{name}", str(tmp_path / name))
    script, expected = "", ""
    for block in BLOCK.finditer(page):
        if block["kind"] == "text":
            expected += block["text"]
        elif block["kind"] == "python":
            script += f"cat > {block['file']} <<'END OF THE FILE'\n{block['text']}END OF THE FILE\n"
        else:
            script += block["text"].replace("airflow db migrate", f"cp {tmp_path}/home/airflow.db $AIRFLOW_HOME")
    script = re.sub(r"^airflow dags test .*", r"\g<0> >log 2>&1", script, flags=re.MULTILINE)
    assert normal(run_script(script, tmp_path, airflow_database, forks=True)) == normal(expected)


@pytest.mark.airflow
@pytest.mark.long("a real DAG run on a server")
def test_the_trial_on_s3_runs_in_a_bucket_of_its_own(tmp_path: Path, airflow_database: Path) -> None:
    s3.options()  # skips without a server
    page = (DOCS / "stores.md").read_text().split("## Try it on S3")[1].split("\n## ")[0]
    bucket = f"try-{uuid.uuid4()}"
    page = page.replace("/tmp/try-s3", str(tmp_path / "try")).replace("s3://lake", f"s3://{bucket}")
    script = ""
    for block in BLOCK.finditer(page.replace("Bucket='lake'", f"Bucket='{bucket}'")):
        if block["kind"] == "python":
            script += f"cat > {block['file']} <<'END OF THE FILE'\n{block['text']}END OF THE FILE\n"
        else:
            script += block["text"]
    script = script.replace(". .venv/bin/activate\n", "")
    script = script.replace("airflow db migrate", f"cp {tmp_path}/home/airflow.db $AIRFLOW_HOME")
    script = re.sub(r"^airflow dags test .*", r"\g<0> >$AIRFLOW_HOME/log 2>&1", script, flags=re.MULTILINE)
    shown = run_script(script, tmp_path, airflow_database, TXLOG_TEST_S3=os.environ["TXLOG_TEST_S3"])
    assert re.findall(r"^ +\d .* (DELETE|WRITE) ", shown, re.MULTILINE) == ["DELETE", "WRITE"]
    assert "Traceback" not in (tmp_path / "try" / "log").read_text()


BLOCK = re.compile(
    r"(?:as `(?P<file>[^`\n]+)`:\n\n)?^```(?P<kind>python|bash|text)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE
)


@pytest.mark.airflow
@pytest.mark.timeout(1200)
@pytest.mark.long("ten real DAG runs")
def test_the_tutorial_runs_from_an_empty_folder_to_a_conflict(tmp_path: Path, airflow_database: Path) -> None:
    """Every file is saved and every command run as it stands; only the folder is another one."""
    page = (DOCS / "tutorial.md").read_text().replace("/tmp/tutorial", str(tmp_path / "tutorial"))
    script, expected = "", []
    for block in BLOCK.finditer(page):
        if block["kind"] == "text":
            expected += block["text"].splitlines()
        elif block["kind"] == "python":
            assert block["file"], "the page names the file of each block"
            script += f"cat > {block['file']} <<'END OF THE FILE'\n{block['text']}END OF THE FILE\n"
        else:
            script += block["text"].replace("airflow db migrate", "cp ../home/airflow.db airflow.db")
    shown = run_script(script, tmp_path, airflow_database, forks=True).splitlines()
    assert "Joe is still there" in shown
    assert "Joe is gone" in shown
    assert [line for line in shown if line in expected] == expected


def test_the_code_that_reads_a_table_runs(tmp_path: Path) -> None:
    run_blocks(DOCS / "read-tables.md", {"/tmp/lake": str(tmp_path)})


OPERATORS = DOCS / "operators"
MARKED = re.compile(r"^<!-- run by tests/test_pages.py -->\n```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def test_30_days_of_history_are_kept_as_the_page_shows(tmp_path: Path) -> None:
    (block,) = MARKED.findall((DOCS / "how-to.md").read_text())
    orders = Lake(tmp_path).table("orders", [{"id": 1}])
    namespace: dict[str, Any] = {}
    exec(block.replace("/tmp/lake", str(tmp_path)).replace('"):\n', '") as dag:\n', 1), namespace)
    (alteration,) = namespace["dag"].tasks
    Lake(tmp_path).run(alteration)
    properties = orders.table.snapshot().table_properties
    assert properties.log_retention_ms == properties.deleted_file_retention_ms == 30 * 24 * 3_600_000


def put_orders(folder: Path, day: int, rows: int) -> None:
    """Write a file of orders, as the DAGs of the pages read them."""
    (folder / "in").mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": range(rows)}), folder / f"in/orders-2026-01-0{day}.parquet")


def dag_of(block: str, folder: Path) -> dict[str, Any]:
    """Return the names that a page's block defines, with its DAG as `dag` and with other folders."""
    namespace: dict[str, Any] = {}
    exec(
        re.sub(r"^(with DAG\(.*\)):$", r"\1 as dag:", block, flags=re.MULTILINE).replace("/tmp", str(folder)), namespace
    )
    return namespace


def test_a_load_with_far_fewer_rows_than_the_last_one_fails_as_the_page_shows(tmp_path: Path) -> None:
    (block,) = MARKED.findall((DOCS / "checks.md").read_text())
    names, lake = dag_of(block, tmp_path), Lake(tmp_path / "lake")

    def load(day: int, rows: int) -> None:
        put_orders(tmp_path, day, rows)
        (limits,) = names["limits"].function()
        task = names["dag"].get_task("load").unmap(limits)
        lake.run(task, logical_date=dt.datetime(2026, 1, day, tzinfo=dt.UTC))

    load(1, 100)
    load(2, 81)
    with pytest.raises(errors.ExpectationFailed) as failed:
        load(3, 60)
    assert (failed.value.facts["name"], failed.value.facts["allowed"]) == ("min_inserted_rows", 64)
    assert lake.table("orders").table.to_arrow().num_rows == 181


def test_the_writers_of_versions_are_printed_as_the_page_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    block, _ = MARKED.findall((DOCS / "production.md").read_text())
    orders = Lake(tmp_path / "lake").table("orders", [{"id": 1}])
    who = {"dag_id": "shop", "task_id": "load", "run_id": "manual__1", "try_number": "2"}
    append(orders.table, [{"id": 2}], tags={f"airflow.{name}": value for name, value in who.items()})
    exec(block.replace("/tmp", str(tmp_path)), {})
    assert capsys.readouterr().out.splitlines()[-2] == "1 WRITE shop load manual__1 2"


def test_one_dag_serves_two_lakes_as_the_page_shows(tmp_path: Path) -> None:
    _, block = MARKED.findall((DOCS / "production.md").read_text())
    load = dag_of(block, tmp_path)["load"]
    for name in ("dev", "prod"):
        lake = Lake(tmp_path / name)
        lake.table("new_users", [{"user_id": len(name)}])
        users = lake.table("users", [{"user_id": 1}])
        lake.run(load, var={"value": {"lake": str(lake.folder)}})
        users.assert_rows([{"user_id": 1}, {"user_id": len(name)}])


def test_a_dry_run_shows_what_a_full_refresh_would_replace(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    bronze = lake.table("bronze", [{"id": 1}, {"id": 2}])
    arguments = {"table_uri": lake.uri("silver"), "source": operators.table(bronze.uri), "consumer": "silver"}
    lake.run(operators.DeltaIncrementalOperator(task_id="silver", **arguments))
    lake.run(operators.DeltaDeleteOperator(task_id="delete", table_uri=bronze.uri, predicate="id = 1"))
    shown = lake.run(operators.DeltaIncrementalOperator(task_id="dry", **arguments, on_gap="full", dry_run=True))
    (whole,) = shown["partitions"]
    assert (whole["rows_before"], whole["rows_removed"], whole["rows_added"]) == (2, 2, 1)
    assert lake.table("silver").version == 0


def test_a_merge_skips_unchanged_rows_as_its_page_shows(tmp_path: Path) -> None:
    _, clause = MARKED.findall((DOCS / "operators" / "merge.md").read_text())
    lake = Lake(tmp_path)
    rows = [{"id": 1, "name": "ann", "email": None}, {"id": 2, "name": None, "email": "joe@example.org"}]
    users, new = lake.table("users", rows), lake.table("new", rows)
    merge = operators.DeltaMergeOperator(
        task_id="merge",
        table_uri=users.uri,
        source=operators.table(new.uri),
        on="t.id = s.id",
        clauses=[eval(clause, vars(operators)), operators.when_not_matched_insert()],
    )
    assert lake.run(merge)["status"] == "nothing_to_do"
    new.append([{"id": 3, "name": "eve", "email": None}])
    assert lake.run(merge)["metrics"]["numOutputRows"] == 1


def test_a_merge_of_events_ignores_an_old_file_as_its_page_shows(tmp_path: Path) -> None:
    block, _ = MARKED.findall((DOCS / "operators" / "merge.md").read_text())
    code = block.replace("{{ ds }}", "a.parquet").replace('"/', f'"{tmp_path}/')
    lake = Lake(tmp_path)
    customers = lake.table("lake/customers", [{"id": number, "lsn": 5, "name": "a"} for number in (1, 2)])
    (tmp_path / "in/events").mkdir(parents=True)

    def apply(*events: tuple[int, int, str, str]) -> str:
        rows = [dict(zip(("id", "lsn", "name", "op"), event, strict=True)) for event in events]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in/events/a.parquet")
        return str(lake.run(eval(code, vars(operators)))["status"])

    newer = [(1, 6, "b", "u"), (1, 7, "c", "u"), (2, 6, "", "d"), (3, 6, "d", "u")]
    assert apply(*newer) == "committed"
    assert sorted((row["id"], row["name"]) for row in customers.rows) == [(1, "c"), (3, "d")]
    assert apply((1, 6, "b", "u"), (3, 6, "d", "u")) == "nothing_to_do"


def test_changes_are_applied_to_the_table_that_the_page_creates(tmp_path: Path) -> None:
    (block,) = MARKED.findall((DOCS / "apply-changes.md").read_text())
    exec(block.replace("/tmp/lake", str(tmp_path)), {})
    pq.write_table(pa.table({"id": [1], "changed_at": [1], "city": ["Oslo"], "op": ["c"]}), tmp_path / "events.parquet")
    apply = operators.DeltaApplyChangesOperator(
        task_id="apply",
        table_uri=f"{tmp_path}/customers",
        source=operators.files(f"{tmp_path}/events.parquet"),
        keys=["id"],
        sequence_by="changed_at",
        apply_as_deletes="op = 'd'",
        except_column_list=["op"],
    )
    assert Lake(tmp_path).run(apply)["metrics"]["numTargetRowsInserted"] == 1


def test_each_metric_that_an_operator_logs_is_explained() -> None:
    explained = (DOCS / "operators" / "shared.md").read_text().split("### Metrics")[1].split("\n## ")[0]
    logged = [re.findall(r"^metrics: (.*)$", page.read_text(), re.MULTILINE) for page in OPERATORS.glob("*.md")]
    names = {each.split()[0] for lines in logged for line in lines for each in line.split(", ")}
    assert {name for name in names if f"`{name}`" not in explained} == set()


HERE = re.compile(r"^<!-- here -->\n```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", sorted(DOCS.glob("from-*.md")), ids=lambda page: page.stem)
def test_the_code_for_people_from_another_tool_runs_or_parses(page: Path, tmp_path: Path) -> None:
    """Ours runs, so the arguments exist and their literals are valid; the other tool's Python parses."""
    text = page.read_text()
    (ours,) = HERE.findall(text)
    exec(compile(ours.replace("/tmp/lake", str(tmp_path)), page.name, "exec"), {})
    for block in PYTHON.findall(text):
        ast.parse(block)
    for row in re.findall(r"^\|.*\|$", text, re.MULTILINE):
        for name in re.findall(r"\b((?:Delta|Vacuum)\w*Operator)\b", row):
            assert hasattr(operators, name), row


def test_the_history_of_the_page_is_that_of_its_events(tmp_path: Path) -> None:
    text = (DOCS / "scd2.md").read_text()
    namespace: dict[str, Any] = {}
    events = pa.table({"id": [1, 1], "city": ["Oslo", "Bergen"], "changed_at": [10, 20]})
    pq.write_table(events, tmp_path / "events.parquet")
    for block in PYTHON.findall(text):
        exec(compile(block.replace("/tmp/lake", str(tmp_path)), "scd2.md", "exec"), namespace)
    Lake(tmp_path).run(namespace["apply"])
    rows = [
        f"| {row['id']} | {row['city']} | {row['__START_AT']} | {row['__END_AT'] or 'NULL'} |"
        for row in Lake(tmp_path).table("customers").rows
    ]
    assert sorted(rows) == sorted(re.findall(r"^\| 1 \|.*\|$", text, re.MULTILINE))
