"""What a commit must adapt when it lands after another one that does not conflict with it.

Pure: each function answers with another attempt.
Source: protocol, "Row Tracking" and "In-Commit Timestamps"; delta-spark, ConflictChecker.reassignOverlappingRowIds.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from airflow_txlog.engine.commit.attempt import Attempt
from airflow_txlog.engine.commit.isolation import ROW_TRACKING_DOMAIN
from airflow_txlog.engine.log.actions import Add, Commit, DomainMetadata
from airflow_txlog.engine.table.files import record_count
from airflow_txlog.engine.table.properties import TableProperties
from airflow_txlog.errors import CorruptTable, InvalidCommit


def rebase(attempt: Attempt, winner: Commit) -> Attempt:
    """The attempt as it must read to follow `winner` directly."""
    return _after_timestamp(_after_row_ids(attempt, winner), winner)


def _after_timestamp(attempt: Attempt, winner: Commit) -> Attempt:
    metadata = attempt.current_metadata
    # The winner may be the commit that switched in-commit timestamps on: its metadata was adopted before this.
    enabled = metadata is not None and TableProperties(metadata.configuration, attempt.table).in_commit_timestamps
    if not enabled and attempt.in_commit_timestamp_ms is None:
        return attempt
    winners = (winner.info or {}).get("inCommitTimestamp")
    if not isinstance(winners, int):
        # Guessing a time here would break the order that every later reader relies on.
        raise CorruptTable(
            f"{attempt.table}: version {winner.version} carries no inCommitTimestamp, though the table has in-commit "
            "timestamps enabled. Another writer broke the rule; this commit was not made.",
            table=attempt.table,
        )
    own = attempt.in_commit_timestamp_ms or attempt.prepared_ms
    return replace(attempt, in_commit_timestamp_ms=max(own, winners + 1))


def _after_row_ids(attempt: Attempt, winner: Commit) -> Attempt:
    winners_mark = _high_water(winner.domains)
    if attempt.row_id_high_water is None or winners_mark is None:
        return attempt
    next_id = winners_mark + 1
    numbered: list[Add] = []
    for add in attempt.adds:
        # An id above the mark that we read is one that we handed out, and the winner handed out the same.
        if add.base_row_id is None or add.base_row_id > attempt.row_id_high_water:
            add = msgspec.structs.replace(add, base_row_id=next_id)
            next_id += _num_records(add, attempt.table)
        if add.default_row_commit_version == winner.version:
            add = msgspec.structs.replace(add, default_row_commit_version=winner.version + 1)
        numbered.append(add)
    others = tuple(domain for domain in attempt.domains if domain.domain != ROW_TRACKING_DOMAIN)
    mark = DomainMetadata(
        domain=ROW_TRACKING_DOMAIN,
        configuration=msgspec.json.encode({"rowIdHighWaterMark": next_id - 1}).decode(),
        removed=False,
    )
    return replace(attempt, adds=tuple(numbered), domains=(*others, mark), row_id_high_water=winners_mark)


def _high_water(domains: list[DomainMetadata]) -> int | None:
    for domain in domains:
        if domain.domain == ROW_TRACKING_DOMAIN:
            return int(msgspec.json.decode(domain.configuration)["rowIdHighWaterMark"])
    return None


def _num_records(add: Add, table: str) -> int:
    records = record_count(add.stats)
    if records is None:
        raise InvalidCommit(
            f"{table}: row tracking numbers the rows of {add.path}, so its statistics must hold numRecords.",
            table=table,
        )
    return records
