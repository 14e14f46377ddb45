"""commitInfo: what a commit says about itself, for history, for operators and for the next writer's conflict check.

Source: protocol, "Commit Provenance Information"; delta-spark, CommitInfo.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_txlog import __version__
from airflow_txlog.engine.commit.content.attempt import Attempt
from airflow_txlog.engine.commit.content.row_tracking import preserved_tags

ENGINE_INFO = f"airflow_txlog/{__version__}"


def commit_info(
    attempt: Attempt,
    txn_id: str,
    *,
    parameters: Mapping[str, Any],
    metrics: Mapping[str, Any],
    user_metadata: str | None,
    tags: Mapping[str, str] | None,
) -> dict[str, Any]:
    """The commitInfo of one attempt, in the order in which the reference implementation writes it.

    `parameters` and `metrics` become strings: text stays, everything else is its JSON. Absent values are left out.
    """
    info: dict[str, Any] = {}
    if attempt.in_commit_timestamp_ms is not None:
        # First, so that a reader finds it without decoding the rest. Source: protocol, "In-Commit Timestamps".
        info["inCommitTimestamp"] = attempt.in_commit_timestamp_ms
    info["timestamp"] = attempt.prepared_ms
    info["operation"] = attempt.operation
    info["operationParameters"] = _texts(parameters)
    if attempt.read_version >= 0:
        info["readVersion"] = attempt.read_version
    info["isolationLevel"] = attempt.isolation.value
    info["isBlindAppend"] = attempt.is_blind_append
    info["operationMetrics"] = _texts(metrics)
    if user_metadata is not None:
        info["userMetadata"] = user_metadata
    all_tags = {**(tags or {}), **preserved_tags(attempt)}
    if all_tags:
        info["tags"] = all_tags
    info["engineInfo"] = ENGINE_INFO
    info["txnId"] = txn_id
    return info


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        for name, value in values.items()
        if value is not None
    }
