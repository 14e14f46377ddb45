"""The headers of a source's CSV files, compared with the names of the columns that the files' values become.

Spark takes values by their position and ignores the header. The invariant: a file whose header has other names than the
columns, or the same names in another order, is refused before a row is read. The option `enforceSchema=true` turns the
comparison off.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from airflow_txlog.contract.operations import AnySource, FileView, QuerySource
from airflow_txlog.datafiles.failures import Misfit, row_does_not_fit, separator_of, set_separator
from airflow_txlog.datafiles.tasks.rows_without_log import reading_source
from airflow_txlog.datafiles.text_lines import (
    OTHER_CODECS,
    TextFormat,
    TooMuchText,
    compression_of,
    encoding_named,
    has_doubled_quotes,
    lines_of,
)
from airflow_txlog.errors import InvalidInput, InvalidJobSpec, SchemaMismatch
from airflow_txlog.jobs.source.listing import CORRUPT_RECORD, OnlySpark, is_strict, is_true, options_of

_READERS = 16
# A header is short, and a request for it too.
_BLOCK_BYTES = 64 * 1024
_MOST_BYTES = 1024 * 1024
_ESCAPES = {"t": "\t", "r": "\r", "b": "\b", "f": "\f"}

Opener = Callable[[str], AbstractContextManager[Any]]


# The first bytes of a file whose name says nothing of it: what is wrong, and the advice.
_WIDE = 'Have it written in UTF-8, or set the options "encoding": "{0}" and "multiLine": "true" for a file on a disk.'
_OTHER_BYTES = (
    (rb"\x1f\x8b", "is compressed with gzip, and its name has no .gz at its end", "Give it the ending .gz."),
    (rb"\x28\xb5\x2f\xfd", "is compressed with zstd, and its name has no .zst at its end", "Give it the ending .zst."),
    (rb"PK\x03\x04", "is a zip archive", "Unpack it, or have it compressed with gzip."),
    *(
        (pattern, f"is text in {name}, and not in the encoding of the source's options", _WIDE.format(name))
        for pattern, name in (
            (rb"\xff\xfe\0\0|\0\0\xfe\xff|\0\0\0[^\0]|[^\0]\0\0\0", "UTF-32"),
            (rb"\xff\xfe|\xfe\xff", "UTF-16"),
            (rb"[^\0]\0", "UTF-16LE"),
            (rb"\0[^\0]", "UTF-16BE"),
        )
    ),
)


class _OnlySpark(Exception):
    """Only Spark's own reader finds the header of a file. `args[0]` is the reason, as a sentence."""


class _WithHead:
    """A stream that keeps its first bytes."""

    def __init__(self, source: Any) -> None:
        self._source, self.head = source, b""

    def read(self, size: int | None = None) -> bytes:
        data: bytes = self._source.read(size)
        self.head = self.head or data[:4]
        return data


def has_checked_header(view: FileView) -> bool:
    """Return whether the files have headers that must agree with their columns."""
    options = options_of(view)
    return view.format == "csv" and is_true(options, "header") and not is_true(options, "enforceschema")


def has_unchecked_header(source: AnySource) -> bool:
    """Return whether the first line of a CSV file may name the columns, although nothing shows that it is a header."""
    views = source.views.values() if isinstance(source, QuerySource) else (source,)
    files = (view for view in views if isinstance(view, FileView) and view.format == "csv" and view.schema is None)
    return any(is_true(options_of(view), "header") for view in files)


def checked_quote(view: FileView) -> str | None:
    """Return the quote that no value of CSV may hold twice: in the mode FAILFAST without an option for its escape."""
    options = options_of(view)
    is_chosen = {"escape", "chartoescapequoteescaping", "unescapedquotehandling"} & options.keys()
    quote = options.get("quote", '"')
    is_checked = view.format == "csv" and is_strict(view) and not is_chosen and len(quote) == 1 and quote != "\0"
    return quote if is_checked else None


def given_separator(options: Mapping[str, str]) -> str:
    """Return the separator of CSV values from options of `options_of`, with escapes as Spark reads them.

    Source: Spark, CSVExprUtils.toChar, which refuses all others.
    """
    text = options.get("sep", options.get("delimiter", ","))
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text)


def check_separator(view: FileView, argument: str) -> None:
    """Raise InvalidJobSpec (`argument`) for an empty separator."""
    if view.format == "csv" and not given_separator(options_of(view)):
        raise InvalidJobSpec(
            f'{argument}: the option "sep" is empty. Set it to what is between the values, such as ";", or leave it '
            "out. Nothing was read.",
            argument=f"{argument}.options",
        )


def given_encoding(options: Mapping[str, str]) -> str:
    """Return the name of the encoding of CSV or JSON that Spark takes from options of `options_of`."""
    return options.get("encoding", options.get("charset", "UTF-8"))


def check_headers(
    view: FileView, paths: Sequence[str], open_one: Opener, expected: Sequence[str] | None, *, only_here: bool = False
) -> OnlySpark | None:
    """Raise SchemaMismatch if the header of a file has other names than `expected`, None for those of the first file.

    Names are compared without regard to case, as Spark compares the names of columns. A file without a line has no
    header. Returns the reason if only Spark can find a header: an encoding, a compression or a quoted line end. Raises
    InvalidInput for a file without a line end in its first MiB, and for one whose first bytes show a compression or an
    encoding that neither its name nor an option gives. With `only_here`, raises it for every file that is no text.
    """

    def found(path: str) -> list[str] | None:
        return _header_of(view, path, open_one)

    pool = ThreadPoolExecutor(_READERS, thread_name_prefix="txlog-source")
    try:
        headers = pool.map(found, paths) if len(paths) > 1 else map(found, paths)
        first, names = None, None if expected is None else list(expected)
        for path, header in zip(paths, headers, strict=True):
            if header is not None and names is None:
                first, names = path, header
            elif header is not None and names is not None and _lower(header) != _lower(names):
                raise _other_header(path, header, names, first, given_separator(options_of(view)))
    except _OnlySpark as error:
        if only_here and isinstance(error.__cause__, InvalidInput):
            raise error.__cause__ from None
        return OnlySpark(f"this process cannot find the header of a CSV file: {error.args[0]}")
    finally:
        pool.shutdown(cancel_futures=True)
    return None


def check_headers_on_disk(view: FileView, uris: Sequence[str], names: Sequence[str] | None) -> OnlySpark | None:
    """Do the same for files that Spark names, on this machine's disk."""
    if not all(uri.startswith("file:/") for uri in uris):
        return OnlySpark("the files are on no disk of this machine")
    paths = sorted("/" + unquote(uri).removeprefix("file:").lstrip("/") for uri in uris)
    if names is None:
        return check_headers(view, paths, _opened, None)
    # The column of a folder is in no file, unless Spark was given the folder itself.
    below = {part.partition("=")[0].lower() for path in paths for part in path.split("/")[:-1] if "=" in part}
    in_files = [name for name in names if name.lower() not in below]
    if len(in_files) < len(names):
        try:
            return check_headers(view, paths, _opened, in_files)
        except SchemaMismatch:
            return check_headers(view, paths, _opened, names)
    return check_headers(view, paths, _opened, names)


def names_in_files(view: FileView, names: Iterable[str]) -> list[str]:
    """Return the names of the columns without that of Spark's texts of rows that it cannot read."""
    corrupt = options_of(view).get("columnnameofcorruptrecord", CORRUPT_RECORD).lower()
    return [name for name in names if name.lower() != corrupt]


def _other_header(
    path: str, header: Sequence[str], names: Sequence[str], first: str | None, mark: str
) -> SchemaMismatch:
    """Return the error for a file with this header and other names of its columns: those of the file `first`, if any.

    `mark`: the source's separator. The first line of a file may be a row. Only names of the schema are shown.
    """
    ours, theirs = _lower(names), _lower(header)
    pairs = zip(theirs, ours, strict=False)
    at = next((number for number, (one, other) in enumerate(pairs) if one != other), min(len(header), len(names)))
    counts = f"The file has {len(header)} columns"
    if first is not None:
        advice = "Write all files with one header, or read the files of each header by a separate path."
        if sorted(theirs) != sorted(ours):
            advice = f'If the files have no header, leave out the option "header". {advice}'
        return SchemaMismatch(
            f"The header of the source's file {path} is not that of the file {first}: column {at + 1} differs. "
            f"{counts}, and the other {len(names)}. Nothing was read. {advice}",
            columns=[],
            file=path,
            found=[],
        )
    facts = {"columns": list(names), "file": path, "found": [name for name in header if name.strip().lower() in ours]}
    # Also in a row with commas in its numbers.
    other = separator_of(mark.join(header), mark, len(names)) if len(header) != len(names) else None
    other = other or (separator_of(header[0], mark) if len(header) == 1 else None)
    separator = "" if other is None else f" {set_separator(other)}"
    if other is not None and set(_lower(mark.join(header).split(other))) & set(ours):
        return SchemaMismatch(
            f"The header of the source's file {path} has columns of the schema, with another separator than the "
            f"source's. Nothing was read.{separator}",
            **facts,
        )
    if not facts["found"]:
        return SchemaMismatch(
            f"The first line of the source's file {path} has none of the columns of the schema ({', '.join(names)}). "
            f'Nothing was read. If the file has no header, leave out the option "header".{separator} '
            f"{_other_names(theirs, ours)}",
            **facts,
        )
    there = "missing" if at >= len(header) else repr(header[at]) if theirs[at] in ours else "another"
    wanted = repr(names[at]) if at < len(names) else "missing"
    advice = _other_names(theirs, ours)
    if sorted(theirs) == sorted(ours):
        # Their values would be swapped by position.
        advice = f"Write the schema in the order of the file: {', '.join(names[ours.index(each)] for each in theirs)}."
    return SchemaMismatch(
        f"The header of the source's file {path} is not that of the schema: column {at + 1} is {there} in the file, "
        f"and {wanted} in the schema. {counts}. Expected: {', '.join(names)}. Nothing was read. {advice}",
        **facts,
    )


def _other_names(theirs: Sequence[str], ours: Sequence[str]) -> str:
    """Return the advice for a header without some names of the schema. By position no column may become another."""
    advice = "If the first line is a header with other names, write the schema with the names of the file, in its order"
    if "" in theirs:
        # No schema has such a name: a separator at the end of each line, and the index of pandas and R, make it.
        return f"{advice}, with one of your own for each without a name, and set the option enforceSchema=true."
    is_aligned = len(theirs) == len(ours) and all(
        one == other or one not in ours for one, other in zip(theirs, ours, strict=True)
    )
    by_position = ", or set the option enforceSchema=true to take the columns by position"
    return f"{advice}{by_position if is_aligned else ''}."


def _lower(names: Sequence[str]) -> list[str]:
    return [name.strip().lower() for name in names]


def _opened(path: str) -> pa.NativeFile:
    return pa.OSFile(path)


def _header_of(view: FileView, path: str, open_one: Opener) -> list[str] | None:
    options = options_of(view)
    encoding = encoding_named(given_encoding(options), with_aliases=True)
    line_end, mark = options.get("linesep"), given_separator(options)
    name, codec, stream = path.rpartition("/")[2], compression_of(path), _WithHead(None)
    if encoding is None:
        raise _OnlySpark(f"{name} is in the encoding {given_encoding(options)}")
    if path.rpartition(".")[2] in OTHER_CODECS:
        raise _OnlySpark(f"{name} has a compression that only Spark reads")
    if line_end not in (None, "\r\n") and len(line_end or "") > 1:
        raise _OnlySpark("the option lineSep has several characters")
    text = TextFormat(encoding=encoding, line_end=line_end, drops_blank=True, comment=options.get("comment") or None)
    try:
        with reading_source(name, "CSV"), open_one(path) as opened:
            stream = _WithHead(opened)
            # Arrow itself reads what is compressed.
            source = stream if codec is None else opened
            lines = next(lines_of(source, codec, text, block_bytes=_BLOCK_BYTES, most_bytes=_MOST_BYTES), None)
    except TooMuchText:
        raise InvalidInput(
            f"The source's file {path} has no header in its first MiB of text. Does it have line ends? Nothing was "
            "read. Correct the file, or the source's format and options.",
            file=path,
        ) from None
    except InvalidInput as error:
        _check_first_bytes(path, stream, mark)
        # Its reader shows what is wrong with the bytes, or skips the file.
        is_undecoded = isinstance(error.__cause__, UnicodeDecodeError)
        what = f"has bytes that are not {given_encoding(options)}" if is_undecoded else "cannot be read as text"
        raise _OnlySpark(f"{name} {what}") from error
    if re.search(rb"[\0-\x08]", stream.head):
        _check_first_bytes(path, stream, mark)
    if lines is None:
        return None
    if len(mark) == 1 and checked_quote(view) == '"' and has_doubled_quotes(lines[:1], mark)[0].as_py():
        raise row_does_not_fit(path, Misfit(quote="doubled"))
    return _names_in(lines[0].as_py(), mark, options)


def _check_first_bytes(path: str, stream: _WithHead, mark: str) -> None:
    """Raise InvalidInput if the first bytes of a file are those of a compression or of another encoding.

    `mark`: the separator. One with a NUL looks like part of a wide character.
    """
    if "\0" in mark:
        return
    for pattern, what, advice in _OTHER_BYTES:
        if re.match(pattern, stream.head):
            raise InvalidInput(f"The source's file {path} {what}. Nothing was read. {advice}", file=path) from None


def _names_in(line: str, mark: str, options: dict[str, str]) -> list[str]:
    quote, escape = options.get("quote", '"'), options.get("escape", "\\")
    if is_true(options, "multiline") and line.count(quote) % 2:
        raise _OnlySpark("a quote does not end in its first line")
    if len(mark) > 1 or len(quote) != 1 or len(escape) != 1 or quote not in line:
        return [name.strip(quote) for name in line.split(mark)]
    try:
        [names] = csv.reader([line], delimiter=mark, quotechar=quote, escapechar=None if escape == quote else escape)
    except (csv.Error, TypeError, ValueError) as error:
        raise _OnlySpark("the separator, quotes or escapes of its first line are unusual") from error
    return names
