"""The files of a source that this package reads: found by the source's paths and options as Spark finds its own.

A path is a file, a folder or a glob. Of a folder the files directly in it are read, and those in folders named
`column=value` below it; names that begin with "_" or "." are hidden. The invariant: the files are listed once, and
every step of the source reads exactly those.
Source: Spark, InMemoryFileIndex and HadoopFSUtils; Hadoop, GlobPattern and GlobExpander.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_txlog.contract.operations import FileView
from airflow_txlog.engine.log.names import LOG_DIRECTORY
from airflow_txlog.errors import InvalidJobSpec, SourceNotFound
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.source.places import check_reachable
from airflow_txlog.locations import LOCAL, scheme_of, split
from airflow_txlog.storage import STORES, Access, Store, open_store

_GLOB = re.compile(r"[*?\[\]{}\\]")
# In a class of characters everything but a range is taken as it stands.
_IN_CLASS, _ESCAPE = re.compile(r"([\[\]\\^&~|])"), r"\\\1"
_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile("%([0-9A-Fa-f]{2})")
# As Spark's own check of names.
_HIDDEN = re.compile(r"\..*|_[^=]*|.*\._COPYING_", re.DOTALL)
# Files that hold the footers of the files beside them and no rows, the first to be asked first.
_SUMMARIES = ("_common_metadata", "_metadata")
# Where a stream of Spark's notes which files it has finished: Spark reads these alone, and their columns from there.
STREAM_LOG = "_spark_metadata"
# What stands for more to Hadoop than the character itself.
_ODD_ESCAPE = re.compile(r"\\[A-Za-z0-9]|\[[^\]]*\\")

# Options by their names in small letters. Those that look for files are ours, those of the parsers Spark's.
LOOKUP_OPTIONS = frozenset({"pathglobfilter", "recursivefilelookup", "basepath"})
_TEXT = """mode columnnameofcorruptrecord dateformat timestampformat timestampntzformat locale timezone
    enabledatetimeparsingfallback multiline linesep encoding charset"""
_CSV = """sep delimiter quote escape chartoescapequoteescaping comment header inferschema preferdate emptyvalue
    nullvalue nanvalue positiveinf negativeinf ignoreleadingwhitespace ignoretrailingwhitespace maxcolumns
    maxcharspercolumn inputbuffersize unescapedquotehandling"""
_JSON = """primitivesasstring prefersdecimal allowcomments allowunquotedfieldnames allowsinglequotes
    allownumericleadingzeros allownonnumericnumbers allowbackslashescapinganycharacter allowunquotedcontrolchars
    dropfieldifallnull infertimestamp"""
_PARSED: dict[str, frozenset[str]] = {
    "csv": frozenset(f"{_TEXT} {_CSV}".split()),
    "json": frozenset(f"{_TEXT} {_JSON}".split()),
    "parquet": frozenset(),
    "orc": frozenset(),
}
# Options of which these values change nothing here.
WITHOUT_EFFECT = {
    "mergeschema": ("false",),
    "ignorecorruptfiles": ("false",),
    "ignoremissingfiles": ("false",),
    "enforceschema": ("true",),
    "samplingratio": ("1", "1.0"),
    "datetimerebasemode": ("exception", "corrected"),
    "int96rebasemode": ("exception", "corrected"),
}
# Settings of a session of which another value changes what Spark reads.
_SETTINGS = {
    "parquet": {
        "spark.sql.parquet.mergeSchema": "false",
        "spark.sql.parquet.binaryAsString": "false",
        "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
        "spark.sql.parquet.int96AsTimestamp": "true",
        "spark.sql.parquet.int96TimestampConversion": "false",
        "spark.sql.parquet.datetimeRebaseModeInRead": "corrected",
        "spark.sql.parquet.int96RebaseModeInRead": "corrected",
        "spark.sql.legacy.parquet.nanosAsLong": "false",
        "spark.sql.files.ignoreCorruptFiles": "false",
    },
    "orc": {"spark.sql.orc.mergeSchema": "false", "spark.sql.files.ignoreCorruptFiles": "false"},
    "csv": {"spark.sql.files.ignoreCorruptFiles": "false"},
    "json": {"spark.sql.files.ignoreCorruptFiles": "false"},
}
# A name by which Spark knows one of them, too.
_FORMER = {"spark.sql.parquet.datetimeRebaseModeInRead": "spark.sql.legacy.parquet.datetimeRebaseModeInRead"}

Values = tuple[tuple[str, str | None], ...]
"""Names and values of the partition columns of one folder, from the top down."""


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """How files are looked for, from the options of the source.

    `name_glob`: of files' names. `recurses`: every file below a root, without partition columns. `base`: the folder
    below which folders name partition values; by default each root itself.
    """

    name_glob: str | None = None
    recurses: bool = False
    base: str | None = None


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One file. `path` is an absolute URI; `values` are those of its folders."""

    path: str
    size_bytes: int
    values: Values

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True)
class SourceFiles:
    """The files of a source by path, and a store that opens each of them.

    `roots`: what was named, globs expanded. `table`: the folder of a Delta table that one of the files lies in.
    `summary`: the file, none of `files`, by whose columns Spark reads all of them where they are Parquet.
    """

    store: Store
    roots: tuple[str, ...]
    files: tuple[SourceFile, ...]
    table: str | None
    summary: str | None

    @property
    def folders(self) -> frozenset[str]:
        """The folders that the files lie in."""
        return frozenset(file.path.rpartition("/")[0] for file in self.files)


@dataclass(frozen=True, kw_only=True)
class _Listed:
    """What is in and below a folder, sizes by absolute URI, and which of it one path names."""

    store: Store
    sizes: Mapping[str, int]
    roots: Sequence[str]


def is_listed_here(paths: Sequence[str], argument: str) -> bool:
    """Whether the paths lie in stores that this package reads by itself, and not in Spark's.

    Raises InvalidJobSpec (`argument`) for a list of both kinds, UnsupportedStore for what lies in a process's memory.
    """
    ours = [path for path in paths if scheme_of(path) in STORES and scheme_of(path) != LOCAL]
    if ours and len(ours) < len(paths):
        raise InvalidJobSpec(
            f"{argument}: the paths lie in different kinds of stores. Give each kind its own view in a query. Nothing "
            "was read.",
            argument=argument,
        )
    for path in ours:
        check_reachable(path)
    return bool(ours)


def find_files(context: JobContext, view: FileView, argument: str) -> SourceFiles:
    """The files of a view; nothing of them is read yet.

    Raises InvalidJobSpec (`argument`) for options that cannot be honoured, and as `list_source`.
    """
    check_honoured(context, view, argument)
    options = options_of(view)
    lookup = Lookup(
        name_glob=options.get("pathglobfilter"),
        recurses=is_true(options, "recursivefilelookup"),
        base=options.get("basepath"),
    )
    return list_source(view.paths, context.store.access, lookup, argument)


def check_honoured(context: JobContext, view: FileView, argument: str) -> None:
    """Raises InvalidJobSpec (`argument`) for an option or a setting under which Spark reads files in another way."""
    options = options_of(view)
    for name, value in options.items():
        if name in ("compression", "codec"):
            continue  # of writers
        if name not in _PARSED[view.format] | LOOKUP_OPTIONS and value.lower() not in WITHOUT_EFFECT.get(name, ()):
            raise refused(argument, f"the option {name}={value}", "Leave it out")
    if view.format == "csv" and is_true(options, "multiline"):
        raise refused(argument, "CSV with multiLine", "Have the files written without line ends inside of values")
    for name, value in _SETTINGS[view.format].items():
        found = context.executor.setting(name, context.executor.setting(_FORMER.get(name, name), value)).lower()
        # Values that Spark would refuse for their calendar are refused here, too.
        if found != value and not (name.endswith("RebaseModeInRead") and found == "exception"):
            raise refused(argument, f"the setting {name}", f"Set it to {value}")


def refused(argument: str, what: str, advice: str) -> InvalidJobSpec:
    """The error for what no reader of this package honours."""
    return InvalidJobSpec(
        f"{argument}: files in an object store are read by this package and not by Spark, and {what} cannot be "
        f"honoured. {advice}, or copy the files to a disk that Spark's workers share. Nothing was read.",
        argument=argument,
    )


def options_of(view: FileView) -> dict[str, str]:
    """A view's options by their names in small letters: Spark goes by no case."""
    return {name.lower(): value for name, value in view.options.items()}


def is_true(options: Mapping[str, str], name: str) -> bool:
    """Whether an option of `options_of` is switched on."""
    return options.get(name, "false").lower() == "true"


def list_source(paths: Sequence[str], access: Access, lookup: Lookup, argument: str) -> SourceFiles:
    """The files that the paths name.

    Raises SourceNotFound (`argument`) where there is nothing at a path, InvalidJobSpec for a base that does not hold
    them, and what the store raises.
    """
    # As data files that a log names by their URI: a source may lie in several folders or buckets.
    anywhere = replace(access, allow_absolute_paths=True)
    base = None if lookup.base is None else open_store(lookup.base, anywhere).root
    for path in paths:
        _check_glob(path, argument, is_name=False)
    if lookup.name_glob is not None:
        _check_glob(lookup.name_glob, argument, is_name=True)
    patterns = None if lookup.name_glob is None else [_pattern(each) for each in _alternatives(lookup.name_glob)]
    listed = [_listed(path, anywhere, argument) for path in paths]
    found: list[tuple[SourceFile, bool]] = []
    for path, each in zip(paths, listed, strict=True):
        if not each.roots:
            raise nothing_there(path, argument)
        for root in each.roots:
            if not _GLOB.search(path) and any(name.startswith(f"{root}/{STREAM_LOG}/") for name in each.sizes):
                raise refused(argument, f"the log of the stream that wrote {root}", "Name the files that count")
            found += _files_of(root, each.sizes, lookup, base, argument)
    # Without partition columns Spark reads no folders below the ones that are named.
    is_deep = lookup.recurses or any(file.values for file, _ in found if file.name not in _SUMMARIES)
    chosen = [file for file, is_direct in found if is_deep or is_direct]
    if patterns is not None:
        values = {file.values for file in chosen if file.values}
        chosen = [file for file in chosen if any(pattern.fullmatch(file.name) for pattern in patterns)]
        # Spark makes columns of folders before it filters names.
        if values - {file.values for file in chosen}:
            raise refused(argument, "a pathGlobFilter that leaves out whole folders of a column", "Name the folders")
    summaries = sorted((_SUMMARIES.index(file.name), file.path) for file in chosen if file.name in _SUMMARIES)
    files = [file for file in chosen if file.name not in _SUMMARIES]
    return SourceFiles(
        store=listed[0].store,
        roots=tuple(root for each in listed for root in each.roots),
        files=tuple(files),
        table=_table_of(files, listed),
        summary=summaries[0][1] if summaries else None,
    )


def nothing_there(path: str, argument: str) -> SourceNotFound:
    """The error for a path of a source at which there is no file."""
    return SourceNotFound(f"{argument}: there is nothing at {path} (yet). Nothing was changed.", argument=argument)


def is_nothing_at(path: str, access: Access) -> bool:
    """Whether a store has neither a file of this path nor one below it. One request or two, however many there are."""
    anywhere = replace(access, allow_absolute_paths=True)
    folder, _, name = path.rpartition("/")
    if split(folder).path.strip("/") and open_store(folder, anywhere).stat(name) is not None:
        return False
    return bool(split(path).path.strip("/")) and next(iter(open_store(path, anywhere).walk()), None) is None


def fixed_part(path: str) -> str:
    """The folder or file that a path names before its first glob."""
    parts = path.rstrip("/").split("/")
    first = next((number for number, part in enumerate(parts) if _GLOB.search(part)), len(parts))
    return "/".join(parts[:first])


def _listed(path: str, access: Access, argument: str) -> _Listed:
    fixed = fixed_part(path)
    pattern = path.rstrip("/")[len(fixed) + 1 :]
    folder, _, name = fixed.rpartition("/")
    if not pattern and split(folder).path.strip("/"):
        store = open_store(folder, access)
        file = store.stat(name)
        if file is not None:
            found = f"{store.root}/{name}"
            return _Listed(store=store, sizes={found: file.size_bytes}, roots=[found])
    if not split(fixed).path.strip("/"):
        raise InvalidJobSpec(
            f"{argument}: {path} looks through a whole bucket. Name a folder in it. Nothing was read.",
            argument=argument,
        )
    store = open_store(fixed, access)
    # Of `2024-*/x` what begins with "2024-" alone: a folder of logs may hold years of them.
    literal = _GLOB.split(pattern, maxsplit=1)[0]
    sizes = {f"{store.root}/{info.path}": info.size_bytes for info in store.walk(prefix=literal)}
    if not pattern:
        return _Listed(store=store, sizes=sizes, roots=[store.root] if sizes else [])
    matched = set()
    for alternative in _alternatives(pattern):
        components = [_pattern(part) for part in alternative.split("/")]
        for file_path in sizes:
            names = file_path[len(store.root) + 1 :].split("/")[: len(components)]
            if len(names) == len(components) and all(
                component.fullmatch(each) for component, each in zip(components, names, strict=True)
            ):
                matched.add("/".join([store.root, *names]))
    return _Listed(store=store, sizes=sizes, roots=sorted(matched))


def _files_of(
    root: str, sizes: Mapping[str, int], lookup: Lookup, base: str | None, argument: str
) -> Iterator[tuple[SourceFile, bool]]:
    """The files that a root stands for, summaries among them, each with whether it lies directly in it or is it."""
    folder = root.rpartition("/")[0] if root in sizes else root
    if base is not None and not f"{folder}/".startswith(f"{base}/"):
        raise InvalidJobSpec(
            f"{argument}: the option basePath names {base}, which does not hold {root}. Nothing was read.",
            argument=argument,
        )
    above = "" if base is None else folder[len(base) + 1 :]
    paths = [root] if root in sizes else sorted(path for path in sizes if path.startswith(f"{root}/"))
    for path in paths:
        parts = path[len(folder) + 1 :].split("/")
        shown = parts[:-1] if parts[-1] in _SUMMARIES else parts
        if any(_HIDDEN.fullmatch(part) for part in shown):
            continue
        inner = "/".join(filter(None, [above, *parts[:-1]]))
        values = () if lookup.recurses else _values_in(inner)
        yield SourceFile(path=path, size_bytes=sizes[path], values=values), len(parts) == 1


def _values_in(folder: str) -> Values:
    """The partition values of files in a folder, by its path below the base.

    `sub` below the last `name=value` is passed over; what stands above a folder without a value is none.
    """
    found: list[tuple[str, str | None]] = []
    for part in reversed(folder.split("/")):
        name, equals, value = part.partition("=")
        if equals and name and value:
            found.append((_unescaped(name), None if value == _NULL else _unescaped(value)))
        elif found:
            break
    return tuple(reversed(found))


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def _table_of(files: Sequence[SourceFile], listed: Sequence[_Listed]) -> str | None:
    mark = f"/{LOG_DIRECTORY}/"
    tables = {path.partition(mark)[0] for each in listed for path in each.sizes if mark in path}
    for file in files:
        for table in tables:
            if file.path.startswith(f"{table}/"):
                return table
    above = {folder for each in listed for folder in _and_above(each.store.root)}
    for folder in sorted(above):
        # A folder above may be closed to this job.
        with contextlib.suppress(Exception):
            if open_store(folder, listed[0].store.access).list(LOG_DIRECTORY):
                return folder
    return None


def _and_above(uri: str) -> Iterator[str]:
    """A URI and every folder above it, up to the top of its store."""
    scheme, separator, rest = uri.partition("://")
    parts = rest.split("/")
    for end in range(len(parts), 0, -1):
        yield scheme + separator + "/".join(parts[:end])


# --- globs ----------------------------------------------------------------------------------------------------------


def _check_glob(glob: str, argument: str, *, is_name: bool) -> None:
    """Raises InvalidJobSpec for a glob of names or of paths that means something else to Hadoop, or nothing."""
    # A part of a path without a wildcard is taken as it stands, escapes aside.
    parts = [part for part in glob.split("/") if is_name or set(part) & set("*?[{")]
    is_odd = any(_ODD_ESCAPE.search(part) for part in parts)
    with contextlib.suppress(re.error):
        for each in _alternatives(glob):
            for part in each.split("/"):
                _pattern(part)
        if not is_odd:
            return
    raise refused(argument, f"the glob {glob}", "Write it with *, ?, [a-z] and {a,b}")


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
