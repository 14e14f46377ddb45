"""Alone in showing that every place of a table that holds a subject's value is found, and named without the value."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import gzip
import json
import os
import struct
import unicodedata
import uuid
import zlib
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.parquet.reading import DataFile
from airflow_txlog.engine import Table
from airflow_txlog.engine.erasure import object_verdicts, text_traces
from airflow_txlog.engine.erasure.bloom import BloomFilter, xxh64
from airflow_txlog.engine.erasure.object_verdicts import ObjectVerdict
from airflow_txlog.engine.erasure.parquet_traces import batches_without_values
from airflow_txlog.engine.erasure.values.forms import Forms
from airflow_txlog.errors import InvalidInput, UnknownColumn
from airflow_txlog.storage import LocalStore
from tests.helpers.jobs import committed, run
from tests.helpers.rows import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUBJECT = "zoë.canary@example.org"
OTHER = "bob.other@example.org"
# As many bytes, so that a file can be changed in place.
CHANGED = "zoë.CANARY@example.org"
SCHEMA = pa.schema([("email", pa.string()), ("number", pa.int64()), ("day", pa.string())])
LOG = "_delta_log"


def rows(*emails: str | None) -> pa.Table:
    columns = [list(emails), list(range(len(emails))), ["monday"] * len(emails)]
    return pa.table(dict(zip(SCHEMA.names, columns, strict=True)), schema=SCHEMA)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table that has never met the subject."""
    table = Table.create(tmp_path / "t", SCHEMA, ["day"])
    append(table, rows(OTHER, None, "carol@example.org"))
    return table


def folder_of(table: Table) -> Path:
    return Path(table.uri.removeprefix("file://"))


def found_in(table: Table, values: Sequence[Any] = (SUBJECT,), column: str = "email") -> dict[str, ObjectVerdict]:
    """Return the objects that do not pass, after a check of their facts."""
    verdicts = list(table.find_traces(column, values))
    files = {
        path.relative_to(folder_of(table))
        for path in folder_of(table).rglob("*")
        if path.is_symlink() or not path.is_dir()
    }
    assert len(verdicts) == len(files)
    shown = repr(verdicts)
    assert not any(str(value) in shown or quote(str(value)) in shown for value in values if len(str(value)) > 4)
    return {verdict.path: verdict for verdict in verdicts if not verdict.passes}


def only(found: dict[str, ObjectVerdict]) -> ObjectVerdict:
    (verdict,) = found.values()
    return verdict


def places(verdict: ObjectVerdict) -> set[str]:
    return {trace.place for trace in verdict.traces}


def test_a_table_without_the_subject_passes_and_each_object_has_its_digest(table: Table) -> None:
    table.checkpoint()
    verdicts = list(table.find_traces("email", [SUBJECT]))
    assert {verdict.verdict for verdict in verdicts} == {"absent"}
    assert all(verdict.digest is not None and len(verdict.digest) == 64 for verdict in verdicts)
    assert {verdict.method for verdict in verdicts} == {"decoded", "text"}


# --- rows -----------------------------------------------------------------------------------------------------------


def test_rows_of_live_hidden_and_old_files_are_found(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, ["day"], properties={"delta.enableDeletionVectors": "true"})
    append(table, rows(SUBJECT, OTHER, SUBJECT))
    (verdict,) = (each for path, each in found_in(table).items() if path.endswith(".parquet"))
    assert next(trace for trace in verdict.traces if trace.place == "rows, column 'email'").count == 2
    committed(run(None, "delete", table, predicate="email <> 'bob.other@example.org'"))
    assert table.to_arrow(columns=["email"]).column(0).to_pylist() == [OTHER]
    # Hidden by a deletion vector, then in a file that no version needs.
    assert any(path.endswith(".parquet") for path in found_in(table))
    committed(run(None, "optimize", table))
    assert any(path.endswith(".parquet") for path in found_in(table))


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "zstd", "lz4"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_files_of_every_codec_are_decoded(table: Table, codec: str, version: str) -> None:
    place = folder_of(table) / "stray.parquet"
    pq.write_table(rows(OTHER, SUBJECT), place, compression=codec, data_page_version=version)
    assert {"rows, column 'email'", "dictionary of column 'email', row group 0"} <= places(only(found_in(table)))


def test_other_columns_of_texts_and_members_of_structs_and_lists_are_searched(table: Table) -> None:
    nested = pa.table(
        {"a": [[{"b": SUBJECT.encode()}]], "m": pa.array([[("k", SUBJECT)]], pa.map_("string", "string"))}
    )
    pq.write_table(nested, folder_of(table) / "stray.parquet", use_dictionary=False, write_statistics=False)
    assert {place for place in places(only(found_in(table))) if place.startswith("rows")} == {
        "rows, column 'a.list.element.b'",
        "rows, column 'm.key_value.value'",
    }


def test_columns_of_other_arrow_types_are_searched_as_they_are_stored(table: Table) -> None:
    """Categories of pandas, and the types that Arrow makes of Parquet's JSON and UUID."""
    subject = uuid.uuid4()
    identifiers = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([subject.bytes], pa.binary(16)))
    stray = pa.table(
        {
            "category": pa.array([str(subject)]).dictionary_encode(),
            "document": pa.ExtensionArray.from_storage(pa.json_(), pa.array([json.dumps({"id": str(subject)})])),
            "id": identifiers,
            "member": pa.StructArray.from_arrays([identifiers], ["id"]),
        }
    )
    pq.write_table(stray, folder_of(table) / "stray.parquet", write_statistics=False)
    found = {place for place in places(only(found_in(table, [str(subject)]))) if place.startswith("rows")}
    assert found == {f"rows, column {name!r}" for name in ("category", "document", "id", "member.id")}


def test_a_value_inside_of_a_longer_text_or_of_a_variant_is_found(table: Table) -> None:
    stray = pa.table({"note": ["to call", f"call {SUBJECT} back"], "packed": [b"\x02\x01", b"\x0c" + SUBJECT.encode()]})
    pq.write_table(stray, folder_of(table) / "stray.parquet", use_dictionary=False, write_statistics=False)
    assert {place for place in places(only(found_in(table))) if place.startswith("rows")} == {
        "rows, column 'note'",
        "rows, column 'packed'",
    }


def test_hundreds_of_values_are_searched_at_once(table: Table) -> None:
    subjects = [f"{number}-subject@example.org" for number in range(450)]
    for number in (0, 199, 200, 449):
        pq.write_table(pa.table({"note": [f"<{subjects[number]}>"]}), folder_of(table) / f"stray{number}.parquet")
    assert set(found_in(table, subjects)) == {f"stray{number}.parquet" for number in (0, 199, 200, 449)}


def test_change_files_are_searched(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, properties={"delta.enableChangeDataFeed": "true"})
    append(table, rows(SUBJECT, OTHER))
    committed(run(None, "delete", table, predicate="number = 0"))
    assert any(path.startswith("_change_data/") for path in found_in(table))


@pytest.mark.parametrize("mode", ["name", "id"])
def test_a_mapped_and_nested_key_is_found_under_its_physical_name(tmp_path: Path, mode: str) -> None:
    schema = pa.schema([("person", pa.struct([("number", pa.int64())])), ("other", pa.int64())])
    table = Table.create(tmp_path / "t", schema, properties={"delta.columnMapping.mode": mode})
    given = [{"person": {"number": 4711}, "other": 1}, {"person": {"number": 5}, "other": 0}]
    append(table, given)
    data = {path for path in found_in(table, [4711], "person.number") if path.endswith(".parquet")}
    assert len(data) == 1
    # The same number in another column is another fact.
    assert found_in(table, [1], "person.number") == {}


def test_an_identifier_is_found_as_bytes_and_as_a_text(table: Table) -> None:
    subject = uuid.uuid4()
    stray = pa.table({"raw": pa.array([subject.bytes], pa.binary(16)), "hex": [subject.hex], "long": [str(subject)]})
    pq.write_table(stray, folder_of(table) / "stray.parquet")
    found = {place for place in places(only(found_in(table, [str(subject)]))) if place.startswith("rows")}
    assert found == {f"rows, column {name!r}" for name in ("raw", "hex", "long")}


# --- beside the rows --------------------------------------------------------------------------------------------------


def with_changed_copies(path: Path, kept: int) -> None:
    """Change all but one of the copies of the subject in a file that is not compressed."""
    data, subject = path.read_bytes(), SUBJECT.encode()
    parts = data.split(subject)
    assert kept < len(parts) - 1, "the file has fewer copies"
    joints = [subject if number == kept else CHANGED.encode() for number in range(len(parts) - 1)]
    path.write_bytes(b"".join(part + joint for part, joint in zip(parts, [*joints, b""], strict=True)))


def copies(path: Path) -> int:
    return path.read_bytes().count(SUBJECT.encode())


@pytest.mark.parametrize("with_dictionary", [True, False])
@pytest.mark.parametrize(("column", "text"), [("email", SUBJECT), ("note", f"to {SUBJECT}, soon")])
def test_each_copy_in_a_parquet_file_is_found_alone(
    table: Table, column: str, text: str, with_dictionary: bool
) -> None:
    place = folder_of(table) / "stray.parquet"

    def write() -> None:
        stray = pa.table({column: [OTHER, text, text], "n": [1, 2, 3]})
        options = {"use_dictionary": with_dictionary, "compression": "none", "write_page_index": True}
        pq.write_table(stray, place, store_schema=False, write_page_checksum=False, **options)

    write()
    kinds = set()
    for kept in range(copies(place)):
        write()
        with_changed_copies(place, kept)
        verdict = only(found_in(table))
        assert verdict.verdict in ("found", "statistic only")
        kinds |= {trace.place.split(" of ")[0] for trace in verdict.traces}
    assert {"statistics", "page index", "footer"} <= kinds
    assert ("dictionary" in kinds) == with_dictionary


@pytest.mark.parametrize(
    ("kind", "subject", "other"),
    [
        (pa.int64(), 4711, 5),
        (pa.int16(), 4711, 5),
        (pa.date32(), dt.date(1990, 2, 3), dt.date(2001, 1, 1)),
        (pa.decimal128(7, 2), Decimal("4711.10"), Decimal("1.00")),
        (pa.decimal128(30, 2), Decimal("4711.10"), Decimal("1.00")),
        (pa.timestamp("us", "UTC"), dt.datetime(1990, 2, 3, 4, tzinfo=dt.UTC), dt.datetime(2001, 1, 1, tzinfo=dt.UTC)),
        (pa.float64(), 4711.5, 1.0),
        (pa.binary(), b"\x00\xfesubject", b"other"),
    ],
    ids=str,
)
@pytest.mark.parametrize("with_dictionary", [True, False])
def test_bounds_and_dictionaries_of_keys_of_every_type_are_compared(
    tmp_path: Path, kind: pa.DataType, subject: Any, other: Any, with_dictionary: bool
) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("key", kind)]))
    stray, options = pa.table({"key": pa.array([other, subject], kind)}), {"use_dictionary": with_dictionary}
    pq.write_table(stray, tmp_path / "t" / "stray.parquet", write_page_index=True, **options)
    expected = {"rows, column 'key'"}
    expected |= {f"{what} of column 'key', row group 0" for what in ("statistics", "page index")}
    if with_dictionary:
        expected.add("dictionary of column 'key', row group 0")
    found = places(only(found_in(table, [subject], "key")))
    # Pages have bounds of their own in some versions of Arrow, and the footer repeats those of bytes.
    assert expected <= found
    pq.write_table(pa.table({"key": pa.array([other], kind)}), tmp_path / "t" / "stray.parquet", **options)
    assert found_in(table, [subject], "key") == {}


def test_a_dictionary_with_a_value_of_no_row_is_found(table: Table) -> None:
    values = pa.DictionaryArray.from_arrays([0, 0], [OTHER, SUBJECT])
    pq.write_table(pa.table({"email": values}), folder_of(table) / "stray.parquet", store_schema=False)
    assert "dictionary of column 'email', row group 0" in places(only(found_in(table)))
    assert "rows, column 'email'" not in places(only(found_in(table)))


def test_rows_of_a_value_in_a_dictionary_are_counted(table: Table) -> None:
    texts = [OTHER, f"to {SUBJECT}", None, f"to {SUBJECT}"] * 5
    stray = pa.table({"email": [SUBJECT, OTHER] * 10, "note": texts})
    pq.write_table(stray, folder_of(table) / "stray.parquet", row_group_size=7)
    counts = {trace.place: trace.count for trace in only(found_in(table)).traces if trace.place.startswith("rows")}
    assert counts == {"rows, column 'email'": 10, "rows, column 'note'": 10}


def test_numbers_of_values_beyond_a_dictionary_are_a_damage(table: Table) -> None:
    place = folder_of(table) / "stray.parquet"
    values = pa.table({"email": ["a" * 9, "b" * 9] * 4})
    pq.write_table(values, place, compression="none", write_statistics=False, store_schema=False)
    data = place.read_bytes()
    # The rows begin with the width of a number, and pack eight of one bit into a byte.
    packed = b"\x01\x03\xaa"
    assert data.count(packed) == 1
    place.write_bytes(data.replace(packed, b"\x05\x02\x1f"))
    assert only(found_in(table)).verdict == "not readable"


def test_a_value_among_the_bytes_of_a_column_of_numbers_is_found(table: Table) -> None:
    place = folder_of(table) / "stray.parquet"
    numbers = [int.from_bytes(SUBJECT.encode()[:8], "little"), int.from_bytes(SUBJECT.encode()[8:16], "little"), 0]
    numbers[2] = int.from_bytes(SUBJECT.encode()[16:].ljust(8, b"\0")[:8], "little")
    stray = pa.table({"n": pa.array(numbers, pa.uint64())})
    pq.write_table(stray, place, compression="none", use_dictionary=False, write_statistics=False)
    assert places(only(found_in(table))) == {"bytes of column 'n', row group 0"}


def test_bytes_that_no_footer_names_are_searched(table: Table) -> None:
    place = folder_of(table) / "stray.parquet"
    pq.write_table(rows(OTHER), place, write_page_index=True)
    assert found_in(table) == {}
    data = place.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    place.write_bytes(data[:footer] + SUBJECT.encode() + data[footer:])
    assert places(only(found_in(table))) == {"bytes that the footer does not name"}


def test_key_values_of_a_footer_are_found(table: Table) -> None:
    stray = pa.table({"n": [1]})
    with pq.ParquetWriter(folder_of(table) / "stray.parquet", stray.schema, store_schema=False) as writer:
        writer.write_table(stray)
        writer.add_key_value_metadata({"note": json.dumps({"who": SUBJECT})})
    assert places(only(found_in(table))) == {"footer"}


def test_the_schema_of_arrow_is_found_in_base_64(table: Table) -> None:
    field = pa.field("n", pa.int64(), metadata={"who": SUBJECT})
    pq.write_table(pa.table([pa.array([1])], schema=pa.schema([field])), folder_of(table) / "stray.parquet")
    assert places(only(found_in(table))) == {"footer"}


def bloomed(path: Path, emails: Sequence[str]) -> None:
    pq.write_table(
        pa.table({"email": emails}),
        path,
        compression="none",
        write_statistics=False,
        bloom_filter_options={"email": {"ndv": 100, "fpp": 0.01}},
    )


def test_a_bloom_filter_with_a_value_of_no_row_is_found(table: Table) -> None:
    place = folder_of(table) / "stray.parquet"
    bloomed(place, [OTHER] * 3)
    assert found_in(table) == {}
    assert found_in(table, [4711], "number") == {}
    bloomed(place, [OTHER, SUBJECT])
    assert "rows, column 'email'" in places(only(found_in(table)))
    # The rows change, and the filter stays.
    place.write_bytes(place.read_bytes().replace(SUBJECT.encode(), CHANGED.encode()))
    assert places(only(found_in(table))) == {"Bloom filter of column 'email', row group 0"}


def test_bits_that_other_values_explain_are_no_trace(table: Table) -> None:
    subject, emails = b"x", [b"%d" % number for number in range(60)]
    bits = bytearray(32)
    for email in emails:
        for word, mask in enumerate(BloomFilter(bytes(32))._place(email)[1]):
            bits[4 * word : 4 * word + 4] = (int.from_bytes(bits[4 * word : 4 * word + 4], "little") | mask).to_bytes(
                4, "little"
            )
    full = BloomFilter(bytes(bits))
    claimed = {value for value in (b"s%d" % number for number in range(400)) if full.may_hold(value)}
    assert claimed
    assert subject not in emails
    assert full.is_explained(claimed, emails)
    assert not full.is_explained(claimed, emails[:5])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_the_hash_is_that_of_the_specification(data: bytes, expected: int) -> None:
    assert xxh64(data) == expected


# --- the log --------------------------------------------------------------------------------------------------------


def with_line(table: Table, line: dict[str, Any], name: str | None = None) -> None:
    """Put an action into the newest commit, or into another file of the log."""
    place = folder_of(table) / LOG / (name or f"{table.latest_version():020}.json")
    text = place.read_text() if place.exists() else ""
    place.write_text(text + json.dumps(line) + "\n")


STATISTICS = json.dumps({"numRecords": 1, "maxValues": {"email": SUBJECT}})
SHORTENED = json.dumps({"maxValues": {"email": SUBJECT[:12]}})
RAISED = json.dumps({"maxValues": {"email": SUBJECT[:11] + chr(ord(SUBJECT[11]) + 1)}})
ADD = {"path": "x.parquet", "size": 1, "modificationTime": 1, "dataChange": True, "partitionValues": {}}


@pytest.mark.parametrize(
    ("line", "verdict", "place"),
    [
        ({"remove": {"path": "x", "stats": STATISTICS}}, "statistic only", "remove.stats.maxValues.email"),
        ({"remove": {"path": "x", "stats": SHORTENED}}, "statistic only", "remove.stats.maxValues.email"),
        ({"remove": {"path": "x", "stats": RAISED}}, "statistic only", "remove.stats.maxValues.email"),
        ({"remove": {"path": "x", "partitionValues": {"email": SUBJECT}}}, "found", "remove.partitionValues.email"),
        ({"remove": {"path": f"email={quote(SUBJECT)}/x"}}, "found", "remove.path"),
        ({"remove": {"path": "x", "tags": {SUBJECT: "1"}}}, "found", "remove.tags.(a subject)"),
        (
            {"commitInfo": {"operationParameters": {"predicate": f"[\"email = '{SUBJECT}'\"]"}}},
            "found",
            "commitInfo.operationParameters.predicate",
        ),
        ({"commitInfo": {"userMetadata": f"asked by {SUBJECT}"}}, "found", "commitInfo.userMetadata"),
        (
            {"domainMetadata": {"domain": "d", "configuration": json.dumps({"who": SUBJECT}), "removed": False}},
            "found",
            "domainMetadata.configuration.who",
        ),
        ({"txn": {"appId": f"load of {SUBJECT}", "version": 1}}, "found", "txn.appId"),
    ],
)
def test_each_place_of_a_commit_is_named(table: Table, line: dict[str, Any], verdict: str, place: str) -> None:
    # A commit that no reader looks at: the objects count, not what a table makes of them.
    with_line(table, line, "00000000000000000000.00000000000000000001.compacted.json")
    found = only(found_in(table))
    assert (found.verdict, places(found)) == (verdict, {place})


@pytest.mark.parametrize("kind", ["classic", "v2"])
@pytest.mark.parametrize("as_struct", ["true", "false"])
def test_checkpoints_are_searched_with_their_statistics_of_both_kinds(
    tmp_path: Path, kind: str, as_struct: str
) -> None:
    properties = {"delta.checkpoint.writeStatsAsStruct": as_struct}
    if kind == "v2":
        properties["delta.checkpointPolicy"] = "v2"
    table = Table.create(tmp_path / "t", SCHEMA, ["email"], properties=properties)
    append(table, rows(SUBJECT))
    table.checkpoint()
    found = found_in(table)
    assert any(".checkpoint." in path or "_sidecars" in path for path in found)
    long = Table.create(tmp_path / "long", SCHEMA, properties=properties)
    append(long, rows(f"{SUBJECT}{'x' * 40}"))
    long.checkpoint()
    found = found_in(long, [f"{SUBJECT}{'x' * 40}"])
    checkpoint = next(each for path, each in found.items() if ".checkpoint." in path or "_sidecars" in path)
    assert checkpoint.verdict in ("statistic only", "found")


def test_numbers_count_where_the_column_is_named(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("id", pa.int64()), ("size", pa.int64())]))
    append(table, [{"id": 7, "size": 3}, {"id": 9, "size": 12}])
    assert set(found_in(table, [3, 1], "id")) == set()
    found = found_in(table, [9], "id")
    assert {verdict.verdict for verdict in found.values()} == {"found", "statistic only"}
    with_line(table, {"commitInfo": {"operationParameters": {"predicate": '["(id = 12345)"]'}}}, "a.compacted.json")
    assert places(only(found_in(table, [12345], "id"))) == {"commitInfo.operationParameters.predicate"}
    assert found_in(table, [1234], "id") == {}
    pq.write_table(pa.table({"text": ["1234"], "size": [1234]}), tmp_path / "t" / "stray.parquet")
    assert found_in(table, [1234], "id") == {}
    (tmp_path / "t" / "stray.parquet").unlink()
    # The groups of an identifier are no numbers, whatever it identifies.
    with_line(table, {"metaData": {"id": "00001234-1234-1234-1234-123456789012"}}, "b.compacted.json")
    assert found_in(table, [1234], "id") == {}


# --- names, and other objects -----------------------------------------------------------------------------------------


def test_folders_and_files_that_are_named_by_a_value_are_marked(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, ["email"])
    append(table, rows(SUBJECT, OTHER))
    found = [verdict for path, verdict in found_in(table).items() if path.endswith(".parquet")]
    assert len(found) == 1
    assert found[0].path.startswith("(a subject)/part-")
    assert "path" in places(found[0])


@pytest.mark.parametrize(
    "data",
    [
        SUBJECT.encode(),
        b"\xff\xfe" + f"who: {SUBJECT}".encode("utf-16-le"),
        gzip.compress(f"who: {SUBJECT}".encode()),
        json.dumps({"who": SUBJECT}).encode(),
    ],
    ids=["utf-8", "utf-16", "gzip", "escaped json"],
)
def test_other_files_are_searched_as_texts(table: Table, data: bytes) -> None:
    (folder_of(table) / "notes").write_bytes(data)
    assert only(found_in(table)).verdict == "found"


_ESCAPED = json.dumps(SUBJECT)
ODD = "zoe:canary#1@example.org"


@pytest.mark.parametrize(
    "text",
    [
        f'{{{_ESCAPED}: {{"rows": 1}}}}',
        f"{{{_ESCAPED}: null}}",
        f'{{"who": {_ESCAPED}, "who": 1}}',
        f'{{"row": 1}}\n{{"who": {_ESCAPED}, "ti',
        f'{_ESCAPED}\n"other"\n',
        f'\ufeff{{"who": {_ESCAPED}}}',
        f'{{"line": "a\u2028b", "who": {_ESCAPED}}}\n{{"row": 1}}\n',
        f'{{"digits": {"1" * 5000}, "who": {_ESCAPED}}}',
        "https://example.org/?who=zo%c3%ab.canary%40example.org",
    ],
    ids=["name", "empty member", "twice", "broken line", "texts", "mark", "end of a line", "digits", "url"],
)
def test_escapes_hide_no_value(table: Table, text: str) -> None:
    (folder_of(table) / "notes").write_text(text)
    assert only(found_in(table)).verdict == "found"


def test_escapes_in_rows_hide_no_value(table: Table) -> None:
    texts = [json.dumps({"who": SUBJECT}), "https://example.org/?who=zo%C3%AB.canary%40example.org"]
    for number, text in enumerate(texts):
        pq.write_table(pa.table({"text": [text]}), folder_of(table) / f"{number}.parquet")
    assert set(found_in(table)) == {"0.parquet", "1.parquet"}


def test_the_path_in_a_tombstone_is_decoded_as_a_path_and_as_a_folder(table: Table) -> None:
    path = f"email={quote(quote(ODD))}/part-0.parquet"
    with_line(table, {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True}}, "a.compacted.json")
    assert places(only(found_in(table, [ODD]))) == {"remove.path"}


@pytest.mark.parametrize("name", ["stray", ".stray.crc", f"deletion_vector_{uuid.UUID(int=1)}.bin"])
def test_a_name_or_a_mark_makes_no_text_of_packed_bytes(table: Table, name: str) -> None:
    (folder_of(table) / name).write_bytes(b"\xff\xfe" + gzip.compress(SUBJECT.encode()))
    assert only(found_in(table)).verdict == "not readable"


@pytest.mark.parametrize("spelled", ["5.00", "5.0", "5", "0.5E1"])
def test_numbers_of_json_count_however_they_are_spelled(tmp_path: Path, spelled: str) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("price", pa.decimal128(10, 2))]))
    (tmp_path / "t" / "notes").write_text(f'{{"stats": "{{\\"minValues\\": {{\\"price\\": {spelled}}}}}"}}')
    assert only(found_in(table, [Decimal("5.00")], "price")).verdict == "statistic only"
    assert found_in(table, [Decimal("50.00")], "price") == {}


@pytest.mark.parametrize("spelled", ["2024-05-06T07:08:09.123Z", "2024-05-06 07:08:09.123"])
def test_timestamps_count_as_delta_spells_them(tmp_path: Path, spelled: str) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("at", pa.timestamp("us", "UTC"))]))
    (tmp_path / "t" / "notes").write_text(json.dumps({"minValues": {"at": spelled}}))
    moment = dt.datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=dt.UTC)
    assert only(found_in(table, [moment], "at")).verdict == "statistic only"


def test_a_number_is_found_in_another_case_and_in_another_type(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("number", pa.int64())]))
    pq.write_table(pa.table({"Number": [77]}), tmp_path / "t" / "0.parquet")
    decimals = pa.array([Decimal(77)], pa.decimal128(5, 1))
    pq.write_table(pa.table({"number": decimals}), tmp_path / "t" / "1.parquet")
    assert set(found_in(table, [77], "number")) == {"0.parquet", "1.parquet"}


def test_a_number_counts_in_a_text_of_a_row_that_names_the_column(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("number", pa.int64())]))
    for number, text in enumerate(['{"Number": 77}', '{"number": 778}', '{"size": 77}', "77"]):
        pq.write_table(pa.table({"text": [text, None]}), tmp_path / "t" / f"{number}.parquet")
    assert set(found_in(table, [77], "number")) == {"0.parquet"}


@pytest.mark.parametrize("as_rows", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        "https://example.org/?who=o%27brien%2f1%20x%40example.org",
        "https://example.org/?who=o'brien%2F1%20x%40example.org",
        "https://example.org/?who=o%27brien%2F1+x%40example.org",
        r'seen: {"who": "o\u0027brien/1 x@example.org"}',
        r'seen: {"who": "o\u0027brien\/1 x\u0040example.org"}',
        r'seen: {"inner": "{\"who\": \"o\\u0027brien\\/1 x@example.org\"}"}',
    ],
    ids=["lower case", "JavaScript", "form", "Gson", "PHP", "JSON in JSON"],
)
def test_escapes_of_other_writers_hide_no_value(table: Table, text: str, *, as_rows: bool) -> None:
    if as_rows:
        stray = pa.table({"text": pa.array([None, "100 %", text, "a\\b"], pa.large_string()).slice(1)})
        pq.write_table(stray, folder_of(table) / "stray.parquet", use_dictionary=False, write_statistics=False)
    else:
        (folder_of(table) / "stray").write_text(text)
    verdict = only(found_in(table, ["o'brien/1 x@example.org"]))
    assert sum(trace.count for trace in verdict.traces) == 1
    assert found_in(table, ["o'brien/2 x@example.org"]) == {}


def test_a_number_counts_in_the_lines_of_a_file_whose_first_line_names_the_column(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("number", pa.int64())]))
    (tmp_path / "t" / "a.csv").write_text("Number,name\n77,Anna\n")
    (tmp_path / "t" / "b.csv").write_text("size,name\n77,Anna\n")
    assert set(found_in(table, [77], "number")) == {"a.csv"}


def test_a_number_counts_in_an_entry_of_a_map_that_names_the_column(tmp_path: Path) -> None:
    """As the partition values of a checkpoint are: in a mapped table no path shows them."""
    table = Table.create(tmp_path / "t", pa.schema([("number", pa.int64())]))
    kind = pa.map_("string", "string")
    for number, entries in enumerate([[("Number", "77")], [("size", "77"), ("number", "7")], [("number", None)]]):
        stray = pa.table({"values": pa.array([None, [("x", "1")], entries], kind)})
        pq.write_table(stray, tmp_path / "t" / f"{number}.parquet")
    (verdict,) = found_in(table, [77], "number").values()
    assert (verdict.path, places(verdict)) == ("0.parquet", {"rows, column 'values.key_value.value'"})


def test_a_number_in_the_name_of_another_folder_is_another_fact(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("number", pa.int64())]))
    for name in ("number=8/hour=7", "number=7/hour=8"):
        (tmp_path / "t" / name).mkdir(parents=True)
        (tmp_path / "t" / name / "x").write_text("")
    assert set(found_in(table, [7], "number")) == {"(a subject)/hour=8/x"}


def test_a_path_or_a_name_of_a_column_shows_no_value(table: Table) -> None:
    place = folder_of(table) / "old" / "DE" / "1234567" / "x"
    place.parent.mkdir(parents=True)
    place.write_text("")
    assert set(found_in(table, ["DE/1234567"])) == {"(a subject)"}
    pq.write_table(pa.table({SUBJECT: [f"to {SUBJECT}"]}), folder_of(table) / "stray.parquet")
    assert "rows, column '(a subject)'" in places(only(found_in(table)))


def test_an_identifier_is_found_in_capitals(table: Table) -> None:
    subject = uuid.uuid4()
    (folder_of(table) / "notes").write_text(f"to {str(subject).upper()}")
    assert only(found_in(table, [str(subject)])).verdict == "found"


@pytest.mark.parametrize("level", [1, 9])
def test_the_name_before_compressed_bytes_is_searched(table: Table, level: int) -> None:
    place = folder_of(table) / "old.gz"
    with place.open("wb") as file, gzip.GzipFile("alice.canary@example.org", "wb", level, file) as packed:
        packed.write(b"nothing")
    assert places(only(found_in(table, ["alice.canary@example.org"]))) == {"bytes"}


def _truncated(folder: Path) -> None:
    pq.write_table(rows(OTHER), folder / "stray.parquet")
    (folder / "stray.parquet").write_bytes((folder / "stray.parquet").read_bytes()[:-20])


def _encrypted(folder: Path) -> None:
    (folder / "stray.parquet").write_bytes(b"PARE" + bytes(20) + b"PARE")


def _packed(folder: Path) -> None:
    (folder / "stray.zip").write_bytes(b"PK\x03\x04" + os.urandom(200))


def _damaged_page(folder: Path) -> None:
    place = folder / "stray.parquet"
    pq.write_table(pa.table({"email": [OTHER] * 3}), place, use_dictionary=False)
    data = bytearray(place.read_bytes())
    data[4:12] = b"\xff" * 8
    place.write_bytes(data)


def _linked(folder: Path) -> None:
    (folder / "stray").symlink_to(folder.parent)


def _damaged_gzip(folder: Path) -> None:
    (folder / "stray.gz").write_bytes(gzip.compress(b"x" * 100)[:-9])


def _packed_beside_the_pages(folder: Path) -> None:
    place = folder / "stray.parquet"
    pq.write_table(rows(OTHER), place)
    data = place.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    place.write_bytes(data[:footer] + gzip.compress(SUBJECT.encode()) + data[footer:])


def _of_another_nested_type(folder: Path) -> None:
    stray = pa.table({"texts": pa.array([[f"to {SUBJECT}"]], pa.list_view(pa.string()))})
    pq.write_table(stray, folder / "stray.parquet", use_dictionary=False, write_statistics=False)


_HARMS = [_truncated, _encrypted, _packed, _damaged_page, _linked, _damaged_gzip]


@pytest.mark.parametrize("harm", [*_HARMS, _packed_beside_the_pages, _of_another_nested_type])
def test_an_object_that_cannot_be_read_does_not_pass(table: Table, harm: Callable[[Path], None]) -> None:
    harm(folder_of(table))
    verdict = only(found_in(table))
    assert (verdict.verdict, verdict.path.startswith("stray")) == ("not readable", True)
    assert verdict.reason


def test_a_pipe_is_no_file_and_does_not_pass(table: Table) -> None:
    os.mkfifo(folder_of(table) / "pipe")
    verdict = next(each for each in table.find_traces("email", [SUBJECT]) if each.path == "pipe")
    assert verdict.verdict == "not readable"


def sums(summed: int, count: int = 3) -> bytes:
    return b"crc\0" + struct.pack(">i", summed) + bytes(4 * count)


def vector(bitmap: bytes) -> bytes:
    return struct.pack(">i", len(bitmap)) + bitmap + struct.pack(">I", zlib.crc32(bitmap))


BITMAP = struct.pack("<IQ", 1681511377, 0)


@pytest.mark.parametrize(
    ("name", "data", "is_readable"),
    [
        (".a.crc", sums(512), True),
        (".a.crc", b"crc\0" + zlib.compress(SUBJECT.encode() * 9), False),
        (".a.crc", sums(512) + b"\xff", False),
        ("deletion_vector_{}.bin", b"\x01" + vector(BITMAP), True),
        ("deletion_vector_{}.bin", b"\x01" + vector(BITMAP) + vector(BITMAP), True),
        ("deletion_vector_{}.bin", b"\x01" + zlib.compress(SUBJECT.encode() * 9), False),
        ("deletion_vector_{}.bin", b"\x01" + vector(BITMAP) + zlib.compress(SUBJECT.encode()), False),
        ("deletion_vector_{}.bin", b"\x01" + vector(zlib.compress(SUBJECT.encode())), False),
        ("deletion_vector_{}.bin", b"\x01" + vector(BITMAP)[:-1] + b"\xff", False),
    ],
)
def test_a_format_without_values_is_known_by_all_of_its_bytes(
    table: Table, name: str, data: bytes, *, is_readable: bool
) -> None:
    (folder_of(table) / name.format(uuid.UUID(int=1))).write_bytes(data)
    assert [verdict.verdict for verdict in found_in(table).values()] == ([] if is_readable else ["not readable"])


@pytest.mark.parametrize("spell", [bytes.hex, lambda data: data.hex().upper()], ids=["lower", "upper"])
def test_a_value_in_hexadecimal_digits_is_found(table: Table, spell: Callable[[bytes], str]) -> None:
    (folder_of(table) / "notes").write_text(f"X'{spell(SUBJECT.encode())}'")
    assert only(found_in(table)).verdict == "found"


KEY = b"\x00\xfe\x81subject"


@pytest.mark.parametrize(
    "text",
    [
        f"X'{KEY.hex().upper()}'",
        KEY.hex(),
        base64.b64encode(b"x" + KEY + b"yz").decode(),
        json.dumps({"key": KEY.decode("latin-1")}),
    ],
    ids=["SQL", "digits", "base 64", "partition"],
)
def test_a_key_of_bytes_is_found_as_texts_spell_it(tmp_path: Path, text: str) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("key", pa.binary())]))
    (tmp_path / "t" / "notes").write_text(text)
    assert only(found_in(table, [KEY], "key")).verdict == "found"
    assert found_in(table, [KEY[::-1]], "key") == {}


def test_a_number_counts_below_a_member_that_names_the_column(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("number", pa.int64())]))
    (tmp_path / "t" / "a.json").write_text('{"number": {"value": 77123}}')
    (tmp_path / "t" / "b.json").write_text('{"size": {"value": 77123}}')
    assert set(found_in(table, [77123], "number")) == {"a.json"}


def test_a_link_that_comes_meanwhile_is_not_readable(table: Table) -> None:
    folder = folder_of(table)
    verdicts = table.find_traces("email", [SUBJECT])
    first = next(verdicts)
    (folder / "late").symlink_to(folder.parent)
    assert first.path != "late"
    assert [(each.path, each.verdict) for each in verdicts if each.path == "late"] == [("late", "not readable")]


def test_objects_that_come_meanwhile_get_a_verdict_and_those_that_go_are_deleted(table: Table) -> None:
    append(table, rows("dan@example.org"))
    verdicts = []
    for number, verdict in enumerate(table.find_traces("email", [SUBJECT])):
        verdicts.append(verdict)
        if number == 0:
            append(table, rows(SUBJECT))
            for path in folder_of(table).glob(f"{LOG}/*.json"):
                if path.name == "00000000000000000001.json":
                    path.unlink()
    by_verdict = [verdict.verdict for verdict in verdicts]
    assert "found" in by_verdict
    assert by_verdict.count("deleted") <= 1


@pytest.mark.parametrize(
    ("column", "values", "kind"),
    [
        ("mail", [SUBJECT], UnknownColumn),
        ("email", [], InvalidInput),
        ("email", [SUBJECT, ""], InvalidInput),
        ("number", ["x y"], InvalidInput),
    ],
)
def test_wrong_input_is_refused_without_a_value(
    table: Table, column: str, values: list[Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind) as caught:
        list(table.find_traces(column, values))
    assert not values or str(values[0]) not in str(caught.value)


def test_a_key_that_is_no_number_is_refused(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("key", pa.float64())]))
    with pytest.raises(InvalidInput, match="NaN equals nothing"):
        table.find_traces("key", [1.5, float("nan")])


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("with_dictionary", [False, True])
def test_zero_and_minus_zero_are_one_value(tmp_path: Path, kind: pa.DataType, *, with_dictionary: bool) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("key", kind)]))
    for name, key in (("0", 0.0), ("minus 0", -0.0), ("1", 1.0), ("nan", float("nan"))):
        stray = pa.table({"key": pa.array([key, 1.0, None], kind)})
        pq.write_table(stray, tmp_path / "t" / f"{name}.parquet", use_dictionary=with_dictionary)
    for value in (0.0, -0.0):
        found = found_in(table, [value], "key")
        assert set(found) == {"0.parquet", "minus 0.parquet"}
        assert {"rows, column 'key'"} <= places(found["0.parquet"]) & places(found["minus 0.parquet"])


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_the_key_of_another_person_that_holds_the_value_is_no_trace(tmp_path: Path, kind: pa.DataType) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("key", kind), ("note", pa.string())]))
    value, other = pa.array(["zoë.a", "mzoë.all"], kind).to_pylist()
    stray, line = tmp_path / "t" / "stray.parquet", "a.compacted.json"

    def write(key: Any, note: str, bound: str, more: dict[str, Any]) -> dict[str, ObjectVerdict]:
        pq.write_table(pa.table({"key": pa.array([key], kind), "note": [note]}), stray, write_page_index=True)
        statistics = json.dumps({"minValues": {"key": bound}, "maxValues": {"key": bound}})
        (tmp_path / "t" / LOG / line).write_text(json.dumps({"add": {"path": "x", "stats": statistics, **more}}))
        return {path.rpartition("/")[2]: verdict for path, verdict in found_in(table, [value], "key").items()}

    assert write(other, "x", "mzoë.all", {}) == {}
    # Everywhere else it counts inside of a longer text, beside such a bound too.
    assert places(only(write(other, "mzoë.all", "mzoë.all", {}))) >= {"rows, column 'note'", "footer"}
    assert set(write(other, "x", "mzoë.all", {"tags": {"who": "mzoë.all"}})) == {line}
    assert set(write(value, "x", "zoë.a", {})) == {stray.name, line}
    assert set(write(other, "x", "zoë", {})) == {line}


def test_a_number_of_nulls_is_no_value(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("id", pa.int64())]))
    append(table, [{"id": 7}, {"id": None}])
    assert found_in(table, [1], "id") == {}


def test_a_column_of_many_values_is_no_key(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("tags", pa.list_(pa.string()))]))
    with pytest.raises(InvalidInput, match="single values"):
        table.find_traces("tags", ["a"])


def test_an_object_that_unpacks_without_end_is_not_readable(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_traces, "MOST_TEXT_BYTES", 1024)
    (folder_of(table) / "a.gz").write_bytes(gzip.compress(b"x" * 1025))
    (folder_of(table) / "b.gz").write_bytes(gzip.compress(b"x" * 1024))
    assert set(found_in(table)) == {"a.gz"}


def test_a_damage_that_nobody_expected_ends_the_search_of_one_object(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise struct.error("unpack_from requires a buffer")

    monkeypatch.setattr(object_verdicts, "traces_in_parquet", fail)
    assert {verdict.verdict for verdict in found_in(table).values()} == {"not readable"}


def test_an_object_that_is_listed_but_not_found_does_not_pass(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: LocalStore, path: str, *_: Any, **__: Any) -> None:
        raise FileNotFoundError(path)

    for method in ("open_input", "open_whole"):
        monkeypatch.setattr(LocalStore, method, fail)
    left = [verdict for verdict in table.find_traces("email", [SUBJECT]) if not verdict.passes]
    assert {(verdict.verdict, verdict.reason) for verdict in left} == {("not readable", "listed, but not found")}
    assert len(left) == len(list(table.store.walk()))


def test_a_key_that_no_listing_has_does_not_pass(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalStore, "odd_keys", lambda _: iter([f"a//{SUBJECT}"]))
    left = [verdict for verdict in table.find_traces("email", [SUBJECT]) if not verdict.passes]
    assert [(verdict.path, verdict.verdict) for verdict in left] == [("a//(a subject)", "not readable")]


def test_a_number_is_found_by_the_id_of_its_column(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, properties={"delta.columnMapping.mode": "id"})
    for field_id in (1, 2):
        other = pa.field("other", pa.int64(), metadata={"PARQUET:field_id": str(field_id)})
        pq.write_table(pa.table([pa.array([77])], pa.schema([other])), tmp_path / "t" / f"{field_id}.parquet")
    assert set(found_in(table, [77], "number")) == {"2.parquet"}


@pytest.mark.parametrize("before", ["", "x", "xy"])
def test_base_64_of_a_value_among_other_bytes_is_found(table: Table, before: str) -> None:
    packed = base64.b64encode(f"{before}{SUBJECT} and more".encode()).decode()
    stray = pa.table({"note": [f"token {packed}."]})
    pq.write_table(stray, folder_of(table) / "stray.parquet", use_dictionary=False, write_statistics=False)
    assert places(only(found_in(table))) == {"rows, column 'note'"}


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_both_forms_of_a_text_with_accents_are_found(table: Table, form: Literal["NFC", "NFD"]) -> None:
    other = {"NFC": "NFD", "NFD": "NFC"}[form]
    (folder_of(table) / "note.txt").write_text(f"to {unicodedata.normalize(form, SUBJECT)}")
    given = unicodedata.normalize(other, SUBJECT)  # type: ignore[arg-type]
    assert only(found_in(table, [given])).verdict == "found"


def test_a_doubly_encoded_path_in_a_text_of_a_row_is_found(table: Table) -> None:
    stray = pa.table({"path": [f"s3://lake/email={quote(quote(SUBJECT))}/part.parquet"]})
    pq.write_table(stray, folder_of(table) / "stray.parquet", use_dictionary=False, write_statistics=False)
    assert places(only(found_in(table))) == {"rows, column 'path'"}


def test_an_empty_folder_with_the_name_of_a_subject_is_found(table: Table) -> None:
    (folder_of(table) / "old" / f"email={quote(SUBJECT)}").mkdir(parents=True)
    verdict = only({each.path: each for each in table.find_traces("email", [SUBJECT]) if not each.passes})
    assert (verdict.path, verdict.verdict, places(verdict)) == ("old/(a subject)", "found", {"path"})


def test_a_verdict_is_plain_data(table: Table) -> None:
    verdict = next(table.find_traces("email", [SUBJECT]))
    assert json.loads(json.dumps(dataclasses.asdict(verdict)))["verdict"] == "absent"


@pytest.mark.spark
@pytest.mark.long("Spark writes the files")
def test_filters_and_indexes_of_spark_are_read(table: Table, spark: SparkSession) -> None:
    stray = folder_of(table) / "stray"
    emails = [OTHER, SUBJECT, *(f"user{number}@example.org" for number in range(500))]
    frame = spark.createDataFrame([(email,) for email in emails], "email STRING").coalesce(1)
    frame.write.option("parquet.bloom.filter.enabled#email", "true").option("compression", "none").parquet(str(stray))
    (found,) = (verdict for path, verdict in found_in(table).items() if path.endswith(".parquet"))
    assert {trace.place.split(",")[0].split(" of ")[0] for trace in found.traces} >= {
        "rows",
        "Bloom filter",
        "page index",
    }
    assert {verdict.verdict for verdict in found_in(table, ["user1@example.org"]).values()} == {"found"}
    # Of four hundred who were never there the filter claims some, and other rows explain each.
    assert found_in(table, [f"nobody{number}@example.org" for number in range(400)]) == {}


def test_a_tiny_text_among_the_values_hides_no_binary_form_of_another(tmp_path: Path) -> None:
    key = uuid.UUID("6d1f6a52-93a7-4c8b-9d0e-0b5f3a7c21d4")
    table = Table.create(str(tmp_path / "t"), pa.schema([("id", pa.string())]))
    (tmp_path / "t" / "dump.bin").write_bytes(b"\xff\xfe\x00" + key.bytes + b"\x00")
    for values in ([str(key)], [str(key), "ab"]):
        found = {each.path: each for each in table.find_traces("id", values)}
        assert found["dump.bin"].traces, values


# Spellings that are not the bytes of the value, each with the value.
_SPELLED = [
    ("number", 7, "number=7 complained"),
    ("email", "ann@example.org", "ann\\u0040example.org"),
    ("email", "ann@example.org", "ann%40example%2Eorg"),
]


@pytest.mark.parametrize("shape", ["column", "member", "column whose dictionary was given up"])
@pytest.mark.parametrize(("column", "value", "text"), _SPELLED)
def test_a_text_of_no_row_in_a_dictionary_counts_however_it_spells_the_value(
    table: Table, column: str, value: Any, text: str, shape: str
) -> None:
    for entry, verdict in ((text, "found"), ("7 of ann%40", "absent")):
        texts = pa.DictionaryArray.from_arrays(pa.array([1, 1, None], pa.int32()), pa.array([entry, "nothing"]))
        if shape == "member":
            groups: list[pa.Array] = [pa.StructArray.from_arrays([texts], ["text"])]
        else:
            others = pa.array([f"other {number}" for number in range(500)])
            groups = [texts, others.dictionary_encode()] if "given up" in shape else [texts]
        place = folder_of(table) / "stray.parquet"
        with pq.ParquetWriter(
            place, pa.schema([("note", groups[0].type)]), dictionary_pagesize_limit=64, compression="none"
        ) as writer:
            for group in groups:
                writer.write_table(pa.table({"note": group}))
        found = {each.path: each for each in table.find_traces(column, [value])}["stray.parquet"]
        assert found.verdict == verdict
        assert not any(place.startswith("rows") for place in places(found))


def test_only_the_rows_of_a_key_leave_a_file_where_the_key_of_another_person_holds_it(tmp_path: Path) -> None:
    """As the tombstones of a subject do."""
    table = Table.create(tmp_path / "t", pa.schema([("key", pa.binary())]))
    place = tmp_path / "t" / "stray.parquet"
    pq.write_table(pa.table({"key": [b"malice", b"alice", None], "data": [b"\x01x", b"y", b"\x01alice"]}), place)
    file = DataFile(store=table.store, path="stray.parquet", size_bytes=place.stat().st_size)
    kept = list(batches_without_values(file, Forms.of(table.snapshot(), "key", [b"alice"])))
    assert [batch.column("key").to_pylist() for batch, _ in kept] == [[b"malice"]]
