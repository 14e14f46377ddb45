"""The actions of the Delta protocol, and the commit files that hold them.

An action is one frozen value; fields have our spelling inside and the protocol's on the wire. `encode_commit` and
`decode_commit` are the only ways in and out of a commit file, which is newline-delimited JSON, one action a line.
Reading is strict about known actions (a wrong type or a missing field is a corrupt commit, never a guess) and skips
unknown actions and fields, as the protocol demands.
Source: protocol, "Actions" and "Delta Log Entries".
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Annotated, Any, NoReturn

import msgspec

from airflow_txlog.errors import CorruptCommit, InvalidCommit
from airflow_txlog.storage.limits import LOG_LINE

# JSON has no sizes. A number that no column of a snapshot or checkpoint can hold makes a corrupt commit, found while
# its line is still known.
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


# No action is part of a reference cycle, so the collector need not visit them (gc=False): with 300,000 adds that is
# most of the time of opening a log.
class _Action(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """A value on the wire: names in camelCase, None is omitted."""


class DeletionVector(_Action, frozen=True):
    """Which rows of a file are deleted; `unique_id` distinguishes two vectors of one file."""

    storage_type: str
    path_or_inline_dv: str
    size_in_bytes: Int32
    cardinality: Int64
    offset: Int32 | None = None
    max_row_index: Int64 | None = None

    @property
    def unique_id(self) -> str:
        """Source: protocol, "Deletion Vectors": storageType + pathOrInlineDv [+ "@" + offset]."""
        base = self.storage_type + self.path_or_inline_dv
        return base if self.offset is None else f"{base}@{self.offset}"


class Add(_Action, frozen=True):
    """A data file joins the table. `path` is URL-encoded and relative to the root, or an absolute URI."""

    path: str
    partition_values: dict[str, str | None]
    size: Int64
    modification_time: Int64
    data_change: bool
    stats: str | None = None
    tags: dict[str, str | None] | None = None
    deletion_vector: DeletionVector | None = None
    base_row_id: Int64 | None = None
    default_row_commit_version: Int64 | None = None
    clustering_provider: str | None = None


class Remove(_Action, frozen=True):
    """A data file was removed from the table; the tombstone stays until the retention has passed."""

    path: str
    data_change: bool
    deletion_timestamp: Int64 | None = None
    extended_file_metadata: bool | None = None
    partition_values: dict[str, str | None] | None = None
    size: Int64 | None = None
    stats: str | None = None
    tags: dict[str, str | None] | None = None
    deletion_vector: DeletionVector | None = None
    base_row_id: Int64 | None = None
    default_row_commit_version: Int64 | None = None


class Cdc(_Action, frozen=True):
    """A file of change rows."""

    path: str
    partition_values: dict[str, str | None]
    size: Int64
    data_change: bool
    tags: dict[str, str | None] | None = None


class Format(_Action, frozen=True, omit_defaults=False):
    """The encoding of the data files: always Parquet."""

    provider: str = "parquet"
    options: dict[str, str] = msgspec.field(default_factory=dict)


class Metadata(_Action, frozen=True, omit_defaults=False):
    """The table's identity, schema (as a JSON string), partitioning and properties.

    Absent fields are written as null: other readers demand `configuration` and `format.options` even if empty.
    """

    id: str
    partition_columns: list[str]
    schema_string: str | None = None
    """None if a writer left it out, which the protocol forbids: such a log can be inspected, but not read."""
    format: Format = msgspec.field(default_factory=Format)
    configuration: dict[str, str] = msgspec.field(default_factory=dict)
    name: str | None = None
    description: str | None = None
    created_time: Int64 | None = None


class Protocol(_Action, frozen=True):
    """The versions and features that a client must support to read and to write the table."""

    min_reader_version: Int32
    min_writer_version: Int32
    reader_features: list[str] | None = None
    writer_features: list[str] | None = None


class SetTransaction(_Action, frozen=True):
    """The application transaction: the progress of `app_id`."""

    app_id: str
    version: Int64
    last_updated: Int64 | None = None


class DomainMetadata(_Action, frozen=True):
    """Configuration of one named domain; a removed one hides earlier ones."""

    domain: str
    configuration: str
    removed: bool


class Line(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One line of a commit: exactly one field is set, or none if the action is unknown."""

    add: Add | None = None
    remove: Remove | None = None
    metaData: Metadata | None = None
    protocol: Protocol | None = None
    txn: SetTransaction | None = None
    domainMetadata: DomainMetadata | None = None
    cdc: Cdc | None = None
    commitInfo: dict[str, Any] | None = None


Action = Add | Remove | Metadata | Protocol | SetTransaction | DomainMetadata | Cdc


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """The actions of one commit file. Lists keep the order of the file."""

    version: Int64
    adds: list[Add]
    removes: list[Remove]
    cdc: list[Cdc]
    metadata: Metadata | None
    protocol: Protocol | None
    transactions: list[SetTransaction]
    domains: list[DomainMetadata]
    info: dict[str, Any] | None
    """commitInfo as written."""

    @property
    def engine(self) -> str | None:
        """The engine that wrote the commit; None if it does not name itself."""
        engine = (self.info or {}).get("engineInfo")
        return engine if isinstance(engine, str) else None


_decoder = msgspec.json.Decoder(Line)
# The decoder's errors for text that is not JSON, not UTF-8, or nested too deep.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_encoder = msgspec.json.Encoder()

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
    """Return the actions of one commit file; `path` only occurs in errors.

    Raises CorruptCommit (path, line) if the file is empty, is not UTF-8 or JSON, stops in the middle of a line, holds a
    known action of a wrong shape, or two protocol, metaData or commitInfo actions; LimitExceeded for a line beyond
    `limits.LOG_LINE`.
    """
    try:
        check_text(data, path)
        lines = _decoder.decode_lines(data)
    except UNREADABLE as error:
        _raise_with_line(data, path, error)
    if not lines:
        raise CorruptCommit(f"CorruptCommit: {path} is empty; a commit holds at least one action.", path=path)

    def only(name: str) -> Any:
        found = all_of(lines, name)
        if len(found) > 1:
            raise CorruptCommit(
                f"CorruptCommit: {path} holds {len(found)} {name} actions; a commit holds at most one.", path=path
            )
        return found[0] if found else None

    return Commit(
        version=version,
        adds=all_of(lines, "add"),
        removes=all_of(lines, "remove"),
        cdc=all_of(lines, "cdc"),
        metadata=only("metaData"),
        protocol=only("protocol"),
        transactions=all_of(lines, "txn"),
        domains=all_of(lines, "domainMetadata"),
        info=only("commitInfo"),
    )


def all_of(lines: Iterable[Line], name: str) -> list[Any]:
    """Return the actions of one kind, by their name on the wire, in order."""
    return [action for action in map(attrgetter(name), lines) if action is not None]


class _InfoLine(msgspec.Struct, frozen=True):
    commitInfo: dict[str, Any] | None = None


_info_decoder = msgspec.json.Decoder(_InfoLine)


def decode_commit_info(data: bytes, path: str) -> dict[str, Any]:
    """Return commitInfo alone, as written; empty without one. Raises CorruptCommit for a malformed one."""
    return _first_of("commitInfo", _info_decoder, data, path) or {}


class _MetadataLine(msgspec.Struct, frozen=True):
    metaData: Metadata | None = None


_metadata_decoder = msgspec.json.Decoder(_MetadataLine)


def decode_metadata(data: bytes, path: str) -> Metadata | None:
    """Return the metaData of a commit alone; None if it has none. Raises as `decode_commit_info` does."""
    metadata: Metadata | None = _first_of("metaData", _metadata_decoder, data, path)
    return metadata


def _first_of(action: str, decoder: Any, data: bytes, path: str) -> Any:
    """Return the first action of this name, None without one; only lines that contain the name are decoded."""
    LOG_LINE.check_lines(data, path)
    for line in data.split(b"\n"):
        if action.encode() not in line:
            continue
        try:
            line.decode("utf-8")
            found = getattr(decoder.decode(line), action)
        except UNREADABLE as error:
            raise CorruptCommit(f"CorruptCommit: {action} of {path} cannot be read: {error}.", path=path) from error
        if found is not None:
            return found
    return None


def encode_commit(info: dict[str, Any] | None, actions: Iterable[Action]) -> bytes:
    """Return the bytes of a commit file: commitInfo first, then the actions in the order given.

    Tables with in-commit timestamps demand that order. Raises InvalidCommit without a line, or for text not Unicode.
    """
    lines: list[dict[str, Any]] = [] if info is None else [{"commitInfo": info}]
    lines.extend({_KEYS[type(action)]: action} for action in actions)
    if not lines:
        raise InvalidCommit("InvalidCommit: a commit holds at least one action; none was given.")
    try:
        return _encoder.encode_lines(lines)
    except UnicodeEncodeError as error:
        # The message of the error itself would quote the text.
        raise InvalidCommit(
            "InvalidCommit: a text of the commit (a property, a tag, a comment or the id of a transaction) has half of "
            "a character in it, a lone surrogate, which UTF-8 cannot hold. Nothing was committed."
        ) from error


def check_text(data: bytes, path: str) -> None:
    """Raise UnicodeDecodeError if the bytes are no UTF-8, LimitExceeded for a line beyond `limits.LOG_LINE`."""
    LOG_LINE.check_lines(data, path)
    # The decoder does not validate the strings that it skips; a file that is not UTF-8 is still corrupt.
    if not data.isascii():
        data.decode("utf-8")


def _raise_with_line(data: bytes, path: str, error: Exception) -> NoReturn:
    """Decode line by line to find the first bad line; only a corrupt file pays this cost."""
    for number, line in enumerate(data.split(b"\n"), start=1):
        try:
            line.decode("utf-8")
            _decoder.decode_lines(line)
        except UNREADABLE as found:
            raise CorruptCommit(
                f"CorruptCommit: line {number} of {path} cannot be read as an action: {found}. Nothing was changed.",
                path=path,
                line=number,
            ) from found
    raise CorruptCommit(f"CorruptCommit: {path} cannot be read: {error}.", path=path) from error
