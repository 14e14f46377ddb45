"""Errors of a DAG file: they name the task, and start at the line of the file.

Airflow's page of import errors shows the message of an error and the last two places of its traceback. A file may have
a hundred tasks, and the innermost places are ours. Invariant: an error keeps its class and its facts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_txlog.errors import TxlogError

if TYPE_CHECKING:
    from airflow.sdk.bases.operator import BaseOperatorMeta
else:
    # Its module differs between releases of Airflow.
    BaseOperatorMeta = type(BaseOperator)

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


# The errors that a wrong argument raises, here and in Airflow.
_OF_ARGUMENTS = (TxlogError, TypeError, ValueError)


class NamedInErrors(BaseOperatorMeta):
    """Metaclass of the operators and the sensor: an error of a constructor names the class and the task."""

    # Checkers of types read the constructors.
    if not TYPE_CHECKING:

        def __call__(cls, *args, **kwargs):
            # As `type.__call__`, but the task is in reach when its constructor fails.
            task = cls.__new__(cls, *args, **kwargs)
            try:
                task.__init__(*args, **kwargs)
            except Exception as error:
                if isinstance(error, TypeError) and cls.__module__.startswith("airflow_txlog."):
                    # Airflow names a missing argument, which one of another name may have been meant for.
                    from airflow_txlog.operators.arguments.unknown import unknown_among  # only for an error

                    error = unknown_among(cls, kwargs) or error
                name_task(error, task, kwargs.get("task_id"))
                if isinstance(error, _OF_ARGUMENTS) and _is_ours(error):
                    # The traceback ends here, one place below the line of the DAG file.
                    raise error.with_traceback(None) from error.__cause__
                raise
            return task

        @property
        def __signature__(cls):
            """The parameters of the constructor, which `inspect` would take from `__call__`."""
            signature = inspect.signature(cls.__init__)
            return signature.replace(parameters=list(signature.parameters.values())[1:])


def _is_ours(error: Exception) -> bool:
    """Return whether only code of this package and of Airflow ran below the metaclass: no subclass of a user."""
    places = error.__traceback__ and error.__traceback__.tb_next
    while places:
        if str(places.tb_frame.f_globals.get("__name__")).partition(".")[0] not in ("airflow", "airflow_txlog"):
            return False
        places = places.tb_next
    return True


def name_task(error: Exception, task: object, task_id: Any = None) -> None:
    """Put the class of a task and its id before the message of an error.

    `task_id`: the id that was given, for a task whose constructor had not set it yet. That of a task group follows.
    """
    who = f"{type(task).__name__} (task_id: {getattr(task, 'task_id', task_id)})"
    text = str(error)
    if text.startswith(f"{type(task).__name__} ("):
        return
    if isinstance(error, TxlogError):
        error.message = f"{who}: {text}"
    elif error.args[:1] != (text,):
        # Its class makes the text of other facts.
        error.add_note(f"In {who}.")
        return
    error.args = (f"{who}: {text}", *error.args[1:])


def starts_at_caller(function: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
    """Return the function with errors whose traceback ends at the line that called it."""

    @wraps(function)
    def called(*args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
        try:
            return function(*args, **kwargs)
        except TxlogError as error:
            raise error.with_traceback(None) from error.__cause__

    return called
