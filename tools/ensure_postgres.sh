#!/usr/bin/env bash
# Fetches PostgreSQL, Debian's packages, into .venv/postgres for the tests that run a whole Airflow; does nothing when it
# is there, or installed on the machine. TXLOG_POSTGRES names another folder. Best effort: without it those tests are
# skipped, and say so. Nothing is installed on the machine.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${TXLOG_POSTGRES:-$PWD/.venv/postgres}
is_below() { compgen -G "$1/usr/lib/postgresql/*/bin/postgres" >/dev/null; }

is_below "$folder" && exit 0
[ -z "${TXLOG_POSTGRES:-}" ] && { is_below "" || command -v postgres >/dev/null; } && exit 0

give_up() {
    echo "PostgreSQL was not fetched ($1): the tests that run a whole Airflow will be skipped." >&2
    exit 0
}

command -v apt-get >/dev/null && command -v dpkg >/dev/null || give_up "no apt-get"
mkdir -p "$(dirname "$folder")"
fetching=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "${fetching:?}"' EXIT
echo "Fetching PostgreSQL for the tests" >&2
mkdir -p "${fetching:?}/debs/partial" "${fetching:?}/root"
{ timeout 120 apt-get update -qq || true; } >/dev/null 2>&1
# By name: the package `postgresql` is an empty one, and names the version.
version=$(apt-cache depends postgresql 2>/dev/null | sed -n 's/^ *Depends: postgresql-\([0-9]*\)$/\1/p' | head -n 1)
[ -n "$version" ] || give_up "the system has no package of it"
timeout 300 apt-get install -qq -y --reinstall --download-only --no-install-recommends \
    -o "Dir::Cache::archives=${fetching:?}/debs" "postgresql-$version" "postgresql-client-$version" libpq5 \
    >"${fetching:?}/log" 2>&1 || give_up "$(tail -n 1 "${fetching:?}/log")"
for deb in "${fetching:?}"/debs/*.deb; do dpkg -x "$deb" "${fetching:?}/root"; done
rm -rf "${folder:?}"
mv "${fetching:?}/root" "$folder"
