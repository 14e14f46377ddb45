"""What is left of a data file that is given up, and what its writer holds of one that is finished."""

from __future__ import annotations

import uuid
import weakref

import pyarrow as pa
import pytest

from airflow_txlog.datafiles.parquet.halves import FEWEST_ROWS, HalvesWriter
from airflow_txlog.datafiles.parquet.output import RowGroupWriter
from airflow_txlog.datafiles.parquet.statistics import StatisticsCollector
from airflow_txlog.storage import PLAIN, MemoryStore

ROWS = pa.RecordBatch.from_pydict({"id": [1, 2]})


def begun(
    store: MemoryStore, kind: type[RowGroupWriter] = RowGroupWriter, rows: pa.RecordBatch = ROWS
) -> RowGroupWriter:
    """A writer of `part` that has written a row group."""
    writer = kind(store, "part", rows.schema, options={}, statistics=StatisticsCollector(rows.schema))
    writer.write(rows)
    writer.end_row_group()
    return writer


@pytest.mark.parametrize("finished", [False, True])
def test_a_file_that_is_given_up_is_gone(finished: bool) -> None:
    store = MemoryStore(f"memory://{uuid.uuid4().hex}/t", PLAIN)
    writer = begun(store)
    if finished:
        writer.close({})
    writer.abandon()
    assert list(store.walk()) == []


def test_a_file_that_could_not_take_its_name_does_not_delete_the_one_that_has_it() -> None:
    store = MemoryStore(f"memory://{uuid.uuid4().hex}/t", PLAIN)
    writer = begun(store)
    store.put("part", b"another's")
    with pytest.raises(FileExistsError):
        writer.close({})
    writer.abandon()
    assert store.read("part") == b"another's"


def test_what_a_file_still_holds_is_not_sent_when_it_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that does not answer would be asked again, for a minute a file."""
    store, log = MemoryStore(f"memory://{uuid.uuid4().hex}/t", PLAIN), []
    writer = begun(store)
    output = writer._output
    assert output is not None
    write, discard = output.sink.write, output._discard
    monkeypatch.setattr(output.sink, "write", lambda data: (log.append("written"), write(data))[1])
    monkeypatch.setattr(output, "_discard", lambda: (log.append("discarded"), discard())[1])
    writer.abandon()
    assert log[:1] == ["discarded"]


@pytest.mark.parametrize("kind", [RowGroupWriter, HalvesWriter])
def test_a_finished_file_takes_no_memory_while_its_writer_waits_to_be_given_up(kind: type[RowGroupWriter]) -> None:
    """A task keeps the writers of all its files to its end, and each may have buffered megabytes."""
    store = MemoryStore(f"memory://{uuid.uuid4().hex}/t", PLAIN)
    column = pa.array(range(FEWEST_ROWS), pa.int64())
    writer = begun(store, kind, pa.record_batch({"id": column, "n": column}))
    assert writer._output is not None
    sink = weakref.ref(writer._output.sink)
    writer.close({})
    assert sink() is None
    writer.abandon()
    assert list(store.walk()) == []
