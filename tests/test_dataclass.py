"""`airflow_txlog.dataclass` beside the standard library's own: the same classes, made by both."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable
from dataclasses import field
from functools import cached_property
from typing import Any, ClassVar

import pytest

import airflow_txlog
from airflow_txlog.dataclass import _compiled_init, dataclass

Make = Callable[..., Any]
OPTIONS: list[dict[str, bool]] = [
    {},
    {"kw_only": True},
    {"frozen": True},
    {"frozen": True, "kw_only": True},
    {"slots": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "kw_only": True},
    {"frozen": True, "slots": True, "eq": False},
]


def shapes(make: Make, options: dict[str, bool]) -> dict[str, Any]:
    """Return classes of many shapes, made by one of both decorators."""

    @make(**options)
    class Nothing:
        """Has no field."""

    @make(**options)
    class One:
        value: int

    @make(**options)
    class Many:
        kind: ClassVar[str] = "many"
        first: int
        second: str = "two"
        third: list[int] = field(default_factory=list)
        secret: str = field(default="hidden", repr=False, compare=False)
        facts: dict[str, int] = field(default_factory=dict, hash=False)
        by_name: int = field(default=4, kw_only=True)

    @make(**options)
    class Hashable:
        texts: tuple[str, ...] = ()
        facts: dict[str, int] = field(default_factory=dict, hash=False)

    @make(**options)
    class Below(Many):
        fourth: float = 0.5

        def __post_init__(self) -> None:
            object.__setattr__(self, "second", self.second.upper())

    @make(**options)
    class Own:
        value: int
        derived: int = field(init=False)
        fixed: int = field(default=7, init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "derived", self.value + 1)

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self)) and self.value % 10 == other.value % 10

        def __hash__(self) -> int:
            return self.value % 10

    found = {"Nothing": Nothing, "One": One, "Many": Many, "Hashable": Hashable, "Below": Below, "Own": Own}
    for each in found.values():
        # As of a class of a module.
        each.__qualname__ = each.__name__
    return found


VALUES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Nothing", (), {}),
    ("Nothing", (1,), {}),
    ("One", (), {"value": 1}),
    ("One", (), {"value": float("nan")}),
    ("One", (1,), {}),
    ("One", (), {}),
    ("One", (), {"other": 1}),
    ("Many", (), {"first": 1}),
    ("Many", (), {"first": 1, "third": [3], "secret": "s", "by_name": 5}),
    ("Many", (1, "b"), {"by_name": 5}),
    ("Many", (1, "b", [], "s", 5), {}),
    ("Hashable", (), {"texts": ("a",), "facts": {"b": 1}}),
    ("Below", (), {"first": 1, "second": "b", "fourth": 2.5}),
    ("Below", (1,), {}),
    ("Own", (), {"value": 12}),
    ("Own", (), {"value": 12, "fixed": 1}),
]


def outcome(call: Callable[[], Any]) -> Any:
    """Return the value, or the class of the error."""
    try:
        return call()
    except Exception as error:
        return type(error)


def behaviour(cls: Any, values: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    """Return what an instance does."""
    made = outcome(lambda: cls(*values, **named))
    if isinstance(made, type):
        return [made]
    again = cls(*values, **named)
    name = next((each.name for each in dataclasses.fields(cls)), None)
    return [
        repr(made),
        made == again,
        made == 1,
        made != again,
        outcome(lambda: hash(made) == hash(again)),
        outcome(lambda: made in {again}),
        # The standard library raises TypeError of a frozen class with slots, by an error of its own.
        isinstance(outcome(lambda: setattr(copy.copy(made), "absent", 1)), type),
        name and outcome(lambda: setattr(copy.copy(made), name, 1)),
        name and outcome(lambda: delattr(copy.copy(made), name)),
        outcome(lambda: repr(copy.deepcopy(made))),
        outcome(lambda: repr(dataclasses.replace(made))),
        outcome(lambda: dataclasses.asdict(made)),
        outcome(lambda: hasattr(made, "__dict__")),
        cls.__match_args__,
        [(each.name, each.default, each.kw_only) for each in dataclasses.fields(made)],
        dataclasses.is_dataclass(made),
    ]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(options) or "plain")
def test_instances_behave_as_those_of_the_standard_library(options: dict[str, bool]) -> None:
    ours, expected = shapes(dataclass, options), shapes(dataclasses.dataclass, options)
    for name, values, named in VALUES:
        found = [str(each) for each in behaviour(ours[name], values, named)]
        assert found == [str(each) for each in behaviour(expected[name], values, named)], (name, values, named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    number: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kept:
    number: int

    @cached_property
    def twice(self) -> int:
        return 2 * self.number


class Named(Kept):
    """A class without the decorator."""


def test_an_instance_can_be_pickled() -> None:
    sent = Sent(number=1, names=("a",))
    assert pickle.loads(pickle.dumps(sent)) == sent
    kept = Kept(2)
    assert (kept.twice, pickle.loads(pickle.dumps(kept)).twice) == (4, 4)


def test_a_frozen_class_keeps_properties_and_lets_classes_below_it_have_other_attributes() -> None:
    named = Named(3)
    named.other = 1  # type: ignore[attr-defined]
    assert named.twice == 6
    assert named != Kept(3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        named.number = 4  # type: ignore[misc]


def test_every_dataclass_of_the_package_has_the_signature_that_the_standard_library_gives_it() -> None:
    found = 0
    for info in pkgutil.walk_packages(airflow_txlog.__path__, "airflow_txlog."):
        if info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        for cls in vars(module).values():
            if not isinstance(cls, type) or cls.__module__ != info.name or not dataclasses.is_dataclass(cls):
                continue
            fields = dataclasses.fields(cls)
            init: Any = _compiled_init(cls, fields, frozen=False, slots="__slots__" in vars(cls))
            # The fields once more, in a class of the standard library.
            specified = [(each.name, each.type, copy.copy(each)) for each in fields]
            expected = dataclasses.make_dataclass("Expected", specified)
            theirs = inspect.signature(expected.__init__).parameters
            ours = inspect.signature(init).parameters
            assert list(ours) == list(theirs), cls
            for name, parameter in ours.items():
                assert parameter.kind == theirs[name].kind, (cls, name)
                is_made = name != "self" and cls.__dataclass_fields__[name].default_factory is not dataclasses.MISSING
                assert is_made or parameter.default is theirs[name].default, (cls, name)
            found += 1
    assert found > 300
