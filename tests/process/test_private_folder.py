"""The folder of a process for what is temporary."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

FORK = """
import json, os, sys
from airflow_txlog.process.private_folder import temporary_folder
ours = temporary_folder()
child = os.fork()
if child == 0:
    sys.exit(0 if temporary_folder() != ours else 1)
_, status = os.waitpid(child, 0)
print(json.dumps([status, os.path.isdir(ours), ours]))
"""


def test_a_forked_process_neither_uses_nor_deletes_its_parents_folder_which_goes_with_the_parent(
    tmp_path: Path,
) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", FORK], env=environment, capture_output=True, text=True, check=True)
    status, is_there, folder = json.loads(done.stdout)
    assert (status, is_there) == (0, True)
    assert folder.startswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
