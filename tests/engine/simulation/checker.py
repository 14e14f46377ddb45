"""The judgement of a schedule: what is in the log, what the authors were told, and what the readers saw.

Every commit must be what its operation does when it runs alone on the state where the commit stands. At Serializable
that is the version before it; at WriteSerializable blind appends that landed since it read may stand after it.
"""

from __future__ import annotations

import functools
import json
from collections import Counter

from airflow_txlog import errors
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from tests.engine.simulation.actors import Theatre, Try
from tests.engine.simulation.model import Key, State, history, key_of
from tests.engine.simulation.operations import AddColumn, Compact, CountUp, SetProperty
from tests.engine.simulation.rows import Rows


def judge(theatre: Theatre) -> list[State]:
    """Raises AssertionError for the first thing that is wrong; else the versions of the table."""
    states = history(theatre.store.commits, theatre.store.root)
    tries = {each.marker: each for each in theatre.tries}
    landed = _landed(states, tries)
    _check_what_was_told(theatre, states, landed)
    for version, author in landed.items():
        _check_serial(theatre.rows, states, version, author)
    for state in states[1:]:
        before = states[state.version - 1]
        _check_metadata_at(before, state, tries.get(state.info.get("userMetadata", "")), states)
        _check_timestamp(before, state)
    _check_row_ids(states)
    for seen in theatre.seen:
        assert seen.floor is None or seen.snapshot.version >= seen.floor, "a reader was given an old version"
        check_snapshot(seen.snapshot, states, theatre)
    for error in theatre.reader_errors:
        assert not isinstance(error, errors.CorruptTable) or (
            isinstance(error, errors.LogGap) and theatre.store.faults.torn_listings
        ), f"a reader was told that a sound table is corrupt: {error!r}"
        assert isinstance(error, errors.CorruptTable | errors.VersionNotFound), f"a reader was refused: {error!r}"
    return states


def _landed(states: list[State], tries: dict[str, Try]) -> dict[int, Try]:
    """The tries that are in the log, by version."""
    landed: dict[int, Try] = {}
    for state in states:
        author = tries.get(state.info.get("userMetadata", ""))
        if author is not None:
            assert author not in landed.values(), f"{author.marker} is in the log twice"
            landed[state.version] = author
    return landed


def _check_what_was_told(theatre: Theatre, states: list[State], landed: dict[int, Try]) -> None:
    versions = {author.marker: version for version, author in landed.items()}
    for each in theatre.tries:
        if each.status == "acknowledged":
            assert versions.get(each.marker) == each.version, f"{each.marker} was acknowledged and is not there"
        elif each.status in ("refused", "nothing"):
            assert each.marker not in versions, f"{each.marker} was {each.status} and is there: {each.error!r}"
        if each.status == "nothing" and each.app_id is None:
            assert each.read_version is not None
            decision = each.operation.decide(theatre.rows.of_state(states[each.read_version]))
            assert not decision.removes, f"{each.marker} had something to do"
            assert not decision.adds, f"{each.marker} had something to do"
    applied = Counter(author.app_id for author in landed.values() if author.app_id is not None)
    assert all(count == 1 for count in applied.values()), f"an application transaction is there twice: {applied}"


def _check_serial(rows: Rows, states: list[State], version: int, author: Try) -> None:
    before, state = states[version - 1], states[version]
    assert author.read_version is not None
    operation = author.operation
    assert state.info["isBlindAppend"] is not operation.reads, f"{author.marker} tells a wrong isBlindAppend"
    removed = [key_of(remove, rows.root) for remove in state.removes]
    assert set(removed) <= before.files.keys(), f"{author.marker} removed a file that was not live"
    assert len(removed) == len(set(removed))
    added = Counter(
        (add["partitionValues"]["day"], each) for add in state.adds for each in rows.of_key(key_of(add, rows.root))
    )
    if isinstance(operation, SetProperty):
        expected = {**before.metadata, "configuration": {**before.properties, operation.key: operation.value}}
        assert state.metadata == expected, f"{author.marker} lost a change of the metadata"
    elif isinstance(operation, AddColumn):
        expected = {**before.metadata, "schemaString": operation.schema_after(before.metadata["schemaString"])}
        assert state.metadata == expected, f"{author.marker} lost a change of the metadata"
    elif isinstance(operation, CountUp):
        known = int(before.domains.get(operation.domain, "0"))
        assert state.domains[operation.domain] == str(known + 1), f"{author.marker} lost an update of the domain"
    elif isinstance(operation, Compact):
        days = {key: before.files[key]["partitionValues"]["day"] for key in removed}
        moved = Counter((day, each) for key, day in days.items() for each in rows.of_key(key))
        assert moved == added, f"{author.marker} changed rows"
    else:
        decision = operation.decide(rows.of_state(_seen_by(author, states, version, rows)))
        assert set(removed) == {file.key for file in decision.removes}, f"{author.marker} is in no serial order: files"
        assert added == decision.rows, f"{author.marker} is in no serial order: rows"


def _seen_by(author: Try, states: list[State], version: int, rows: Rows) -> State:
    before = states[version - 1]
    if states[version].info["isolationLevel"] != "WriteSerializable":
        return before
    assert author.read_version is not None
    later: set[Key] = set()
    for other in states[author.read_version + 1 : version]:
        if other.info.get("isBlindAppend") is True:
            later |= {key_of(add, rows.root) for add in other.adds}
    return State(version=before.version, files={key: add for key, add in before.files.items() if key not in later})


def _check_metadata_at(before: State, state: State, author: Try | None, states: list[State]) -> None:
    if before.properties.get("delta.appendOnly") == "true":
        assert not [remove for remove in state.removes if remove["dataChange"]], "rows left an append-only table"
    if author is not None and (state.adds or state.removes):
        assert author.read_version is not None
        planned_on = states[author.read_version].metadata
        assert planned_on["schemaString"] == before.metadata["schemaString"], "files of another schema were committed"


def _check_timestamp(before: State, state: State) -> None:
    if state.properties.get("delta.enableInCommitTimestamps") == "true":
        assert next(iter(state.info)) == "inCommitTimestamp" or "txnId" not in state.info
        assert state.info["inCommitTimestamp"] > before.info["inCommitTimestamp"], "time went back"


def _check_row_ids(states: list[State]) -> None:
    """A row id is given once; a file that comes back keeps the ids that it had; the mark never falls."""
    given: dict[str, tuple[int, int]] = {}
    for state in states:
        if "delta.rowTracking" not in state.domains:
            continue
        before = states[state.version - 1].row_id_high_water if state.version else -1
        assert state.row_id_high_water >= before, "the row id high-water mark fell"
        for add in state.adds:
            path = add["path"]
            first = add["baseRowId"]
            last = first + int(json.loads(add["stats"])["numRecords"]) - 1
            if path in given:
                assert given[path] == (first, last), f"{path} came back with other row ids"
                continue
            assert first > before, f"{path} has row ids that were given before"
            assert last <= state.row_id_high_water, f"{path} has row ids above the mark"
            assert add["defaultRowCommitVersion"] == state.version
            assert all(last < low or high < first for low, high in given.values()), f"{path} shares row ids"
            given[path] = (first, last)


def check_snapshot(snapshot: Snapshot, states: list[State], theatre: Theatre) -> None:
    """A snapshot is what the naive model says of its version."""
    state = states[snapshot.version]
    assert live_of(snapshot, theatre.store.root) == {
        key: (
            add["size"],
            add["partitionValues"]["day"],
            add.get("stats"),
            add.get("baseRowId"),
            add.get("defaultRowCommitVersion"),
        )
        for key, add in state.files.items()
    }
    assert {name: each.version for name, each in snapshot.state.transactions.items()} == state.transactions
    assert {name: each.configuration for name, each in snapshot.state.domains.items()} == state.domains
    assert snapshot.metadata.id == state.metadata["id"]
    assert dict(snapshot.metadata.configuration) == state.properties
    assert snapshot.metadata.schema_string == state.metadata["schemaString"]
    assert snapshot.protocol.min_writer_version == state.protocol["minWriterVersion"]
    tombstones = {
        key_of(_wire(row), theatre.store.root)
        for row in snapshot.state.tombstones.select(["path", "deletion_vector"]).to_pylist()
    }
    assert tombstones == state.tombstones
    if snapshot.commit_file is not None:
        in_commit_ms = state.info.get("inCommitTimestamp")
        if in_commit_ms is not None:
            assert snapshot.timestamp_ms == in_commit_ms
        else:
            # Each version is a millisecond later than the one before it at least. How much of that shows depends on
            # where the log begins now.
            times_ms = [theatre.store.times_ms[version] for version in range(state.version + 1)]
            adjusted_ms = functools.reduce(lambda before, time_ms: max(before + 1, time_ms), times_ms)
            assert times_ms[-1] <= snapshot.timestamp_ms <= adjusted_ms


def live_of(snapshot: Snapshot, root: str) -> dict[Key, tuple[object, ...]]:
    names = [
        "path",
        "deletion_vector",
        "size",
        "partition_values",
        "stats",
        "base_row_id",
        "default_row_commit_version",
    ]
    found = {}
    for row in snapshot.files().select(names).to_pylist():
        found[key_of(_wire(row), root)] = (
            row["size"],
            dict(row["partition_values"])["day"],
            row["stats"],
            row["base_row_id"],
            row["default_row_commit_version"],
        )
    assert len(found) == snapshot.num_files, "a file is live twice"
    return found


def _wire(row: dict[str, object]) -> dict[str, object]:
    vector = row["deletion_vector"]
    if vector is None:
        return {"path": row["path"]}
    assert isinstance(vector, dict)
    spelled = {
        "storageType": vector["storage_type"],
        "pathOrInlineDv": vector["path_or_inline_dv"],
        "offset": vector["offset"],
    }
    return {"path": row["path"], "deletionVector": spelled}
