"""Values as the fields of a record hold them: read by the field's type, and refused by the place of what is wrong.

msgspec judges the single values; the walk through mappings and lists is here, since a refusal names the key at which it
stands, and since the shape of a source says which record it is. The invariant: what is returned shares nothing mutable
with what was given.
"""

from __future__ import annotations

import copy
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from airflow_txlog.contract.operations.fields import Location, Sees
from airflow_txlog.contract.operations.refusals import invalid, missing, unknown, want, want_place, whole

Change = Callable[[str, Sees], str]
"""Another SQL text for one that stands in a record, by what it may name."""


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record inside of an operation's record: a source, its views, keys, a clause. It is checked where it stands."""

    @classmethod
    def fits(cls, given: Mapping[str, Any]) -> bool:
        """Whether a mapping has the shape of this record, where the field could hold another one too."""
        return True

    def check(self, place: str) -> None:
        """Raises InvalidJobSpec for fields that contradict each other."""


@cache
def kinds_of(cls: type[msgspec.Struct]) -> dict[str, Any]:
    """The types of a record's fields by their names."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {name: hints[name] for name in cls.__struct_fields__}


def check_names(cls: type[msgspec.Struct], given: Mapping[str, Any], place: str, called: str) -> None:
    """Raises InvalidJobSpec for a name that is no field of the record, and for a field that is needed and not given."""
    fields = {field.name: field for field in msgspec.structs.fields(cls)}
    for name in given:
        if name not in fields:
            raise unknown(f"{place}.{name}", fields)
    for name, field in fields.items():
        if field.required and name not in given:
            raise missing(f"{place}.{name}", called)


def read(kind: Any, value: Any, place: str, change: Change | None = None) -> Any:
    """The value as a field of the type `kind` holds it; `change` gives the SQL texts in it.

    Raises InvalidJobSpec, which calls the value `place`.
    """
    inner, meta = _parts_of(kind)
    extra = (None if meta is None else meta.extra) or {}
    if isinstance(inner, type) and issubclass(inner, Part):
        return _part(inner, value, place, change)
    members = _members(inner)
    if len(members) > 1:
        found = next((member for member in members if _fits(member, value)), None)
        want(place, found is not None, expectation(kind), value, is_shown=_is_shown(kind))
        return read(found, value, place, change)
    result = _single(inner, kind, value, place, change)
    want(place, extra.get("holds", _always)(result), expectation(kind), value)
    return change(result, extra["sees"]) if change is not None and "sees" in extra else result


def _single(inner: Any, kind: Any, value: Any, place: str, change: Change | None) -> Any:
    origin, meta = get_origin(inner), _parts_of(kind)[1]
    if origin is tuple:
        want(place, isinstance(value, list | tuple), expectation(kind), value)
        if get_args(inner)[0] is Any:  # judged as a whole: there may be very many
            whole(place, value)
            return tuple(copy.deepcopy(value))
        read_items = [read(get_args(inner)[0], item, f"{place}[{index}]", change) for index, item in enumerate(value)]
        want(place, len(read_items) >= _least(meta), expectation(kind), value)
        return tuple(read_items)
    if origin is dict:
        want(place, isinstance(value, Mapping) and len(value) >= _least(meta), expectation(kind), value)
        want(place, all(isinstance(key, str) for key in value), "a mapping with text keys", value)
        # A key becomes part of the place of its value.
        whole(place, list(value))
        key_kind, item_kind = get_args(inner)
        return {
            read(key_kind, key, f"{place}.{key}"): read(item_kind, item, f"{place}.{key}", change)
            for key, item in value.items()
        }
    if inner is Any:
        whole(place, value)
        return copy.deepcopy(value)
    if kind is Location:
        want_place(place, value)
    else:
        whole(place, value)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        # Its message may show the value.
        raise invalid(place, expectation(kind), value, is_shown=_is_shown(kind)) from None


def _part(cls: type[Part], value: Any, place: str, change: Change | None) -> Part:
    given = msgspec.structs.asdict(value) if isinstance(value, cls) else value
    want(place, isinstance(given, Mapping), "a mapping", given)
    check_names(cls, given, place, place)
    kinds = kinds_of(cls)
    part = cls(**{name: read(kinds[name], item, f"{place}.{name}", change) for name, item in given.items()})
    part.check(place)
    return part


def expectation(kind: Any) -> str:
    """What a value of this type is, for the author of another one."""
    inner, meta = _parts_of(kind)
    if meta is not None and meta.description:
        return str(meta.description)
    if inner is type(None):
        return "null"
    if inner is bool:
        return "true or false"
    if get_origin(inner) is Literal:
        return " or ".join(f'"{choice}"' for choice in get_args(inner))
    members = _members(inner)
    if len(members) > 1:
        text = " or ".join(expectation(member) for member in members if member is not type(None))
        if type(None) in members:
            text += ", or null" if " or " in text else " or null"
        return text
    return "a mapping" if isinstance(inner, type) and issubclass(inner, Part) else "of another type"


def _fits(kind: Any, value: Any) -> bool:
    """Whether the value has the shape of this type, so that a refusal can name what is wrong inside of it."""
    inner, _ = _parts_of(kind)
    if isinstance(inner, type) and issubclass(inner, Part):
        return isinstance(value, inner) or (isinstance(value, Mapping) and inner.fits(value))
    members = _members(inner)
    if len(members) > 1:
        return any(_fits(member, value) for member in members)
    if get_origin(inner) is tuple:
        return isinstance(value, list | tuple)
    if get_origin(inner) is dict:
        return isinstance(value, Mapping)
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _parts_of(kind: Any) -> tuple[Any, msgspec.Meta | None]:
    if get_origin(kind) is not Annotated:
        return kind, None
    inner, *notes = get_args(kind)
    return inner, next((note for note in notes if isinstance(note, msgspec.Meta)), None)


def _members(inner: Any) -> tuple[Any, ...]:
    return get_args(inner) if get_origin(inner) in (Union, types.UnionType) else (inner,)


def _is_shown(kind: Any) -> bool:
    """Whether an error may show a text that was given for this type: it is the name of a place or of a choice."""
    inner, meta = _parts_of(kind)
    if "is_shown" in ((meta and meta.extra) or {}) or get_origin(inner) is Literal:
        return True
    members = [member for member in _members(inner) if member is not type(None)]
    return members != [inner] and all(map(_is_shown, members))


def _least(meta: msgspec.Meta | None) -> int:
    return (None if meta is None else meta.min_length) or 0


def _always(value: Any) -> bool:
    return True
