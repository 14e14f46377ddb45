"""Locations (a path, a `file:` URI, the URI of another store), parsed only here, and the options for opening them.

Locations are not percent-decoded: a `%` is a percent sign. (Paths *in* a log are URI references and are decoded once,
in `engine/log/paths`.) Nothing here touches a file. Standard library only.

    /lake/t, file:/lake/t, file:///lake/t, file://localhost/lake/t     the folder /lake/t of this machine
    memory://name/t, s3://bucket/t                                     a table in another store
    a:b                                                                a relative path: no slash follows the colon
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

LOCAL = "file"

PRIVATE_PREFIX = "txlog-inputs-"
"""Prefix of the folders in which a job keeps rows of sources, keys and saved work next to a table's data."""

ABSOLUTE = r"\A(?:/|[A-Za-z][A-Za-z0-9+.\-]*:/)"
"""The pattern of `is_absolute`."""

# A scheme must be followed by a slash, because a file name may contain a colon.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(?=/)")
_SHOWN_CHARACTERS = 300
GLOB = re.compile(r"[*?\[\]{}\\]")
# In a character class everything but a range is literal.
_IN_CLASS, _ESCAPE = re.compile(r"([\[\]\\^&~|])"), r"\\\1"
# Escapes that Hadoop does not read as the character itself.
_ODD_ESCAPE = re.compile(r"\\[A-Za-z0-9]|\[[^\]]*\\")
_AUTHORITY = re.compile(r"//([^/]*)")
# Hadoop has several names for one store, one for each client.
_ONE_STORE = {"s3a": "s3", "s3n": "s3", "gcs": "gs", **dict.fromkeys(("abfs", "wasbs", "wasb", "az"), "abfss")}


READ, READ_WRITE = "READ", "READ_WRITE"
"""The privileges for which a catalog issues temporary credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogTable:
    """A table whose catalog hands out credentials for its files or ratifies its commits; without a secret.

    `uri`: its place. `name`: `catalog.schema.table`. `endpoint`: the catalog's URL. `catalog_conn_id`: the connection
    with the catalog's token. `storage_conn_id`: the name under which the table's temporary credentials are offered;
    None: those of `Access`. `is_managed`: each commit is ratified by the catalog before it counts. `table_id`: the id
    that the log must have. `new_properties`: of a managed table that does not exist yet, the properties that the
    catalog requires, as JSON; its first commit gives it its name.
    """

    uri: str
    name: str
    endpoint: str
    catalog_conn_id: str
    table_id: str
    is_managed: bool = False
    storage_conn_id: str | None = None
    new_properties: str | None = None

    def to_write(self) -> CatalogTable:
        """Return the table with credentials that may write."""
        given = self.storage_conn_id
        if given is None or not given.endswith(f":{READ}"):
            return self
        return replace(self, storage_conn_id=f"{given.removesuffix(READ)}{READ_WRITE}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How the store of a table is opened, the same in the task, in its job and on every executor.

    `storage_options`: endpoints, profiles and the like (docs/stores.md), without secrets in a job, because they are
    sent and shown there; not in the `repr`. `storage_conn_id`: the Airflow connection with the store's credentials,
    which each process fetches itself (`storage.credentials`); None: the process's own identity. `allow_absolute_paths`:
    data files and deletion vectors outside of the table, or behind a link inside it, may be read from the same kind of
    store. `single_writer`: the caller ensures that no two processes write the table at once, so a file system without a
    proven put-if-absent is enough (docs/stores.md). `catalog_tables`: the tables whose catalog has a part in opening
    their stores; each process compares the place that it opens with theirs.
    """

    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    storage_conn_id: str | None = None
    allow_absolute_paths: bool = False
    single_writer: bool = False
    catalog_tables: tuple[CatalogTable, ...] = ()

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Access:
        """Return the access whose `dataclasses.asdict` went through JSON."""
        tables = tuple(CatalogTable(**each) for each in given.get("catalog_tables") or ())
        return cls(**{**given, "catalog_tables": tables})

    def catalog_table(self, place: str) -> CatalogTable | None:
        """Return the catalog's table at a place or around it: of several the innermost."""
        around = [each for each in self.catalog_tables if f"{place.rstrip('/')}/".startswith(f"{each.uri}/")]
        return max(around, key=lambda each: len(each.uri), default=None)

    @property
    def connections(self) -> tuple[str, ...]:
        """The names of all credentials that a process needs to open the stores."""
        found = [self.storage_conn_id, *(each.storage_conn_id for each in self.catalog_tables)]
        tokens = [each.catalog_conn_id for each in self.catalog_tables if each.is_managed]
        return tuple(dict.fromkeys(name for name in (*found, *tokens) if name is not None))


PLAIN = Access()
"""No options, and only files in the table's folder."""


class LocationParts(NamedTuple):
    """The parts of a location. `scheme` is in small letters, None for a path; `path` may be empty."""

    scheme: str | None
    authority: str
    path: str


@functools.lru_cache(maxsize=1024)
def split(text: str) -> LocationParts:
    """Return the parts of a path or a URI, as spelled."""
    match = _SCHEME.match(text)
    if match is None:
        return LocationParts(None, "", text)
    rest = text[match.end() :]
    authority = _AUTHORITY.match(rest)
    if authority is None:
        return LocationParts(match[1].lower(), "", rest)
    return LocationParts(match[1].lower(), authority[1], rest[authority.end() :])


def is_absolute(text: str) -> bool:
    """Return whether a text is an absolute path or a URI, which mean the same in every process; `~` does not."""
    return re.match(ABSOLUTE, text) is not None


def canonical_place(text: str) -> str:
    """Return the one spelling of an absolute location: `file:///lake/t`, `s3://bucket/t`; without a trailing slash."""
    scheme, authority, path = split(text)
    if scheme in (None, LOCAL) and authority.lower() in ("", "localhost"):
        return f"{LOCAL}://{os.path.normpath(path)}"
    return f"{store_kind(text)}://{authority}{path.rstrip('/')}"


def can_name_a_file(text: str) -> bool:
    """Return whether a text has no NUL, and surrogates only for bytes that are not UTF-8 (PEP 383)."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def shown_path(path: str) -> str:
    """Return a path as messages and results may have it: bytes that are not UTF-8 are escaped."""
    return path.encode("utf-8", "backslashreplace").decode()


def local_path(text: str) -> str | None:
    """Return the path on this machine, maybe relative; None for another store or host."""
    scheme, authority, path = split(text)
    if scheme is None:
        return text
    is_ours = scheme == LOCAL and authority.lower() in ("", "localhost")
    return path if is_ours and path.startswith("/") and not path.startswith("//") else None


def scheme_of(text: str) -> str:
    """Return the scheme of a location, LOCAL for a path."""
    return split(text).scheme or LOCAL


def store_kind(text: str) -> str:
    """Return the scheme of a location's store, or our name for it if the store has several."""
    scheme = scheme_of(text)
    return _ONE_STORE.get(scheme, scheme)


def is_inside(path: str) -> bool:
    """Return whether a canonical path is relative to its table's root."""
    return _SCHEME.match(path) is None and not path.startswith("/")


def shown(text: str) -> str:
    """Return a location for a message, without user, password and signature."""
    place, question, _ = text.partition("?")
    head, at, rest = place.rpartition("@")
    user = head.partition("://")[2]
    # On Azure, the part before the @ is the container, and without it two tables would look the same.
    is_container = ":" not in user and "/" not in user and store_kind(place) == "abfss"
    place = f"***@{rest}" if at and ":" in head and not is_container else place
    return f"{place[:_SHOWN_CHARACTERS]}{'?***' if question else ''}"


def readable(root: str, path: str) -> str:
    """Return a file of a table for people: `path` is relative to the URI `root`, or an absolute URI."""
    text = f"{root}/{path}" if is_inside(path) else path
    return text.removeprefix("file://") if text.startswith("file:///") else text


def with_folders_above(place: str) -> Iterator[str]:
    """Yield a path or a URI, and every folder above it, up to the root of its store."""
    scheme, separator, rest = place.rpartition("://")
    parts = rest.split("/")
    for end in range(len(parts), 0, -1):
        yield scheme + separator + "/".join(parts[:end])


# --- globs ----------------------------------------------------------------------------------------------------------
# As Hadoop reads them: `*`, `?`, `[a-z]`, `[^a]`, `{a,b/c}`, and a backslash before any.
# Source: Hadoop, GlobPattern and GlobExpander.


def is_certain_glob(glob: str, *, is_name: bool) -> bool:
    """Return whether a glob, of names or of paths, means the same here and to Hadoop."""
    # A part of a path without a wildcard is literal, except for escapes.
    parts = [part for part in glob.split("/") if is_name or set(part) & set("*?[{")]
    with contextlib.suppress(re.error):
        glob_patterns(glob)
        return not any(_ODD_ESCAPE.search(part) for part in parts)
    return False


def glob_patterns(glob: str) -> list[list[re.Pattern[str]]]:
    """Return the alternatives of a glob, each as the patterns of its parts between slashes. Raises re.error."""
    return [[_pattern(part) for part in each.split("/")] for each in _alternatives(glob)]


def before_glob(path: str) -> str:
    """Return the folder or file that a path names before its first wildcard."""
    return "/".join(itertools.takewhile(lambda part: not GLOB.search(part), path.rstrip("/").split("/")))


def _alternatives(pattern: str) -> list[str]:
    """Return the patterns without braces that a pattern stands for: `{a,b/c}/*` is `a/*` and `b/c/*`."""
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
    """Return a name's glob without braces as an expression."""
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
