"""The statistics of a data file that we write: `add.stats`, as JSON.

The writer of the file computes them from the values. It takes the bounds of texts from the footer, because Arrow
compares texts anyway. Those of a file that another engine wrote are taken from its footer, which leaves out NaN: then a
float has no maximum.
The invariant: a bound written here holds for every value of the column in Spark's order (NaN above all numbers, -0.0 =
0.0), also for a reader that takes it literally; a bound that JSON cannot express is left out.
Source: protocol, "Per-file Statistics"; soundness, A6.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.bounds import Texts, Ways, json_string, ways_of
from airflow_txlog.datafiles.parquet.conversion import FILE, ColumnMismatch, convert_array
from airflow_txlog.datafiles.parquet.footer_forms import ChunkStatistics
from airflow_txlog.datafiles.parquet.footer_statistics import Chunks, ColumnPath, FooterLeaves, GroupChunks, Leaf
from airflow_txlog.datafiles.parquet.physical import FileFields, is_variant, physical_name

INDEXED_COLUMNS_DEFAULT = 32  # protocol: delta.dataSkippingNumIndexedCols

# The table's field of each column, and its number among others.
_Places: TypeAlias = dict[str, tuple[pa.Field, int | None]]

_PARTS_AT_ONCE = 512
# To look at the footer takes as long as to compare the texts of fewer rows.
_FEWEST_ROWS = 4 * 1024
# Arrow's footers have no longer bound.
_LONGEST_BOUND_BYTES = 4 * 1024


class StatisticsCollector:
    """Gathers the statistics of one file while it is written. Not to be shared between threads.

    `schema` is the table's, without partition columns: statistics use its physical names and current types, whatever
    older type a copied file has. `indexed_columns` (table property dataSkippingStatsColumns) names the columns with
    bounds and null counts: paths of logical names in any case, top-level or through structs. A struct names all its
    members, unknown paths are skipped. None takes the first `num_indexed_columns` leaves (property
    dataSkippingNumIndexedCols), -1 all.
    """

    def __init__(
        self,
        schema: pa.Schema,
        indexed_columns: Sequence[ColumnPath] | None = None,
        num_indexed_columns: int = INDEXED_COLUMNS_DEFAULT,
    ) -> None:
        leaves = _leaves(schema)
        if indexed_columns is not None:
            named = set(map(_lower, indexed_columns))
            leaves = (leaf for leaf in leaves if not named.isdisjoint(_paths_above(_lower(leaf.path))))
        elif num_indexed_columns >= 0:
            leaves = itertools.islice(leaves, num_indexed_columns)
        self._columns: dict[str, list[_Column]] = {}
        for leaf in leaves:
            self._columns.setdefault(leaf.path[0], []).append(leaf)
        self._schema = schema
        self._num_records = 0
        self._added_apart: frozenset[str] = frozenset()
        self._held = _Held()
        self._left: list[dict[str, str]] = []
        """By row group, the columns whose bounds only the footer has, with their names there."""

    def empty(self) -> StatisticsCollector:
        """Return a collector for another file of the same columns. Call it before the first row."""
        found = object.__new__(type(self))
        # `copy.copy` takes a tenth of the time of a tiny file.
        found.__dict__.update(self.__dict__)
        found._left = []
        found._columns = {name: [column.empty() for column in columns] for name, columns in self._columns.items()}
        return found

    def of_footer(self, num_rows: int, chunks: Chunks, leaves: FooterLeaves) -> str:
        """Return the JSON of `add.stats` of a whole file by its footer. This object does not change.

        `leaves`: those of the file, or of one with an equal schema and equal metadata. A bound that a footer does not
        prove is left out, and so is the null count of a list or a map.
        """
        found = []
        for column in (each.empty() for columns in self._columns.values() for each in columns):
            leaf = leaves.found.get(column.keys)
            if column.keys[0] not in leaves.names:
                column.add_nulls(num_rows)
            elif leaf is None:
                column.null_count = None
            else:
                column.add_chunks(chunks(leaf.number), leaf)
            found.append(column)
        return _json(num_rows, found)

    def add_kept(self, chunks: Chunks, leaves: FooterLeaves, replaced: Collection[str]) -> list[str]:
        """Add all columns but `replaced`, of a file whose rows `update` counts, by the footer of a file that has them.

        Returns the columns whose bounds only the values prove; `add_values` must get these.
        """
        self._added_apart = frozenset(self._columns.keys() - replaced)
        return self._add_proven(self._added_apart, chunks, leaves)

    def add_groups(self, num_rows: int, chunks: Chunks, leaves: FooterLeaves) -> list[str]:
        """Add rows of a file by its footer: `chunks` are those of the row groups that have them.

        Returns as `add_kept` does.
        """
        self._num_records += num_rows
        return self._add_proven(self._columns, chunks, leaves)

    def _add_proven(self, names: Collection[str], chunks: Chunks, leaves: FooterLeaves) -> list[str]:
        unproven = []
        for name in names:
            columns = self._columns[name]
            pairs = [(column, leaves.found.get(column.keys)) for column in columns]
            found = [(column, leaf, [] if leaf is None else chunks(leaf.number)) for column, leaf in pairs]
            if all(leaf is None or column.is_proven(leaf, of_leaf) for column, leaf, of_leaf in found):
                for column, leaf, of_leaf in found:
                    if leaf is None:
                        column.null_count = None
                    else:
                        column.add_chunks(of_leaf, leaf)
            else:
                unproven.append(name)
        return unproven

    def update(self, rows: pa.Table | pa.RecordBatch, *, is_group: bool = False) -> None:
        """Add rows of the file, with each of the schema's columns in some form, less those of `add_kept`.

        A row has each value of a dictionary (`output.without_spare_values`). `is_group`: the rows become the next row
        group that Arrow writes, and `add_bounds` gets its statistics. Arrow compares texts for these, so here they are
        only counted.
        """
        self._num_records += rows.num_rows
        left = self._compared_by_arrow(rows) if is_group else {}
        if is_group:
            self._left.append(left)
        self._add(rows, self._columns.keys() - self._added_apart, left)

    def add_values(self, rows: pa.Table | pa.RecordBatch, names: Collection[str]) -> None:
        """Add these columns of rows that are counted elsewhere."""
        self._add(rows, names, ())

    def _add(self, rows: pa.Table | pa.RecordBatch, names: Collection[str], left: Collection[str]) -> None:
        for name, values, nulls in self._values(rows, [name for name in names if name in self._columns]):
            if values is None:
                del self._columns[name]
                continue
            for column in self._columns[name]:
                column.update(values, is_compared=name not in left)
                column.add_nulls(nulls)

    def _compared_by_arrow(self, rows: pa.Table | pa.RecordBatch) -> dict[str, str]:
        """Return the text columns whose bounds Arrow will write to the footer, with their names in the file."""
        if rows.num_rows < _FEWEST_ROWS:
            return {}
        places = self._held.places(rows.schema, self._schema, self._columns)
        found = {}
        for name in self._columns.keys() - self._added_apart:
            field, place = places[name]
            assert place is not None
            if pa.types.is_string(field.type) and pa.types.is_string(rows.field(place).type):
                longest = pc.max(pc.binary_length(rows.column(place))).as_py()
                if longest is not None and longest <= _LONGEST_BOUND_BYTES:
                    found[name] = rows.field(place).name
        return found

    @property
    def lacks_bounds(self) -> bool:
        """Whether some bounds are only in the footer, so that `add_bounds` must be called."""
        return any(self._left)

    def add_bounds(self, groups: Sequence[GroupChunks]) -> None:
        """Add the bounds that only the footer has. Call it once, after all rows.

        `groups` are all row groups that Arrow has written. Raises ValueError for another number of row groups than
        `update` has counted: a bound could belong to other rows.
        """
        for left, chunks in zip(self._left, groups, strict=True):
            for name, in_file in left.items():
                for column in self._columns.get(name, ()):
                    column.add_bounds(chunks(in_file), bytes)

    def of_parts(self, parts: Sequence[pa.Table]) -> Iterator[StatisticsCollector]:
        """Yield a collector for each of many small files, which has the values of its part; `update` counts the rows.

        The rows are as they are stored. Python compares a few values before Arrow has begun.
        """
        for start in range(0, len(parts), _PARTS_AT_ONCE):
            some = parts[start : start + _PARTS_AT_ONCE]
            ends = list(itertools.accumulate(part.num_rows for part in some))
            made = [self.empty() for _ in some]
            (rows,) = pa.concat_tables(some).combine_chunks().to_batches() or some[:1]
            for name, values, _ in self._values(rows, self._columns):
                assert values is not None, "rows as they are stored have the columns' types"
                for number, column in enumerate(self._columns[name]):
                    column.update_parts(values, ends, [each._columns[name][number] for each in made])
            for each in made:
                each._added_apart = frozenset(self._columns)
            yield from made

    def _values(
        self, rows: pa.Table | pa.RecordBatch, names: Iterable[str]
    ) -> Iterator[tuple[str, pa.ChunkedArray | pa.Array | None, int]]:
        """Yield the values of each column, None if they have another type, and the number of nulls besides."""
        places = self._held.places(rows.schema, self._schema, self._columns)
        for name in names:
            field, found = places[name]
            assert found is not None
            held, nulls = rows.column(found), 0
            if isinstance(held, pa.ChunkedArray) and held.num_chunks == 1:
                # Arrow's functions take less time for an array.
                held = held.chunk(0)
            if isinstance(rows, pa.Table) and pa.types.is_dictionary(held.type) and held.type != field.type:
                # Each value counts once for the bounds.
                chunks = held.chunks if isinstance(held, pa.ChunkedArray) else [held]
                used = [chunk.dictionary for chunk in chunks]
                held, nulls = pa.chunked_array(used, held.type.value_type), held.null_count
            try:
                values = _in_current_type(held, field)
            except ColumnMismatch:
                # Values of another type have no bounds in this one; a reader of the column will refuse them.
                values = None
            yield name, values, nulls

    def finish(self) -> str:
        """Return the JSON of `add.stats` for all rows so far."""
        return _json(self._num_records, (column for columns in self._columns.values() for column in columns))


class _Held:
    """Where rows have the columns of the statistics. The files of one writer share it: their rows are alike."""

    def __init__(self) -> None:
        # One value, because the files may be closed by several threads.
        self._found: tuple[pa.Schema, _Places] = pa.schema([]), {}

    def places(self, held: pa.Schema, wanted: pa.Schema, names: Collection[str]) -> _Places:
        """Return for each column its field in `wanted`, and its number in rows of the schema `held`."""
        schema, places = self._found
        if not (held.equals(schema, check_metadata=True) and all(name in places for name in names)):
            members = FileFields(held)
            places = {name: (field, members.find(field)) for name in names for field in [wanted.field(name)]}
            self._found = held, places
        return places


def file_statistics(
    table: pa.Table | pa.RecordBatch,
    *,
    indexed_columns: Sequence[ColumnPath] | None = None,
    num_indexed_columns: int = INDEXED_COLUMNS_DEFAULT,
) -> str:
    """Return `add.stats` of a file with exactly these rows. The arguments are those of `StatisticsCollector`."""
    collector = StatisticsCollector(
        table.schema, indexed_columns=indexed_columns, num_indexed_columns=num_indexed_columns
    )
    collector.update(table)
    return collector.finish()


def _lower(path: ColumnPath) -> ColumnPath:
    return tuple(name.lower() for name in path)


def _paths_above(path: ColumnPath) -> Iterator[ColumnPath]:
    """Yield the paths of this leaf and of each struct around it."""
    return (path[:size] for size in range(1, len(path) + 1))


# --- one column ------------------------------------------------------------------------------------------------------


class _Column:
    """The statistics so far of one leaf: a column, or a member of structs. `keys` are its physical names.

    `names` are the keys as JSON.
    """

    def __init__(self, path: ColumnPath, keys: ColumnPath, names: Sequence[str], ways: Ways) -> None:
        self.path = path
        self.keys = keys
        self.names = names
        self._ways = self._comparable, self._texts = ways
        self.null_count: int | None = 0
        self._lower: Any = None
        self._upper: Any = None
        self._has_nan = False

    def empty(self) -> _Column:
        """Return the same column before its first value."""
        return _Column(self.path, self.keys, self.names, self._ways)

    def update(self, values: pa.ChunkedArray | pa.Array, *, is_compared: bool = True) -> None:
        """Count the leaf's values among those of its top-level column, and compare them if `is_compared`."""
        values = self._leaf(values)
        self.add_nulls(values.null_count)
        if not is_compared or self._comparable is None or values.null_count == len(values):
            return
        values = self._comparable(values)
        if pa.types.is_floating(values.type):
            is_nan = pc.is_nan(values)
            if pc.any(is_nan).as_py():
                self._has_nan = True
                values = values.filter(pc.invert(is_nan))
        # Not `pc.min_max`, whose options take longer than the bounds of a few values.
        found = pc.call_function("min_max", [values]).as_py()
        if found["min"] is not None:
            self._widen(found["min"], found["max"])

    def _widen(self, lower: Any, upper: Any) -> None:
        self._lower = lower if self._lower is None else min(self._lower, lower)
        self._upper = upper if self._upper is None else max(self._upper, upper)

    def update_parts(self, values: pa.Array, ends: Sequence[int], parts: Sequence[_Column]) -> None:
        """Count and compare the values of the same column of several files, each of which has those before its end."""
        values, start = self._leaf(values), 0
        # Values without an order count alone.
        plain = (values.is_valid() if self._comparable is None else self._comparable(values)).to_pylist()
        for part, end in zip(parts, ends, strict=True):
            known = [value for value in plain[start:end] if value is not None]
            # NaN alone does not equal itself.
            found = [value for value in known if value == value]
            if self._comparable is None:
                part.null_count = known.count(False)
            else:
                part.null_count, part._has_nan = end - start - len(known), len(found) < len(known)
                part._lower, part._upper = min(found, default=None), max(found, default=None)
            start = end

    def _leaf(self, values: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
        for name in self.path[1:]:
            # A member is null where its struct is, as struct_field ensures. It takes a text that begins with a dot for
            # a path, and a list of one for a name.
            values = pc.struct_field(values, [name])
        return values

    def add_nulls(self, count: int) -> None:
        """Count nulls, unless the number of earlier ones is unknown."""
        self.null_count = None if self.null_count is None else self.null_count + count

    def add_chunks(self, chunks: Sequence[ChunkStatistics], leaf: Leaf) -> None:
        """Count and compare a file's values by the statistics of its column chunks."""
        for chunk in chunks:
            if chunk.null_count is None:
                self.null_count = None
            else:
                self.add_nulls(chunk.null_count)
        if leaf.plain is not None:
            self.add_bounds(chunks, leaf.plain)
            self._has_nan = leaf.may_have_nan

    def add_bounds(self, chunks: Iterable[ChunkStatistics], plain: Callable[[Any], Any]) -> None:
        """Compare values that are counted elsewhere by the statistics of their column chunks; for `plain` see Leaf."""
        for chunk in chunks:
            if self._comparable is None or chunk.null_count == chunk.num_values:
                continue
            least, most = chunk.bounds or (None, None)
            if chunk.bounds is None or least != least or most != most:
                # One chunk without bounds: none hold for the file, whatever follows.
                self._comparable = self._lower = self._upper = None
            else:
                self._widen(plain(least), plain(most))

    def is_proven(self, leaf: Leaf, chunks: Sequence[ChunkStatistics]) -> bool:
        """Return whether the statistics of the column chunks have all that the values would give."""
        if self._comparable is None:
            return all(chunk.null_count is not None for chunk in chunks)
        return (
            leaf.plain is not None
            and not leaf.may_have_nan
            and all(
                chunk.null_count is not None and (chunk.bounds is not None or chunk.null_count == chunk.num_values)
                for chunk in chunks
            )
        )

    def texts(self) -> Texts:
        """Return the bounds as JSON."""
        if self._lower is None:
            return None, None
        lower, upper = self._texts(self._lower, self._upper)
        # NaN is the greatest value, and JSON cannot express it.
        return lower, None if self._has_nan else upper


def _in_current_type(values: pa.ChunkedArray | pa.Array, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    if values.type == field.type and not pa.types.is_nested(values.type):
        return values
    if not isinstance(values, pa.ChunkedArray):
        return convert_array(values, field.type, field.name, FILE)
    chunks = [convert_array(chunk, field.type, field.name, FILE) for chunk in values.chunks]
    return pa.chunked_array(chunks, field.type)


def _leaves(members: Iterable[pa.Field], path: ColumnPath = (), keys: ColumnPath = ()) -> Iterator[_Column]:
    for member in members:
        here, key = (*path, member.name), (*keys, physical_name(member))
        if pa.types.is_struct(member.type) and not is_variant(member.type):
            yield from _leaves(member.type, here, key)
        elif not pa.types.is_null(member.type):
            # Arrays, maps and variants count as one leaf, with a null count. A void column is in no file.
            yield _Column(here, key, [f"{json_string(name)}:" for name in key], ways_of(member.type))


# --- JSON ------------------------------------------------------------------------------------------------------------


_Tree: TypeAlias = dict[str, Any]


def _json(num_records: int, columns: Iterable[_Column]) -> str:
    trees: tuple[_Tree, _Tree, _Tree] = ({}, {}, {})
    for column in columns:
        nulls = None if column.null_count is None else str(column.null_count)
        *above, name = column.names
        for tree, text in zip(trees, (*column.texts(), nulls), strict=True):
            if text is not None:
                for outer in above:
                    tree = tree.setdefault(outer, {})
                tree[name] = text
    lower, upper, null_counts = map(_object, trees)
    return f'{{"numRecords":{num_records},"minValues":{lower},"maxValues":{upper},"nullCount":{null_counts}}}'


def _object(tree: _Tree) -> str:
    """Return JSON of a tree whose names and leaves are JSON already: a decimal must not pass through a float."""
    return "{" + ",".join([name + (sub if isinstance(sub, str) else _object(sub)) for name, sub in tree.items()]) + "}"
