"""Jobs on the tests' S3 server: their descriptions hold no keys, which the driver has in its environment here."""

from __future__ import annotations

import pytest

from tests.helpers import s3


@pytest.fixture(autouse=True)
def _keys_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    s3.options()
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
