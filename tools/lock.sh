#!/usr/bin/env bash
# Writes constraints.txt anew: the versions that a clean environment gets today from pyproject.toml.
# Made with the oldest Python we support, so that every version named here also has one for the newer ones.
set -euo pipefail
cd "$(dirname "$0")/.."

work=build/lock
rm -rf "${work:?}"
mkdir -p "$work"
python=$(tools/find_python.sh)
"$python" -m venv "$work/venv"
# pyspark and pyspark-client install the same files, so one version for both, and one that exists for both. Spark warns
# of pandas 3. The S3 client's botocore wants python-dateutil below 3.
printf '%s\n' 'pyspark==4.2.0' 'pyspark-client==4.2.0' 'pandas<3' 'python-dateutil<3' > "$work/fixed.txt"
if command -v uv >/dev/null 2>&1; then
    uv pip install --quiet --python "$work/venv/bin/python" -c "$work/fixed.txt" '.[dev]'
else
    "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check -c "$work/fixed.txt" '.[dev]'
fi
"$work/venv/bin/python" tools/lock.py > "$work/constraints.txt"
mv "${work:?}/constraints.txt" constraints.txt
rm -rf "${work:?}"
echo "constraints.txt: $(grep -c == constraints.txt) packages"
