#!/usr/bin/env bash
# Fetches tpchgen-cli, which makes the TPC-H rows of the benchmarks, into .venv/tpchgen; does nothing when it is there.
# Best effort: without it those cases are skipped, and say so.
set -euo pipefail
cd "$(dirname "$0")/.."

version=4.0.0
folder=$PWD/.venv/tpchgen
[ -f "$folder/.complete-$version" ] && exit 0
echo "Fetching tpchgen-cli $version for the benchmarks" >&2
rm -rf "${folder:?}"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder" "tpchgen-cli==$version" >&2 || {
    echo "tpchgen-cli was not fetched: the cases on TPC-H rows will be skipped." >&2
    exit 0
}
touch "$folder/.complete-$version"
