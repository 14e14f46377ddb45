"""The conflict scenarios: every case against a real table, the real transaction, the real loop and the real checker.

Each case makes a table with the case's files, begins a transaction, lets the winners' commits land in the log, and
commits. The file is `../shared/reference/conflict_scenarios.json`, or whatever TXLOG_SCENARIOS names.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table, Transaction
from airflow_txlog.engine.commit.attempt import Attempt
from airflow_txlog.engine.commit.conflicts import check_winner
from airflow_txlog.engine.log.actions import (
    Action,
    Add,
    DeletionVector,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    SetTransaction,
)
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.log.wire import decode_commit, encode_commit
from airflow_txlog.engine.store import MemoryStore
from airflow_txlog.engine.table.schema import StructField, StructType
from airflow_txlog.engine.table.types import Primitive

_DEFAULT_FILE = Path(__file__).resolve().parents[4] / "shared" / "reference" / "conflict_scenarios.json"
SCENARIOS_FILE = Path(os.environ.get("TXLOG_SCENARIOS", _DEFAULT_FILE))

# Cases in which one of our two documented refinements lets a commit through that the reference implementation refuses.
# Both are described at the head of airflow_txlog/engine/commit/conflicts.py.
REFINED = {
    "C75": "proved disjoint: the winner's file has v <= 10 by its statistics, and the transaction read v > 10",
}

_EXCEPTIONS = {
    "UnsupportedTableFeatureError": errors.UnsupportedFeature,
    "DuplicateActionsError": errors.DuplicateActions,
    "MetadataAbsentError": errors.MetadataAbsent,
    "AppendOnlyError": errors.AppendOnlyViolation,
}

_TYPES = {
    "string": Primitive.STRING,
    "integer": Primitive.INTEGER,
    "int": Primitive.INTEGER,
    "long": Primitive.LONG,
    "date": Primitive.DATE,
}


def _load(*, row_tracking: bool) -> list[Any]:
    """The cases, those about row tracking apart: the engine refuses to write such tables, so the checker runs alone."""
    if not SCENARIOS_FILE.is_file():
        reason = f"no scenarios at {SCENARIOS_FILE} (set TXLOG_SCENARIOS)"
        return [pytest.param({}, id="none", marks=pytest.mark.skip(reason=reason))]
    scenarios = json.loads(SCENARIOS_FILE.read_text())["scenarios"]
    cases = [case for case in scenarios if ("rowTracking" in case["table"].get("features", [])) is row_tracking]
    return [pytest.param(case, id=case["id"]) for case in cases]


class LostAnswerStore(MemoryStore):
    """A store whose next put-if-absent lands and is answered as a lost race."""

    lose_next_answer = False

    def put_if_absent(self, path: str, data: bytes) -> bool:
        made = super().put_if_absent(path, data)
        if made and self.lose_next_answer:
            self.lose_next_answer = False
            return False
        return made


class Case:
    """One scenario, played."""

    def __init__(self, case: dict[str, Any], clock: Any) -> None:
        self.case = case
        self.clock = clock
        self.current = case["current"]
        self.table_spec = case["table"]
        self.partition_columns = self.table_spec["partition_columns"]
        self.store = LostAnswerStore(f"memory://scenario-{uuid.uuid4().hex}")
        self.absent = self.current.get("read_version") == -1
        self.table = Table(self.store, clock=clock)
        self.read_version = -1
        if not self.absent:
            self._create()

    def _schema(self) -> StructType:
        types = dict.fromkeys(self.partition_columns, "string") | self.table_spec.get("column_types", {})
        fields = [StructField(name, _TYPES[kind]) for name, kind in types.items()]
        return StructType((*fields, StructField("payload", Primitive.STRING)))

    def _create(self) -> None:
        # Version 0 makes the table and version 1 its files: what a transaction does not read is not its business.
        created = {"delta.checkpointInterval": "100000"}
        if "inCommitTimestamp" in self.table_spec.get("features", []):
            created["delta.enableInCommitTimestamps"] = "true"
            self.clock.time_ms = self.current.get("in_commit_timestamp", 1000) - 1000
        self.table.begin_create(self._schema(), self.partition_columns, created).commit("CREATE TABLE")
        properties = {"delta.isolationLevel": self.table_spec["isolation"], **self.table_spec.get("properties", {})}
        metadata = self.table.snapshot().metadata
        tx = self.table.begin()
        features = [*self.table_spec.get("features", [])]
        if re.search(r'"dv": "', json.dumps(self.case)) and "deletionVectors" not in features:
            features.append("deletionVectors")
        if features:
            tx.set_protocol(_with_features(Protocol(min_reader_version=1, min_writer_version=2), features))
        tx.set_metadata(msgspec.structs.replace(metadata, configuration=metadata.configuration | properties))
        tx.add([_add(spec) for spec in self.case["initial_files"]])
        self.read_version = tx.commit("SET TBLPROPERTIES")
        if "in_commit_timestamp" in self.current:
            self.clock.time_ms = self.current["in_commit_timestamp"]

    def begin(self) -> Transaction:
        return Transaction(self.store, None, clock=self.clock) if self.absent else self.table.begin()

    def read(self, tx: Transaction) -> None:
        for read in self.current["reads"]:
            match read["kind"]:
                case "predicate":
                    tx.read(_sql(read["expr"]))
                case "whole_table":
                    tx.read_whole_table()
                case "app_id":
                    tx.read_application(read["app_id"])
                case "partitions_of":
                    tx.read_partitions(read["partition_values"])
                case "files":
                    tx.read_files(read["paths"])
                case other:
                    raise AssertionError(f"a kind of read that this test does not know: {other}")
        if "read_files" in self.current:
            tx._reads = replace(tx._reads, paths=frozenset(self.current["read_files"]))

    def stage(self, tx: Transaction) -> None:
        for action in self.actions(self.current["actions"]):
            match action:
                case Add():
                    tx.add(action)
                case Remove():
                    tx._removes.append(action)
                case Metadata():
                    tx.set_metadata(action)
                case Protocol():
                    tx.set_protocol(action)
                case SetTransaction():
                    # Writing one without having read it must not count as reading it: see the case C80.
                    tx._transactions.append(action)
                case DomainMetadata():
                    tx.set_domain(action.domain, action.configuration)

    def land_winners(self, own_txn_id: str | None = None) -> None:
        for offset, winner in enumerate(self.case["winners"], start=1):
            info: dict[str, Any] = {"operation": winner["op"], "isBlindAppend": winner["is_blind_append"]}
            if "in_commit_timestamp" in winner:
                info["inCommitTimestamp"] = winner["in_commit_timestamp"]
            info["txnId"] = winner.get("txn_id", f"winner-{offset}")
            data = encode_commit(info, self.actions(winner["actions"]))
            assert self.store.put_if_absent(commit_name(self.read_version + offset), data)

    def actions(self, specs: list[dict[str, Any]]) -> list[Action]:
        return [self._action(kind, spec) for one in specs for kind, spec in one.items()]

    def _action(self, kind: str, spec: dict[str, Any]) -> Action:
        match kind:
            case "add":
                return _add(spec)
            case "remove":
                return _remove(spec)
            case "txn":
                return SetTransaction(app_id=spec["app_id"], version=spec["version"])
            case "domain":
                text = spec.get("configuration") or json.dumps({"rowIdHighWaterMark": spec["high_water"]})
                return DomainMetadata(domain=spec["name"], configuration=text, removed=False)
            case "metadata":
                return self._metadata(spec)
            case "protocol":
                return self._protocol(spec)
            case other:
                raise AssertionError(f"an action that this test does not know: {other}")

    def _metadata(self, spec: dict[str, Any]) -> Metadata:
        if self.absent:
            return Metadata(id=str(uuid.uuid4()), schema_string='{"type":"struct","fields":[]}', partition_columns=[])
        metadata = self.table.snapshot(self.read_version).metadata
        match spec["change"]:
            case "other":
                return msgspec.structs.replace(metadata, configuration=metadata.configuration | {"changed": "yes"})
            case "identity_only":
                schema = json.loads(metadata.schema_string)
                schema["fields"][0]["metadata"]["delta.identity.highWaterMark"] = 7
                return msgspec.structs.replace(metadata, schema_string=json.dumps(schema))
            case "config":
                configuration = metadata.configuration | spec.get("set", {})
                for name in spec.get("unset", []):
                    configuration.pop(name, None)
                return msgspec.structs.replace(metadata, configuration=configuration)
            case other:
                raise AssertionError(f"a metadata change that this test does not know: {other}")

    def _protocol(self, spec: dict[str, Any]) -> Protocol:
        base = Protocol(min_reader_version=1, min_writer_version=2)
        current = base if self.absent else self.table.snapshot(self.read_version).protocol
        match spec["change"]:
            case "create":
                return base
            case "upgrade":
                return Protocol(min_reader_version=1, min_writer_version=4)
            case "add_feature":
                return _with_features(current, [spec["feature"]])
            case "remove_feature":
                kept = [name for name in current.writer_features or [] if name != spec["feature"]]
                return msgspec.structs.replace(current, writer_features=kept)
            case other:
                raise AssertionError(f"a protocol change that this test does not know: {other}")


_READER_FEATURES = {"columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}


def _with_features(protocol: Protocol, features: list[str]) -> Protocol:
    writer = {*(protocol.writer_features or ["appendOnly", "invariants"]), *features}
    # A feature that nobody knows is taken for one that readers must know too: the worst case.
    reader = {name for name in features if name in _READER_FEATURES or "nknown" in name}
    reader |= set(protocol.reader_features or [])
    return Protocol(
        min_reader_version=3 if reader else 1,
        min_writer_version=7,
        reader_features=sorted(reader) if reader else None,
        writer_features=sorted(writer),
    )


def _vector(spec: dict[str, Any]) -> DeletionVector | None:
    if not spec.get("dv"):
        return None
    return DeletionVector(storage_type="u", path_or_inline_dv=spec["dv"], size_in_bytes=1, cardinality=1, offset=1)


def _add(spec: dict[str, Any]) -> Add:
    stats: dict[str, Any] = {}
    if spec.get("stats"):
        stats = {"minValues": spec["stats"]["min"], "maxValues": spec["stats"]["max"]}
    if "num_records" in spec or spec.get("dv") or stats:
        stats["numRecords"] = spec.get("num_records", 10)
    return Add(
        path=spec["path"],
        partition_values=spec["partition_values"],
        size=1,
        modification_time=1,
        data_change=spec["data_change"],
        stats=json.dumps(stats) if stats else None,
        deletion_vector=_vector(spec),
        base_row_id=spec.get("base_row_id"),
    )


def _remove(spec: dict[str, Any]) -> Remove:
    return Remove(
        path=spec["path"],
        partition_values=spec["partition_values"],
        data_change=spec["data_change"],
        deletion_timestamp=1,
        deletion_vector=_vector(spec),
    )


def _sql(expr: list[Any]) -> str:
    op, *arguments = expr
    if op in ("true", "false"):
        return op.upper()
    if op == "not":
        return f"NOT ({_sql(arguments[0])})"
    if op in ("is_null", "is_not_null"):
        return f"{arguments[0]} {op.replace('_', ' ').upper()}"
    if op in ("and", "or"):
        return "(" + f" {op.upper()} ".join(_sql(argument) for argument in arguments) + ")"
    column, value = arguments
    if op == "in":
        return f"{column} IN ({', '.join(_literal(one) for one in value)})"
    return f"{column} {op} {_literal(value)}"


def _literal(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


def _exception(name: str) -> type[errors.TxlogError]:
    found = _EXCEPTIONS.get(name) or getattr(errors, re.sub(r"(Exception|Error)$", "", name), None)
    assert found is not None, f"no error of ours stands for {name}"
    return found


@pytest.mark.parametrize("case", _load(row_tracking=False))
def test_scenario(case: dict[str, Any], clock: Any) -> None:
    played = Case(case, clock)
    tx = played.begin()
    current, expect = case["current"], case["expect"]
    if not current.get("reads_after_winner"):
        played.read(tx)
    played.stage(tx)
    if expect["outcome"] == "already_committed":
        # The winner is our own commit: its put landed and the answer was lost.
        played.store.lose_next_answer = True
    else:
        played.land_winners()
    if current.get("reads_after_winner"):
        played.read(tx)
    options = {
        "never_rebases": current.get("no_rebase", False),
        "record_empty": not current.get("can_skip_empty", True),
    }

    if expect["outcome"] == "error" and case["id"] not in REFINED:
        with pytest.raises(_exception(expect["exception"])) as caught:
            tx.commit(current["op"], **options)
        _check_error(played, caught.value)
        return
    version = tx.commit(current["op"], **options)
    assert tx.outcome is not None
    if expect["outcome"] == "skipped":
        assert not tx.outcome.committed
        assert played.table.snapshot().version == played.read_version
        return
    assert tx.outcome.committed
    _check_commit(played, version)


def _check_error(played: Case, error: errors.TxlogError) -> None:
    expect = played.case["expect"]
    if isinstance(error, errors.CommitConflict):
        assert error.retryable
        assert error.read_version == played.read_version
        index = expect.get("conflicting_winner_index", len(played.case["winners"]) - 1)
        assert error.winning_version == played.read_version + 1 + index
    else:
        assert not error.retryable
    if "partition" in expect:
        assert isinstance(error, errors.CommitConflict)
        assert error.partition is not None
        assert "/".join(f"{name}={value}" for name, value in error.partition.items()) == expect["partition"]
    # Nothing of ours is in the log.
    newest = played.read_version + len(played.case["winners"])
    assert played.store.stat(commit_name(newest + 1)) is None


def _check_commit(played: Case, version: int) -> None:
    case, expect = played.case, played.case["expect"]
    offset = expect.get("version_offset", len(case["winners"]) + 1)
    assert version == played.read_version + offset
    path = commit_name(version)
    written = decode_commit(version, played.store.read(path), path)
    assert written.info is not None
    assert written.info["isolationLevel"] == case["current"]["effective_isolation"]
    assert written.info["isBlindAppend"] == case["current"]["is_blind_append"]
    rebase = expect.get("rebase")
    if isinstance(rebase, dict) and "in_commit_timestamp" in rebase:
        assert written.info["inCommitTimestamp"] == rebase["in_commit_timestamp"]
        assert next(iter(json.loads(played.store.read(path).splitlines()[0])["commitInfo"])) == "inCommitTimestamp"
    expected = [spec["add"]["path"] for spec in case["current"]["actions"] if "add" in spec]
    assert [add.path for add in written.adds] == expected


@pytest.mark.parametrize("case", _load(row_tracking=True))
def test_scenario_of_row_tracking_renumbers_the_rows(case: dict[str, Any], clock: Any) -> None:
    played = Case({**case, "table": {**case["table"], "features": []}}, clock)
    mine = played.actions(case["current"]["actions"])
    read_version = played.read_version
    snapshot = played.table.snapshot()
    tx = played.begin()
    attempt: Attempt = replace(
        tx._attempt(case["current"]["op"], False),
        adds=tuple(
            msgspec.structs.replace(action, default_row_commit_version=read_version + 1)
            for action in mine
            if isinstance(action, Add)
        ),
        domains=tuple(action for action in mine if isinstance(action, DomainMetadata)),
        current_metadata=snapshot.metadata,
        row_id_high_water=case["table"]["row_id_high_water"],
    )
    played.land_winners()
    for offset in range(1, len(case["winners"]) + 1):
        path = commit_name(read_version + offset)
        attempt = check_winner(attempt, decode_commit(read_version + offset, played.store.read(path), path))
    expected = case["expect"]["rebase"]
    (add,) = attempt.adds
    assert add.base_row_id == expected[f"{add.path}.base_row_id"]
    assert add.default_row_commit_version == read_version + int(expected["default_row_commit_version"][-1])
    assert json.loads(attempt.domains[0].configuration) == {"rowIdHighWaterMark": expected["high_water"]}


def test_every_refined_case_is_in_the_scenarios_and_names_its_refinement() -> None:
    if not SCENARIOS_FILE.is_file() or "TXLOG_SCENARIOS" in os.environ:
        pytest.skip("the scenarios of the reference are not here")
    known = {case["id"] for case in json.loads(SCENARIOS_FILE.read_text())["scenarios"]}
    assert REFINED.keys() <= known
    assert all(reason.startswith(("proved disjoint:", "harmless compaction:")) for reason in REFINED.values())
