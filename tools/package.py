"""Build what a release publishes, and check it.

    python tools/package.py build [REPOSITORY]        wheel, sdist and SBOM into dist/, built twice and compared
    python tools/package.py check-workflows           actionlint and zizmor on .github/workflows
    python tools/package.py check-release TAG WHEEL   whether the tag may be published as this wheel: its version,
                                                      changelog and addresses

REPOSITORY is its address, https://…. The project's addresses that pyproject.toml does not name are below it, so a
copy of the repository releases with its own addresses.

`build` and `check-workflows` make an environment of their own below .venv, because their packages would constrain those
that the jobs run with. That needs the network once, and `check-workflows` needs Go. The script itself imports only the
standard library, so any Python 3.11 runs it.
"""

from __future__ import annotations

import email
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = ROOT / ".venv" / "release"
# Exact, because a new release of one of them must not change what a tag publishes.
PACKAGES = (
    "build==1.6.1",
    "check-wheel-contents==0.6.3",
    "cyclonedx-bom==7.5.0",
    "hatchling==1.33.0",
    "twine==7.0.0",
    "zizmor==1.32.0",
)
ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"
ADDRESSES = ("Documentation", "Source", "Issues", "Changelog")
"""The entries of `[project.urls]` that a release must have."""


def build(repository: str | None = None) -> None:
    """Write wheel, sdist and SBOM into dist/. Exit with the reason if two builds differ or a check fails.

    Without an address of the repository, the files name the addresses of pyproject.toml alone.
    """
    dist = ROOT / "dist"
    made = [_built(repository) for _ in range(2)]
    first, second = ({name: hashlib.sha256(data).hexdigest() for name, data in each.items()} for each in made)
    if first != second:
        sys.exit(f"two builds of one commit differ: {sorted(n for n in first if first[n] != second.get(n))}")
    dist.mkdir(exist_ok=True)
    for name, data in made[0].items():
        (dist / name).write_bytes(data)
    files = [str(dist / name) for name in sorted(made[0])]
    wheel = next(name for name in files if name.endswith(".whl"))
    _run("twine", "check", "--strict", *files)
    # W002: the same bytes twice, as empty __init__.py files have.
    _run("check-wheel-contents", "--ignore", "W002", wheel)
    sbom = Path(wheel).with_suffix(".cdx.json")
    _write_sbom(Path(wheel), sbom)
    for name in (*files, str(sbom)):
        print(f"{hashlib.sha256(Path(name).read_bytes()).hexdigest()}  {Path(name).name}")


def add_addresses(pyproject: Path, repository: str) -> None:
    """Write the addresses that follow from the repository's into `[project.urls]`, except those that are there."""
    text = pyproject.read_text()
    project = tomllib.loads(text)["project"]
    below = f"{repository}/blob/v{project['version']}"
    follow = {
        "Documentation": f"{below}/docs/index.md",
        "Source": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{below}/CHANGELOG.md",
    }
    lines = "".join(f'{name} = "{follow[name]}"\n' for name in ADDRESSES if name not in project.get("urls", {}))
    head = "[project.urls]\n"
    pyproject.write_text(text.replace(head, head + lines) if head in text else f"{text}\n{head}{lines}")


def _built(repository: str | None) -> dict[str, bytes]:
    """Return the files of one build, by name. The wheel is built from the sdist, as an installer would."""
    epoch = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True)
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory() as clone:
        # What is committed, and nothing that lies around here.
        subprocess.run(["git", "clone", "-q", str(ROOT), clone], check=True)
        if repository:
            add_addresses(Path(clone) / "pyproject.toml", repository)
        os.environ["SOURCE_DATE_EPOCH"] = epoch.stdout.strip()
        _run("python", "-m", "build", "--no-isolation", "--outdir", out, clone, quiet=True)
        return {path.name: path.read_bytes() for path in Path(out).iterdir()}


def _write_sbom(wheel: Path, sbom: Path) -> None:
    """Write a CycloneDX SBOM of the wheel with its extra `spark`, at the versions of constraints.txt."""
    with tempfile.TemporaryDirectory() as environment:
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        constraints = ("-c", str(ROOT / "constraints.txt"))
        pip = [f"{environment}/bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, *constraints, f"{wheel}[spark]"], check=True)
        _run("cyclonedx-py", "environment", "--output-reproducible", "--of", "JSON", "-o", str(sbom), environment)


def check_workflows() -> None:
    """Exit with the findings of actionlint or zizmor, if there are any."""
    workflows = sorted(str(path) for path in (ROOT / ".github" / "workflows").glob("*.yml"))
    _ensure_environment()
    if not (ENVIRONMENT / "bin" / "actionlint").exists():
        # A Go program: its Python package downloads a binary when it is installed.
        environment = {**os.environ, "GOBIN": str(ENVIRONMENT / "bin")}
        subprocess.run(["go", "install", ACTIONLINT], env=environment, check=True)
    _run("actionlint", *workflows)
    _run("zizmor", "--offline", "--no-progress", "--persona", "pedantic", *workflows)


def check_release(tag: str, wheel: Path, root: Path = ROOT) -> None:
    """Exit with the reason why a tag must not be published as this wheel."""
    with zipfile.ZipFile(wheel) as files:
        (name,) = (one for one in files.namelist() if one.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(files.read(name))
    version = metadata["Version"]
    addresses = {one.partition(",")[0] for one in metadata.get_all("Project-URL", [])}
    missing = [name for name in ADDRESSES if name not in addresses]
    if tag != f"v{version}":
        sys.exit(f"the tag {tag} does not name the version of the wheel, {version}")
    if missing:
        sys.exit(f"the wheel has no address for {', '.join(missing)}: build it with REPOSITORY=https://…")
    if not re.search(rf"^## \[{re.escape(version)}\]", (root / "CHANGELOG.md").read_text(), re.MULTILINE):
        sys.exit(f"CHANGELOG.md has no section for {version}")


def _run(command: str, *arguments: str, quiet: bool = False) -> None:
    _ensure_environment()
    bin_folder = ENVIRONMENT / "bin"
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        [str(bin_folder / command), *arguments], cwd=ROOT, env=environment, capture_output=quiet, text=True, check=False
    )
    if done.returncode:
        sys.exit((done.stdout or "") + (done.stderr or "") if quiet else f"{command} failed")


def _ensure_environment() -> None:
    stamp, wanted = ENVIRONMENT / ".stamp", "\n".join((sys.version, *PACKAGES))
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print("Making an environment that builds and checks releases", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
    pip = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, *PACKAGES], check=True)
    stamp.write_text(wanted)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["build"]:
            build()
        case ["build", repository]:
            build(repository)
        case ["check-workflows"]:
            check_workflows()
        case ["check-release", tag, wheel]:
            check_release(tag, Path(wheel))
        case _:
            sys.exit(__doc__)
