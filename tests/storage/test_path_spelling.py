"""`add.path` is spelled as java.net.URI spells a path, because delta-spark's VACUUM compares the two as texts."""

from __future__ import annotations

import unicodedata

import pytest

from airflow_txlog.datafiles.partitioning import decode_add_path, encode_add_path


@pytest.mark.parametrize(
    ("on_disk", "path"),
    [
        ("p=Zoë 🚀/f", "p=Zoë%20🚀/f"),
        ("größe=1/f", "größe=1/f"),
        ("p=e\u0301/f", "p=e\u0301/f"),  # no normalization: these are other bytes on disk than é
        ("p=a\u00a0b\u3000c/f", "p=a%C2%A0b%E3%80%80c/f"),
        ("p=\x85\u2028/f", "p=%C2%85%E2%80%A8/f"),
        ("p=\u200b\ufeff/f", "p=\u200b\ufeff/f"),  # format characters are no spaces
        ('p=|`<>"{}^[]\\#?%/f', "p=%7C%60%3C%3E%22%7B%7D%5E%5B%5D%5C%23%3F%25/f"),
        ("p=a-_.!~*'():@&=+$,;/f", "p=a-_.!~*'():@&=+$,;/f".replace(":", "%3A")),
        ("p=1/a:b", "p=1/a:b"),
        ("p=\udcff/f", "p=%FF/f"),  # a byte that is not UTF-8
    ],
)
def test_what_java_escapes_is_escaped_and_nothing_else(on_disk: str, path: str) -> None:
    assert encode_add_path(on_disk) == path
    assert decode_add_path(path) == on_disk


def test_of_the_characters_beyond_ascii_spaces_and_controls_alone_are_escaped() -> None:
    """java.net.URI: the category "other" is what is neither ASCII, nor a control, nor a space of Unicode."""
    characters = [chr(code) for code in range(0x80, 0x110000) if not 0xD800 <= code <= 0xDFFF]
    escaped = {each for each in characters if encode_add_path(f"p={each}") != f"p={each}"}
    assert escaped == {each for each in characters if unicodedata.category(each) in ("Cc", "Zs", "Zl", "Zp")}
