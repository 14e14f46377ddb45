"""What tests of writers that take turns share."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of this test alone, in which turns are taken."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path
