"""A schedule: from a seed to a table, its actors, their run, and the judgement."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from airflow_txlog import errors
from airflow_txlog.engine import Table
from airflow_txlog.engine.commit.loop import CommitPolicy
from tests.engine.simulation.actors import SCHEMA, Theatre, dropper, raw_files, reader, stranger, task, upkeep
from tests.engine.simulation.checker import check_snapshot, judge
from tests.engine.simulation.clock import World
from tests.engine.simulation.model import State, history
from tests.engine.simulation.operations import Append, draw_operation
from tests.engine.simulation.rows import DAYS, Rows
from tests.engine.simulation.scheduler import Scheduler
from tests.engine.simulation.store import Faults, SimulatedStore

TRACE_LINES = 150
DROPPED = 0.06


@dataclass(frozen=True, slots=True)
class Played:
    """What a schedule came to."""

    seed: int
    theatre: Theatre
    commits: dict[int, bytes]
    dropped: bool


def play(seed: int) -> Played:
    """Run one schedule and judge it. A failure carries the seed and the last calls of the store."""
    chance = random.Random(seed)
    theatre = _theatre(seed, chance)
    try:
        if chance.random() < DROPPED:
            _play_dropped(theatre)
            return Played(seed, theatre, dict(theatre.store.commits), True)
        actors = _draw_actors(theatre)
        theatre.store.faults = _draw_faults(chance)
        _run(theatre, actors)
        states = judge(theatre)
        _check_what_is_left(theatre, states)
        return Played(seed, theatre, dict(theatre.store.commits), False)
    except BaseException as failure:
        failure.add_note("\n".join(theatre.store.trace[-TRACE_LINES:]))
        failure.add_note(f"TXLOG_SIMULATION_SEED={seed} pytest tests/engine/simulation replays it")
        raise
    finally:
        theatre.store.scheduler = None
        theatre.store.forget()


def _theatre(seed: int, chance: random.Random) -> Theatre:
    world = World(random.Random(chance.random()))
    store = SimulatedStore(f"memory://simulation-{seed}", world)
    store.chance = random.Random(chance.random())
    scheduler = Scheduler(random.Random(chance.random()))
    policy = CommitPolicy(
        max_attempts=chance.choice([2, 1000, 1000]), unknown_deadline_s=chance.choice([0.0, 0.05, 30.0, 30.0])
    )
    return Theatre(store, world, Rows(store.root, chance), chance, policy, scheduler)


def _make_table(theatre: Theatre, properties: dict[str, str]) -> None:
    chance = theatre.chance
    table = Table.create(theatre.store, SCHEMA, ["day"], properties, clock=theatre.world)
    tx = table.begin()
    for number in range(chance.randint(0, 4)):
        ids = sorted(chance.randrange(20) for _ in range(chance.randint(1, 3)))
        tx.add(**theatre.rows.new_file(f"initial{number}", chance.choice(DAYS), ids))
    tx.commit("WRITE", record_empty=True)


_FEATURES = [
    ("delta.enableInCommitTimestamps", "true", 0.3),
    ("delta.enableRowTracking", "true", 0.3),
    ("delta.enableDeletionVectors", "true", 0.5),
    ("delta.checkpointPolicy", "v2", 0.3),
]


def _draw_actors(theatre: Theatre) -> list[Callable[[], None]]:
    chance = theatre.chance
    properties = {
        "delta.isolationLevel": chance.choice(["Serializable", "WriteSerializable"]),
        "delta.checkpointInterval": str(chance.choice([2, 3, 1000])),
    }
    for name, value, share in _FEATURES:
        if chance.random() < share:
            properties[name] = value
    _make_table(theatre, properties)
    calm = chance.random() < 0.5
    actors = []
    for number in range(chance.randint(2, 5)):
        tries = chance.randint(1, 2)
        actors.append(task(theatre, f"w{number}", draw_operation(chance, calm), None, tries))
    if chance.random() < 0.4:
        operation = draw_operation(chance, True)
        actors += [task(theatre, f"c{copy}", operation, "task", 4) for copy in range(2)]
    if chance.random() < 0.5:
        actors.append(reader(theatre, 3))
    if chance.random() < 0.4:
        actors.append(upkeep(theatre, 2, cleans=chance.random() < 0.5))
    if chance.random() < 0.4:
        actors.append(stranger(theatre, "s", chance.randint(1, 2), vectors="delta.enableDeletionVectors" in properties))
    return actors


def _draw_faults(chance: random.Random) -> Faults:
    torn = chance.random() < 0.3
    if chance.random() < 0.4:
        return Faults(torn_listings=torn)
    return Faults(
        before=chance.choice([0.0, 0.01, 0.05]),
        after=chance.choice([0.0, 0.01, 0.05]),
        late=chance.choice([0.0, 0.0, 0.3]),
        death=chance.choice([0.0, 0.01]),
        torn_listings=torn,
    )


def _run(theatre: Theatre, actors: list[Callable[[], None]]) -> None:
    theatre.store.scheduler = theatre.scheduler
    theatre.world.wait = theatre.scheduler.step
    theatre.scheduler.run(actors)
    theatre.store.scheduler = None
    theatre.store.land_the_late()


def _check_what_is_left(theatre: Theatre, states: list[State]) -> None:
    """After the last actor the table opens at its newest version, and at every version that has not been cleaned."""
    table = theatre.table()
    head = table.snapshot()
    assert head.version == len(states) - 1, "the newest version does not open"
    check_snapshot(head, states, theatre)
    for version in theatre.chance.sample(range(len(states)), min(3, len(states))):
        try:
            check_snapshot(table.snapshot(version), states, theatre)
        except errors.VersionNotFound:
            assert len([path for path in raw_files(theatre.store) if path.endswith(".json")]) < len(states)


def _play_dropped(theatre: Theatre) -> None:
    """The table is dropped and made again: nothing that was planned on the old one may be in the new one."""
    chance = theatre.chance
    _make_table(theatre, {"delta.checkpointInterval": "1000"})
    first = history(theatre.store.commits, theatre.store.root)[0].metadata["id"]
    actors = [dropper(theatre)]
    for number in range(3):
        ids = (chance.randrange(20),)
        actors.append(task(theatre, f"w{number}", Append(chance.choice(DAYS), ids), None, 3))
    actors.append(reader(theatre, 4))
    rate = chance.choice([0.0, 0.1])
    theatre.store.faults = Faults(before=rate, after=rate)
    _run(theatre, actors)
    states = history(theatre.store.commits, theatre.store.root)
    second = states[0].metadata["id"]
    assert second != first
    tries = {each.marker: each for each in theatre.tries}
    for state in states[1:]:
        assert tries[state.info["userMetadata"]].table_id == second, "a stranger to the table committed"
    for seen in theatre.seen:
        snapshot = seen.snapshot
        # A listing from before and commits from after are told apart by nobody.
        is_listed = snapshot.commit_file is not None and (
            snapshot.commit_file.modified_ms == theatre.store.times_ms.get(snapshot.version)
        )
        if snapshot.metadata.id == second and is_listed:
            check_snapshot(seen.snapshot, states, theatre)
