"""Globs of paths and of names as Hadoop reads them: `*`, `?`, `[a-z]`, `[^a]`, `{a,b/c}`, and a backslash before any.

The invariant: a glob that Hadoop may read in another way is not certain, and its caller leaves it to Spark or refuses.
Source: Hadoop, GlobPattern and GlobExpander.
"""

from __future__ import annotations

import itertools
import re

GLOB = re.compile(r"[*?\[\]{}\\]")
# In a class of characters everything but a range is taken as it stands.
_IN_CLASS, _ESCAPE = re.compile(r"([\[\]\\^&~|])"), r"\\\1"
# What stands for more to Hadoop than the character itself.
_ODD_ESCAPE = re.compile(r"\\[A-Za-z0-9]|\[[^\]]*\\")


def is_certain(glob: str, *, is_name: bool) -> bool:
    """Return whether a glob, of names or of paths, means the same here and to Hadoop."""
    # A part of a path without a wildcard is taken as it stands, escapes aside.
    parts = [part for part in glob.split("/") if is_name or set(part) & set("*?[{")]
    if any(_ODD_ESCAPE.search(part) for part in parts):
        return False
    try:
        patterns_of(glob)
    except re.error:
        return False
    return True


def patterns_of(glob: str) -> list[list[re.Pattern[str]]]:
    """Return the alternatives of a glob, each as the patterns of its parts between slashes. Raises re.error."""
    return [[_pattern(part) for part in each.split("/")] for each in _alternatives(glob)]


def fixed_part(path: str) -> str:
    """Return the folder or file that a path names before its first glob."""
    parts = path.rstrip("/").split("/")
    first = next((number for number, part in enumerate(parts) if GLOB.search(part)), len(parts))
    return "/".join(parts[:first])


def _alternatives(pattern: str) -> list[str]:
    """The patterns without braces that one with braces stands for: `{a,b/c}/*` is `a/*` and `b/c/*`."""
    opened = None
    depth = number = 0
    commas: list[int] = []
    while number < len(pattern):
        char = pattern[number]
        if char == "\\":
            number += 1
        elif char == "{":
            opened, depth = (number if depth == 0 else opened), depth + 1
        elif char == "," and depth == 1:
            commas.append(number)
        elif char == "}" and depth:
            depth -= 1
            if depth == 0 and opened is not None:
                ends = [opened, *commas, number]
                choices = [pattern[start + 1 : end] for start, end in itertools.pairwise(ends)]
                rest = _alternatives(pattern[number + 1 :])
                return [pattern[:opened] + each + tail for c in choices for each in _alternatives(c) for tail in rest]
        number += 1
    return [pattern]


def _pattern(glob: str) -> re.Pattern[str]:
    """A name's glob, without braces, as an expression: `*`, `?`, `[a-z]`, `[^a]`; a backslash takes what follows."""
    text = ""
    number = 0
    while number < len(glob):
        char = glob[number]
        end = glob.find("]", number + 2) if char == "[" else -1
        if char == "\\" and number + 1 < len(glob):
            number += 1
            text += re.escape(glob[number])
        elif char == "*":
            text += ".*"
        elif char == "?":
            text += "."
        elif end > 0:
            inside = glob[number + 1 : end]
            is_not = inside[0] in "^!"
            text += f"[{'^' * is_not}{_IN_CLASS.sub(_ESCAPE, inside[is_not:])}]"
            number = end
        else:
            text += re.escape(char)
        number += 1
    return re.compile(text, re.DOTALL)
