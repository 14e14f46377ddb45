"""commitInfo: what a commit states about itself for history, operators and the next writer; and in-commit timestamps.

The invariant: in a table with in-commit timestamps every commit's is greater than that of the version before it, and a
time that another writer left out is never guessed (soundness C3). A commit that switches them on for an existing table
records from which version and moment they hold, because earlier versions use their files' times.
Source: protocol, "Commit Provenance Information" and "In-Commit Timestamps"; delta-spark, CommitInfo.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from airflow_txlog import __version__
from airflow_txlog.engine.commit.content.attempt import Attempt
from airflow_txlog.engine.commit.content.row_tracking import preserved_tags
from airflow_txlog.engine.log.actions import Commit, Metadata
from airflow_txlog.engine.table.schema.identities import moves_marks_only
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import CorruptTable

ENGINE_INFO = f"airflow_txlog/{__version__}"
IDENTITY_TAG = "delta.identity.schemaUpdate"


def commit_info(
    attempt: Attempt,
    txn_id: str,
    *,
    parameters: Mapping[str, Any],
    metrics: Mapping[str, Any],
    user_metadata: str | None,
    tags: Mapping[str, str] | None,
) -> dict[str, Any]:
    """Return the commitInfo of one attempt, in the reference implementation's order, with its values as texts."""
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
    all_tags = {**(tags or {}), **preserved_tags(attempt), **_identity_tags(attempt), **attempt.met.tags()}
    if all_tags:
        info["tags"] = all_tags
    info["engineInfo"] = ENGINE_INFO
    info["txnId"] = txn_id
    return info


def _identity_tags(attempt: Attempt) -> dict[str, str]:
    """Return the tag of a commit whose metadata differs in identity marks alone.

    Only with it do commits of delta-spark that hand out no values follow ours without a conflict.
    """
    before, after = attempt.current_metadata, attempt.new_metadata
    if before is None or after is None or attempt.new_protocol is not None or not moves_marks_only(before, after):
        return {}
    return {IDENTITY_TAG: "true"}


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        for name, value in values.items()
        if value is not None
    }


ENABLEMENT_VERSION = "delta.inCommitTimestampEnablementVersion"
ENABLEMENT_TIMESTAMP = "delta.inCommitTimestampEnablementTimestamp"


def with_in_commit_timestamp(attempt: Attempt, before: Snapshot | None) -> Attempt:
    """Return the attempt with its time, later than the version before it; unchanged if the table has none."""
    if not attempt.resulting_properties.in_commit_timestamps:
        return attempt
    before_ms = -1 if before is None else before.timestamp_ms
    return _at(attempt, max(attempt.prepared_ms, before_ms + 1), attempt.read_version + 1)


def after_winner(attempt: Attempt, winner: Commit) -> Attempt:
    """Return the attempt with a later time than the winner's. Raises CorruptTable if the winner lacks a needed one."""
    if not attempt.resulting_properties.in_commit_timestamps:
        # The winner, or this commit itself, switched them off.
        return replace(attempt, in_commit_timestamp_ms=None)
    info = winner.info or {}
    theirs = info.get("inCommitTimestamp")
    if not isinstance(theirs, int):
        if _is_enabled(attempt.current_metadata, attempt.table):
            # Guessing a time here would break the order that every later reader relies on.
            raise attempt.error(
                CorruptTable,
                f"version {winner.version} carries no inCommitTimestamp, though the table has in-commit timestamps "
                "enabled. Another writer broke the rule; this commit was not made.",
            )
        # This commit enables in-commit timestamps. The winner needs none, so its plain timestamp is used.
        theirs = info.get("timestamp") if isinstance(info.get("timestamp"), int) else -1
    own = attempt.in_commit_timestamp_ms or attempt.prepared_ms
    return _at(attempt, max(own, int(theirs or 0) + 1), winner.version + 1)


def _at(attempt: Attempt, timestamp_ms: int, version: int) -> Attempt:
    timed = replace(attempt, in_commit_timestamp_ms=timestamp_ms)
    switched_on = attempt.read_version >= 0 and not _is_enabled(attempt.current_metadata, attempt.table)
    if not switched_on or attempt.new_metadata is None:
        return timed
    since = {ENABLEMENT_VERSION: str(version), ENABLEMENT_TIMESTAMP: str(timestamp_ms)}
    configuration = {**attempt.new_metadata.configuration, **since}
    return replace(timed, new_metadata=msgspec.structs.replace(attempt.new_metadata, configuration=configuration))


def _is_enabled(metadata: Metadata | None, table: str) -> bool:
    return metadata is not None and TableProperties(metadata.configuration, table).in_commit_timestamps
