"""Plain English: what people read uses the field's words, and none that this project once invented for itself.

Read are the package, with its names, docstrings, comments and messages, and the pages. Ordinary words that were private
terms only as the name of a module (`clocks`, `memory`, `recent`, `running`, `looking`) are not looked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT

# What is not written, as a pattern of whole words, and what is written in its place.
WORDS = {
    "anyone": "any process, any reader",
    "layers?": "file index",
    "mask|masks|masked|masking": "deletion vector, deleted rows",
    "nobody": "no writer, no process, no row; or a passive: is not detected",
    "pin|pins|pinned|pinning": "materialize, materialized",
    "rounds": "attempts",
    "sameness": "schema compatibility, rule compatibility",
    "sieves?": "row filter",
    "(?:speaks?|spoken|speaking) of": "names, refers to, is about",
    "told|tells?": "returned, reported, logged, shown; distinguished; known",
    "verdicts?": "match, matches; or the outcome, the judgement",
    "whoever": "the caller, any process; or a passive",
}

# Where a word is still found. This list shrinks: a place without the word leaves it, and no place is added.
LEFT = {
    "mask|masks|masked|masking": {"contract.py", "datafiles", "docs", "engine", "jobs", "wording.py"},
    "pin|pins|pinned|pinning": {"docs"},
    "rounds": {"contract.py", "docs", "jobs", "wording.py"},
}

# Names that are not ours.
FOREIGN = re.compile(r"mask_secret|Airflow mask|replace_with_mask|never rounds,|\.tell\(|def tell\(")


def texts() -> Iterator[tuple[Path, str]]:
    """Every module and page, by its path; names in camel case are parted into their words."""
    paths = [*ROOT.glob("airflow_txlog/**/*.py"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("example_dags/*.py")]
    for path in sorted([*paths, ROOT / "README.md", ROOT / "SECURITY.md"]):
        yield path, re.sub(r"(?<=[a-z])(?=[A-Z])", " ", FOREIGN.sub("", path.read_text()))


def place_of(path: Path) -> str:
    """The part of the package, `docs`, or the file's name."""
    parts = path.relative_to(ROOT).parts
    return parts[1] if parts[0] == "airflow_txlog" else parts[0]


TEXTS = cache(lambda: list(texts()))


@pytest.mark.parametrize("word", WORDS)
def test_a_private_word_is_not_written(word: str) -> None:
    pattern = re.compile(rf"(?<![A-Za-z])(?:{word})(?![A-Za-z])", re.IGNORECASE)
    found = {path: len(pattern.findall(text)) for path, text in TEXTS()}
    places = {place_of(path) for path, count in found.items() if count}
    left = LEFT.get(word, set())
    wrong = {str(path.relative_to(ROOT)): n for path, n in found.items() if n and place_of(path) not in left}
    assert not wrong, f"write instead: {WORDS[word]}"
    assert not left - places, "no longer written there: take the place out of LEFT"
