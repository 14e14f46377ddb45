"""The shape of the package: who may import whom, how large a thing may grow, and names that never occur in it.

The edges are those of docs/architecture.md: code that decides imports neither Airflow nor Spark, and code that runs on
an executor imports only pyarrow. Inside a part, `ROOMS` states the order. The tests read the source text, with the
imports inside functions. Only imports under `if TYPE_CHECKING:` do not count, because they never run.
"""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from airflow_txlog.contract.operations import OPERATIONS
from tests.helpers.paths import ROOT
from tools import rooms

MAX_FUNCTION_LINES = 60
MAX_MODULE_LINES = 450

# What each part may import of ours, and of others beside the standard library. The longest matching name decides.
AIRFLOW_SIDE = ("operators", "sensors", "triggers", "hooks", "policies", "links", "lineage", "runners")
BASE = ("clock", "errors", "locations")
OURS: dict[str, tuple[str, ...]] = {
    "": (),
    **dict.fromkeys(BASE, ()),
    "errors": ("errors",),
    # What a SQL text says by itself.
    "sql": ("errors", "sql"),
    "contract": ("errors", "locations", "sql", "contract"),
    "storage": ("", *BASE, "storage"),
    "datafiles": (*BASE, "sql", "storage", "datafiles"),
    "engine": ("", *BASE, "process", "sql", "storage", "datafiles", "engine"),
    # Whether a task's work is in its table already, and what it saved: asked on both sides of the process boundary.
    "exactly_once": (*BASE, "contract", "storage", "datafiles", "engine", "exactly_once"),
    "process": ("clock", "errors", "process"),
    # Names of tables: from a name to a place, and from a table to what its catalog is told.
    "catalogs": ("", *BASE, "storage", "engine", "catalogs"),
    "jobs": (
        "",
        *BASE,
        "contract",
        "exactly_once",
        "process",
        "sql",
        "storage",
        "datafiles",
        "engine",
        "jobs",
    ),
    **dict.fromkeys(
        AIRFLOW_SIDE,
        (
            "",
            *BASE,
            "contract",
            "exactly_once",
            "process",
            "sql",
            "storage",
            "engine",
            "catalogs",
            *AIRFLOW_SIDE,
        ),
    ),
    # A door into Airflow's command line: everything behind it is the hook's and the engine's.
    "cli": ("clock", "errors", "locations", "contract", "process", "engine", "catalogs", "hooks", "cli"),
    # Pages that read logs and change nothing. Its modules for Airflow are the only ones of it that import `hooks`.
    "window": (*BASE, "contract", "storage", "engine", "hooks", "window"),
    "get_provider_info": (),
    # What the tests of DAG authors use: it opens tables, and runs operators that it is given.
    "testing": ("locations", "storage", "engine", "hooks"),
}
# What the extras for object stores install: imported where such a store is opened.
CLIENTS = ("botocore", "urllib3", "google", "azure", "requests")
CLIENT_MODULES = tuple(f"airflow_txlog.storage.{name}" for name in ("s3", "gcs", "azure"))
OTHERS: dict[str, tuple[str, ...]] = {
    "": (),
    **dict.fromkeys(BASE, ()),
    "sql": ("pyarrow",),
    "contract": ("msgspec",),
    "exactly_once": (),
    "storage": ("pyarrow", "fsspec", *CLIENTS),
    "process": ("pyarrow",),
    # Signatures of Amazon.
    "catalogs": ("botocore", "urllib3"),
    "datafiles": ("pyarrow",),
    "engine": ("pyarrow", "msgspec"),
    "jobs": ("pyarrow", "msgspec", "pyspark", "py4j"),
    **dict.fromkeys(AIRFLOW_SIDE, ("airflow",)),
    "operators": ("airflow", "jinja2"),
    # Imported when the listener of Airflow's provider for OpenLineage asks, and so is there.
    "lineage": ("airflow", "openlineage", "sqlglot"),
    # Tokens of an identity, by the packages that the cloud's own client brings.
    # YARN's HTTP interface, by the package that Airflow's Spark provider brings.
    # The signature of an erasure report, by the package with which Airflow encrypts its connections.
    "hooks": ("airflow", "google", "azure", "requests", "cryptography"),
    # By which Airflow itself has blocking calls made outside of the triggerer's event loop.
    "triggers": ("airflow", "asgiref"),
    "cli": ("airflow", "rich"),
    "testing": ("airflow", "pyarrow", "pytest"),
    # Airflow's API server has them all.
    "window": ("airflow", "jinja2", "markupsafe", "msgspec", "pyarrow", "sqlalchemy", "starlette", "uvicorn"),
    "get_provider_info": (),
}
# The in-process runner is the one place on the Airflow side that starts a job without naming it by string; a worker
# imports that runner only where it is asked for.
# What both sides of a job's process may show of an exception is one list, which travels to executors too.
EXTRA_EDGES = {("runners", "jobs"), ("runners", "datafiles")}

# The rooms of each folder, from the top down. A room imports what stands below it, never what stands above it. Of the
# rooms in one line, those parted by "|" do not import one another either. "*" is every module that has no line.
ROOMS: dict[str, tuple[str, ...]] = {
    "datafiles": ("tasks", "parquet", "deletion_vectors", "*"),
    "engine": (
        "table_api",
        "erasure",
        "upkeep | alteration",
        "staged_changes",
        "delta_table",
        "checkpointing",
        "commit",
        "table",
        "log",
        "many_files",
    ),
    "engine.commit": ("transaction", "loop | creation", "course", "conflicts | writers", "content | handed"),
    "engine.log": ("checkpoints", "*"),
    "engine.table": ("changes", "snapshot", "predicate", "columns", "schema"),
    "contract": ("wording", "job", "restrictions", "operations", "parameters", "erasure"),
    "exactly_once": ("exchange", "transactions"),
    "jobs": (
        "submitted_main | cluster_main | server_main | archive_main",
        "__main__",
        "run",
        "planner",
        "mistakes",
        "operations",
        "rows",
        "resume",
        "executor",
        "source",
        "files",
        "sql",
        "context",
        "spark",
    ),
    "operators": ("*", "arguments"),
    "window": (
        "plugin | __main__",
        "airflow_site",
        "app | guard | known_tables",
        "answers | markup | site",
        "charts",
        "facts",
    ),
    "operators.arguments": ("rendering | texts", "given | construction", "unknown"),
    # An UPDATE is a merge's clause on the rows that a DELETE finds, and a DELETE by keys a merge's join.
    # An UPSERT is a whole merge, and so is an overwrite with `replace_using`.
    # What processes changes lets a write, an upsert or a merge do the work.
    "jobs.operations": (
        "changes",
        "update | upsert | write | upkeep | erase",
        "delete",
        "alter | audit | merge | optimize | publish | restore | rollback | truncate | convert | clone | maintenance"
        " | verify_erasure",
    ),
}
MAX_MODULES_IN_A_FOLDER = 20

# A module's name says what it holds, together with the names of its folders. Two modules share one where each is the
# same thing for another folder; another pair wants another name, or a line here that says why.
SHARED_NAMES = {
    "__main__": "what is run by `python -m`",
    "connect": "Spark Connect, on both sides of a job's process",
    "base": "what all operators, records, stores or runners have in common",
    "job": "its description and its result; and of the operation whose folder it is in",
    "progress": "of a job: shown by its process, and read by its operator",
    "erasure": "its traces, its report, its operators, and its command",
    "errors": "the provider's errors, and Spark's",
    "maintenance": "checkpoints and vacuums, as jobs and as operators",
    "memory": "a store in memory; a job's memory of its work",
    "local spark": "what does a job's work; a store, and what drives Spark",
    "schema snapshot": "the subject of the folder, and its first module",
    "deletion_vectors": "their format; what a commit says of them; how a job makes them",
    "columns statistics": "the values in the log, and what a file's or a job's own are",
    "reading writing rows schema": "of checkpoints and of Parquet files; of the table; of a job's description",
    "operations": "the records of all, and the folder of their jobs",
    "changes": "of a table between two versions; and those that a source brings to one, as records and as operations",
    "files scan": "of a snapshot, and Spark's reading of them",
    "frames": "of a source, and of data files",
    "names": "of the log's files; of a predicate's columns",
    "footers": "of Parquet files, and their columns to Spark",
    "table_version": "waiting for one: the sensor, and its trigger",
    "unity": "a catalog, and the hook of its connections",
    "sql": "what a text says by itself, and what Spark says of it",
    "staging": "of changed rows, and of the rows that OPTIMIZE moves",
}


@cache
def modules() -> dict[str, Path]:
    return rooms.modules(ROOT)


@cache
def imports_of(name: str) -> frozenset[str]:
    return rooms.imports_of(name, modules())


def part_of(name: str) -> str:
    """Return the part of the package that a module belongs to: `engine`, `errors`, "" for the package itself."""
    return name.split(".")[1] if "." in name else ""


def test_every_module_imports_only_what_its_part_may() -> None:
    wrong = []
    for name in sorted(modules()):
        part = part_of(name)
        assert part in OURS, f"{name} belongs to no part that has its edges here: say what it may import"
        for imported in imports_of(name):
            top = imported.split(".")[0]
            if top == "airflow_txlog":
                target = part_of(imported)
                if target not in OURS[part] and (part, target) not in EXTRA_EDGES:
                    wrong.append(f"{name} must not import {imported}")
            elif top not in sys.stdlib_module_names and top not in OTHERS[part]:
                wrong.append(f"{name} must not import {imported}")
    assert wrong == []


# Who touches a file of the machine beside `storage`, and which: none is a table's.
FILE_CALLS = {
    "cli.printing": "the output of the command",
    "contract.job": "job documents: a spec and a result",
    "datafiles.moved_rows": "the counts of tasks, for the log of their driver",
    "engine.commit.writers": "the turns of the writers of this machine",
    "jobs.__main__": "the process's own output",
    "jobs.archive_main": "the archive of Spark's classes",
    "jobs.spark.class_archive": "the archive of Spark's classes",
    "jobs.spark.launch": "the store of keys that has none; the open files of this process",
    "jobs.submitted_main": "the open files of its parent",
    "jobs.spark.shipping": "the zip of our own sources",
    "operators.progress": "the log of a task",
    "process.private_folder": "the folder of this process",
    "process.starting": "the starts of Spark on this machine",
    "runners.warm.folders": "the folders of warm servers",
    "runners.warm.keeper": "the folders of warm servers",
    "runners.warm.server": "the folders of warm servers",
}
_OF_FILES = re.compile(
    r"(?:os|io|shutil|tempfile|fsspec)\.(?:path\.)?(?:open|l?stat|listdir|scandir|walk|mkdir|makedirs|link|unlink|remove|"
    r"rmdir|rename|replace|utime|symlink|readlink|truncate|chmod|chown|realpath|exists|is(?:file|dir|link)|get\w+time|"
    r"getsize|fdopen|mkstemp|copy\w*|rmtree|move)"
)


def file_calls(name: str) -> set[str]:
    """The calls of a module that open, make, delete or look up a file by its path."""
    found = set()
    for node in ast.walk(rooms.syntax_of(modules()[name])):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called == "open" or _OF_FILES.fullmatch(called):
                found.add(called)
    return found


def test_only_the_stores_touch_a_file_of_a_table() -> None:
    inside = {name.removeprefix("airflow_txlog.") for name in modules() if file_calls(name)}
    assert {name for name in inside if not name.startswith("storage.")} == set(FILE_CALLS)


def room_of(name: str, folder: str) -> str:
    """The room of `folder` that a module lies in; the folder itself is no room of it."""
    return name.removeprefix(f"airflow_txlog.{folder}.").split(".")[0]


def level_of(room: str, lines: tuple[str, ...]) -> int | None:
    """The line of a room, counted from the top; None for one that has none."""
    found = [level for level, line in enumerate(lines) if room in line.split(" | ")]
    return found[0] if found else next((level for level, line in enumerate(lines) if line == "*"), None)


@pytest.mark.parametrize("folder", ROOMS)
def test_no_room_imports_one_above_or_beside_it(folder: str) -> None:
    lines, whole = ROOMS[folder], f"airflow_txlog.{folder}"
    inside = sorted(name for name in modules() if name.startswith(f"{whole}."))
    rooms = {room for line in lines for room in line.split(" | ")} - {"*"}
    assert not rooms - {room_of(name, folder) for name in inside}, "rooms that are gone"
    wrong = []
    for name in inside:
        room = room_of(name, folder)
        level = level_of(room, lines)
        assert level is not None, f"{name} is in no room of {folder}: say where it stands"
        wrong += [f"{name} imports the face of its own folder"] * (whole in imports_of(name))
        for other in sorted(imports_of(name)):
            below = room_of(other, folder)
            if not other.startswith(f"{whole}.") or below == room:
                continue
            at = level_of(below, lines)
            if at is not None and (at < level or (at == level and " | " in lines[level])):
                wrong.append(f"{name} imports {other}, which is above or beside it")
    assert wrong == []


def test_a_folder_of_many_modules_has_rooms() -> None:
    held = Counter(path.parent for path in modules().values() if path.name != "__init__.py")
    assert not {str(folder.relative_to(ROOT)): n for folder, n in held.items() if n > MAX_MODULES_IN_A_FOLDER}


def test_no_two_modules_share_a_name_by_accident() -> None:
    held = Counter(name.rpartition(".")[2] for name in modules())
    shared = {name for name, count in held.items() if count > 1}
    allowed = set(" ".join(SHARED_NAMES).split())
    shared -= OPERATIONS.keys()  # one operation, on both sides of its process
    assert not shared - allowed, "another name, or a line in SHARED_NAMES that says why"
    assert not allowed - shared, "no longer shared"


def test_no_two_public_classes_share_a_name() -> None:
    found: dict[str, list[str]] = {}
    for name, path in modules().items():
        for node in rooms.statements_of(rooms.syntax_of(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(name)
    assert not {name: where for name, where in found.items() if len(where) > 1}


def test_no_import_goes_round_in_a_circle() -> None:
    graph = {name: sorted(imports_of(name) & modules().keys() - {name}) for name in modules()}
    done: set[str] = set()

    def visit(name: str, way: list[str]) -> None:
        if name in way:
            pytest.fail("imports go round: " + " -> ".join([*way[way.index(name) :], name]))
        if name not in done:
            for target in graph[name]:
                visit(target, [*way, name])
            done.add(name)

    for name in graph:
        visit(name, [])


# --- docs/architecture.md -----------------------------------------------------------------------------------------

# What the drawing shows as one node.
DRAWN_AS = dict.fromkeys(BASE, "errors, clock, locations")
# Operations and the modules of engine/log are too many to draw.
NOT_DRAWN = {"jobs.operations", "engine.log", "operators", "operators.arguments"}


def drawing(number: int) -> tuple[dict[str, str], set[tuple[str, str]], set[tuple[str, str]]]:
    """A drawing's nodes (id to dotted name), and its solid and its dotted arrows, between dotted names."""
    text = re.findall(r"```mermaid\n(.*?)```", (ROOT / "docs/architecture.md").read_text(), re.DOTALL)[number]
    nodes = {}
    for name, label in re.findall(r"(\w+)\[\"([^\"]+)\"\]", text):
        first = label.split("<br/>")[0]
        nodes[name] = first.split(":")[0].replace("/", ".")
    bare = re.sub(r"\[\"[^\"]+\"\]|\|\"[^\"]+\"\|", "", text)
    arrows = re.findall(r"^ *(\w+) +(-->|-\.->) *(\w+)$", bare, re.MULTILINE)
    assert len(arrows) == bare.count("->"), "an arrow that this test cannot read: one arrow a line"
    solid = {(nodes[start], nodes[end]) for start, kind, end in arrows if kind == "-->"}
    return nodes, solid, {(nodes[start], nodes[end]) for start, kind, end in arrows if kind != "-->"}


def needed_arrows(edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The edges without those that a longer way along other edges shows already."""

    def reached(start: str, without: tuple[str, str]) -> set[str]:
        found: set[str] = set()
        pending = [start]
        while pending:
            here = pending.pop()
            more = {end for begin, end in edges - {without} if begin == here} - found
            found |= more
            pending += more
        return found

    return {edge for edge in edges if edge[1] not in reached(edge[0], edge)}


def test_the_drawing_of_the_rooms_is_the_order_that_holds() -> None:
    parts = {
        (DRAWN_AS.get(part_of(name), part_of(name)), DRAWN_AS.get(part_of(other), part_of(other)))
        for name in modules()
        for other in imports_of(name)
        if other.startswith("airflow_txlog.") and part_of(name)
    }
    expected = needed_arrows({(one, other) for one, other in parts if one != other})
    for folder, lines in ROOMS.items():
        below = [[f"{folder}.{room}" for room in line.split(" | ")] for line in lines if line != "*"]
        if folder not in NOT_DRAWN:
            expected |= {(one, other) for upper, lower in itertools.pairwise(below) for one in upper for other in lower}
    _, drawn, _ = drawing(0)
    assert drawn == expected


def test_the_drawing_of_a_merge_shows_imports() -> None:
    nodes, solid, dotted = drawing(1)
    names = {f"airflow_txlog.{name}" for name in nodes.values()}
    assert names <= modules().keys(), names - modules().keys()
    wrong = []
    for one, other in sorted(solid):
        inside = {name for name in modules() if f"{name}.".startswith(f"airflow_txlog.{one}.")}
        imported = {f"{found}." for name in inside for found in imports_of(name)}
        if not any(found.startswith(f"airflow_txlog.{other}.") for found in imported):
            wrong.append(f"{one} does not import {other}")
    assert wrong == []
    arrows = solid | dotted
    assert {end for _, end in arrows} == set(nodes.values()) - {"operators.merge"}, (
        "every step but the first is reached"
    )


def loaded_after(statement: str) -> set[str]:
    """Top-level names in `sys.modules` of a fresh interpreter that ran one statement in the repository's folder."""
    code = f"import sys\n{statement}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_engine_loads_neither_airflow_nor_spark_and_nothing_heavy_that_few_tasks_need() -> None:
    """pyarrow imports pandas for the first array that is made of Python values."""
    loaded = loaded_after("import airflow_txlog.engine")
    assert not loaded & {"airflow", "pyspark", "py4j", "pandas"}


def test_what_travels_to_an_executor_loads_pyarrow_and_fsspec_alone() -> None:
    names = sorted(name for name in modules() if name.startswith(("airflow_txlog.datafiles", "airflow_txlog.storage")))
    statements = "\n".join(f"import {name}" for name in names if name not in CLIENT_MODULES)
    loaded = loaded_after(statements)
    ours_and_known = {"airflow_txlog", "pyarrow", "fsspec"}
    # What pyarrow itself brings, on this machine, is none of our business.
    brought = loaded_after("import pyarrow, pyarrow.parquet, pyarrow.compute, pyarrow.dataset, fsspec")
    unknown = {name for name in loaded - brought - ours_and_known if name not in sys.stdlib_module_names}
    assert not {name for name in unknown if not name.startswith("_")}


def test_the_default_runner_loads_nothing_that_reads_tables() -> None:
    """A task whose job is in a child process, and changes no rows, needs none of it."""
    loaded = loaded_after("import airflow_txlog.runners.child_process")
    assert not loaded & {"pyarrow", "fsspec", "pyspark", "sqlglot"}


def test_what_airflow_reads_first_imports_nothing() -> None:
    loaded = loaded_after("import airflow_txlog.get_provider_info as m; m.get_provider_info()")
    assert not loaded & {"airflow", "pyspark", "pyarrow", "msgspec", "sqlglot", "fsspec"}


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement to the last, the docstring left out."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_no_function_is_longer_than_a_screen() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {body_lines(node)} lines"
        for path in modules().values()
        for node in rooms.statements_of(rooms.syntax_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and body_lines(node) > MAX_FUNCTION_LINES
    ]
    assert not long, long


def test_no_module_holds_more_than_one_subject() -> None:
    sizes = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in modules().values()}
    assert not {str(path): lines for path, lines in sizes.items() if lines > MAX_MODULE_LINES}


def test_every_module_says_what_it_holds() -> None:
    silent = [name for name, path in modules().items() if not ast.get_docstring(rooms.syntax_of(path))]
    assert not silent, silent


# --- what the repository never names --------------------------------------------------------------------------------


def repository_files() -> list[Path]:
    """Return the text files of the repository: those that git tracks, or without git all that are not generated."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        generated = {".venv", "build", "dist", ".git", "__pycache__"}
        paths = [path for path in ROOT.rglob("*") if not generated & set(path.relative_to(ROOT).parts)]
    return [path for path in paths if path.is_file() and path.suffix not in (".parquet", ".png", ".crc")]


def test_no_file_names_a_package_registry_or_a_home_directory() -> None:
    # Put together from halves, so that this file does not name them either.
    hosts = "|".join(["py" + "pi", "np" + "mjs", "ma" + "ven", "deb" + "ian", "crates" + r"\.io"])
    options = "|".join(["index" + "-url", "find" + "-links", "trusted" + "-host"])
    homes = [str(ROOT) + "/"] + ([f"{Path.home()}/"] if Path.home() != Path("/") else [])
    pattern = re.compile(
        rf"://[^ )\"'`]*(?:{hosts})|--?(?:extra-)?(?:{options})|(?<![\w.])/(?:home|Users)/\w+/|"
        + "|".join(rf"(?<![\w.]){re.escape(home)}" for home in homes)
    )
    found = []
    for path in repository_files():
        text = path.read_bytes().decode("utf-8", errors="ignore")
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not found, found
