"""How docstrings begin, and the sentences that this project once wrote and never writes again."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import pytest

from tests.helpers.paths import ROOT
from tools import rooms

# In the imperative, as in "Return the live files". A new verb is welcome; "The live files" and "Whether …" are not.
VERBS = frozenset(
    re.findall(
        r"\w+",
        """
    Accept Add Allow Answer Append Apply Ask Attach Become Begin Bind Build Call Cancel Change Check Choose Clean Clone
    Close Cluster Collect Combine Commit Compact Compare Complete Compute Continue Convert Copy Count Create Cut Decide
    Decode Delete Describe Digest Discard Do Draw Drop Encode End Erase Evaluate Exit Expire Explain Fail Fill Filter
    Find Finish Fix Follow Forget Free Give Group Hand Have Ignore Import Insert Join Judge Keep Kill Leave Let List
    Load Log Look Maintain Make Mark Materialize Measure Merge Move Note Open Overwrite Pack Parse Plan Prepare Print
    Prompt Publish Put Raise Read Record Recount Refuse Register Release Remember Remove Rename Render Reopen Repair
    Replace Report Request Reschedule Reserve Resolve Restore Resume Return Roll Round Run Save Search Send Serve Set
    Show Skip Sort Split Stage Start State Stop Store Tag Take Truncate Turn Undo Unite Update Use Vacuum Validate
    Verify Wait Warn Watch Widen Wrap Write Yield
    """,
    )
)

# The examples of how not to write, each with what to write.
NEVER = {
    "what outlives all that": "Conflicts that persist past the deadline are raised to Airflow",
    "says whether there is": "The job validates the time zone",
    "the live files that may hold a match": "Return the live files that may contain a match",
    "only the partitions are read that": "The merge reads only the partitions that occur in the source",
    "nothing is to be said": "You don't need to change your DAG",
    "is gone on with": "The job reuses the source it has already materialized",
    "a job has one now": "now() returns the same instant everywhere in one job",
    "rather wakes too early": "The sensor may wake early; it never misses an event",
    "of a task on the runners": "With child, warm and in_process, Spark runs on the worker",
    "a race that is lost without a conflict costs": "The commit is retried within milliseconds",
}


class Documented(NamedTuple):
    """A function with a docstring: where it is, the first word, and what it is."""

    where: str
    word: str
    is_public: bool
    is_property: bool


@cache
def documented() -> tuple[Documented, ...]:
    def found() -> Iterator[Documented]:
        for path in sorted([*(ROOT / "airflow_txlog").rglob("*.py"), *(ROOT / "tools").glob("*.py")]):
            for node in rooms.statements_of(rooms.syntax_of(path)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(node)):
                    decorators = [ast.unparse(each) for each in node.decorator_list]
                    yield Documented(
                        where=f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {text.splitlines()[0]}",
                        word=text.split()[0].rstrip(",.:;"),
                        is_public=not node.name.startswith("_"),
                        is_property=any(re.search(r"\w*property$", each) for each in decorators),
                    )

    return tuple(found())


def test_the_docstring_of_a_public_function_starts_with_a_verb() -> None:
    """A property may start with what it is, as an attribute does: "The size of all chunks"."""
    public = [each for each in documented() if each.is_public and not each.is_property]
    assert len(public) > 2000
    assert [each.where for each in public if each.word not in VERBS] == []


@pytest.mark.parametrize("only_public", [True, False])
def test_nine_docstrings_in_ten_start_with_a_verb_properties_included(only_public: bool) -> None:
    counted = [each for each in documented() if each.is_public or not only_public]
    assert sum(each.word in VERBS for each in counted) >= 0.9 * len(counted)


@cache
def prose() -> dict[str, str]:
    """Return the words of each file that people read, in lower case and without the breaks of its lines."""
    patterns = ("*.md", "docs/**/*.md", "airflow_txlog/**/*.py", "example_dags/*.py", "tools/*", "tests/**/*.py")
    paths = {path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()}
    return {
        str(path.relative_to(ROOT)): re.sub(r"[\s#\"]+", " ", path.read_text()).lower()
        for path in paths - {ROOT / "tests" / "test_docstrings.py"}
    }


@pytest.mark.parametrize("sentence", NEVER)
def test_a_sentence_that_needs_a_second_reading_is_not_written(sentence: str) -> None:
    assert [name for name, text in prose().items() if sentence in text] == [], f"write instead: {NEVER[sentence]}"
