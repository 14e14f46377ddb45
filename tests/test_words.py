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
    "rounds": "attempts",
    "sameness": "schema compatibility, rule compatibility",
    "sieves?": "row filter",
    "(?:speaks?|spoken|speaking) of": "names, refers to, is about",
    "told|tells?": "returned, reported, logged, shown; distinguished; known",
    "whoever": "the caller, any process; or a passive",
}

# Names that are not ours.
FOREIGN = re.compile(
    r"mask_secret|Airflow mask|replace_with_mask|\bmask=|utf8 mask octet|never rounds,|ROUNDS=|\.tell\(|def tell\(|"
    r"storageLayer"
)


def texts() -> Iterator[tuple[Path, str]]:
    """Every module and page, by its path; names in camel case are parted into their words."""
    paths = [*ROOT.glob("airflow_txlog/**/*.py"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("example_dags/*.py")]
    for path in sorted([*paths, ROOT / "README.md", ROOT / "SECURITY.md"]):
        yield path, re.sub(r"(?<=[a-z])(?=[A-Z])", " ", FOREIGN.sub("", path.read_text()))


TEXTS = cache(lambda: list(texts()))


@pytest.mark.parametrize("word", WORDS)
def test_a_private_word_is_not_written(word: str) -> None:
    pattern = re.compile(rf"(?<![A-Za-z])(?:{word})(?![A-Za-z])", re.IGNORECASE)
    found = {str(path.relative_to(ROOT)): len(pattern.findall(text)) for path, text in TEXTS()}
    assert not {path: count for path, count in found.items() if count}, f"write instead: {WORDS[word]}"


FOREIGN_OPERATORS = {
    "ApprovalOperator",
    "BashOperator",
    "BaseOperator",
    "BaseSensorOperator",
    "SQLTableCheckOperator",
    "SparkSubmitOperator",
}


def test_every_operator_that_is_named_is_there() -> None:
    texts = [path.read_text() for path, _ in TEXTS()]
    named = {name for text in texts for name in re.findall(r"\b[A-Z][A-Za-z]+Operator\b", text)}
    defined = {name for text in texts for name in re.findall(r"^class ([A-Z][A-Za-z]+Operator)\b", text, re.MULTILINE)}
    assert named - defined == FOREIGN_OPERATORS
