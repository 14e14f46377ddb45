"""What only newer releases of pyarrow can do: docs/support.md lists it for users."""

from __future__ import annotations

import pyarrow as pa
import pytest


def needs_arrow(major: int, reason: str) -> pytest.MarkDecorator:
    """Skip a test before this release of pyarrow, for the given reason."""
    return pytest.mark.skipif(int(pa.__version__.partition(".")[0]) < major, reason=f"before pyarrow {major}: {reason}")
