"""Files of JSON on a disk with several objects where Spark reads one.

Spark itself reads such files and reports nothing, so the job looks at them before. The invariant: that takes a small
part of the time that Spark takes to read them. In a store the workers look at every line.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from urllib.parse import unquote

import pyarrow as pa

from airflow_txlog.contract.operations import FileView
from airflow_txlog.datafiles.failures import adjacent_objects
from airflow_txlog.datafiles.json_objects import has_adjacent_objects_in
from airflow_txlog.datafiles.text_lines import OTHER_CODECS, TextFormat, compression_of, encoding_named
from airflow_txlog.jobs.source.headers import given_encoding
from airflow_txlog.jobs.source.listing import is_strict, is_true, options_of
from airflow_txlog.storage.local_files import stat_linked

_READERS = 16
# Of a larger source, and of a file that is compressed, one document or one line, only the first bytes are looked at.
_MOST_BYTES = 1024 * 1024 * 1024
_HEAD_BYTES = 1024 * 1024


def reads_one_object(view: FileView) -> bool:
    """Return whether a second object, which Spark would ignore, is an error: not where comments may look like one."""
    return view.format == "json" and is_strict(view) and not is_true(options_of(view), "allowcomments")


def check_objects_on_disk(view: FileView, uris: Sequence[str]) -> None:
    """Raise InvalidInput for a file of this machine's disk that has an object which Spark would ignore."""
    options = options_of(view)
    has_ascii = encoding_named(given_encoding(options), with_aliases=True) is not None
    if not reads_one_object(view) or not has_ascii or not all(uri.startswith("file:/") for uri in uris):
        return
    text = TextFormat(encoding="latin-1", line_end=options.get("linesep"), is_whole=is_true(options, "multiline"))
    paths = sorted("/" + unquote(uri).removeprefix("file:").lstrip("/") for uri in uris)
    pool = ThreadPoolExecutor(_READERS, thread_name_prefix="txlog-source")
    try:
        is_small = sum(pool.map(_size, paths)) <= _MOST_BYTES
        found = pool.map(partial(_is_wrong, text=text, is_small=is_small), paths)
        wrong = next((path for path, is_wrong in zip(paths, found, strict=True) if is_wrong), None)
    finally:
        pool.shutdown(cancel_futures=True)
    if wrong is not None:
        raise adjacent_objects(wrong, is_whole=text.is_whole)


def _size(path: str) -> int:
    found = stat_linked(path)
    return 0 if found is None else found.st_size


def _is_wrong(path: str, *, text: TextFormat, is_small: bool) -> bool:
    """Return whether a file has such objects; False if its own reader has to say what is wrong with it."""
    codec = compression_of(path)
    if path.rpartition(".")[2] in OTHER_CODECS:
        return False
    try:
        with pa.OSFile(path) as opened:
            source = opened if codec is None else pa.CompressedInputStream(opened, codec)
            head = source.read(_HEAD_BYTES)
            has_lines = not text.is_whole and (text.line_end or "\n").encode() in head
            if not is_small or codec is not None or not has_lines:
                return has_adjacent_objects_in(pa.BufferReader(head), text)
            opened.seek(0)
            return has_adjacent_objects_in(opened, text)
    except (OSError, pa.ArrowException):
        return False
