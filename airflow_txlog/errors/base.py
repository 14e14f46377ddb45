"""The base of every error, and how one crosses from process to process."""

from __future__ import annotations

from typing import Any, ClassVar


class TxlogError(Exception):
    """Base of every error raised on purpose by this package.

    `facts` are the JSON-able keyword arguments, readable as attributes; a fact that was not given reads as None when
    the class names it in `fact_names`.
    """

    retryable: bool = False
    fact_names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, message: str, **facts: Any) -> None:
        # Tracebacks, logs and the command line put the class before the message.
        message = message.removeprefix(f"{type(self).__name__}: ")
        # A file's name may have bytes that are no characters, and a log takes characters alone.
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
        """`{"type", "message", "retryable", "facts"}`: what a JobResult carries."""
        facts = dict(self.facts)
        return {"type": type(self).__name__, "message": self.message, "retryable": self.retryable, "facts": facts}


def from_dict(data: dict[str, Any]) -> TxlogError:
    """The error that `to_dict` described.

    A class name that this version does not know becomes a plain `JobError` that keeps the text and `retryable`.
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
