"""What the table must be, by its log and the journals alone: nothing of the engine is used to find it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.work import Journal, Rows, apply


@dataclass
class Found:
    """What the checker found. `problems` are sentences, of which there must be none."""

    commits: int = 0
    job_commits: int = 0
    conflicts: int = 0
    lost: int = 0
    duplicated: int = 0
    unserializable: int = 0
    max_over_min: float = 0.0
    problems: list[str] = field(default_factory=list)


def check(log: dict[int, list[dict[str, Any]]], journals: Path, files: set[str], rows: Rows) -> Found:
    """Compare the actions of every version, the journals, the files that there are, and the rows that were read."""
    found = Found(commits=len(log) - 1)
    if sorted(log) != list(range(len(log))):
        found.problems.append(f"the versions have gaps: {sorted(set(range(max(log) + 1)) - set(log))[:5]}")
    landed: dict[tuple[str, int], list[int]] = {}
    for version, actions in sorted(log.items()):
        for action in actions:
            if "txn" in action:
                key = (action["txn"]["appId"], action["txn"]["version"] - 1)
                landed.setdefault(key, []).append(version)
    known = {path.stem: Journal(path) for path in sorted(journals.glob("*.jsonl"))}
    model: Rows = {}
    for version, key in sorted((versions[0], key) for key, versions in landed.items()):
        del version
        apply(model, known[key[0]].pieces[key[1]])
    per_process: Counter[str] = Counter()
    for name, journal in known.items():
        found.conflicts += journal.counts["conflict"]
        per_process[name] = sum(1 for key in landed if key[0] == name)
        found.job_commits += per_process[name] if name.startswith("job") else 0
        for number, version in journal.done.items():
            if version is not None and "txn_of" not in journal.pieces[number]:
                found.lost += _is_lost(journal.pieces[number]["kind"], landed.get((name, number), []), version, log)
    found.duplicated = sum(1 for versions in landed.values() if len(versions) > 1)
    if model != rows:
        found.unserializable = 1
        differ = {key for key in model.keys() | rows.keys() if model.get(key) != rows.get(key)}
        found.problems.append(f"{len(differ)} rows are not those of a serial replay: {sorted(differ)[:5]}")
    missing = _live(log) - files
    if missing:
        found.problems.append(f"{len(missing)} live files are missing: {sorted(missing)[:3]}")
    writers = [count for name, count in per_process.items() if not name.startswith("job")]
    found.max_over_min = round(max(writers) / max(1, min(writers)), 2)
    return found


def _is_lost(kind: str, versions: list[int], acknowledged: int, log: dict[int, list[dict[str, Any]]]) -> bool:
    """Whether a commit that was acknowledged is not the one of its version."""
    if kind == "optimize":
        return not any("OPTIMIZE" in str(action.get("commitInfo")) for action in log.get(acknowledged, []))
    return acknowledged not in versions


def _live(log: dict[int, list[dict[str, Any]]]) -> set[str]:
    live: set[str] = set()
    for _, actions in sorted(log.items()):
        live -= {action["remove"]["path"] for action in actions if "remove" in action}
        live |= {action["add"]["path"] for action in actions if "add" in action}
    return live


def read_log(archive: Path, contents: dict[str, bytes]) -> dict[int, list[dict[str, Any]]]:
    """The actions of each version: of the log as it is, by name, and of what was archived when it was cleaned."""
    archived = {path.name: path.read_bytes() for path in archive.glob("*.json")}
    return {
        int(name[:20]): [json.loads(line) for line in data.splitlines() if line.strip()]
        for name, data in (archived | contents).items()
    }
