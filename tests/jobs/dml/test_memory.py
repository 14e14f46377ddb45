"""Alone in showing what a job keeps and drops case by case, and which changes of the rules it survives."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from airflow_txlog.datafiles.output import StagedFile
from airflow_txlog.engine.log.actions import Format, Metadata, Protocol
from airflow_txlog.jobs.dml.memory import COPY, IMAGES, INSERTS, VERDICTS, LiveFile, Memory, Segment
from airflow_txlog.jobs.dml.sameness import TableRules, rules_of, still_holds
from tests.vectors import bitmap

SCHEMA = json.dumps({"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]})


def verdicts(*rows: tuple[int, int | None, int | None]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(VERDICTS.names, row, strict=True)) for row in rows], schema=VERDICTS)


def staged(name: str) -> StagedFile:
    return StagedFile(
        path=name,
        location=f"/t/{name}",
        partition_values={},
        size_bytes=1,
        modification_time_ms=0,
        num_records=1,
        stats="{}",
    )


def segment(kind: str, *inputs: str, fingerprint: str = "") -> Segment:
    name = "+".join(inputs) or fingerprint
    return Segment(kind=kind, inputs=frozenset(inputs), fingerprint=fingerprint, files=(staged(f"{kind} of {name}"),))


def rules(
    *, schema: str = SCHEMA, protocol: Protocol | None = None, configuration: dict[str, str] | None = None
) -> TableRules:
    metadata = Metadata(
        id="one", format=Format(), schema_string=schema, partition_columns=[], configuration=configuration or {}
    )
    return rules_of(protocol or Protocol(min_reader_version=1, min_writer_version=2), metadata)


def test_a_file_without_a_matching_row_is_remembered_too() -> None:
    memory = Memory()
    assert memory.recall(LiveFile(path="a")) is None
    memory.remember(LiveFile(path="a"), verdicts())
    found = memory.recall(LiveFile(path="a"))
    assert found is not None
    assert found.num_rows == 0


def test_a1_a_scan_survives_a_deletion_vector_that_grew_less_the_rows_that_it_masks() -> None:
    memory = Memory()
    memory.remember(LiveFile(path="a"), verdicts((3, 10, 0), (7, 11, 0), (7, 12, None)))
    grown = memory.recall(LiveFile(path="a", vector="v1", masked=bitmap([7, 9])))
    assert grown is not None
    assert grown.to_pylist() == verdicts((3, 10, 0)).to_pylist()
    again = memory.recall(LiveFile(path="a"))
    assert again is not None
    assert again.num_rows == 3, "the memory itself was not cut"


@pytest.mark.parametrize("now", [None, [7]], ids=["no vector", "a smaller vector"])
def test_a1_a_scan_does_not_survive_a_deletion_vector_that_shrank(now: list[int] | None) -> None:
    memory = Memory()
    memory.remember(LiveFile(path="a", vector="v1", masked=bitmap([7, 9])), verdicts((3, None, 0)))
    vector, masked = (None, None) if now is None else ("v2", bitmap(now))
    assert memory.recall(LiveFile(path="a", vector=vector, masked=masked)) is None


def test_a1_a_staged_copy_lives_by_path_and_deletion_vector() -> None:
    memory = Memory()
    kept, lost = segment(COPY, "a"), segment(COPY, "b")
    memory.add([kept, lost])
    assert memory.keep(COPY, {"a", "b\x00v1"}) == [kept]
    assert memory.segments == [kept]
    assert memory.dropped == list(lost.files)


def test_a_segment_goes_as_a_whole_with_any_of_its_inputs_and_leaves_other_kinds_alone() -> None:
    memory = Memory()
    images, copy = segment(IMAGES, "a", "b"), segment(COPY, "a")
    memory.add([images, copy])
    assert memory.keep(IMAGES, {"a", "c"}) == []
    assert memory.segments == [copy]


def test_inserts_are_kept_only_under_the_same_fingerprint() -> None:
    memory = Memory()
    one, two = segment(INSERTS, fingerprint="0:aa"), segment(INSERTS, fingerprint="1:bb")
    memory.add([one, two])
    assert memory.keep(INSERTS, (), {"0:aa", "1:cc"}) == [one]
    assert memory.staged_files() == [*one.files, *two.files]


def test_a18_other_rules_empty_the_memory() -> None:
    memory = Memory()
    assert memory.begin(rules())
    memory.remember(LiveFile(path="a"), verdicts())
    memory.add([segment(COPY, "a")])
    assert memory.begin(rules())
    assert memory.scans
    assert memory.segments
    assert not memory.begin(rules(configuration={"delta.constraints.positive": "id > 0"}))
    assert not memory.scans
    assert not memory.segments
    assert len(memory.dropped) == 1


LISTED = ["deletionVectors", "columnMapping", "v2Checkpoint", "inCommitTimestamp", "appendOnly", "domainMetadata"]
UNLISTED = ["rowTracking", "materializePartitionColumns", "checkConstraints", "typeWidening", "somethingNew"]


def with_feature(name: str) -> TableRules:
    protocol = Protocol(min_reader_version=1, min_writer_version=7, writer_features=["appendOnly", "invariants", name])
    return rules(protocol=protocol)


@pytest.mark.parametrize("name", LISTED)
def test_a18_a_listed_feature_may_be_added(name: str) -> None:
    assert still_holds(rules(), with_feature(name))


@pytest.mark.parametrize("name", UNLISTED)
def test_a18_any_other_feature_may_not(name: str) -> None:
    assert not still_holds(rules(), with_feature(name))


def test_a18_a_feature_that_went_away_empties_the_memory() -> None:
    assert not still_holds(with_feature("deletionVectors"), rules())


@pytest.mark.parametrize(
    ("name", "value", "holds"),
    [
        ("delta.checkpointPolicy", "v2", True),
        ("delta.enableDeletionVectors", "true", True),
        ("delta.enableInCommitTimestamps", "true", True),
        ("delta.inCommitTimestampEnablementVersion", "3", True),
        ("delta.enableChangeDataFeed", "true", False),
        ("delta.isolationLevel", "WriteSerializable", False),
        ("delta.columnMapping.mode", "name", False),
        ("delta.enableRowTracking", "true", False),
    ],
)
def test_a18_of_the_properties_only_the_named_ones_may_change(name: str, value: str, holds: bool) -> None:
    assert still_holds(rules(), rules(configuration={name: value})) is holds


def test_a18_only_the_high_water_mark_of_an_identity_column_may_change_in_the_schema() -> None:
    def identity(mark: int) -> str:
        metadata = {"delta.identity.start": 1, "delta.identity.step": 1, "delta.identity.highWaterMark": mark}
        return json.dumps(
            {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": metadata}]}
        )

    assert still_holds(rules(schema=identity(1)), rules(schema=identity(9)))
    assert not still_holds(rules(schema=identity(1)), rules())


def test_rules_survive_their_own_plain_form() -> None:
    found = rules(configuration={"delta.appendOnly": "true"})
    assert TableRules.from_plain(json.loads(json.dumps(found.to_plain()))) == found
