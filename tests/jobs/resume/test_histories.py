"""Alone in showing, over any history of winners, that what a job keeps is right, and that no more is done than needed.

Each history is decided by its seed. TXLOG_SEED=number runs that one alone; so does `play(seed)` in `histories.py`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection

import pyarrow.compute as pc
import pytest

from airflow_txlog.datafiles.deletion_vectors.positions import CLAUSE, pack_pairs, unpack_pairs
from airflow_txlog.jobs.context import SavedInputs
from airflow_txlog.jobs.resume.memory import COPY, IMAGES, INSERTS, FileMatches, LiveFile, Memory, Segment, TableRules
from airflow_txlog.jobs.resume.saved_work import Identity, decode, encode, memory_of
from tests.helpers.depth import depth
from tests.jobs.resume.histories import History, one_by_one, play

ONE = os.environ.get("TXLOG_SEED")
SEEDS = range(int(ONE), int(ONE) + 1) if ONE else range(depth(350, 2000, 8000))
# A wrong memory is found out within so many, or the histories prove nothing about it.
ENOUGH = 400


def check(histories: list[History]) -> None:
    """No attempt was wrong, and none looked at more than the winners brought; a seed that failed can be replayed."""
    found = [each for history in histories for each in (history.wrong, history.wasted) if each]
    assert not found, f"{len(found)} histories, the first: {found[0]}; TXLOG_SEED=<its seed> replays it"


def total(histories: list[History], name: str) -> int:
    return sum(getattr(history, name) for history in histories)


@pytest.mark.seeded
def test_what_is_kept_is_what_a_run_from_the_start_would_find_and_stage() -> None:
    histories = [play(seed) for seed in SEEDS]
    check(histories)
    if not ONE:
        # A memory that forgets everything is right, and useless.
        assert total(histories, "scans") < 0.75 * total(histories, "scans_from_the_start")
        assert total(histories, "segments") < 0.9 * total(histories, "segments_from_the_start")


def written_down_and_read(memory: Memory) -> Memory:
    """The memory as another process finds it."""
    identity = Identity(app_id="a", version=1, began_ms=None, digest="", release="", ansi=True)
    return memory_of(*decode(encode(memory, identity, SavedInputs(), {})))


@pytest.mark.seeded
def test_b1_a_job_that_is_killed_and_resumed_again_and_again_goes_on_where_it_was() -> None:
    check([play(seed, resume=written_down_and_read) for seed in SEEDS[: depth(150, 400, 1500)]])


# --- wrong memories -------------------------------------------------------------------------------------------------


class ByPathAlone(Memory):
    """A staged copy lives as long as its path does: a row that a vector masked meanwhile comes back."""

    def keep(self, kind: str, inputs: Collection[str], fingerprints: Collection[str] = ("",)) -> list[Segment]:
        paths = {key.split("#")[0] for key in inputs}
        for number, segment in enumerate(self.segments):
            if segment.kind == kind and segment.inputs and {key.split("#")[0] for key in segment.inputs} <= paths:
                now = frozenset(key for key in inputs if key.split("#")[0] in _paths(segment))
                self.segments[number] = Segment(
                    kind=kind, inputs=now, fingerprint=segment.fingerprint, files=segment.files
                )
        return super().keep(kind, inputs, fingerprints)


def _paths(segment: Segment) -> set[str]:
    return {key.split("#")[0] for key in segment.inputs}


class TouchedFilesAlone(Memory):
    """What was found in a file on which no clause acts is forgotten: its matches look unmatched, and are inserted."""

    def remember(self, file: LiveFile, matches: FileMatches) -> None:
        touched = any(entry["clause"] is not None for entry in one_by_one(matches))
        super().remember(file, matches if touched else FileMatches())


class ActedPairsAlone(Memory):
    """Of the pairs that ON matches only those on which a clause acts are remembered."""

    def remember(self, file: LiveFile, matches: FileMatches) -> None:
        pairs = unpack_pairs(matches.pairs)
        acting = pack_pairs(pairs.filter(pc.is_valid(pairs.column(CLAUSE))))
        super().remember(file, dataclasses.replace(matches, pairs=acting))


class InsertsForGood(Memory):
    """Staged inserts stay, whatever matched meanwhile or matches no more."""

    def keep(self, kind: str, inputs: Collection[str], fingerprints: Collection[str] = ("",)) -> list[Segment]:
        if kind == INSERTS:
            fingerprints = [segment.fingerprint for segment in self.segments] or fingerprints
        return super().keep(kind, inputs, fingerprints)


class ScansUnmasked(Memory):
    """A scan survives a vector that grew, with the rows that it deletes now."""

    def recall(self, file: LiveFile) -> FileMatches | None:
        found = super().recall(file)
        return None if found is None else self.scans[file.path].matches


class VectorsThatShrink(Memory):
    """A scan survives any vector: about rows that came back it says nothing, and it is believed."""

    def recall(self, file: LiveFile) -> FileMatches | None:
        found, scan = super().recall(file), self.scans.get(file.path)
        return scan.matches if found is None and scan is not None else found


class AnyRules(Memory):
    """What was staged under other rules of the table is kept."""

    def begin(self, rules: TableRules) -> bool:
        self.rules = rules
        return True


class AnyInput(Memory):
    """Images stay while one of the files that they came from is as it was."""

    def keep(self, kind: str, inputs: Collection[str], fingerprints: Collection[str] = ("",)) -> list[Segment]:
        for number, segment in enumerate(self.segments):
            if segment.kind == kind == IMAGES and (still := segment.inputs & set(inputs)):
                self.segments[number] = Segment(kind=kind, inputs=still, files=segment.files)
        return super().keep(kind, inputs, fingerprints)


class NothingDropped(Memory):
    """Copies of files that are not to be copied any more are committed all the same."""

    def keep(self, kind: str, inputs: Collection[str], fingerprints: Collection[str] = ("",)) -> list[Segment]:
        before = [segment for segment in self.segments if segment.kind == kind == COPY]
        kept = super().keep(kind, inputs, fingerprints)
        self.segments += [segment for segment in before if segment not in kept]
        return kept


@pytest.mark.parametrize(
    "wrong",
    [
        ByPathAlone,
        TouchedFilesAlone,
        ActedPairsAlone,
        InsertsForGood,
        ScansUnmasked,
        VectorsThatShrink,
        AnyRules,
        AnyInput,
        NothingDropped,
    ],
)
def test_a_wrong_memory_is_found_out(wrong: Callable[[], Memory]) -> None:
    assert any(play(seed, wrong).wrong for seed in range(ENOUGH)), "the histories prove nothing about it"


class Forgetful(Memory):
    """Right, and useless: every file is looked at again."""

    def begin(self, rules: TableRules) -> bool:
        self.forget()
        return super().begin(rules)


def test_a_memory_that_forgets_is_right_and_found_out_too() -> None:
    histories = [play(seed, Forgetful) for seed in range(60)]
    assert not any(history.wrong for history in histories)
    assert any(history.wasted for history in histories)
