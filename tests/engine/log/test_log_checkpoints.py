"""Checkpoints, written and read."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import math
import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_txlog.engine.log.actions import (
    Add,
    Commit,
    DomainMetadata,
    Format,
    Metadata,
    Protocol,
    Remove,
    SetTransaction,
    decode_commit,
)
from airflow_txlog.engine.log.checkpoints.reading import CheckpointContent, may_hold_twice, read_checkpoint
from airflow_txlog.engine.log.checkpoints.rows import statistics_json
from airflow_txlog.engine.log.checkpoints.writing import CheckpointState, write_checkpoint
from airflow_txlog.engine.log.columns import FILES, TOMBSTONES, adds_to_table, removes_to_table, table_to_adds
from airflow_txlog.engine.log.segment import list_segment
from airflow_txlog.errors import CorruptCheckpoint
from airflow_txlog.storage import LocalStore, MemoryStore, Store
from tests.engine.log.log_strategies import ADDS, MAPS, REMOVES, TEXT
from tests.helpers.depth import depth
from tests.helpers.limits import limited
from tests.helpers.paths import GOLDEN

CHECKPOINT = "_delta_log/00000000000000000010.checkpoint.parquet"

PROTOCOL = Protocol(min_reader_version=1, min_writer_version=2)
METADATA = Metadata(id="m", schema_string='{"type":"struct","fields":[]}', partition_columns=[])
STRINGS = st.dictionaries(TEXT, TEXT, max_size=3)


def memory() -> MemoryStore:
    return MemoryStore(f"memory://checkpoints-{uuid.uuid4().hex}")


def write(store: Store, adds: Sequence[Add] = (), removes: Sequence[Remove] = (), **given: Any) -> None:
    """The checkpoint of version 10, with what is given and little else."""
    values: dict[str, Any] = {"protocol": PROTOCOL, "metadata": METADATA, "transactions": {}, "domains": {}} | given
    files = values.pop("files", adds_to_table(adds))
    write_checkpoint(store, CheckpointState(version=10, adds=files, removes=removes_to_table(removes), **values))


def read(store: Store) -> CheckpointContent:
    segment = list_segment(store)
    assert segment.checkpoint is not None
    return read_checkpoint(store, segment.checkpoint)


@given(
    adds=st.lists(ADDS, max_size=5),
    removes=st.lists(REMOVES, max_size=5),
    transactions=st.lists(
        st.builds(SetTransaction, app_id=TEXT, version=st.integers(0, 2**62), last_updated=st.sampled_from([None, 5]))
    ),
    domains=st.lists(st.builds(DomainMetadata, domain=TEXT, configuration=TEXT, removed=st.booleans())),
    metadata=st.builds(
        Metadata,
        id=TEXT,
        schema_string=TEXT,
        partition_columns=st.lists(TEXT, max_size=3),
        format=st.builds(Format, provider=st.just("parquet"), options=STRINGS),
        configuration=STRINGS,
        name=st.one_of(st.none(), TEXT),
        created_time=st.one_of(st.none(), st.integers(0, 2**62)),
    ),
    features=st.lists(TEXT, max_size=3),
)  # fmt: skip
def test_what_is_written_is_read_back(
    adds: list[Add],
    removes: list[Remove],
    transactions: list[SetTransaction],
    domains: list[DomainMetadata],
    metadata: Metadata,
    features: list[str],
) -> None:
    protocol = Protocol(min_reader_version=3, min_writer_version=7, reader_features=features, writer_features=features)
    by_app = {each.app_id: each for each in transactions}
    by_name = {each.domain: each for each in domains}
    store = memory()
    write(store, adds, removes, protocol=protocol, metadata=metadata, transactions=by_app, domains=by_name)
    content = read(store)
    assert content.adds.equals(adds_to_table(adds))
    quiet = removes_to_table(removes)
    quiet = quiet.set_column(2, "data_change", pa.array([False] * len(removes), pa.bool_()))
    assert content.removes.equals(quiet)
    assert (content.protocol, content.metadata, content.transactions) == (protocol, metadata, by_app)
    assert content.domains == {name: each for name, each in by_name.items() if not each.removed}


def test_a_table_in_many_chunks_is_written_as_few_row_groups() -> None:
    """Every commit leaves a chunk in the table of live files; a row group each would make a slow checkpoint."""
    table = pa.concat_tables([adds_to_table([add(f"f{i}")]) for i in range(250)])
    store = limited(memory(), checkpoint_group_rows=100)
    write(store, files=table)
    metadata = pq.ParquetFile(store.open_input(CHECKPOINT)).metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [2, 100, 100, 50]
    assert read(store).adds.equals(table)


def test_a_checkpoint_is_read_in_slices() -> None:
    store = limited(memory(), checkpoint_batch_rows=7)
    write(store, [add(f"f{i}") for i in range(50)], [Remove(path=f"g{i}", data_change=True) for i in range(20)])
    content = read(store)
    assert content.adds.column("path").to_pylist() == [f"f{i}" for i in range(50)]
    assert content.removes.column("path").to_pylist() == [f"g{i}" for i in range(20)]
    assert content.adds.column("path").num_chunks > 2


def add(path: str, **given: Any) -> Add:
    values: dict[str, Any] = {"partition_values": {}, "size": 1, "modification_time": 1, "data_change": True} | given
    return Add(path=path, **values)


def test_the_hint_tells_what_was_written() -> None:
    store = memory()
    write(
        store,
        [add("a"), add("b")],
        [Remove(path="c", data_change=True)],
        transactions={"x": SetTransaction(app_id="x", version=1)},
        domains={"d": DomainMetadata(domain="d", configuration="", removed=False)},
    )
    info = store.stat(CHECKPOINT)
    assert info is not None
    assert json.loads(store.read("_delta_log/_last_checkpoint")) == {
        "version": 10,
        "size": 7,
        "sizeInBytes": info.size_bytes,
        "numOfAddFiles": 2,
    }


def test_features_are_null_for_legacy_protocols_and_lists_for_the_others() -> None:
    """Protocol: readerFeatures and writerFeatures exist if, and only if, the versions are 3 and 7."""
    store = memory()
    for protocol, reader, writer in [
        (Protocol(min_reader_version=1, min_writer_version=2, reader_features=[], writer_features=[]), None, None),
        (Protocol(min_reader_version=1, min_writer_version=7, writer_features=["appendOnly"]), None, ["appendOnly"]),
        (Protocol(min_reader_version=3, min_writer_version=7), [], []),
    ]:
        write(store, protocol=protocol)
        table = pq.read_table(store.open_input(CHECKPOINT))
        (row,) = [each for each in table.column("protocol").to_pylist() if each]
        assert (row["readerFeatures"], row["writerFeatures"]) == (reader, writer)
        assert (read(store).protocol.reader_features, read(store).protocol.writer_features) == (reader, writer)


def test_data_change_is_false_in_a_checkpoint() -> None:
    store = memory()
    write(store, [add("a")], [Remove(path="c", data_change=True)])
    table = pq.read_table(store.open_input(CHECKPOINT))
    assert [row["dataChange"] for row in table.column("add").to_pylist() if row] == [False]
    assert [row["dataChange"] for row in table.column("remove").to_pylist() if row] == [False]


def test_maps_and_lists_have_the_nesting_that_parquet_demands() -> None:
    store = memory()
    write(store, [add("a", partition_values={"p": None}, tags={"x": "y"})])
    schema = pq.ParquetFile(store.open_input(CHECKPOINT)).schema
    paths = {schema.column(i).path for i in range(len(schema))}
    assert {
        "add.partitionValues.key_value.key",
        "add.partitionValues.key_value.value",
        "protocol.readerFeatures.list.element",
        "metaData.partitionColumns.list.element",
        "metaData.format.options.key_value.key",
        "add.deletionVector.pathOrInlineDv",
    } <= paths


# --- what others wrote ----------------------------------------------------------------------------------------------


def replayed(table: Path, version: int) -> tuple[dict[Any, Add], Commit]:
    """The live files after replaying commits alone, and the last commit with protocol and metadata filled in."""
    live: dict[Any, Add] = {}
    protocol, metadata = None, None
    for number in range(version + 1):
        path = table / "_delta_log" / f"{number:020d}.json"
        commit = decode_commit(number, path.read_bytes(), str(path))
        for remove in commit.removes:
            live.pop((remove.path, remove.deletion_vector and remove.deletion_vector.unique_id), None)
        for each in commit.adds:
            live[each.path, each.deletion_vector and each.deletion_vector.unique_id] = each
        protocol, metadata = commit.protocol or protocol, commit.metadata or metadata
    return live, Commit(
        version=version, adds=[], removes=[], cdc=[], metadata=metadata, protocol=protocol, transactions=[], domains=[],
        info=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "basic-with-inserts-deletes-checkpoint",
        "basic-with-inserts-overwrite-restore",
        "checkpoint",
        "dv-partitioned-with-checkpoint",
        "multi-part-checkpoint",
    ],
)
def test_golden_checkpoint_says_what_its_commits_say(name: str) -> None:
    if not GOLDEN.exists():
        pytest.skip(f"no golden tables at {GOLDEN}")
    store = LocalStore(str(GOLDEN / name))
    segment = list_segment(store)
    assert segment.checkpoint is not None
    content = read_checkpoint(store, segment.checkpoint)
    live, last = replayed(GOLDEN / name, segment.checkpoint.version)
    assert sorted(map(_facts, table_to_adds(content.adds, True))) == sorted(map(_facts, live.values()))
    assert (content.protocol, content.metadata) == (last.protocol, last.metadata)


def _facts(add: Add) -> tuple[Any, ...]:
    # The reference writer drops tags of adds, and keeps statistics as they were.
    return add.path, sorted(add.partition_values.items()), add.size, str(add.deletion_vector), str(add.stats)


def test_golden_checkpoint_without_a_protocol_is_corrupt() -> None:
    if not GOLDEN.exists():
        pytest.skip(f"no golden tables at {GOLDEN}")
    store = LocalStore(str(GOLDEN / "deltalog-state-reconstruction-from-checkpoint-missing-protocol"))
    segment = list_segment(store)
    assert segment.checkpoint is not None
    with pytest.raises(CorruptCheckpoint) as caught:
        read_checkpoint(store, segment.checkpoint)
    assert caught.value.path == CHECKPOINT


def deltalake_table(path: Path, versions: int = 4) -> Any:
    """A partitioned table of delta-rs, with nulls and characters that need escaping among its partition values."""
    deltalake = pytest.importorskip("deltalake")
    for number in range(versions):
        rows = pa.table(
            {
                "p": pa.array(["a b", "ä/%25+", None, ""], pa.string()),
                "day": pa.array([datetime.date(2024, 1, number + 1)] * 4, pa.date32()),
                "x": pa.array([number * 10 + i for i in range(4)], pa.int64()),
            }
        )
        deltalake.write_deltalake(str(path), rows, mode="append", partition_by=["p", "day"])
    table = deltalake.DeltaTable(str(path))
    table.delete("x = 21")
    table.delete("day = '2024-01-02'")
    return table


def test_deltalake_reads_a_table_of_which_only_our_checkpoint_is_left(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    table = deltalake_table(tmp_path / "t")
    version = table.version()
    live, last = replayed(tmp_path / "t", version)
    shutil.copytree(tmp_path / "t", tmp_path / "copy")
    assert last.protocol is not None
    assert last.metadata is not None
    write_checkpoint(
        LocalStore(str(tmp_path / "copy")),
        CheckpointState(
            version=version,
            protocol=last.protocol,
            metadata=last.metadata,
            transactions={"app": SetTransaction(app_id="app", version=7, last_updated=1)},
            domains={},
            adds=adds_to_table(list(live.values())),
            removes=removes_to_table([Remove(path="gone", data_change=True, deletion_timestamp=5)]),
        ),
    )
    for number in range(version):
        (tmp_path / "copy" / "_delta_log" / f"{number:020d}.json").unlink()
    copy = deltalake.DeltaTable(str(tmp_path / "copy"))
    assert copy.version() == version
    assert copy.transaction_version("app") == 7
    ours, theirs = ([uri.rsplit("/t/", 1)[-1].rsplit("/copy/", 1)[-1] for uri in t.file_uris()] for t in (copy, table))
    assert sorted(ours) == sorted(theirs)
    assert len(theirs) == len(live) > 5
    assert copy.to_pyarrow_table().sort_by("x").equals(table.to_pyarrow_table().sort_by("x"))
    deltalake.write_deltalake(copy, copy.to_pyarrow_table().slice(0, 1), mode="append")
    assert copy.version() == version + 1
    copy.create_checkpoint()  # what it read of ours it can write again
    assert len(read(LocalStore(str(tmp_path / "copy"))).adds) == len(live) + 1


def test_we_read_what_deltalake_checkpoints(tmp_path: Path) -> None:
    table = deltalake_table(tmp_path / "t")
    table.create_checkpoint()
    content = read(LocalStore(str(tmp_path / "t")))
    live, last = replayed(tmp_path / "t", table.version())
    assert sorted(map(_facts, table_to_adds(content.adds, True))) == sorted(map(_facts, live.values()))
    assert content.protocol == last.protocol
    assert last.metadata is not None
    assert content.metadata.id == last.metadata.id
    assert content.removes.num_rows > 0


# --- what is wrong --------------------------------------------------------------------------------------------------


def _garbage(data: bytes) -> bytes:
    return b"not parquet at all"


def _truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _tail_only(data: bytes) -> bytes:
    return data[len(data) // 2 :]


def _flipped(data: bytes) -> bytes:
    return data[:40] + bytes(255 - byte for byte in data[40:400]) + data[400:]


@pytest.mark.parametrize("damage", [_garbage, _truncated, _tail_only, _flipped])
def test_damaged_bytes_are_corrupt(damage: Callable[[bytes], bytes]) -> None:
    store = memory()
    write(store, [add(f"f{i}", stats=f'{{"numRecords":{i}}}') for i in range(100)])
    store.put(CHECKPOINT, damage(store.read(CHECKPOINT)))
    with pytest.raises(CorruptCheckpoint) as caught:
        read(store)
    assert caught.value.path == CHECKPOINT
    assert caught.value.table == store.root


def test_a_bit_that_flipped_in_a_path_is_corrupt_and_no_other_file() -> None:
    """Pages carry checksums: what is damaged and still decodes would be a file that nobody wrote.

    The path stands in the page once, and in statistics, which nobody reads.
    """
    path = b"a-path-that-is-there-once"
    store = memory()
    write(store, [add(path.decode())])
    whole = store.read(CHECKPOINT)
    places = [place for place in range(len(whole)) if whole.startswith(path, place)]
    corrupt = 0
    for place in places:
        store.put(CHECKPOINT, whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            assert read(store).adds.column("path").to_pylist() == [path.decode()]
        except CorruptCheckpoint:
            corrupt += 1
    assert corrupt == 1


PROTOCOL_ROW = {"minReaderVersion": 1, "minWriterVersion": 2}
METADATA_ROW = {"id": "m", "schemaString": "{}", "partitionColumns": [], "format": {"provider": "parquet"}}


NOW = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
GOOD = {"path": "a", "size": 1}


def put_rows(store: Store, **columns: list[Any]) -> None:
    """A checkpoint that holds just these columns."""
    count = max(map(len, columns.values()))
    table = pa.table({name: pa.array([*rows, *[None] * (count - len(rows))]) for name, rows in columns.items()})
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    store.put(CHECKPOINT, buffer.getvalue())


def test_columns_that_a_writer_left_out_are_null() -> None:
    store = memory()
    put_rows(
        store,
        protocol=[PROTOCOL_ROW],
        metaData=[METADATA_ROW],
        add=[None, {"path": "a", "size": 1, "modificationTime": 2, "dataChange": False, "ofTheFuture": [1]}],
        remove=[{"path": "b"}],
        unknown=[{"x": 1}],
    )
    content = read(store)
    (row,) = content.adds.to_pylist()
    assert {name: value for name, value in row.items() if value is not None} == {
        "path": "a",
        "size": 1,
        "modification_time": 2,
    }
    assert content.adds.schema == FILES
    assert content.removes.schema == TOMBSTONES
    assert content.metadata.partition_columns == []
    assert content.metadata.configuration == {}


@pytest.mark.parametrize(
    "columns",
    [
        {"protocol": [PROTOCOL_ROW]},
        {"metaData": [METADATA_ROW]},
        {"protocol": [PROTOCOL_ROW, PROTOCOL_ROW], "metaData": [METADATA_ROW]},
        {"protocol": [{"minReaderVersion": "one"}], "metaData": [METADATA_ROW]},
        {"protocol": [PROTOCOL_ROW], "metaData": [{"id": "m"}]},
        {"protocol": [PROTOCOL_ROW], "metaData": [METADATA_ROW], "add": [{"path": None, "size": 1}]},
        {"protocol": [PROTOCOL_ROW], "metaData": [METADATA_ROW], "add": [{"path": "a"}]},
        {"protocol": [PROTOCOL_ROW], "metaData": [METADATA_ROW], "add": [{"path": "a", "size": "big"}]},
        {"protocol": [PROTOCOL_ROW], "metaData": [METADATA_ROW], "add": ["a"]},
        {"protocol": [PROTOCOL_ROW], "metaData": [METADATA_ROW | {"configuration": "x"}]},
        {"protocol": [PROTOCOL_ROW], "metaData": [METADATA_ROW], "remove": [{"size": 1}]},
        {"protocol": [PROTOCOL_ROW], "metaData": [METADATA_ROW], "add": [{"path": 1, "size": 1}]},
        {"protocol": [PROTOCOL_ROW], "metaData": [METADATA_ROW], "add": [{"path": "a", "size": 1.0}]},
        {"protocol": [PROTOCOL_ROW], "metaData": [METADATA_ROW], "add": [{"path": b"\xff", "size": 1}]},
        {"protocol": [PROTOCOL_ROW], "metaData": [METADATA_ROW], "remove": [{"path": "a", "deletionTimestamp": NOW}]},
        {"protocol": [PROTOCOL_ROW], "metaData": [METADATA_ROW | {"partitionColumns": ["p"]}], "add": [GOOD]},
        {"protocol": [PROTOCOL_ROW], "metaData": [METADATA_ROW], "add": [GOOD | {"deletionVector": {"offset": 1}}]},
        {"protocol": [PROTOCOL_ROW], "metaData": [METADATA_ROW], "checkpointMetadata": [{"version": 9}]},
        {"protocol": [PROTOCOL_ROW], "metaData": [METADATA_ROW], "checkpointMetadata": [{"version": 10}] * 2},
    ],
)
def test_a_checkpoint_that_lacks_what_every_one_holds_is_corrupt(columns: dict[str, list[Any]]) -> None:
    store = memory()
    put_rows(store, **columns)
    with pytest.raises(CorruptCheckpoint):
        read(store)


@given(st.lists(st.sampled_from([f"path {number}" for number in range(40)]), max_size=40))
def test_a_path_that_occurs_twice_is_found_in_any_parts(paths: list[str]) -> None:
    parts = [pa.array(paths[start : start + 7], pa.string()) for start in range(0, len(paths), 7)]
    assert may_hold_twice(parts) == (len(set(paths)) < len(paths))


def test_a_checkpoint_that_log_cleanup_took_is_missing_and_not_corrupt() -> None:
    store = memory()
    write(store)
    segment = list_segment(store)
    assert segment.checkpoint is not None
    store.delete(CHECKPOINT)
    with pytest.raises(FileNotFoundError):
        read_checkpoint(store, segment.checkpoint)


def test_a_checkpoint_that_fails_in_the_middle_leaves_the_old_one_and_the_hint() -> None:
    store = memory()
    write(store, [add("a")])
    before = {info.path: store.read(info.path) for info in store.walk()}
    with pytest.raises(KeyError):
        write(store, files=adds_to_table([add("b")]).drop_columns(["path"]))
    assert {info.path: store.read(info.path) for info in store.walk()} == before


# --- statistics as a struct -----------------------------------------------------------------------------------------


_TEXTS = st.text(st.sampled_from('a"\\\n\x00\x1f\x7fé😀'), max_size=3)
_MEMBERS = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.floats(),
        "q": st.none() | st.decimals(-999, 999, places=2),
        'a "b"': st.none() | _TEXTS,
        "t": st.none() | st.booleans(),
        "b": st.none() | st.binary(max_size=2),
        "s": st.none() | st.fixed_dictionaries({"x": st.none() | _TEXTS}),
    }
)
_PARSED = st.none() | st.fixed_dictionaries({"numRecords": st.none() | st.just(3), "minValues": st.none() | _MEMBERS})
_MEMBER_TYPES = {"i": pa.int64(), "f": pa.float64(), "q": pa.decimal128(9, 2), 'a "b"': pa.string(), "t": pa.bool_()}
_MEMBER_TYPES |= {"b": pa.binary(), "s": pa.struct([("x", pa.large_string())])}


@settings(max_examples=depth(50, 500), deadline=None)
@given(st.lists(_PARSED, max_size=4), st.integers(0, 2))
def test_statistics_as_structs_become_the_json_of_their_values(rows: list[Any], start: int) -> None:
    kind = pa.struct([("numRecords", pa.int64()), ("minValues", pa.struct(list(_MEMBER_TYPES.items())))])
    found = statistics_json(pa.array(rows, kind).slice(start)).to_pylist()
    read = [None if text is None else json.loads(text, parse_float=str) for text in found]
    assert read == [None if row is None else _stated(row) or {} for row in rows[start:]]


def _stated(row: dict[str, Any]) -> dict[str, Any] | None:
    """The members that JSON can state, floats and decimals as their texts."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            value = _stated(value)
        elif isinstance(value, float | decimal.Decimal):
            value = msgspec.json.encode(value).decode().strip('"') if math.isfinite(value) else None
        if value is not None and not isinstance(value, bytes):
            found[name] = value
    return found or None


def test_statistics_kept_as_a_struct_alone_may_lie_outside_of_python_s_years() -> None:
    far = {"d": 2**31 - 1, "t": 2**62, "n": -(2**62)}
    kinds = {"d": pa.date32(), "t": pa.timestamp("us", "UTC"), "n": pa.timestamp("us")}
    integers = {name: pa.int32() if name == "d" else pa.int64() for name in far}
    values = [pa.array([value], integers[name]).cast(kinds[name]) for name, value in far.items()]
    bounds = pa.StructArray.from_arrays(values, list(far))
    parsed = pa.StructArray.from_arrays([pa.array([1]), bounds], ["numRecords", "maxValues"])
    assert json.loads(statistics_json(parsed)[0].as_py())["maxValues"] == {
        "d": "+5881580-07-11",
        "t": "+148108-07-06T14:00:27.387904Z",
        "n": "-144169-06-28T09:59:32.612096",
    }


def test_statistics_as_structs_in_types_of_arrow_s_own_writer_become_json() -> None:
    """It notes these types in the file, and gives them back."""
    values = {
        "d": pa.array(["a", None, "b"]).dictionary_encode(),
        "n": pa.array([7, 8, 7]).dictionary_encode(),
        "v": pa.array(["x", 'y"', None], pa.string_view()),
        "h": pa.array([1.5, None, float("inf")], pa.float16()),
    }
    bounds = pa.StructArray.from_arrays(list(values.values()), list(values))
    parsed = pa.StructArray.from_arrays([pa.array([1, 2, 3]), bounds], ["numRecords", "minValues"])
    assert [json.loads(text)["minValues"] for text in statistics_json(parsed).to_pylist()] == [
        {"d": "a", "n": 7, "v": "x", "h": 1.5},
        {"n": 8, "v": 'y"'},
        {"d": "b", "n": 7},
    ]


def test_statistics_kept_as_a_struct_alone_come_back_as_json() -> None:
    utc = datetime.UTC
    parsed = {
        "numRecords": 3,
        "minValues": {
            "i": 1,
            "f": 1.5,
            "nan": float("nan"),
            "s": 'a"b',
            "d": datetime.date(2024, 2, 29),
            "t": datetime.datetime(2024, 1, 2, 3, 4, 5, 678000, tzinfo=utc),
            "n": datetime.datetime(2024, 1, 2, 3, 4, 5),
            "c": decimal.Decimal("123456789012345678.90"),
            "b": b"\xff",
            "nested": {"x": 1, "y": None},
            "none": {"x": None},
        },
        "nullCount": {"i": 0},
        "tightBounds": True,
    }
    store = memory()
    put_rows(
        store,
        protocol=[PROTOCOL_ROW],
        metaData=[METADATA_ROW],
        add=[
            {"path": "a", "size": 1, "modificationTime": 2, "stats": None, "stats_parsed": parsed},
            {"path": "b", "size": 1, "modificationTime": 2, "stats": '{"numRecords":7}', "stats_parsed": None},
            {"path": "c", "size": 1, "modificationTime": 2, "stats": None, "stats_parsed": None},
        ],
    )
    first, second, third = read(store).adds.column("stats").to_pylist()
    assert json.loads(first, parse_float=decimal.Decimal) == {
        "numRecords": 3,
        "minValues": {
            "i": 1,
            "f": decimal.Decimal("1.5"),
            "s": 'a"b',
            "d": "2024-02-29",
            "t": "2024-01-02T03:04:05.678000Z",
            "n": "2024-01-02T03:04:05",
            "c": decimal.Decimal("123456789012345678.90"),
            "nested": {"x": 1},
        },
        "nullCount": {"i": 0},
        "tightBounds": True,
    }
    assert second == '{"numRecords":7}'
    assert third is None


def in_types(strings: pa.DataType, longs: pa.DataType, ints: pa.DataType) -> pa.Table:
    """A checkpoint of one add and one remove whose columns are of these types."""
    maps = pa.map_(strings, strings)
    vector = pa.struct([("storageType", strings), ("pathOrInlineDv", strings), ("offset", ints), ("cardinality", ints)])
    add = pa.struct([("path", strings), ("partitionValues", maps), ("size", longs), ("stats", strings),
                     ("tags", maps), ("deletionVector", vector), ("baseRowId", ints)])  # fmt: skip
    remove = pa.struct([("path", strings), ("deletionTimestamp", longs), ("partitionValues", maps)])
    held = {"storageType": "u", "pathOrInlineDv": "v", "offset": 1, "cardinality": 2}
    added = {"path": "a", "partitionValues": [("p", None), ("q", "1")], "size": 7, "stats": "{}", "tags": [],
             "deletionVector": held, "baseRowId": 3}  # fmt: skip
    removed = {"path": "b", "deletionTimestamp": 5, "partitionValues": None}
    return pa.table(
        {
            "protocol": pa.array([PROTOCOL_ROW, None, None, None]),
            "metaData": pa.array([None, METADATA_ROW, None, None]),
            "add": pa.array([None, None, added, None], add),
            "remove": pa.array([None, None, None, removed], remove),
        }
    )


@pytest.mark.parametrize(
    ("strings", "longs", "ints"),
    [
        (pa.string(), pa.int64(), pa.int32()),
        (pa.large_string(), pa.int64(), pa.int64()),
        (pa.binary(), pa.int32(), pa.int16()),
        (pa.large_binary(), pa.uint32(), pa.uint8()),
        (pa.string(), pa.int16(), pa.int8()),
    ],
    ids=str,
)
def test_widths_and_encodings_of_other_writers_say_the_same(
    strings: pa.DataType, longs: pa.DataType, ints: pa.DataType
) -> None:
    store = memory()
    buffer = io.BytesIO()
    pq.write_table(in_types(strings, longs, ints), buffer)
    store.put(CHECKPOINT, buffer.getvalue())
    content = read(store)
    assert content.adds.schema == FILES
    assert content.removes.schema == TOMBSTONES
    (row,) = content.adds.to_pylist()
    assert (row["path"], dict(row["partition_values"]), row["size"], row["stats"]) == (
        "a",
        {"p": None, "q": "1"},
        7,
        "{}",
    )
    assert (row["deletion_vector"]["offset"], row["base_row_id"], row["tags"]) == (1, 3, [])
    (gone,) = content.removes.to_pylist()
    assert (gone["path"], gone["deletion_timestamp"], gone["partition_values"]) == ("b", 5, None)


@pytest.mark.parametrize("kind", [pa.dictionary(pa.int32(), pa.string()), pa.string_view()], ids=str)
def test_strings_that_a_writer_kept_in_another_form_are_read(kind: pa.DataType) -> None:
    """Arrow's own writer notes the type of its columns in the file, and gives dictionaries and views back."""
    path = pa.array(["a", "b", "a c"]).cast(kind)
    size = pa.array([1, 2, 3], pa.int32())
    add = pa.StructArray.from_arrays([path, size], names=["path", "size"])
    rows = {"protocol": pa.array([PROTOCOL_ROW, None, None]), "metaData": pa.array([None, METADATA_ROW, None])}
    buffer = io.BytesIO()
    pq.write_table(pa.table(rows | {"add": add}), buffer)
    store = memory()
    store.put(CHECKPOINT, buffer.getvalue())
    assert pq.read_schema(store.open_input(CHECKPOINT)).field("add").type[0].type == path.type
    assert read(store).adds.column("path").to_pylist() == ["a", "b", "a c"]


def test_partition_values_kept_as_a_struct_alone_come_back_as_the_map_of_the_log() -> None:
    utc = datetime.UTC
    parsed = {
        "i": 1, "s": "a b", "d": datetime.date(2024, 2, 29), "b": True, "n": None, "c": decimal.Decimal("1.50"),
        "t": datetime.datetime(2024, 1, 2, 3, 4, 5, 6, utc), "w": datetime.datetime(2024, 1, 2, 3, 4, 5),
    }  # fmt: skip
    types = [pa.int32(), pa.string(), pa.date32(), pa.bool_(), pa.int64(), pa.decimal128(5, 2)]
    types += [pa.timestamp("us", "UTC"), pa.timestamp("us")]
    names = pa.struct(list(zip(parsed, types, strict=True)))
    add = pa.struct([("path", pa.string()), ("size", pa.int64()), ("partitionValues_parsed", names)])
    metadata = METADATA_ROW | {"partitionColumns": list(parsed)}
    rows = {
        "protocol": pa.array([PROTOCOL_ROW, None]),
        "metaData": pa.array([None, metadata]),
        "add": pa.array([None, {"path": "a", "size": 1, "partitionValues_parsed": parsed}], add),
    }
    buffer = io.BytesIO()
    pq.write_table(pa.table(rows), buffer)
    store = memory()
    store.put(CHECKPOINT, buffer.getvalue())
    (row,) = read(store).adds.to_pylist()
    assert dict(row["partition_values"]) == {
        "i": "1", "s": "a b", "d": "2024-02-29", "b": "true", "n": None, "c": "1.50",
        "t": "2024-01-02T03:04:05.000006Z", "w": "2024-01-02 03:04:05",
    }  # fmt: skip


def test_struct_statistics_are_not_read_where_every_file_has_json() -> None:
    store = memory()
    put_rows(
        store,
        protocol=[PROTOCOL_ROW],
        metaData=[METADATA_ROW],
        add=[{"path": "a", "size": 1, "stats": "{}", "stats_parsed": {"numRecords": 1}}],
    )
    assert read(store).adds.column("stats").to_pylist() == ["{}"]


@given(st.lists(MAPS, max_size=4))
def test_partition_values_keep_null_and_the_empty_string_apart(values: list[dict[str, str | None]]) -> None:
    store = memory()
    write(store, [add(f"f{i}", partition_values=each) for i, each in enumerate(values)])
    assert [each.partition_values for each in table_to_adds(read(store).adds, True)] == values
