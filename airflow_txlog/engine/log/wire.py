"""A commit file, to and from its actions: the only way in and out.

The file is newline-delimited JSON, one action a line. Reading is strict about what it knows (a known action with a
wrong type or a missing field is a corrupt commit, never a guess) and blind to what it does not know: unknown actions
and unknown fields are stepped over, as the protocol demands.
Source: protocol, "Actions" and "Delta Log Entries".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn, TypeVar

import msgspec

from airflow_txlog.engine.log.actions import (
    Action,
    Add,
    Cdc,
    Commit,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    SetTransaction,
    _Line,
)
from airflow_txlog.errors import CorruptCommit, InvalidCommit
from airflow_txlog.storage.limits import LOG_LINE

_decoder = msgspec.json.Decoder(_Line)
# What the decoder raises: of what is no JSON, no UTF-8, or nested deeper than anybody can follow.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_encoder = msgspec.json.Encoder()
T = TypeVar("T")

_KEYS: dict[type[Action], str] = {
    Add: "add",
    Remove: "remove",
    Metadata: "metaData",
    Protocol: "protocol",
    SetTransaction: "txn",
    DomainMetadata: "domainMetadata",
    Cdc: "cdc",
}


def decode_commit(version: int, data: bytes, path: str) -> Commit:
    """The actions of one commit file; lists keep the order of the file.

    `path` is named in errors only. A last line without a newline is read like any other; a line that stops in the
    middle is corrupt.

    Raises CorruptCommit (path, line) if the file is empty, is not UTF-8 or JSON, holds a known action of a wrong
    shape, or holds two protocol, metaData or commitInfo actions; LimitExceeded for a line beyond `limits.LOG_LINE`.
    """
    lines = _decode_lines(data, path)
    if not lines:
        raise CorruptCommit(f"CorruptCommit: {path} is empty; a commit holds at least one action.", path=path)
    return Commit(
        version=version,
        adds=[line.add for line in lines if line.add is not None],
        removes=[line.remove for line in lines if line.remove is not None],
        cdc=[line.cdc for line in lines if line.cdc is not None],
        metadata=_at_most_one([line.metaData for line in lines if line.metaData is not None], "metaData", path),
        protocol=_at_most_one([line.protocol for line in lines if line.protocol is not None], "protocol", path),
        transactions=[line.txn for line in lines if line.txn is not None],
        domains=[line.domainMetadata for line in lines if line.domainMetadata is not None],
        info=_at_most_one([line.commitInfo for line in lines if line.commitInfo is not None], "commitInfo", path),
    )


class _InfoLine(msgspec.Struct, frozen=True):
    commitInfo: dict[str, Any] | None = None


_info_decoder = msgspec.json.Decoder(_InfoLine)


def decode_commit_info(data: bytes, path: str) -> dict[str, Any]:
    """commitInfo alone, as written; empty where the commit has none. The other actions are not looked at.

    Raises CorruptCommit where the line that holds it is no JSON, or commitInfo is no object; LimitExceeded.
    """
    info: dict[str, Any] | None = _first_of("commitInfo", _info_decoder, data, path)
    return {} if info is None else info


class _MetadataLine(msgspec.Struct, frozen=True):
    metaData: Metadata | None = None


_metadata_decoder = msgspec.json.Decoder(_MetadataLine)


def decode_metadata(data: bytes, path: str) -> Metadata | None:
    """The metaData of a commit alone; None where it has none. The other actions are not looked at.

    Raises CorruptCommit where the line that may hold it is no JSON, or metaData has another shape.
    """
    metadata: Metadata | None = _first_of("metaData", _metadata_decoder, data, path)
    return metadata


def _first_of(action: str, decoder: Any, data: bytes, path: str) -> Any:
    """The action of this name, None where no line has it; only lines that hold the name are decoded."""
    LOG_LINE.check_lines(data, path)
    for line in data.split(b"\n"):
        if action.encode() not in line:
            continue
        try:
            line.decode("utf-8")
            found = getattr(decoder.decode(line), action)
        except _UNREADABLE as error:
            raise CorruptCommit(f"CorruptCommit: {action} of {path} cannot be read: {error}.", path=path) from error
        if found is not None:
            return found
    return None


def encode_commit(info: dict[str, Any] | None, actions: Iterable[Action]) -> bytes:
    """The bytes of a commit file: commitInfo first, then the actions in the order given, each line ended by "\\n".

    commitInfo stands first because tables with in-commit timestamps demand it and history readers look there.
    Raises InvalidCommit where there is neither, and for a text that is not Unicode.
    """
    lines: list[dict[str, Any]] = [] if info is None else [{"commitInfo": info}]
    lines.extend({_KEYS[type(action)]: action} for action in actions)
    if not lines:
        raise InvalidCommit("InvalidCommit: a commit holds at least one action; none was given.")
    try:
        return _encoder.encode_lines(lines)
    except UnicodeEncodeError as error:
        # Its own text quotes the text.
        raise InvalidCommit(
            "InvalidCommit: a text of the commit (a property, a tag, a comment or the id of a transaction) has half of "
            "a character in it, a lone surrogate, which UTF-8 cannot hold. Nothing was committed."
        ) from error


def _decode_lines(data: bytes, path: str) -> list[_Line]:
    LOG_LINE.check_lines(data, path)
    try:
        # The decoder does not look into the strings that it skips; a file that is not UTF-8 is corrupt all the same.
        if not data.isascii():
            data.decode("utf-8")
        return _decoder.decode_lines(data)
    except _UNREADABLE as error:
        _raise_with_line(data, path, error)


def _raise_with_line(data: bytes, path: str, error: Exception) -> NoReturn:
    """Decode line by line to find the first bad one: only a corrupt file pays for knowing where it is corrupt."""
    for number, line in enumerate(data.split(b"\n"), start=1):
        try:
            line.decode("utf-8")
            _decoder.decode_lines(line)
        except _UNREADABLE as found:
            raise CorruptCommit(
                f"CorruptCommit: line {number} of {path} cannot be read as an action: {found}. Nothing was changed.",
                path=path,
                line=number,
            ) from found
    raise CorruptCommit(f"CorruptCommit: {path} cannot be read: {error}.", path=path) from error


def _at_most_one(found: list[T], name: str, path: str) -> T | None:
    if len(found) > 1:
        raise CorruptCommit(
            f"CorruptCommit: {path} holds {len(found)} {name} actions; a commit holds at most one.", path=path
        )
    return found[0] if found else None
