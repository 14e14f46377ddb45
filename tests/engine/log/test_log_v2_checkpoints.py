"""V2 checkpoints: a top level and its sidecars, read in every shape that the protocol allows."""

from __future__ import annotations

import datetime
import io
import json
import uuid
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine.log.checkpoints.reading import CheckpointContent, read_checkpoint, sidecars_of
from airflow_txlog.engine.log.columns import TOMBSTONES
from airflow_txlog.engine.log.segment import CheckpointFiles
from airflow_txlog.errors import CorruptCheckpoint
from airflow_txlog.storage import LocalStore, MemoryStore, Store
from tests.helpers.checkpoints import list_checkpoints
from tests.helpers.paths import GOLDEN

UUID = "80a083e8-7026-4e79-81be-64bd76c43a11"
PREFIX = f"_delta_log/{10:020d}.checkpoint"
SIDECARS = "_delta_log/_sidecars"

ABOUT = {"checkpointMetadata": {"version": 10, "tags": {"of": "the writer's own"}}}
PROTOCOL = {
    "protocol": {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["v2Checkpoint"],
        "writerFeatures": ["v2Checkpoint"],
    }
}
METADATA = {
    "metaData": {
        "id": "m",
        "schemaString": "{}",
        "partitionColumns": [],
        "format": {"provider": "parquet", "options": {}},
        "configuration": {"delta.checkpointPolicy": "v2"},
    }
}
TRANSACTION = {"txn": {"appId": "a", "version": 3}}
DOMAIN = {"domainMetadata": {"domain": "d", "configuration": "c", "removed": False}}
WHOLE = [ABOUT, PROTOCOL, METADATA, TRANSACTION, DOMAIN]


def add(path: str, **given: Any) -> dict[str, Any]:
    values = {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 2, "dataChange": False}
    return {"add": values | given}


def remove(path: str, **given: Any) -> dict[str, Any]:
    return {"remove": {"path": path, "deletionTimestamp": 5, "dataChange": False} | given}


MAP = pa.map_(pa.string(), pa.string())
MAPS = ("partitionValues", "tags", "configuration")


def parquet(*actions: dict[str, Any]) -> bytes:
    """The actions as one Parquet file, one row each, a column for every action that occurs."""
    names = list(dict.fromkeys(name for action in actions for name in action))
    arrays = [pa.array([action.get(name) for action in actions], _struct_of(actions, name)) for name in names]
    buffer = io.BytesIO()
    pq.write_table(pa.table(dict(zip(names, arrays, strict=True))), buffer)
    return buffer.getvalue()


def _struct_of(actions: tuple[dict[str, Any], ...], name: str) -> pa.DataType:
    rows = [action[name] for action in actions if name in action]
    maps = [key for key in MAPS if any(isinstance(row.get(key), dict) for row in rows)]
    plain = pa.array([{key: value for key, value in row.items() if key not in maps} for row in rows]).type
    nested = pa.struct([("provider", pa.string()), ("options", MAP)])
    fields = [(each.name, nested if each.name == "format" else each.type) for each in plain]
    return pa.struct(fields + [(key, MAP) for key in maps])


def lines(*actions: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(action).encode() + b"\n" for action in actions)


def memory() -> MemoryStore:
    return MemoryStore(f"memory://v2-{uuid.uuid4().hex}")


def sidecar(store: Store, name: str, *actions: dict[str, Any], path: str | None = None, **given: Any) -> dict[str, Any]:
    """A sidecar with these actions, written, and the action that names it."""
    data = parquet(*actions)
    store.put(f"{SIDECARS}/{name}", data)
    return {"sidecar": {"path": path or name, "sizeInBytes": len(data), "modificationTime": 1} | given}


def read(store: Store) -> CheckpointContent:
    (checkpoint,) = list_checkpoints(store)
    return read_checkpoint(store, checkpoint)


def top_level(store: Store, form: str, *actions: dict[str, Any]) -> None:
    name = f"{PREFIX}.parquet" if form == "classic name" else f"{PREFIX}.{UUID}.{form}"
    store.put(name, lines(*actions) if form == "json" else parquet(*actions))


FORMS = ("json", "parquet", "classic name")


@pytest.mark.parametrize("form", FORMS)
def test_the_files_of_all_sidecars_are_the_files_of_the_checkpoint(form: str) -> None:
    store = memory()
    one = sidecar(store, "1.parquet", add("a", stats='{"numRecords":1}'), remove("x"))
    two = sidecar(store, "2.parquet", add("b"), add("c"))
    top_level(store, form, *WHOLE, one, two)
    content = read(store)
    assert content.adds.column("path").to_pylist() == ["a", "b", "c"]
    assert content.adds.column("stats").to_pylist() == ['{"numRecords":1}', None, None]
    assert content.removes.column("path").to_pylist() == ["x"]
    assert content.protocol.reader_features == ["v2Checkpoint"]
    assert content.metadata.configuration == {"delta.checkpointPolicy": "v2"}
    assert content.transactions["a"].version == 3
    assert content.domains["d"].configuration == "c"


@pytest.mark.parametrize("form", FORMS)
def test_the_files_may_stand_in_the_top_level_itself(form: str) -> None:
    store = memory()
    vector = {"storageType": "u", "pathOrInlineDv": "ab", "offset": 1, "sizeInBytes": 2, "cardinality": 3}
    top_level(store, form, *WHOLE, add("a", deletionVector=vector, baseRowId=7), remove("x", deletionVector=vector))
    content = read(store)
    (row,) = content.adds.to_pylist()
    assert (row["path"], row["base_row_id"], row["deletion_vector"]["offset"]) == ("a", 7, 1)
    assert content.removes.column("deletion_vector").to_pylist()[0]["cardinality"] == 3


@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_of_an_empty_table_has_no_sidecars(form: str) -> None:
    store = memory()
    top_level(store, form, *WHOLE)
    content = read(store)
    assert content.adds.num_rows == 0
    assert content.removes.schema == TOMBSTONES


@pytest.mark.parametrize(
    "path",
    [
        "a%20b.parquet",
        "{root}/_delta_log/_sidecars/a%20b.parquet",
        "_delta_log/_sidecars/a%20b.parquet",
    ],
)
def test_a_sidecar_is_named_by_its_name_or_by_where_it_is(path: str) -> None:
    store = memory()
    named = sidecar(store, "a b.parquet", add("a"), path=path.format(root=store.root))
    top_level(store, "json", *WHOLE, named)
    assert read(store).adds.num_rows == 1
    (checkpoint,) = list_checkpoints(store)
    assert sidecars_of(store, checkpoint) == (f"{SIDECARS}/a b.parquet",)


@pytest.mark.parametrize(
    "path",
    ["../x.parquet", "memory://elsewhere/x.parquet", "/etc/x.parquet", "{root}/x.parquet", "a/x.parquet", "", ".."],
)
def test_a_sidecar_that_lies_elsewhere_is_corrupt(path: str) -> None:
    store = memory()
    named = sidecar(store, "x.parquet", add("a"), path=path.format(root=store.root))
    named["sidecar"]["path"] = path.format(root=store.root)
    top_level(store, "json", *WHOLE, named)
    (checkpoint,) = list_checkpoints(store)
    for act in (read_checkpoint, sidecars_of):
        with pytest.raises(CorruptCheckpoint) as caught:
            act(store, checkpoint)
        assert caught.value.path == checkpoint.path


@pytest.mark.parametrize("form", FORMS)
def test_which_sidecars_a_checkpoint_refers_to_is_told_without_reading_them(form: str) -> None:
    store = memory()
    named = [sidecar(store, f"{i}.parquet", add(f"f{i}")) for i in range(3)]
    top_level(store, form, *WHOLE, *named)
    for i in range(3):
        store.delete(f"{SIDECARS}/{i}.parquet")
    (checkpoint,) = list_checkpoints(store)
    assert sidecars_of(store, checkpoint) == tuple(f"{SIDECARS}/{i}.parquet" for i in range(3))


def test_a_checkpoint_without_sidecars_refers_to_none() -> None:
    store = memory()
    top_level(store, "classic name", PROTOCOL, METADATA, add("a"))
    (checkpoint,) = list_checkpoints(store)
    assert sidecars_of(store, checkpoint) == ()


# --- what is wrong --------------------------------------------------------------------------------------------------


def corrupt_path(store: Store, checkpoint: CheckpointFiles | None = None) -> str:
    with pytest.raises(CorruptCheckpoint) as caught:
        read(store)
    assert caught.value.table == store.root
    return str(caught.value.path)


def test_a_missing_sidecar_is_corrupt() -> None:
    store = memory()
    top_level(store, "parquet", *WHOLE, sidecar(store, "1.parquet", add("a")), sidecar(store, "2.parquet", add("b")))
    store.delete(f"{SIDECARS}/2.parquet")
    assert corrupt_path(store) == f"{SIDECARS}/2.parquet"


@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"x" * len(data)]
)
def test_a_torn_sidecar_is_corrupt(damage: Any) -> None:
    store = memory()
    top_level(store, "json", *WHOLE, sidecar(store, "1.parquet", add("a")))
    store.put(f"{SIDECARS}/1.parquet", damage(store.read(f"{SIDECARS}/1.parquet")))
    assert corrupt_path(store) == f"{SIDECARS}/1.parquet"


def test_a_sidecar_of_another_size_than_its_top_level_says_is_corrupt() -> None:
    """Whole as it is: it may be another writer's, with other files in it."""
    store = memory()
    top_level(store, "json", *WHOLE, sidecar(store, "1.parquet", add("a")))
    store.put(f"{SIDECARS}/1.parquet", parquet(add("a"), add("b", stats="{}")))
    assert corrupt_path(store) == f"{SIDECARS}/1.parquet"


def test_a_sidecar_without_a_column_of_files_is_corrupt() -> None:
    store = memory()
    top_level(store, "json", *WHOLE, sidecar(store, "1.parquet", TRANSACTION))
    assert corrupt_path(store) == f"{SIDECARS}/1.parquet"


def test_a_file_in_two_sidecars_is_corrupt() -> None:
    """Its rows would be read twice."""
    store = memory()
    named = [sidecar(store, "1.parquet", add("a")), sidecar(store, "2.parquet", add("b"), add("a"))]
    top_level(store, "json", *WHOLE, *named)
    with pytest.raises(CorruptCheckpoint, match="add a more than once"):
        read(store)


def test_a_path_with_two_deletion_vectors_is_two_files() -> None:
    store = memory()
    vectors = [{"storageType": "u", "pathOrInlineDv": name, "sizeInBytes": 1, "cardinality": 1} for name in "vw"]
    named = [sidecar(store, f"{i}.parquet", add("a", deletionVector=each)) for i, each in enumerate(vectors)]
    top_level(store, "json", *WHOLE, *named)
    assert read(store).adds.num_rows == 2


@pytest.mark.parametrize("form", ["json", "parquet"])
@pytest.mark.parametrize("missing", [ABOUT, PROTOCOL, METADATA])
def test_a_top_level_that_lacks_what_every_one_has_is_corrupt(form: str, missing: dict[str, Any]) -> None:
    store = memory()
    named = sidecar(store, "1.parquet", add("a"))
    top_level(store, form, *(each for each in WHOLE if each is not missing), named)
    assert corrupt_path(store) == f"{PREFIX}.{UUID}.{form}"


@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_of_another_version_than_its_name_says_is_corrupt(form: str) -> None:
    store = memory()
    top_level(store, form, {"checkpointMetadata": {"version": 9}}, PROTOCOL, METADATA, add("a"))
    with pytest.raises(CorruptCheckpoint, match="version 9"):
        read(store)


@pytest.mark.parametrize("cut", [1, 20, 150])
def test_a_torn_top_level_in_json_is_corrupt(cut: int) -> None:
    store = memory()
    top_level(store, "json", *WHOLE, sidecar(store, "1.parquet", add("a")))
    name = f"{PREFIX}.{UUID}.json"
    store.put(name, store.read(name)[: -cut - 1])
    assert corrupt_path(store) == name


@pytest.mark.parametrize(
    "line", [b"\xff\n", b"[]\n", b'{"add":{"path":"a"}}\n', b'{"sidecar":{"path":"a"}}\n', b'{"protocol":1}\n']
)
def test_a_top_level_in_json_with_a_bad_line_is_corrupt(line: bytes) -> None:
    store = memory()
    store.put(f"{PREFIX}.{UUID}.json", lines(*WHOLE) + line)
    assert corrupt_path(store) == f"{PREFIX}.{UUID}.json"


# --- what real writers wrote ----------------------------------------------------------------------------------------


def test_golden_v2_checkpoint_in_json_says_what_its_commits_say() -> None:
    if not GOLDEN.exists():
        pytest.skip(f"no golden tables at {GOLDEN}")
    store = LocalStore(str(GOLDEN / "v2-checkpoint-json"))
    log = [json.loads(line) for n in range(3) for line in store.read(f"_delta_log/{n:020d}.json").splitlines()]
    added = {line["add"]["path"]: line["add"]["stats"] for line in log if "add" in line}
    content = read(store)
    found = dict(zip(*(content.adds.column(name).to_pylist() for name in ("path", "stats")), strict=True))
    assert found == added
    assert len(found) == 4


def test_statistics_kept_as_int96_are_instants() -> None:
    """The reference writer keeps timestamps in `stats_parsed` as INT96, which names no zone; year 9999 included."""
    utc = datetime.UTC
    times = [datetime.datetime(2024, 1, 2, 3, 4, 5, 678000, utc), datetime.datetime(9999, 12, 31, 23, 59, 59, 0, utc)]
    low, high = ({"t": time, "s": {"t": time}} for time in times)
    parsed = {"numRecords": 2, "minValues": low, "maxValues": high}
    store = memory()
    rows = pa.table(
        {
            "protocol": [PROTOCOL["protocol"]],
            "metaData": pa.array([METADATA["metaData"]], _struct_of((METADATA,), "metaData")),
        }
    )
    adds = pa.table({"add": pa.array([{"path": "a", "size": 1, "stats_parsed": parsed}])})
    buffer = io.BytesIO()
    table = pa.concat_tables([rows, adds], promote_options="default")
    pq.write_table(table, buffer, use_deprecated_int96_timestamps=True, store_schema=False)
    store.put(f"{PREFIX}.parquet", buffer.getvalue())
    (stats,) = read(store).adds.column("stats").to_pylist()
    found = json.loads(stats)
    assert found["minValues"] == {"t": "2024-01-02T03:04:05.678000Z", "s": {"t": "2024-01-02T03:04:05.678000Z"}}
    assert found["maxValues"]["t"] == "9999-12-31T23:59:59Z"
