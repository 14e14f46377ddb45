"""The faults of `make mutants` fit the code and name tests that exist; `make mutants` itself runs them."""

from __future__ import annotations

import dataclasses

import pytest

from tests.helpers.paths import ROOT
from tools.mutants import DoesNotFit, Run, outcome_of, with_fault
from tools.mutants_list import FAULTS, Fault


def test_there_are_at_least_25_faults_and_no_two_of_one_name() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 25


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_fits_the_code_and_its_tests_exist(fault: Fault) -> None:
    with_fault(fault, ROOT)
    assert fault.tests
    for test in fault.tests:
        file, _, name = test.partition("::")
        assert (ROOT / file).is_file(), f"{fault.name}: there is no {file}; change its line in tools/mutants_list.py"
        assert not name or f"\ndef {name}(" in (ROOT / file).read_text(), f"{fault.name}: {file} has no {name}"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"old": "no such code"}, "occurs 0 times"),
        ({"old": "import"}, "occurs .* times"),
        ({"new": "def"}, "makes no Python"),
        ({"file": "airflow_txlog/gone.py"}, "there is no"),
    ],
)
def test_a_fault_that_no_longer_fits_is_named(change: dict[str, str], what: str) -> None:
    with pytest.raises(DoesNotFit, match=what):
        with_fault(dataclasses.replace(FAULTS[0], **change), ROOT)


def test_a_fault_that_changes_nothing_but_spaces_is_refused() -> None:
    fault = FAULTS[0]
    with pytest.raises(DoesNotFit, match="changes nothing"):
        with_fault(dataclasses.replace(fault, new=fault.old + "    # a comment\n"), ROOT)


@pytest.mark.parametrize(
    ("exit_code", "error", "outcome"),
    [
        (0, None, "SURVIVED"),
        (1, "AssertionError", "caught"),
        (1, "ConcurrentAppend", "caught"),
        (1, "ImportError", "ERROR"),
        (1, "SyntaxError", "ERROR"),
        (1, None, "ERROR"),
        *((code, None, "ERROR") for code in (None, 2, 3, 4, 5)),
    ],
)
def test_only_a_test_that_failed_catches_a_fault(exit_code: int | None, error: str | None, outcome: str) -> None:
    run = Run(exit_code=exit_code, seconds=0.0, test=None if error is None else "test_x.py::test_y", error=error)
    assert outcome_of(run) == outcome
