"""The base of all errors: a message, facts as attributes, and their form as JSON. Standard library only."""

from __future__ import annotations

from typing import Any, ClassVar


class TxlogError(Exception):
    """Base of every error raised on purpose by this package.

    `facts` are the JSON-able keyword arguments, readable as attributes. `class Lost(TxlogError, facts="exit_code")`
    adds to the facts that an error always has: one that was not given reads as None.
    """

    retryable: bool = False
    fact_names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, facts: str = "") -> None:
        super().__init_subclass__()
        cls.fact_names = (*cls.fact_names, *facts.split())

    def __init__(self, message: str, **facts: Any) -> None:
        # Tracebacks, logs and the command line put the class before the message.
        message = message.removeprefix(f"{type(self).__name__}: ")
        # A file's name may have bytes that are no characters, and a log accepts only characters.
        message = message.encode("utf-8", "backslashreplace").decode()
        super().__init__(message)
        self.message = message
        self.facts: dict[str, Any] = facts
        # Facts are set on the instance so that an attribute such as `retryable` may be overridden for one error.
        for name, value in (dict.fromkeys(self.fact_names) | facts).items():
            setattr(self, name, value)
        if "has_application_transaction" in self.fact_names:
            # The outcome is unknown: only work that carries one can find out by running again.
            self.retryable = bool(facts.get("has_application_transaction"))

    def __reduce__(self) -> tuple[Any, ...]:
        return (from_dict, (self.to_dict(),))

    def to_dict(self) -> dict[str, Any]:
        """Return `{"type", "message", "retryable", "facts"}`, the form in which a JobResult carries the error."""
        facts = dict(self.facts)
        return {"type": type(self).__name__, "message": self.message, "retryable": self.retryable, "facts": facts}


def from_dict(data: dict[str, Any]) -> TxlogError:
    """Return the error that `to_dict` has described.

    If this version does not know the class name, return a plain `JobError` with the same text and `retryable`.
    """
    facts = dict(data.get("facts") or {})
    cls = _classes().get(data.get("type", ""))
    if cls is None:
        facts["retryable"] = bool(data.get("retryable", False))
        return _classes()["JobError"](f"{data.get('type')}: {data.get('message')}", **facts)
    return cls(data.get("message", ""), **facts)


def _classes(root: type[TxlogError] = TxlogError) -> dict[str, type[TxlogError]]:
    below = (_classes(each) for each in root.__subclasses__())
    return {root.__name__: root, **{name: cls for found in below for name, cls in found.items()}}
