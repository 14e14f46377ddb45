"""No error, log line or traceback quotes a row's value or a parameter's: what, where and which column, and no more."""

from __future__ import annotations

import datetime as dt
import json
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.datafiles.failures import TaskFailed, error_in, text_of, trace_of
from airflow_txlog.datafiles.parquet.conversion import ColumnMismatch, convert_array
from airflow_txlog.datafiles.tasks.scan_and_write import without_values
from airflow_txlog.engine.upkeep.inventory import read_inventory
from airflow_txlog.errors import CommitConflict, InvalidInput, JobError, JobLost, TxlogError
from airflow_txlog.jobs.spark.causes import describe
from airflow_txlog.jobs.spark.errors import translate
from airflow_txlog.runners.job_output import shown
from airflow_txlog.storage import PLAIN
from tests.helpers.jobs import error_of, run
from tests.helpers.rows import make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CANARY = "CanaryOfARow"
NUMBER = "987654321"
_FORGED = json.dumps({"type": "CommitConflict", "message": CANARY, "retryable": True, "facts": {}})

# What a row may hold so that its value looks like something else in the text of an exception.
VALUES = {
    "plain": CANARY,
    "lines": f"a\n{CANARY}\n\n{CANARY}: {CANARY}",
    "quotes": f"'\"`\\' {CANARY} \"'\\\\\x00\x1b[31m\u2028{CANARY}",
    "a worker's error": f"\nairflow_txlog.datafiles.tasks.TaskFailed: <txlog-error>{_FORGED}</txlog-error>\n",
    "a traceback": f'\nTraceback (most recent call last):\n  File "{CANARY}.py", line 1, in {CANARY}\n{CANARY}.E: x',
    "a stack": f"x\n\tat {CANARY}.run({CANARY}.java:1)\nCaused by: {CANARY}.Exception: {CANARY}",
    "a condition": f"[{CANARY.upper()}] {CANARY} SQLSTATE: 22018",
    "a death": f"Python worker exited unexpectedly {CANARY} SparkContext was shut down",
    "a full disk": f'{CANARY} No FileSystem for scheme "{CANARY}"',
}

TEXT_FAILURES = {
    **{
        f"cast to {kind}": f"CAST(v AS {kind})"
        for kind in (
            *("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(5,2)", "DATE"),
            *("TIMESTAMP", "TIMESTAMP_NTZ", "INTERVAL DAY", "INTERVAL YEAR", "TIME"),
        )
    },
    "to_timestamp": "to_timestamp(v, 'yyyy-MM-dd')",
    "to_date": "to_date(v, 'yyyy-MM-dd')",
    "to_number": "to_number(v, '999')",
    "from_json": "from_json(v, 'a INT', map('mode', 'FAILFAST'))",
    "from_csv": "from_csv(v, 'a INT', map('mode', 'FAILFAST'))",
    "parse_json": "parse_json(v)",
    "raise_error": "raise_error(v)",
    "assert_true": "assert_true(length(v) < 0, v)",
    "parse_url": "parse_url(v, 'HOST')",
    "url_decode": "url_decode(concat('%', v))",
    "validate_utf8": "validate_utf8(CAST(concat(unhex('FF'), CAST(v AS BINARY)) AS STRING))",
    "decode": "decode(encode(v, 'UTF-8'), v)",
    "map key": "map_from_entries(array(struct(v, 1), struct(v, 2)))",
    "unhex": "aes_decrypt(CAST(v AS BINARY), CAST(v AS BINARY))",
    "regexp": "regexp_replace(v, concat('(', v), 'x')",
    "next_day": "next_day(current_date(), v)",
    "time zone": "from_utc_timestamp(TIMESTAMP '2024-01-01 00:00:00', v)",
    "schema": "from_json('{}', v)",
}  # fmt: skip

NUMBER_FAILURES = {
    "division by zero": "n / (n - n)",
    "remainder": "n % (n - n)",
    "addition": "n + 9223372036854775807",
    "product": "n * 9223372036854775807",
    "cast that overflows": "CAST(n AS TINYINT)",
    "decimal": "CAST(n AS DECIMAL(3, 0))",
    "double": "CAST(CAST(n AS DOUBLE) * 1e300 AS INT)",
    "array index": "array(1, 2)[CAST(n AS INT)]",
    "element_at": "element_at(array(1, 2), CAST(n AS INT))",
    "make_date": "make_date(2024, CAST(n AS INT), 1)",
    "make_timestamp": "make_timestamp(2024, 1, 1, CAST(n AS INT), 0, 0)",
    "make_interval": "CAST(concat(CAST(n AS STRING), 'x') AS INT)",
    "date_add": "date_add(DATE'9999-12-31', CAST(n AS INT)) > DATE'2024-01-01' AND CAST(n AS TINYINT) = 1",
    "repeat": "sequence(0, n, -1)",
    "bround": "CAST(concat(n, n, n, n, n) AS DECIMAL(38, 0))",
    "get_json": "bit_get(n, CAST(n AS INT))",
}


def whole_text(error: BaseException) -> str:
    """What any log may show of an error that leaves a job: it crosses to Airflow as JSON."""
    assert isinstance(error, TxlogError)
    return json.dumps(error.to_dict()) + str(error)


def failure(spark: SparkSession, expression: str) -> Exception | None:
    """What Spark raises for an expression over the rows of the view `canaries`."""
    try:
        spark.sql(f"SELECT {expression} AS x FROM canaries").toArrow()
    except Exception as error:
        return error
    return None


def put(spark: SparkSession, value: str) -> None:
    frame = spark.createDataFrame([(value, int(NUMBER))], "v STRING, n BIGINT")
    frame.createOrReplaceTempView("canaries")


def check(spark: SparkSession, cases: list[tuple[str, str, str]]) -> int:
    """How many of these (kind, value, expression) fail, none of them showing its value."""
    last, shown, failed = None, [], 0
    for kind, value, sql in sorted(cases, key=lambda case: case[1]):
        if value != last:
            put(spark, value)
            last = value
        raised = failure(spark, sql)
        if raised is None:
            continue
        failed += 1
        error = translate(raised, "read the rows")
        text = whole_text(error) + "".join(trace_of(raised))
        if CANARY.lower() in text.lower() or NUMBER in text:
            shown.append((kind, error.message))
        assert isinstance(error, InvalidInput | JobError), kind
        assert not error.retryable
        assert type(error) is not JobLost, kind
    assert not shown
    return failed


@pytest.mark.spark
def test_a_failure_of_an_expression_does_not_show_the_value_that_it_failed_on(spark: SparkSession) -> None:
    """A sample of the kinds in the next test, and of its values."""
    kinds = ("cast to INT", "to_date", "from_json", "raise_error", "map key", "validate_utf8")
    cases = [(kind, VALUES[name], TEXT_FAILURES[kind]) for kind, name in zip(kinds, VALUES, strict=False)]
    cases += [(kind, VALUES["plain"], NUMBER_FAILURES[kind]) for kind in ("cast that overflows", "array index")]
    assert check(spark, cases) == len(cases)


@pytest.mark.spark
@pytest.mark.long("eighty failing Spark jobs")
def test_no_kind_of_failure_of_an_expression_shows_the_value(spark: SparkSession) -> None:
    cases = [(kind, VALUES["plain"], sql) for kind, sql in (TEXT_FAILURES | NUMBER_FAILURES).items()]
    for kind in ("cast to INT", "raise_error", "from_json", "to_date"):
        cases += [(f"{kind} of {name}", value, TEXT_FAILURES[kind]) for name, value in VALUES.items()]
    failed = check(spark, cases)
    print(f"{len(cases)} values, of which {failed} fail")
    assert failed >= 75


class Fails:
    """A task whose call raises what it is given, as a task of ours would."""

    def __init__(self, name: str, value: str, *, guarded: bool) -> None:
        self.name, self.value, self.guarded = name, value, guarded

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (without_values(Fails.run) if self.guarded else Fails.run)(self, batches)

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        WORKER_FAILURES[self.name](self.value)
        yield from batches


def _raise(error: BaseException) -> None:
    raise error


def _chained(value: str) -> None:
    try:
        raise KeyError(value)
    except KeyError as error:
        raise RuntimeError(value) from error


WORKER_FAILURES: dict[str, Any] = {
    "arrow cast": lambda value: pa.array([value]).cast(pa.int32()),
    "arrow conversion": lambda value: pa.array([1, value]),
    "arrow overflow": lambda value: pa.array([int(NUMBER)]).cast(pa.int8()),
    "arrow loss": lambda value: pa.array([int(NUMBER) + 0.5]).cast(pa.int64()),
    "int": int,
    "codec": lambda value: (value.encode() + b"\xff").decode("ascii"),
    "key": lambda value: {}[value],
    "value": lambda value: _raise(ValueError(value)),
    "chain": _chained,
    "assertion": lambda value: _raise(AssertionError(value)),
    "a class of its own": lambda value: _raise(type(f"{CANARY}Error", (Exception,), {})(value)),
}


def classes(value: str) -> Iterator[tuple[str, BaseException]]:
    for name, fail in WORKER_FAILURES.items():
        try:
            fail(value)
        except Exception as error:
            yield name, error


@pytest.mark.parametrize("value", VALUES)
def test_no_exception_of_python_is_reported_with_its_own_text(value: str) -> None:
    found = 0
    for name, error in classes(VALUES[value]):
        if name == "a class of its own":
            continue  # its name is the code's
        found += 1
        for text in (text_of(error), *trace_of(error), translate(error, "read").message, describe(error)):
            assert CANARY not in text, (name, text)
            assert NUMBER not in text, (name, text)
            assert type(error).__name__ in text or not text.startswith("Cannot"), (name, text)
    assert found == len(WORKER_FAILURES) - 1


@pytest.mark.parametrize("value", VALUES)
def test_a_task_brings_no_text_of_an_exception_to_the_driver(value: str) -> None:
    for name in WORKER_FAILURES:
        if name == "a class of its own":
            continue
        with pytest.raises(TaskFailed) as caught:
            list(Fails(name, VALUES[value], guarded=True)(iter(())))
        text = "".join(traceback.format_exception(caught.value))
        # The lines of source are the test's own.
        text = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
        assert CANARY not in text, name
        assert NUMBER not in text, name
        found = error_in(f"Traceback (most recent call last):\n{text}")
        assert isinstance(found, JobError)
        assert not found.retryable


@pytest.mark.spark
def test_a_worker_that_fails_names_its_class_and_no_value(spark: SparkSession) -> None:
    one = spark.range(0, 1, 1, 1)
    for name, value, guarded in [
        ("arrow cast", "plain", False),
        ("value", "a worker's error", False),
        ("value", "a death", False),
        ("arrow conversion", "lines", True),
    ]:
        try:
            one.mapInArrow(Fails(name, VALUES[value], guarded=guarded), "id long").toArrow()
        except Exception as raised:
            error = translate(raised, "read the rows")
        assert type(error) in (JobError, CommitConflict), error
        if type(error) is CommitConflict:
            # A task of ours never raises what it did not wrap, so that no value can pass for its error.
            assert value == "a worker's error"
            continue
        assert CANARY not in whole_text(error), error
        assert error.message.splitlines()[0].startswith("Cannot read the rows: ")
        expected = {"arrow cast": "ArrowInvalid", "arrow conversion": "Arrow"}
        assert expected.get(name, "ValueError") in error.message


@pytest.mark.parametrize("value", VALUES)
def test_no_line_that_spark_prints_is_copied_into_a_log(value: str) -> None:
    """Log lines, stacks and tracebacks of Spark's processes, with a value in them that may break the line."""
    text = VALUES[value]
    printed = f"""26/01/02 03:04:05 ERROR Executor: Exception in task 0.0 in stage 1.0 (TID 2)
org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value '{text}' of the type "STRING" cannot be cast
\tat org.apache.spark.sql.catalyst.util.{text}
Caused by: java.lang.NumberFormatException: For input string: "{text}"
  File "/x/airflow_txlog/datafiles/tasks/scan_and_write.py", line 12, in {text}
ValueError: invalid literal for int() with base 10: '{text}'
{text}: {text}
Exception in thread "{text}" java.lang.OutOfMemoryError: Java heap space {text}
Invalid maximum heap size: -Xmx{text}"""
    lines = [said for line in printed.splitlines() if (said := shown(line)) is not None]
    assert not [line for line in lines if CANARY.lower() in line.lower()]
    # What a person needs of it is there all the same.
    assert "spark: at datafiles/tasks/scan_and_write.py:12" in lines
    assert "spark: ValueError" in lines
    assert any("OutOfMemoryError: Java heap space" in line for line in lines)
    assert "spark: Invalid maximum heap size" in lines


@pytest.mark.spark
def test_no_line_or_result_of_a_job_shows_a_value(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", pa.table({"id": [1, 2], "v": [VALUES["lines"], VALUES["plain"]]}))
    (tmp_path / "bad.json").write_text(f'{{"id": {CANARY}}}\n')
    source = {
        "format": "json",
        "path": str(tmp_path / "bad.json"),
        "schema": "id LONG",
        "options": {"mode": "FAILFAST"},
    }
    twice = {"sql": "SELECT 1L AS id, v FROM VALUES (:v), (:v) AS x(v)"}
    said: list[str] = []
    for operation, arguments, expected in [
        ("write", {"source": source}, "bad.json has a row that does not fit the columns"),
        ("delete", {"predicate": "CAST(v AS DATE) = :v", "parameters": {"v": CANARY}}, "cannot be cast to DATE"),
        ("merge", {"source": twice, "on": "t.id = s.id", "parameters": {"v": CANARY},
                   "clauses": [{"when": "matched", "then": "update", "set": "*"}]}, "matched by more than one"),
    ]:  # fmt: skip
        error = error_of(run(spark, operation, table, **arguments, log=said.append))
        assert CANARY not in json.dumps(error), error
        assert expected in error["message"], error
    assert not [line for line in said if CANARY in line]


# --- texts of libraries ---------------------------------------------------------------------------------------------


if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = 4711


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (pa.array([631152000000000000 + SECRET], pa.timestamp("ns", "UTC")), pa.timestamp("us", "UTC")),
        (pa.array([5_000_000_000 + SECRET], pa.int64()), pa.int32()),
        (pa.array([9_100_000_000_000_000 + SECRET], pa.int64()), pa.float64()),
        (pa.array([[5_000_000_000 + SECRET]], pa.list_(pa.int64())), pa.list_(pa.int32())),
        (pa.array([4_000_000_000_000_000_000 + SECRET], pa.timestamp("s")), pa.timestamp("us")),
        (pa.array([dt.datetime(1999, 1, 1, 0, 0, 0, SECRET)], pa.timestamp("us")), pa.timestamp("s")),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else str(value),
)
def test_a_value_that_does_not_fit_its_column_is_not_shown(values: pa.Array, wanted: pa.DataType) -> None:
    with pytest.raises(ColumnMismatch) as caught:
        convert_array(values, wanted, "c")
    assert str(SECRET) not in str(caught.value)


@pytest.mark.parametrize("text", [f"path,size\na,1\nb,2,x{SECRET}\n", f"path,isDir\na,x{SECRET}\n", f"x{SECRET}\ny\n"])
def test_a_file_that_is_no_inventory_shows_no_line_of_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "i.csv").write_text(text)
    with pytest.raises(InvalidInput) as caught:
        read_inventory(str(tmp_path / "i.csv"), f"file://{tmp_path}/t", PLAIN)
    assert str(SECRET) not in str(caught.value)


@pytest.mark.spark
def test_a_bound_value_that_spark_parses_is_not_shown(spark: SparkSession, tmp_path: Path) -> None:
    source = {"sql": "SELECT from_json('1', :kind) AS x"}
    kind = f"alpha{SECRET} of beta{SECRET}"
    error = error_of(run(spark, "write", tmp_path / "t", source=source, parameters={"kind": kind}))
    assert str(SECRET) not in str(error)
