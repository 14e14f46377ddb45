"""Traces in objects that are no Parquet files: commits, checksums, hints, saved work, and whatever else lies there.

An object that is JSON, whole or line by line, is searched member by member, with the JSON inside of its texts. Texts
that are percent-encoded are decoded, twice, because a commit encodes the path of a folder that is encoded. Every object
is searched as bytes too, decompressed if it is compressed as a whole.
Source: protocol, "Per-file Statistics", "Checksum File", "Last Checkpoint File".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa

from airflow_txlog.engine.erasure.traces import Kind, Trace
from airflow_txlog.engine.erasure.values.forms import LOG_PATHS, Forms

_BOUNDS = frozenset(("minValues", "maxValues"))
# Statistics with numbers of rows below the names of columns.
_NULL_COUNT = "nullCount"
_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")
# The first bytes of what is compressed as a whole, with Arrow's name of the codec.
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2"}
MOST_TEXT_BYTES = 2 * 1024 * 1024 * 1024
_READ_BYTES = 8 * 1024 * 1024
_MOST_NESTED = 32

_Scalar: TypeAlias = tuple[tuple[str, ...], Any]
"""A text or a number of JSON, with the names of the members around it."""


def traces_in_text(data: bytes, forms: Forms) -> Iterator[Trace]:
    """Yield the traces in an object, `decompressed`."""
    places: dict[tuple[str, Kind], int] = {}
    found = list(_scalars(data))
    for (keys, _), kind in zip(found, _kinds(found, forms), strict=True):
        if kind is not None:
            place = _place_of(keys, forms)
            places[place, kind] = places.get((place, kind), 0) + 1
    for (place, kind), count in places.items():
        yield Trace(place, kind, count)
    # The first line of a table in a text names the columns.
    lines = "\n".join(value for keys, value in found if not keys and isinstance(value, str))
    if not places and (_in_bytes(data, found, forms) or forms.in_named_text(lines, "")):
        yield Trace("bytes", "value")


def _in_bytes(data: bytes, scalars: Iterable[_Scalar], forms: Forms) -> bool:
    """Return whether bytes hold a value outside of the bounds of the key, which are compared as a whole."""
    if not forms.in_bytes(data):
        return False
    for keys, bound in scalars:
        if isinstance(bound, str) and forms.is_bound_of_key(keys) and forms.in_text(bound):
            once = json.dumps(bound)[1:-1]
            spelled = (form.encode(errors="replace") for form in (bound, once, json.dumps(once)[1:-1]))
            form = next((form for form in spelled if form in data), b"")
            data = data.replace(form, bytes(len(form)), 1)
    return forms.in_bytes(data)


def decompressed(data: bytes) -> bytes:
    """Return the content of an object that may be compressed.

    Raises the errors of pyarrow for a damaged one, and ValueError for more than two gigabytes.
    """
    for start, codec in _COMPRESSED.items():
        if data.startswith(start):
            with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
                content = bytearray()
                while part := stream.read(_READ_BYTES):
                    content += part
                    if len(content) > MOST_TEXT_BYTES:
                        raise ValueError("a text of more than two gigabytes")
                return bytes(content)
    return data


def text_of(data: bytes) -> str:
    """Return the text in UTF-8, or in UTF-16 with its mark. Raises ValueError for other bytes."""
    return data.decode("utf-16" if data[:2] in _BYTE_ORDER_MARKS else "utf-8-sig")


def kinds_of_texts(texts: Iterable[str], path: str, forms: Forms) -> Iterator[Kind]:
    """Yield the kind of each trace in texts of the column `path`, such as the JSON of statistics in a checkpoint."""
    keys = tuple(path.split(".")) if path else ()
    scalars = [scalar for text in texts for scalar in _inner(keys, text, 0)]
    yield from (kind for kind in _kinds(scalars, forms) if kind is not None)


def _place_of(keys: Sequence[str], forms: Forms) -> str:
    return ".".join(forms.without_values(key) for key in keys) or "text"


def _kinds(scalars: Sequence[_Scalar], forms: Forms) -> list[Kind | None]:
    """Return for each scalar of JSON the kind of trace that it is."""
    texts = [value if isinstance(value, str) else json.dumps(value) for _, value in scalars]
    once = [unquote(text) if "%" in text else "" for text in texts]
    twice = [unquote(text) if "%" in text else "" for text in once]
    names = ["\n".join(keys) for keys, _ in scalars]
    # Their texts together, because a search of one costs as much as that of thousands.
    held = zip(*map(forms.holding, (texts, names)), strict=True)
    found: list[Kind | None] = []
    for (keys, _), spellings, (holds, is_named) in zip(
        scalars, zip(texts, once, twice, strict=True), held, strict=True
    ):
        # A member around it may name the column.
        own = (key for key in reversed(keys) if key.lower() in forms.names)
        is_bound = not _BOUNDS.isdisjoint(keys)
        is_of_other = is_bound and forms.is_bound_of_other(keys)
        text, name = spellings[0], "" if is_of_other else next(own, keys[-1] if keys else "")
        in_text = forms.in_named_path if ".".join(keys) in LOG_PATHS else partial(forms.in_named_text, key=name)
        if is_bound and forms.is_bound_of_key(keys):
            # The key of another person may hold the value.
            holds = forms.in_bound(text)
        if holds or is_named or (_NULL_COUNT not in keys[:-1] and any(map(in_text, spellings))):
            found.append("statistic" if is_bound else "value")
        else:
            found.append("statistic" if is_bound and forms.may_be_shortened(text) else None)
    return found


def _scalars(data: bytes) -> Iterator[_Scalar]:
    """Yield each text and number of JSON, with the names of the members around it."""
    try:
        text = text_of(data)
    except UnicodeDecodeError:
        return
    try:
        yield from _walk((), _loaded(text), 0)
        return
    except (ValueError, RecursionError):
        pass
    # Python knows more ends of a line, which a text in JSON may hold.
    for line in text.split("\n"):
        yield from _inner((), line, 0)


def _loaded(text: str) -> Any:
    """Return JSON with each object as a tuple of its members, of which two may share a name, and numbers as spelled."""
    return json.loads(text, object_pairs_hook=tuple, parse_int=str, parse_float=str)


def _inner(keys: tuple[str, ...], text: str, depth: int) -> Iterator[_Scalar]:
    """Yield a text, or the scalars of the JSON that it is."""
    if text.lstrip()[:1] in ("{", "[", '"') and depth < _MOST_NESTED:
        try:
            yield from _walk(keys, _loaded(text), depth + 1)
            return
        except (ValueError, RecursionError):
            pass
    yield keys, text


def _walk(keys: tuple[str, ...], value: Any, depth: int) -> Iterator[_Scalar]:
    if not value:
        # The names around it are searched.
        yield keys, ""
    elif isinstance(value, tuple):
        for name, member in value:
            yield from _walk((*keys, name), member, depth)
    elif isinstance(value, list):
        for item in value:
            yield from _walk(keys, item, depth)
    elif isinstance(value, str):
        yield from _inner(keys, value, depth)
    else:
        yield keys, value
