#!/usr/bin/env bash
# Installs html-validate and axe-core, packages of Node.js, into .venv/page-checks for the test that looks at the window's
# pages; does nothing when they are there. TXLOG_PAGE_CHECKS names another folder. Best effort: without them that part of
# the test is skipped, and says so.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${TXLOG_PAGE_CHECKS:-$PWD/.venv/page-checks}
[ -e "$folder/ready" ] && exit 0

give_up() {
    echo "the checks of pages were not installed ($1): they will be skipped." >&2
    exit 0
}

command -v npm >/dev/null || give_up "no npm"
mkdir -p "$folder"
echo '{"private": true}' >"$folder/package.json"
(cd "$folder" && timeout 300 npm install --silent --no-audit --no-fund html-validate@10.17.0 axe-core@4.14.1) >&2 ||
    give_up "npm"
touch "$folder/ready"
