"""Where things are: the repository, the installed packages, and the golden tables and scenarios beside the repository,
which may be somewhere else.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
GOLDEN = Path(os.environ.get("TXLOG_GOLDEN", SHARED / "golden"))
# Not what sysconfig says: an environment may have the packages of another one, by a .pth file.
PACKAGES = Path(pa.__file__).parents[1]
