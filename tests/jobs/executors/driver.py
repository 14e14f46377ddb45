"""The driver of the tests with separate executors: one Spark `local-cluster`, and a job for each scenario in turn.

`python driver.py FOLDER ROOT`: FOLDER/scenarios.json is a list of [name, operation, arguments, order, table]; what came
of each goes to FOLDER/results.json. The package is found by the driver in ROOT and by executors in the zip alone;
FOLDER/loaded.json lists the files from which they loaded it.
"""

import json
import os
import sys
from pathlib import Path

FOLDER, ROOT = Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, ROOT)

from pyspark.sql import SparkSession  # noqa: E402

from airflow_txlog.jobs.run import run_job  # noqa: E402
from airflow_txlog.jobs.spark.launch import LOCAL_DEFAULTS  # noqa: E402
from tests.helpers.specs import job_spec  # noqa: E402

JIT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def where(batches):
    """The file of the module of tasks, as an executor finds it."""
    import pyarrow as pa

    from airflow_txlog.datafiles.tasks import scan_and_write

    for batch in batches:
        yield pa.record_batch({"file": [scan_and_write.__file__] * batch.num_rows})


def main() -> None:
    faults = FOLDER / "faults"
    faults.mkdir()
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    builder = SparkSession.builder.config(
        map={
            **LOCAL_DEFAULTS,
            "spark.master": "local-cluster[2,1,768]",
            "spark.executor.memory": "768m",
            "spark.executorEnv.PYTHONPATH": os.pathsep.join(
                [str(Path(__file__).parent / "faults"), str(Path(__file__).parents[2] / "helpers" / "daemon")]
            ),
            "spark.python.daemon.module": "loaded_daemon",
            "spark.executorEnv.TXLOG_FAULTS": str(faults),
            "spark.deploy.maxExecutorRetries": "-1",
            "spark.sql.shuffle.partitions": "2",
            # An executor that was killed serves nothing again, however long one asks.
            "spark.shuffle.io.maxRetries": "1",
            "spark.shuffle.io.retryWait": "100ms",
            # As in tests/conftest.py: what these few rows cost is compiling.
            "spark.driver.extraJavaOptions": JIT,
            "spark.executor.extraJavaOptions": JIT,
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.adaptive.enabled": "false",
        }
    )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    told = {}
    for name, operation, arguments, order, table in json.loads((FOLDER / "scenarios.json").read_text()):
        for file in faults.iterdir():
            file.unlink()
        (faults / order).touch()
        lines: list[str] = []
        result = run_job(job_spec(operation=operation, table_uri=table, arguments=arguments), spark, log=lines.append)
        told[name] = {
            "status": result.status,
            "error": result.error,
            "version": result.version,
            "obeyed": sorted(os.listdir(faults)),
            "lines": lines,
        }
        print(name, result.status, flush=True)
    (FOLDER / "results.json").write_text(json.dumps(told))
    rows = spark.range(0, 4, 1, 4).mapInArrow(where, "file string").collect()
    (FOLDER / "loaded.json").write_text(json.dumps(sorted({row.file for row in rows})))
    spark.stop()


main()
