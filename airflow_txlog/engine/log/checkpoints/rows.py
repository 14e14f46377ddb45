"""The schema of a checkpoint, and the rows of one of its Parquet files, whatever shape its writer gave them.

Columns are read as columns: a million adds become a few Arrow arrays, never Python objects. The invariant: a missing
column is null, and a column of another width is converted. A column of another kind, or a file action without a path or
size, is corrupt and never skipped. Every field of FILES and TOMBSTONES has its member in CHECKPOINT under its name on
the wire, so that a snapshot is written and read back without loss. A sidecar lies in `_delta_log/_sidecars/` of the
same table: a name outside of it is corrupt, and its file is neither read nor deleted.

`stats_parsed` and `partitionValues_parsed` are converted to the log's texts. Only tables with
`delta.checkpoint.writeStatsAsJson=false` have statistics as structs alone. Values that JSON cannot state exactly (NaN,
infinity, bytes) are left out, which costs pruning and never a row.
Source: protocol, "Checkpoint Schema", "V2 Spec", "Sidecar File Information", "Checkpoint Metadata", "Per-file
Statistics" and "Partition Value Serialization".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_txlog.datafiles.codecs import SECOND_US, date_text, timestamp_text
from airflow_txlog.datafiles.partitioning import partition_string
from airflow_txlog.engine.log.actions import DomainMetadata, Int64, Metadata, Protocol, SetTransaction
from airflow_txlog.engine.log.checkpoints.bounded import Decoded, batches, open_parquet
from airflow_txlog.engine.log.columns import DELETION_VECTOR, FILES, STRING_MAP, TOMBSTONES, PackedBatch, nulls
from airflow_txlog.engine.log.names import LOG_DIRECTORY
from airflow_txlog.engine.log.paths import canonical_path
from airflow_txlog.errors import SchemaMismatch

# --- the schema -------------------------------------------------------------------------------------------------------

SIDECAR_DIRECTORY = f"{LOG_DIRECTORY}/_sidecars"


def wire_name(name: str) -> str:
    """Return the wire's spelling of a field name: `base_row_id` is `baseRowId`."""
    head, *rest = name.split("_")
    return head + "".join(map(str.capitalize, rest))


def _struct(**members: pa.DataType) -> pa.StructType:
    return pa.struct(list(members.items()))


def _wire_struct(schema: Iterable[pa.Field], **more: pa.DataType) -> pa.StructType:
    types = {wire_name(each.name): VECTOR_TYPE if each.type == DELETION_VECTOR else each.type for each in schema}
    return _struct(**types, **more)


_TEXT, _LONG = pa.string(), pa.int64()
_TEXT_LIST = pa.list_(_TEXT)
VECTOR_TYPE = _struct(**{wire_name(each.name): each.type for each in DELETION_VECTOR})
# FILES has no dataChange: it belongs to a commit, and is false in every checkpoint.
ADD = _wire_struct(FILES, dataChange=pa.bool_())
REMOVE = _wire_struct(TOMBSTONES)

CHECKPOINT = pa.schema(
    {
        "txn": _struct(appId=_TEXT, version=_LONG, lastUpdated=_LONG),
        "add": ADD,
        "remove": REMOVE,
        "metaData": _struct(
            id=_TEXT,
            name=_TEXT,
            description=_TEXT,
            format=_struct(provider=_TEXT, options=STRING_MAP),
            schemaString=_TEXT,
            partitionColumns=_TEXT_LIST,
            configuration=STRING_MAP,
            createdTime=_LONG,
        ),
        "protocol": _struct(
            minReaderVersion=pa.int32(),
            minWriterVersion=pa.int32(),
            readerFeatures=_TEXT_LIST,
            writerFeatures=_TEXT_LIST,
        ),
        "domainMetadata": _struct(domain=_TEXT, configuration=_TEXT, removed=pa.bool_()),
    }
)
# Only in the top level of a V2 checkpoint.
CHECKPOINT_METADATA = pa.field("checkpointMetadata", _struct(version=_LONG, tags=STRING_MAP))
SIDECAR = pa.field("sidecar", _struct(path=_TEXT, sizeInBytes=_LONG, modificationTime=_LONG, tags=STRING_MAP))


class CheckpointMetadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The version of a V2 checkpoint."""

    version: Int64


class Sidecar(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A sidecar as the top level names it: `path` is URL-encoded, a name in the directory or an absolute URI."""

    path: str
    size_in_bytes: Int64
    modification_time: Int64


def sidecar_path(sidecar: Sidecar, root: str) -> str:
    """Return the path of the sidecar, relative to the table. Raises ValueError if it is not in the directory."""
    name = unquote(sidecar.path)
    # Only a bare name is relative to the directory; resolving would turn `/x` and `<table>/x` into bare names.
    found = f"{SIDECAR_DIRECTORY}/{name}" if "/" not in name else canonical_path(sidecar.path, root)
    directory, _, base = found.rpartition("/")
    if directory != SIDECAR_DIRECTORY or base in ("", ".", ".."):
        raise ValueError(f"it names the sidecar {sidecar.path!r}, which is not in {SIDECAR_DIRECTORY}")
    return found


# --- reading ----------------------------------------------------------------------------------------------------------

SIDECARS = ("sidecar.path", "sidecar.sizeInBytes", "sidecar.modificationTime")
DESCRIBING = ("protocol", "metaData", "checkpointMetadata.version")
FILE_ACTIONS = ("add", "remove")
_OTHERS = (*DESCRIBING, "txn", "domainMetadata", *SIDECARS)
_STRUCTS = (*CHECKPOINT.names, "checkpointMetadata", "sidecar")


@dataclass(slots=True)
class Gathered:
    """The actions of one checkpoint, gathered file by file."""

    protocols: list[Protocol] = field(default_factory=list)
    metadata: list[Metadata] = field(default_factory=list)
    transactions: list[SetTransaction] = field(default_factory=list)
    domains: list[DomainMetadata] = field(default_factory=list)
    checkpoint_metadata: list[CheckpointMetadata] = field(default_factory=list)
    sidecars: list[Sidecar] = field(default_factory=list)
    files: list[PackedBatch] = field(default_factory=list)
    """The adds."""
    pack: Callable[[pa.RecordBatch], PackedBatch] = PackedBatch
    """Returns the form of a batch of adds in memory."""
    removes: list[pa.RecordBatch] = field(default_factory=list)

    def add_files(self, batch: pa.RecordBatch) -> None:
        """Add a batch of adds, schema FILES."""
        self.files.append(self.pack(batch))


def gather(source: Any, found: Gathered, decoded: Decoded, only: Sequence[str] | None = None) -> None:
    """Add the actions of one Parquet file, a seekable binary file object, to `found`.

    `only`: the columns to read, SIDECARS, DESCRIBING or FILE_ACTIONS. Raises ArrowInvalid for a sidecar without either.
    """
    file = _opened(source, decoded)
    there = set(file.schema_arrow.names)
    if only is not None and there.isdisjoint(each.partition(".")[0] for each in only):
        if only is FILE_ACTIONS:
            raise pa.ArrowInvalid("it has no column for adds or removes")
        return
    with_files = only is None or only is FILE_ACTIONS
    others = _OTHERS if only is None else () if with_files else only
    instants = _instants(file)
    columns = [*others, *(_file_columns_of(file) if with_files else ())]
    # Closed before the source is, whose next rows a thread may be reading.
    with closing(batches(source, file, columns, decoded)) as read:
        for batch in read:
            if with_files:
                _gather_files(batch, found, instants)
            _gather_others(batch, found)


def _opened(source: Any, decoded: Decoded) -> pq.ParquetFile:
    file = open_parquet(source, decoded)
    schema = file.schema_arrow
    for known in _STRUCTS:
        # Below only members are read: a column of another shape would read as one without rows.
        if known in schema.names and not pa.types.is_struct(schema.field(known).type):
            raise pa.ArrowInvalid(f"column {known} is no struct")
    return file


def _instants(file: pq.ParquetFile) -> frozenset[str]:
    """Return the members of `add` in INT96, which has no zone; writers store only instants in it."""
    schema = file.schema
    columns = map(schema.column, range(len(schema)))
    return frozenset(each.path.removeprefix("add.") for each in columns if each.physical_type == "INT96")


def _file_columns_of(file: pq.ParquetFile) -> list[str]:
    """Return the columns of adds and removes that are used: `stats_parsed` may be most of the file."""
    schema = file.schema_arrow
    columns = [f"add.{wire_name(name)}" for name in FILES.names]
    columns += [f"remove.{wire_name(name)}" for name in TOMBSTONES.names]
    if "add" in schema.names:
        add = schema.field("add").type
        if _has_field(add, "stats_parsed"):
            columns += _statistics_columns(file)
        if not _has_field(add, "partitionValues"):
            columns.append("add.partitionValues_parsed")
    return columns


def _statistics_columns(file: pq.ParquetFile) -> list[str]:
    """Return the struct statistics if a row group has an add without the JSON form; reading both doubles the work."""
    positions = {file.schema.column(i).path: i for i in range(len(file.schema))}
    stats, path = positions.get("add.stats"), positions.get("add.path")
    if stats is None or path is None:
        return ["add.stats_parsed"]
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        has, of = group.column(stats).statistics, group.column(path).statistics
        if has is None or of is None or has.num_values < of.num_values:
            return ["add.stats_parsed"]
    return []


def _gather_files(batch: pa.RecordBatch, found: Gathered, instants: frozenset[str]) -> None:
    adds = _valid(batch, "add")
    if adds is not None:
        found.add_files(_file_columns(adds, FILES, instants))
    removes = _valid(batch, "remove")
    if removes is not None:
        found.removes.append(_file_columns(removes, TOMBSTONES, instants))


def _gather_others(batch: pa.RecordBatch, found: Gathered) -> None:
    found.protocols += [_protocol(row) for row in _rows(batch, "protocol")]
    found.metadata += [_metadata(row) for row in _rows(batch, "metaData")]
    found.transactions += [msgspec.convert(row, SetTransaction) for row in _rows(batch, "txn")]
    found.domains += [msgspec.convert(row, DomainMetadata) for row in _rows(batch, "domainMetadata")]
    found.checkpoint_metadata += [
        msgspec.convert(row, CheckpointMetadata) for row in _rows(batch, "checkpointMetadata")
    ]
    found.sidecars += [msgspec.convert(row, Sidecar) for row in _rows(batch, "sidecar")]


def _valid(batch: pa.RecordBatch, name: str) -> pa.StructArray | None:
    """Return the rows that hold this action, None without one."""
    if name not in batch.schema.names:
        return None
    column = batch.column(name)
    if column.null_count == len(column):
        return None
    return column if not column.null_count else column.filter(column.is_valid())


def _file_columns(rows: pa.StructArray, schema: pa.Schema, instants: frozenset[str]) -> pa.RecordBatch:
    arrays = [_column(rows, target) for target in schema]
    if schema is FILES:
        if not _has_field(rows.type, "partitionValues") and _has_field(rows.type, "partitionValues_parsed"):
            arrays[schema.get_field_index("partition_values")] = _partition_maps(rows, instants)
        position = schema.get_field_index("stats")
        arrays[position] = _statistics(rows, arrays[position], instants)
    batch = pa.record_batch(arrays, schema=schema)
    for name in ("path", *(("size",) if schema is FILES else ())):
        if batch.column(name).null_count:
            raise pa.ArrowInvalid(f"a file action has no {name}")
    # Arrow passes on text that is no UTF-8 until it becomes a Python string. This finds it, a gigabyte in 0.1 s.
    batch.validate(full=True)
    return batch


def _column(rows: pa.StructArray, target: pa.Field) -> pa.Array:
    name = wire_name(target.name)
    if not _has_field(rows.type, name):
        return nulls(len(rows), target.type)
    column = rows.field(name)
    if column.null_count == len(column) and _is_of_kind_or_struct(column.type, target.type):
        return nulls(len(rows), target.type)
    if target.type == DELETION_VECTOR:
        if not pa.types.is_struct(column.type):
            raise pa.ArrowInvalid(f"{name} is of type {column.type}, and no struct")
        children = [_column(column, each) for each in DELETION_VECTOR]
        if pc.any(pc.and_(children[0].is_null(), column.is_valid())).as_py():
            raise pa.ArrowInvalid("a deletion vector has no storage type")
        return pa.StructArray.from_arrays(children, fields=list(DELETION_VECTOR), mask=column.is_null())
    if column.type == target.type:
        return column
    if not _is_of_kind(column.type, target.type):
        raise pa.ArrowInvalid(f"{name} is of type {column.type}, not {target.type}")
    return column.cast(target.type)


def _is_of_kind_or_struct(found: pa.DataType, wanted: pa.DataType) -> bool:
    return bool(pa.types.is_struct(found)) if wanted == DELETION_VECTOR else _is_of_kind(found, wanted)


# Strings without the UTF-8 annotation read as bytes.
_TEXTS = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())


def _is_of_kind(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether both types state the same values: widths and encodings differ between writers."""
    is_a = pa.types
    if is_a.is_dictionary(found):
        found = found.value_type
    if is_a.is_null(found):
        return True
    for kind in (is_a.is_map, is_a.is_integer, is_a.is_boolean):
        if kind(wanted):
            return bool(kind(found))
    return found in _TEXTS


def _statistics(rows: pa.StructArray, stats: pa.Array, instants: frozenset[str]) -> pa.Array:
    if not stats.null_count or not _has_field(rows.type, "stats_parsed"):
        return stats
    return pc.coalesce(stats, statistics_json(rows.field("stats_parsed"), _below(instants, "stats_parsed")))


def _partition_maps(rows: pa.StructArray, instants: frozenset[str]) -> pa.Array:
    return partition_maps(rows.field("partitionValues_parsed"), _below(instants, "partitionValues_parsed"))


def _below(paths: frozenset[str], member: str) -> frozenset[str]:
    return frozenset(path.removeprefix(f"{member}.") for path in paths if path.startswith(f"{member}."))


def _has_field(struct: pa.DataType, name: str) -> bool:
    return bool(struct.get_field_index(name) >= 0)


def _rows(batch: pa.RecordBatch, name: str) -> list[dict[str, Any]]:
    """Return the rows of an action as dicts, without nulls."""
    found = _valid(batch, name)
    if found is None:
        return []
    return [{key: value for key, value in row.items() if value is not None} for row in found.to_pylist()]


def _protocol(row: dict[str, Any]) -> Protocol:
    protocol = msgspec.convert(row, Protocol)
    # Some writers put an empty list although the protocol requires null.
    reader = protocol.reader_features if protocol.min_reader_version >= 3 else None
    writer = protocol.writer_features if protocol.min_writer_version >= 7 else None
    return msgspec.structs.replace(protocol, reader_features=reader, writer_features=writer)


def _metadata(row: dict[str, Any]) -> Metadata:
    row["configuration"] = dict(row.get("configuration") or ())
    kind = row.get("format") or {}
    if not isinstance(kind, dict):
        raise TypeError(f"metaData.format is no struct, but {kind!r}")
    row["format"] = {"provider": kind.get("provider") or "parquet", "options": dict(kind.get("options") or ())}
    return msgspec.convert(row, Metadata)


_encoder = msgspec.json.Encoder(decimal_format="number")
# The characters that JSON has another form for.
_ESCAPED = r'[\x00-\x1f"\\]'
_UNITS_A_SECOND = {"s": 1, "ms": 1000, "us": SECOND_US, "ns": 1000 * SECOND_US}


def statistics_json(parsed: pa.StructArray, instants: Collection[str] = ()) -> pa.Array:
    """Return a JSON text per row, null for null; times in UTC and microseconds. `instants`: members with a zone."""
    texts = pc.binary_join_element_wise("{", _members_json(parsed, "", instants), "}", "")
    return pc.if_else(parsed.is_null(), pa.scalar(None, pa.string()), texts)


def _members_json(struct: pa.StructArray, path: str, instants: Collection[str]) -> pa.Array:
    """Return the members of each row that have a value, in their order, without braces."""
    named = []
    for index, member in enumerate(struct.type):
        texts = _json(struct.field(index), f"{path}.{member.name}" if path else member.name, instants)
        named.append(pc.binary_join_element_wise(f",{_encoder.encode(member.name).decode()}:", texts, ""))
    # Arrow leaves out a row of nulls if nulls are to be skipped.
    together = [pc.fill_null(texts, "") for texts in named]
    return pc.ascii_ltrim(pc.binary_join_element_wise(*together, pa.repeat("", len(struct)), ""), characters=",")


def _json(array: pa.Array, path: str, instants: Collection[str]) -> pa.Array:
    """Return the JSON text of each value, null for null and for values that JSON cannot state."""
    array = _plain(array)
    kind, is_a = array.type, pa.types
    if is_a.is_struct(kind):
        members = _members_json(array, path, instants)
        is_none = pc.or_(array.is_null(), pc.equal(members, ""))
        texts = pc.binary_join_element_wise("{", members, "}", "")
        return pc.if_else(is_none, pa.scalar(None, pa.string()), texts)
    if is_a.is_integer(kind) or is_a.is_boolean(kind):
        return array.cast(pa.string())
    if is_a.is_string(kind) or is_a.is_large_string(kind):
        return _quoted(array.cast(pa.string()))
    if is_a.is_date32(kind):
        return _quoted(_texts(array.cast(pa.int32()), date_text))
    if is_a.is_timestamp(kind):
        units = _UNITS_A_SECOND[kind.unit]
        zone = "Z" if kind.tz is not None or path in instants else ""
        return _quoted(_texts(array.cast(pa.int64()), lambda value: _moment(value * SECOND_US // units) + zone))
    if is_a.is_float32(kind) or is_a.is_float64(kind) or is_a.is_decimal(kind):
        return _texts(array, lambda value: _encoder.encode(value).decode() if math.isfinite(value) else None)
    return nulls(len(array), pa.string())


def _plain(array: pa.Array) -> pa.Array:
    """Return the same values in a type that Arrow computes with."""
    if pa.types.is_dictionary(array.type):
        return array.dictionary_decode()
    if pa.types.is_string_view(array.type):
        return array.cast(pa.string())
    return array.cast(pa.float32()) if pa.types.is_float16(array.type) else array


def _quoted(texts: pa.Array) -> pa.Array:
    quoted = pc.binary_join_element_wise('"', texts, '"', "")
    has_escapes = pc.fill_null(pc.match_substring_regex(texts, _ESCAPED), False)
    if not has_escapes.true_count:
        return quoted
    escaped = [_encoder.encode(each).decode() for each in texts.filter(has_escapes).to_pylist()]
    return pc.replace_with_mask(quoted, has_escapes, pa.array(escaped, pa.string()))


def _moment(microseconds: int) -> str:
    return timestamp_text(microseconds, fraction_digits=6 if microseconds % SECOND_US else 0)


def _texts(values: pa.Array, text_of: Callable[[Any], str | None]) -> pa.Array:
    """Return the texts of values; each distinct value is written once."""
    encoded = values.dictionary_encode()
    return pa.array([text_of(value) for value in encoded.dictionary.to_pylist()], pa.string()).take(encoded.indices)


def partition_maps(parsed: pa.StructArray, instants: Collection[str] = ()) -> pa.Array:
    """Return one map per row, null for a null struct. Raises ValueError for a type that cannot partition a table."""
    names = [field.name for field in parsed.type]
    try:
        columns = [partition_string(_member(parsed, name, name in instants)) for name in names]
    except SchemaMismatch as error:
        raise ValueError(f"partitionValues_parsed: {error}") from error
    rows = [list(zip(names, values, strict=True)) for values in zip(*columns, strict=True)] or [[]] * len(parsed)
    valid = parsed.is_valid().to_pylist()
    return pa.array([row if is_valid else None for row, is_valid in zip(rows, valid, strict=True)], STRING_MAP)


def _member(parsed: pa.StructArray, name: str, is_instant: bool) -> pa.Array:
    values = parsed.field(name)
    return values.cast(pa.timestamp(values.type.unit, "UTC")) if is_instant else values
