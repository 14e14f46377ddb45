#!/usr/bin/env bash
# Prints the first Python 3.11, 3.12 or 3.13 on PATH, as an absolute path. 3.11 comes first: constraints.txt was made with
# it. TXLOG_PYTHON=python3.13 chooses another one.
# A name on PATH is not enough: a version manager's shim may stand for a Python that is not installed, so each is run.
set -euo pipefail

for name in ${TXLOG_PYTHON:-python3.11 python3.12 python3.13 python3}; do
    if found=$("$name" -c 'import sys, venv, ensurepip
if not (3, 11) <= sys.version_info < (3, 14): sys.exit(1)
print(sys.executable)' 2>/dev/null); then
        echo "$found"
        exit 0
    fi
done
echo "No Python 3.11, 3.12 or 3.13 (with venv) was found on PATH: install one, for example the package python3.11-venv, and run make again." >&2
exit 1
