"""The user of a request, and the DAGs that they may see, by Airflow's auth manager.

The invariant: without an answer of the auth manager nothing is shown. Any error of it refuses the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails, DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import bearer_scheme, get_user
from airflow.models.connection import Connection
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from sqlalchemy import select
from starlette.exceptions import HTTPException
from starlette.requests import Request

from airflow_txlog.window.site import Refused

_MESSAGES = {
    401: "Log in to Airflow first. If you were logged in, your session has ended: reload the whole page.",
    403: "Airflow does not accept this login.",
}


async def user_of(request: Request) -> Any:
    """Return the user of a request, by a bearer token or by the cookie of the UI. Raises Refused (401, 403)."""
    try:
        return await get_user(request, None, await bearer_scheme(request))
    except HTTPException as refused:
        status = refused.status_code
        raise Refused(status, _MESSAGES.get(status, "Airflow refused the request.")) from None


def visible_dags(user: Any) -> tuple[frozenset[str], frozenset[str]]:
    """Return the DAGs that the user may read, and all DAGs of this Airflow. Asks the database."""
    permitted = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    with create_session() as session:
        every = frozenset(session.scalars(select(DagModel.dag_id)))
    return frozenset(permitted), every


def may_see(user: Any, dag_id: str, entity: DagAccessEntity) -> bool:
    """Return whether the user may read a part of a DAG: its task instances, or its runs."""
    team = None
    if hasattr(DagModel, "get_team_name"):
        team = DagModel.get_team_name(dag_id)
    details = DagDetails(id=dag_id, team_name=team) if team is not None else DagDetails(id=dag_id)
    found: bool = get_auth_manager().is_authorized_dag(method="GET", access_entity=entity, details=details, user=user)
    return found


def visible_connections(user: Any, conn_ids: Sequence[str]) -> list[str]:
    """Return the connections that the user may read, and so the names of the tables in their base folders."""
    return [conn_id for conn_id in conn_ids if _may_see_connection(user, conn_id)]


def _may_see_connection(user: Any, conn_id: str) -> bool:
    team = Connection.get_team_name(conn_id) if hasattr(Connection, "get_team_name") else None
    details = ConnectionDetails(conn_id=conn_id) if team is None else ConnectionDetails(conn_id=conn_id, team_name=team)
    found: bool = get_auth_manager().is_authorized_connection(method="GET", details=details, user=user)
    return found


TASK_INSTANCE = DagAccessEntity.TASK_INSTANCE
RUN = DagAccessEntity.RUN
