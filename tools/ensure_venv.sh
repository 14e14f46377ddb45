#!/usr/bin/env bash
# Makes .venv what constraints.txt and pyproject.toml ask for; does nothing when it is that already.
# The stamp holds what the environment was made from: the two files, the interpreter, and where it lies.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$PWD/.venv
stamp=$venv/.stamp
wanted() {
    echo "$venv"
    "$venv/bin/python" -c 'import hashlib, pathlib, sys
print(sys.version)
for name in ("constraints.txt", "pyproject.toml"):
    print(name, hashlib.sha256(pathlib.Path(name).read_bytes()).hexdigest())'
}

# An interpreter that went away, or a directory that was moved, leaves a .venv that cannot run: make it again.
if ! "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python=$(tools/find_python.sh)
    echo "Making .venv with $python"
    rm -rf "${venv:?}"
    "$python" -m venv "$venv"
fi

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(wanted)" ]; then
    exit 0
fi
rm -f "$stamp"
echo "Installing into .venv; the first time takes a minute or three"
if command -v uv >/dev/null 2>&1; then
    uv pip install --quiet --python "$venv/bin/python" -c constraints.txt -e '.[dev]'
else
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
fi
wanted > "$stamp"
