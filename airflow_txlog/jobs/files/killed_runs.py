"""The steps of runs of an erasure that ended before they were recorded, by the plans that they left.

A run writes a plan before each step that changes the table: the steps so far, the version, and the versions that can be
read. The next run for the same requests takes these into its own record. The invariant: what a killed run did after its
last plan is called unknown, never nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_txlog.jobs.files.erasure_lists import ErasureRecord

_ORDER = ("delete", "purge", "remove")


@dataclass(frozen=True, kw_only=True)
class KilledRuns:
    """`runs`: their ids. `readable`: for each that may have ended versions, those that could be read before.

    A step of `steps` without a version and a time is unknown: whether it was done, and what it did.
    """

    runs: Sequence[str] = ()
    steps: Sequence[Mapping[str, Any]] = ()
    readable: Sequence[list[range] | None] = ()

    def before(self, own: list[range] | None) -> list[range] | None:
        """Return the versions that could be read before these runs or at the start of this one; None if unknown."""
        found: list[range] = []
        for each in (*self.readable, own):
            if each is None:
                return None
            found += each
        return found


def killed_runs(
    plans: Iterable[ErasureRecord], records: Sequence[ErasureRecord], ids: Sequence[str], version: int
) -> KilledRuns:
    """Return what the plans show of runs that no record has for all of these requests. `version`: the latest one now.

    A delete or a purge that was about to be done was not done if the table still has the version of then.
    """
    by_run: dict[str, ErasureRecord] = {}
    for plan in plans:
        for run in plan.runs:
            known = by_run.get(run)
            if known is None or _ORDER.index(plan.doing) > _ORDER.index(known.doing):
                by_run[run] = plan
    left = {run: plan for run, plan in by_run.items() if not is_recorded(plan, records, ids)}
    steps: list[Mapping[str, Any]] = []
    for plan in left.values():
        steps += plan.steps
        if plan.doing == "remove" or plan.version != version:
            steps.append({"name": plan.doing, "version": None, "at": None, "begun": plan.begun})
    readable = [
        None if plan.readable is None else [range(*each) for each in plan.readable]
        for plan in left.values()
        if plan.doing == "remove"
    ]
    return KilledRuns(runs=list(left), steps=steps, readable=readable)


def is_recorded(plan: ErasureRecord, records: Iterable[ErasureRecord], ids: Iterable[str]) -> bool:
    """Return whether records have the runs of a plan, for each of these requests that the plan is for."""
    recorded = {(run, request_id) for each in records for run in each.runs for request_id in each.requests}
    return all((run, each) in recorded for run in plan.runs for each in set(ids).intersection(plan.requests))
