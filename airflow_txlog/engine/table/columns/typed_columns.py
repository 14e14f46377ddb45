"""The statistics and partition values of files as structs, for checkpoints.

A member of a struct holds exactly the value of the log's text, or null, which means not known.
Source: protocol, "Checkpoint Schema" (`stats_parsed`, `partitionValues_parsed`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.table.columns.partitions import typed_partition_columns
from airflow_txlog.engine.table.columns.statistic_columns import ABSENT, Keys, StatisticsDecoder
from airflow_txlog.engine.table.columns.statistic_values import PYTHONS_SEPARATOR, bound_reader, value_reader
from airflow_txlog.engine.table.schema.schema import array_of
from airflow_txlog.engine.table.schema.types import DataType, Path, Primitive, StructField, StructType, is_below

_NO_FILES = {"stats": pa.nulls(0, pa.string()), "partition_values": pa.nulls(0, pa.map_(pa.string(), pa.string()))}


class TypedColumns:
    """The members that an add gets in a checkpoint, for the columns that have statistics by the table's properties."""

    def __init__(
        self,
        schema: StructType,
        partition_columns: Sequence[str],
        *,
        indexed_columns: Sequence[Path] | None = None,
        num_indexed_columns: int = -1,
    ) -> None:
        self._schema = schema
        self._partition_columns = list(partition_columns)
        partitions = {name.lower() for name in partition_columns}
        leaves = list(_leaves(each for each in schema if each.name.lower() not in partitions))
        if indexed_columns is not None:
            leaves = [leaf for leaf in leaves if any(is_below(leaf.path, path) for path in indexed_columns)]
        elif num_indexed_columns >= 0:
            leaves = leaves[:num_indexed_columns]
        self._leaves = leaves
        self._decoder = StatisticsDecoder([leaf.keys for leaf in leaves])

    @property
    def fields(self) -> list[pa.Field]:
        """`stats_parsed` and, if the table is partitioned, `partitionValues_parsed`."""
        return [pa.field(name, array.type) for name, array in self._arrays(pa.table(_NO_FILES))]

    def values(self, files: pa.RecordBatch) -> list[pa.Array]:
        """Return the values of `fields`, in their order, for rows of schema FILES."""
        return [array for _, array in self._arrays(pa.Table.from_batches([files]))]

    def knows(self, files: pa.Table) -> bool:
        """Return whether every partition value has a typed form, which a timestamp without a zone has not."""
        typed = typed_partition_columns(files, self._schema, self._partition_columns)
        return all(pc.all(each.known, min_count=0).as_py() for each in typed.values())

    def _arrays(self, files: pa.Table) -> Iterator[tuple[str, pa.Array]]:
        yield "stats_parsed", self._statistics(files.column("stats").combine_chunks())
        if self._partition_columns:
            typed = typed_partition_columns(files, self._schema, self._partition_columns)
            members = [self._schema.find(name) for name in self._partition_columns]
            named = [(each.physical_name, typed[each.name].values) for each in members if each is not None]
            yield "partitionValues_parsed", _struct(named)

    def _statistics(self, texts: pa.StringArray) -> pa.Array:
        decoded = self._decoder.decode(texts)
        # A struct does not show who wrote it, and strings of these writers are no bounds.
        pythons = [text is not None and PYTHONS_SEPARATOR in text for text in texts.to_pylist()]
        lower, upper, counts = [], [], []
        for leaf in self._leaves:
            least, greatest, nulls = (
                self._decoder.texts(decoded, part, leaf.keys) for part in ("min_values", "max_values", "null_count")
            )
            counts.append((leaf.keys, _array(nulls, Primitive.LONG)))
            if leaf.has_bounds:
                sides = leaf.bounds(least, greatest, pythons)
                lower.append((leaf.keys, sides[0]))
                upper.append((leaf.keys, sides[1]))
        records = [b"" if each is None else bytes(each.num_records) for each in decoded]
        tight = [None if each is None else each.tight_bounds for each in decoded]
        members = [
            ("numRecords", _array(records, Primitive.LONG)),
            ("minValues", _tree(lower)),
            ("maxValues", _tree(upper)),
            ("nullCount", _tree(counts)),
            ("tightBounds", pa.array(tight, pa.bool_())),
        ]
        # Parquet has no struct without members.
        kept = [(name, array) for name, array in members if array is not None]
        return _struct(kept, is_null=pa.array([each is None for each in decoded], pa.bool_()))


class _Leaf:
    """A column, or a member of structs, that has statistics."""

    def __init__(self, fields: tuple[StructField, ...]) -> None:
        self.path: Path = tuple(field.name for field in fields)
        self.keys: Keys = tuple(field.physical_name for field in fields)
        self._type = fields[-1].type
        self.has_bounds = value_reader(self._type) is not None
        self._reader = bound_reader(fields[-1])

    def bounds(self, lower: list[bytes], upper: list[bytes], pythons: list[bool]) -> tuple[pa.Array, pa.Array]:
        """Return both sides' bounds; null for strings of the files in `pythons`, and if a side is not trusted."""
        doubtful: set[bytes] = set()
        if self._reader is not None:
            # Texts that a reader of the log does not trust; without a reader it trusts none anyway.
            stated = [text for text in {*lower, *upper} if text not in ABSENT]
            doubtful = {text for text, bound in zip(stated, self._reader(stated), strict=True) if bound is None}
        is_none = [one in doubtful or other in doubtful for one, other in zip(lower, upper, strict=True)]
        if self._type is Primitive.STRING:
            is_none = [one or other for one, other in zip(is_none, pythons, strict=True)]
        kept = [[b"" if drop else text for text, drop in zip(texts, is_none, strict=True)] for texts in (lower, upper)]
        return _array(kept[0], self._type), _array(kept[1], self._type)


def _leaves(fields: Iterator[StructField], above: tuple[StructField, ...] = ()) -> Iterator[_Leaf]:
    for field in fields:
        if isinstance(field.type, StructType):
            yield from _leaves(iter(field.type), (*above, field))
        elif field.type is not Primitive.VOID:
            yield _Leaf((*above, field))


def _array(texts: list[bytes], data_type: DataType) -> pa.Array:
    """Return the values of JSON texts; each distinct text is read once."""
    read = value_reader(data_type)
    assert read is not None
    values = {text: read(text) for text in set(texts)}
    return array_of([values[text] for text in texts], data_type)


def _tree(leaves: list[tuple[Keys, pa.Array]]) -> pa.Array | None:
    """Return the arrays as a struct of structs by their keys, in order; None for no arrays."""
    if not leaves:
        return None
    groups: dict[str, list[tuple[Keys, pa.Array]]] = {}
    for keys, array in leaves:
        groups.setdefault(keys[0], []).append((keys[1:], array))
    members = [(name, rest[0][1] if rest[0][0] == () else _tree(rest)) for name, rest in groups.items()]
    return _struct([(name, array) for name, array in members if array is not None])


def _struct(members: list[tuple[str, pa.Array]], is_null: pa.Array | None = None) -> pa.StructArray:
    arrays = [array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array for _, array in members]
    fields = [pa.field(name, array.type) for (name, _), array in zip(members, arrays, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=is_null)
