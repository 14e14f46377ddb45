"""What the table must be, by its log and the journals alone: nothing of the engine is used to find it."""

from __future__ import annotations

import base64
import io
import json
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

from tests.chaos.work import PROPERTY, WITHOUT_TRANSACTION, Journal, Piece, Rows, apply

# The protocol writes the identifier of a vector's file in another alphabet than Python's.
_FROM_Z85 = str.maketrans(
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
)

Actions = list[dict[str, Any]]
Log = dict[int, Actions]
"""The actions of each version."""
Work = tuple[str, int]
"""The name of a process, and the number of one of its pieces."""


@dataclass
class Found:
    """What the checker found. `problems` are sentences, of which there must be none."""

    commits: int = 0
    job_commits: int = 0
    conflicts: int = 0
    job_conflicts: int = 0
    resumed: int = 0
    lost: int = 0
    duplicated: int = 0
    unserializable: int = 0
    max_over_min: float = 0.0
    problems: list[str] = field(default_factory=list)
    live: set[str] = field(default_factory=set)


def check(log: Log, journals: Path, files: set[str], rows: Rows, checkpoints: dict[int, bytes] | None = None) -> Found:
    """Compare the actions of every version, the journals, the files that there are, and the rows that were read."""
    found = Found(commits=len(log) - 1)
    if sorted(log) != list(range(len(log))):
        found.problems.append(f"the versions have gaps: {sorted(set(range(max(log) + 1)) - set(log))[:5]}")
    known = {path.stem: Journal(path) for path in sorted(journals.glob("*.jsonl"))}
    landed = _landed(log, known, found)
    found.duplicated = sum(1 for versions in landed.values() if len(versions) > 1)
    _check_acknowledged(log, known, landed, found)
    replay = _Replay(known, {versions[0]: work for work, versions in landed.items()}, found)
    for version, actions in sorted(log.items()):
        replay.apply(version, actions)
        if checkpoints and version in checkpoints:
            _check_checkpoint(version, checkpoints[version], replay, found)
    if replay.model != rows:
        found.unserializable = 1
        differ = {key for key in replay.model.keys() | rows.keys() if replay.model.get(key) != rows.get(key)}
        found.problems.append(f"{len(differ)} rows are not those of a serial replay: {sorted(differ)[:5]}")
    found.live = {path for add in replay.live.values() for path in _files(add)}
    missing = found.live - files
    if missing:
        found.problems.append(f"{len(missing)} live files are missing: {sorted(missing)[:3]}")
    _count(known, landed, found)
    return found


def _count(known: dict[str, Journal], landed: dict[Work, list[int]], found: Found) -> None:
    commits = Counter(name for name, _ in landed)
    writers = []
    for name, journal in known.items():
        found.conflicts += journal.conflicts
        if name.startswith("job"):
            found.job_commits += commits[name]
            found.job_conflicts += journal.conflicts
            found.resumed += journal.resumed
        else:
            writers.append(commits[name])
    if writers:
        found.max_over_min = round(max(writers) / max(1, min(writers)), 2)


def _landed(log: Log, known: dict[str, Journal], found: Found) -> dict[Work, list[int]]:
    """The versions that hold each piece of work. Each commit is a piece's, an OPTIMIZE's, a VACUUM's, or the first."""
    landed: dict[Work, list[int]] = {}
    newest: dict[str, int] = {}
    for version, actions in sorted(log.items()):
        works = [(txn["appId"], txn["version"] - 1) for txn in _of("txn", actions)]
        if not works and (version == 0 or _is_optimize(actions) or _is_information(actions)):
            continue
        if len(works) != 1 or works[0][0] not in known or works[0][1] not in known[works[0][0]].pieces:
            found.problems.append(f"version {version} is no commit of a piece of work: {works}")
            continue
        name, number = works[0]
        if number < newest.get(name, 0):
            found.problems.append(f"version {version} is out of order: {name} had done its piece {newest[name]} before")
        newest[name] = number
        landed.setdefault((name, number), []).append(version)
    return landed


def _check_acknowledged(log: Log, known: dict[str, Journal], landed: dict[Work, list[int]], found: Found) -> None:
    """Each commit that was acknowledged is the one of its version; what was acknowledged as nothing is no commit."""
    for name, journal in known.items():
        for number, done in journal.done.items():
            kind, status, version = journal.pieces[number]["kind"], done["status"], done["version"]
            versions = landed.get((name, number), [])
            if kind == "optimize":
                found.lost += status == "committed" and not _is_optimize(log.get(version, []))
            elif status == "committed":
                found.lost += version not in versions
            elif status == "already_done":
                found.lost += not versions or version not in (None, *versions)
            elif versions:
                found.problems.append(f"{name} had nothing to do as its piece {number}, which is version {versions[0]}")


class _Replay:
    """The rows by the pieces of work, one after another, beside the live files by the actions of the log.

    After each version the statistics of the files that it touched must be those of the rows.
    """

    def __init__(self, known: dict[str, Journal], works: dict[int, Work], found: Found) -> None:
        self._known, self._works, self._found = known, works, found
        self._idle: dict[int, list[Work]] = {}
        for name, journal in known.items():
            for number, done in journal.done.items():
                if done["status"] == "nothing_to_do" and journal.pieces[number]["kind"] not in WITHOUT_TRANSACTION:
                    self._idle.setdefault(done["version"], []).append((name, number))
        self.model: Rows = {}
        self.live: dict[str, dict[str, Any]] = {}
        self.transactions: dict[str, int] = {}

    def apply(self, version: int, actions: Actions) -> None:
        buckets = set()
        if version in self._works:
            name, number = self._works[version]
            piece = self._known[name].pieces[number]
            apply(self.model, piece)
            buckets.add(int(piece["bucket"]))
            self._check_metadata(version, piece, [*_of("metaData", actions)])
        for remove in _of("remove", actions):
            removed = self.live.pop(remove["path"], None)
            if removed is None:
                self._found.problems.append(f"version {version} removes a file that is not live: {remove['path']}")
            else:
                buckets.add(_bucket(removed))
        for add in _of("add", actions):
            if add["path"] in self.live:
                self._found.problems.append(f"version {version} adds a file that is live: {add['path']}")
            self.live[add["path"]] = add
            buckets.add(_bucket(add))
        self.transactions |= {txn["appId"]: txn["version"] for txn in _of("txn", actions)}
        if not self._found.unserializable:
            self._check_statistics(version, buckets)
        for name, number in self._idle.get(version, []):
            self._check_idle(version, name, number)

    def _check_metadata(self, version: int, piece: Piece, found: list[dict[str, Any]]) -> None:
        """An ALTER alone changes the metadata, and by nothing but its property."""
        expected = [str(piece["piece"])] if piece["kind"] == "alter" else []
        if [each["configuration"].get(PROPERTY) for each in found] != expected:
            self._found.lost += 1
            self._found.problems.append(f"version {version} has not the metadata of its piece")

    def _check_statistics(self, version: int, buckets: set[int]) -> None:
        for bucket in sorted(buckets):
            rows = [(each, n) for each, (n, its) in self.model.items() if its == bucket]
            adds = [add for add in self.live.values() if _bucket(add) == bucket]
            stats = [json.loads(add["stats"]) for add in adds]
            vectors = [add["deletionVector"]["cardinality"] for add in adds if add.get("deletionVector")]
            count = sum(each["numRecords"] for each in stats) - sum(vectors)
            same = count == len(rows)
            if same and rows and not vectors:
                expected = {name: [each[place] for each in rows] for place, name in enumerate(("id", "n"))}
                for name, values in expected.items():
                    same &= min(values) == min(each["minValues"][name] for each in stats)
                    same &= max(values) == max(each["maxValues"][name] for each in stats)
            if not same:
                self._found.unserializable = 1
                self._found.problems.append(
                    f"version {version} has {count} rows in bucket {bucket}, and a serial replay {len(rows)}, or others"
                )
                return

    def _check_idle(self, version: int, name: str, number: int) -> None:
        after = dict(self.model)
        apply(after, self._known[name].pieces[number])
        if after != self.model:
            self._found.lost += 1
            self._found.problems.append(f"{name} had something to do as its piece {number} at version {version}")


def _check_checkpoint(version: int, data: bytes, replay: _Replay, found: Found) -> None:
    """A checkpoint holds the live files with their deletion vectors, and the transactions, of its version."""
    actions = pq.read_table(io.BytesIO(data)).to_pylist()
    adds = [each["add"] for each in actions if each.get("add")]
    transactions = {each["txn"]["appId"]: each["txn"]["version"] for each in actions if each.get("txn")}
    if sorted(map(_file, adds)) != sorted(map(_file, replay.live.values())):
        found.problems.append(f"the checkpoint of version {version} does not hold the live files of its version")
    if transactions != replay.transactions:
        found.problems.append(f"the checkpoint of version {version} does not hold the transactions of its version")


def _file(add: dict[str, Any]) -> tuple[str, str, int]:
    vector = add.get("deletionVector") or {}
    return add["path"], vector.get("pathOrInlineDv") or "", vector.get("offset") or 0


def _files(add: dict[str, Any]) -> list[str]:
    """The paths of the files that hold the rows and the deletion vector of a live file."""
    paths, vector = [unquote(add["path"])], add.get("deletionVector")
    if vector and vector["storageType"] == "u":
        name = uuid.UUID(bytes=base64.b85decode(vector["pathOrInlineDv"][-20:].translate(_FROM_Z85)))
        folder = vector["pathOrInlineDv"][:-20]
        paths.append(f"{folder}/deletion_vector_{name}.bin".removeprefix("/"))
    return paths


def _bucket(add: dict[str, Any]) -> int:
    return int(add["partitionValues"]["bucket"])


def _of(kind: str, actions: Actions) -> Iterable[dict[str, Any]]:
    return [each[kind] for each in actions if kind in each]


def _is_information(actions: Actions) -> bool:
    """As the commits in which a VACUUM reports its start and its end."""
    return all("commitInfo" in each for each in actions)


def _is_optimize(actions: Actions) -> bool:
    files = [*_of("add", actions), *_of("remove", actions)]
    return [each.get("operation") for each in _of("commitInfo", actions)] == ["OPTIMIZE"] and not any(
        each["dataChange"] for each in files
    )


def read_log(archive: Path, contents: dict[str, bytes]) -> Log:
    """The actions of each version: of the log as it is, by name, and of what was archived when it was cleaned.

    A cleaned version that is there again, with other actions, is another commit's: both count, as of one version.
    """
    log: Log = {}
    for name, data in sorted({(path.name, path.read_bytes()) for path in archive.glob("*.json")} | {*contents.items()}):
        log.setdefault(int(name[:20]), []).extend(json.loads(line) for line in data.splitlines() if line.strip())
    return log
