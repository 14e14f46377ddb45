"""Partition values as they are written: typed values to strings, strings to directories, paths to `add.path`.

`codecs` holds the text of one value; `engine/table/columns/partitions` turns strings back into columns. No code reads a
value from a path. The invariant: a value is escaped for the directory once, then the path is percent-encoded once.
Source: protocol, "Partition Value Serialization" and "Add File".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote, unquote

import pyarrow as pa

from airflow_txlog.datafiles.codecs import codec_of
from airflow_txlog.errors import SchemaMismatch

NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"

# The characters that Spark's ExternalCatalogUtils.escapePathName escapes. Space and plus are not among them.
_HIVE_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | frozenset(map(chr, range(0x20)))
# The characters that java.net.URI escapes in a path: ASCII characters that RFC 2396 forbids there, control characters
# and Unicode spaces. delta-spark's VACUUM lists files, spells their paths this way and compares texts, so it deletes a
# live file that is spelled otherwise.
_URI_ESCAPED = re.compile(
    r"[^A-Za-z0-9_\-.!~*'();/:@&=+$,\u00a1-\U0010ffff]|[\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]|[\ud800-\udfff]"
)


def partition_string(array: pa.Array | pa.ChunkedArray) -> list[str | None]:
    """Return the partition strings of the values, in order; null, "" and empty bytes become None.

    Raises SchemaMismatch for a type that cannot partition a table, for bytes and texts that are not UTF-8, and for
    timestamps finer than microseconds.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_null(array.type):
        return [None] * len(array)
    kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    codec = codec_of(kind)
    if codec is None:
        raise SchemaMismatch(f"A column of the Arrow type {kind} cannot partition a table.")
    # Values repeat: only the distinct ones are formatted.
    encoded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    try:
        plain = codec.plain_of(encoded.dictionary).to_pylist()
    except pa.ArrowInvalid:
        # Arrow's text quotes the value, and a traceback shows the text of a cause.
        raise SchemaMismatch(f"A partition value of type {kind} does not fit microseconds.") from None
    except UnicodeDecodeError:
        # Its own text quotes the value.
        raise SchemaMismatch(
            "A text that is not UTF-8 cannot be a partition value: the log is UTF-8, so no reader would give it back. "
            "Partition by another column, or put make_valid_utf8(…) or hex(…) around it in the source's query."
        ) from None
    distinct = [None if value is None else codec.write(value) or None for value in plain]
    return [None if index is None else distinct[index] for index in encoded.indices.to_pylist()]


def hive_directory(columns: Sequence[str], values: Sequence[str | None]) -> str:
    """Return the directory of a partition, `a=1/b=x%3Ay`, escaped as Spark does; "" for no columns.

    `values` are partition strings; None and "" become `__HIVE_DEFAULT_PARTITION__`.
    """
    return "/".join(
        f"{_hive_escape(column)}={_hive_escape(value) if value else NULL_DIRECTORY}"
        for column, value in zip(columns, values, strict=True)
    )


def encode_add_path(relative_path: str) -> str:
    """Return `add.path` of a file: its path relative to the table, URI-encoded once.

    Equal, letter for letter, to java.net.URI and so to delta-spark. Bytes of a name that are not UTF-8 are encoded.
    """
    encoded = _URI_ESCAPED.sub(_percent_encoded, relative_path)
    first, slash, others = encoded.partition("/")
    # In the first segment a colon would end a scheme.
    return first.replace(":", "%3A") + slash + others


def _percent_encoded(found: re.Match[str]) -> str:
    return quote(found[0], safe="", errors="surrogateescape")


def decode_add_path(path: str) -> str:
    """Return the path on disk of an `add.path`: percent-decoded once. A plus sign is a plus sign."""
    return unquote(path, errors="surrogateescape")


def _hive_escape(text: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in _HIVE_ESCAPED else char for char in text)
