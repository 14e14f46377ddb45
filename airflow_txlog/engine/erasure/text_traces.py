"""Traces in objects that are no Parquet files: commits, checksums, hints, saved work, and whatever else lies there.

An object that is JSON, whole or line by line, is searched member by member, with the JSON inside of its texts and with
percent-encoded texts decoded. Every object is searched as bytes too, decompressed if it is compressed as a whole.
Source: protocol, "Per-file Statistics", "Checksum File", "Last Checkpoint File".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from airflow_txlog.engine.erasure.forms import Forms
from airflow_txlog.engine.erasure.traces import Kind, Trace

_BOUNDS = frozenset(("minValues", "maxValues"))
# The first bytes of what is compressed as a whole, with Arrow's name of the codec.
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2"}
_MOST_NESTED = 32


def traces_in_text(data: bytes, forms: Forms) -> Iterator[Trace]:
    """Yield the traces in an object, `decompressed`."""
    places: dict[tuple[str, Kind], int] = {}
    for keys, value in _scalars(data):
        kind = _kind_of(keys, value, forms)
        if kind is not None:
            place = _place_of(keys, forms)
            places[place, kind] = places.get((place, kind), 0) + 1
    for (place, kind), count in places.items():
        yield Trace(place, kind, count)
    if not places and forms.in_bytes(data):
        yield Trace("bytes", "value")


def decompressed(data: bytes) -> bytes:
    """Return the content of an object that may be compressed. Raises the errors of pyarrow for a damaged one."""
    for start, codec in _COMPRESSED.items():
        if data.startswith(start):
            with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
                content: bytes = stream.read()
                return content
    return data


def kind_of_text(text: str, path: str, forms: Forms) -> Kind | None:
    """Return the kind of trace in a text of the column `path`, such as the JSON of statistics in a checkpoint."""
    kinds = {_kind_of(keys, scalar, forms) for keys, scalar in _inner(tuple(path.split(".")), text, 0)}
    return "value" if "value" in kinds else "statistic" if "statistic" in kinds else None


def _place_of(keys: Sequence[str], forms: Forms) -> str:
    return ".".join(forms.without_values(key) for key in keys) or "text"


def _kind_of(keys: tuple[str, ...], value: Any, forms: Forms) -> Kind | None:
    is_bound = not _BOUNDS.isdisjoint(keys)
    for text in {value, unquote(value)} if isinstance(value, str) else {_spelled(value)}:
        if forms.in_text(text, keys[-1] if keys else ""):
            return "statistic" if is_bound else "value"
        if is_bound and forms.may_be_shortened(text):
            return "statistic"
    # A member's name may hold a value too, such as that of a partition.
    return "value" if keys and forms.in_text(keys[-1]) else None


def _spelled(value: Any) -> str:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else json.dumps(value)


def _scalars(data: bytes) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each text and number of JSON, with the names of the members around it."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    try:
        yield from _walk((), json.loads(text), 0)
        return
    except (ValueError, RecursionError):
        pass
    for line in text.splitlines():
        yield from _inner((), line, 0)


def _inner(keys: tuple[str, ...], text: str, depth: int) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield a text, or the scalars of the JSON that it is."""
    if text[:1] in ("{", "[") and depth < _MOST_NESTED:
        try:
            yield from _walk(keys, json.loads(text), depth + 1)
            return
        except (ValueError, RecursionError):
            pass
    yield keys, text


def _walk(keys: tuple[str, ...], value: Any, depth: int) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict):
        for name, member in value.items():
            yield from _walk((*keys, name), member, depth)
    elif isinstance(value, list):
        for item in value:
            yield from _walk(keys, item, depth)
    elif isinstance(value, str):
        yield from _inner(keys, value, depth)
    elif value is not None:
        yield keys, value
