"""Alone in showing that a value is found in each spelling with its meaning, even inside of a name or a time."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import unicodedata
import uuid
from decimal import Decimal
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_txlog.engine import Table
from airflow_txlog.engine.erasure.attribution import Attribution, Requests
from airflow_txlog.engine.erasure.object_verdicts import verdict_on
from airflow_txlog.engine.erasure.values import equivalents as equivalents_module
from airflow_txlog.engine.erasure.values.equivalents import MOST_ESCAPED, MOST_SPELLINGS, equivalents
from airflow_txlog.engine.erasure.values.forms import Forms
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import UnsupportedFeature
from tests.helpers.byte_search import holding
from tests.helpers.jobs import committed, run
from tests.helpers.rows import append

SUBJECT = "canary.person@example.org"
BORN = dt.datetime(1999, 1, 2, 3, 4, 5, 123456, tzinfo=dt.UTC)
TIMES = pa.schema([("at", pa.timestamp("us", "UTC"))])


def table_of(folder: Path, schema: pa.Schema, *marks: tuple[str, object]) -> Table:
    """Return a table whose first column has these marks in its metadata, as other writers set them."""
    table = Table.create(folder, schema)
    log = folder / commit_name(0)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if "metaData" in line:
            columns = json.loads(line["metaData"]["schemaString"])
            columns["fields"][0]["metadata"] |= dict(marks)
            line["metaData"]["schemaString"] = json.dumps(columns)
    log.write_text("\n".join(map(json.dumps, lines)))
    return Table.open(table.uri)


def verdict_of(table: Table, column: str, value: object, path: str) -> str:
    return next(each.verdict for each in table.find_traces(column, [value]) if each.path == path)


def forms_of(snapshot: Snapshot, value: object) -> Forms:
    return Forms.of(snapshot, snapshot.delta_schema.names[0], [value])


def test_a_value_of_char_is_found_with_and_without_its_spaces(tmp_path: Path) -> None:
    """Between two other values it is in no bound, and the search of the rows alone sees it."""
    table = table_of(tmp_path / "t", pa.schema([("email", pa.string())]), ("__CHAR_VARCHAR_TYPE_STRING", "char(40)"))
    others = ["a@example.org".ljust(40), "z@example.org".ljust(40)]
    for spelled in (SUBJECT, SUBJECT.ljust(40)):
        append(table, pa.table({"email": [others[0], spelled, others[1]]}))
    for given in (SUBJECT, SUBJECT.ljust(40)):
        found = [each for each in table.find_traces("email", [given]) if each.path.endswith(".parquet")]
        assert [each.verdict for each in found] == ["found"] * 2
        assert all(any(trace.place == "rows, column 'email'" for trace in each.traces) for each in found)
        assert set(forms_of(table.snapshot(), given).key_values.to_pylist()) == {SUBJECT, SUBJECT.ljust(40)}


@pytest.mark.parametrize(
    "given", ["m\u00fcller@example.org", "\uae40\uac10@example.org", "\u00e9" * 10 + "@example.org"]
)
@pytest.mark.parametrize("is_given_padded", [False, True])
def test_a_value_of_char_is_found_in_another_form_of_unicode(
    tmp_path: Path, given: str, *, is_given_padded: bool
) -> None:
    """Spark pads each spelling to the same number of characters."""
    table = table_of(tmp_path / "t", pa.schema([("email", pa.string())]), ("__CHAR_VARCHAR_TYPE_STRING", "char(40)"))
    nfd = unicodedata.normalize("NFD", given).ljust(40)
    others = ["a@example.org".ljust(40), "\uffdc@example.org".ljust(40)]
    append(table, pa.table({"email": [others[0], nfd, others[1]]}))
    found = table.find_traces("email", [given.ljust(40) if is_given_padded else given])
    assert [each.verdict for each in found if each.path.endswith(".parquet")] == ["found"]
    forms = forms_of(table.snapshot(), given)
    mixed = given[:1] + unicodedata.normalize("NFD", given[1:])
    assert forms.are_values(pa.array([nfd, mixed.ljust(40), *others, None])).to_pylist()[:4] == [
        True,
        True,
        False,
        False,
    ]


def test_a_text_that_is_not_utf_8_ends_no_search_for_a_key_of_many_spellings(tmp_path: Path) -> None:
    given = "\uae40\uac10@example.org"
    table = Table.create(tmp_path / "t", pa.schema([("email", pa.string())]))
    forms = forms_of(table.snapshot(), given)
    rows = pa.array([b"\xff\xfe", unicodedata.normalize("NFD", given).encode(), None, b"bob"])
    texts = pa.Array.from_buffers(pa.string(), len(rows), rows.buffers())
    assert len(forms.normal_forms)
    assert forms.are_values(texts).to_pylist()[1] is True
    assert pc.sum(forms.are_values(texts)).as_py() == 1


def test_a_collation_makes_other_texts_equal_and_is_refused(tmp_path: Path) -> None:
    mark = ("__COLLATIONS", {"email": "spark.UTF8_LCASE"})
    table = table_of(tmp_path / "t", pa.schema([("email", pa.string())]), mark)
    with pytest.raises(UnsupportedFeature) as raised:
        forms_of(table.snapshot(), SUBJECT)
    assert SUBJECT not in str(raised.value)


@pytest.mark.parametrize("hours", [2, -5, 0])
def test_statistics_in_the_time_zone_of_a_session_count(tmp_path: Path, hours: int) -> None:
    table = Table.create(tmp_path / "t", TIMES)
    zone = dt.timezone(dt.timedelta(hours=hours))
    for number, moment in enumerate((BORN, BORN + dt.timedelta(seconds=1))):
        stats = json.dumps({"minValues": {"at": moment.astimezone(zone).isoformat(timespec="milliseconds")}})
        (tmp_path / "t" / f"{number}.json").write_text(json.dumps({"add": {"path": "p", "stats": stats}}))
    assert verdict_of(table, "at", BORN, "0.json") == "statistic only"
    assert verdict_of(table, "at", BORN, "1.json") == "absent"


@pytest.mark.parametrize("with_dictionary", [True, False])
def test_a_time_in_the_older_form_of_spark_is_compared(tmp_path: Path, *, with_dictionary: bool) -> None:
    table = Table.create(tmp_path / "t", TIMES)
    for name, moments in (("held", [BORN, BORN.replace(year=2020)]), ("clean", [BORN.replace(year=2021)])):
        rows = pa.table({"at": pa.array(moments, TIMES.field(0).type)})
        pq.write_table(
            rows,
            tmp_path / "t" / f"{name}.parquet",
            use_deprecated_int96_timestamps=True,
            use_dictionary=with_dictionary,
        )
    assert verdict_of(table, "at", BORN, "held.parquet") == "found"
    assert verdict_of(table, "at", BORN, "clean.parquet") == "absent"
    held = next(each for each in table.find_traces("at", [BORN]) if each.path == "held.parquet")
    assert any(trace.place.startswith("dictionary") for trace in held.traces) == with_dictionary


def test_the_name_of_a_file_that_is_no_text_hides_no_value_and_ends_no_search(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("email", pa.string())]))
    for name in (b"caf\xe9.txt", b"caf\xe9-" + SUBJECT.encode() + b".txt"):
        Path(os.fsdecode(os.fsencode(tmp_path / "t") + b"/" + name)).write_bytes(b"x")
    verdicts = [each for each in table.find_traces("email", [SUBJECT]) if not each.path.startswith("_delta_log/")]
    assert sorted(each.verdict for each in verdicts) == ["absent", "found"]
    for each in verdicts:
        assert SUBJECT not in each.path
        each.path.encode()


def test_the_name_of_a_folder_above_the_table_is_a_trace(tmp_path: Path) -> None:
    table = Table.create(tmp_path / SUBJECT / "t", pa.schema([("email", pa.string())]))
    (found,) = (each for each in table.find_traces("email", [SUBJECT]) if not each.passes)
    assert (found.verdict, found.path) == ("found", "")


def test_all_spellings_of_an_identifier_are_the_values_of_the_key(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("id", pa.string())]))
    given = uuid.UUID(int=0xC0FFEE << 64)
    spelled = {str(given), str(given).upper(), given.hex, given.hex.upper()}
    assert set(forms_of(table.snapshot(), str(given).upper()).key_values.to_pylist()) == spelled
    table = Table.create(tmp_path / "b", pa.schema([("id", pa.binary())]))
    for value in (given.bytes, *spelled):
        forms = forms_of(table.snapshot(), value)
        assert set(forms.key_values.to_pylist()) == {given.bytes, *(each.encode() for each in spelled)}
        assert spelled <= forms.texts


@pytest.mark.parametrize(
    "given",
    [
        "42".ljust(32),
        "+" + "42".rjust(31, "0"),
        "0x" + "42".rjust(30, "0"),
        "123456789_123456789_123456789_12",
        "urn:" + "42".rjust(32, "0"),
        "0000-00000000-00000000-00000000-0042",
        "\u0664" * 32,
    ],
)
def test_a_key_that_only_python_reads_as_a_uuid_is_no_other_key(tmp_path: Path, given: str) -> None:
    """Otherwise an erasure deletes the rows of somebody else."""
    table = Table.create(tmp_path / "t", pa.schema([("id", pa.string())]))
    assert forms_of(table.snapshot(), given).key_values.to_pylist() == [given]


def test_a_padded_key_is_not_that_of_another_person(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.string()), ("photo", pa.binary())])
    table = table_of(tmp_path / "t", schema, ("__CHAR_VARCHAR_TYPE_STRING", "char(32)"))
    assert set(forms_of(table.snapshot(), "42").key_values.to_pylist()) == {"42", "42".ljust(32)}
    append(table, pa.table({"id": ["7".ljust(32)], "photo": [b"one" + bytes(15) + b"\x42"]}))
    (found,) = (each for each in table.find_traces("id", ["42"]) if each.path.endswith(".parquet"))
    assert found.verdict == "absent"


def test_another_spelling_of_a_key_belongs_to_its_request_too(tmp_path: Path) -> None:
    """A search that stops at the requests whose rows it sees must see this one."""
    table = Table.create(tmp_path / "t", pa.schema([("id", pa.string())]))
    people = [uuid.UUID(int=each << 64) for each in (0xC0FFEE, 0xDECADE)]
    append(table, pa.table({"id": [str(people[0]), people[1].hex.upper()]}))
    requests = Requests.of(
        table.snapshot(), "id", {"r-1": pa.array([str(people[0])]), "r-2": pa.array([str(people[1])])}
    )
    (info,) = (each for each in table.store.walk() if each.path.endswith(".parquet"))
    holders = Attribution(table.store, requests).of(info, verdict_on(table.store, info, requests.forms), may_miss=True)
    assert set(holders.by_request) == {"r-1", "r-2"}


@pytest.mark.parametrize("is_cleaned", [False, True])
def test_a_number_counts_in_a_commit_that_names_the_column_as_it_was_called_then(
    tmp_path: Path, *, is_cleaned: bool
) -> None:
    schema = pa.schema([("uid", pa.int64()), ("size", pa.int64())])
    table = Table.create(tmp_path / "t", schema, properties={"delta.columnMapping.mode": "name"})
    append(table, pa.table({"uid": [5], "size": [1]}))
    table.checkpoint()
    table.begin().commit("UPDATE", {"predicate": json.dumps(["(uid = 7312345)"])}, record_empty=True)
    table.begin().commit("UPDATE", {"predicate": json.dumps(["(size = 7312345)"])}, record_empty=True)
    committed(run(None, "alter", table, rename_columns={"uid": "id"}))
    committed(run(None, "alter", table, rename_columns={"id": "person"}))
    if is_cleaned:
        # As log cleanup does: the checkpoint alone has the first name.
        for version in (0, 1):
            (tmp_path / "t" / commit_name(version)).unlink()
    table = Table.open(table.uri)
    assert verdict_of(table, "person", 7312345, commit_name(2)) == "found"
    assert verdict_of(table, "person", 7312346, commit_name(2)) == "absent"
    # Another column may have the same number.
    assert verdict_of(table, "person", 7312345, commit_name(3)) == "absent"


def test_a_number_counts_in_a_dropped_column_that_had_the_name_of_the_key(tmp_path: Path) -> None:
    table = Table.create(
        tmp_path / "t",
        pa.schema([("id", pa.int64()), ("n", pa.int64())]),
        properties={"delta.columnMapping.mode": "name"},
    )
    append(table, pa.table({"id": [7312345, 5], "n": [1, 2]}))
    committed(run(None, "alter", table, drop_columns=["id"]))
    committed(run(None, "alter", table, add_columns={"id": "bigint"}))
    assert Table.open(table.uri).to_arrow(version=1).column("id").to_pylist() == [7312345, 5]
    run(None, "erase", table, subjects={"column": "id", "values": [7312345]}, writer_hours=0)
    left = [each for each in Table.open(table.uri).find_traces("id", [7312345]) if not each.passes]
    assert any(each.path.endswith(".snappy.parquet") for each in left)
    assert not [each for each in Table.open(table.uri).find_traces("id", [7312346]) if not each.passes]


@pytest.mark.parametrize("is_upgraded", [False, True])
def test_a_number_in_a_column_that_gave_its_name_to_the_key_is_of_another_person(
    tmp_path: Path, *, is_upgraded: bool
) -> None:
    schema = pa.schema([("id", pa.int64())])
    properties = {} if is_upgraded else {"delta.columnMapping.mode": "name"}
    # Parsed statistics in the checkpoint, beside those in JSON.
    properties |= {"delta.checkpoint.writeStatsAsStruct": "true"}
    table = Table.create(tmp_path / "t", schema, properties=properties)
    append(table, pa.table({"id": [7312345, 5]}))
    committed(run(None, "alter", table, rename_columns={"id": "legacy_id"}, allow_reader_upgrade=True))
    committed(run(None, "alter", table, add_columns={"id": "bigint"}))
    table = Table.open(table.uri)
    append(table, pa.table({"legacy_id": [6], "id": [7312346]}))
    table.checkpoint()
    assert not [each for each in Table.open(table.uri).find_traces("id", [7312345]) if not each.passes]
    held = [each.path for each in Table.open(table.uri).find_traces("id", [7312346]) if not each.passes]
    assert any(path.endswith(".parquet") for path in held)


@pytest.mark.parametrize("column", ["email", "person.email"])
def test_a_key_of_many_spellings_is_compared_with_one_file_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    given = "\uae40\uac10@example.org"
    stored = given[:1] + unicodedata.normalize("NFD", given[1:])
    files = []
    for number in range(3):
        emails = pa.array([stored, f"a{number}@example.org", f"b{number}@example.org", None])
        nested = pa.StructArray.from_arrays([emails], ["email"])
        files.append(pa.table({"email": emails} if column == "email" else {"person": nested}))
    table = Table.create(tmp_path / "t", files[0].schema)
    for rows in files:
        append(table, rows)
    compared, are_values = [], Forms.are_values
    monkeypatch.setattr(Forms, "are_values", lambda self, leaf: compared.append(len(leaf)) or are_values(self, leaf))
    committed(run(None, "erase", table, subjects={"column": column, "values": [given]}, writer_hours=0))
    assert max(compared) <= 4
    assert Table.open(table.uri).to_arrow().num_rows == 9


def test_other_names_count_also_if_the_key_has_its_first_name_again(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("id", pa.int64()), ("n", pa.int64())]))
    append(table, pa.table({"id": [5], "n": [1]}))
    committed(run(None, "alter", table, rename_columns={"id": "uid"}, allow_reader_upgrade=True))
    committed(run(None, "update", table, predicate="uid IN (5, 7312344)", set={"n": "5"}))
    committed(run(None, "alter", table, add_columns={"id": "bigint"}))
    append(table, pa.table({"uid": [6], "n": [1], "id": [7312345]}))
    committed(run(None, "alter", table, drop_columns=["id"]))
    committed(run(None, "alter", table, rename_columns={"uid": "id"}))
    assert table.to_arrow(version=5).column("id").to_pylist() == [None, 7312345]
    assert verdict_of(table, "id", 7312344, commit_name(3)) == "found"
    left = [each for each in Table.open(table.uri).find_traces("id", [7312345]) if not each.passes]
    assert any(each.path.endswith(".snappy.parquet") for each in left)
    assert all(each.passes for each in Table.open(table.uri).find_traces("id", [7312346]))


@pytest.mark.parametrize("name", ["user-id", "user id", "größe@x"])
def test_a_text_may_name_a_column_by_more_than_a_word_and_the_type_of_a_number(tmp_path: Path, name: str) -> None:
    properties = {"delta.columnMapping.mode": "name"}
    table = Table.create(tmp_path / "t", pa.schema([(name, pa.int64()), ("note", pa.string())]), properties=properties)
    append(table, pa.table({name: [5], "note": [f"of the {name.capitalize()} 7312345"]}))
    committed(run(None, "update", table, predicate=f"`{name}` IN (5, 7312344)", set={"note": f"'{name}: 7312346L'"}))
    found = {number: table.find_traces(name, [number]) for number in range(7312343, 7312347)}
    left = {number: {each.method for each in of if each.verdict == "found"} for number, of in found.items()}
    assert left == {7312343: set(), 7312344: {"text"}, 7312345: {"decoded"}, 7312346: {"decoded"}}


def test_a_key_with_a_quote_is_found_as_sql_spells_it(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.table({"email": ["bob@example.org", "carol@example.org"], "n": [1, 2]}))
    # This engine records the condition as it was written.
    DeltaTable(tmp_path / "t").delete("email = 'o''brien@example.org' OR n = 2")
    (tmp_path / "t" / "query.sql").write_text(r"DELETE FROM t WHERE email = 'o\'brien@example.org'")
    found = Table.open(tmp_path / "t").find_traces("email", ["o'brien@example.org"])
    assert {each.path for each in found if not each.passes} == {commit_name(1), "query.sql"}


def test_a_key_with_a_quote_is_found_as_csv_spells_it(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("id", pa.string())]))
    forms = forms_of(table.snapshot(), '"jo canary"@example.org')
    assert forms.in_text('7,"""jo canary""@example.org",monday')
    assert not forms.in_text('7,"""jo canary"",@example.org",monday')


def test_a_tiny_key_with_a_quote_is_found_as_sql_spells_it(tmp_path: Path) -> None:
    forms = forms_of(Table.create(tmp_path / "t", pa.schema([("id", pa.string())])).snapshot(), "O'N")
    for text, is_held in {
        "id = 'O''N'": True,
        r"id = 'O\'N'": True,
        "id = O'N": True,
        "id = 'O' OR id = 'N'": False,
    }.items():
        assert forms.in_text(text) is is_held, text


@pytest.mark.parametrize(
    ("kind", "given", "held", "others"),
    [
        (pa.int64(), -7, ["id = -7L", "id = -7BD", "id IN (5,-7)"], ["id = 7L", "id = -7.5D"]),
        (pa.int64(), 7, ["id = 7L", "id = 7.0D", "id = 7S"], ["id = -7L", "id = -7Y", "id = 7.5BD"]),
        (pa.decimal128(9, 2), Decimal("1.50"), ["id = 1.50BD", "id = 1.5D"], ["id = -1.50BD", "id = 11.50BD"]),
        (pa.float64(), 7.5, ["id = 7.5D", "id = 7.5F", "id = 7.5E0D"], ["id = 7D", "id = 0.5D", "id = 5D"]),
    ],
)
def test_a_number_is_found_with_the_type_that_sql_writes_after_it(
    tmp_path: Path, kind: pa.DataType, given: object, held: list[str], others: list[str]
) -> None:
    forms = forms_of(Table.create(tmp_path / "t", pa.schema([("id", kind)])).snapshot(), given)
    assert [text for text in (*held, *others) if forms.in_text(text)] == held


def test_the_numbers_that_spark_gives_columns_in_a_predicate_are_no_keys(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("id", pa.int64()), ("note", pa.string())]))
    merge = {"predicate": json.dumps(["(id#412L = id#413L)"]), "matchedPredicates": json.dumps([])}
    table.begin().commit("MERGE", merge, record_empty=True)
    table.begin().commit("DELETE", {"predicate": json.dumps(["(id#412L = 413)"])}, record_empty=True)
    assert [verdict_of(table, "id", each, commit_name(1)) for each in (412, 413)] == ["absent"] * 2
    assert [verdict_of(table, "id", each, commit_name(2)) for each in (412, 413)] == ["absent", "found"]
    append(table, pa.table({"id": [5], "note": ["as id#412 has said"]}))
    assert [each.path for each in table.find_traces("id", [412]) if each.verdict == "found"] != []


@pytest.mark.parametrize("length", ["4097", "99999999999999", "9" * 5000])
def test_a_char_of_endless_length_is_refused(tmp_path: Path, length: str) -> None:
    mark = ("__CHAR_VARCHAR_TYPE_STRING", f"char({length})")
    table = table_of(tmp_path / "t", pa.schema([("email", pa.string())]), mark)
    with pytest.raises(UnsupportedFeature, match="CHAR of more than 4,096"):
        list(table.find_traces("email", [SUBJECT]))


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("zo\u00eb.ren\u00e9@example.org", "zoe\u0308.ren\u00e9@example.org"),
        ("KEVIN@example.org", "\u212aEVIN@example.org"),
        ("\u212aEVIN@example.org", "KEVIN@example.org"),
        ("\u00c5sa@example.org", "\u212bsa@example.org"),
        ("th\u1ebf@example.org", "th\u00ea\u0301@example.org"),
        ("a\u0323\u0308nna@example.org", "\u00e4\u0323nna@example.org"),
        ("\u8c48@example.org", "\uf900@example.org"),
    ],
    ids=["mixed", "Kelvin", "from Kelvin", "Angstrom", "two marks", "order of marks", "ideograph"],
)
def test_each_spelling_that_unicode_calls_the_same_text_is_erased_and_found(
    tmp_path: Path, given: str, stored: str
) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("email", pa.string()), ("note", pa.string())]))
    append(table, pa.table({"email": [stored, "bob@example.org"], "note": ["", f"call {stored}"]}))
    (verdict,) = (each for each in table.find_traces("email", [given]) if each.path.endswith(".parquet"))
    assert {trace.place for trace in verdict.traces} >= {"rows, column 'email'", "rows, column 'note'"}
    keys = {"column": "email", "values": [given]}
    committed(run(None, "erase", table, subjects=keys, writer_hours=0))
    assert table.to_arrow(columns=["email"]).column(0).to_pylist() == ["bob@example.org"]


@pytest.mark.parametrize(
    ("given", "is_in_nfd"),
    [
        ("\u00e9\u00e0\u00fc\u00f6\u00e7\u00f1\u00ea\u00e2\u00ee\u00f4@example.org", True),
        ("\uae40\uac10@example.org", False),
        ("\u00e9" * 1_001, True),
    ],
    ids=["many accents", "Hangul", "long"],
)
@pytest.mark.parametrize("column", ["email", "person.email"])
def test_a_spelling_that_was_not_tried_is_erased_and_found_in_the_key(
    tmp_path: Path, given: str, is_in_nfd: bool, column: str
) -> None:
    nfd = [unicodedata.normalize("NFD", each) for each in given]
    stored = "".join(
        part if at % 2 == is_in_nfd else each for at, (each, part) in enumerate(zip(given, nfd, strict=True))
    )
    assert stored not in equivalents(given)
    emails = pa.array([given, stored, "bob@example.org", None])
    nested = pa.StructArray.from_arrays([emails], ["email"])
    rows = pa.table({"email": emails} if column == "email" else {"person": nested})
    table = Table.create(tmp_path / "t", rows.schema)
    append(table, rows)
    (verdict,) = (each for each in table.find_traces(column, [given]) if each.path.endswith(".parquet"))
    assert sum(trace.count for trace in verdict.traces if trace.place.startswith("rows")) == 2
    committed(run(None, "erase", table, subjects={"column": column, "values": [given]}, writer_hours=0))
    left = table.to_arrow().column(0).combine_chunks()
    left = left if column == "email" else left.field("email")
    assert left.to_pylist() == ["bob@example.org", None]
    assert all(each.passes for each in table.find_traces(column, [given]))


@pytest.mark.parametrize(
    "properties",
    [{"delta.checkpoint.writeStatsAsStruct": "false"}, {"delta.columnMapping.mode": "name"}],
    ids=["plain", "mapped"],
)
def test_a_spelling_that_was_not_tried_leaves_no_partition(tmp_path: Path, properties: dict[str, str]) -> None:
    given = "\u00e9\u00e0\u00fc\u00f6\u00e7\u00f1\u00ea\u00e2"
    nfd = [unicodedata.normalize("NFD", each) for each in given]
    stored = "".join(part if at % 2 else each for at, (each, part) in enumerate(zip(given, nfd, strict=True)))
    schema = pa.schema([("email", pa.string()), ("n", pa.int64())])
    table = Table.create(tmp_path / "t", schema, ["email"], properties)
    append(table, pa.table({"email": [stored, "bob"], "n": [1, 2]}, schema=schema))
    table.checkpoint()
    held = [each.path for each in table.find_traces("email", [given]) if not each.passes]
    assert any(path.endswith(".checkpoint.parquet") for path in held)
    committed(run(None, "erase", table, subjects={"column": "email", "values": [given]}, writer_hours=0))
    assert table.to_arrow().column("n").to_pylist() == [2]
    assert all(each.passes for each in table.find_traces("email", [given]))
    assert holding(tmp_path, stored) == []


def test_a_key_of_many_spellings_is_found_escaped_without_a_list_of_each_escape_of_each(tmp_path: Path) -> None:
    given = "\u00e9\u00e0\u00fc\u00f6\u00e7\u00f1@example.org"
    mixed = sorted(equivalents(given) - equivalents(given, MOST_ESCAPED))
    assert len(mixed) > 40
    schema = pa.schema([("email", pa.string()), ("note", pa.string())])
    table = Table.create(tmp_path / "t", schema)
    forms = forms_of(table.snapshot(), given)
    # Some twenty for each of them would need gigabytes for thousands of people.
    assert len(forms.strings) < MOST_SPELLINGS + 25 * (MOST_ESCAPED + 3)
    once = quote(mixed[0])
    notes = [
        mixed[0],
        f"a {once} b",
        f"a {quote(once)} b",
        json.dumps(mixed[1]),
        json.dumps(mixed[2], ensure_ascii=False),
    ]
    append(table, pa.table({"email": [f"b{at}@example.org" for at in range(5)], "note": notes}))
    (verdict,) = (each for each in table.find_traces("email", [given]) if each.path.endswith(".parquet"))
    assert {each.count for each in verdict.traces if each.place == "rows, column 'note'"} == {5}
    for name, text in zip("abcde", notes, strict=True):
        (tmp_path / "t" / f"{name}.txt").write_text(text)
    found = [each for each in table.find_traces("email", [given]) if each.path.endswith(".txt")]
    assert [each.verdict for each in found] == ["found"] * 5


def test_equivalent_spellings_are_those_of_the_unicode_database() -> None:
    every = [chr(code) for code in range(sys.maxunicode + 1)]
    mappings = {each: unicodedata.decomposition(each) for each in every}
    own = [each for each, mapping in mappings.items() if mapping and not mapping.startswith("<")]
    named = {unicodedata.normalize("NFD", each) for each in own}
    assert {text for text in named if text.isascii()} == equivalents_module._ASCII
    # Those beyond are marks of notes.
    missing = {each for each in own if each not in set(equivalents(unicodedata.normalize("NFD", each)))}
    assert all(0x1D15E <= ord(each) <= 0x1D1C0 for each in missing)
    for text in ("\u1ebf\u00f4", "a\u0323\u0308", "K" * 20):
        found = equivalents(text)
        assert {unicodedata.normalize("NFC", each) for each in found} == {unicodedata.normalize("NFC", text)}
        assert len(found) <= MOST_SPELLINGS + 3
