"""Where things are: the repository, and the golden tables and scenarios beside it, which may be somewhere else."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
GOLDEN = Path(os.environ.get("TXLOG_GOLDEN", SHARED / "golden"))
