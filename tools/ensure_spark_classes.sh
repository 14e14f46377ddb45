#!/usr/bin/env bash
# Archives the classes that Spark loads as it starts and runs a first query, so that each JVM of the tests maps them
# instead of parsing and verifying them: half of what starting Spark costs. Made once for each .venv; needs JAVA_HOME.
# TXLOG_SPARK_CLASSES names another file. A JVM that does not fit it (another Java, other jars) starts without it.
set -euo pipefail
cd "$(dirname "$0")/.."
archive=${TXLOG_SPARK_CLASSES:-$PWD/.venv/spark-classes.jsa}
# Anew when another Spark is installed.
jars=(.venv/lib/python*/site-packages/pyspark/jars)
[[ "$archive" -nt "${jars[0]}" ]] && exit 0
echo "archiving the classes of Spark, once" >&2
.venv/bin/python - "$archive.making" >/dev/null 2>&1 <<'PYTHON' || { rm -f "$archive.making"; exit 0; }
import sys

from pyspark.sql import SparkSession

options = f"-XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={sys.argv[1]}"
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.extraJavaOptions", options).config("spark.sql.shuffle.partitions", "2").getOrCreate()
frame = spark.range(10).selectExpr("id % 3 AS x").groupBy("x").count().mapInArrow(lambda rows: rows, "x long, count long")
frame.toArrow()
java = spark.sparkContext._gateway.proc
spark.stop()
# The archive is written as the JVM ends by itself, which it does with its standard input.
java.stdin.close()
java.wait(120)
PYTHON
mv "${archive:?}.making" "$archive"
