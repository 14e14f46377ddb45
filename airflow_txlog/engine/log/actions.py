"""The actions of the Delta protocol, and their wire form.

One frozen value an action; fields in our spelling inside, in the protocol's on the wire. Unknown fields and unknown
actions are skipped when read. `encode_commit` and `decode_commit` are the only ways in and out of a commit file.
Source: protocol, "Actions".
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

# JSON knows no sizes. A number that the columns of a snapshot and of a checkpoint cannot hold makes a corrupt commit,
# found while its line is still known.
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


# No action can be part of a reference cycle, so the collector need not look at them (gc=False): with 300,000 adds that
# is most of the time of opening a log.
class _Action(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """A value on the wire: camelCase names, absent where None."""


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
    """A data file becomes part of the table. `path` is URL-encoded and relative to the root, or an absolute URI."""

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
    """A data file leaves the table; the tombstone stays until the retention has passed."""

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
    """The encoding of the data files; always Parquet."""

    provider: str = "parquet"
    options: dict[str, str] = msgspec.field(default_factory=dict)


class Metadata(_Action, frozen=True, omit_defaults=False):
    """The table's identity, schema (as a JSON string), partitioning and properties.

    Every field is written, absent ones as null: other readers demand `configuration` and `format.options` even empty.
    """

    id: str
    partition_columns: list[str]
    schema_string: str | None = None
    """None where a writer left it out, which the protocol forbids: such a log can be looked at, its rows cannot."""
    format: Format = msgspec.field(default_factory=Format)
    configuration: dict[str, str] = msgspec.field(default_factory=dict)
    name: str | None = None
    description: str | None = None
    created_time: Int64 | None = None


class Protocol(_Action, frozen=True):
    """What a client must understand to read and to write the table."""

    min_reader_version: Int32
    min_writer_version: Int32
    reader_features: list[str] | None = None
    writer_features: list[str] | None = None


class SetTransaction(_Action, frozen=True):
    """The application transaction: how far `app_id` has come."""

    app_id: str
    version: Int64
    last_updated: Int64 | None = None


class DomainMetadata(_Action, frozen=True):
    """Configuration of one named domain; a removed one hides earlier ones."""

    domain: str
    configuration: str
    removed: bool


class _Line(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One line of a commit: exactly one of these is set, or none where the action is unknown."""

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
    """One version's commit file, read. Lists keep the order of the file."""

    version: Int64
    adds: list[Add]
    removes: list[Remove]
    cdc: list[Cdc]
    metadata: Metadata | None
    protocol: Protocol | None
    transactions: list[SetTransaction]
    domains: list[DomainMetadata]
    info: dict[str, Any] | None
    """commitInfo as written, or None where the commit has none."""
