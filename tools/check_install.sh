#!/usr/bin/env bash
# Does what the README and docs/start-here.md tell a user to do, outside of this repository: installs a bare Airflow in a
# fresh environment, runs the README's commands "From a clone", the README's DAG, and Start here without a Java.
# WHEEL=dist/….whl installs this wheel in place of the clone. Needs the network, so no test runs it; tests run it with
# --commands and --start-here, which print the commands of a page and do nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

# The block of code after that line, without its comments.
readme_commands() {
    awk '/From a clone:$/ { near = 1 } near && /^```/ { if (inside) exit; inside = 1; next }
        inside { sub(/ +#.*/, ""); print }' README.md
}
# The blocks of code of a language on a page, and the first of them.
blocks() {
    awk -v fence="^\`\`\`$1\$" '$0 ~ fence { inside = 1; next } /^```/ { inside = 0 } inside' "$2"
}
first_block() {
    awk -v fence="^\`\`\`$1\$" '$0 ~ fence { inside = 1; next } inside && /^```/ { exit } inside' "$2"
}
case "${1:-}" in
    --commands) readme_commands; exit ;;
    --start-here) blocks bash docs/start-here.md; exit ;;
esac

JAVA_HOME=$(tools/ensure_java.sh)
python=$(tools/find_python.sh)
airflow=$(grep '^apache-airflow==' constraints.txt)
wheel=${WHEEL:+$(realpath "$WHEEL")}
work=$(mktemp -d)
trap 'rm -rf "${work:?}"' EXIT
# Nothing of this shell's own Python, Spark or Airflow.
for name in $(compgen -e | grep -E '^(PYTHON|PYSPARK|SPARK|AIRFLOW|VIRTUAL_ENV)'); do unset "$name"; done
export JAVA_HOME SPARK_LOCAL_IP=127.0.0.1 AIRFLOW_HOME=$work/airflow AIRFLOW__CORE__DAGS_FOLDER=$work/dags
export AIRFLOW__CORE__LOAD_EXAMPLES=False
mkdir "$work/dags" "$work/no-java"

# Runs a command and prints its seconds; the end of its output if it fails.
run() {
    local started=$SECONDS
    eval "$1" >"$work/log" 2>&1 || { tail -n 50 "$work/log"; echo "check_install: FAILED $1"; exit 1; }
    echo "$1: $((SECONDS - started)) s"
}

git clone -q . "$work/clone"
"$python" -m venv "$work/venv"
export PATH=$work/venv/bin:$PATH
run "pip install -q --disable-pip-version-check $airflow"
cd "${work:?}/clone"
mapfile -t commands < <(readme_commands)
for command in "${commands[@]}"; do
    [ -z "$wheel" ] || command=${command//\'.[/\'$wheel[}
    run "$command"
done
grep -o airflow-provider-txlog "$work/log"

# Not in the clone, whose package would be imported in place of the installed one.
cd "${work:?}"
first_block python clone/README.md | sed "s#/tmp/lake/#$work/lake/#" >dags/readme.py
run "airflow db migrate"
run "airflow dags test gdpr"
run "airflow txlog history $work/lake/users"
python - <<'PYTHON'
from airflow_txlog.engine import Table

rows = sorted(Table.open("lake/users").to_arrow()["user_id"].to_pylist())
assert rows == [41], rows
PYTHON

# The page promises that it needs no Java.
printf '#!/bin/sh\necho "Start here has started a Java" >&2\nexit 1\n' >no-java/java
chmod +x no-java/java
unset JAVA_HOME
unset AIRFLOW_HOME AIRFLOW__CORE__DAGS_FOLDER
export PATH=$work/no-java:$PATH
sed "s#/tmp/lake/#$work/start/lake/#; s#/tmp/start-here#$work/start#g" clone/docs/start-here.md >start-here.md
mkdir -p start/dags
first_block python start-here.md >start/dags/start_here.py
blocks bash start-here.md >start-here.sh
run "bash -euo pipefail start-here.sh"
cat log
grep -Eq '^ +1 .* DELETE +-1 +start_here +forget ' log
grep -Eq '^ +0 .* WRITE +\+2 +start_here +load ' log
grep -q "^\[{'user_id': 41, " log
echo "check_install: OK"
