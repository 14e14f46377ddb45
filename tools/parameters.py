"""Write the tables that the docs take from the code: `python -m tools.parameters`.

The constructors and the `:param:` lines of the docstrings are the source of the parameters on docs/operators. A table
of a class stands between two comments (`TABLE`) on one page. The pages of docs/reference list what their directives of
mkdocstrings name, for readers without the site, by the first lines of the docstrings. tests/test_site.py fails if a
table is out of date.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from airflow_txlog import operators
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.hooks.unity import UnityCatalogHook
from airflow_txlog.operators.base import DataChangingOperator, ExactlyOnceOperator, TxlogOperator
from airflow_txlog.operators.checked import CheckedOperator, LimitedOperator, SourceOperator
from airflow_txlog.operators.erasure.reporting import ErasureOperator
from airflow_txlog.operators.many_jobs import ManyJobsOperator
from airflow_txlog.operators.publish import StagedChangesOperator
from airflow_txlog.sensors.table_version import TableVersionSensor
from airflow_txlog.triggers.submitted_job import SubmittedJobTrigger
from airflow_txlog.triggers.table_version import TableVersionTrigger

SHARED = [
    TxlogOperator,
    ExactlyOnceOperator,
    DataChangingOperator,
    LimitedOperator,
    CheckedOperator,
    SourceOperator,
]
"""Many operators take their parameters. docs/operators/shared.md has a table of each."""
INCLUDED = [StagedChangesOperator, ErasureOperator]
"""Two or three operators take their parameters, and list them among their own."""
NOT_OF_MANY_JOBS = {"table_uri", "table", "deferrable"}
"""The parameters of `TxlogOperator` that an operator on several tables refuses."""
OPERATORS = [each for each in (getattr(operators, name) for name in operators.__all__) if inspect.isclass(each)]
OTHERS = [TableVersionSensor, TableVersionTrigger, SubmittedJobTrigger, TxlogHook, UnityCatalogHook]
DOCUMENTED: list[type] = [*SHARED, *OPERATORS, *OTHERS]
PAGES = Path(__file__).resolve().parents[1] / "docs" / "operators"
TABLE = re.compile(r"^<!-- parameters: (\w+) -->\n(.*?)^<!-- end of parameters -->$", re.DOTALL | re.MULTILINE)
REFERENCE = PAGES.parent / "reference"
DIRECTIVE = re.compile(r"^::: ([\w.]+)$((?:\n {4,}.*)*)", re.MULTILINE)
SUMMARIES = re.compile(r"^<!-- summaries -->\n(.*?)^<!-- end of summaries -->$", re.DOTALL | re.MULTILINE)
WITH_METHODS = ("airflow_txlog.engine.", "airflow_txlog.hooks.")
"""Classes of these packages are listed with their methods. Airflow calls those of the others."""
MEMBERS = (FunctionType, classmethod, staticmethod, property, cached_property)
TEMPLATED = re.compile(r"\s*\(templated\)\s*$")


class Parameter(NamedTuple):
    """A parameter as the table shows it; `default` is None if it is required."""

    name: str
    type: str
    default: str | None
    templated: bool
    meaning: str


def meanings_of(cls: type) -> dict[str, str]:
    """Return the text of each `:param:` line of a class's docstring."""
    text = inspect.cleandoc(cls.__doc__ or "")
    found = re.findall(r"^:param (\w+): (.*?)(?=^:param |^\S|^$|\Z)", text, re.DOTALL | re.MULTILINE)
    return {name: " ".join(meaning.split()) for name, meaning in found}


def parameters_of(cls: type) -> Iterator[Parameter]:
    """Yield the parameters of a class's own constructor, in its order.

    Raises LookupError for a parameter without a `:param:` line.
    """
    constructor = vars(cls).get("__init__")
    if constructor is None:
        return
    for name, found in inspect.signature(constructor).parameters.items():
        if name == "self" or found.kind is found.VAR_KEYWORD:
            continue
        meaning = next((texts[name] for texts in map(meanings_of, cls.__mro__) if name in texts), None)
        if meaning is None:
            raise LookupError(f"{cls.__name__} has no `:param {name}:`")
        default = None if found.default is found.empty else repr(found.default)
        is_templated = name in getattr(cls, "template_fields", ())
        yield Parameter(name, str(found.annotation), default, is_templated, TEMPLATED.sub("", meaning))


def own_parameters(cls: type) -> list[Parameter]:
    """Return the parameters in the open table of a class: its own, then those of its `INCLUDED` bases."""
    found = list(parameters_of(cls))
    for base in cls.__mro__[1:]:
        if base in INCLUDED:
            found += [each for each in parameters_of(base) if each.name not in {known.name for known in found}]
    return found


def shared_parameters(cls: type) -> list[Parameter]:
    """Return the further parameters of an operator, which it takes as others do, the nearest base first."""
    if cls in SHARED:
        return []
    left_out = {each.name for each in own_parameters(cls)}
    if issubclass(cls, ManyJobsOperator):
        left_out |= NOT_OF_MANY_JOBS
    bases = [base for base in cls.__mro__[1:] if base in SHARED]
    return [each for base in bases for each in parameters_of(base) if each.name not in left_out]


def cell(text: str) -> str:
    """Return the text as it stands in a cell of a page in `docs/operators`; names of pages become links."""
    linked = re.sub(r"docs/([\w/-]+)\.md", lambda page: f"[{page[1].replace('-', ' ')}](../{page[1]}.md)", text)
    return linked.replace("|", "\\|")


def rows_of(parameters: list[Parameter]) -> list[str]:
    """Return the lines of a table of parameters."""
    rows = [
        f"| `{each.name}` | `{cell(each.type)}` | {'required' if each.default is None else f'`{cell(each.default)}`'} "
        f"| {'yes' if each.templated else ''} | {cell(each.meaning)} |"
        for each in parameters
    ]
    return ["| parameter | type | default | templated | meaning |", "|---|---|---|---|---|", *rows]


def table_of(cls: type) -> str:
    """Return the Markdown of a class's table, and below it the names of the parameters that it shares."""
    own, shared = own_parameters(cls), shared_parameters(cls)
    lines = ["", *rows_of(own), ""] if own else [""]
    if shared:
        names = ", ".join(f"`{each.name}`" for each in shared)
        text = f"{'Further parameters' if own else 'Parameters'}, [explained for all operators](shared.md#parameters): "
        lines += [*textwrap.wrap(f"{text}{names}.", 120, break_long_words=False, break_on_hyphens=False), ""]
    return "\n".join([*lines, ""])


def with_tables(text: str) -> str:
    """Return the text of a page with the tables of today."""
    tables = {each.__name__: each for each in DOCUMENTED}
    return TABLE.sub(
        lambda found: f"<!-- parameters: {found[1]} -->\n{table_of(tables[found[1]])}<!-- end of parameters -->", text
    )


def named(path: str) -> Any:
    """Return the module, class or function with this path."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def members_of(described: Any, options: str) -> Iterator[tuple[str, Any]]:
    """Yield the names that a directive describes, with their objects. `options`: the lines below it.

    Operators are left out, because each has a page.
    """
    if isinstance(described, ModuleType):
        for name, each in vars(described).items():
            is_own = getattr(each, "__module__", "").startswith(described.__name__) and each not in OPERATORS
            if (inspect.isclass(each) or inspect.isfunction(each)) and is_own and not name.startswith("_"):
                yield name, each
        return
    yield described.__name__, described
    if not inspect.isclass(described) or not described.__module__.startswith(WITH_METHODS):
        return
    is_whole = "inherited_members: true" in options
    owners = [each for each in described.__mro__ if each.__module__.startswith("airflow_txlog.")]
    found = dict.fromkeys(name for owner in (owners if is_whole else [described]) for name in vars(owner))
    listed = re.search(r"^ +members: \[(.*)\]$", options, re.MULTILINE)
    for name in listed[1].split(", ") if listed else found:
        each = inspect.getattr_static(described, name)
        if not name.startswith("_") and isinstance(each, MEMBERS):
            yield f"{described.__name__}.{name}", each


def with_summaries(text: str) -> str:
    """Return the text of a page of docs/reference with the table of what it describes."""
    rows = ["| name | summary |", "|---|---|"]
    for path, options in DIRECTIVE.findall(text):
        for name, each in members_of(named(path), options):
            summary = (inspect.getdoc(each) or "").partition("\n")[0]
            rows.append(f"| `{name}` | {cell(summary)} |")
    table = "\n".join(["", *rows, "", ""])
    return SUMMARIES.sub(lambda _: f"<!-- summaries -->\n{table}<!-- end of summaries -->", text)


def main() -> None:
    for folder, renew in ((PAGES, with_tables), (REFERENCE, with_summaries)):
        for page in sorted(folder.glob("*.md")):
            text = page.read_text()
            if (renewed := renew(text)) != text:
                page.write_text(renewed)


if __name__ == "__main__":
    main()
