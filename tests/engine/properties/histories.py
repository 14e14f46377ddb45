"""Legal histories of a table, drawn by hypothesis: what any writer that keeps the protocol may have left in a log."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from tests.helpers.depth import depth

SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": "id", "type": "long", "nullable": True, "metadata": {}},
        {"name": "day", "type": "string", "nullable": True, "metadata": {}},
    ],
}

# The same examples in every run: a property that fails only now and then is no test.
REPEATABLE = settings(derandomize=True, deadline=None, max_examples=depth(12, 150))

# A file by its decoded path, and the spellings of it that the wire may use; `{root}` is the table's URI.
FILES = {
    "a.parquet": ["a.parquet", "%61.parquet", "./a.parquet", "{root}/a.parquet"],
    "day=1/b c.parquet": [
        "day=1/b%20c.parquet",
        "day=1/b c.parquet",
        "day%3D1/b%20c.parquet",
        "{root}/day=1/b%20c.parquet",
    ],
    "50%25.parquet": ["50%2525.parquet"],
    "é+ü.parquet": ["é+ü.parquet", "%C3%A9+%C3%BC.parquet"],
    "y.parquet": ["x/../y.parquet", "y.parquet", "x//..//y.parquet"],
}
PATHS = list(FILES)
VECTORS: list[str | None] = [None, None, "11111111111111111111", "22222222222222222222"]
APPLICATIONS = ["etl", "étl"]
DOMAINS = ["delta.clustering", "mine"]

# Far ahead: a tombstone of this time survives every checkpoint.
KEPT_MS = 2**52

_files = st.tuples(st.sampled_from(PATHS), st.sampled_from(VECTORS), st.integers(0, 3), st.integers(0, 2**40))
_events = st.one_of(
    st.tuples(st.just("add"), _files),
    st.tuples(st.just("add"), _files),
    st.tuples(st.just("remove"), _files),
    st.tuples(st.just("txn"), st.tuples(st.sampled_from(APPLICATIONS), st.integers(0, 9))),
    st.tuples(st.just("domain"), st.tuples(st.sampled_from(DOMAINS), st.booleans(), st.text(max_size=3))),
    st.tuples(st.just("metadata"), st.text(max_size=3)),
    st.tuples(st.just("unknown"), st.integers()),
)
HISTORIES = st.lists(st.lists(_events, max_size=6), min_size=1, max_size=8)


def write(history: list[list[Any]], root: str) -> list[bytes]:
    """The commits of the history. Version 0 holds protocol and metadata besides."""
    commits = []
    live: dict[tuple[str, str | None], dict[str, Any]] = {}
    for version, events in enumerate(history):
        lines: list[dict[str, Any]] = [{"commitInfo": {"timestamp": version, "operation": "WRITE"}}]
        if version == 0:
            lines += [_protocol(), _metadata({})]
        named: set[Any] = set()
        for kind, event in events:
            lines += _lines(kind, event, live, named, root)
        if version == 0:
            # A commit holds one metaData at most.
            *others, last = [each for each in lines if "metaData" in each]
            lines = [each for each in lines if each not in others or each is last]
        commits.append("\n".join(json.dumps(each, ensure_ascii=False) for each in lines).encode() + b"\n")
    return commits


def _lines(kind: str, event: Any, live: dict[Any, Any], named: set[Any], root: str) -> list[dict[str, Any]]:
    """The actions of one event; none where the commit has named its subject already."""
    subject = (
        (kind, event[0]) if kind in ("txn", "domain") else ("file", event[0]) if kind in ("add", "remove") else kind
    )
    if subject in named and kind != "unknown":
        return []
    named.add(subject)
    match kind:
        case "add":
            return _add(event, live, root)
        case "remove":
            return _remove(event, live, root)
        case "txn":
            return [{"txn": {"appId": event[0], "version": event[1]}}]
        case "domain":
            name, removed, configuration = event
            return [{"domainMetadata": {"domain": name, "configuration": configuration, "removed": removed}}]
        case "metadata":
            return [_metadata({"x.note": event})]
    return [{"someday": {"value": str(event)}}]


def _spelled(path: str, number: int, root: str) -> str:
    spellings = FILES[path]
    return spellings[number % len(spellings)].replace("{root}", root)


def _add(event: Any, files: dict[Any, Any], root: str) -> list[dict[str, Any]]:
    path, vector, spelling, size = event
    lines = []
    # A path is live with one deletion vector at most: the older one is removed in the same commit.
    for key in [key for key in files if key[0] == path and key[1] != vector]:
        lines.append(_removal(key, spelling + 1, root, files.pop(key)))
    add: dict[str, Any] = {
        "path": _spelled(path, spelling, root),
        "partitionValues": {"day": None if size % 3 == 0 else str(size % 5)},
        "size": size,
        "modificationTime": size + 1,
        "dataChange": bool(size % 2),
    }
    if size % 4:
        add["stats"] = json.dumps({"numRecords": 9, "minValues": {"id": size}, "maxValues": {"id": size + 1}})
    if size % 7 == 0:
        add["tags"] = {"k": "v", "n": None}
    if size % 5 == 0:
        add |= {"baseRowId": size, "defaultRowCommitVersion": 1, "clusteringProvider": "liquid"}
    if vector is not None:
        add["deletionVector"] = _vector(vector)
    files[path, vector] = add
    return [*lines, {"add": add}]


def _remove(event: Any, files: dict[Any, Any], root: str) -> list[dict[str, Any]]:
    """Of a live file of this path; or, as some writers do, of a file that is not live."""
    path, _, spelling, _ = event
    for key in [key for key in files if key[0] == path]:
        return [_removal(key, spelling, root, files.pop(key))]
    return [{"remove": {"path": _spelled(path, spelling, root), "dataChange": True, "deletionTimestamp": KEPT_MS}}]


def _removal(key: tuple[str, str | None], spelling: int, root: str, add: dict[str, Any]) -> dict[str, Any]:
    remove: dict[str, Any] = {"path": _spelled(key[0], spelling, root), "dataChange": True}
    if spelling % 2:
        remove |= {"extendedFileMetadata": True, "partitionValues": add["partitionValues"], "size": add["size"]}
    remove["deletionTimestamp"] = KEPT_MS
    if key[1] is not None:
        remove["deletionVector"] = _vector(key[1])
    return {"remove": remove}


def _vector(name: str) -> dict[str, Any]:
    return {"storageType": "u", "pathOrInlineDv": name, "offset": 1, "sizeInBytes": 40, "cardinality": 1}


def _protocol() -> dict[str, Any]:
    both = ["deletionVectors", "v2Checkpoint"]
    features = {"readerFeatures": both, "writerFeatures": [*both, "domainMetadata"]}
    return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7} | features}


def _metadata(configuration: dict[str, str]) -> dict[str, Any]:
    return {
        "metaData": {
            "id": "t",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(SCHEMA),
            "partitionColumns": ["day"],
            "configuration": configuration,
        }
    }
