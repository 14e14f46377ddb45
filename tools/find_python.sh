#!/usr/bin/env bash
# Prints a Python 3.11, 3.12 or 3.13 on PATH, as an absolute path. 3.11 comes first: constraints.txt was made with it.
# TXLOG_PYTHON=python3.13 chooses another one.
# Of one version the first that was built with optimizations is taken, as distributors, Docker's images, conda and uv
# build it. pyenv's default build has none, and the suite takes a sixth longer with it.
# A name on PATH is not enough: a version manager's shim may stand for a Python that is not installed, so each is run.
set -euo pipefail

# Prints 1 or 0, whether it is optimized, and the path. Distributors do not name the option.
look='import sys, sysconfig, venv, ensurepip
if not (3, 11) <= sys.version_info < (3, 14): sys.exit(1)
options = sysconfig.get_config_var("CONFIG_ARGS") or ""
print(int("--enable-optimizations" in options or sys.base_prefix == "/usr"), sys.executable)'

for name in ${TXLOG_PYTHON:-python3.11 python3.12 python3.13 python3}; do
    slow=
    while read -r candidate; do
        found=$("$candidate" -c "$look" 2>/dev/null) || continue
        case $found in
            1*) echo "${found#* }"; exit 0 ;;
            *) slow=${slow:-${found#* }} ;;
        esac
    done < <(type -ap "$name")
    if [ -n "$slow" ]; then
        echo "$slow"
        exit 0
    fi
done
echo "No Python 3.11, 3.12 or 3.13 (with venv) was found on PATH: install one, for example the package python3.11-venv, and run make again." >&2
exit 1
