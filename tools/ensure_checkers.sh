#!/usr/bin/env bash
# Makes virtual environments with Soda, Great Expectations and dbt, in .venv/checkers, for the test of docs/other-checks.md;
# does nothing when they are there. TXLOG_CHECKERS names another folder. Best effort: without it that test is skipped,
# and says so. The environment of the project stays as it is.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${TXLOG_CHECKERS:-$PWD/.venv/checkers}
[ -e "$folder/ready" ] && exit 0

give_up() {
    echo "the checkers were not installed ($1): the test of docs/other-checks.md will be skipped." >&2
    exit 0
}

install() {
    local tool=$1 python="$folder/$1/bin/python"
    shift
    python3 -m venv "$folder/$tool" || give_up "no venv"
    timeout 600 "$python" -m pip install -q "$@" >&2 || give_up "$tool"
    # After it, because Soda would have an older one. The extension is a package here, which needs no download by DuckDB.
    timeout 300 "$python" -m pip install -q duckdb==1.5.5 duckdb-extensions==1.5.5 duckdb-extension-delta==1.5.5 \
        2>/dev/null || give_up "DuckDB for $tool"
    HOME=$folder "$python" -c 'from duckdb_extensions import import_extension; import_extension("delta")' ||
        give_up "the extension of DuckDB for $tool"
}

mkdir -p "$folder"
echo "Installing Soda, Great Expectations and dbt for the tests" >&2
install soda soda-core-duckdb==3.5.6 "setuptools<81"
install great_expectations great_expectations==1.24.1
# Later ones fetch a part from elsewhere when they are installed.
install dbt dbt-core==1.10.23 dbt-duckdb==1.10.1
touch "$folder/ready"
