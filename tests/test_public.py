"""The list of public names in docs/support.md is true: each is there, and the pages and examples show no other. So are
the places that CONTRIBUTING.md names.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from airflow_txlog import errors, operators
from airflow_txlog.cli.definition import get_cli_commands
from tests.helpers.paths import ROOT

ROW = re.compile(r"^\| `(airflow_txlog[\w.]*)` \| (.+) \|$", re.MULTILINE)
IMPORT = re.compile(r"^ *from (airflow_txlog[\w.]*) import (?:\(([^)]*)\)|(.+))$", re.MULTILINE)
# The demo reports to its own front end.
NOT_SHOWN = {ROOT / "example_dags" / "demo_flights.py": {("airflow_txlog.operators.progress", "report")}}


@cache
def public() -> dict[str, frozenset[str]]:
    """Return the public names of each module that the page lists."""
    listed = {
        module: frozenset(re.findall(r"`(\w+)`", text))
        for module, text in ROW.findall((ROOT / "docs" / "support.md").read_text())
    }
    classes = {name for name, each in vars(errors).items() if inspect.isclass(each) and issubclass(each, Exception)}
    return listed | {
        operators.__name__: listed[operators.__name__] | frozenset(operators.__all__),
        errors.__name__: frozenset(classes),
    }


def shown(path: Path) -> set[tuple[str, str]]:
    """Return the names that a page or an example imports from the package, each with its module."""
    return {
        (module, name.split(" as ")[0].strip())
        for module, in_brackets, in_line in IMPORT.findall(path.read_text())
        for name in (in_brackets or in_line.partition("#")[0]).split(",")
        if name.strip()
    }


def test_each_public_name_is_in_its_module() -> None:
    assert len(public()) > 15
    missing = [
        f"{module}.{name}"
        for module, names in public().items()
        for name in names
        if not hasattr(importlib.import_module(module), name)
    ]
    assert missing == []


def test_the_pages_and_the_examples_import_only_public_names() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/*/*.md"), *ROOT.glob("example_dags/*.py")]
    found = {path: shown(path) - NOT_SHOWN.get(path, set()) for path in pages}
    assert sum(map(len, found.values())) > 40
    others = {
        f"{path.relative_to(ROOT)}: {module}.{name}"
        for path, names in found.items()
        for module, name in names
        if name not in public().get(module, ())
    }
    assert others == set()


def test_every_operator_sensor_trigger_and_hook_of_the_provider_is_public() -> None:
    text = (ROOT / ".airflow-registry.yaml").read_text()
    registered = {path.rpartition(".")[2] for path in re.findall(r"module: (airflow_txlog\S+)", text)}
    assert registered <= {name for names in public().values() for name in names}


def test_the_reference_describes_only_public_names() -> None:
    objects = {
        id(getattr(importlib.import_module(module), name)) for module, names in public().items() for name in names
    }
    others = []
    for page in sorted((ROOT / "docs" / "reference").glob("*.md")):
        for path in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.MULTILINE):
            found = found_at(path)
            # A page of a module shows the members that the operators' module exports.
            if not inspect.ismodule(found) and id(found) not in objects:
                others.append(path)
    assert others == []


def found_at(path: str) -> Any:
    """Return the module of this dotted path, or the member of one."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/conformance.md"])
def test_every_place_and_command_that_a_page_for_contributors_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text()
    named = re.findall(r"(?<![\w/(])(?:airflow_txlog|tests|tools|docs)/[\w./-]*\w", text)
    assert len(named) > 15
    assert [name for name in named if not (ROOT / name).exists()] == []
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`(?:[A-Z_]+=\S+ )?make ([a-z-]+)", text)) <= set(targets)
    modules = re.findall(r"python -m (tests[\w.]*)", text)
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []


def test_the_readme_names_every_command_of_the_command_line() -> None:
    (group,) = get_cli_commands()
    text = (ROOT / "README.md").read_text()
    named = set(re.findall(r"`(\w+)`", text)) | set(re.findall(r"`airflow txlog (\w+)", text))
    assert {each.name for each in group.subcommands} - named == set()
