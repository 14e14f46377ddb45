"""The forms in which bytes may hold the values that identify subjects.

The values are those of one column, the key. A file may hold one as a value of a Parquet column, as the bytes of such a
value in a dictionary or a bound, as a text in JSON, or as a part of a longer text. The invariant: every form of a value
counts as the value, also inside of a longer text, and a bound that may be a shortened value counts too. Numbers, dates
and tiny texts occur in many texts by chance: they count in the key, and as whole words of a text that names it.
Source: parquet.thrift, Statistics; Parquet, "Plain" encoding; delta-spark, truncation of string statistics.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, Self
from unicodedata import normalize
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.erasure.values.equivalents import MOST_ESCAPED, MOST_SPELLINGS, are_all_tried, normal_texts
from airflow_txlog.engine.erasure.values.key_columns import char_lengths, dotted, key_path, paths_of_others
from airflow_txlog.engine.erasure.values.needles import Needles, has_escapes
from airflow_txlog.engine.erasure.values.plain import (
    Beginnings,
    Plain,
    is_bytes,
    is_text,
    plain_array,
    plain_values,
)
from airflow_txlog.engine.erasure.values.spellings import (
    PLAN_ID,
    WORDS,
    as_pattern,
    escaped,
    have_escapes,
    identifier_of,
    in_sql,
    instants_in,
    match_anywhere,
    number_of,
    of_bytes,
    whole_texts,
    without_escapes,
    without_surrogates,
)
from airflow_txlog.engine.erasure.values.subject_values import fitting, subject_values, values_of_type
from airflow_txlog.engine.table.schema.column_mapping import ID_KEY
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot

_SHORTEST_RARE = 5
# What writers append to a shortened upper bound, so that it stays above all values.
_TIE_BREAKERS = "\U0010ffff\ufffd\x7f"
# The escapes of URLs and JSON that hide a value; a text may be escaped twice.
_ESCAPES = r"%[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\/"
_ESCAPED_LEVELS = 2


@dataclass(frozen=True)
class Forms:
    """The values of some subjects in the key column of a table.

    `values`: distinct and not null, of the column's Arrow type. `paths`: the paths of the column in data files and
    statistics, with dots: of its logical and of its physical names.
    """

    values: pa.Array
    paths: Collection[str]
    field_id: int | None = None
    """The id of the column, by which files of a mapped table may name it."""
    lengths: Collection[int] = ()
    """The lengths of a CHAR column, to which writers pad its values with spaces."""
    others: Collection[str] = frozenset()
    """The physical paths of the table's other columns, in lower case: in files and statistics no path of the key."""

    @classmethod
    def of(cls, snapshot: Snapshot, column: str, values: Sequence[Any] | pa.ChunkedArray) -> Self:
        """Return the forms of values of a column, or of a member of a struct (`customer.email`), of a table.

        Raises UnknownColumn; UnsupportedFeature for a collation and for a long CHAR; InvalidInput without values, and
        for one that the column cannot hold.
        """
        uri, found = snapshot.uri, key_path(snapshot, column)
        known = subject_values(values, found[-1], uri, column)
        lengths, others = char_lengths(uri, column, found), paths_of_others(snapshot, found)
        return cls(known, dotted(found), found[-1].metadata.get(ID_KEY), lengths, others)

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the column in texts, in lower case."""
        return frozenset(path.rpartition(".")[2].lower() for path in self.paths)

    @cached_property
    def _names_of_words(self) -> Collection[str]:
        """The names that are no single word, such as `user-id`."""
        return [name for name in self.names if not re.fullmatch(r"\w+", name)]

    @cached_property
    def texts(self) -> frozenset[str]:
        """Every spelling of a value as a whole text."""
        return whole_texts(self.values, self.lengths, MOST_SPELLINGS)

    @cached_property
    def _escaped(self) -> frozenset[str]:
        """The texts that are searched escaped and in UTF-16, too. In texts, the escapes of all others are decoded."""
        return whole_texts(self.values, self.lengths, MOST_ESCAPED)

    @cached_property
    def key_values(self) -> pa.Array:
        """Every value of the key that counts as one of the values: those for which `are_values` is true."""
        return self._of_type(self.values.type)

    @cached_property
    def are_numbers(self) -> bool:
        """Whether the values are numbers, whose digits occur in many texts by chance."""
        kind, types = self.values.type, pa.types
        return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))

    def is_key(self, path: str) -> bool:
        """Return whether a leaf column is the key, or its statistics or partition values in a checkpoint."""
        # Writers may change the case of a name.
        path, own = path.lower(), self._in_files
        return path in own or (is_of_statistics(path) and path.endswith(tuple(f".{each}" for each in own)))

    @cached_property
    def _in_files(self) -> frozenset[str]:
        return frozenset(each.lower() for each in self.paths).difference(self.others)

    # --- values of columns ------------------------------------------------------------------------------------------

    def searches(self, kind: pa.DataType, path: str) -> bool:
        """Return whether a leaf column may hold a value: the key, and every column of texts or bytes."""
        return self.is_key(path) or is_text(kind) or (bool(self._rare) and is_bytes(kind))

    def in_column(self, leaf: pa.Array, path: str) -> int:
        """Return how many rows of a leaf column hold one of the values; of texts in the key, which are one."""
        values = plain_array(leaf)
        kind = values.type
        if not len(values):
            return 0
        if is_text(kind) and not self.is_key(path):
            in_text = self.in_named_path if path in LOG_PATHS else self.in_named_text
            named = self._naming(values, in_text) if self._common else 0
            return named or len(self._numbers_of_holding(values))
        count: int = pc.sum(self.are_values(values) if self.is_key(path) else self._are_forms(values)).as_py() or 0
        if count or self.is_key(path) or not is_bytes(kind):
            return count
        # A variant holds texts among other bytes.
        return int(self.in_bytes(values.buffers()[-1] or b""))

    def are_values(self, leaf: pa.Array) -> pa.Array:
        """Return for each row of the key whether it is one of the values."""
        values = plain_array(leaf)
        found = self._are_forms(values)
        if is_text(values.type) and len(self.normal_forms):
            normal = normal_texts(pc.ascii_rtrim(values, " ") if self.lengths else values)
            found = pc.or_(found, pc.is_in(normal, value_set=self.normal_forms.cast(pa.large_binary())))
        return found

    def _are_forms(self, values: pa.Array) -> pa.Array:
        return pc.is_in(values, value_set=self._of_type(values.type))

    @cached_property
    def normal_forms(self) -> pa.StringArray:
        """The values of which not each spelling is among the `texts`, in NFC: a key is compared with them, too."""
        texts = self.values.to_pylist() if is_text(self.values.type) else []
        return pa.array([self._normal_form(text) for text in texts if not are_all_tried(text)], pa.string())

    def _normal_form(self, text: str) -> str:
        # Of CHAR, without the spaces at the end.
        return normalize("NFC", text.rstrip(" ") if self.lengths else text)

    @cached_property
    def _normal(self) -> frozenset[str]:
        return frozenset(self.normal_forms.to_pylist())

    def _naming(self, texts: pa.Array, in_text: Callable[[str], bool]) -> int:
        """Return how many texts name the column and hold a number, a date or a tiny text."""
        names = "|".join(map(_literal, sorted(self.names)))
        pattern = f"(?:^|[^0-9A-Za-z_])(?:{names})(?:$|[^0-9A-Za-z_])"
        if not match_anywhere(texts, "|".join(map(as_pattern, self.names))):
            return 0
        few = texts.filter(pc.match_substring_regex(texts, pattern, ignore_case=True))
        return sum(map(in_text, few.drop_null().to_pylist()))

    def in_entries(self, names: pa.Array, texts: pa.Array) -> int:
        """Return how many entries of maps, by their names and texts, hold what `in_named_text` finds."""
        if not (self._common or len(self.normal_forms)) or not (is_text(names.type) and is_text(texts.type)):
            return 0
        own = pc.is_in(pc.utf8_lower(names), value_set=pa.array(sorted(self.names), names.type))
        few = zip(names.filter(own).to_pylist(), texts.filter(own).to_pylist(), strict=True)
        return sum(self.in_named_text(text, name) for name, text in few if text is not None)

    def _of_type(self, kind: pa.DataType) -> pa.Array:
        if kind not in self._by_type:
            self._by_type[kind] = self._made_of_type(kind)
        return self._by_type[kind]

    @cached_property
    def _by_type(self) -> dict[pa.DataType, pa.Array]:
        return {}

    def _made_of_type(self, kind: pa.DataType) -> pa.Array:
        if is_text(kind):
            return pa.array(sorted(self.texts), pa.string()).cast(kind)
        if is_bytes(kind):
            return fitting(sorted(self._bytes), kind)
        return values_of_type(self.values, kind)

    @cached_property
    def _bytes(self) -> frozenset[bytes]:
        """Every form as a whole value of bytes."""
        found = {text.encode() for text in self.texts}
        for value in self.values.to_pylist():
            if isinstance(value, bytes):
                found.add(value)
        for text in self.texts:
            identifier = identifier_of(text)
            if identifier is not None:
                found.add(identifier.bytes)
        return frozenset(found)

    # --- bytes of columns -------------------------------------------------------------------------------------------

    def plain(self, column: Any, kind: pa.DataType) -> Plain:
        """Return the bytes of the values in a leaf column, as dictionaries, bounds and Bloom filters have them.

        `column` is Parquet's description of it (`ColumnSchema`), `kind` its Arrow type. Raises ValueError for a
        key whose bytes are not known here.
        """
        physical, path = column.physical_type, column.path
        if not self.is_key(path) and not self._rare:
            return Plain()
        if physical == "BYTE_ARRAY" and not pa.types.is_decimal(kind):
            return self._plain_bytes
        if not self.is_key(path):
            return self._plain_bytes if physical == "FIXED_LEN_BYTE_ARRAY" and not self.are_numbers else Plain()
        if physical == "INT96" and pa.types.is_timestamp(self.values.type):
            return Plain(frozenset(plain_values(self.values, column)))
        if physical == "INT96" or (physical == "FIXED_LEN_BYTE_ARRAY" and pa.types.is_floating(kind)):
            raise ValueError(f"the key is stored as {physical}, whose bytes are not compared here")
        return Plain(frozenset(plain_values(self._of_type(kind), column)))

    @cached_property
    def _plain_bytes(self) -> Plain:
        return Plain(self._bytes)

    # --- texts ------------------------------------------------------------------------------------------------------

    def is_bound_of_key(self, names: Sequence[str]) -> bool:
        """Return whether a member of JSON, by the names of the members around it, is a bound of the key."""
        return f".{'.'.join(names)}".lower().endswith(self._bounds[0])

    def is_bound_of_other(self, names: Sequence[str]) -> bool:
        """Return whether a member of JSON is a bound of another column, whose physical name is a name of the key."""
        return f".{'.'.join(names)}".lower().endswith(self._bounds[1])

    @cached_property
    def _bounds(self) -> list[tuple[str, ...]]:
        own = self._in_files, {each.lower() for each in self.paths} - self._in_files
        return [tuple(f".{bound}.{each}" for each in paths for bound in ("minvalues", "maxvalues")) for paths in own]

    def in_bound(self, text: str) -> bool:
        """Return whether a bound of the key is a value, or may be one that was shortened."""
        return not self.texts.isdisjoint((text, text.rstrip(_TIE_BREAKERS))) or self.may_be_shortened(text)

    def may_be_shortened(self, text: str) -> bool:
        """Return whether a bound in a text may be a value that was shortened."""
        start = text.rstrip(_TIE_BREAKERS)
        # An upper bound may be raised: its last character is one above that of the value.
        raised = text[:-1] + chr(max(0, ord(text[-1]) - 1)) if text else ""
        return self._beginnings.have(start) or self._beginnings.have(raised)

    @cached_property
    def _beginnings(self) -> Beginnings[str]:
        return Beginnings(self._rare)

    def in_text(self, text: str, key: str = "") -> bool:
        """Return whether a text holds a value. `key`: the name of the member of JSON or of the folder that it is."""
        return self.holding([text])[0] or self.in_named_text(text, key)

    def holding(self, texts: Sequence[str]) -> list[bool]:
        """Return for each text whether it holds a value that no text holds by chance."""
        try:
            plain = pa.array(texts, pa.large_string())
        except UnicodeEncodeError:
            plain = pa.array(map(without_surrogates, texts), pa.large_string())
        found = self._numbers_of_holding(plain)
        return [number in found for number in range(len(texts))]

    def _numbers_of_holding(self, texts: pa.Array, levels: int = _ESCAPED_LEVELS) -> set[int]:
        """Return the numbers of the texts that hold such a value, also by the escapes of JSON and URLs."""
        found = self._in_texts.holding(texts)
        if levels and self._rare and have_escapes(texts) and match_anywhere(texts, _ESCAPES):
            places = pc.indices_nonzero(pc.match_substring_regex(texts, _ESCAPES))
            few = texts.take(places)
            few = few.cast(pa.large_binary() if pa.types.is_large_string(few.type) else pa.binary()).to_pylist()
            plain = pa.array([without_escapes(text.decode(errors="replace")) for text in few], pa.large_string())
            found |= {places[number].as_py() for number in self._numbers_of_holding(plain, levels - 1)}
        return found

    def in_named_text(self, text: str, key: str = "") -> bool:
        """Return whether a text that names the column, or is its member, holds a number, a date or a tiny text.

        So does a member that is a value in a spelling which no text is searched for.
        """
        if key.lower() in self.names and self._normal_form(text) in self._normal:
            return True
        # The groups of an identifier, such as a table's, are no numbers.
        if not self._common or identifier_of(text) is not None:
            return False
        if pa.types.is_timestamp(self.values.type):
            text = " ".join((text, *instants_in(text)))
        # Elsewhere, people may write a key in this way.
        words = set(WORDS.findall(PLAN_ID.sub("", text) if key.lower().endswith("predicate") else text))
        if key.lower() not in self.names and self.names.isdisjoint(word.lower() for word in words):
            lower = text.lower()
            if not any(name in lower for name in self._names_of_words):
                return False
        if self.are_numbers and not self._numbers.isdisjoint(map(number_of, words | {text})):
            return True
        return not words.isdisjoint(self._common) or any(form in text for form in self._phrases)

    def in_named_path(self, path: str) -> bool:
        """Return the same for the path of a file: numbers of other segments, such as those of writers, do not count."""
        return any(self.in_named_text(text, name) for part in _parts_of(path) for text, name in part)

    @cached_property
    def _numbers(self) -> frozenset[Decimal]:
        """The values that are numbers, which JSON spells with more or fewer zeros."""
        return frozenset(number for number in map(number_of, self.texts) if number is not None)

    @cached_property
    def _common(self) -> frozenset[str]:
        """The texts that occur in many others by chance. They count as whole words if the text names the column."""
        kind = self.values.type
        are_texts = is_text(kind) or is_bytes(kind)
        return frozenset(text for text in self.texts if not are_texts or len(text) < _SHORTEST_RARE)

    @property
    def need_names(self) -> bool:
        """Whether some value counts in a text only if the text names the column."""
        return bool(self._common)

    def need_each_text(self, data: bytes) -> bool:
        """Return whether the texts in these bytes may hold a value that `in_texts` does not see."""
        return self.need_names or has_escapes(data)

    @cached_property
    def _phrases(self) -> list[str]:
        """The common texts that are no single word, such as dates."""
        phrases = {text for text in self._common if not WORDS.fullmatch(text)}
        return sorted(phrases.union(*map(in_sql, phrases)))

    @cached_property
    def _rare(self) -> list[str]:
        plain = self.texts - self._common
        # A padded text holds the plain one.
        whole = {text for text in plain & self._escaped if text.rstrip(" ") not in plain or not text.endswith(" ")}
        found = [value for value in self.values.to_pylist() if isinstance(value, bytes)]
        return sorted(plain.union(*map(escaped, whole), *map(of_bytes, found)))

    def in_bytes(self, data: bytes | pa.Buffer) -> bool:
        """Return whether bytes hold one of the values that no text holds by chance, in UTF-8 or UTF-16."""
        return self._in_texts.occur_in(data) or self._in_bytes.occur_in(data)

    def in_texts(self, data: bytes) -> bool:
        """Return whether the bytes of many texts, such as those of a dictionary, hold one of the values."""
        return self._in_texts.occur_in(data)

    @cached_property
    def strings(self) -> list[bytes]:
        """The bytes that show a value in a text, of the values that no text holds by chance."""
        return [form.encode() for form in self._rare]

    def counts_in(self, texts: pa.Array) -> Mapping[bytes, int]:
        """Return those of the `strings` that some texts hold, each with the number of these texts."""
        return self._in_texts.counts_in(texts)

    def strings_in(self, data: bytes) -> set[bytes]:
        """Return those of the `strings` that are in the bytes."""
        return self._in_texts.strings_in(data)

    @cached_property
    def _in_texts(self) -> Needles:
        return Needles(self.strings)

    @cached_property
    def _in_bytes(self) -> Needles:
        """The forms that no text has. JSON in UTF-16 is read as a text."""
        wide = {text.encode(way) for text in self._escaped - self._common for way in ("utf-16-le", "utf-16-be")}
        # A tiny text among the values must not weaken the search for the others.
        common = {text.encode() for text in self._common}
        is_rare = is_text(self.values.type) or is_bytes(self.values.type)
        others = self._bytes.difference(common, self.strings)
        plain = {each for each in others if len(each) >= _SHORTEST_RARE and is_rare}
        return Needles(wide | plain)

    def in_path(self, path: str) -> bool:
        """Return whether the name of a file or of one of its folders holds a value."""
        return any(self._held_parts(path))

    def without_values(self, path: str) -> str:
        """Return a path with a mark for each segment that holds a value, or for all of them if they do together."""
        path = without_surrogates(path)
        *held, do_together = self._held_parts(path)
        if not any(held):
            return MARK if do_together else path
        marked = "/".join(MARK if each else part for each, part in zip(held, path.split("/"), strict=True))
        return MARK if any(self.holding([unquote(marked)])) else marked

    def _held_parts(self, path: str) -> list[bool]:
        """Return whether each segment of a path holds a value, and whether the path holds one across segments."""
        parts = list(_parts_of(path))
        texts = [text for part in parts for text, _ in part]
        held = dict(zip([*texts, unquote(path)], self.holding([*texts, unquote(path)]), strict=True))
        of_parts = (any(held[text] or self.in_named_text(text, name) for text, name in part) for part in parts)
        return [*of_parts, held[unquote(path)]]


MARK = "(a subject)"
"""Stands for a value in what people read."""
LOG_PATHS = frozenset(("add.path", "remove.path", "cdc.path", "allFiles.path"))
"""The columns of a checkpoint, and the members of a commit or a checksum, that have the paths of files."""
_PARSED = frozenset(("minvalues", "maxvalues", "partitionvalues_parsed"))


def _literal(name: str) -> str:
    """Return a pattern of Arrow that matches a name; it knows no escaped spaces."""
    return "".join(f"\\x{ord(each):02x}" if each.isascii() and not each.isalnum() else each for each in name)


def _parts_of(path: str) -> Iterator[list[tuple[str, str]]]:
    """Yield the texts of each segment of a path, each with the name of the column whose value it is."""
    for segment in path.split("/"):
        name, equals, value = (unquote(part) for part in segment.partition("="))
        whole = unquote(segment)
        yield [(whole, ""), (unquote(whole), ""), *([(value, name)] if equals else [])]


def is_of_statistics(path: str) -> bool:
    """Return whether a column of a checkpoint, or a member of JSON, is below statistics or partition values."""
    return not _PARSED.isdisjoint(path.lower().split("."))
