"""Statistics and partition values as typed structs, for checkpoints whose table asks for them.

The invariant: a member says exactly what the log's text says, or is null, which means not known. A text that is no
value of its column's type is null; nothing is rounded, moved or guessed. Members bear the physical names of columns.
Source: protocol, "Checkpoint Schema" (`stats_parsed`, `partitionValues_parsed`) and "Per-file Statistics".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.table.columns.partitions import typed_partition_columns
from airflow_txlog.engine.table.columns.statistic_values import PYTHONS_SEPARATOR, bound_reader, value_reader
from airflow_txlog.engine.table.schema.schema import array_of
from airflow_txlog.engine.table.schema.types import DataType, Primitive, StructField, StructType

_Path: TypeAlias = tuple[str, ...]
_Values: TypeAlias = dict[str, msgspec.Raw] | None


class _Statistics(msgspec.Struct, rename="camel", gc=False):
    num_records: msgspec.Raw = msgspec.Raw()
    tight_bounds: msgspec.Raw = msgspec.Raw()
    min_values: dict[str, msgspec.Raw] | None = None
    max_values: dict[str, msgspec.Raw] | None = None
    null_count: dict[str, msgspec.Raw] | None = None


_decoder = msgspec.json.Decoder(_Statistics)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


class TypedColumns:
    """The members that an add gets in a checkpoint with statistics as structs.

    `indexed_columns` and `num_indexed_columns` say which columns have statistics, as the table's properties do.
    """

    def __init__(
        self,
        schema: StructType,
        partition_columns: Sequence[str],
        *,
        indexed_columns: Sequence[str] | None = None,
        num_indexed_columns: int = -1,
    ) -> None:
        self._schema = schema
        self._partition_columns = list(partition_columns)
        partitions = {name.lower() for name in partition_columns}
        leaves = list(_leaves(each for each in schema if each.name.lower() not in partitions))
        if indexed_columns is not None:
            named = [name.lower() for name in indexed_columns]
            leaves = [leaf for leaf in leaves if any(leaf.is_below(name) for name in named)]
        elif num_indexed_columns >= 0:
            leaves = leaves[:num_indexed_columns]
        self._counted = leaves
        self._bounded = [leaf for leaf in leaves if leaf.has_bounds]

    @property
    def fields(self) -> list[pa.Field]:
        """`stats_parsed` and, where the table is partitioned, `partitionValues_parsed`."""
        return [pa.field(name, array.type) for name, array in self._arrays(pa.table(_NO_FILES))]

    def values(self, files: pa.RecordBatch) -> list[pa.Array]:
        """The values of `fields`, in their order, for rows of schema FILES."""
        return [array for _, array in self._arrays(pa.Table.from_batches([files]))]

    def knows(self, files: pa.Table) -> bool:
        """Whether every partition value of these files has a typed form.

        A timestamp that names no zone has none: a typed null in its place would be another value.
        """
        typed = typed_partition_columns(files, self._schema, self._partition_columns)
        return all(pc.all(each.known, min_count=0).as_py() for each in typed.values())

    def _arrays(self, files: pa.Table) -> Iterator[tuple[str, pa.Array]]:
        yield "stats_parsed", self._statistics(files.column("stats").to_pylist())
        if self._partition_columns:
            typed = typed_partition_columns(files, self._schema, self._partition_columns)
            members = [self._schema.find(name) for name in self._partition_columns]
            named = [(each.physical_name, typed[each.name].values) for each in members if each is not None]
            yield "partitionValues_parsed", _struct(named)

    def _statistics(self, texts: list[str | None]) -> pa.Array:
        decoded = [_decode(text) for text in texts]
        stated = [each or _Statistics() for each in decoded]
        lower, upper, nulls = ([getattr(each, name) for each in stated] for name in _PARTS)
        # A struct does not show by whom it was written, and strings of these writers are no bounds.
        pythons = [text is not None and PYTHONS_SEPARATOR in text for text in texts]
        sides = [(leaf.path, leaf.bounds(lower, upper, pythons)) for leaf in self._bounded]
        members = [
            ("numRecords", _array([bytes(each.num_records) for each in stated], Primitive.LONG)),
            ("minValues", _tree([(path, side) for path, (side, _) in sides])),
            ("maxValues", _tree([(path, side) for path, (_, side) in sides])),
            ("nullCount", _tree([(leaf.path, leaf.counts(nulls)) for leaf in self._counted])),
            ("tightBounds", pa.array([_BOOLEANS.get(bytes(each.tight_bounds)) for each in stated], pa.bool_())),
        ]
        # Parquet has no struct without members.
        kept = [(name, array) for name, array in members if array is not None]
        return _struct(kept, is_null=pa.array([each is None for each in decoded], pa.bool_()))


_PARTS = ("min_values", "max_values", "null_count")
_ABSENT = (b"", b"null")
_BOOLEANS = {b"true": True, b"false": False}
_NO_FILES = {"stats": pa.nulls(0, pa.string()), "partition_values": pa.nulls(0, pa.map_(pa.string(), pa.string()))}


class _Leaf:
    """A column, or a member of structs, that has statistics; `path` holds physical names."""

    def __init__(self, fields: tuple[StructField, ...]) -> None:
        self._names = [field.name for field in fields]
        self.path: _Path = tuple(field.physical_name for field in fields)
        self.type = fields[-1].type
        self.has_bounds = value_reader(self.type) is not None
        self._reader = bound_reader(fields[-1])

    def is_below(self, named: str) -> bool:
        """Whether `named`, in lower case, is this leaf or a struct around it."""
        return any(".".join(self._names[:size]).lower() == named for size in range(1, len(self._names) + 1))

    def bounds(self, lower: list[_Values], upper: list[_Values], pythons: list[bool]) -> tuple[pa.Array, pa.Array]:
        """Return both sides' bounds; none for the strings of the files that `pythons` marks.

        Nor where the text of a side is not believed: a struct does not show how a value was written.
        """
        sides = [[_text(each, self.path) for each in values] for values in (lower, upper)]
        doubtful = self._doubtful({text for texts in sides for text in texts})
        is_none = [one in doubtful or other in doubtful for one, other in zip(*sides, strict=True)]
        if self.type is Primitive.STRING:
            is_none = [one or other for one, other in zip(is_none, pythons, strict=True)]
        kept = [[b"" if drop else text for text, drop in zip(texts, is_none, strict=True)] for texts in sides]
        return _array(kept[0], self.type), _array(kept[1], self.type)

    def _doubtful(self, texts: set[bytes]) -> set[bytes]:
        """Return those of the texts that a reader of the log would not believe."""
        if self._reader is None:
            # Of this column no reader believes a bound, however it comes.
            return set()
        stated = [text for text in texts if text not in _ABSENT]
        return {text for text, bound in zip(stated, self._reader(stated), strict=True) if bound is None}

    def counts(self, values: list[_Values]) -> pa.Array:
        return _array([_text(each, self.path) for each in values], Primitive.LONG)


def _leaves(fields: Iterator[StructField], above: tuple[StructField, ...] = ()) -> Iterator[_Leaf]:
    for field in fields:
        if isinstance(field.type, StructType):
            yield from _leaves(iter(field.type), (*above, field))
        elif field.type is not Primitive.VOID:
            yield _Leaf((*above, field))


# --- texts ----------------------------------------------------------------------------------------------------------


def _decode(text: str | None) -> _Statistics | None:
    if not text:
        return None
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _text(values: _Values, path: _Path) -> bytes:
    """The JSON text of one member; empty where there is none."""
    for name in path[:-1]:
        found = None if values is None else values.get(name)
        try:
            values = None if found is None else _members.decode(found)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return b""
    found = None if values is None else values.get(path[-1])
    return b"" if found is None else bytes(found)


def _array(texts: list[bytes], data_type: DataType) -> pa.Array:
    """Return the values, each distinct text read once."""
    read = value_reader(data_type)
    assert read is not None
    values = {text: read(text) for text in set(texts)}
    return array_of([values[text] for text in texts], data_type)


# --- structs --------------------------------------------------------------------------------------------------------


def _tree(leaves: list[tuple[_Path, pa.Array]]) -> pa.Array | None:
    """The arrays as a struct of structs, by their paths, in order; None where there are none."""
    if not leaves:
        return None
    groups: dict[str, list[tuple[_Path, pa.Array]]] = {}
    for path, array in leaves:
        groups.setdefault(path[0], []).append((path[1:], array))
    members = [(name, rest[0][1] if rest[0][0] == () else _tree(rest)) for name, rest in groups.items()]
    return _struct([(name, array) for name, array in members if array is not None])


def _struct(members: list[tuple[str, pa.Array]], is_null: pa.Array | None = None) -> pa.StructArray:
    arrays = [array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array for _, array in members]
    fields = [pa.field(name, array.type) for (name, _), array in zip(members, arrays, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=is_null)
