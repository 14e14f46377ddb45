"""Bad input to the engine: a clear typed error each, with nothing written and nothing lost."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.names import commit_name
from tests.helpers.rows import append

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Versions 0 to 3; ids 0, 1, 2 on day "a"."""
    table = Table.create(tmp_path / "t", SCHEMA, ["day"])
    for number in range(3):
        append(table, [{"id": number, "day": "a"}])
    return Table(table.store)


@pytest.fixture
def files_before(table: Table) -> dict[str, bytes]:
    return contents(table)


def contents(table: Table) -> dict[str, bytes]:
    return {info.path: table.store.read(info.path) for info in table.store.walk()}


def damage(table: Table, version: int, data: bytes) -> None:
    path = Path(table.uri.removeprefix("file://"), commit_name(version))
    path.write_bytes(data)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.TableNotFound, match=str(tmp_path / "nowhere")):
        Table.open(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(errors.TableNotFound):
        Table.open(tmp_path / "empty")
    assert not Table.exists(tmp_path / "empty")


def test_a_column_that_does_not_exist_is_named_with_the_nearest(table: Table, files_before: dict[str, bytes]) -> None:
    for use in (table.snapshot().files, table.to_arrow, table.begin().read):
        with pytest.raises(errors.UnknownColumn) as caught:
            use("dya = 'a'")
        assert caught.value.column == "dya"
        assert "day" in str(caught.value)
    with pytest.raises(errors.UnknownColumn):
        table.to_arrow(columns=["nothing"])
    assert contents(table) == files_before


@pytest.mark.parametrize(
    "predicate",
    ["", "id =", "id = 1 AND", "SELECT 1", "id = 1; DROP TABLE t", "id = 1) OR (1 = 1", "id IN (SELECT 1)", "id = 1 x"],
)
def test_what_is_not_one_condition_is_refused(table: Table, files_before: dict[str, bytes], predicate: str) -> None:
    with pytest.raises(errors.InvalidPredicate):
        table.snapshot().files(predicate)
    with pytest.raises(errors.InvalidPredicate):
        table.begin().read(predicate)
    assert contents(table) == files_before


def test_rows_are_never_chosen_by_a_guess(table: Table) -> None:
    """Outside the closed grammar a predicate keeps every file, and chooses no row."""
    assert table.snapshot().files("id % 2 = 0").num_rows == 3
    with pytest.raises(errors.UnsupportedPredicate):
        table.to_arrow("id % 2 = 0")


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", None),
        (b"not json\n", 1),
        (b'{"commitInfo":{}}\n{"add":{"path":"x"', 2),
        (b'{"commitInfo":{}}\n{"add":{"path":1}}\n', 2),
        (b"\xff\xfe\n", 1),
        (b'{"commitInfo":{}}\n[1]\n', 2),
    ],
)
def test_a_corrupt_commit_is_named_and_nothing_is_built_on_it(table: Table, data: bytes, line: int | None) -> None:
    tx = table.begin()
    tx.add(path="x", partition_values={"day": "b"}, size=1)
    damage(table, 3, data)
    before = contents(table)
    with pytest.raises(errors.CorruptCommit) as caught:
        table.snapshot()
    assert commit_name(3) in str(caught.value.path)
    if line is not None:
        assert caught.value.line == line
    assert table.snapshot(2).version == 2
    with pytest.raises(errors.TableReplaced):
        tx.commit("WRITE")
    assert contents(table) == before


def test_a_corrupt_commit_of_a_winner_is_not_passed_over(table: Table) -> None:
    tx = table.begin()
    tx.add(path="x", partition_values={"day": "b"}, size=1)
    damage(table, 4, b"half a lin")
    with pytest.raises(errors.CorruptCommit):
        tx.commit("WRITE")
    assert table.store.stat(commit_name(5)) is None


def test_a_data_file_that_is_gone_or_changed_is_named_and_no_row_is_invented(table: Table) -> None:
    path = table.snapshot().files().column("path")[0].as_py()
    file = Path(table.uri.removeprefix("file://"), path)
    whole = file.read_bytes()
    for content in (whole[:-1], b"", b"PAR1" + whole):
        file.write_bytes(content)
        with pytest.raises(errors.CorruptDataFile, match=file.name):
            table.to_arrow()
    file.unlink()
    with pytest.raises(errors.CorruptDataFile, match=file.name):
        table.to_arrow()


def test_errors_cross_a_process_boundary_whole() -> None:
    import pickle

    error = errors.ConcurrentAppend("lost", table="t", winning_version=7, partition={"day": "a"})
    for copy in (errors.from_dict(error.to_dict()), pickle.loads(pickle.dumps(error))):
        assert type(copy) is errors.ConcurrentAppend
        assert str(copy) == "lost"
        assert copy.retryable
        assert (copy.winning_version, copy.partition, copy.path) == (7, {"day": "a"}, None)
    unknown = errors.from_dict({"type": "FromTheFuture", "message": "m", "retryable": True, "facts": {}})
    assert type(unknown) is errors.JobError
    assert unknown.retryable


def test_a_log_without_a_schema_can_be_looked_at_and_neither_read_nor_written(tmp_path: Path) -> None:
    lines = [
        '{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}',
        '{"metaData":{"id":"m","format":{"provider":"parquet","options":{}},"partitionColumns":[],"configuration":{}}}',
        '{"add":{"path":"0","partitionValues":{},"size":1,"modificationTime":1,"dataChange":true}}',
    ]
    log = tmp_path / "_delta_log"
    log.mkdir()
    (log / f"{0:020d}.json").write_text("\n".join(lines))
    table = Table.open(tmp_path)
    assert table.snapshot().files().column("path").to_pylist() == ["0"]
    assert len(table.history()) == 1
    for use in (table.to_arrow, table.begin, lambda: table.snapshot().schema):
        with pytest.raises(errors.CorruptTable, match="states no schema"):
            use()


def checkpoint_file(table: Table) -> Path:
    return Path(table.uri.removeprefix("file://"), "_delta_log", f"{table.checkpoint():020d}.checkpoint.parquet")


@pytest.mark.parametrize("action", ["protocol", "metaData"])
def test_a_checkpoint_that_reads_well_and_breaks_the_protocol_is_not_passed_over(table: Table, action: str) -> None:
    file = checkpoint_file(table)
    rows = pq.read_table(file)
    pq.write_table(rows.filter(pc.is_null(rows.column(action))), file)
    with pytest.raises(errors.CorruptCheckpoint, match=f"0 {action} actions") as caught:
        Table.open(table.uri)
    assert not caught.value.damaged
