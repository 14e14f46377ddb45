"""The recipes of docs/other-checks.md: Soda, Great Expectations and dbt check clones of a staged change."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.helpers.depth import by_hand
from tests.helpers.jobs import committed, rows, run
from tests.helpers.paths import ROOT
from tests.helpers.rows import make_table
from tests.helpers.staged import stage

CHECKERS = Path(os.environ.get("TXLOG_CHECKERS", ROOT / ".venv" / "checkers"))
PAGE = (ROOT / "docs" / "other-checks.md").read_text()
VECTORS = {"delta.enableDeletionVectors": "true"}

pytestmark = [
    pytest.mark.long("starts Soda, Great Expectations and dbt"),
    by_hand("checks of other tools"),
    pytest.mark.skipif(not (CHECKERS / "ready").exists(), reason="no checkers: tools/ensure_checkers.sh installs them"),
]


def environment(**more: str) -> dict[str, str]:
    # DuckDB finds its extension there. No tool sends what it does to its maker.
    quiet = {"GX_ANALYTICS_ENABLED": "false", "DBT_SEND_ANONYMOUS_USAGE_STATS": "false", "SODA_TELEMETRY": "false"}
    return {"PATH": os.environ["PATH"], "HOME": str(CHECKERS), **quiet, **more}


def passes(tool: str, trial: Path, folder: Path) -> bool:
    """Whether the tool's recipe passes the table."""
    if tool == "dbt":
        for name, text in re.findall(r"`([\w./]+)`\n\n```\w+\n(.*?)```", PAGE, re.DOTALL):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        command = [CHECKERS / "dbt/bin/dbt", "test", "--profiles-dir", "."]
        about, env = "no_negative_amount", environment(TRIAL=str(trial))
    else:
        (block,) = re.findall(rf"```python\n(def check_with_{tool}\(.*?)```", PAGE, re.DOTALL)
        command = [CHECKERS / tool / "bin/python", "-c", f"{block}\ncheck_with_{tool}({str(trial)!r})"]
        about, env = "amount" if tool == "soda" else "expect_column_values_to_be_between", environment()
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0 or about in said, said
    return done.returncode == 0


@pytest.mark.parametrize("tool", ["soda", "great_expectations", "dbt"])
def test_the_recipe_passes_a_good_change_and_refuses_a_bad_one(tool: str, tmp_path: Path) -> None:
    orders = make_table(tmp_path / "orders", rows(10), rows(10, start=50), properties=VECTORS)
    committed(run(None, "delete", orders, predicate="id = 7"))
    found = []
    for amount in ("amount + 1", "-1.0"):
        handle = stage("update", orders, set={"amount": amount}, predicate="id = 3")
        staged = {"id": handle["id"], "digest": handle["digest"]}
        trial = tmp_path / "trial"
        committed(run(None, "clone", trial, source={"table": orders.uri, "staged": staged}, replace=True))
        (tmp_path / amount).mkdir()
        found.append(passes(tool, trial, tmp_path / amount))
    assert found == [True, False]
