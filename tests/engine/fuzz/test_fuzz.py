"""Damaged logs, checkpoints, hints, statistics and deletion vectors: an answer or a typed error, and nothing else.

make test-long ARGS="tests/engine/fuzz -s"                        runs all cases and prints the outcomes of each kind
python -m tests.engine.fuzz.child parquet-bytes 1234 1235         runs one of them again
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.engine.fuzz.cases import KINDS
from tests.helpers.depth import LONG, depth
from tests.helpers.paths import ROOT

# So many that each kind takes some seconds: a case of a checkpoint takes thirty times as long as one of a bitmap.
CASES = {
    "commit-bytes": 3000,
    "commit-lines": 2500,
    "schemas": 600,
    "properties": 600,
    "statistics": 700,
    "partition-values": 800,
    "descriptors": 400,
    "infos": 150,
    "hints": 100,
    "checksums": 400,
    "names": 200,
    "parquet-bytes": 1200,
    "parquet-columns": 200,
    "v2-bytes": 400,
    "v2-columns": 120,
    "bitmaps": 6500,
    "vectors": 2500,
}


def test_there_are_at_least_twenty_thousand_cases() -> None:
    assert sum(CASES.values()) >= 20_000
    assert CASES.keys() == KINDS.keys()


@pytest.mark.seeded
def test_damage_gives_an_answer_or_a_typed_error() -> None:
    wanted = {kind: depth(max(5, cases // 150), cases // 6, cases) for kind, cases in CASES.items()}
    arguments = [text for kind, cases in wanted.items() for text in (kind, "0", str(cases))]
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.fuzz.child", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=550,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"{lines[-1:]} ended with {done.returncode}: {done.stderr[-2000:]}"
    report = json.loads(lines[-1])
    for kind, cases in wanted.items():
        outcomes, failures = report[kind]["outcomes"], report[kind]["failures"]
        print(f"fuzz {kind}: {cases} cases, {outcomes}")
        again = f"python -m tests.engine.fuzz.child {kind} SEED SEED+1"
        assert not failures, f"{kind}, again by `{again}`: {json.dumps(failures[:5], indent=1)}"
        assert sum(outcomes.values()) == cases
        # Damage that is always refused would test little of what comes after; a damaged checksum is always wrong.
        assert outcomes.get("answered") or kind == "checksums" or not LONG
