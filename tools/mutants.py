"""Puts known faults into a copy of the product, one at a time, and runs the tests that must catch them: `make mutants`.

A test suite is worth what it notices. `tools.mutants_list` names plausible mistakes; this runner makes each of them in
a copy of the tree under build/mutants (never in the working tree) and runs the few tests that ought to fail. The
invariant: a fault counts as caught only where a test of the faulty code failed. So the chosen tests must first pass
without any fault; every process of a run must import the package from the copy (`tools.mutants_probe`); and a fault
that merely cannot be imported, or a run that ends in anything but a failed test, is an error of the list.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.mutants_list import FAULTS, Fault
from tools.mutants_probe import COPY, MODULE, REPORT

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "mutants"
# What the commands of the Makefile make, and what no test needs.
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "build", "dist", "__pycache__", ".*_cache", ".hypothesis")
JOBS_DEFAULT = 2
# The slowest fault takes half a minute on a quiet machine. A fault that makes its tests hang is not caught.
DEADLINE_S = 300
BASELINE_DEADLINE_S = 900
OUTPUT_TAIL_LINES = 25

# What a test process dies of when the faulty code makes no sense, whatever the test is about.
_NO_CATCH = frozenset({"ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "NameError"})


class DoesNotFit(Exception):
    """The code that a fault changes is not there, or is there more than once."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How one run of pytest ended. `exit_code` is None where the run was stopped because it took too long."""

    exit_code: int | None
    seconds: float
    test: str | None = None
    """The first test that failed."""
    error: str | None = None
    """The class of what it raised."""
    output: str = ""


def with_fault(fault: Fault, root: Path) -> str:
    """Return the source of the fault's file under `root`, with the fault in it.

    Raises DoesNotFit unless the code that it changes occurs exactly once, and the result is other, valid Python.
    """
    path = root / fault.file
    if not path.is_file():
        raise DoesNotFit(f"The fault {fault.name} no longer fits: there is no {fault.file}.")
    source = path.read_text()
    if (count := source.count(fault.old)) != 1:
        raise DoesNotFit(
            f"The fault {fault.name} no longer fits: the code that it changes occurs {count} times in {fault.file}, "
            "and must occur once. Change `old` and `new` in tools/mutants_list.py as the code was changed."
        )
    changed = source.replace(fault.old, fault.new)
    try:
        is_other_code = ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
    except SyntaxError as error:
        raise DoesNotFit(f"The fault {fault.name} makes no Python of {fault.file}: {error}.") from error
    if not is_other_code:
        raise DoesNotFit(f"The fault {fault.name} changes nothing in {fault.file}.")
    return changed


def outcome_of(run: Run) -> str:
    """Return `caught`, `SURVIVED` or `ERROR`."""
    if run.exit_code == 0:
        return "SURVIVED"
    is_catch = run.exit_code == 1 and run.test is not None and run.error not in _NO_CATCH
    return "caught" if is_catch else "ERROR"


class Copy:
    """A copy of the tree in which tests run. Used by one thread at a time."""

    def __init__(self, number: int) -> None:
        self.root = FOLDER / str(number)
        shutil.copytree(ROOT, self.root, ignore=NOT_COPIED)

    def run_with(self, fault: Fault) -> Run:
        """Run the fault's tests, with the fault in the code."""
        with self._put(fault):
            module = fault.file.removesuffix(".py").replace("/", ".")
            return self.run(fault.tests, DEADLINE_S, module=module)

    @contextlib.contextmanager
    def _put(self, fault: Fault) -> Iterator[None]:
        path = self.root / fault.file
        before = path.read_text()
        changed = with_fault(fault, self.root)
        try:
            self._write(path, changed)
            yield
        finally:
            self._write(path, before)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.write_text(text)
        # Python takes compiled code for current by size and second of its source: two faults may share both.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()

    def run(self, tests: Sequence[str], deadline_s: int, *, module: str = "") -> Run:
        """Run one pytest process, which stops at the first failure."""
        report = self.root / "report.json"
        report.unlink(missing_ok=True)
        known = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TXLOG_"))}
        places = {"PYTHONPATH": str(self.root), COPY: str(self.root), MODULE: module, REPORT: str(report)}
        options = ["-x", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "tools.mutants_probe"]
        began = time.monotonic()
        exit_code, output = _finished(
            [sys.executable, "-m", "pytest", *options, *tests], self.root, known | places, deadline_s
        )
        found = json.loads(report.read_text()) if report.exists() else {}
        return Run(exit_code=exit_code, seconds=time.monotonic() - began, output=output, **found)


def _finished(command: Sequence[str], cwd: Path, env: dict[str, str], deadline_s: int) -> tuple[int | None, str]:
    """Return exit code and output of a command. At the deadline, kill it with all that it has started."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=deadline_s)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        _end(process)
        return None, process.communicate()[0]
    except BaseException:
        _end(process)
        raise


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def tests_of(faults: Sequence[Fault]) -> list[str]:
    """Return all tests of the faults, each once, in order."""
    return list(dict.fromkeys(test for fault in faults for test in fault.tests))


def run_all(faults: Sequence[Fault], jobs: int) -> bool:
    """Run every fault and print what became of it; whether every one was caught."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    # What needs Spark comes last: its runs take the longest, and go side by side.
    ordered = sorted(faults, key=lambda fault: fault.needs_spark)
    groups = [group for flag in (False, True) if (group := [each for each in ordered if each.needs_spark is flag])]
    copies: queue.Queue[Copy] = queue.Queue()
    for number in range(1, min(jobs, len(ordered)) + 1):
        copies.put(Copy(number))

    def borrowing(work: Callable[[Copy], Run]) -> Run:
        copy = copies.get()
        try:
            return work(copy)
        finally:
            copies.put(copy)

    with ThreadPoolExecutor(jobs) as pool:
        clean = pool.map(lambda group: borrowing(lambda copy: copy.run(tests_of(group), BASELINE_DEADLINE_S)), groups)
        for run in clean:
            if run.exit_code != 0:
                print(_tail(run))
                print(f"The tests fail without any fault (exit code {run.exit_code}), so they can catch none.")
                return False
        print(f"{len(tests_of(ordered))} tests and test files pass without a fault. Now with one at a time:\n")
        runs = pool.map(lambda fault: borrowing(lambda copy: copy.run_with(fault)), ordered)
        outcomes = []
        for number, (fault, run) in enumerate(zip(ordered, runs, strict=True), 1):
            outcomes.append(outcome_of(run))
            print(_row(number, fault, run), flush=True)
    return set(outcomes) == {"caught"}


def _row(number: int, fault: Fault, run: Run) -> str:
    found = outcome_of(run)
    by = {
        "caught": f"by {run.test}",
        "SURVIVED": f"by none of {', '.join(fault.tests)}",
        "ERROR": f"exit code {run.exit_code}, {run.test} {run.error}\n{_tail(run)}",
    }[found]
    return f"{number:3} {found:8} {run.seconds:5.1f} s  {fault.name}\n{'':22}{fault.breaks}\n{'':22}{by}"


def _tail(run: Run) -> str:
    return "\n".join(f"    | {line}" for line in run.output.splitlines()[-OUTPUT_TAIL_LINES:])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run these faults")
    parser.add_argument("--list", action="store_true", help="list the faults and their tests, and run nothing")
    parser.add_argument("--jobs", type=int, default=JOBS_DEFAULT, help=f"runs side by side ({JOBS_DEFAULT})")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.only or ()) - {fault.name for fault in FAULTS})
    if unknown:
        parser.error(f"there is no fault {', '.join(unknown)}; --list names them all")
    if options.jobs < 1:
        parser.error("--jobs must be 1 or more")
    faults = [fault for fault in FAULTS if options.only is None or fault.name in options.only]
    if options.list:
        for fault in faults:
            print(f"{fault.name}\n    {fault.breaks}\n    {fault.file}: {', '.join(fault.tests)}")
        return 0
    began = time.monotonic()
    try:
        for fault in faults:
            with_fault(fault, ROOT)
        all_caught = run_all(faults, options.jobs)
    except DoesNotFit as error:
        print(error, file=sys.stderr)
        return 1
    found = "all caught" if all_caught else "NOT all caught"
    print(f"\n{len(faults)} faults, {found}, in {time.monotonic() - began:.0f} s")
    return 0 if all_caught else 1


if __name__ == "__main__":
    sys.exit(main())
