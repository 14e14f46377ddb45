"""What Airflow registers: valid by Airflow's own schema, and every name in it can be imported."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_txlog.get_provider_info import get_provider_info
from tools import registry

pytestmark = pytest.mark.airflow

DOTTED_KEYS = {"hook-class-name", "python-modules", "extra-links"}


def dotted_paths(value: Any, key: str = "") -> Iterator[str]:
    """Every dotted path of the description, at any depth."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from dotted_paths(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from dotted_paths(item, key)
    elif key in DOTTED_KEYS:
        yield value


def imported(path: str) -> object:
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)


def test_the_description_is_valid_by_airflows_schema() -> None:
    import airflow
    import jsonschema

    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


@pytest.mark.parametrize("path", sorted(set(dotted_paths(get_provider_info()))))
def test_every_dotted_path_imports(path: str) -> None:
    assert imported(path)


def test_every_module_of_operators_is_listed() -> None:
    import airflow_txlog

    listed = set(dotted_paths(get_provider_info()))
    root = Path(airflow_txlog.__file__).parent
    bases = ("base", "checked", "many_jobs", "named_table", "rendering", "reporting")
    with_class = [
        path
        for folder in ("operators", "sensors", "hooks")
        for path in (root / folder).rglob("*.py")
        if "Operator(" in path.read_text() and path.stem not in bases
    ]
    assert with_class
    for path in with_class:
        assert ".".join(path.relative_to(root.parent).with_suffix("").parts) in listed


def test_the_registry_manifest_has_every_class_with_the_first_lines_of_its_docstring() -> None:
    assert registry.FILE.read_text() == registry.manifest(), "run `python -m tools.registry`"
    assert all(
        imported(path) for kind in ("operators", "sensors", "triggers", "hooks") for path, _ in registry.classes(kind)
    )


def test_each_hook_is_what_its_connection_type_says() -> None:
    from airflow_txlog.hooks.txlog import TxlogHook
    from airflow_txlog.hooks.unity import UnityCatalogHook

    hooks: tuple[Any, ...] = (TxlogHook, UnityCatalogHook)
    for hook, connection_type in zip(hooks, get_provider_info()["connection-types"], strict=True):
        assert connection_type["connection-type"] == hook.conn_type
        assert connection_type["hook-name"] == hook.hook_name
        assert connection_type["hook-class-name"] == f"{hook.__module__}.{hook.__name__}"


def test_every_setting_that_the_code_reads_is_described() -> None:
    import re

    import airflow_txlog

    root = Path(airflow_txlog.__file__).parent
    read = {
        name for path in root.rglob("*.py") for name in re.findall(r'conf\.get\("txlog", "(\w+)"', path.read_text())
    }
    assert read == set(get_provider_info()["config"]["txlog"]["options"])


def test_every_operator_is_imported_from_one_path() -> None:
    import importlib

    from airflow_txlog import operators
    from airflow_txlog.operators.base import TxlogOperator

    modules = [name for listed in get_provider_info()["operators"] for name in listed["python-modules"]]
    defined = {
        name
        for module in modules
        for name, value in vars(importlib.import_module(module)).items()
        if isinstance(value, type) and issubclass(value, TxlogOperator) and value.__module__ == module
    }
    exported = set(operators.__all__)
    # It runs no job.
    jobless = {"PinVersionsOperator"}
    bases = {"TxlogOperator", "StagedChangesOperator"}
    assert (defined - bases) | jobless == {name for name in exported if name[0].isupper()}
    assert all(hasattr(operators, name) for name in exported)
