"""Reading a connection of Airflow that a parameter names.

Invariant: the error for a missing connection names the parameter to correct, and shows nothing of any connection.
"""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

# The parameters that may also stand in the extra of a connection.
_PLACES = {
    **dict.fromkeys(
        ("catalog_conn_id", "spark_conn_id", "storage_conn_id"), " in the task or in the extra of its txlog_conn_id"
    ),
    "erasure_key_conn_id": " in the extra of the task's txlog_conn_id",
}


def connection_of(argument: str, conn_id: str) -> Any:
    """Return the connection that the parameter `argument` names.

    Raises Airflow's AirflowNotFoundException if it does not exist, with the name of the parameter.
    """
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        where = _PLACES.get(argument, "")
        raise AirflowNotFoundException(
            f"{argument}: Airflow has no connection {conn_id!r}. Nothing was read. Correct {argument}{where}, or make "
            f"the connection (Admin, Connections in the UI; `airflow connections add {conn_id}`; "
            f"AIRFLOW_CONN_{conn_id.upper()} in the environment)."
        ) from error
