"""A folder outside of a table that an attack is to reach: watched, so that a test sees any touch of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

MARK = "canary-5d1c"


class Canary:
    """A folder whose files all hold MARK; `check` fails where anything in it was made, changed or deleted.

    `outputs` are texts in which MARK must not stand: results, errors, log lines.
    """

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self.folder = folder
        (folder / "empty").mkdir(parents=True)
        self.secret = folder / "secret"
        self.secret.write_text(f"{MARK}:0:0:root\n")
        self.rows = folder / "rows.parquet"
        values = {"id": 999, "name": MARK}
        row = {field.name: values.get(field.name) for field in schema}
        pq.write_table(pa.Table.from_pylist([row], schema=schema), self.rows)
        self._before = self.state()

    def check(self, *outputs: object) -> None:
        """Nothing of the folder has changed, and nothing of it stands in `outputs`."""
        assert self.state() == self._before
        for output in outputs:
            assert MARK not in str(output)
            assert MARK not in repr(output)

    def forget(self) -> None:
        """From here on the folder is to stay as it is now: the test itself has changed it."""
        self._before = self.state()

    def state(self) -> dict[str, Any]:
        """Everything that a touch could change, by path."""
        found: dict[str, Any] = {}
        for path in [self.folder, *sorted(self.folder.rglob("*"))]:
            status = os.lstat(path)
            content = path.read_bytes() if path.is_file() else None
            found[str(path)] = (status.st_ino, status.st_mode, status.st_mtime_ns, status.st_nlink, content)
        return found
