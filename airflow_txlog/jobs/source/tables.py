"""The Delta tables of a source: read at one version by their log, and never as the raw files in their folders.

Such files hold deleted rows, and rows that this job has staged. A text, a view of the catalog, a glob or a parameter
may lead to a table's folder, so Spark's analysed plan is examined: the optimised one leaves out subqueries, cached
views and the files of Python functions. The invariant: rows of a Delta table are read by `table()`, or by an engine
that reads its log. Source: soundness A2, C7.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_txlog.contract.operations import TableView
from airflow_txlog.engine import DeltaTable, Snapshot
from airflow_txlog.engine.log.names import LOG_DIRECTORY
from airflow_txlog.engine.staged_changes import staged_snapshot
from airflow_txlog.errors import InvalidJobSpec, SourceNotFound, TableNotFound
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.source.listing import SourceFiles
from airflow_txlog.jobs.spark.causes import condition_of
from airflow_txlog.jobs.spark.session import is_classic
from airflow_txlog.locations import local_path, split, store_kind, with_folders_above
from airflow_txlog.storage.local_files import real_path, stat_linked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SOURCES = "org.apache.spark.sql.execution.datasources."
# The package of delta-spark, whose relations read the files that a version of the table names.
_DELTA = "org.apache.spark.sql.delta."
# Its relations in the text of a plan, which is all that Connect gives.
_DELTA_INDEXES = ("DeltaFileIndex", "TahoeLogFileIndex", "TahoeBatchFileIndex")
# Requests for logs in folders of another store at the same time; folders in one request to a Connect server.
_PARALLELISM, _ASKED_AT_ONCE = 16, 500


def snapshot_of_view(context: JobContext, view: TableView, target: Snapshot | None) -> tuple[Snapshot, bool]:
    """Return the version of a source's table that the job reads, and whether its rows may be the target's.

    `target` is the version of the job's table that a source reading it sees. Raises SourceNotFound, InvalidJobSpec,
    StagedChangeGone.
    """
    try:
        table = DeltaTable.at(view.table, context.store.access)
        newest = table.snapshot()
    except TableNotFound as error:
        raise _not_there(view) from error
    if view.staged is not None:
        return staged_snapshot(table, view.staged.id, view.staged.digest), False
    if view.version is not None:
        # A version that is named never changes.
        named = table.snapshot(view.version)
        context.versions_read.append((table, named))
        return named, False
    is_target = _canonical(table.uri) == _canonical(context.root)
    if is_target and target is None:
        raise InvalidJobSpec(f"The source reads {view.table}, which this job is to create.", argument="source.table")
    snapshot = target if is_target and target is not None else newest
    if not is_target:
        context.tables_read.append((table, snapshot))
    seen = context.lineage.versions
    seen[view.table] = snapshot.version if seen.get(view.table, snapshot.version) == snapshot.version else None
    return snapshot, is_target


def is_same_place(uri: str, other: str) -> bool:
    """Return whether two URIs name one folder, also by another scheme or through symbolic links of this machine."""
    return _canonical(uri) == _canonical(other)


def check_table_is_there(context: JobContext, view: TableView, target: Snapshot | None) -> None:
    """Raise SourceNotFound if a source's table, other than the job's own, does not exist; its log is only listed."""
    table = DeltaTable.at(view.table, context.store.access)
    if target is None and _canonical(table.uri) == _canonical(context.root):
        return
    try:
        table.latest_version()
    except TableNotFound as error:
        raise _not_there(view) from error


def _not_there(view: TableView) -> SourceNotFound:
    return SourceNotFound(
        f"The source table {view.table} does not exist (yet). This run of the job changed nothing.",
        argument="source.table",
    )


@dataclass(frozen=True, kw_only=True)
class FilesRead:
    """The paths that a relation of a plan was given, and its files' folders. `by_log`: the files of a Delta log."""

    roots: frozenset[str]
    folders: frozenset[str]
    by_log: bool = False


def reads_table(spark: SparkSession, frame: DataFrame, target: str, argument: str) -> bool:
    """Return whether an unevaluated frame reads rows of the table at this URI through an engine that knows it.

    Raises InvalidJobSpec (`argument`) if it reads the files of any Delta table as raw files.
    """
    reads = list(files_read(spark, frame))
    raw = [read for read in reads if not read.by_log]
    table = _raw_table(spark, raw, target)
    if table is not None and (table == target or not _is_read_by_delta(spark, frame)):
        raise _is_raw(table, argument)
    return any(_lies_in(_place_of(root), _canonical(target)) for read in reads for root in read.roots)


def check_view(spark: SparkSession, frame: DataFrame, paths: Sequence[str], target: str, argument: str) -> None:
    """Raise InvalidJobSpec (`argument`) for a view of files, as Spark reads them, that are those of a Delta table.

    Needed on Connect alone: in a classic session the plan of the whole source shows them.
    """
    if not is_classic(spark):
        read = FilesRead(roots=_on_server(paths), folders=_on_server(_folders(frame.inputFiles())))
        table = _raw_table(spark, [read], target)
        if table is not None:
            raise _is_raw(table, argument)


def check_no_table(found: SourceFiles, target: str) -> None:
    """Raise InvalidJobSpec for files listed here that are those of a Delta table, the target or another."""
    in_folders = {file.path.rpartition("/")[0] for file in found.files}
    roots, folders = (frozenset(map(_resolved, paths)) for paths in (found.roots, in_folders))
    table = found.table
    if _overlaps([FilesRead(roots=roots, folders=folders)], target):
        table = target
    elif table is None:
        # Paths behind a symbolic link of this machine.
        above = sorted({folder for path in roots | folders for folder in with_folders_above(path)})
        table = next(filter(_has_log, above), None)
    if table is not None:
        raise _is_raw(table, found.argument)


def _is_raw(table: str, argument: str) -> InvalidJobSpec:
    return InvalidJobSpec(
        f"{argument} reads raw files in the folder of the Delta table {table}. Such a read brings deleted rows "
        "back, and shows files that no version of the table names, those of this job among them. Read the table "
        f'as table("{table}"), in SQL through a view of that kind; or name other files by a path that does not '
        "hold the table. Nothing was read.",
        argument=argument,
    )


def files_read(spark: SparkSession, frame: DataFrame) -> Iterator[FilesRead]:
    """Yield the files of every relation in the frame's analysed plan; on Connect, those that the server lists."""
    if not is_classic(spark):
        yield FilesRead(roots=frozenset(), folders=_on_server(_folders(frame.inputFiles())))
        return
    plan: Any = frame._jdf.queryExecution().analyzed()
    for each in (plan, *_items(plan.subqueriesAll())):
        for leaf in _items(each.collectLeaves()):
            yield from _read_by(spark, leaf)


def _is_read_by_delta(spark: SparkSession, frame: DataFrame) -> bool:
    """Return whether a query on Connect has a relation of delta-spark's, which may read the table's files."""
    if is_classic(spark):
        return False
    connected: Any = frame
    plan = connected._explain_string()
    return any(each in plan for each in _DELTA_INDEXES)


def _lies_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _items(found: Any) -> list[Any]:
    return [found.apply(index) for index in range(found.size())]


def _read_by(spark: SparkSession, leaf: Any) -> Iterator[FilesRead]:
    from py4j.java_gateway import is_instance_of  # noqa: PLC0415 - only with Spark

    gateway: Any = spark.sparkContext._gateway
    kind = leaf.getClass().getSimpleName()
    if kind == "HiveTableRelation":
        root = _resolved(unquote(leaf.tableMeta().location().toString()))
        yield FilesRead(roots=frozenset({root}), folders=frozenset({root}))
    elif kind == "LogicalRelation" and is_instance_of(gateway, leaf.relation(), f"{_SOURCES}HadoopFsRelation"):
        yield _listed(spark, leaf.relation().location())
    elif kind == "DataSourceV2Relation" and is_instance_of(gateway, leaf.table(), f"{_SOURCES}v2.FileTable"):
        yield _listed(spark, leaf.table().fileIndex())


def _listed(spark: SparkSession, index: Any) -> FilesRead:
    roots = frozenset(map(_resolved, filter(None, index.rootPaths().mkString("\n").split("\n"))))
    if index.getClass().getName().startswith(_DELTA):
        return FilesRead(roots=roots, folders=frozenset(), by_log=True)
    jvm: Any = spark._jvm
    # All files in one answer: each item of a Java array would take another call.
    files = json.loads(jvm.com.fasterxml.jackson.databind.ObjectMapper().writeValueAsString(index.inputFiles()))
    return FilesRead(roots=roots, folders=frozenset(map(_resolved, _folders(files))))


def _folders(files: Iterable[str]) -> set[str]:
    """Return the folders of files, which Spark lists as encoded URIs."""
    return {unquote(folder) for folder in {file.rpartition("/")[0] for file in files}}


def _on_server(paths: Iterable[str]) -> frozenset[str]:
    """Return paths as a Connect server knows them, and without links, because it may be on this machine."""
    paths = {path.rstrip("/") for path in paths}
    return frozenset(paths | {local_path(path) or path for path in paths} | set(map(_resolved, paths)))


def _raw_table(spark: SparkSession, reads: Iterable[FilesRead], target: str) -> str | None:
    """Return the folder of the Delta table that these reads of raw files overlap; None if there is none."""
    reads = list(reads)
    if _overlaps(reads, target):
        return target
    paths = frozenset[str]().union(*(read.roots | read.folders for read in reads))
    folders = sorted({folder for path in paths for folder in with_folders_above(path)})
    if not is_classic(spark):
        return _table_of_server(spark, folders, paths)
    # A source may have tens of thousands of folders, and each call into the JVM takes most of a millisecond.
    here = next(filter(_has_log, folders), None)
    elsewhere = [folder for folder in folders if not folder.startswith("/")]
    if here is not None or not elsewhere:
        return here
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - only with Spark

    session: Any = spark._jsparkSession
    jvm: Any = spark._jvm
    settings, java_path = session.sessionState().newHadoopConf(), jvm.org.apache.hadoop.fs.Path

    def has_log(folder: str) -> bool:
        # Spark checks it as it reads the files themselves, with its own connection to their store.
        path = java_path(f"{folder}/{LOG_DIRECTORY}")
        try:
            return bool(path.getFileSystem(settings).exists(path))
        except Py4JJavaError:
            return False  # above what Spark has read, a folder may be closed to this job

    with ThreadPoolExecutor(min(_PARALLELISM, len(elsewhere)), thread_name_prefix="txlog-source") as pool:
        answers = list(pool.map(has_log, elsewhere))
    return next((folder for folder, answer in zip(elsewhere, answers, strict=True) if answer), None)


def _table_of_server(spark: SparkSession, folders: Sequence[str], read: Collection[str]) -> str | None:
    """Return the first of the folders in which a Connect server sees commits, by one request for many.

    Raises the server's error for a folder of `read`; a folder above these may be closed to it.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - only with Spark

    by_store: dict[str, list[str]] = {}
    for folder in folders:
        scheme, authority, path = split(folder)
        by_store.setdefault("" if scheme is None else f"{scheme}://{authority}", []).append(path)
    pending = [
        (store, paths[at : at + _ASKED_AT_ONCE])
        for store, paths in by_store.items()
        for at in range(0, len(paths), _ASKED_AT_ONCE)
    ]
    while pending:
        store, paths = pending.pop(0)
        # Hadoop looks up each name of a pattern whose alternatives have folders, and lists no folder above it.
        logs = ",".join(f"{_escaped(path).lstrip('/')}/{LOG_DIRECTORY}".lstrip("/") for path in paths)
        try:
            found = spark.read.format("text").load(f"{store}/{{{logs}}}").inputFiles()
        except PySparkException as error:
            if condition_of(error) == "PATH_NOT_FOUND":
                continue
            if len(paths) > 1:
                pending = [(store, [path]) for path in paths] + pending
            elif f"{store}{paths[0]}" in read:
                raise
            continue
        if found:
            table = unquote(min(found)).partition(f"/{LOG_DIRECTORY}/")[0]
            return local_path(table) or table
    return None


def _escaped(path: str) -> str:
    return re.sub(r"([\\{}\[\]*?,^])", r"\\\1", path)


def _has_log(folder: str) -> bool:
    """Return whether this is a Delta table's folder on this machine; False if this job may not look."""
    try:
        return folder.startswith("/") and stat_linked(f"{folder}/{LOG_DIRECTORY}") is not None
    except OSError:
        return False


def _overlaps(reads: Sequence[FilesRead], target: str) -> bool:
    """Return whether files are read in the target's folder, or a root may later contain it."""
    place, roots = _canonical(target), frozenset[str]().union(*(read.roots for read in reads))
    paths = roots.union(*(read.folders for read in reads))
    # A root is read down to its last folder, now or by the next attempt; of a folder only its own files are read.
    inside = (_lies_in(_place_of(path), place) for path in paths)
    return any(inside) or any(_lies_in(place, _place_of(root)) for root in roots)


def _canonical(uri: str) -> str:
    """Return one URI for all names of a folder, symbolic links of this machine included (C7)."""
    return _place_of(_resolved(uri))


def _place_of(uri: str) -> str:
    """Return the canonical form of a result of `_resolved`, without accessing the file system again."""
    scheme, authority, path = split(uri)
    return path if scheme is None else f"{store_kind(uri)}://{authority}{path}"


def _resolved(uri: str) -> str:
    """Return the same place without links, under a scheme that Spark knows."""
    path = local_path(uri)
    return uri.rstrip("/") if path is None else real_path(path)
