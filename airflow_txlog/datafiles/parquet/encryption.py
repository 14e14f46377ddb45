"""Parquet files, and single texts, that only the holder of a key can read.

They use Parquet's modular encryption (AES-GCM), which every Arrow has that reads Parquet, so an executor needs no other
library. Arrow draws keys for each file and keeps them in the footer, wrapped by a client of a key server. Here that
client holds the only key itself. The invariant: no two files share an AES key, and no two AES keys are wrapped by the
same bytes. Source: Parquet format, "Parquet Modular Encryption"; NIST SP 800-38D.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import io
import secrets
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_NAME = "key"
_NONCE_BYTES = 32
_ONE_CELL = pa.schema([("content", pa.binary())])


@functools.cache
def _arrow() -> Any:
    """Return Arrow's module of encryption, and its client that wraps keys by the only key."""
    # Imported here: not every Arrow is built with encryption, and only a job's own files need it.
    import pyarrow.parquet.encryption as pe  # noqa: PLC0415

    class KeptKey(pe.KmsClient):  # type: ignore[misc]
        """Wraps keys of at most 32 bytes by the HMAC of a random text under the only key."""

        def __init__(self, config: Any) -> None:
            super().__init__()
            self._key = bytes.fromhex(config.custom_kms_conf[_NAME])

        def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> str:
            """Return the text for the footer. Called by Arrow."""
            nonce = secrets.token_bytes(_NONCE_BYTES)
            return (nonce + self._combined(nonce, key_bytes)).hex()

        def unwrap_key(self, wrapped_key: str, master_key_identifier: str) -> bytes:
            """Return the key that was wrapped. Called by Arrow, which detects another key by the tag of AES-GCM."""
            try:
                wrapped = bytes.fromhex(wrapped_key)
            except ValueError:
                raise pa.ArrowInvalid("the key in the footer is damaged") from None
            return self._combined(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:])

        def _combined(self, nonce: bytes, data: bytes) -> bytes:
            pad = hmac.new(self._key, nonce, hashlib.sha256).digest()
            return bytes(one ^ other for one, other in zip(data, pad, strict=False))

    return pe, KeptKey


def writing_options(key: bytes, schema: pa.Schema) -> dict[str, Any]:
    """Return options of `ParquetWriter` for one file with these columns, none of them nested."""
    pe, kept_key = _arrow()
    wanted = pe.EncryptionConfiguration(footer_key=_NAME, column_keys={_NAME: schema.names})
    return {"encryption_properties": pe.CryptoFactory(kept_key).file_encryption_properties(_connection(key), wanted)}


def reading_options(key: bytes) -> dict[str, Any]:
    """Return options of `ParquetFile` for one file that was written with this key."""
    pe, kept_key = _arrow()
    return {"decryption_properties": pe.CryptoFactory(kept_key).file_decryption_properties(_connection(key))}


def encrypted(key: bytes, content: bytes) -> bytes:
    """Return the content as a Parquet file of one cell, which shows only its length."""
    sink = io.BytesIO()
    cell = pa.table([[content]], schema=_ONE_CELL)
    pq.write_table(cell, sink, compression="none", use_dictionary=False, **writing_options(key, _ONE_CELL))
    return sink.getvalue()


def decrypted(key: bytes, data: bytes) -> bytes | None:
    """Return the content that `encrypted` was given with this key, or None if Arrow cannot read the bytes with it."""
    try:
        with pq.ParquetFile(io.BytesIO(data), **reading_options(key)) as file:
            content: bytes = file.read()["content"][0].as_py()
    except (pa.ArrowException, OSError, LookupError):
        return None
    return content


def _connection(key: bytes) -> Any:
    return _arrow()[0].KmsConnectionConfig(custom_kms_conf={_NAME: key.hex()})
