"""DeltaAlterTableOperator: change the properties, features, columns, rules and clustering of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow_txlog.contract.operations import Alter, Operation
from airflow_txlog.operators.base import ExactlyOnceOperator

_ARGUMENTS = (
    *("drop_constraints", "unset_properties", "set_properties", "add_features", "drop_columns", "rename_columns"),
    *("add_columns", "change_types", "set_comments", "drop_not_null", "set_not_null", "add_constraints"),
    *("sync_identity", "cluster_by", "drop_features"),
)


class DeltaAlterTableOperator(ExactlyOnceOperator):
    """Alter a Delta table in one commit, without Spark unless a new rule needs it.

    The arguments apply in the following order, and each works on the result of the previous ones. A column is
    identified by its path, such as `address.city` or `items.element.price`. All arguments except `allow_reader_upgrade`
    are templated.

    :param drop_constraints: the names of CHECK constraints to drop.
    :param unset_properties: the names of table properties to remove.
    :param set_properties: table properties by name; `comment` is the table's comment.
    :param add_features: table features to add and to switch on, with everything that the protocol requires.
    :param drop_columns: columns and members to drop. The table then uses column mapping by name.
    :param rename_columns: new names by column. The table then uses column mapping by name.
    :param add_columns: types by new column, such as `{"price": "DECIMAL(10, 2)"}`, or mappings with `type`, `comment`
        and `default`. Existing rows have null in these columns.
    :param change_types: wider types by column.
    :param set_comments: comments by column. None removes a comment.
    :param drop_not_null: columns that may be null again.
    :param set_not_null: columns that must not be null. All rows are verified before the commit.
    :param add_constraints: SQL by the name of a CHECK constraint. All rows are verified before the commit.
    :param sync_identity: identity columns whose next value must lie beyond those of all rows.
    :param cluster_by: the clustering columns. An empty list ends the clustering, and None does not change it.
    :param drop_features: table features to drop.
    :param allow_reader_upgrade: allow a change that older engines cannot read. The log lists the engines that can read
        it.

    Example: `DeltaAlterTableOperator(task_id="evolve", table_uri="/lake/orders", add_columns={"note": "STRING"},
    add_constraints={"positive": "amount > 0"})`. Other arguments: `ExactlyOnceOperator` and `TxlogOperator`.
    """

    operation: ClassVar[type[Operation]] = Alter
    template_fields: Sequence[str] = (*ExactlyOnceOperator.template_fields, *_ARGUMENTS)

    def __init__(
        self,
        *,
        drop_constraints: str | Sequence[str] = (),
        unset_properties: str | Sequence[str] = (),
        set_properties: Mapping[str, Any] | None = None,
        add_features: str | Sequence[str] = (),
        drop_columns: str | Sequence[str] = (),
        rename_columns: Mapping[str, str] | None = None,
        add_columns: Mapping[str, str | Mapping[str, str]] | None = None,
        change_types: Mapping[str, str] | None = None,
        set_comments: Mapping[str, str | None] | None = None,
        drop_not_null: str | Sequence[str] = (),
        set_not_null: str | Sequence[str] = (),
        add_constraints: Mapping[str, str] | None = None,
        sync_identity: str | Sequence[str] = (),
        cluster_by: str | Sequence[str] | None = None,
        drop_features: str | Sequence[str] = (),
        allow_reader_upgrade: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.drop_constraints = drop_constraints
        self.unset_properties = unset_properties
        self.set_properties = set_properties
        self.add_features = add_features
        self.drop_columns = drop_columns
        self.rename_columns = rename_columns
        self.add_columns = add_columns
        self.change_types = change_types
        self.set_comments = set_comments
        self.drop_not_null = drop_not_null
        self.set_not_null = set_not_null
        self.add_constraints = add_constraints
        self.sync_identity = sync_identity
        self.cluster_by = cluster_by
        self.drop_features = drop_features
        self.allow_reader_upgrade = allow_reader_upgrade
        self.check_literals()

    def job_arguments(self) -> dict[str, Any]:
        """Return the fields that are given."""
        return {name: value for name, value in super().job_arguments().items() if value is not None}
