"""An erasure on a real S3 server: it has no folders, and the key of an object names a subject."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.errors import UnsupportedStore
from airflow_txlog.storage import PLAIN, open_folder, open_store
from airflow_txlog.storage.objects import ObjectStore
from tests.helpers import s3
from tests.helpers.jobs import committed, run
from tests.helpers.rows import append

SUBJECT = "zoë.canary@example.org"


@pytest.mark.long("a real S3 server; the store's own tests and those of erasures on a disk cover it")
def test_a_subject_leaves_the_objects_of_a_bucket_and_their_names() -> None:
    schema = pa.schema([("email", pa.string()), ("n", pa.int64())])
    properties = {
        "delta.checkpointPolicy": "v2",
        "delta.checkpointInterval": "2",
        "delta.enableDeletionVectors": "true",
    }
    for partition_by in ((), ("email",)):
        table = Table.create(s3.new_folder(), schema, partition_by, properties, storage_options=s3.options())
        for number in range(3):
            append(table, pa.table({"email": [SUBJECT, "bob@example.org"], "n": [number, number]}, schema=schema))
        store = table.store
        assert isinstance(store, ObjectStore)
        # Spark leaves it when it deletes the last file of a folder.
        store._bucket.put(f"{store._prefix}email={SUBJECT}/", b"", if_absent=False)
        keys = {"column": "email", "values": [SUBJECT]}
        options = s3.plain_options()
        done = committed(run(None, "erase", table, subjects=keys, writer_hours=0, storage_options=options))
        assert done.metrics["numDeletedRows"] == 3
        assert [each for each in table.find_traces("email", [SUBJECT]) if not each.passes] == []
        assert store.folder_markers() == []
        assert table.to_arrow().num_rows == 3
        assert (
            run(None, "erase", table, subjects=keys, writer_hours=0, storage_options=options).status == "nothing_to_do"
        )


@pytest.mark.long("a real S3 server")
def test_an_erasure_drops_the_upload_that_a_killed_writer_left_unfinished() -> None:
    schema = pa.schema([("email", pa.string())])
    table = Table.create(s3.new_folder(), schema, storage_options=s3.options())
    append(table, pa.table({"email": ["bob@example.org"]}, schema=schema))
    file = table.store.open_new("killed.parquet")
    file.write(SUBJECT.encode() * 900_000)
    given = {"subjects": {"column": "email", "values": [SUBJECT]}, "storage_options": s3.plain_options()}
    lines: list[str] = []
    assert run(None, "erase", table, writer_hours=24, log=lines.append, **given).error is None
    assert not any("unfinished" in line for line in lines)
    assert run(None, "erase", table, writer_hours=0, log=lines.append, **given).error is None
    assert "1 unfinished uploads of killed writers were dropped" in lines
    assert table.store.abort_unfinished(table.store.now_ms() + 60_000) == 0
    file.discard()


@pytest.mark.long("a real S3 server")
def test_a_whole_bucket_is_a_place_in_which_tables_are_found_and_no_table() -> None:
    folder = s3.new_folder()
    table = Table.create(folder, pa.schema([("n", pa.int64())]), storage_options=s3.options())
    bucket = folder.split("/")[2]
    access = dataclasses.replace(PLAIN, storage_options=s3.plain_options())
    store = open_folder(f"s3://{bucket}", access)
    assert store.root == f"s3://{bucket}"
    assert any(f"{store.root}/{info.path}".startswith(f"{table.uri}/_delta_log/") for info in store.walk())
    with pytest.raises(UnsupportedStore, match="a whole bucket"):
        open_store(f"s3://{bucket}", access)


@pytest.mark.long("a real S3 server; many requests on a disk and this store's own tests cover it")
def test_many_requests_leave_a_bucket_in_one_run_with_their_lists_in_another_folder() -> None:
    schema = pa.schema([("email", pa.string()), ("n", pa.int64())])
    table = Table.create(s3.new_folder(), schema, storage_options=s3.options())
    people = [f"canary{number}@example.org" for number in range(100)]
    append(table, pa.table({"email": [*people, "bob@example.org"], "n": list(range(101))}, schema=schema))
    requests = {f"r-{number}": {"column": "email", "values": [each]} for number, each in enumerate(people)}
    given = {"requests": requests, "report_uri": s3.new_folder(), "storage_options": s3.plain_options()}
    done = committed(run(None, "erase", table, writer_hours=0, **given))
    assert (done.metrics["numSubjects"], done.metrics["numDeletedRows"]) == (100, 100)
    assert done.details.erasure is not None
    assert all(parts for parts in done.details.erasure["deleted"].values())
    assert not [key for key in s3.keys_under(given["report_uri"]) if key.startswith("planned-")]
    names = [each["name"] for each in done.details.erasure["runs"]]
    verified = run(None, "verify_erasure", table, records=names, **given)
    assert verified.details.findings is not None
    assert set(verified.details.findings) == set(requests)
    for findings in verified.details.findings.values():
        assert set(findings["verdicts"]) <= {"absent", "rewritten"}
    assert table.to_arrow().column("email").to_pylist() == ["bob@example.org"]
