"""Errors whose paths and messages show no value of a subject: the folder of a partition by the key is named by one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_txlog.engine.erasure.values.forms import MARK, Forms
from airflow_txlog.errors import TxlogError


@contextmanager
def errors_marked(forms: Forms) -> Iterator[None]:
    """Mark the values in the errors that are raised inside, and in their causes."""
    try:
        yield
    except Exception as error:
        seen: set[int] = set()
        left: list[BaseException | None] = [error]
        while left:
            found = left.pop()
            if found is not None and id(found) not in seen:
                seen.add(id(found))
                left += [found.__cause__, found.__context__]
                _mark(found, forms)
        raise


def _mark(error: BaseException, forms: Forms) -> None:
    if isinstance(error, TxlogError):
        error.message = _marked(error.message, forms)
        error.args = (error.message,)
        for name, fact in error.facts.items():
            error.facts[name] = _marked(fact, forms)
            setattr(error, name, error.facts[name])
        return
    error.args = tuple(_marked(each, forms) for each in error.args)
    if isinstance(error, OSError):
        error.strerror = _marked(error.strerror, forms)
        if isinstance(error.filename, str | bytes):
            error.filename = forms.without_values(os.fsdecode(error.filename))


def _marked(value: Any, forms: Forms) -> Any:
    """Return a text, or a fact of texts, with a mark for each value in it."""
    if isinstance(value, str):
        if not forms.in_text(value):
            return value
        marked = " ".join(map(forms.without_values, value.split(" ")))
        return MARK if forms.in_text(marked) else marked
    if isinstance(value, dict):
        return {_marked(name, forms): _marked(each, forms) for name, each in value.items()}
    return [_marked(each, forms) for each in value] if isinstance(value, list | tuple) else value
