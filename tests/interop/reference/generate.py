"""Makes the fixture tables of this folder anew with delta-spark.

    python -m tests.interop.reference.generate [--into FOLDER] [NAME …]

Needs the jars of io.delta:delta-spark_4.2_2.13:4.4.0 (`tools/ensure_delta_spark.sh` fetches them). Each table
goes to NAME/table with what delta-spark reads from it in NAME/expected.json: the rows and the schema of every version,
DESCRIBE HISTORY and DESCRIBE DETAIL. Ids, times and file names are drawn anew each time.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from tests.helpers.delta_spark import jars, session
from tests.interop.reference import tables_features, tables_log, tables_values
from tests.interop.reference.workbench import FIXTURES, Workbench, keep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODULES = (tables_log, tables_features, tables_values)


def make(spark: SparkSession, name: str, work: Path, into: Path) -> str:
    """Make one table; a line that says how it went."""
    started = time.monotonic()
    bench = Workbench(spark, work, name)
    shutil.rmtree(bench.folder, ignore_errors=True)
    FIXTURES[name](bench)
    expected = bench.expected()
    keep(bench, expected, into / name)
    size = sum(file.stat().st_size for file in (into / name).rglob("*") if file.is_file())
    return f"{name}: version {expected['newest']}, {size / 1024:.0f} KiB, {time.monotonic() - started:.1f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--into", type=Path, default=Path(__file__).resolve().parent)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    failed = []
    with tempfile.TemporaryDirectory() as work:
        spark = session(jars(), Path(work))
        for name in options.names or FIXTURES:
            try:
                print(make(spark, name, Path(work), options.into), flush=True)
            except Exception:
                failed.append(name)
                print(f"{name}: FAILED\n{traceback.format_exc()[-1500:]}", flush=True)
        spark.stop()
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
