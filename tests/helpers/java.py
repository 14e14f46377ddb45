"""How the JVMs and the Sparks of the tests start: each lives for a few small queries."""

from __future__ import annotations

import os
from pathlib import Path

# The second compiler would cost more than it saves, and so would loading Spark's classes from their jars
# (`tools/ensure_spark_classes.sh`).
SPARK_CLASSES = Path(
    os.environ.get("TXLOG_SPARK_CLASSES", Path(__file__).resolve().parents[2] / ".venv" / "spark-classes.jsa")
)
_ARCHIVE = f" -XX:SharedArchiveFile={SPARK_CLASSES} -Xlog:disable" if SPARK_CLASSES.is_file() else ""
# A heap that need not grow, and room for the classes: else each start collects garbage eight times over all of it.
# Room for the compiled code of thousands of queries, too: where 48 MB fill up, a thread of the JVM throws code away.
_MEMORY = "-XX:MetaspaceSize=256m -XX:ReservedCodeCacheSize=240m"
# Pages of 2 MB where Linux gives them to those who ask: a tenth less CPU. Elsewhere Java would warn of the option.
_ASKED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_PAGES = " -XX:+UseTransparentHugePages" if _ASKED.is_file() and "[madvise]" in _ASKED.read_text() else ""

JAVA_OPTIONS = f"-XX:TieredStopAtLevel=1 {_MEMORY}{_PAGES}{_ARCHIVE}"
"""For the environment, as JDK_JAVA_OPTIONS: every JVM has them, those of child processes too."""

# Small queries, each run once: compiling them, or planning them anew after each of their stages, would cost more than
# running them. `make test-long` does both, as users' Spark does.
PLAIN_QUERIES = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.lightweightPlanChangeValidation": "false",
}
