"""The table of an operator, by its place or by its name in a catalog, and the hook that resolves it.

Invariant: the constructor reads no connection. Names are resolved by `job_spec`, each once for a try of the task, and
the job gets places alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from airflow_txlog.contract.operations import Operation, read_operation
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.hooks.named_tables import TablesByName, check_name, with_places
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.operators.arguments.given import has_template, path_text
from airflow_txlog.operators.arguments.rendering import RenderedOperator


class NamedTableOperator(RenderedOperator):
    """Base of `TxlogOperator`: everything about where its table is."""

    may_create: ClassVar[bool] = False
    """Whether the operator may create the table, so that `table_uri` says where `table` is to be."""
    table: str | None
    table_uri: str | None
    txlog_conn_id: str | None
    storage_conn_id: str | None
    spark_conn_id: str | None
    catalog_conn_id: str | None
    _names: TablesByName

    def set_table(self, table: str | None, table_uri: Any) -> None:
        """Keep the arguments. Raises InvalidJobSpec for neither, or for both if the operator creates no table."""
        self.table, self.table_uri = table, path_text(table_uri)
        self._names = TablesByName()
        if table is None and table_uri is None:
            raise InvalidJobSpec(
                "table_uri must be an absolute path or a URI; found None. Pass table_uri=, or with "
                "catalog_conn_id the name of the table in the catalog as table=.",
                argument="table_uri",
            )
        if table is not None and table_uri is not None and not self.may_create:
            raise InvalidJobSpec(
                "table and table_uri are both given, and this operator creates no table. Leave one of them out: table "
                "is a name in a catalog, and table_uri a path or a URI.",
                argument="table",
            )
        if table is not None and not has_template(table):
            check_name(table)
        if table is not None and self.catalog_conn_id is None and self.txlog_conn_id is None:
            raise InvalidJobSpec(
                "table is a name in a catalog, and no connection of a catalog is given. Name it in catalog_conn_id, or "
                "give the place of the table as table_uri.",
                argument="catalog_conn_id",
            )

    def begin_try(self) -> None:
        """Forget what an earlier try has resolved."""
        self.has_begun = True
        self._names = TablesByName()

    @property
    def hook(self) -> TxlogHook:
        """The hook of this operator's connections. The hooks of one try share the names that were resolved."""
        hook = TxlogHook(self.txlog_conn_id, self.storage_conn_id, self.spark_conn_id, self.catalog_conn_id)
        hook.names = self._names
        return hook

    def place(self, hook: TxlogHook) -> str:
        """Return the URI of the operator's table. Raises as `TxlogHook.table_uri` and `place_of`."""
        if self.table is None:
            return hook.table_uri(self.table_uri)  # type: ignore[arg-type]
        check_name(self.table)
        return hook.place_of(self.table, self.table_uri, may_create=self.may_create)

    def record_of(self, kind: type[Operation], arguments: Mapping[str, Any], hook: TxlogHook | None) -> Operation:
        """Return the record of an operation, with places for the names of other tables.

        `hook`: None when the DAG is parsed. A name then stands for any place if there may be a catalog.
        """
        if hook is not None:
            arguments = with_places(arguments, hook.place_in_source)
        elif self.catalog_conn_id is not None or self.txlog_conn_id is not None:
            arguments = with_places(arguments, lambda name: "/")
        return read_operation(kind, arguments)

    def check_rendered(self) -> None:
        """Raise InvalidJobSpec for a template that is not rendered: `execute` was called without Airflow."""
        name = next((name for name in self.template_fields if has_template(getattr(self, name))), None)
        if name is not None:
            raise InvalidJobSpec(
                f"{name} holds a template that is not rendered: execute() was called without a task instance, and only "
                "Airflow renders before it. Call render_template_fields(context) first, or run the DAG by dag.test(). "
                "Nothing was read.",
                argument=name,
            )
