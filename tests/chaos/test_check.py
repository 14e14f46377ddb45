"""The checker, on small histories that are written by hand: it finds each fault, and none where there is none."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.chaos.check import Found, Log, check, read_log
from tests.chaos.work import PROPERTY, Piece, Rows, apply

# The protocol's own example.
VECTOR = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4, "cardinality": 1}
VECTOR_FILE = "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


class History:
    """Journals, and a log in which each commit of a piece replaces the one file of its bucket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log: Log = {0: [{"commitInfo": {"operation": "CREATE TABLE"}}]}
        self.rows: Rows = {}
        self.files: dict[int, str] = {}
        self._begun: dict[str, int] = {}

    def begin(self, name: str, kind: str, bucket: int = 1) -> Piece:
        number = self._begun.setdefault(name, 0)
        self._begun[name] += 1
        first = sum(map(ord, name)) * 1_000_000 + number * 1000
        ids = [first + each for each in range(5)]
        piece = {"piece": number, "kind": kind, "bucket": bucket, "ids": ids, "by": 3}
        self.write(name, piece)
        return piece

    def commit(self, name: str, piece: Piece, *, rows: Rows | None = None) -> int:
        """The piece as the next version, which leaves `rows`; by default those that it should."""
        apply(self.rows, piece)
        self.rows = self.rows if rows is None else rows
        version = max(self.log) + 1
        actions = [{"commitInfo": {"operation": "WRITE"}}, {"txn": {"appId": name, "version": piece["piece"] + 1}}]
        if piece["kind"] == "alter":
            self.log[version] = [*actions, {"metaData": {"configuration": {PROPERTY: str(piece["piece"])}}}]
        else:
            self.log[version] = actions + self._files_of(piece["bucket"], version)
        return version

    def done(self, name: str, piece: Piece, version: int | None, status: str = "committed") -> None:
        self.write(name, {"done": piece["piece"], "status": status, "version": version})

    def do(self, name: str, kind: str, bucket: int = 1) -> int:
        """A piece that is begun, committed and acknowledged; its version."""
        piece = self.begin(name, kind, bucket)
        version = self.commit(name, piece)
        self.done(name, piece, version)
        return version

    def optimize(self, bucket: int = 1, *, data_change: bool = False) -> int:
        version = max(self.log) + 1
        files = self._files_of(bucket, version)
        for each in files:
            next(iter(each.values()))["dataChange"] = data_change
        self.log[version] = [{"commitInfo": {"operation": "OPTIMIZE"}}, *files]
        return version

    def write(self, name: str, line: dict[str, Any]) -> None:
        with (self.folder / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def add(self, version: int) -> dict[str, Any]:
        """The one add of a version."""
        found: dict[str, Any] = next(each["add"] for each in self.log[version] if "add" in each)
        return found

    def checkpoint(self, version: int) -> bytes:
        """A checkpoint of a history in which every version has a file and a transaction of its own."""
        actions: list[dict[str, Any]] = []
        for each in range(1, version + 1):
            txn = next(action["txn"] for action in self.log[each] if "txn" in action)
            actions += [{"txn": txn, "add": None}, {"txn": None, "add": {"path": self.add(each)["path"]}}]
        file = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(actions), file)
        return file.getvalue()

    def check(self, checkpoints: dict[int, bytes] | None = None) -> Found:
        return check(self.log, self.folder, {*self.files.values()}, self.rows, checkpoints)

    def _files_of(self, bucket: int, version: int) -> list[dict[str, Any]]:
        actions: list[dict[str, Any]] = []
        common = {"partitionValues": {"bucket": str(bucket)}, "dataChange": True}
        if bucket in self.files:
            actions.append({"remove": {"path": self.files.pop(bucket), **common}})
        held = [(each, n) for each, (n, its) in self.rows.items() if its == bucket]
        if held:
            self.files[bucket] = f"bucket={bucket}/{version}.parquet"
            bounds = {
                kind: {"id": of(each for each, _ in held), "n": of(n for _, n in held)}
                for kind, of in (("minValues", min), ("maxValues", max))
            }
            stats = json.dumps({"numRecords": len(held), **bounds})
            actions.append({"add": {"path": self.files[bucket], "stats": stats, **common}})
        return actions


@pytest.fixture
def history(tmp_path: Path) -> History:
    """Two appends into buckets 1 and 2, as versions 1 and 2."""
    history = History(tmp_path)
    history.do("writer-0", "append", 1)
    history.do("writer-1", "append", 2)
    return history


def totals(found: Found) -> tuple[int, int, int, list[str]]:
    return found.lost, found.duplicated, found.unserializable, found.problems


CLEAN = (0, 0, 0, [])


def test_a_right_history_has_no_problem_and_its_figures(history: History) -> None:
    for kind in ("write", "delete rows", "update rows", "merge", "alter"):
        history.do("job-0", kind)
    history.write("job-0", {"conflict": "attempt 1 lost"})
    history.write("job-0", {"log": "resuming an earlier try: 1 file looked at"})
    history.do("writer-0", "update")
    piece = history.begin("job-0", "optimize")
    history.done("job-0", piece, history.optimize())
    history.log[max(history.log) + 1] = [{"commitInfo": {"operation": "VACUUM START"}}]
    history.do("writer-1", "delete", 2)
    found = history.check()
    assert totals(found) == CLEAN
    assert (found.commits, found.job_commits, found.conflicts, found.job_conflicts, found.resumed) == (11, 5, 1, 1, 1)
    assert found.max_over_min == 1.0


def test_a_merge_updates_each_row_that_has_its_digits_and_inserts_the_others() -> None:
    rows: Rows = {7000: (1, 3), 9000: (2, 3), 7001: (0, 4)}
    apply(rows, {"kind": "merge", "bucket": 3, "by": 3, "ids": [5000, 5001]})
    assert rows == {7000: (10_001, 3), 9000: (10_002, 3), 7001: (0, 4), 5001: (7, 3)}


def lost(history: History) -> None:
    history.done("writer-0", history.begin("writer-0", "append"), 2)


def lost_at_the_end(history: History) -> None:
    history.done("writer-0", history.begin("writer-0", "append"), 3)


def already_done_and_not_there(history: History) -> None:
    history.done("writer-0", history.begin("writer-0", "append"), None, "already_done")


def already_done_as_another_version(history: History) -> None:
    piece = history.begin("writer-0", "append")
    history.done("writer-0", piece, history.commit("writer-0", piece) - 1, "already_done")


def lost_optimize(history: History) -> None:
    history.done("job-0", history.begin("job-0", "optimize"), 2)


@pytest.mark.parametrize(
    "damage", [lost, lost_at_the_end, already_done_and_not_there, already_done_as_another_version, lost_optimize]
)
def test_an_acknowledged_commit_that_is_not_there_is_lost(history: History, damage: Callable[[History], None]) -> None:
    damage(history)
    assert totals(history.check()) == (1, 0, 0, [])


def test_work_that_was_there_to_do_and_was_acknowledged_as_nothing_is_lost(history: History) -> None:
    history.done("job-0", history.begin("job-0", "update rows", 3), 2, "nothing_to_do")
    assert totals(history.check()) == CLEAN
    history.done("job-0", history.begin("job-0", "update rows", 1), 2, "nothing_to_do")
    found = history.check()
    assert (found.lost, found.problems) == (1, ["job-0 had something to do as its piece 1 at version 2"])


@pytest.mark.parametrize("is_acknowledged", [True, False])
def test_a_commit_that_is_there_twice_is_doubled(history: History, is_acknowledged: bool) -> None:
    piece = history.begin("writer-0", "append", 3)
    version = history.commit("writer-0", piece)
    if is_acknowledged:
        history.done("writer-0", piece, version)
    assert totals(history.check()) == CLEAN
    history.commit("writer-0", piece)
    assert totals(history.check()) == (0, 1, 0, [])


def test_work_that_was_not_acknowledged_may_be_there_once_or_not_at_all(history: History) -> None:
    history.begin("writer-0", "append")
    history.commit("writer-1", history.begin("writer-1", "append"))
    assert totals(history.check()) == CLEAN


def test_an_update_of_rows_that_another_commit_has_changed_is_unserializable(history: History) -> None:
    history.do("writer-0", "update", 1)
    before = dict(history.rows)
    history.do("writer-1", "update", 1)
    # As if it had not seen the update before, although nothing of it is left in the end.
    history.commit("writer-0", history.begin("writer-0", "update", 1), rows={**before, **_incremented(before)})
    history.do("writer-1", "delete", 1)
    found = history.check()
    assert found.unserializable == 1
    assert [problem[:9] for problem in found.problems] == ["version 5"]


def _incremented(rows: Rows) -> Rows:
    return {each: (n + 1, bucket) for each, (n, bucket) in rows.items() if bucket == 1}


def test_an_append_that_a_later_delete_of_its_bucket_has_not_seen_is_unserializable(history: History) -> None:
    before = dict(history.rows)
    history.commit("writer-0", history.begin("writer-0", "delete", 1), rows=before)
    assert history.check().unserializable == 1


def test_a_change_that_did_nothing_is_unserializable_although_a_later_one_did_the_same(history: History) -> None:
    piece = history.begin("writer-0", "delete", 1)
    history.log[3] = [{"txn": {"appId": "writer-0", "version": piece["piece"] + 1}}]
    history.do("writer-1", "delete", 1)
    assert history.check().problems == ["version 3 has 5 rows in bucket 1, and a serial replay 0, or others"]


@pytest.mark.parametrize(("place", "n"), [(0, -1), (4, 1), (2, None)])
def test_one_row_that_is_wrong_for_one_version_is_unserializable(history: History, place: int, n: int | None) -> None:
    piece = history.begin("writer-0", "append", 3)
    right = dict.fromkeys(piece["ids"], (0, 3))
    wrong = right | ({} if n is None else {piece["ids"][place]: (n, 3)})
    if n is None:
        del wrong[piece["ids"][place]]
    history.commit("writer-0", piece, rows=history.rows | wrong)
    history.do("writer-1", "delete", 3)
    assert [problem[:9] for problem in history.check().problems] == ["version 3"]


def test_rows_that_a_deletion_vector_deletes_do_not_count(history: History) -> None:
    missing_vector(history)
    history.files[-1] = VECTOR_FILE
    assert totals(history.check()) == CLEAN


def test_rows_other_than_those_of_the_replay_are_unserializable(history: History) -> None:
    one = next(iter(history.rows))
    history.rows[one] = (99, 1)
    found = history.check()
    assert (found.unserializable, found.problems) == (1, [f"1 rows are not those of a serial replay: [{one}]"])


def gap(history: History) -> str:
    history.do("writer-0", "append", 3)
    history.do("writer-0", "append", 4)
    actions = history.log[3]
    history.log |= {5: history.log.pop(4), 4: actions}
    del history.log[3]
    history.write("writer-0", {"done": 1, "status": "committed", "version": 4})
    history.write("writer-0", {"done": 2, "status": "committed", "version": 5})
    return "the versions have gaps: [3]"


def missing_file(history: History) -> str:
    return f"1 live files are missing: ['{history.files.pop(2)}']"


def missing_vector(history: History) -> str:
    add = history.add(1)
    stats = json.loads(add["stats"])
    add |= {"deletionVector": VECTOR, "stats": json.dumps(stats | {"numRecords": 6})}
    return f"1 live files are missing: ['{VECTOR_FILE}']"


def stranger(history: History) -> str:
    history.log[3] = [{"txn": {"appId": "writer-7", "version": 1}}]
    return "version 3 is no commit of a piece of work: [('writer-7', 0)]"


def never_begun(history: History) -> str:
    history.log[3] = [{"txn": {"appId": "writer-0", "version": 9}}]
    return "version 3 is no commit of a piece of work: [('writer-0', 8)]"


def without_a_name(history: History) -> str:
    history.log[3] = [{"commitInfo": {"operation": "WRITE"}}, {"metaData": {}}]
    return "version 3 is no commit of a piece of work: []"


def optimize_that_changes_data(history: History) -> str:
    history.optimize(data_change=True)
    return "version 3 is no commit of a piece of work: []"


def written_again(history: History) -> str:
    history.log[2] += [{"commitInfo": {}}, {"txn": {"appId": "writer-0", "version": 2}}]
    return "version 2 is no commit of a piece of work: [('writer-1', 0), ('writer-0', 1)]"


def out_of_order(history: History) -> str:
    first, second = history.begin("writer-0", "append", 3), history.begin("writer-0", "append", 4)
    history.commit("writer-0", second)
    history.commit("writer-0", first)
    return "version 4 is out of order: writer-0 had done its piece 2 before"


def removed_twice(history: History) -> str:
    path = history.files[1]
    history.do("writer-0", "delete", 1)
    history.log[history.do("writer-1", "append", 3)].append({"remove": {"path": path}})
    return f"version 4 removes a file that is not live: {path}"


def added_twice(history: History) -> str:
    version = history.do("writer-0", "append", 2)
    history.log[version] = [each for each in history.log[version] if "remove" not in each]
    history.add(version)["path"] = history.files[2] = history.add(2)["path"]
    return f"version 3 adds a file that is live: {history.files[2]}"


def alteration_lost(history: History) -> str:
    history.log[history.do("job-0", "alter")][-1] = {"metaData": {"configuration": {}}}
    return "version 3 has not the metadata of its piece"


def metadata_of_a_write(history: History) -> str:
    history.log[history.do("job-0", "write", 3)].append({"metaData": {"configuration": {}}})
    return "version 3 has not the metadata of its piece"


def idle_and_there(history: History) -> str:
    piece = history.begin("job-0", "merge", 3)
    history.done("job-0", piece, 2, "nothing_to_do")
    history.commit("job-0", piece)
    return "job-0 had nothing to do as its piece 0, which is version 3"


@pytest.mark.parametrize(
    "damage",
    [
        gap,
        missing_file,
        missing_vector,
        stranger,
        never_begun,
        without_a_name,
        optimize_that_changes_data,
        written_again,
        out_of_order,
        removed_twice,
        added_twice,
        alteration_lost,
        metadata_of_a_write,
        idle_and_there,
    ],
)
def test_a_log_that_is_not_of_the_journals_has_a_problem(history: History, damage: Callable[[History], str]) -> None:
    assert damage(history) in history.check().problems


def test_a_checkpoint_holds_what_its_version_holds(history: History) -> None:
    assert totals(history.check({1: history.checkpoint(1), 2: history.checkpoint(2)})) == CLEAN
    sentence = "the checkpoint of version {} does not hold the {} of its version"
    expected = [sentence.format(version, what) for version in (1, 2) for what in ("live files", "transactions")]
    assert history.check({1: history.checkpoint(2), 2: history.checkpoint(1)}).problems == expected


def test_a_cleaned_version_is_read_from_the_archive_and_one_written_again_counts_too(tmp_path: Path) -> None:
    names = [f"{version:020}.json" for version in range(3)]
    lines = [json.dumps({"txn": {"appId": "a", "version": version}}).encode() + b"\n" for version in range(4)]
    (tmp_path / names[0]).write_bytes(lines[0])
    (tmp_path / names[1]).write_bytes(lines[1])
    log = read_log(tmp_path, {names[1]: lines[1], names[2]: lines[2]})
    assert [[each["txn"]["version"] for each in log[version]] for version in sorted(log)] == [[0], [1], [2]]
    again = read_log(tmp_path, {names[1]: lines[3], names[2]: lines[2]})
    assert [each["txn"]["version"] for each in again[1]] == [1, 3]
