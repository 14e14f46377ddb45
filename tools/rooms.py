"""How the package is cut: its widest folder, its longest chain of imports, and the modules behind a MERGE.

`python -m tools.rooms` measures this checkout, `python -m tools.rooms PATH` another one. Everything is read from the
source text, imports inside functions included; what stands under `if TYPE_CHECKING:` never runs and does not count.
"""

from __future__ import annotations

import ast
import contextlib
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = "airflow_txlog"


def modules(root: Path) -> dict[str, Path]:
    """Every module of the package by dotted name; a package by the name of its folder."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def syntax_of(path: Path) -> ast.Module:
    """What a module says, parsed."""
    for _ in range(9):
        # CPython 3.11 counts depth for all threads together, and gives up where two parse at a time.
        with contextlib.suppress(SystemError):
            return ast.parse(path.read_text(), str(path))
    return ast.parse(path.read_text(), str(path))


def imports_of(name: str, known: Mapping[str, Path]) -> frozenset[str]:
    """Dotted names that a module imports, anywhere in it; a name of ours is resolved to the module that holds it."""
    path = known[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in running_nodes(syntax_of(path)):
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


def running_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below that can run: all but the bodies under `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for other in child.orelse:
                yield from running_nodes(other)
            continue
        yield child
        yield from running_nodes(child)


def longest_chain(graph: Mapping[str, frozenset[str]]) -> list[str]:
    """The longest way along imports, from the importer down; there must be no cycle."""
    found: dict[str, list[str]] = {}

    def chain(name: str) -> list[str]:
        if name not in found:
            found[name] = [name, *max((chain(other) for other in sorted(graph[name])), key=len, default=[])]
        return found[name]

    return max((chain(name) for name in sorted(graph)), key=len)


def reached_from(name: str, graph: Mapping[str, frozenset[str]]) -> set[str]:
    """The module and all that it imports, directly or through others."""
    found, pending = {name}, [name]
    while pending:
        more = graph[pending.pop()] - found
        found |= more
        pending += more
    return found


def main(root: Path) -> None:
    known = modules(root)
    graph = {name: imports_of(name, known) & known.keys() - {name} for name in known}
    held = Counter(path.parent for path in known.values() if path.name != "__init__.py")
    folder, width = held.most_common(1)[0]
    chain = longest_chain(graph)
    (job,) = (name for name, path in known.items() if re.search(r"^def merge\(context\b", path.read_text(), re.M))
    reached = reached_from(job, graph)
    ours = [name for name in reached if name.startswith(f"{PACKAGE}.jobs.") and known[name].name != "__init__.py"]
    print(f"modules: {sum(held.values())} in {len(held)} folders")
    print(f"widest folder: {folder.relative_to(root)}, {width} modules")
    print(f"longest chain of imports: {len(chain)} modules, from {chain[0]} to {chain[-1]}")
    print(f"a MERGE ({job}) stands on {len(reached)} modules, {len(ours)} of them in jobs/")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve())
