#!/usr/bin/env bash
# Does what the README tells a user to do, in a fresh environment: runs its commands "From a clone", which install what
# is committed and list the provider, and its DAG on a table. Needs the network, so no test runs it; one runs it with
# --commands, which prints these commands and does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

# The block of code after that line, without its comments.
readme_commands() {
    awk '/From a clone:$/ { near = 1 } near && /^```/ { if (inside) exit; inside = 1; next }
        inside { sub(/ +#.*/, ""); print }' README.md
}
if [ "${1:-}" = --commands ]; then
    readme_commands
    exit
fi

JAVA_HOME=$(tools/ensure_java.sh)
python=$(tools/find_python.sh)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Nothing of this shell's own Python, Spark or Airflow.
for name in $(compgen -e | grep -E '^(PYTHON|PYSPARK|SPARK|AIRFLOW|VIRTUAL_ENV)'); do unset "$name"; done
export JAVA_HOME SPARK_LOCAL_IP=127.0.0.1 AIRFLOW_HOME=$work/airflow AIRFLOW__CORE__DAGS_FOLDER=$work/dags
export AIRFLOW__CORE__LOAD_EXAMPLES=False

git clone -q . "$work/clone"
"$python" -m venv "$work/venv"
export PATH=$work/venv/bin:$PATH
cd "$work/clone"
mapfile -t commands < <(readme_commands)
for command in "${commands[@]}"; do
    started=$SECONDS
    eval "$command" >"$work/log" 2>&1 || { tail -n 50 "$work/log"; exit 1; }
    echo "$command: $((SECONDS - started)) s"
done
grep -o airflow-provider-txlog "$work/log"

mkdir "$work/dags"
sed -n '/^```python$/,/^```$/{/^```/!p}' README.md | sed "s#\"/tmp/lake/users\"#\"$work/users\"#" >"$work/dags/readme.py"
# Not in the clone, whose package would be imported in place of the installed one.
cd "$work"
airflow db migrate >log 2>&1 || { tail -n 50 log; exit 1; }
started=$SECONDS
airflow dags test gdpr >log 2>&1 || { tail -n 50 log; exit 1; }
echo "ran the README's DAG in $((SECONDS - started)) s"
airflow txlog history "$work/users" 2>/dev/null
python - <<'PYTHON'
from airflow_txlog.engine import Table

rows = sorted(Table.open("users").to_arrow()["user_id"].to_pylist())
assert rows == ["41"], rows
PYTHON
echo "check_install: OK"
