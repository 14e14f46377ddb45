"""The scripts of `tools/` that a release needs: what they decide, without the network that they run with."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.helpers.paths import ROOT
from tools import compatibility, package, performance_page
from tools.compatibility import COMBINATIONS, Combination

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIRED = [*PROJECT["dependencies"], *(one for few in PROJECT["optional-dependencies"].values() for one in few)]


def bounds(name: str) -> dict[str, str]:
    """Return the versions of a requirement by their operators."""
    (found,) = {one for one in REQUIRED if re.split(r"[\[<>=]", one)[0] == name and "[connect]" not in one}
    return dict(re.findall(r"([<>]=?)([\d.]+)", found))


def series(version: str, parts: int) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:parts])


# --- compatibility ----------------------------------------------------------------------------------------------------


def test_the_combinations_cover_every_release_that_the_bounds_allow() -> None:
    assert {each.python for each in COMBINATIONS} == {"3.11", "3.12", "3.13"}
    airflows = sorted({series(each.airflow, 2) for each in COMBINATIONS})
    assert airflows == [(3, minor) for minor in range(len(airflows))]
    assert airflows[0] == series(bounds("apache-airflow")[">="], 2)
    sparks = sorted({series(each.spark, 2) for each in COMBINATIONS})
    least, beyond = series(bounds("pyspark")[">="], 2), series(bounds("pyspark")["<"], 2)
    assert sparks == [(4, minor) for minor in range(least[1], beyond[1])]
    arrows = sorted({series(each.pyarrow, 1)[0] for each in COMBINATIONS})
    assert arrows == list(range(int(bounds("pyarrow")[">="]), arrows[-1] + 1))


def test_the_oldest_combination_has_the_lower_bounds_of_the_project() -> None:
    oldest = COMBINATIONS[-1]
    lowest = {"apache-airflow": oldest.airflow, "pyspark": oldest.spark, "pyarrow": oldest.pyarrow}
    lowest |= dict(one.split("==") for one in oldest.also if "==" in one)
    for name, version in lowest.items():
        bound = bounds(name)[">="]
        assert series(version, len(bound.split("."))) == series(bound, 9), name
    required = {re.split(r"[\[<>=]", one)[0] for one in PROJECT["dependencies"]}
    assert required <= lowest.keys()


def test_the_page_has_a_line_for_each_combination_and_a_day_for_each_that_was_run() -> None:
    lines = compatibility.read_lines()
    assert list(lines) == list(COMBINATIONS)
    for result in lines.values():
        assert re.fullmatch(r"not run \| –|[^|]+ \| 20\d\d-\d\d-\d\d", result), result


def test_the_page_names_the_bounds_that_older_releases_of_airflow_need() -> None:
    bounds = {one for each in COMBINATIONS for one in each.also if "<" in one}
    text = compatibility.PAGE.read_text()
    assert bounds
    assert [one for one in bounds if f"`{one}`" not in text] == []


def test_the_classifiers_name_the_pythons_that_passed() -> None:
    """The suite runs with the Python of constraints.txt, and the combinations with others."""
    passed = {each.python for each, result in compatibility.read_lines().items() if result.startswith("passed | ")}
    passed |= set(re.findall(r"with Python (3\.\d+)", (ROOT / "constraints.txt").read_text()))
    named = {one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", one)}
    assert named == passed


def test_a_result_is_written_with_its_day_and_leaves_the_other_lines_as_they_are(tmp_path: Path) -> None:
    page = tmp_path / "support.md"
    first, second, *_ = COMBINATIONS
    page.write_text("before\n" + compatibility.START + compatibility.HEAD + compatibility.END + "\nafter\n")
    assert compatibility.read_lines(page) == {}
    compatibility.write_lines({first: "passed | 2026-01-02"}, page)
    kept = compatibility.read_lines(page)
    compatibility.write_lines(kept | {second: "tests failed"}, page)
    lines = compatibility.read_lines(page)
    assert lines[first] == "passed | 2026-01-02"
    assert re.fullmatch(r"tests failed \| 20\d\d-\d\d-\d\d", lines[second])
    assert {result for each, result in lines.items() if each not in (first, second)} == {"not run | –"}
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("<!-- end -->\nafter\n")


def test_a_combination_whose_python_is_missing_is_not_run(tmp_path: Path) -> None:
    result = compatibility.install(Combination("3.3.2", "3.99", "4.2.0", "26.0.1"), tmp_path, None)
    assert result == "not run: no Python 3.99 here"
    assert list(tmp_path.iterdir()) == []


def test_a_combination_runs_with_nothing_of_this_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "Another")
    with (tmp_path / "out").open("w") as out:
        assert compatibility.run_in(tmp_path, ["env"], out) == 0
        assert compatibility.run_in(tmp_path, ["sh", "-c", "exit 7"], out) == 7
    seen = dict(line.split("=", 1) for line in (tmp_path / "out").read_text().splitlines() if "=" in line)
    assert {"PYTHONPATH", "AIRFLOW__CORE__EXECUTOR"}.isdisjoint(seen)
    assert seen["AIRFLOW_HOME"] == f"{tmp_path}/airflow"
    assert seen["PATH"].startswith(f"{tmp_path}/venv/bin:")


def test_the_tests_of_a_combination_are_there() -> None:
    assert [name for name in compatibility.TESTS if not (ROOT / name).exists()] == []


# --- a release --------------------------------------------------------------------------------------------------------

ADDRESSES = "".join(f"Project-URL: {name}, https://example.org/{name}\n" for name in package.ADDRESSES)


@pytest.mark.parametrize(
    ("tag", "addresses", "changelog", "reason"),
    [
        ("v1.2.3", ADDRESSES, "## [1.2.3] - 2026-01-02\n", None),
        ("v1.2.4", ADDRESSES, "## [1.2.3]\n", "the tag v1.2.4 does not name the version of the wheel, 1.2.3"),
        ("1.2.3", ADDRESSES, "## [1.2.3]\n", "the tag 1.2.3 does not name the version"),
        ("v1.2.3", "", "## [1.2.3]\n", "the wheel has no address for Documentation, Source, Issues, Changelog"),
        ("v1.2.3", ADDRESSES, "## [Unreleased]\n", "CHANGELOG.md has no section for 1.2.3"),
    ],
)
def test_a_tag_is_published_only_with_its_version_its_addresses_and_its_changes(
    tag: str, addresses: str, changelog: str, reason: str | None, tmp_path: Path
) -> None:
    wheel = tmp_path / "one-1.2.3-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as files:
        files.writestr("one-1.2.3.dist-info/METADATA", f"Metadata-Version: 2.4\nName: one\nVersion: 1.2.3\n{addresses}")
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{changelog}")
    if reason is None:
        package.check_release(tag, wheel, tmp_path)
        return
    with pytest.raises(SystemExit, match=reason):
        package.check_release(tag, wheel, tmp_path)


@pytest.mark.parametrize("own", ["", '[project.urls]\nDocumentation = "https://docs.example.org"\n\n[tool.x]\ny = 1\n'])
def test_a_release_names_the_addresses_of_the_repository_that_it_is_built_in(own: str, tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text(f'[project]\nname = "one"\nversion = "1.2.3"\n{own}')
    package.add_addresses(project, "https://git.example.org/team/one")
    below = "https://git.example.org/team/one/blob/v1.2.3"
    assert tomllib.loads(project.read_text())["project"]["urls"] == {
        "Documentation": "https://docs.example.org" if own else f"{below}/docs/index.md",
        "Source": "https://git.example.org/team/one",
        "Issues": "https://git.example.org/team/one/issues",
        "Changelog": f"{below}/CHANGELOG.md",
    }


def test_the_tools_of_a_release_are_pinned() -> None:
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", one) for one in package.PACKAGES)
    assert re.search(r"@v[\d.]+$", package.ACTIONLINT)


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_the_workflows_pin_every_action_by_its_digest_and_start_without_permissions() -> None:
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "release.yml"]
    for path in WORKFLOWS:
        used = re.findall(r"uses: (.+)", path.read_text())
        assert used
        assert [one for one in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", one)] == []
        assert "\npermissions: {}\n" in path.read_text()


def test_each_python_of_the_classifiers_runs_the_tests() -> None:
    text = WORKFLOWS[0].read_text()
    (matrix,) = re.findall(r"python: \[(.*)\]", text)
    assert {f":: {each}" for each in re.findall(r"[\d.]+", matrix)} == {
        one[-7:] for one in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", one)
    }
    assert "TXLOG_PYTHON: python${{ matrix.python }}" in text, "make takes the oldest Python otherwise"


def test_the_workflows_run_what_a_change_and_a_release_need() -> None:
    """By the commands of the Makefile, so that everybody can run the same."""
    commands = {path.name: re.findall(r"run: make ([\w-]+)", path.read_text()) for path in WORKFLOWS}
    assert commands == {
        "ci.yml": ["lint", "test", "test-long", "docs", "package", "check-install"],
        "release.yml": ["package", "check-install"],
    }
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {name for few in commands.values() for name in few} <= set(targets)


# --- shell scripts ----------------------------------------------------------------------------------------------------


def script(folder: Path, name: str, text: str) -> Path:
    """Write an executable script of the shell."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_python_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    script(tmp_path, "python3.11", "exit 127")
    (tmp_path / "python3.12").symlink_to(sys.executable)
    run = [str(shutil.which("bash")), str(ROOT / "tools" / "find_python.sh")]
    environment = {"PATH": str(tmp_path), "PYTHONHOME": sys.base_prefix}
    found = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    assert os.path.samefile(found.stdout.strip(), sys.executable)
    chosen = subprocess.run(run, env=environment | {"TXLOG_PYTHON": "python3.11"}, capture_output=True, check=False)
    assert (chosen.returncode, chosen.stdout) == (1, b""), "the one that was chosen does not run"
    (tmp_path / "python3.12").unlink()
    without = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert (without.returncode, without.stdout) == (1, "")
    assert without.stderr.startswith("No Python 3.11, 3.12 or 3.13 (with venv) was found on PATH")


def test_an_optimized_python_is_preferred_within_a_version(tmp_path: Path) -> None:
    # What the look prints: whether it was built with optimizations, and its path.
    script(tmp_path, "first/python3.11", "echo 0 /first")
    script(tmp_path, "second/python3.11", "echo 1 /second")
    script(tmp_path, "second/python3.12", "echo 1 /other version")
    run = [str(shutil.which("bash")), str(ROOT / "tools" / "find_python.sh")]

    def found(path: str, **chosen: str) -> str:
        done = subprocess.run(run, env={"PATH": path} | chosen, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    both = f"{tmp_path}/first:{tmp_path}/second"
    assert found(both) == "/second"
    assert found(both, TXLOG_PYTHON=f"{tmp_path}/first/python3.11") == "/first", "the user chose it"
    assert found(both, TXLOG_PYTHON="python3.12") == "/other version"
    (tmp_path / "second" / "python3.11").unlink()
    assert found(both) == "/first", "the version comes first"


def copied(name: str, folder: Path) -> Path:
    """Return a copy of a script, in a repository that has nothing else."""
    (folder / "tools").mkdir()
    return Path(shutil.copy(ROOT / "tools" / name, folder / "tools" / name))


def test_an_audit_looks_up_the_pinned_versions_and_fails_as_the_look_up_does(tmp_path: Path) -> None:
    audit = copied("audit.sh", tmp_path)
    script(tmp_path, "build/audit/bin/python", '[ "$1" = -c ] || { echo "$@"; exit 3; }')
    run = subprocess.run([audit, "osv"], capture_output=True, text=True, check=False)
    assert run.returncode == 3
    assert run.stdout.startswith("-m pip_audit --requirement constraints.txt --no-deps --disable-pip --strict ")
    assert "--vulnerability-service osv " in run.stdout


def test_a_lock_that_fails_leaves_the_pinned_versions_as_they_are(tmp_path: Path) -> None:
    lock = copied("lock.sh", tmp_path)
    made = 'mkdir -p "$3/bin" && cp "$0.inner" "$3/bin/python"'
    python = script(tmp_path, "python", made)
    script(tmp_path, "tools/find_python.sh", f"echo {python}")
    (tmp_path / "constraints.txt").write_text("old==1\n")
    environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    for installing, locking, wanted in ((1, 0, "old==1\n"), (0, 1, "old==1\n"), (0, 0, "new==2\n")):
        script(tmp_path, "bin/uv", f"exit {installing}")
        script(tmp_path, "python.inner", f"echo new==2; exit {locking}")
        run = subprocess.run([lock], env=environment, capture_output=True, text=True, check=False)
        assert run.returncode == installing or locking
        assert (tmp_path / "constraints.txt").read_text() == wanted


# --- the page of performance ------------------------------------------------------------------------------------------

LINES = [
    {"case": "merge", "peer": "pyspark", "ours_s": 1.5, "ratio_by_round": 0.25},
    {"case": "merge", "peer": "deltalake", "ours_s": 1.5, "ratio_by_round": 2.0},
    {"case": "merge", "peer": "pyspark", "ours_s": 9.0, "ratio_by_round": 0.5, "workers": 2},
    {"case": "append", "peer": "pyspark", "ours_s": 0.5, "ratio_by_round": 1.0},
    {"case": "growth-merge", "million_rows": 1.0, "mb": 10.0, "ours_s": 2.0, "ns_per_byte": 5.0},
    {"case": "growth-merge", "million_rows": 4.0, "mb": 40.0, "ours_s": 8.0, "ns_per_byte": 5.5},
]


def test_the_figures_of_a_run_become_tables_and_charts(tmp_path: Path) -> None:
    cases = performance_page.compared(LINES)
    rows = performance_page.table(cases).splitlines()[2:]
    assert rows == [
        "| merge | 1.5 | 0.25 |  | 2.00 |  |",
        "| append | 0.5 | 1.00 |  |  |  |",
    ]
    assert list(performance_page.compared(LINES, workers=2)) == ["merge"]
    on_s3 = {"case": "s3-open", "delay_ms": 20.0, "ours_s": 0.04, "ratio_by_round": 0.9, "ours_requests": 5}
    assert performance_page.plain_table([on_s3], performance_page.S3).splitlines()[2:] == [
        "| s3-open | 20 | 0.04 | 0.9 |  | 5 |  |"
    ]
    grown = performance_page.growth(LINES)
    assert performance_page.growth_table(grown).splitlines()[2:] == ["| 1 | 10 | 2 | 5 |", "| 4 | 40 | 8 | 5.5 |"]
    for drawn in (performance_page.chart(cases), performance_page.growth_chart(grown)):
        assert ElementTree.fromstring(drawn).tag.endswith("svg")
    page = tmp_path / "performance.md"
    page.write_text("a\n<!-- one: begin -->\nold\n<!-- one: end -->\n<!-- two: begin -->\nkept\n<!-- two: end -->\n")
    performance_page.put("one", "new", page)
    assert (
        page.read_text()
        == "a\n<!-- one: begin -->\nnew\n<!-- one: end -->\n<!-- two: begin -->\nkept\n<!-- two: end -->\n"
    )


# --- scripts that fetch -----------------------------------------------------------------------------------------------

FETCHING = sorted({path.name for path in (ROOT / "tools").glob("ensure_*.sh")} - {"ensure_java.sh", "ensure_venv.sh"})
# A fake writes its arguments down and does nothing. `mktemp` fails where a script wants a folder in .venv.
FAKE = '#!/bin/bash\nprintf "%s\\n" "${0##*/} $*" >>"$RECORD"\n'
NO_FOLDER_IN_VENV = '#!/bin/bash\ncase "$*" in *.venv*) exit 1 ;; esac\nexec /usr/bin/mktemp "$@"\n'


@pytest.mark.parametrize("script", [*FETCHING, "with_stores.sh"])
@pytest.mark.parametrize("venv", ["no .venv", "a .venv that nothing can be written to"])
def test_a_script_that_can_make_no_folder_touches_nothing_outside_its_clone(
    script: str, venv: str, tmp_path: Path
) -> None:
    clone, fakes, record = tmp_path / "clone", tmp_path / "fakes", tmp_path / "record"
    shutil.copytree(ROOT / "tools", clone / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", clone)
    fakes.mkdir()
    for name in ("apt-get", "apt-cache", "dpkg", "npm", "go", "rm", "mv", "tar", "java", "python3"):
        (fakes / name).write_text(FAKE)
    (fakes / "mktemp").write_text(NO_FOLDER_IN_VENV)
    (fakes / "mkdir").write_text(f'{FAKE}case "$*" in *"$TMPDIR"*) exec /usr/bin/mkdir "$@" ;; esac\n')
    (fakes / "setsid").write_text("#!/bin/bash\n")
    for fake in fakes.iterdir():
        fake.chmod(0o755)
    if venv != "no .venv":
        (clone / ".venv" / "bin").mkdir(parents=True)
        (clone / ".venv" / "bin" / "python").write_text(f'{FAKE}echo "1 2 3 4 5"\n')
        (clone / ".venv" / "bin" / "python").chmod(0o755)
    environment = {"PATH": f"{fakes}:/usr/bin:/bin", "RECORD": str(record), "TMPDIR": str(tmp_path)}

    done = subprocess.run(
        [clone / "tools" / script, "true"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    if (script, venv) == ("with_stores.sh", "no .venv"):
        assert (done.returncode, done.stderr) == (1, "tools/with_stores.sh needs .venv: run make venv first.\n")
    recorded = record.read_text() if record.exists() else ""
    outside = [
        path for path in re.findall(r"(?:^|[\s=:\"'])(/[^\s:\"']*)", recorded) if not path.startswith(str(tmp_path))
    ]
    assert not [path for path in outside if path != "/dev/stdin"], recorded


def test_no_script_deletes_by_a_name_that_may_be_empty() -> None:
    """`rm` and `mv` name a variable only as `${name:?}`, which ends the script if it is empty."""
    for script in (ROOT / "tools").glob("*.sh"):
        for line in script.read_text().splitlines():
            assert not re.search(r'\b(rm -rf|mv) +"?\$(?!\{[a-z0-9_]+:\?\})', line), f"{script.name}: {line}"


def test_runs_beside_stores_that_start_at_once_take_other_ports() -> None:
    text = (ROOT / "tools" / "with_stores.sh").read_text()
    function = text[text.index("free_ports() {") :].partition("\n}\n")[0]
    script = f"{function}\n}}\nfree_ports"
    runs = [subprocess.Popen(["bash", "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    ports = [int(port) for run in runs for port in run.communicate(timeout=60)[0].split()]
    assert len(set(ports)) == 20
    # The system gives the ports from 32768 on to connections.
    assert max(ports) < 32768
