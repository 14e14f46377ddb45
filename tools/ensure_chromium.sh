#!/usr/bin/env bash
# Fetches a headless Chromium and its driver, Debian's packages, into .venv/chromium for the test that looks at pages of
# Airflow; does nothing when they are there. TXLOG_CHROMIUM names another folder. Best effort: without it that test is
# skipped, and says so. Nothing is installed on the machine.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${TXLOG_CHROMIUM:-$PWD/.venv/chromium}

# Whether the browser in that folder shows a page, and has a driver.
works() {
    local libraries
    [ -x "$1/usr/bin/chromedriver" ] || return 1
    libraries=$(find "$1/usr/lib" -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)
    LD_LIBRARY_PATH=$libraries HOME=$1 timeout 60 "$1/usr/lib/chromium/chromium-headless-shell" --no-sandbox \
        --disable-dev-shm-usage --dump-dom 'data:text/html,<p>shown</p>' 2>/dev/null | grep -q shown
}

works "$folder" && exit 0

give_up() {
    echo "Chromium was not fetched ($1): the test that looks at pages of Airflow will be skipped." >&2
    exit 0
}

command -v apt-get >/dev/null && command -v dpkg >/dev/null || give_up "no apt-get"
mkdir -p "$(dirname "$folder")"
fetching=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "${fetching:?}"' EXIT
echo "Fetching a headless Chromium for the tests" >&2
mkdir -p "${fetching:?}/debs/partial" "${fetching:?}/root"
{ timeout 120 apt-get update -qq || true; } >/dev/null 2>&1
timeout 300 apt-get install -qq -y --download-only --no-install-recommends -o "Dir::Cache::archives=${fetching:?}/debs" \
    chromium-headless-shell fonts-liberation >"${fetching:?}/log" 2>&1 || give_up "$(tail -n 1 "${fetching:?}/log")"
# What the machine has already is not fetched above; but the browser's own files must lie beside it, and of one version.
# The driver depends on the whole of Chromium, for which the headless one stands in.
(cd "${fetching:?}/debs" && timeout 240 apt-get download -qq chromium-headless-shell chromium-common chromium-driver \
    fonts-liberation) >"${fetching:?}/log" 2>&1 || give_up "$(tail -n 1 "${fetching:?}/log")"
for deb in "${fetching:?}"/debs/*.deb; do dpkg -x "$deb" "${fetching:?}/root"; done
works "${fetching:?}/root" || give_up "it does not start here"
rm -rf "${folder:?}"
mv "${fetching:?}/root" "$folder"
