"""How the package is cut: its widest folder, its longest chain of imports, the modules behind a MERGE, its lines, and
how often it asks or does the same thing.

`python -m tools.rooms` measures this checkout, `python -m tools.rooms PATH` another one. Everything is read from the
source text, imports inside functions included; what stands under `if TYPE_CHECKING:` never runs and does not count.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

PACKAGE = "airflow_txlog"


def modules(root: Path) -> dict[str, Path]:
    """Return every module of the package by dotted name; a package by the name of its folder."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def syntax_of(path: Path) -> ast.Module:
    """Return the syntax tree of a module."""
    for _ in range(9):
        # CPython 3.11 counts depth for all threads together, and gives up where two parse at a time.
        with contextlib.suppress(SystemError):
            return ast.parse(path.read_text(), str(path))
    return ast.parse(path.read_text(), str(path))


def imports_of(name: str, known: Mapping[str, Path]) -> frozenset[str]:
    """Return the dotted names that a module imports anywhere. A name of ours becomes the module that holds it."""
    path = known[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in statements_of(syntax_of(path), that_run=True):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.add(full if full in known else base)
    return frozenset(found)


def statements_of(node: ast.AST, *, that_run: bool = False) -> Iterator[ast.stmt]:
    """Yield every statement below, without looking into expressions.

    With `that_run`, the bodies under `if TYPE_CHECKING:` are left out.
    """
    for field in ("body", "handlers", "cases", "orelse", "finalbody"):
        for child in getattr(node, field, ()):
            if that_run and isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
                yield from statements_of(ast.Module(child.orelse, []), that_run=True)
                continue
            if isinstance(child, ast.stmt):
                yield child
            yield from statements_of(child, that_run=that_run)


def longest_chain(graph: Mapping[str, frozenset[str]]) -> list[str]:
    """Return the longest way along imports, from the importer down; there must be no cycle."""
    found: dict[str, list[str]] = {}

    def chain(name: str) -> list[str]:
        if name not in found:
            found[name] = [name, *max((chain(other) for other in sorted(graph[name])), key=len, default=[])]
        return found[name]

    return max((chain(name) for name in sorted(graph)), key=len)


def reached_from(name: str, graph: Mapping[str, frozenset[str]]) -> set[str]:
    """Return the module and all that it imports, directly or through others."""
    found, pending = {name}, [name]
    while pending:
        more = graph[pending.pop()] - found
        found |= more
        pending += more
    return found


_ASKS_FOR_SPARK = re.compile(
    r"\b(session|spark) is (not )?None|\.ask_spark\(|(raise|except) NeedsSpark|\.check_small\(|\.reads_here\("
)
_CUTS_SQL = re.compile(r"(?<!def )\blex\(")
_KNOWS_WIDTHS = re.compile(r"Primitive\.BYTE: 8\b|1 << arrow\.bit_width")
_PATCHES_CONSTANT = re.compile(r"\bsetattr\([\w.]+, \"_?[A-Z][A-Z0-9_]+\",")


def sites(pattern: re.Pattern[str], paths: Iterable[Path]) -> Counter[Path]:
    """Count the lines of each module that match."""
    found = {path: sum(bool(pattern.search(line)) for line in path.read_text().splitlines()) for path in paths}
    return Counter({path: number for path, number in found.items() if number})


def imports_inside_functions(known: Mapping[str, Path]) -> set[tuple[str, str]]:
    """Return the pairs of a module and another of the package that a function of it imports."""
    found = set()
    for name, path in known.items():
        inside = (
            node
            for function in statements_of(syntax_of(path), that_run=True)
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
            for node in statements_of(function, that_run=True)
        )
        for node in inside:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    found.add((name, full if full in known else str(node.module)))
    return found


def task_classes(root: Path) -> list[str]:
    """Return the classes of `datafiles/tasks` that are named as work that runs in tasks."""
    paths = (root / PACKAGE / "datafiles" / "tasks").glob("*.py")
    return [
        node.name
        for path in sorted(paths)
        for node in statements_of(syntax_of(path))
        if isinstance(node, ast.ClassDef) and re.search("Task$|Rows$|Keys$|Table$", node.name)
    ]


def lines_of(folder: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in folder.rglob("*.py"))


def main(root: Path) -> None:
    known = modules(root)
    graph = {name: imports_of(name, known) & known.keys() - {name} for name in known}
    held = Counter(path.parent for path in known.values() if path.name != "__init__.py")
    folder, width = held.most_common(1)[0]
    chain = longest_chain(graph)
    (job,) = (name for name, path in known.items() if re.search(r"^def merge\(context\b", path.read_text(), re.M))
    (truncate,) = (n for n, path in known.items() if re.search(r"^def truncate\(context\b", path.read_text(), re.M))
    reached = reached_from(job, graph)
    ours = [name for name in reached if name.startswith(f"{PACKAGE}.jobs.") and known[name].name != "__init__.py"]
    print(f"modules: {sum(held.values())} in {len(held)} folders")
    print(f"widest folder: {folder.relative_to(root)}, {width} modules")
    print(f"longest chain of imports: {len(chain)} modules, from {chain[0]} to {chain[-1]}")
    print(f"a MERGE ({job}) stands on {len(reached)} modules, {len(ours)} of them in jobs/")
    print(f"a TRUNCATE ({truncate}) stands on {len(reached_from(truncate, graph))} modules")
    asked = sites(_ASKS_FOR_SPARK, (root / PACKAGE / "jobs").rglob("*.py"))
    print(f"jobs ask for Spark in {asked.total()} places of {len(asked)} modules")
    paths = list(known.values())
    print(f"SQL texts are cut in {sites(_CUTS_SQL, paths).total()} places")
    print(f"the widths of integers are defined in {len(sites(_KNOWS_WIDTHS, paths))} modules")
    print(f"imports inside functions: {len(imports_inside_functions(known))} pairs of modules")
    print(f"classes of tasks: {len(task_classes(root))}")
    print(f"tests patch constants in {sites(_PATCHES_CONSTANT, (root / 'tests').rglob('*.py')).total()} places")
    print(f"lines: {lines_of(root / PACKAGE)} of the product, {lines_of(root / 'tests')} of tests")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve())
