#!/usr/bin/env bash
# Installs moto, a server that speaks for AWS Glue, into an environment of its own, .venv/moto, because it pins another
# botocore than ours; does nothing when it is there. Best effort: without it the tests with Glue are skipped, and say so.
set -euo pipefail
cd "$(dirname "$0")/.."

version=5.2.5
folder=$PWD/.venv/moto
[ -f "$folder/.complete-$version" ] && exit 0

give_up() {
    rm -rf "${folder:?}"
    echo "moto was not installed ($1): the tests with AWS Glue will be skipped." >&2
    exit 0
}

echo "Installing moto $version for the tests" >&2
rm -rf "${folder:?}"
.venv/bin/python -m venv "$folder" >/dev/null 2>&1 || give_up "no environment"
timeout 300 "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "moto[glue,server]==$version" \
    >"$folder/log" 2>&1 || give_up "$(tail -n 1 "$folder/log")"
touch "$folder/.complete-$version"
