"""What one listing from a known version on tells."""

from __future__ import annotations

import pytest

from airflow_txlog.engine.log.tail import list_tail
from airflow_txlog.errors import LogGap
from tests.engine.log.test_log_segment import classic, commit, commits, log_of, part, v2


def test_the_commits_after_a_version_are_contiguous() -> None:
    store = log_of(*commits(*range(8)), classic(5), "x")
    tail = list_tail(store, 5)
    assert [info.path for info in tail.after(5)] == [f"_delta_log/{commit(v)}" for v in (6, 7)]
    assert tail.commits[5].path == f"_delta_log/{commit(5)}"
    assert list_tail(store, 7).after(7) == []
    assert store.requests == 2


@pytest.mark.parametrize("versions", [(0, 1, 3), (0, 1, 2, 4), (3,)])
def test_a_commit_cleaned_away_after_our_version_is_a_gap(versions: tuple[int, ...]) -> None:
    with pytest.raises(LogGap) as caught:
        list_tail(log_of(*commits(*versions)), 1).after(1)
    assert caught.value.version == min(set(range(2, 5)) - set(versions))


@pytest.mark.parametrize("name", [classic(6), part(6, 1, 2), v2(6)])
def test_a_checkpoint_beyond_the_last_commit_is_a_gap(name: str) -> None:
    tail = list_tail(log_of(*commits(0, 1, 2, 3), name), 3)
    assert tail.latest == 6
    with pytest.raises(LogGap):
        tail.after(3)


def test_an_empty_checkpoint_and_names_of_others_say_nothing() -> None:
    store = log_of(*commits(0, 1), classic(7), f"{9:020d}.crc", "_last_checkpoint", empty=[classic(7)])
    assert list_tail(store, 1).latest == 1
    assert list_tail(store, 2).latest == 1
    assert list_tail(store, 2).after(1) == []


def test_a_gap_is_believed_when_it_is_seen_twice() -> None:
    store = log_of(*commits(*range(8)))
    store.hidden_once = {commit(5)}
    assert len(list_tail(store, 3).after(3)) == 4
    assert store.requests == 2
