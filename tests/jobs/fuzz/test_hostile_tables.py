"""Jobs on damaged tables: the right rows or a typed error, and nothing else.

make test-long ARGS="tests/jobs/fuzz -s"      runs LONG_CASES of them
make fuzz                                     runs 5,000
make fuzz SEEDS=17:18                         runs one of them again
"""

from __future__ import annotations

import collections
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import REPORTED
from tests.helpers.depth import depth
from tests.jobs.fuzz.cases import Fault, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

SHORT_CASES, LONG_CASES = 5, 60
SEEDS = "TXLOG_FUZZ_JOBS"


def _seeds() -> range:
    start, _, end = os.environ.get(SEEDS, f"0:{depth(SHORT_CASES, LONG_CASES)}").partition(":")
    return range(int(start), int(end))


@pytest.mark.seeded
def test_a_job_on_a_damaged_table_leaves_the_right_rows_or_a_typed_error(
    spark: SparkSession, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    outcomes: collections.Counter[str] = collections.Counter()
    faults = []
    for seed in _seeds():
        try:
            outcomes[run(spark, tmp_path, seed)] += 1
        except Fault as fault:
            faults.append(f"{seed}: {fault}")
            print(faults[-1], flush=True)
        except Exception as error:
            faults.append(f"{seed}: raw {error!r}")
            print(faults[-1], flush=True)
    line = f"jobs on damaged tables: {sum(outcomes.values()) + len(faults)} run, {len(faults)} faults"
    record_property(REPORTED, line)
    print(line, dict(outcomes.most_common()))
    assert not faults, "\n".join(faults[:20])
