"""DeltaDeleteOperator: delete the rows that satisfy a predicate, or that have one of a list of keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from airflow_txlog.contract.operations import Delete, Operation
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.operators.arguments.given import keys_of
from airflow_txlog.operators.checked import LimitedOperator


class DeltaDeleteOperator(LimitedOperator):
    """Delete the rows for which a predicate is true, or whose column equals one of the keys, in one commit.

    :param predicate: one boolean Spark SQL expression over the table's columns, with `:name` for values; "TRUE" for
        every row. A row for which it is null is kept. (templated)
    :param keys: instead of a predicate, the keys of the rows to delete: a list of values, or a source
        (`sources.files(…)`, `sources.table(…)`, `sources.query(…)`). Each key must convert exactly to a value of the
        column's type, or the task fails: `7` is not a string, and `"007"` is not a number. The metrics count the keys
        (`numKeysGiven`; `numKeys` without repetitions) and the matching keys (`numKeysMatched`). (templated)
    :param key_column: the column of the table that contains the keys. (templated)
    :param source_column: the column of the source that contains the keys. Default: the only column, or the column named
        `key_column`; only the latter in a CSV file with a header and without a schema. (templated)
    :param require_match: fail without a change if the predicate is true for no row (MatchNotFound), or a key is in no
        row (KeysNotFound).
    :param sensitive: as in `DataChangingOperator`, but True by default, and also for `keys`, because deleted rows often
        belong to a person.

    Example: `DeltaDeleteOperator(task_id="forget", table_uri="/lake/users", key_column="user_id",
    keys=files("/in/requests", format="csv", schema="user_id STRING"))`. Other arguments: `DataChangingOperator` and
    `TxlogOperator`.
    """

    operation: ClassVar[type[Operation]] = Delete
    template_fields: Sequence[str] = (
        *LimitedOperator.template_fields,
        "predicate",
        "keys",
        "key_column",
        "source_column",
    )

    def __init__(
        self,
        *,
        predicate: str | None = None,
        keys: Sequence[Any] | Mapping[str, Any] | None = None,
        key_column: str | None = None,
        source_column: str | None = None,
        require_match: bool = False,
        sensitive: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(sensitive=sensitive, **kwargs)
        if predicate is None and key_column is None:
            raise TypeError("give a predicate, or keys and key_column")
        self.predicate = predicate
        self.keys = keys
        self.key_column = key_column
        self.source_column = source_column
        self.require_match = require_match
        self.check_literals()

    def fields_of(self, argument: str) -> Collection[str]:
        return ("keys", "key_column", "source_column") if argument == "keys" else (argument,)

    def job_arguments(self) -> dict[str, Any]:
        """Return the fields, with `keys` made of the arguments that describe them.

        Raises InvalidJobSpec unless exactly one of the two ways is described: keys that a template rendered to nothing
        must not become a delete of every row.
        """
        by_keys = self.key_column is not None
        if by_keys == (self.predicate is not None) or by_keys != (self.keys is not None):
            raise InvalidJobSpec(
                "A delete takes either predicate, or keys together with key_column; given: "
                f"{', '.join(name for name in ('predicate', 'keys', 'key_column') if getattr(self, name) is not None)}"
                ". Nothing was read.",
                argument="predicate",
            )
        keys = _described(self.key_column, self.keys, self.source_column) if by_keys else None
        return {**super().job_arguments(), "keys": keys}


def _described(column: str | None, keys: Any, source_column: str | None) -> dict[str, Any]:
    for name, value in (("key_column", column), ("source_column", source_column)):
        if value is not None and not isinstance(value, str):
            raise InvalidJobSpec(
                f"{name} must be the name of a column; found {type(value).__name__}. Nothing was read.", argument=name
            )
    return keys_of("keys", column, keys, source_column)
