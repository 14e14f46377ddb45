"""Print the parameter tables of the reference as JSON: `python -m tools.parameters`, Markdown by the name of the class.

The constructors and the `:param:` lines of the docstrings are the one source. tests/test_site.py compares both.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from typing import NamedTuple

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

BASES = [
    TxlogOperator,
    ExactlyOnceOperator,
    DataChangingOperator,
    LimitedOperator,
    CheckedOperator,
    SourceOperator,
    StagedChangesOperator,
    ErasureOperator,
]
"""Their arguments are common to several operators, so each has a table of its own."""
OPERATORS = [each for each in (getattr(operators, name) for name in operators.__all__) if inspect.isclass(each)]
OTHERS = [TableVersionSensor, TableVersionTrigger, SubmittedJobTrigger, TxlogHook, UnityCatalogHook]
DOCUMENTED: list[type] = [*BASES, *OPERATORS, *OTHERS]
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


def shared_bases(cls: type) -> list[type]:
    """Return the documented bases whose parameters a class takes too, the nearest first."""
    return [base for base in cls.__mro__[1:] if base in BASES]


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


def cell(text: str) -> str:
    """Return the text as it stands in a cell of a page in `docs/reference`; names of pages become links."""
    linked = re.sub(r"docs/([\w-]+)\.md", lambda page: f"[{page[1].replace('-', ' ')}](../{page[1]}.md)", text)
    return linked.replace("|", "\\|")


def table_of(cls: type) -> str:
    """Return the Markdown of a class's table, and below it links to the tables that apply too."""
    rows = [
        f"| `{each.name}` | `{cell(each.type)}` | {'required' if each.default is None else f'`{cell(each.default)}`'} "
        f"| {'yes' if each.templated else ''} | {cell(each.meaning)} |"
        for each in parameters_of(cls)
    ]
    head = ["| parameter | type | default | templated | meaning |", "|---|---|---|---|---|"]
    # The style sheet stacks the cells on a narrow screen.
    lines = ['<div class="parameters" markdown>', "", *head, *rows, "", "</div>", ""] if rows else []
    links = [f"[{base.__name__}](#{base.__name__.lower()})" for base in shared_bases(cls)]
    if links and issubclass(cls, ManyJobsOperator):
        links[-1] += " (except `table_uri` and `deferrable`)"
    if links:
        lines.append(f"{'Further' if rows else 'All'} parameters: {', '.join(links)}.")
    return "\n".join(lines)


def main() -> None:
    print(json.dumps({each.__name__: table_of(each) for each in DOCUMENTED}))


if __name__ == "__main__":
    main()
