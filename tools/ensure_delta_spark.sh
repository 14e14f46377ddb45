#!/usr/bin/env bash
# Fetches delta-spark, the reference implementation, into .venv/delta-jars for the tests that compare it with ours; does
# nothing when it is there. Best effort: without it those tests are skipped, and say so. Spark's own resolver (Ivy) does
# the fetching, so nothing is needed beyond .venv and Java.
set -euo pipefail
cd "$(dirname "$0")/.."

version=4.4.0
artifacts=(delta-spark_4.2_2.13 delta-storage delta-kernel-api delta-kernel-defaults)
folder=$PWD/.venv/delta-jars
[ -f "$folder/.complete-$version" ] && exit 0

give_up() {
    echo "delta-spark was not fetched ($1): the tests that compare with it will be skipped." >&2
    exit 0
}

ivy=$(find .venv/lib/ -path '*/pyspark/jars/ivy-*.jar' -print -quit 2>/dev/null)
[ -n "$ivy" ] || give_up "no Spark in .venv"
java=${JAVA_HOME:+$JAVA_HOME/bin/}java
command -v "$java" >/dev/null 2>&1 || give_up "no Java"

fetching=$(mktemp -d "$PWD/.venv/delta-jars.XXXXXX")
trap 'rm -rf "${fetching:?}"' EXIT
echo "Fetching delta-spark $version for the tests" >&2
for artifact in "${artifacts[@]}"; do
    timeout 180 "$java" -jar "$ivy" -cache "${fetching:?}/cache" -dependency io.delta "$artifact" "$version" \
        -notransitive -confs default -retrieve "${fetching:?}/jars/[artifact]-[revision].[ext]" \
        >"${fetching:?}/log" 2>&1 || give_up "$artifact $version: $(tail -n 1 "${fetching:?}/log")"
    [ -f "${fetching:?}/jars/$artifact-$version.jar" ] || give_up "$artifact $version is not to be had"
done
touch "${fetching:?}/jars/.complete-$version"
rm -rf "${folder:?}"
mv "${fetching:?}/jars" "$folder"
