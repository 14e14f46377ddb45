"""Reading the fields of a record by their types, and the errors that name an invalid field.

msgspec judges single values. The walk through mappings and lists is here, because a refusal names the key at which it
failed, and because the shape of a source decides which record it is.

Invariants: the value returned shares nothing mutable with the value given. A message shows the type of an invalid value
and never the value, which may be personal (soundness C8); only a location is shown, without its credentials.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, cached_property
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import UNSET

from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.errors.names import did_you_mean
from airflow_txlog.locations import can_name_a_file, shown
from airflow_txlog.sql.lexer import has_half_of_a_character

PLACE = "arguments"
"""Where a description of a job has the fields of its operation's record."""


class Sees(enum.Enum):
    """The names that a SQL text may use."""

    VIEWS = "the views beside it"
    PARTITIONS = "the table's partition columns"
    TABLE = "the table's columns"
    TABLE_AND_SOURCE = "the columns of the table and of the source"
    CLAUSE = "what the clause's `when` leaves: the table, the source, or both"

    @property
    def is_evaluated_again(self) -> bool:
        """Whether a job may evaluate the text more than once. A source's query runs once: its rows are written down."""
        return self is not Sees.VIEWS


Change = Callable[[str, Sees], str]
"""Returns the replacement of a SQL text in a record."""


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record inside an operation's record: a source, a view, keys, a clause."""

    @classmethod
    def fits(cls, given: Mapping[str, Any]) -> bool:
        """Return whether a mapping has the shape of this record, and of no other that the field could hold."""
        return True

    def check(self, place: str) -> None:
        """Raise InvalidJobSpec if the fields contradict each other."""


class FieldType:
    """The type of a field, taken apart once: reading a job's few hundred values must not parse types again.

    The `extra` of the type's `Meta` may have: `holds`, a condition on the value read; `sees`, of a SQL text;
    `is_place`, of a text that names a file; `is_shown`, if a refusal may show a text.
    """

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        inner, *notes = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
        self.inner: Any = inner
        """The type without its notes."""
        self.meta: msgspec.Meta | None = next((note for note in notes if isinstance(note, msgspec.Meta)), None)
        self.extra: Mapping[str, Any] = (self.meta and self.meta.extra) or {}
        self.least: int = (self.meta and self.meta.min_length) or 0
        """The least length of a list or a mapping."""
        self.origin = get_origin(inner)
        is_union = self.origin in (Union, types.UnionType)
        self.members: tuple[FieldType, ...] = tuple(map(FieldType, get_args(inner))) if is_union else ()
        """The types of a union."""
        self.items: tuple[FieldType, ...] = (
            tuple(map(FieldType, get_args(inner))) if self.origin in (tuple, dict) else ()
        )
        """The type of a list's items, or those of a mapping's keys and values."""
        self.takes_none: bool = inner is type(None) or any(member.takes_none for member in self.members)
        self.is_part = isinstance(inner, type) and issubclass(inner, Part)
        is_struct = isinstance(inner, type) and issubclass(inner, msgspec.Struct)
        self.is_record = dataclasses.is_dataclass(inner) or (is_struct and not self.is_part)

    @cached_property
    def has_texts(self) -> bool:
        """Whether a value may have SQL texts."""
        inside = kinds_of(self.inner).values() if self.is_part else (*self.members, *self.items)
        return "sees" in self.extra or any(kind.has_texts for kind in inside)


@cache
def kinds_of(cls: type) -> dict[str, FieldType]:
    """Return the types of a record's fields by name."""
    hints = typing.get_type_hints(cls, include_extras=True)
    names = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else fields_of(cls)
    return {name: FieldType(hints[name]) for name in names}


@cache
def fields_of(cls: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    """Return the fields of a record by name, and keep them: msgspec takes a millisecond to find them."""
    return {field.name: field for field in msgspec.structs.fields(cls)}


def check_names(cls: type[msgspec.Struct], given: Mapping[str, Any], place: str, called: str) -> None:
    """Raise InvalidJobSpec for a name that is not a field of the record, and for a required field that is missing."""
    fields = fields_of(cls)
    for name in given:
        if name not in fields:
            raise unknown(f"{place}.{name}", fields)
    for name, field in fields.items():
        if field.required and name not in given:
            raise missing(f"{place}.{name}", called)


def read_fields(record: Any, prefix: str = "", *, but: str = "") -> None:
    """Replace each field of a frozen dataclass, except `but`, by the result of `read`. Raises InvalidJobSpec."""
    for name, kind in kinds_of(record.__class__).items():
        if name != but:
            object.__setattr__(record, name, read(kind, getattr(record, name), f"{prefix}{name}"))


def read(kind: FieldType, value: Any, place: str, change: Change | None = None) -> Any:
    """Return the value as a field of type `kind` holds it, with `change` applied to the SQL texts in it.

    Raises InvalidJobSpec, which calls the value `place`.
    """
    if value is None and kind.takes_none:
        return None
    if kind.is_part:
        return _part(kind.inner, value, place, change)
    if kind.members:
        found = next((member for member in kind.members if _fits(member, value)), None)
        if found is None:
            raise _unfit(place, kind, value)
        return read(found, value, place, change)
    result = _single(kind, value, place, change)
    if "holds" in kind.extra and not kind.extra["holds"](result):
        raise _unfit(place, kind, value)
    return change(result, kind.extra["sees"]) if change is not None and "sees" in kind.extra else result


def _single(kind: FieldType, value: Any, place: str, change: Change | None) -> Any:
    if kind.origin is tuple:
        if not isinstance(value, list | tuple):
            raise invalid(place, expectation(kind), value)
        item_kind = kind.items[0]
        if item_kind.inner is Any:  # checked as a whole: there may be very many
            whole(place, value)
            return tuple(copy.deepcopy(value))
        read_items = [read(item_kind, item, f"{place}[{index}]", change) for index, item in enumerate(value)]
        if len(read_items) < kind.least:
            raise invalid(place, expectation(kind), value)
        return tuple(read_items)
    if kind.origin is dict:
        if not isinstance(value, Mapping) or len(value) < kind.least:
            raise invalid(place, expectation(kind), value)
        want(place, all(isinstance(key, str) for key in value), "a mapping with text keys", value)
        # A key becomes part of the place of its value.
        whole(place, list(value))
        key_kind, item_kind = kind.items
        return {
            read(key_kind, key, f"{place}.{key}"): read(item_kind, item, f"{place}.{key}", change)
            for key, item in value.items()
        }
    if kind.inner is Any:
        whole(place, value)
        return copy.deepcopy(value)
    if kind.is_record:
        if not isinstance(value, kind.inner):
            raise invalid(place, expectation(kind), value)
        return value
    if "is_place" in kind.extra:
        can = not isinstance(value, str) or can_name_a_file(value)
        want(place, can, "a place without NUL or half of a character in it", value)
    else:
        whole(place, value)
    try:
        return msgspec.convert(value, kind.annotation)
    except msgspec.ValidationError:
        # Its message may show the value.
        raise _unfit(place, kind, value) from None


def _part(cls: type[Part], value: Any, place: str, change: Change | None) -> Part:
    given = msgspec.structs.asdict(value) if isinstance(value, cls) else value
    want(place, isinstance(given, Mapping), "a mapping", given)
    check_names(cls, given, place, place)
    kinds = kinds_of(cls)
    part = cls(**{name: read(kinds[name], item, f"{place}.{name}", change) for name, item in given.items()})
    part.check(place)
    return part


def expectation(kind: FieldType) -> str:
    """Return the description of a type's values, for the author of a wrong one."""
    if kind.meta is not None and kind.meta.description:
        return str(kind.meta.description)
    if kind.inner is type(None):
        return "None"
    if kind.inner is bool:
        return "true or false"
    if kind.origin is Literal:
        return " or ".join(f'"{choice}"' for choice in get_args(kind.inner))
    if kind.members:
        text = " or ".join(expectation(member) for member in kind.members if member.inner is not type(None))
        if any(member.inner is type(None) for member in kind.members):
            text += ", or None" if " or " in text else " or None"
        return text
    if kind.inner is str:
        return "a text"
    return "a mapping" if kind.is_part else "of another type"


def _fits(kind: FieldType, value: Any) -> bool:
    """Return whether the value has the shape of this type, so that an error can name the invalid part."""
    if kind.is_part:
        return isinstance(value, kind.inner) or (isinstance(value, Mapping) and kind.inner.fits(value))
    if kind.members:
        return any(_fits(member, value) for member in kind.members)
    if kind.origin is tuple:
        return isinstance(value, list | tuple)
    if kind.origin is dict:
        return isinstance(value, Mapping)
    if dataclasses.is_dataclass(kind.inner):
        return isinstance(value, kind.inner)  # type: ignore[arg-type]
    try:
        msgspec.convert(value, kind.annotation)
    except (msgspec.ValidationError, UnicodeEncodeError):  # the latter for half of a character
        return False
    return True


def _is_shown(kind: FieldType) -> bool:
    """Return whether a refusal may show a text given for this type: the name of a place or of a choice."""
    if "is_shown" in kind.extra or "is_place" in kind.extra or kind.origin is Literal:
        return True
    members = [member for member in kind.members if member.inner is not type(None)]
    return bool(members) and all(map(_is_shown, members))


# --- refusals -------------------------------------------------------------------------------------------------------


def want(name: str, condition: bool, expected: str, found: Any = UNSET, *, is_shown: bool = False) -> None:
    """Raise InvalidJobSpec about `name` unless the condition holds."""
    if not condition:
        raise invalid(name, expected, found, is_shown=is_shown)


def invalid(name: str, expected: str, found: Any, *, is_shown: bool = False) -> InvalidJobSpec:
    """Return the error that describes what `name` must be.

    UNSET is not described. `is_shown`: a text is the name of a place or of a choice.
    """
    if name == PLACE:
        return InvalidJobSpec(f"The operation needs {expected}. Nothing was read.", argument=name)
    text = "" if found is UNSET else f"; found {_found(found, is_shown=is_shown)}"
    return InvalidJobSpec(f"{_as_given(name)} must be {expected}{text}. Nothing was read.", argument=name)


def _unfit(place: str, kind: FieldType, value: Any) -> InvalidJobSpec:
    """Return the error for a value that a field of this type does not hold."""
    return invalid(place, expectation(kind), value, is_shown=_is_shown(kind))


def unknown(name: str, known: Iterable[str]) -> InvalidJobSpec:
    """Return the error for a name that means nothing there."""
    near = did_you_mean(name.rpartition(".")[2], list(known))
    return InvalidJobSpec(
        f"{_as_given(name)} is unknown.{near} Known here: {', '.join(sorted(known))}. Nothing was read.", argument=name
    )


def missing(name: str, needed_by: str) -> InvalidJobSpec:
    """Return the error for a name that is missing."""
    return InvalidJobSpec(
        f"{_as_given(name)} is missing; {_as_given(needed_by)} needs it. Nothing was read.", argument=name
    )


def _as_given(place: str) -> str:
    """Return the place of a field as an operator's author writes it: its arguments are the record's fields."""
    return place.removeprefix(f"{PLACE}.")


def _found(value: Any, *, is_shown: bool) -> str:
    if isinstance(value, str):
        return repr(shown(value)) if is_shown else "a text" if value.strip() else "an empty text"
    if isinstance(value, list | tuple | dict):
        kind = "mapping" if isinstance(value, dict) else "list"
        return f"a {kind}" if value else f"an empty {kind}"
    is_small = isinstance(value, bool | int) and -(2**63) <= value < 2**63
    return repr(value) if value is None or is_small else type(value).__name__


def plain(name: str, value: Any) -> None:
    """Refuse values that JSON would change or drop, so that a round trip returns an equal value."""
    if isinstance(value, dict):
        for key, item in value.items():
            want(name, isinstance(key, str), "mappings with text keys", key)
            plain(f"{name}.{key}", item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            plain(f"{name}[{index}]", item)
    else:
        finite = not isinstance(value, float) or math.isfinite(value)
        want(name, finite and (value is None or isinstance(value, bool | int | float | str)), "JSON-plain", value)


def whole(name: str, value: Any) -> None:
    """Refuse a text with a lone surrogate, however deep in the value: UTF-8 has no half of a character."""
    if value is None or isinstance(value, bool | int | float):
        return
    # Most values are single texts.
    texts = (value,) if isinstance(value, str) else _texts(value)
    is_whole = not any(map(has_half_of_a_character, texts))
    want(name, is_whole, "text of whole characters, without a lone surrogate (half of a character)", value)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (key for key in value if isinstance(key, str))
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
