"""The ledger of erased subjects: what it records, and which commits it lets into a table."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.delta_table import DeltaTable
from airflow_txlog.engine.erasure.digests import DigestKey
from airflow_txlog.engine.erasure.ledger import Ledger, create_ledger, recorded_in
from airflow_txlog.engine.erasure.returns import ReturnGuard
from airflow_txlog.engine.erasure.values.forms import Forms
from airflow_txlog.errors import CorruptDataFile, CorruptTable, LedgerKeyMissing, SubjectReturns, TableNotFound
from airflow_txlog.locations import PLAIN
from tests.helpers.rows import append, stage

OLD, NEW = (DigestKey.of(letter * 64, "the key") for letter in "ab")
SCHEMA = pa.schema([("day", pa.string()), ("email", pa.string()), ("n", pa.int64())])
ANNA, BEN = "anna@example.com", "ben@example.com"


def ledger_at(folder: Path, *keys: DigestKey) -> Ledger:
    found = Ledger(Table.at(str(folder / "ledger"), PLAIN), keys or (OLD,))
    create_ledger(found._table)
    return found


def table_of(folder: Path, *days: Sequence[str], **given: Any) -> Table:
    """A table with a file for each list of e-mail addresses, each of another day."""
    table = Table.create(str(folder / "t"), given.pop("schema", SCHEMA), **given)
    for number, emails in enumerate(days):
        append(table, [{"day": str(number), "email": email, "n": number} for email in emails])
    return table


def erase(table: Table, ledger: Ledger, values: Sequence[Any] = (ANNA,), column: str = "email") -> int:
    """Record the values, and delete the files that have them. Return the version before."""
    snapshot = table.snapshot()
    assert ledger.record("r-1", snapshot, Forms.of(snapshot, column, values))
    tx = table.begin()
    files = tx.read_whole_table()
    wanted = set(values)
    for path in files.column("path").to_pylist():
        rows = pq.ParquetFile(Path(table.uri.removeprefix("file://")) / path).read().to_pylist()
        if any(_value(row, column) in wanted for row in rows):
            tx.remove(path)
    tx.commit("DELETE")
    return snapshot.version


def _value(row: dict[str, Any], column: str) -> Any:
    for name in column.split("."):
        row = row.get(name)  # type: ignore[assignment]
    return row


def guarded(table: Table, ledger: Ledger) -> Table:
    table.guard = ReturnGuard(ledger, table.store)
    return table


# --- what the ledger holds --------------------------------------------------------------------------------------------


def test_a_ledger_holds_digests_and_no_value(tmp_path: Path) -> None:
    ledger, table = ledger_at(tmp_path), table_of(tmp_path, [ANNA, BEN])
    snapshot = table.snapshot()
    assert ledger.record("r-1", snapshot, Forms.of(snapshot, "email", [ANNA, BEN])) == 2
    rows = Table.open(str(tmp_path / "ledger")).to_arrow().to_pylist()
    assert {row["digest"] for row in rows} == {OLD.sign(b"s:" + each.encode()).hex() for each in (ANNA, BEN)}
    assert {(row["table_uri"], row["table_id"], row["request_id"], row["keys"]) for row in rows} == {
        (table.uri, snapshot.metadata.id, "r-1", OLD.id)
    }
    for file in (tmp_path / "ledger").rglob("*"):
        assert not file.is_file() or ANNA.encode() not in file.read_bytes()


def test_a_request_is_recorded_once_by_all_of_its_tries(tmp_path: Path) -> None:
    ledger, table = ledger_at(tmp_path), table_of(tmp_path, [ANNA, BEN])
    snapshot = table.snapshot()
    assert ledger.record("r-1", snapshot, Forms.of(snapshot, "email", [ANNA])) == 1
    assert ledger.record("r-1", snapshot, Forms.of(snapshot, "email", [ANNA, BEN])) == 1
    assert ledger.record("r-1", snapshot, Forms.of(snapshot, "email", [ANNA, BEN])) == 0
    assert ledger.record("r-2", snapshot, Forms.of(snapshot, "email", [ANNA])) == 1
    # Under another key, too, they are the same subjects.
    assert ledger_at(tmp_path, OLD, NEW).record("r-1", snapshot, Forms.of(snapshot, "email", [ANNA, BEN])) == 0


def test_one_request_by_two_columns_of_a_table_is_recorded_for_each(tmp_path: Path) -> None:
    ledger, table = ledger_at(tmp_path), Table.create(str(tmp_path / "t"), SCHEMA)
    append(table, [{"day": ANNA, "email": BEN, "n": 1}])
    append(table, [{"day": BEN, "email": ANNA, "n": 2}])
    erase(table, ledger, column="day")
    before = erase(table, ledger, column="email")
    with pytest.raises(SubjectReturns, match=r"in email; request r-1"):
        guarded(table, ledger).restore(before)
    snapshot = table.snapshot()
    assert ledger.record("r-1", snapshot, Forms.of(snapshot, "email", [ANNA])) == 0


def test_a_ledger_is_created_once(tmp_path: Path) -> None:
    table = Table.at(str(tmp_path / "ledger"), PLAIN)
    assert [create_ledger(table), create_ledger(table)] == [True, False]
    assert recorded_in(table) == []


# --- what it lets into a table ----------------------------------------------------------------------------------------


def test_a_restore_that_brings_a_subject_back_is_refused(tmp_path: Path) -> None:
    ledger, table = ledger_at(tmp_path), table_of(tmp_path, [BEN], [ANNA, BEN, ANNA])
    before = erase(table, ledger)
    with pytest.raises(SubjectReturns, match="request r-1") as caught:
        guarded(table, ledger).restore(before)
    error = caught.value.facts
    assert (error["requests"], error["column"], error["rows"], error["files"]) == (["r-1"], "email", 2, 1)
    assert ANNA not in str(caught.value)
    assert table.latest_version() == before + 1


def test_a_restore_without_the_subject_is_made(tmp_path: Path) -> None:
    ledger, table = ledger_at(tmp_path), table_of(tmp_path, [BEN], [ANNA])
    erase(table, ledger)
    assert guarded(table, ledger).restore(1) == 4
    assert [row["email"] for row in table.to_arrow().to_pylist()] == [BEN]


def test_a_restore_reads_only_the_files_that_come_back(tmp_path: Path) -> None:
    ledger, table = ledger_at(tmp_path), table_of(tmp_path, [BEN], ["cleo@example.com"], [ANNA])
    kept, coming = (path for path in table.snapshot(2).files().column("path").to_pylist())
    erase(table, ledger)
    tx = table.begin()
    tx.remove(coming)
    tx.commit("DELETE")
    # A file that is live before and after: its bytes are of no interest.
    (tmp_path / "t" / kept).write_bytes(b"x" * (tmp_path / "t" / kept).stat().st_size)
    assert guarded(table, ledger).restore(2)
    assert table.snapshot().num_files == 2


def test_a_file_that_cannot_be_read_is_no_pass(tmp_path: Path) -> None:
    ledger, table = ledger_at(tmp_path), table_of(tmp_path, [ANNA])
    path = tmp_path / "t" / table.snapshot().files().column("path")[0].as_py()
    before = erase(table, ledger)
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(CorruptDataFile):
        guarded(table, ledger).restore(before)


def test_a_table_of_which_nothing_was_erased_is_not_read(tmp_path: Path) -> None:
    ledger, table = ledger_at(tmp_path), table_of(tmp_path / "other", [ANNA])
    erase(table_of(tmp_path, [ANNA]), ledger)
    path = tmp_path / "other" / "t" / table.snapshot().files().column("path")[0].as_py()
    tx = table.begin()
    tx.remove(tx.read_whole_table())
    tx.commit("DELETE")
    path.write_bytes(b"x" * path.stat().st_size)
    assert guarded(table, ledger).restore(1)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int32(), 7),
        (pa.binary(), b"\xff\x00"),
        (pa.decimal128(9, 2), "7.10"),
        (pa.date32(), "1970-01-02"),
        (pa.timestamp("us", "UTC"), "1970-01-02T03:04:05Z"),
        (pa.bool_(), True),
        (pa.float64(), 0.5),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_partition", [False, True])
def test_values_of_every_type_are_known_again(
    tmp_path: Path, kind: pa.DataType, value: Any, is_partition: bool
) -> None:
    if is_partition and pa.types.is_binary(kind):
        value = b"ab"
    schema = pa.schema([("key", kind), ("n", pa.int64())])
    typed = pa.array([value]).cast(kind) if isinstance(value, str) else pa.array([value], kind)
    table = Table.create(str(tmp_path / "t"), schema, partition_by=["key"] if is_partition else [])
    append(table, pa.table({"key": typed, "n": [1]}, schema))
    ledger, snapshot = ledger_at(tmp_path), table.snapshot()
    ledger.record("r-1", snapshot, Forms.of(snapshot, "key", typed.to_pylist()))
    tx = table.begin()
    tx.remove(tx.read_whole_table())
    tx.commit("DELETE")
    with pytest.raises(SubjectReturns) as caught:
        guarded(table, ledger).restore(1)
    assert (caught.value.facts["column"], caught.value.facts["rows"]) == ("key", 1)


def test_a_member_of_a_struct_is_known_again(tmp_path: Path) -> None:
    schema = pa.schema([("who", pa.struct([("id", pa.int64()), ("mail", pa.struct([("main", pa.string())]))]))])
    table = Table.create(str(tmp_path / "t"), schema)
    append(table, [{"who": {"id": 1, "mail": {"main": ANNA}}}, {"who": None}, {"who": {"id": 2, "mail": None}}])
    ledger = ledger_at(tmp_path)
    before = erase(table, ledger, column="who.mail.main")
    with pytest.raises(SubjectReturns) as caught:
        guarded(table, ledger).restore(before)
    assert (caught.value.facts["column"], caught.value.facts["rows"]) == ("who.mail.main", 1)


def test_a_column_is_known_by_its_id_after_it_was_renamed(tmp_path: Path) -> None:
    table = table_of(tmp_path, [ANNA], properties={"delta.columnMapping.mode": "name"})
    ledger = ledger_at(tmp_path)
    erase(table, ledger)
    _rename(table, "email", "mail")
    append(table, [{"day": "9", "mail": ANNA, "n": 9}])
    tx = table.begin()
    tx.remove(tx.read_whole_table())
    tx.commit("DELETE")
    with pytest.raises(SubjectReturns) as caught:
        guarded(table, ledger).restore(table.latest_version() - 1)
    assert caught.value.facts["column"] == "mail"


def test_a_column_that_the_table_lacks_may_have_another_name(tmp_path: Path) -> None:
    table = table_of(tmp_path, [BEN, ANNA])
    ledger = ledger_at(tmp_path)
    erase(table, ledger)
    schema = pa.schema([("address", pa.string()), ("n", pa.int64()), ("tags", pa.list_(pa.string()))])
    other = Table.create(str(tmp_path / "other"), schema)
    rows = pa.Table.from_pylist([{"address": BEN, "n": 0}, {"address": ANNA, "n": 1}], schema)
    guard = ReturnGuard(ledger, other.store, every_table=True)
    tx = other.begin()
    tx.guard = guard
    tx.add(stage(other, rows))
    with pytest.raises(SubjectReturns) as caught:
        tx.commit("WRITE")
    assert (caught.value.facts["column"], caught.value.facts["rows"]) == ("address", 1)


def test_a_column_that_has_the_name_now_counts_beside_the_renamed_one(tmp_path: Path) -> None:
    table = table_of(tmp_path, [BEN], properties={"delta.columnMapping.mode": "name"})
    ledger, snapshot = ledger_at(tmp_path), table.snapshot()
    ledger.record("r-1", snapshot, Forms.of(snapshot, "email", [ANNA]))
    _rename(table, "email", "mail")
    _rename(table, "day", "email")
    tx = guarded(table, ledger).begin()
    rows = [{"email": ANNA, "mail": BEN, "n": 1}]
    tx.add(
        stage(
            table,
            pa.Table.from_pylist(rows, pa.schema([("email", pa.string()), ("mail", pa.string()), SCHEMA.field("n")])),
        )
    )
    with pytest.raises(SubjectReturns) as caught:
        tx.commit("WRITE", {"mode": "Append"})
    assert (caught.value.facts["column"], caught.value.facts["rows"]) == ("email", 1)


def test_a_column_with_a_dot_in_its_name_hides_no_member_of_that_path(tmp_path: Path) -> None:
    schema = pa.schema([("who", pa.struct([("mail", pa.string())])), ("who.mail", pa.string())])
    table = Table.create(str(tmp_path / "t"), schema, properties={"delta.columnMapping.mode": "name"})
    append(table, [{"who": {"mail": ANNA}, "who.mail": BEN}])
    ledger, snapshot = ledger_at(tmp_path), table.snapshot()
    ledger.record("r-1", snapshot, Forms(pa.array([ANNA]), ("who.mail", "elsewhere")))
    tx = table.begin()
    tx.remove(tx.read_whole_table())
    tx.commit("DELETE")
    with pytest.raises(SubjectReturns):
        guarded(table, ledger).restore(1)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(pa.string()), [ANNA]),
        (pa.struct([("home", pa.string())]), {"home": ANNA}),
        (pa.map_(pa.string(), pa.string()), [("home", ANNA)]),
    ],
    ids=["list", "struct", "map"],
)
def test_a_column_that_is_nested_now_is_compared_by_each_value_below_it(
    tmp_path: Path, kind: pa.DataType, value: Any
) -> None:
    ledger, before = ledger_at(tmp_path), table_of(tmp_path, [BEN]).snapshot()
    ledger.record("r-1", before, Forms.of(before, "email", [ANNA]))
    schema = pa.schema([("email", kind), ("n", pa.int64())])
    shutil.rmtree(tmp_path / "t")
    table = Table.create(str(tmp_path / "t"), schema)
    for email in (None, value):
        tx = guarded(table, ledger).begin()
        tx.add(stage(table, pa.Table.from_pylist([{"email": email, "n": 1}], schema)))
        if email is None:
            tx.commit("WRITE", {"mode": "Append"})
            continue
        with pytest.raises(SubjectReturns) as caught:
            tx.commit("WRITE", {"mode": "Append"})
        assert caught.value.facts["column"] == "email"


def test_a_dropped_column_that_comes_back_is_compared_in_the_files_that_stayed(tmp_path: Path) -> None:
    table = table_of(tmp_path, [ANNA], properties={"delta.columnMapping.mode": "name"})
    ledger, before = ledger_at(tmp_path), table.latest_version()
    tx = table.begin()
    assert tx.metadata is not None
    schema = json.loads(tx.metadata.schema_string)
    others = [each for each in schema["fields"] if each["name"] != "email"]
    mapping = {"delta.columnMapping.id": 9, "delta.columnMapping.physicalName": "col-9"}
    added = {"name": "email", "type": "string", "nullable": True, "metadata": mapping}
    for fields, highest in ((others, "3"), ([*others, added], "9")):
        tx = table.begin()
        text = json.dumps({**schema, "fields": fields})
        configuration = {**tx.metadata.configuration, "delta.columnMapping.maxColumnId": highest}
        changed = msgspec.structs.replace(tx.metadata, schema_string=text, configuration=configuration)
        tx.set_metadata(changed, is_checked=True)
        tx.commit("CHANGE COLUMNS")
    snapshot = table.snapshot()
    ledger.record("r-1", snapshot, Forms.of(snapshot, "email", [ANNA]))
    with pytest.raises(SubjectReturns) as caught:
        guarded(table, ledger).restore(before)
    assert caught.value.facts["column"] == "email"


def _rename(table: Table, old: str, new: str) -> None:
    tx = table.begin()
    assert tx.metadata is not None
    text = tx.metadata.schema_string.replace(f'"name":"{old}"', f'"name":"{new}"')
    tx.set_metadata(msgspec.structs.replace(tx.metadata, schema_string=text), is_checked=True)
    tx.commit("RENAME COLUMN")


def test_a_table_that_was_moved_is_known_by_its_id(tmp_path: Path) -> None:
    ledger, table = ledger_at(tmp_path), table_of(tmp_path, [ANNA])
    before = erase(table, ledger)
    (tmp_path / "t").rename(tmp_path / "moved")
    moved = Table.open(str(tmp_path / "moved"))
    with pytest.raises(SubjectReturns):
        guarded(moved, ledger).restore(before)


# --- other commits ----------------------------------------------------------------------------------------------------


def test_an_erasure_during_the_commit_is_noticed(tmp_path: Path) -> None:
    """An append is rebased over the erasure's delete without a conflict: the ledger alone shows the subject."""
    ledger, table = ledger_at(tmp_path), table_of(tmp_path, [BEN])
    other = Table.open(table.uri)
    tx = guarded(table, ledger).begin()
    tx.add(stage(table, pa.Table.from_pylist([{"day": "1", "email": ANNA, "n": 1}], SCHEMA)))
    # Recorded, and the delete has landed, while the guard has compared the files already.
    admitted = table.guard.admitted  # type: ignore[union-attr]

    def erased_then(*args: Any) -> Any:
        found = admitted(*args)
        snapshot = other.snapshot()
        ledger_at(tmp_path).record("r-2", snapshot, Forms.of(snapshot, "email", [ANNA]))
        append(other, [{"day": "2", "email": BEN, "n": 2}])
        return found

    table.guard.admitted = erased_then  # type: ignore[union-attr, method-assign]
    with pytest.raises(SubjectReturns, match="r-2"):
        tx.commit("WRITE", {"mode": "Append"})
    assert ANNA not in [row["email"] for row in table.to_arrow().to_pylist()]


def test_a_commit_that_loses_to_another_one_is_made_if_the_ledger_is_the_same(tmp_path: Path) -> None:
    ledger, table = ledger_at(tmp_path), table_of(tmp_path, [BEN])
    erase(table_of(tmp_path / "other", [ANNA]), ledger)
    tx = guarded(table, ledger).begin()
    append(Table.open(table.uri), [{"day": "2", "email": BEN, "n": 2}])
    tx.add(stage(table, pa.Table.from_pylist([{"day": "1", "email": BEN, "n": 1}], SCHEMA)))
    assert tx.commit("WRITE", {"mode": "Append"}) == 3


# --- keys -------------------------------------------------------------------------------------------------------------


def test_a_lost_key_is_an_error_and_no_pass(tmp_path: Path) -> None:
    ledger, table = ledger_at(tmp_path, OLD), table_of(tmp_path, [BEN], [ANNA])
    before = erase(table, ledger)
    without = ledger_at(tmp_path, NEW)
    with pytest.raises(LedgerKeyMissing, match=OLD.id) as caught:
        guarded(table, without).restore(before)
    assert caught.value.facts["key_ids"] == [OLD.id]
    assert table.latest_version() == before + 1


def test_a_missing_ledger_is_an_error_and_no_pass(tmp_path: Path) -> None:
    table = table_of(tmp_path, [BEN], [ANNA])
    tx = table.begin()
    tx.remove(tx.read_whole_table())
    tx.commit("DELETE")
    missing = Ledger(DeltaTable.at(str(tmp_path / "none"), PLAIN), (OLD,))
    with pytest.raises(TableNotFound, match="erased subjects"):
        guarded(table, missing).restore(1)
    assert table.latest_version() == 3


def test_a_rotated_ledger_knows_its_subjects_by_both_keys(tmp_path: Path) -> None:
    table = table_of(tmp_path, [BEN], [ANNA])
    before = erase(table, ledger_at(tmp_path, OLD))
    rotated = ledger_at(tmp_path, OLD, NEW)
    assert [rotated.rotate(), rotated.rotate()] == [1, 0]
    (row,) = Table.open(str(tmp_path / "ledger")).to_arrow().to_pylist()
    assert row["keys"] == f"{OLD.id} {NEW.id}"
    assert row["digest"] == NEW.sign(OLD.sign(b"s:" + ANNA.encode())).hex()
    with pytest.raises(SubjectReturns):
        guarded(table, rotated).restore(before)
    # Either key alone is not enough, and never a pass.
    for key in (OLD, NEW):
        with pytest.raises(LedgerKeyMissing):
            guarded(table, ledger_at(tmp_path, key)).restore(before)


def test_a_ledger_is_rotated_without_the_old_key(tmp_path: Path) -> None:
    table = table_of(tmp_path, [BEN], [ANNA])
    before = erase(table, ledger_at(tmp_path, OLD))
    assert ledger_at(tmp_path, NEW).rotate() == 1
    with pytest.raises(SubjectReturns):
        guarded(table, ledger_at(tmp_path, OLD, NEW)).restore(before)


def test_an_erasure_that_is_recorded_during_a_rotation_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(tmp_path, [BEN], [ANNA])
    erase(table, ledger_at(tmp_path, OLD))
    rotating = ledger_at(tmp_path, OLD, NEW)
    commit, snapshot = rotating._commit, table.snapshot()

    def recorded_first(*args: Any) -> None:
        monkeypatch.setattr(rotating, "_commit", commit)
        ledger_at(tmp_path, OLD).record("r-2", snapshot, Forms.of(snapshot, "email", [BEN]))
        commit(*args)

    monkeypatch.setattr(rotating, "_commit", recorded_first)
    assert rotating.rotate() == 2
    rows = Table.open(str(tmp_path / "ledger")).to_arrow().to_pylist()
    assert sorted((row["request_id"], row["keys"]) for row in rows) == [
        (request, f"{OLD.id} {NEW.id}") for request in ("r-1", "r-2")
    ]


def test_a_partition_whose_instant_is_not_known_is_an_error_and_no_pass(tmp_path: Path) -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("n", pa.int64())])
    table = Table.create(str(tmp_path / "t"), schema, partition_by=["at"])
    moment = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
    append(table, [{"at": moment, "n": 1}])
    ledger, snapshot = ledger_at(tmp_path), table.snapshot()
    ledger.record("r-1", snapshot, Forms.of(snapshot, "at", [moment]))
    (add,) = stage(table, pa.Table.from_pylist([{"at": moment, "n": 2}], schema))
    tx = guarded(table, ledger).begin()
    # As Spark writes it, in the time zone of its session.
    tx.add(msgspec.structs.replace(add, partition_values={"at": "2026-03-01 13:00:00"}))
    with pytest.raises(CorruptTable):
        tx.commit("WRITE")
    assert table.latest_version() == 1
