#!/usr/bin/env bash
# Looks up every version of constraints.txt among the known vulnerabilities of PyPI (or of OSV: tools/audit.sh osv).
# Fails where one has an entry, and where one cannot be looked up: an audit that skipped it would say nothing of it.
set -euo pipefail
cd "$(dirname "$0")/.."

# In an environment of its own: what audits is no dependency of what is audited.
work=build/audit
if ! "$work/bin/python" -c 'import pip_audit' 2>/dev/null; then
    rm -rf "${work:?}"
    "$(tools/find_python.sh)" -m venv "$work"
    "$work/bin/python" -m pip install --quiet --disable-pip-version-check 'pip-audit>=2.10,<3'
fi
"$work/bin/python" -m pip_audit --requirement constraints.txt --no-deps --disable-pip --strict \
    --vulnerability-service "${1:-pypi}" --progress-spinner off
