"""Who lives in a schedule: tasks that write through the engine, other engines, readers, upkeep, and one who drops."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_txlog import errors
from airflow_txlog.engine import Table
from airflow_txlog.engine.commit.loop import CommitPolicy
from airflow_txlog.engine.log.names import LAST_CHECKPOINT, LOG_DIRECTORY, LogKind, commit_name, parse_name
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.storage import MemoryStore
from tests.engine.simulation import model
from tests.engine.simulation.clock import SkewedClock, World
from tests.engine.simulation.operations import Operation
from tests.engine.simulation.rows import DAYS, DataFile, Rows
from tests.engine.simulation.scheduler import Died, Scheduler
from tests.engine.simulation.store import SimulatedStore, Unanswered

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


@dataclass(slots=True)
class Try:
    """One transaction of a task, and what its author was told."""

    marker: str
    """Stands in commitInfo, so that the checker knows whose commit it reads."""
    operation: Operation
    app_id: str | None
    status: str = "died"
    """acknowledged; nothing: there was nothing to record; refused: nothing of it may be in the log; unknown; died."""
    read_version: int | None = None
    table_id: str | None = None
    version: int | None = None
    error: BaseException | None = None


@dataclass(slots=True)
class Seen:
    """A snapshot that a reader got, and the newest version when it asked."""

    snapshot: Snapshot
    floor: int | None


@dataclass
class Theatre:
    """What the actors of one schedule share."""

    store: SimulatedStore
    world: World
    rows: Rows
    chance: random.Random
    policy: CommitPolicy
    scheduler: Scheduler
    tries: list[Try] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    reader_errors: list[errors.TxlogError] = field(default_factory=list)

    def table(self) -> Table:
        """The table as a process of its own sees it: its own clock, and nothing remembered."""
        return Table(self.store, clock=SkewedClock(self.world, self.chance.randint(-3000, 3000)), policy=self.policy)

    def idle(self, most: int) -> None:
        for _ in range(self.chance.randrange(most + 1)):
            self.scheduler.step()


def task(theatre: Theatre, name: str, operation: Operation, app_id: str | None, tries: int) -> Callable[[], None]:
    """Runs the operation until it is done, or no try is left; a task with an application id may always try again."""

    def run() -> None:
        table = theatre.table()
        for number in range(tries):
            attempt = Try(f"{name}.{number}", operation, app_id)
            theatre.tries.append(attempt)
            try:
                _try_once(theatre, table, attempt)
            except Died:
                # Its scheduler starts it again, elsewhere, only if a second run can find out about the first.
                if app_id is None:
                    raise
                table = theatre.table()
            finally:
                theatre.store.end_commit(theatre.scheduler.current)
            if attempt.status in ("acknowledged", "nothing") or (attempt.status == "unknown" and app_id is None):
                return

    return run


def _try_once(theatre: Theatre, table: Table, attempt: Try) -> None:
    try:
        tx = table.begin()
        assert tx.snapshot is not None
        attempt.read_version, attempt.table_id = tx.read_version, tx.snapshot.metadata.id
        if attempt.app_id is not None:
            if tx.read_application(attempt.app_id) is not None:
                attempt.status = "nothing"
                return
            tx.set_application(attempt.app_id, 1)
        attempt.operation.perform(tx, theatre.rows, attempt.marker)
        theatre.idle(3)
        theatre.store.committing[theatre.scheduler.current or 0] = tx.read_version
        version = tx.commit(attempt.operation.name, user_metadata=attempt.marker)
        assert tx.outcome is not None
        attempt.status = "acknowledged" if tx.outcome.committed else "nothing"
        attempt.version = version if tx.outcome.committed else None
    except errors.CommitStateUnknown as error:
        attempt.status, attempt.error = "unknown", error
    except (errors.CorruptTable, errors.UnsupportedFeature) as error:
        # Nothing in a schedule breaks the protocol. A gap is what two torn listings in a row look like.
        if not isinstance(error, errors.LogGap):
            raise
        attempt.status, attempt.error = "refused", error
    except (errors.TxlogError, Unanswered) as error:
        attempt.status, attempt.error = "refused", error


def reader(theatre: Theatre, looks: int) -> Callable[[], None]:
    """Opens, refreshes and travels back; what it saw is judged afterwards."""

    def run() -> None:
        table = theatre.table()
        held: Snapshot | None = None
        for _ in range(looks):
            floor = max(theatre.store.commits, default=None)
            how = theatre.chance.choice(["open", "refresh", "refresh", "version"])
            try:
                if how == "version" and floor is not None:
                    theatre.seen.append(Seen(table.snapshot(theatre.chance.randint(0, floor)), None))
                elif how == "refresh" and held is not None:
                    held = held.refresh()
                    theatre.seen.append(Seen(held, floor))
                else:
                    held = table.snapshot()
                    theatre.seen.append(Seen(held, floor))
            except errors.TxlogError as error:
                theatre.reader_errors.append(error)
            except Unanswered:
                continue
            theatre.idle(4)

    return run


def upkeep(theatre: Theatre, rounds: int, cleans: bool) -> Callable[[], None]:
    """Checkpoints now and then, spoils the hint, and (`cleans`) takes the commits before the newest checkpoint."""

    def run() -> None:
        table = theatre.table()
        for _ in range(rounds):
            theatre.idle(6)
            try:
                if theatre.chance.random() < 0.2:
                    theatre.store.put(
                        LAST_CHECKPOINT, theatre.chance.choice([b"", b'{"version":1}', b'{"version":99}'])
                    )
                else:
                    table.checkpoint()
                    if cleans:
                        _clean_log(theatre)
            except (Unanswered, errors.LogGap, errors.TableNotFound):
                continue

    return run


def _clean_log(theatre: Theatre) -> None:
    """What log cleanup does once the retention has passed: commits before the newest checkpoint go, oldest first.

    It never takes a commit that a writer may be putting at that moment: a retention is longer than a put.
    """
    store = theatre.store
    names = [parse_name(info.path) for info in store.list(LOG_DIRECTORY)]
    checkpoints = [name.version for name in names if name and name.kind is LogKind.CLASSIC_CHECKPOINT]
    for name in names:
        if name is None or name.kind is not LogKind.COMMIT or name.version >= max(checkpoints, default=0):
            continue
        if all(version >= name.version for version in store.committing.values()):
            store.delete(commit_name(name.version))


def dropper(theatre: Theatre, schema: pa.Schema = SCHEMA) -> Callable[[], None]:
    """Drops the table between two puts of others, and makes another in its place."""

    def run() -> None:
        theatre.store.sheltered.add(theatre.scheduler.current)
        theatre.idle(30)
        while theatre.store.about_to_put:
            theatre.scheduler.step()
        theatre.store.forget()
        theatre.idle(3)
        Table.create(theatre.store, schema, ["day"], clock=SkewedClock(theatre.world, 0))

    return run


# --- another engine -------------------------------------------------------------------------------------------------


def stranger(theatre: Theatre, name: str, commits: int, vectors: bool) -> Callable[[], None]:
    """Another engine: correct, but with manners of its own. It computes its commit anew for every version it tries."""

    def run() -> None:
        store = theatre.store
        for number in range(commits):
            theatre.idle(4)
            while True:
                states = model.history(store.commits, store.root)
                marker = f"{name}-{number}"
                if any(state.info.get("userMetadata") == marker for state in states):
                    break
                data = _strange_commit(theatre, states, marker, vectors)
                try:
                    store.put_if_absent(commit_name(len(states)), data)
                except Unanswered:
                    continue

    return run


def _strange_commit(theatre: Theatre, states: list[model.State], marker: str, vectors: bool) -> bytes:
    chance, head = theatre.chance, states[-1]
    files = theatre.rows.of_state(head)
    # What a table forbids, another engine does not do either.
    removing = head.properties.get("delta.appendOnly") != "true"
    kinds = ["append", "append", "flagged append", "harmless property", "nothing known"]
    if files and removing:
        kinds += ["remove", "restore", "move", "move", "claimed move"] + (["vector"] * 4 if vectors else [])
    kind = chance.choice(kinds)
    info: dict[str, Any] = {"operation": "WRITE", "userMetadata": marker}
    actions: list[dict[str, Any]] = []
    if "append" in kind:
        counted_only = chance.random() < 0.5
        fields = theatre.rows.new_file(marker, chance.choice(DAYS), [chance.randrange(20)], counted_only=counted_only)
        actions.append({"add": _add_of(theatre, fields)})
        if kind == "flagged append":
            info["isBlindAppend"] = True
    elif kind == "harmless property":
        configuration = {**head.properties, "delta.checkpointPolicy": "classic"}
        actions.append({"metaData": {**head.metadata, "configuration": configuration}})
    elif kind == "nothing known":
        actions.append({"someday": {"an action": "of the future"}})
    elif kind == "remove":
        actions.append({"remove": _remove_of(theatre, chance.choice(files))})
    elif kind == "restore":
        actions += _restore(theatre, files, states)
    elif kind == "move":
        actions += _moved(theatre, chance.choice(files), marker, [])
    elif kind == "claimed move":
        # It says that no row changed, and brings one: dataChange is a claim that anybody can make.
        actions += _moved(theatre, chance.choice(files), marker, [chance.randrange(20)])
    elif kind == "vector":
        actions += _masked(theatre, chance.choice(files))
    return _encoded(theatre, head, info, actions)


def _add_of(theatre: Theatre, fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "path": fields["path"],
        "partitionValues": fields["partition_values"],
        "size": fields["size"],
        "stats": fields["stats"],
        "modificationTime": theatre.world.now_ms(),
        "dataChange": True,
    }


def _remove_of(theatre: Theatre, file: DataFile) -> dict[str, Any]:
    kept = ("partitionValues", "size", "deletionVector", "baseRowId", "defaultRowCommitVersion")
    path = file.action["path"]
    if theatre.chance.random() < 0.3:
        path = f"{theatre.store.root}/{path}"
    removed = {name: file.action[name] for name in kept if name in file.action}
    return {"path": path, "deletionTimestamp": theatre.world.now_ms(), "dataChange": True} | removed


def _masked(theatre: Theatre, file: DataFile) -> list[dict[str, Any]]:
    """A row of the file is deleted by a deletion vector: the file leaves, and comes back with it."""
    remove = {"remove": _remove_of(theatre, file)}
    if len(file.ids) < 2:
        return [remove]
    vector = theatre.rows.new_vector(file, [theatre.chance.choice(file.ids)])
    stats = {**json.loads(file.action["stats"]), "tightBounds": False}
    return [remove, {"add": {**file.action, "deletionVector": vector, "stats": json.dumps(stats)}}]


def _moved(theatre: Theatre, file: DataFile, marker: str, more: list[int]) -> list[dict[str, Any]]:
    """A compaction of one file, and `more` rows that it brings besides."""
    fields = theatre.rows.new_file(marker, file.day, [*file.ids, *more])
    return [
        {"remove": {**_remove_of(theatre, file), "dataChange": False}},
        {"add": {**_add_of(theatre, fields), "dataChange": False}},
    ]


def _restore(theatre: Theatre, files: list[DataFile], states: list[model.State]) -> list[dict[str, Any]]:
    """The files of an earlier version: those that left come back, those that came since leave."""
    earlier = theatre.chance.choice(states)
    now = {file.key: file for file in files}
    actions: list[dict[str, Any]] = [
        {"remove": _remove_of(theatre, file)} for key, file in now.items() if key not in earlier.files
    ]
    actions += [{"add": {**add, "dataChange": True}} for key, add in earlier.files.items() if key not in now]
    return actions


def _encoded(theatre: Theatre, head: model.State, info: dict[str, Any], actions: list[dict[str, Any]]) -> bytes:
    if head.properties.get("delta.enableInCommitTimestamps") == "true":
        info = {"inCommitTimestamp": max(theatre.world.now_ms(), head.info["inCommitTimestamp"] + 1)} | info
    if "delta.rowTracking" in head.domains:
        actions = _numbered(head, actions)
    return "\n".join(json.dumps(line) for line in [*actions, {"commitInfo": info}]).encode()


def _numbered(head: model.State, actions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Fresh files get fresh row ids."""
    mark = head.row_id_high_water
    for action in actions:
        add = action.get("add")
        if add is not None and "baseRowId" not in add:
            add |= {"baseRowId": mark + 1, "defaultRowCommitVersion": head.version + 1}
            mark += int(json.loads(add["stats"])["numRecords"])
    if mark == head.row_id_high_water:
        return actions
    configuration = json.dumps({"rowIdHighWaterMark": mark})
    domain = {"domain": "delta.rowTracking", "configuration": configuration, "removed": False}
    return [*actions, {"domainMetadata": domain}]


def raw_files(store: SimulatedStore) -> dict[str, bytes]:
    """Everything in the store, by path, outside of any schedule."""
    return {info.path: MemoryStore.read(store, info.path) for info in MemoryStore.walk(store)}
