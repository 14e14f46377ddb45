"""Prints the pinned versions of everything that this distribution's `dev` extra needs, as installed here.

Only what the distribution reaches is printed, so that pip, an editor's plugin, or a package of an earlier lock in the
same environment never becomes a pin. Names are normalised, lines are sorted, and nothing names a place to fetch from.
"""

from __future__ import annotations

import sys
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

DISTRIBUTION = "airflow-provider-txlog"


def needed_versions(root: str = DISTRIBUTION, extra: str = "dev") -> dict[str, str]:
    """Return the installed version, by normalised name, of all that `root[extra]` reaches, without `root` itself."""
    versions: dict[str, str] = {}
    pending: list[tuple[str, frozenset[str]]] = [(canonicalize_name(root), frozenset({extra}))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while pending:
        name, extras = pending.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        distribution = metadata.distribution(name)
        versions[name] = distribution.version
        for text in distribution.requires or []:
            requirement = Requirement(text)
            environments = [{"extra": extra} for extra in extras] or [{"extra": ""}]
            if requirement.marker is None or any(requirement.marker.evaluate(env) for env in environments):
                pending.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    del versions[canonicalize_name(root)]
    return versions


def main() -> None:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    print(f"# Made by `make lock` with Python {python}. The versions that the tests and the demo run with.")
    print("# pyspark and pyspark-client own the same files: keep both at one version.")
    for name, version in sorted(needed_versions().items()):
        print(f"{name}=={version}")


if __name__ == "__main__":
    main()
