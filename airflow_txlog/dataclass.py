"""`dataclass`, as in the standard library, but defined ten times as fast: a job's process defines two hundred of them.

The standard library compiles up to eight functions for each class. Here `__init__` is compiled at its first call, and
the classes share the other functions. Invariant: instances behave as the standard library's, also under its `fields`,
`replace` and `asdict`. Not offered: `order`, `unsafe_hash`, `InitVar`, and a frozen class below a class of the standard
library's own `dataclass`.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, kw_only=False, slots=False, weakref_slot=False):
        """Return the class with the methods of a dataclass."""
        with_methods = partial(
            _with_methods, frozen=frozen, eq=eq, kw_only=kw_only, slots=slots, weakref_slot=weakref_slot
        )
        return with_methods if cls is None else with_methods(cls)


def _with_methods(cls: Any, *, frozen: bool, eq: bool, slots: bool, **layout: bool) -> Any:
    has_hash = cls.__dict__.get("__hash__") is not None
    # Otherwise the standard library derives a text from the signature, which takes long.
    cls.__doc__ = cls.__doc__ or cls.__name__
    cls = dataclasses.dataclass(cls, init=False, repr=False, eq=False, slots=slots, **layout)
    fields = dataclasses.fields(cls)
    methods = {"__init__": _first_init(cls, fields, frozen, slots), "__repr__": _repr}
    if eq:
        methods["__eq__"] = _eq([field.name for field in fields if field.compare])
        if not has_hash:
            hashed = [field.name for field in fields if (field.compare if field.hash is None else field.hash)]
            methods["__hash__"] = _hash(hashed) if frozen else None
    if frozen:
        methods["__setattr__"], methods["__delattr__"] = _refusing(cls, {field.name for field in fields})
        if slots:
            methods |= {"__getstate__": _state, "__setstate__": _set_state}
    for name, method in methods.items():
        # Python itself sets __hash__ to None in a class that defines __eq__.
        if name not in cls.__dict__ or name == "__hash__":
            setattr(cls, name, method)
    return cls


def _first_init(cls: Any, fields: Any, frozen: bool, slots: bool) -> Any:
    """Return an `__init__` that replaces itself by a compiled one."""

    def __init__(self: Any, *values: Any, **named: Any) -> None:
        init = _compiled_init(cls, fields, frozen, slots)
        cls.__init__ = init
        init(self, *values, **named)

    return __init__


def _compiled_init(cls: Any, fields: Any, frozen: bool, slots: bool) -> Any:
    known: dict[str, Any] = {"_set": object.__setattr__, "_absent": dataclasses.MISSING}
    parameters, keywords, lines = ["self"], list[str](), list[str]()
    for number, field in enumerate(fields):
        name, value = field.name, field.name
        is_made = field.default_factory is not dataclasses.MISSING
        has_default = field.default is not dataclasses.MISSING
        if is_made:
            known[f"_make_{number}"] = field.default_factory
            value = f"_make_{number}() if {name} is _absent else {name}" if field.init else f"_make_{number}()"
        elif has_default:
            known[f"_default_{number}"] = field.default
            value = name if field.init else f"_default_{number}"
        if field.init:
            default = "=_absent" if is_made else f"=_default_{number}" if has_default else ""
            (keywords if field.kw_only else parameters).append(name + default)
        elif not is_made and not (has_default and slots):
            # The class has the default, or `__post_init__` sets the attribute.
            continue
        lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    signature = ", ".join([*parameters, *(["*", *keywords] if keywords else [])])
    body = "\n ".join(lines or ["pass"])
    exec(f"def __init__({signature}):\n {body}", known)
    init = known["__init__"]
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    return init


def _eq(names: list[str]) -> Any:
    values = _values_of(names)

    def __eq__(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hash(names: list[str]) -> Any:
    values = _values_of(names)

    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


def _values_of(names: list[str]) -> Any:
    """Return a function that returns a tuple of these attributes."""
    return attrgetter(*names) if len(names) > 1 else lambda self: tuple(getattr(self, name) for name in names)


def _refusing(cls: Any, names: set[str]) -> tuple[Any, Any]:
    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return __setattr__, __delattr__


def _repr(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
