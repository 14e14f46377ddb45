"""Where the deletion vectors of files are stored.

Only the place is told here; what a vector masks is read elsewhere. The invariant: a vector whose place cannot be told
is an error, because whoever deletes files must know every one that is still needed.
Source: protocol, "Deletion Vector Descriptor Schema" and "Derived Fields".
"""

from __future__ import annotations

import uuid

from airflow_txlog.engine.log.paths import canonical_path
from airflow_txlog.errors import CorruptTable

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGITS = {character: value for value, character in enumerate(_Z85)}
_UUID_CHARACTERS = 20


def vector_file(storage_type: str, path_or_inline_dv: str, root: str) -> str | None:
    """The canonical path of the file that holds a vector, or None for one that is inline.

        u  ab^-aqEH.-t@S}K{vb[*k^   ->   ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin
        p  file:///lake/t/dv.bin    ->   dv.bin in a table at file:///lake/t

    Raises CorruptTable for a storage type or a name that the protocol does not know.
    """
    if storage_type == "i":
        return None
    if storage_type == "p":
        return canonical_path(path_or_inline_dv, root)
    prefix, encoded = path_or_inline_dv[:-_UUID_CHARACTERS], path_or_inline_dv[-_UUID_CHARACTERS:]
    name = _decode_uuid(encoded) if storage_type == "u" else None
    if name is None:
        raise CorruptTable(
            f"CorruptTable: {root} names a deletion vector {storage_type!r} {path_or_inline_dv!r}, "
            "and the protocol knows no such place. Nothing was changed.",
            table=root,
        )
    # The prefix is a directory name, not a URI: nothing in it is encoded.
    return f"{prefix}/deletion_vector_{name}.bin" if prefix else f"deletion_vector_{name}.bin"


def _decode_uuid(encoded: str) -> uuid.UUID | None:
    """Sixteen bytes from twenty characters of Z85: four bytes, big-endian, from every five."""
    if len(encoded) != _UUID_CHARACTERS or not all(character in _DIGITS for character in encoded):
        return None
    words = bytearray()
    for start in range(0, _UUID_CHARACTERS, 5):
        value = 0
        for character in encoded[start : start + 5]:
            value = value * 85 + _DIGITS[character]
        if value >= 2**32:
            return None
        words += value.to_bytes(4, "big")
    return uuid.UUID(bytes=bytes(words))
