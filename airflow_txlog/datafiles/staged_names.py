"""What the data files that our tasks stage are called: no other Delta writer gives names of this form."""

from __future__ import annotations

import re

UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

DATA_FILE = re.compile(rf"(part|cdc)-[0-9a-f]{{16}}-{UUID}\.c\d+(?:-\d+)?(?:\.[a-z0-9_]+)?\.parquet")
"""kind-<job id>-<attempt>.c<number>[-<part>][.codec].parquet"""


def is_staged_name(path: str) -> bool:
    """Return whether the last part of the path is a name that our tasks give to new data files."""
    return DATA_FILE.fullmatch(path.rpartition("/")[2]) is not None
