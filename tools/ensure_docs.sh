#!/usr/bin/env bash
# Makes the environment of the documentation site, .venv/site, from the group `docs` in pyproject.toml; does nothing when
# it is there. TXLOG_SITE names another folder. The environment of the project stays as it is. With npm it also fetches
# the script that draws the diagrams; without it a reader's browser fetches that.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${TXLOG_SITE:-$PWD/.venv/site}
wanted=$(.venv/bin/python -c 'import sys, tomllib
print(sys.version)
print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["docs"]))')
[ -f "$folder/.stamp" ] && [ "$(cat "$folder/.stamp")" = "$wanted" ] && exit 0

echo "Installing MkDocs into $folder" >&2
rm -rf "${folder:?}"
.venv/bin/python -m venv "$folder"
tail -n +2 <<<"$wanted" | timeout 600 "$folder/bin/python" -m pip install -q --disable-pip-version-check -r /dev/stdin >&2

fetch_mermaid() {
    local fetching
    fetching=$(mktemp -d "$folder/mermaid.XXXXXX") || return 1
    (cd "${fetching:?}" && timeout 120 npm pack --silent mermaid@11 && tar -xzf mermaid-11*.tgz package/dist/mermaid.min.js &&
        mv package/dist/mermaid.min.js "$folder/mermaid.min.js") >/dev/null 2>&1
    rm -rf "${fetching:?}"
    [ -f "$folder/mermaid.min.js" ]
}
{ command -v npm >/dev/null && fetch_mermaid; } || echo "mermaid was not fetched: the site will load it over the network" >&2
echo "$wanted" > "$folder/.stamp"
