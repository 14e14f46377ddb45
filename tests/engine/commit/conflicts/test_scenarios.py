"""The conflict scenarios: every case against a real table, the real transaction, the real loop and the real checker.

Each case makes a table with the case's files, and with the features and properties that it names or that one of its
commits takes away; begins a transaction, lets the winners' commits land in the log, and commits. The files are
`../shared/reference/conflict_scenarios.json`, or whatever TXLOG_SCENARIOS names, and `more_scenarios.json` beside this
module.
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
from airflow_txlog.engine.log.actions import (
    Action,
    Add,
    Cdc,
    DeletionVector,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    SetTransaction,
    decode_commit,
    encode_commit,
)
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.table.schema.column_mapping import partition_keys, table_schema
from airflow_txlog.engine.table.schema.features import READABLE, protocol_for, reader_features, writer_features
from airflow_txlog.engine.table.schema.schema import schema_to_json
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType
from airflow_txlog.storage import MemoryStore
from tests.helpers.paths import SHARED

_DEFAULT_FILE = SHARED / "reference" / "conflict_scenarios.json"
SCENARIOS_FILE = Path(os.environ.get("TXLOG_SCENARIOS", _DEFAULT_FILE))

# Cases in which one of our two documented refinements lets a commit through that the reference implementation refuses.
# Both are described at the head of airflow_txlog/engine/commit/conflicts.py.
REFINED = {
    "C75": "proved disjoint: the winner's file has v <= 10 by its statistics, and the transaction read v > 10",
}

MORE_SCENARIOS_FILE = Path(__file__).with_name("more_scenarios.json")

# What other engines and their error classes call our errors, in small letters and without "delta", "error" and the
# like; the first name that occurs in the given one counts.
_NAMES: list[tuple[str, type[errors.TxlogError]]] = [
    ("duplicate", errors.DuplicateActions),
    ("appendonly", errors.AppendOnlyViolation),
    ("metadataabsent", errors.MetadataAbsent),
    ("unsupportedtablefeature", errors.UnsupportedFeature),
    ("unsupportedfeature", errors.UnsupportedFeature),
    ("invalidprotocolversion", errors.UnsupportedFeature),
    ("settransactionversionconflict", errors.SetTransactionVersionConflict),
    ("partition", errors.PartitionMismatch),
    ("concurrentmodification", errors.CommitConflict),
    ("invalidcommit", errors.InvalidCommit),
    ("invalidaction", errors.InvalidCommit),
    ("illegalstate", errors.InvalidCommit),
    ("illegalargument", errors.InvalidCommit),
    ("invariant", errors.InvalidCommit),
    ("validation", errors.InvalidCommit),
]

# Names of types beside the schema's own.
_TYPES = {"int": Primitive.INTEGER, "bigint": Primitive.LONG}


def _load() -> list[Any]:
    cases = json.loads(MORE_SCENARIOS_FILE.read_text())["scenarios"]
    marks = []
    if SCENARIOS_FILE.is_file():
        cases += json.loads(SCENARIOS_FILE.read_text())["scenarios"]
    else:
        reason = f"no scenarios at {SCENARIOS_FILE} (set TXLOG_SCENARIOS)"
        marks = [pytest.param({}, id="none", marks=pytest.mark.skip(reason=reason))]
    return [*(pytest.param(case, id=case["id"]) for case in cases), *marks]


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
        # The protocol and the metadata in force, as each winner leaves them.
        self.protocol = Protocol(min_reader_version=1, min_writer_version=2)
        self.metadata = Metadata(
            id=str(uuid.uuid4()), schema_string=schema_to_json(StructType(())), partition_columns=[]
        )
        self.names = {name: name for name in self.partition_columns}
        if not self.absent:
            self._create()

    def _schema(self) -> StructType:
        types = dict.fromkeys(self.partition_columns, "string") | self.table_spec.get("column_types", {})
        fields = [StructField(name, _TYPES.get(kind) or Primitive(kind)) for name, kind in types.items()]
        return StructType((*fields, StructField("payload", Primitive.STRING)))

    def _changes(self, kind: str) -> list[dict[str, Any]]:
        """The changes of the protocol, or of the metadata, by any commit of the case."""
        commits = [self.current, *self.case["winners"]]
        return [action[kind] for commit in commits for action in commit["actions"] if kind in action]

    def _features(self) -> list[str]:
        """The features that the table has: those that it names, that a commit takes away, that its vectors need."""
        features = [*self.table_spec.get("features", [])]
        features += [change["feature"] for change in self._changes("protocol") if change["change"] == "remove_feature"]
        if re.search(r'"dv": "', json.dumps(self.case)):
            features.append("deletionVectors")
        return list(dict.fromkeys(features))

    def _properties(self) -> dict[str, str]:
        """The properties that the table has: those that it names, and some value for each that a commit takes away."""
        unset = [name for change in self._changes("metadata") for name in change.get("unset", [])]
        properties = {name: _some_value(name) for name in unset} | self.table_spec.get("properties", {})
        if "inCommitTimestamp" in self._features():
            properties["delta.enableInCommitTimestamps"] = "true"
        return {
            # What a transaction does not read is not its business.
            "delta.checkpointInterval": "100000",
            "delta.isolationLevel": self.table_spec["isolation"],
            **properties,
        }

    def _create(self) -> None:
        # Version 0 makes the table and version 1 its files.
        if "inCommitTimestamp" in self._features():
            self.clock.time_ms = self.current.get("in_commit_timestamp", 1000) - 1000
        features, properties = self._features(), self._properties()
        wanted = {f"delta.feature.{name}": "supported" for name in features}
        try:
            self.table.begin_create(self._schema(), self.partition_columns, properties | wanted).commit("CREATE TABLE")
        except errors.TxlogError:
            # A table that this engine would not create: another one did.
            protocol = protocol_for(self._schema(), properties)
            metadata = msgspec.structs.replace(
                self.metadata,
                schema_string=schema_to_json(self._schema()),
                partition_columns=self.partition_columns,
                configuration=properties,
            )
            self._put(0, {"operation": "CREATE TABLE"}, [_with_features(protocol, features), metadata])
        created = decode_commit(0, self.store.read(commit_name(0)), commit_name(0))
        assert created.protocol is not None
        assert created.metadata is not None
        self.protocol, self.metadata = created.protocol, created.metadata
        keys = partition_keys(table_schema(self.metadata, self.store.root), self.partition_columns)
        self.names = dict(zip(self.partition_columns, keys, strict=True))
        self.read_version = 1
        if "row_id_high_water" in self.table_spec:
            mark = json.dumps({"rowIdHighWaterMark": self.table_spec["row_id_high_water"]})
            domain = DomainMetadata(domain="delta.rowTracking", configuration=mark, removed=False)
            files = [self._add(spec) for spec in self.case["initial_files"]]
            self._put(1, {"operation": "WRITE"}, [domain, *files])
        else:
            self._land_files()
        if "in_commit_timestamp" in self.current:
            self.clock.time_ms = self.current["in_commit_timestamp"]

    def _land_files(self) -> None:
        files = [self._add(spec) for spec in self.case["initial_files"]]
        try:
            tx = self.table.begin()
            tx.add(files)
            assert tx.commit("WRITE", record_empty=True) == 1
        except errors.UnsupportedFeature:
            self._put(1, {"operation": "WRITE"}, list(files))

    def _put(self, version: int, info: dict[str, Any], actions: list[Action]) -> None:
        assert self.store.put_if_absent(commit_name(version), encode_commit(info, actions))

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
            tx.reads = replace(tx.reads, paths=frozenset(self.current["read_files"]))

    def stage(self, tx: Transaction) -> None:
        for action in self.actions(self.current["actions"]):
            match action:
                case Add():
                    # A transaction numbers its own rows.
                    tx.add(msgspec.structs.replace(action, base_row_id=None))
                case Cdc():
                    tx.add_changes([action])
                case Remove():
                    tx._removes.append(action)
                case Metadata():
                    tx.set_metadata(action)
                case Protocol():
                    tx.set_protocol(action)
                case SetTransaction():
                    # Writing one without having read it must not count as reading it: see the case C80.
                    tx._transactions.append(action)
                case DomainMetadata() if action.domain == "delta.rowTracking" and "rowTracking" in self._features():
                    pass  # written by the transaction itself
                case DomainMetadata():
                    tx.set_domain(action.domain, action.configuration)

    def land_winners(self, own_txn_id: str | None = None) -> None:
        for offset, winner in enumerate(self.case["winners"], start=1):
            info: dict[str, Any] = {"operation": winner["op"], "isBlindAppend": winner["is_blind_append"]}
            if "in_commit_timestamp" in winner:
                info["inCommitTimestamp"] = winner["in_commit_timestamp"]
            info["txnId"] = winner.get("txn_id", f"winner-{offset}")
            actions = self.actions(winner["actions"])
            self._put(self.read_version + offset, info, actions)
            # What the next one changes is what this one has left.
            self.protocol = next((each for each in actions if isinstance(each, Protocol)), self.protocol)
            self.metadata = next((each for each in actions if isinstance(each, Metadata)), self.metadata)

    def actions(self, specs: list[dict[str, Any]]) -> list[Action]:
        return [self._action(kind, spec) for one in specs for kind, spec in one.items()]

    def _action(self, kind: str, spec: dict[str, Any]) -> Action:
        match kind:
            case "add":
                return self._add(spec)
            case "remove":
                return self._remove(spec)
            case "cdc":
                return Cdc(path=spec["path"], partition_values=self._partition(spec), size=1, data_change=False)
            case "txn":
                return SetTransaction(app_id=spec["app_id"], version=spec["version"])
            case "domain":
                text = spec.get("configuration", "")
                if "high_water" in spec:
                    text = json.dumps({"rowIdHighWaterMark": spec["high_water"]})
                if not isinstance(text, str):
                    text = json.dumps(text)
                return DomainMetadata(domain=spec["name"], configuration=text, removed=spec.get("removed", False))
            case "metadata":
                return self._metadata(spec)
            case "protocol":
                return self._protocol(spec)
            case other:
                raise AssertionError(f"an action that this test does not know: {other}")

    def _metadata(self, spec: dict[str, Any]) -> Metadata:
        metadata = self.metadata
        schema = json.loads(metadata.schema_string or "")
        match spec["change"]:
            case "other" if self.absent:
                return metadata
            case "other":
                return msgspec.structs.replace(metadata, configuration=metadata.configuration | {"changed": "yes"})
            case "identity_only":
                schema["fields"][0]["metadata"]["delta.identity.highWaterMark"] = 7
                return msgspec.structs.replace(metadata, schema_string=json.dumps(schema))
            case "schema":
                schema["fields"].append({"name": "more", "type": "string", "nullable": True, "metadata": {}})
                return msgspec.structs.replace(metadata, schema_string=json.dumps(schema))
            case "config":
                configuration = metadata.configuration | spec.get("set", {})
                for name in spec.get("unset", []):
                    assert name in configuration, f"the table was to have the property {name}"
                    del configuration[name]
                return msgspec.structs.replace(metadata, configuration=configuration)
            case other:
                raise AssertionError(f"a metadata change that this test does not know: {other}")

    def _protocol(self, spec: dict[str, Any]) -> Protocol:
        match spec["change"]:
            case "create":
                return Protocol(min_reader_version=1, min_writer_version=2)
            case "upgrade" if self.protocol.min_writer_version < 7:
                return Protocol(min_reader_version=self.protocol.min_reader_version, min_writer_version=4)
            case "upgrade":
                return _with_features(self.protocol, ["changeDataFeed", "checkConstraints", "generatedColumns"])
            case "add_feature":
                return _with_features(self.protocol, [spec["feature"]], supported=spec.get("supported", True))
            case "remove_feature":
                return _without_feature(self.protocol, spec["feature"])
            case other:
                raise AssertionError(f"a protocol change that this test does not know: {other}")

    # --- files ------------------------------------------------------------------------------------------------------

    def _partition(self, spec: dict[str, Any]) -> dict[str, str | None]:
        return {self.names.get(name, name): value for name, value in spec["partition_values"].items()}

    def _add(self, spec: dict[str, Any]) -> Add:
        stats: dict[str, Any] = {}
        if spec.get("stats"):
            given = spec["stats"]
            stats = {"minValues": given.get("min", {}), "maxValues": given.get("max", {})}
            if "null_count" in given:
                stats["nullCount"] = given["null_count"]
        if "num_records" in spec or spec.get("dv") or stats or "rowTracking" in self._features():
            stats["numRecords"] = spec.get("num_records", 10)
        return Add(
            path=spec["path"],
            partition_values=self._partition(spec),
            size=1,
            modification_time=1,
            data_change=spec["data_change"],
            stats=json.dumps(stats) if stats else None,
            deletion_vector=_vector(spec),
            base_row_id=spec.get("base_row_id"),
        )

    def _remove(self, spec: dict[str, Any]) -> Remove:
        return Remove(
            path=spec["path"],
            partition_values=self._partition(spec),
            data_change=spec["data_change"],
            deletion_timestamp=1,
            deletion_vector=_vector(spec),
        )


def _some_value(name: str) -> str:
    """A value that a property may have, for one that a commit takes away."""
    if name.startswith("delta.enable"):
        return "true"
    if name.startswith("delta.constraints."):
        return "payload <> ''"
    if name.endswith("Duration"):
        return "interval 40 days"
    return {"delta.appendOnly": "false", "delta.checkpointPolicy": "classic", "delta.columnMapping.mode": "name"}.get(
        name, "1"
    )


def _with_features(protocol: Protocol, features: list[str], *, supported: bool = True) -> Protocol:
    """The protocol with these features more; what was there by number is there by name."""
    readers = {*reader_features(protocol), *(name for name in features if name in READABLE)}
    if not supported:
        # Taken for one that readers must know too: the worst case.
        readers |= set(features)
    return Protocol(
        min_reader_version=3 if readers else 1,
        min_writer_version=7,
        reader_features=sorted(readers) if readers else None,
        writer_features=sorted({*writer_features(protocol), *features, *readers}),
    )


def _without_feature(protocol: Protocol, feature: str) -> Protocol:
    assert feature in writer_features(protocol), f"the table was to have the feature {feature}"
    readers = sorted(reader_features(protocol) - {feature})
    return Protocol(
        min_reader_version=3 if readers else 1,
        min_writer_version=7,
        reader_features=readers or None,
        writer_features=sorted(writer_features(protocol) - {feature}),
    )


def _vector(spec: dict[str, Any]) -> DeletionVector | None:
    if not spec.get("dv"):
        return None
    return DeletionVector(storage_type="u", path_or_inline_dv=spec["dv"], size_in_bytes=1, cardinality=1, offset=1)


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
    ours = {each.__name__.lower(): each for each in vars(errors).values() if isinstance(each, type)}
    short = re.sub(r"(exception|error|found)$", "", name.rpartition(".")[2].replace("_", "").lower())
    short = short.removeprefix("delta")
    known = ours.get(short) or next((kind for part, kind in _NAMES if part in short), None)
    assert known is not None, f"no error of ours stands for {name}"
    return known


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("InvalidCommit", errors.InvalidCommit),
        ("InvalidCommitError", errors.InvalidCommit),
        ("InvalidCommitException", errors.InvalidCommit),
        ("DeltaIllegalStateException", errors.InvalidCommit),
        ("DELTA_DUPLICATE_ACTIONS_FOUND", errors.DuplicateActions),
        ("DuplicateActionsError", errors.DuplicateActions),
        ("DELTA_CANNOT_MODIFY_APPEND_ONLY", errors.AppendOnlyViolation),
        ("delta.exceptions.ConcurrentAppendException", errors.ConcurrentAppend),
        ("DeltaUnsupportedTableFeatureException", errors.UnsupportedFeature),
        ("PartitionMismatchError", errors.PartitionMismatch),
    ],
)
def test_an_error_is_known_by_every_name_that_a_scenario_may_use(name: str, expected: type[Exception]) -> None:
    assert _exception(name) is expected


def _play(played: Case) -> tuple[Transaction, int]:
    """The transaction that committed, and its version."""
    tx = played.begin()
    current = played.current
    if not current.get("reads_after_winner"):
        played.read(tx)
    played.stage(tx)
    if played.case["expect"]["outcome"] == "already_committed":
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
    return tx, tx.commit(current["op"], **options)


@pytest.mark.parametrize("case", _load())
def test_scenario(case: dict[str, Any], clock: Any) -> None:
    played = Case(case, clock)
    expect = case["expect"]
    if expect["outcome"] == "error" and case["id"] not in REFINED:
        with pytest.raises(_exception(expect.get("exception") or expect["error_class"])) as caught:
            _play(played)
        _check_error(played, caught.value)
        return
    tx, version = _play(played)
    assert tx.outcome is not None
    if expect["outcome"] == "skipped":
        assert not tx.outcome.committed
        assert played.table.snapshot().version == played.read_version + len(case["winners"])
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
    landed = [name for name in played.store.list("_delta_log") if name.path.endswith(".json")]
    assert len(landed) <= played.read_version + len(played.case["winners"]) + 1


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
    for name, value in (rebase if isinstance(rebase, dict) else {}).items():
        if name == "in_commit_timestamp":
            assert written.info["inCommitTimestamp"] == value
            first = json.loads(played.store.read(path).splitlines()[0])["commitInfo"]
            assert next(iter(first)) == "inCommitTimestamp"
        elif name == "high_water":
            (mark,) = [each for each in written.domains if each.domain == "delta.rowTracking"]
            assert json.loads(mark.configuration) == {"rowIdHighWaterMark": value}
        elif name == "default_row_commit_version":
            after = played.read_version + int(value.removeprefix("read_version+"))
            assert {add.default_row_commit_version for add in written.adds} == {after}
        elif name.endswith(".base_row_id"):
            assert {add.path: add.base_row_id for add in written.adds}[name.removesuffix(".base_row_id")] == value
        else:
            raise AssertionError(f"a rebase that this test does not know: {name}")
    expected = [spec["add"]["path"] for spec in case["current"]["actions"] if "add" in spec]
    assert [add.path for add in written.adds] == expected


def test_every_refined_case_is_in_the_scenarios_and_names_its_refinement() -> None:
    if not SCENARIOS_FILE.is_file() or "TXLOG_SCENARIOS" in os.environ:
        pytest.skip("the scenarios of the reference are not here")
    known = {case["id"] for case in json.loads(SCENARIOS_FILE.read_text())["scenarios"]}
    assert REFINED.keys() <= known
    assert all(reason.startswith(("proved disjoint:", "harmless compaction:")) for reason in REFINED.values())
