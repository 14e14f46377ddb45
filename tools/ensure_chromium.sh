#!/usr/bin/env bash
# Fetches a headless Chromium and its driver, Debian's packages, into .venv/chromium for the test that looks at pages of
# Airflow; does nothing when they are there. TXLOG_CHROMIUM names another folder. Best effort: without it that test is
# skipped, and says so. Nothing is installed on the machine.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${TXLOG_CHROMIUM:-$PWD/.venv/chromium}
[ -x "$folder/usr/bin/chromedriver" ] && exit 0

give_up() {
    echo "Chromium was not fetched ($1): the test that looks at pages of Airflow will be skipped." >&2
    exit 0
}

command -v apt-get >/dev/null && command -v dpkg >/dev/null || give_up "no apt-get"
mkdir -p "$(dirname "$folder")"
fetching=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$fetching"' EXIT
echo "Fetching a headless Chromium for the tests" >&2
mkdir -p "$fetching/debs/partial" "$fetching/root"
{ timeout 120 apt-get update -qq || true; } >/dev/null 2>&1
timeout 300 apt-get install -qq -y --download-only --no-install-recommends -o "Dir::Cache::archives=$fetching/debs" \
    chromium-headless-shell fonts-liberation >"$fetching/log" 2>&1 || give_up "$(tail -n 1 "$fetching/log")"
# Without its dependency, the whole of Chromium, for which the headless one stands in.
(cd "$fetching/debs" && timeout 120 apt-get download -qq chromium-driver) >"$fetching/log" 2>&1 ||
    give_up "$(tail -n 1 "$fetching/log")"
for deb in "$fetching"/debs/*.deb; do dpkg -x "$deb" "$fetching/root"; done
rm -rf "$folder"
mv "$fetching/root" "$folder"
