"""The files of a source, in any store, found by the source's paths and options as Spark finds them.

A path is a file, a folder or a glob. A folder stands for the files directly in it and those in folders named
`column=value` below it; names that begin with "_" or "." are hidden. Files on a disk are left to Spark if it might find
others. Spark does not reach files in another store, so options and globs that may differ there are refused. The
invariant: the files are listed once, and every step of the source reads exactly those.
Source: Spark, InMemoryFileIndex and HadoopFSUtils.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from airflow_txlog.contract.operations import FileView
from airflow_txlog.contract.restrictions import OPTIONS
from airflow_txlog.engine.log.names import LOG_DIRECTORY, parse_name
from airflow_txlog.engine.table.schema.ddl import column_names
from airflow_txlog.errors import InvalidJobSpec, SourceNotFound, UnsupportedStore
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.source.partition_folders import Values, above_values, check_in_one_place, values_in
from airflow_txlog.jobs.spark.session import has_settings_of_its_own
from airflow_txlog.locations import (
    GLOB,
    LOCAL,
    before_glob,
    glob_patterns,
    is_certain_glob,
    local_path,
    scheme_of,
    split,
    with_folders_above,
)
from airflow_txlog.storage import STORES, Access, Store, open_store
from airflow_txlog.storage.local_files import holds_nothing, names_below

# The same as Spark's own check of names.
_HIDDEN = re.compile(r"\..*|_[^=]*|.*\._COPYING_", re.DOTALL)
# Files that hold the footers of their neighbours and no rows. Spark prefers the first.
SUMMARIES = ("_common_metadata", "_metadata")
# In this folder a Spark stream records its finished files: Spark reads only these, and their columns from there.
_STREAM_LOG = "_spark_metadata"
# Hadoop reads these in its own way in a glob on a disk.
_ODD_IN_GLOB = frozenset("\\{}[]")

CORRUPT_RECORD = "_corrupt_record"
"""Spark's name of the column that has the texts of rows which it cannot read."""

# Options by lower-case name. The listing honours those that select files, Spark's parsers the others.
LOOKUP_OPTIONS = frozenset({"pathglobfilter", "recursivefilelookup", "basepath"})
_NOT_HONOURED = """columnpruning datetimerebasemode ignorecorruptfiles ignoreinvalidpartitionpaths
    ignoremissingfiles int96rebasemode mergeschema modifiedafter modifiedbefore samplingratio singlevariantcolumn
    timeformat useunsaferow"""
# Options that change nothing here if they have these values.
WITHOUT_EFFECT = {
    "mergeschema": ("false",),
    "ignorecorruptfiles": ("false",),
    "ignoremissingfiles": ("false",),
    "samplingratio": ("1", "1.0"),
    "datetimerebasemode": ("exception", "corrected"),
    "int96rebasemode": ("exception", "corrected"),
}
# Settings of a session with the values that are honoured: another value changes the rows that Spark reads.
_SETTINGS: dict[str, dict[str, str]] = {
    "csv": {},
    "json": {},
    "orc": {"spark.sql.orc.mergeSchema": "false"},
    "parquet": {
        "spark.sql.parquet.mergeSchema": "false",
        "spark.sql.parquet.binaryAsString": "false",
        "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
        "spark.sql.parquet.int96AsTimestamp": "true",
        "spark.sql.parquet.int96TimestampConversion": "false",
        "spark.sql.parquet.datetimeRebaseModeInRead": "corrected",
        "spark.sql.parquet.int96RebaseModeInRead": "corrected",
        "spark.sql.legacy.parquet.nanosAsLong": "false",
    },
}
# An older name by which Spark also knows one of them.
_FORMER = {"spark.sql.parquet.datetimeRebaseModeInRead": "spark.sql.legacy.parquet.datetimeRebaseModeInRead"}


@dataclass(frozen=True)
class OnlySpark:
    """A source that this process cannot list or read. `why` completes the sentence "Spark is needed: "."""

    why: str


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One file. `path` is an absolute URI; `values` are those of its folders."""

    path: str
    size_bytes: int
    values: Values

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def above_partitions(self) -> str:
        """The folder that holds the folders of the file's partition values; without those, the folder of the file."""
        return above_values(self.path.rpartition("/")[0], len(self.values))


@dataclass(frozen=True, kw_only=True)
class SourceFiles:
    """The files of a view, and a store that opens each of them by its path. Errors call the source `argument`.

    `roots`: the named files and folders, globs expanded. `table`: the folder of a Delta table that contains one of the
    files. `summary`: the file, none of `files`, by whose columns Spark reads all of them if they are Parquet.
    """

    view: FileView
    argument: str
    store: Store
    roots: tuple[str, ...]
    files: tuple[SourceFile, ...]
    table: str | None
    summary: str | None

    @property
    def filled(self) -> list[SourceFile]:
        """The files that are not empty; Spark skips empty ones."""
        return [file for file in self.files if file.size_bytes]

    @property
    def has_partitions(self) -> bool:
        """Whether folders name values of columns."""
        return any(file.values for file in self.files)

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each file that is not empty, by its path, in order."""
        return {file.path: file.size_bytes for file in sorted(self.filled, key=lambda each: each.path)}

    def no_rows(self) -> SourceNotFound:
        """Return the error for a source whose columns would be those of its files, and all of them are empty."""
        paths, names = ", ".join(self.view.paths), options_of(self.view).get("pathglobfilter")
        if self.files:
            what = f"the files at {paths} are empty"
        else:
            what = f"there are no files at {paths}" + (f" that match pathGlobFilter={names}" if names else "")
        return _not_found(what, self.argument)


class _Listed(NamedTuple):
    """The files in and below a folder, with sizes by absolute URI, and those among them that one path names."""

    store: Store
    sizes: Mapping[str, int]
    roots: Sequence[str]


def is_listed_here(paths: Sequence[str], argument: str) -> bool:
    """Return whether this package reads the paths' stores without Spark. Raises InvalidJobSpec, UnsupportedStore."""
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


def check_reachable(root: str) -> None:
    """Raise UnsupportedStore for a place in this process's memory: executors could not see it."""
    if scheme_of(root) == "memory":
        raise UnsupportedStore(
            f"{root} is in this process's memory, where Spark's workers cannot read or write it. Use a path.",
            uri=root,
            filesystem="memory",
        )


def find_files(context: JobContext, view: FileView, argument: str) -> SourceFiles | OnlySpark:
    """Return the files of a view, or why Spark may find others; no file is read.

    Raises SourceNotFound, InvalidJobSpec (`argument`) for options that cannot be honoured, and the store's errors.
    """
    if not context.executor.knows_settings:
        return OnlySpark("Spark is installed with settings of its own, which may say how files are read")
    if all(scheme_of(path) != LOCAL for path in view.paths):
        return files_in_store(context, view, argument)
    try:
        return _why_spark_finds(context, view) or files_in_store(context, view, argument)
    except (InvalidJobSpec, OSError):
        # Spark has its own options for its own files, and its own message for files that it cannot open.
        return OnlySpark("an option of the source is for Spark's own reader, or a folder cannot be listed")


def _why_spark_finds(context: JobContext, view: FileView) -> OnlySpark | None:
    """Return why Spark may find other files than this process at paths, one of which is on a disk. Raises OSError."""
    folders = [local_path(before_glob(path)) if scheme_of(path) == LOCAL else None for path in view.paths]
    if None in folders or not context.is_spark_here:
        return OnlySpark("the source lies on the disk of the machine that Spark runs on")
    if _reads_other_disks(context, view):
        return OnlySpark("Hadoop may be set to find paths without a scheme elsewhere")
    if any(_ODD_IN_GLOB & set(glob) for glob in (*view.paths, options_of(view).get("pathglobfilter", ""))):
        return OnlySpark("the source's files are named by a filter, or by a glob, with more than * and ?")
    for folder in filter(None, folders):
        for number, (name, is_odd) in enumerate(names_below(folder)):
            if is_odd or name.startswith((*SUMMARIES, _STREAM_LOG)) or number >= context.limits.names_in_folder:
                return OnlySpark(
                    "the source's folder holds links, summaries of files, a stream's log, names that are no text, or "
                    "very many names"
                )
    return None


def _reads_other_disks(context: JobContext, view: FileView) -> bool:
    """Return whether the job's Spark may read a path without a scheme from another machine."""
    is_set = "HADOOP_CONF_DIR" in os.environ or any("defaultfs" in name.lower() for name in context.spec.spark_conf)
    return is_set and any(path.startswith("/") for path in view.paths)


def check_is_there(context: JobContext, view: FileView, argument: str) -> None:
    """Raise SourceNotFound (`argument`) if Spark would certainly find no file at a path; nothing is read."""
    for path in view.paths:
        fixed = before_glob(path)
        if (_ODD_IN_GLOB | {"%"}) & set(path):
            continue
        if scheme_of(path) != LOCAL:
            is_missing = scheme_of(path) in STORES and _is_nothing_at(fixed, context.store.access)
        elif not context.is_spark_here or has_settings_of_its_own() or _reads_other_disks(context, view):
            continue
        else:
            on_disk = local_path(fixed)
            # Spark reads an empty folder on a disk if it is given a schema.
            is_missing = on_disk is not None and holds_nothing(on_disk, may_be_empty=view.schema is not None)
        if is_missing:
            raise _not_found(f"there is nothing at {path}", argument)


def _is_nothing_at(path: str, access: Access) -> bool:
    """Return whether a store has neither a file at this path nor one below it, by one or two requests."""
    anywhere = replace(access, allow_absolute_paths=True)
    folder, _, name = path.rpartition("/")
    if split(folder).path.strip("/") and open_store(folder, anywhere).stat(name) is not None:
        return False
    return bool(split(path).path.strip("/")) and next(iter(open_store(path, anywhere).walk()), None) is None


def _not_found(what: str, argument: str) -> SourceNotFound:
    # Earlier runs may have changed something: those of an erasure carry no transaction, and go on with its work.
    return SourceNotFound(f"{argument}: {what} (yet). This run of the job changed nothing.", argument=argument)


# --- options and settings -------------------------------------------------------------------------------------------


def options_of(view: FileView) -> dict[str, str]:
    """Return a view's options by lower-case name, as Spark compares them."""
    return {name.lower(): value for name, value in view.options.items()}


def is_true(options: Mapping[str, str], name: str) -> bool:
    """Return whether an option of `options_of` is switched on."""
    return options.get(name, "false").lower() == "true"


def is_strict(view: FileView) -> bool:
    """Return whether a row of CSV or JSON that does not fit its columns is an error.

    It is one by default, and none with the option `columnNameOfCorruptRecord` or another `mode` than FAILFAST. If the
    schema has a column for the texts of such rows, the default mode is PERMISSIVE.
    """
    options = options_of(view)
    if view.format not in ("csv", "json") or "columnnameofcorruptrecord" in options:
        return False
    has_corrupt = CORRUPT_RECORD in column_names(view.schema or "")
    return options.get("mode", "permissive" if has_corrupt else "failfast").lower() == "failfast"


def refused(argument: str, what: str, advice: str) -> InvalidJobSpec:
    """Return the error for an option or a path that no reader of this package honours."""
    return InvalidJobSpec(
        f"{argument}: files in an object store are read by this package and not by Spark, and {what} cannot be "
        f"honoured. {advice}, or copy the files to a disk that Spark's workers share. Nothing was read.",
        argument=argument,
    )


def _check_honoured(context: JobContext, view: FileView, argument: str) -> None:
    """Raise InvalidJobSpec (`argument`) for an option or a setting under which Spark reads files in another way."""
    options = options_of(view)
    for name, value in options.items():
        if name in ("compression", "codec"):
            continue  # an option of writers
        is_text = view.format in ("csv", "json")
        is_known = name in OPTIONS[view.format] and (name != "timezone" or is_text)
        if not (is_known and name not in _NOT_HONOURED.split()) and value.lower() not in WITHOUT_EFFECT.get(name, ()):
            raise refused(argument, f"the option {name}={value}", "Leave it out")
    if view.format == "csv" and is_true(options, "multiline"):
        raise refused(argument, "CSV with multiLine", "Have the files written without line ends inside of values")
    for name, value in {**_SETTINGS[view.format], "spark.sql.files.ignoreCorruptFiles": "false"}.items():
        found = context.executor.setting(name, context.executor.setting(_FORMER.get(name, name), value)).lower()
        # Values that Spark would refuse for their calendar are refused here, too.
        if found != value and not (name.endswith("RebaseModeInRead") and found == "exception"):
            raise refused(argument, f"the setting {name}", f"Set it to {value}")


# --- the files of a store -------------------------------------------------------------------------------------------


def files_in_store(context: JobContext, view: FileView, argument: str) -> SourceFiles:
    """Return the files of a view in a store that Spark does not reach. Raises as `find_files`."""
    _check_honoured(context, view, argument)
    return list_source(view, context.store.access, argument)


def list_source(view: FileView, access: Access, argument: str) -> SourceFiles:
    """Return the files that the paths and options of a view name.

    Raises SourceNotFound, InvalidJobSpec (`argument`) for a base that does not hold them, and the store's errors.
    """
    # Absolute, like data files that a log names by their URI: a source may span several folders or buckets.
    anywhere, options = replace(access, allow_absolute_paths=True), options_of(view)
    names, recurses = options.get("pathglobfilter"), is_true(options, "recursivefilelookup")
    # Folders below this one name partition values; by default each root itself.
    base = open_store(options["basepath"], anywhere).root if "basepath" in options else None
    odd = [path for path in view.paths if not is_certain_glob(path, is_name=False)]
    odd += [names] if names is not None and not is_certain_glob(names, is_name=True) else []
    if odd:
        raise refused(argument, f"the glob {odd[0]}", "Write it with *, ?, [a-z] and {a,b}")
    listed = [_listed(path, anywhere, argument) for path in view.paths]
    found: list[tuple[SourceFile, bool]] = []
    for path, each in zip(view.paths, listed, strict=True):
        if not each.roots:
            raise _not_found(f"there is nothing at {path}", argument)
        for root in each.roots:
            if not GLOB.search(path) and any(name.startswith(f"{root}/{_STREAM_LOG}/") for name in each.sizes):
                raise refused(argument, f"the log of the stream that wrote {root}", "Name the files that count")
            found += files_of(root, each.sizes, base, argument, recurses=recurses)
    chosen = as_deep_as_spark(found, recurses=recurses)
    if names is not None:
        values = {file.values for file in chosen if file.values}
        patterns = [parts[0] for parts in glob_patterns(names) if len(parts) == 1]
        chosen = [file for file in chosen if any(pattern.fullmatch(file.name) for pattern in patterns)]
        # Spark makes columns from folders before it filters names.
        if values - {file.values for file in chosen}:
            raise refused(argument, "a pathGlobFilter that leaves out whole folders of a column", "Name the folders")
    check_in_one_place({file.path: file.above_partitions for file in chosen if file.values}, argument)
    summaries = sorted((SUMMARIES.index(file.name), file.path) for file in chosen if file.name in SUMMARIES)
    files = [file for file in chosen if file.name not in SUMMARIES]
    return SourceFiles(
        view=view,
        argument=argument,
        store=listed[0].store,
        roots=tuple(root for each in listed for root in each.roots),
        files=tuple(files),
        table=_table_of(files, listed),
        summary=summaries[0][1] if summaries else None,
    )


def _listed(path: str, access: Access, argument: str) -> _Listed:
    fixed = before_glob(path)
    pattern = path.rstrip("/")[len(fixed) + 1 :]
    folder, _, name = fixed.rpartition("/")
    if not pattern and split(folder).path.strip("/"):
        store = open_store(folder, access)
        file = store.stat(name)
        if file is not None:
            found = f"{store.root}/{name}"
            return _Listed(store, {found: file.size_bytes}, [found])
    if not split(fixed).path.strip("/"):
        raise InvalidJobSpec(
            f"{argument}: {path} looks through a whole bucket. Name a folder in it. Nothing was read.",
            argument=argument,
        )
    store = open_store(fixed, access)
    # For `2024-*/x` only names that begin with "2024-": a folder of logs may hold years of them.
    literal = GLOB.split(pattern, maxsplit=1)[0]
    sizes = {f"{store.root}/{info.path}": info.size_bytes for info in store.walk(prefix=literal)}
    if not pattern:
        return _Listed(store, sizes, [store.root] if sizes else [])
    matched = set()
    for parts in glob_patterns(pattern):
        for file_path in sizes:
            names = file_path[len(store.root) + 1 :].split("/")[: len(parts)]
            if len(names) == len(parts) and all(map(re.Pattern.fullmatch, parts, names)):
                matched.add("/".join([store.root, *names]))
    return _Listed(store, sizes, sorted(matched))


def as_deep_as_spark(found: Sequence[tuple[SourceFile, bool]], *, recurses: bool = False) -> list[SourceFile]:
    """Return the files of `files_of` without those in folders below, unless folders name partition values."""
    is_deep = recurses or any(file.values for file, _ in found if file.name not in SUMMARIES)
    return [file for file, is_direct in found if is_deep or is_direct]


def files_of(
    root: str, sizes: Mapping[str, int], base: str | None, argument: str, *, recurses: bool
) -> Iterator[tuple[SourceFile, bool]]:
    """Yield the files that a root stands for, summaries too, each with whether it lies directly in it or is it."""
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
        shown = parts[:-1] if parts[-1] in SUMMARIES else parts
        if is_hidden(shown):
            continue
        inner = "/".join(filter(None, [above, *parts[:-1]]))
        values = () if recurses else values_in(inner)
        yield SourceFile(path=path, size_bytes=sizes[path], values=values), len(parts) == 1


def is_hidden(parts: Iterable[str]) -> bool:
    """Return whether Spark skips a path with these parts below the folder that it reads."""
    return any(_HIDDEN.fullmatch(part) for part in parts)


def _table_of(files: Sequence[SourceFile], listed: Sequence[_Listed]) -> str | None:
    mark = f"/{LOG_DIRECTORY}/"
    tables = {path.partition(mark)[0] for each in listed for path in each.sizes if mark in path}
    for file in files:
        for table in tables:
            if file.path.startswith(f"{table}/"):
                return table
    above = {folder for each in listed for folder in with_folders_above(each.store.root)}
    return table_among(sorted(above), listed[0].store.access)


def table_among(folders: Iterable[str], access: Access) -> str | None:
    """Return the first of the folders that is a Delta table, among those that this job may read.

    A log with only leftovers of a killed creation is no table.
    """
    for folder in folders:
        with contextlib.suppress(Exception):
            if any(parse_name(info.path) for info in open_store(folder, access).list(LOG_DIRECTORY, start_from="0")):
                return folder
    return None
