"""Write `.airflow-registry.yaml`, the list of this package's classes for catalogues of Airflow providers.

The descriptions are the first paragraphs of the docstrings. Run it by `python -m tools.registry`; a test compares the
file with the classes.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

from airflow_txlog import operators
from airflow_txlog.get_provider_info import get_provider_info

FILE = Path(__file__).resolve().parents[1] / ".airflow-registry.yaml"
_HEAD = """\
# The classes of this package, for catalogues of Airflow providers such as Airflow's own registry. Written by
# `python -m tools.registry`. An address of the documentation and the source belongs here once they have one.

package-name: {package}
display-name: {name}
description: >-
  {description}
"""


def manifest() -> str:
    """Return the text of the file, from what the provider's description lists."""
    info = get_provider_info()
    text = _HEAD.format(package=info["package-name"], name=info["name"], description=info["description"])
    for kind in ("operators", "sensors", "triggers", "hooks"):
        text += f"\n{kind}:\n"
        for path, description in classes(kind):
            text += f"  - module: {path}\n    description: >-\n      {description}\n"
    return text


def classes(kind: str) -> Iterator[tuple[str, str]]:
    """Yield the dotted path and the description of each class of a kind, in the order of the provider's description."""
    ending = kind.removesuffix("s").capitalize()
    for name in (name for listed in get_provider_info()[kind] for name in listed["python-modules"]):
        for member in vars(importlib.import_module(name)).values():
            if not inspect.isclass(member) or member.__module__ != name or not member.__name__.endswith(ending):
                continue
            # The base of some operators lies beside them.
            if kind != "operators" or member.__name__ in operators.__all__:
                yield f"{name}.{member.__name__}", " ".join((inspect.getdoc(member) or "").split("\n\n")[0].split())


if __name__ == "__main__":
    FILE.write_text(manifest())
