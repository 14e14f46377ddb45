"""Several objects of JSON where Spark reads one: in a line, or in a file that is read as one document.

Spark reads the first object, and ignores the rest of the line or of the file in every mode. The invariant: no line or
document that Spark reads as a whole is found here. Objects with a comma between them are not found.
Source: Spark, JacksonParser.parse.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.text_lines import BLOCK_BYTES, TextFormat, blocks_of, split

# The end of a read part may be inside of a text.
_TEXT = r"""(?s)"(?:[^"\\]|\\.)*(?:"|\z)|'(?:[^'\\]|\\.)*(?:'|\z)"""
_ADJACENT = r"\}\s*\{"
# A file in a wrong format may have the rest. The mark at the start of UTF-8 is read as latin-1, too.
_IN_JSON = rf"(?s)^(?:\x{{FEFF}}|\x{{EF}}\x{{BB}}\x{{BF}})?\s*[\[{{].*{_ADJACENT}"
_ADJACENT_IN_LINE = re.compile(rb"\}[ \t]*\{")


def has_adjacent_objects(texts: pa.StringArray) -> bool:
    """Return whether an object begins directly after another one, which no document of JSON has outside of a text."""
    texts = texts.filter(pc.match_substring_regex(texts, _ADJACENT))
    found = pc.match_substring_regex(pc.replace_substring_regex(texts, _TEXT, '""'), _IN_JSON)
    return bool(pc.any(found).as_py())


def has_adjacent_objects_in(source: Any, text: TextFormat) -> bool:
    """Return the same for the lines of an open file.

    Any encoding of `text` in which ASCII is one byte will do. Raises pa.ArrowException, OSError.
    """
    if text.is_whole:
        return has_adjacent_objects(pa.array([source.read().decode("latin-1")]))
    # Lines are cut only from a block that may have one.
    return any(
        (text.line_end is not None or _ADJACENT_IN_LINE.search(block)) and has_adjacent_objects(split(block, text))
        for block in blocks_of(source, text, 0, None, BLOCK_BYTES)
    )
