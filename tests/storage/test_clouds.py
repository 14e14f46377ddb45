"""Object stores, cloud by cloud: their names, the number of their requests, and the meaning of their answers."""

from __future__ import annotations

import base64
import errno
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.auth.exceptions import DefaultCredentialsError
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import ProtocolError

from airflow_txlog.datafiles.deletion_vectors.positions import pack
from airflow_txlog.datafiles.parquet.output import RowGroupWriter
from airflow_txlog.datafiles.parquet.reading import DataFile, open_data_file
from airflow_txlog.datafiles.parquet.rewriting import copy_options, copy_schema, copy_without, open_for_copy
from airflow_txlog.datafiles.parquet.statistics import StatisticsCollector
from airflow_txlog.datafiles.tasks.plans import planned_files
from airflow_txlog.datafiles.tasks.small_files import in_runs
from airflow_txlog.engine import Table
from airflow_txlog.engine.upkeep.vacuum_plan import is_leftover
from airflow_txlog.errors import InvalidInput, LimitExceeded, UnsupportedStore
from airflow_txlog.locations import split, store_kind
from airflow_txlog.storage import PLAIN, Access, Store, StoreReference, bucket, gcs, open_store
from airflow_txlog.storage.clouds import Connection, EmptyRange, NameTaken, NotAnswered, answer_error
from airflow_txlog.storage.object_files import Upload
from airflow_txlog.storage.objects import ObjectStore
from tests.helpers import azure
from tests.helpers.files import plan_of_files
from tests.helpers.rows import append

ABFSS = "abfss://box@lake.dfs.core.windows.net/t"
KEY = base64.b64encode(b"no key of any account").decode()
LAKE = {"account_name": "lake", "account_key": KEY}


@pytest.fixture
def requests_sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every request of the three clients, which are all urllib3's."""
    sent: list[str] = []
    request = HTTPConnectionPool.urlopen

    def counted(pool: HTTPConnectionPool, method: str, *rest: Any, **more: Any) -> Any:
        sent.append(method)
        return request(pool, method, *rest, **more)

    monkeypatch.setattr(HTTPConnectionPool, "urlopen", counted)
    return sent


@pytest.mark.parametrize(
    ("uri", "options", "root"),
    [
        ("gs://bucket/a/t/", {}, "gs://bucket/a/t"),
        ("GCS://bucket/a/t", {}, "gs://bucket/a/t"),
        ("s3a://bucket/t", {}, "s3://bucket/t"),
        ("abfss://box@lake.dfs.core.windows.net/t/", LAKE, ABFSS),
        ("abfs://box@lake.dfs.core.windows.net/t", LAKE, ABFSS),
        ("wasbs://box@lake.blob.core.windows.net/t", LAKE, ABFSS),
        ("wasb://box@lake.blob.core.windows.net/t", LAKE, ABFSS),
        ("az://box/t", LAKE, ABFSS),
        ("abfs://box/t", LAKE, ABFSS),
        ("az://box/t", {"connection_string": f"AccountName=lake;AccountKey={KEY}"}, ABFSS),
        ("az://box/t", {"connection_string": "BlobEndpoint=https://lake.blob.core.windows.net;X=y"}, ABFSS),
        ("abfss://b@l4k.dfs.core.chinacloudapi.cn/t", {}, "abfss://b@l4k.dfs.core.chinacloudapi.cn/t"),
    ],
)
def test_a_table_has_one_root_however_it_is_spelled(uri: str, options: dict[str, Any], root: str) -> None:
    store = open_store(uri, Access(storage_options=options))
    assert store.root == root
    assert store_kind(uri) == store_kind(root) == split(root).scheme
    assert open_store(store.root, store.access).root == root


@pytest.mark.parametrize(
    "uri",
    [
        "az://box/t",
        "abfss://box/t",
        "abfss://box@lake.dfs.example.com/t",
        "abfss://box@lake.dfs.core.windows.net.example.com/t",
        "abfss://@lake.dfs.core.windows.net/t",
        "abfss://box@lake.dfs.core.windows.net/",
        "gs:///t",
        "gs://bucket",
        "s3://bucket/",
        "s3://bucket/a//t",
        "gs://bucket/a/../t",
        "abfss://box@lake.dfs.core.windows.net/a/./t",
    ],
)
def test_a_uri_that_names_no_folder_in_a_bucket_is_refused(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_CONNECTION_STRING"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UnsupportedStore):
        open_store(uri, PLAIN)


@pytest.mark.parametrize("uri", ["s3://bucket/t", "gs://bucket/t", ABFSS])
def test_an_option_of_another_store_is_refused_without_its_value(uri: str) -> None:
    for options in ({"acount_name": "hidden"}, {"anon": "hidden"}, {"timeout_s": "hidden"}):
        with pytest.raises(InvalidInput) as caught:
            open_store(uri, Access(storage_options=options))
        assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("seconds", [0, -1, True])
def test_a_time_limit_is_a_number_above_zero(seconds: object) -> None:
    with pytest.raises(InvalidInput, match="timeout_s"):
        open_store("s3://bucket/t", Access(storage_options={"timeout_s": seconds}))


def test_no_other_account_is_asked_for_a_file_that_a_log_names() -> None:
    store = open_store(ABFSS, Access(storage_options=LAKE, allow_absolute_paths=True))
    with pytest.raises(UnsupportedStore, match="another storage account"):
        store.open_input("abfss://box@other.dfs.core.windows.net/x")


def test_a_connection_string_of_another_account_is_refused() -> None:
    other = {"connection_string": f"DefaultEndpointsProtocol=https;AccountName=other;AccountKey={KEY}"}
    with pytest.raises(UnsupportedStore, match="that of other") as caught:
        open_store(ABFSS, Access(storage_options=other)).read("x")
    assert KEY not in str(caught.value)


def test_a_table_is_written_read_and_kept_on_it(object_store: Store) -> None:
    table = Table.create(object_store, pa.schema([("id", pa.int64())]))
    for number in range(3):
        append(table, pa.table({"id": [number]}))
    table.checkpoint()
    again = Table.at(object_store.root, object_store.access)
    assert sorted(again.to_arrow()["id"].to_pylist()) == [0, 1, 2]


# --- requests -------------------------------------------------------------------------------------------------------


def test_each_call_is_one_request(object_store: Store, requests_sent: list[str]) -> None:
    is_azure = object_store.root.startswith("abfss:")
    object_store.put_if_absent("log/0", b"{}")  # the first put asks the server whether it keeps conditions
    calls: list[tuple[Callable[[], object], int]] = [
        (lambda: object_store.put_if_absent("log/1", b"{}"), 1),
        (lambda: object_store.put_if_absent("log/1", b"{}"), 1),
        (lambda: object_store.put("hint", b"{}"), 1),
        (lambda: object_store.read("log/1"), 1),
        (lambda: object_store.stat("log/1"), 1),
        (lambda: object_store.stat("log/9"), 1),
        (lambda: object_store.list("log"), 1),
        (lambda: object_store.list("log", start_from="1"), 1),
        # Azure knows no range from the end: the size is asked for first.
        (lambda: object_store.open_input("log/1").read(), 2 if is_azure else 1),
        (lambda: object_store.now_ms(), 1),
        (lambda: object_store.delete("hint"), 1),
        (lambda: object_store.delete_many(["log/0", "log/1"][: object_store.deletes_at_once]), 1),
    ]
    for call, expected in calls:
        requests_sent.clear()
        call()
        assert len(requests_sent) == expected, requests_sent


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("s3://bucket/t", {"endpoint_url": "http://127.0.0.1:1", "key": "k", "secret": "s", "region": "us-east-1"}),
        ("gs://bucket/t", {"endpoint_url": "http://127.0.0.1:1", "anon": True}),
        (
            "az://box/t",
            {"connection_string": f"AccountName=lake;AccountKey={KEY};BlobEndpoint=http://127.0.0.1:1/lake"},
        ),
    ],
)
def test_a_server_out_of_reach_is_asked_once_a_try(uri: str, options: dict[str, Any], requests_sent: list[str]) -> None:
    store = open_store(uri, Access(storage_options=options))
    assert isinstance(store, ObjectStore)
    asked: list[Callable[[], object]] = [
        lambda: store._bucket.put("t/x", b"", if_absent=True),
        lambda: store._bucket.get("t/x"),
        lambda: store._bucket.head("t/x"),
        lambda: store._bucket.list_page("t/", start_from=None, token=None, is_deep=False),
        lambda: store._bucket.delete(["t/x"]),
    ]
    for ask in asked:
        requests_sent.clear()
        with pytest.raises(NotAnswered):
            ask()
        assert len(requests_sent) == 1


def test_who_pays_is_said_to_google_at_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"endpoint_url": "http://127.0.0.1:1", "anon": True, "requester_pays": True, "project": "payer"}
    store = open_store("gs://bucket/t", Access(storage_options=options))
    assert isinstance(store, ObjectStore)
    sent: list[str] = []

    def request(pool: HTTPConnectionPool, method: str, url: str, body: Any, **more: Any) -> Any:
        sent.append(f"{url} {bytes(body.read()) if body else body!r}")
        raise ProtocolError("lost")

    monkeypatch.setattr(HTTPConnectionPool, "urlopen", request)
    asked: list[Callable[[], object]] = [
        lambda: store._bucket.put("t/x", b"", if_absent=True),
        lambda: store._bucket.start_upload("t/x", if_absent=True),
        lambda: store._bucket.get("t/x"),
        lambda: store._bucket.head("t/x"),
        lambda: store._bucket.list_page("t/", start_from=None, token=None, is_deep=False),
        lambda: store._bucket.delete(["t/x"]),
        lambda: store._bucket.delete(["t/x", "t/y"]),
    ]
    for ask in asked:
        with pytest.raises(NotAnswered):
            ask()
    assert [text for text in sent if "userProject=payer" not in text] == []
    assert sent[-1].count("DELETE") == sent[-1].count("?userProject=payer HTTP") == 2
    assert len(sent) == len(asked)


def test_a_small_file_that_is_copied_is_one_request_to_read_and_one_to_write(
    object_store: Store, requests_sent: list[str]
) -> None:
    rows = pa.table({"name": ["a", "b"] * 100, "number": range(200)})
    with object_store.open_new("part-0.parquet") as output:
        pq.write_table(rows, output.sink)
    found = object_store.stat("part-0.parquet")
    assert found is not None
    file = DataFile(store=object_store, path=found.path, size_bytes=found.size_bytes)
    requests_sent.clear()
    with open_for_copy(file) as parquet:
        options, schema = copy_options(parquet), copy_schema(parquet, rows.schema)
        writer = RowGroupWriter(
            object_store, "part-1.parquet", schema, options=options, statistics=StatisticsCollector(schema)
        )
        copy_without(file, parquet, pack([0]), writer)
    staged = writer.close({})
    assert requests_sent in (["GET", "PUT"], ["GET", "POST"])
    copied = object_store.stat("part-1.parquet")
    assert copied is not None
    assert staged is not None
    assert staged.size_bytes == copied.size_bytes
    assert abs(staged.modification_time_ms - copied.modified_ms) <= 1000, "the store's clock, not ours"


@pytest.mark.parametrize("size_bytes", [1, 9, 11])
def test_a_file_of_another_size_than_it_should_have_is_opened_with_its_own(
    object_store: Store, size_bytes: int
) -> None:
    object_store.put("x", b"0123456789")
    object_store.put("empty", b"")
    for path, content in (("x", b"0123456789"), ("empty", b"")):
        with object_store.open_whole(path, size_bytes) as file:
            assert (file.size(), file.read()) == (len(content), content)


def test_a_file_that_is_read_again_is_fetched_once_and_then_forgotten(
    object_store: Store, requests_sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def requests(path: str, *, is_read_again: bool = False) -> int:
        requests_sent.clear()
        with object_store.open_whole(path, 10, is_read_again=is_read_again) as file:
            assert file.read() == b"0123456789"
        return len(requests_sent)

    monkeypatch.setattr("airflow_txlog.storage.kept_files.KEPT_BYTES", 15)
    object_store.keeps_files = True
    for path in ("x", "y"):
        object_store.put(path, b"0123456789")
    assert (requests("x", is_read_again=True), requests("x"), requests("x")) == (1, 0, 1)
    assert (requests("x", is_read_again=True), requests("y", is_read_again=True)) == (1, 1)
    assert (requests("y"), requests("x")) == (1, 0), "there is room for one"
    assert (requests("y", is_read_again=True), object_store.let_go(), requests("y")) == (1, 10, 1)


def test_small_files_in_which_rows_are_found_are_fetched_once_until_the_rewrite(
    object_store: Store, requests_sent: list[str]
) -> None:
    object_store.keeps_files = True
    rows = pa.table({"number": [1, 2, 3]})
    for number in range(25):
        with object_store.open_new(f"{number:02}.parquet") as output:
            pq.write_table(rows, output.sink)
    plan = plan_of_files(*({"path": each.path, "size_bytes": each.size_bytes} for each in object_store.walk()))
    files = list(planned_files(plan, object_store))
    requests_sent.clear()
    joined = 0
    for run in in_runs(files, rows.schema, is_read_again=True):
        if run.rows is None:
            with open_data_file(run.files[0].file, is_read_again=True):
                pass
        else:
            joined += len(run.files)
    for planned in files:
        with open_data_file(planned.file, reads_all=True):
            pass
    assert (joined, len(requests_sent)) == (20, 25)


def test_the_answer_to_a_put_shows_the_clock_of_the_store_for_ten_seconds(
    object_store: Store, requests_sent: list[str]
) -> None:
    assert isinstance(object_store, ObjectStore)
    with object_store.open_new("x") as output:
        output.write(b"1")
    requests_sent.clear()
    now_ms = object_store.now_ms()
    assert requests_sent == []
    found = object_store.stat("x")
    assert found is not None
    assert 0 <= now_ms - found.modified_ms < 10_000
    assert object_store._made is not None
    made_ms, answered_s, answered_ms = object_store._made
    # Ten seconds by one clock; a machine that was suspended has an hour by the other one alone; a clock that was set.
    for made in (
        (made_ms, answered_s - 10, answered_ms),
        (made_ms, answered_s, answered_ms - 3_600_000),
        (made_ms, answered_s, answered_ms + 3_600_000),
    ):
        object_store._made = made
        requests_sent.clear()
        assert object_store.now_ms() >= now_ms
        assert len(requests_sent) == 1


def test_a_put_whose_answer_is_lost_does_not_show_the_clock_of_the_store(
    object_store: Store, requests_sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of an object that a later request finds may be that at which its upload began."""
    assert isinstance(object_store, ObjectStore)
    put = type(object_store._bucket).put

    def lost(self: Any, key: str, data: bytes, **options: Any) -> int | None:
        put(self, key, data, **options)
        raise NameTaken(key)

    monkeypatch.setattr(type(object_store._bucket), "put", lost)
    with object_store.open_new("x") as output:
        output.write(b"1")
    requests_sent.clear()
    object_store.now_ms()
    assert len(requests_sent) == 1


def test_an_unfinished_file_is_given_up_at_once_where_the_server_is_out_of_reach(requests_sent: list[str]) -> None:
    options = {"endpoint_url": "http://127.0.0.1:1", "key": "k", "secret": "s", "region": "us-east-1"}
    store = open_store("s3://bucket/t", Access(storage_options=options))
    assert isinstance(store, ObjectStore)
    file = Upload(store._bucket, "t/x", store._repeated, if_absent=True)
    file._upload = ("t/x", "begun while the server was there", {})
    file.discard()
    assert len(requests_sent) == 1


def test_a_file_of_more_parts_than_the_store_takes_is_refused_by_its_size(object_store: ObjectStore) -> None:
    made = object_store._bucket
    made.part_bytes, made.most_parts = 5 << 20, 2
    file = object_store.open_new("t/x")
    with pytest.raises(OSError, match="more than 10 MiB") as error:
        file.write(bytes(4 * made.part_bytes))
    file.discard()
    assert error.value.errno == errno.EFBIG
    assert object_store.stat("t/x") is None


def test_a_bucket_that_is_missing_is_said_and_not_made(object_store: Store) -> None:
    root = object_store.root
    scheme, authority, _ = split(root)
    missing = open_store(f"{scheme}://{f'no-such-{authority}'}/t", object_store.access)
    # A server may answer before it has the whole body, whose rest must not be taken for the next request.
    for call in (
        lambda: missing.put("x", bytes(3_000_000)),
        lambda: missing.list("_delta_log"),
        lambda: missing.put_if_absent("x", b"{}"),
    ):
        for _ in range(2):
            with pytest.raises(UnsupportedStore, match="no bucket"):
                call()


def test_a_log_file_that_is_too_large_is_not_loaded(object_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    object_store.put("_delta_log/x", b"12345")
    monkeypatch.setenv("TXLOG_MAX_LOG_FILE_BYTES", "4")
    with pytest.raises(LimitExceeded):
        object_store.read("_delta_log/x")


def test_a_forked_process_has_a_connection_of_its_own(object_store: Store) -> None:
    object_store.put("x", b"1")
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if object_store.read("x") == b"1" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert object_store.read("x") == b"1"


FORK_THAT_ENDS = """
import os, pickle, sys
store = pickle.load(sys.stdin.buffer).open()
assert store.stat("x") is None
child = os.fork()
if child == 0:
    sys.exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_ends(object_store: Store) -> None:
    reference = pickle.dumps(StoreReference.of(object_store))
    done = subprocess.run([sys.executable, "-c", FORK_THAT_ENDS], input=reference, capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_process_without_credentials_is_denied_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_none() -> Any:
        raise DefaultCredentialsError("none here")

    made = gcs.GcsBucket("bucket", Connection(find_none), {})
    with pytest.raises(PermissionError, match="no credentials"):
        made.put("t/x", b"", if_absent=True)


# --- what answers mean ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (None, NotAnswered),
        (400, OSError),
        (401, PermissionError),
        (403, PermissionError),
        (404, FileNotFoundError),
        (407, PermissionError),
        (408, NotAnswered),
        (409, NotAnswered),
        (412, NameTaken),
        (416, EmptyRange),
        (429, NotAnswered),
        (500, NotAnswered),
        (501, OSError),
        (503, NotAnswered),
    ],
)
def test_an_answer_is_judged_by_its_status(status: int | None, expected: type[Exception]) -> None:
    assert type(answer_error(status, "Word", "PUT", "gs://bucket/t/x")) is expected


def test_a_clock_that_is_wrong_and_a_body_that_came_too_slowly_are_said_to_be_that() -> None:
    skewed = answer_error(403, "RequestTimeTooSkewed", "PUT", "s3://bucket/t/x")
    assert isinstance(skewed, PermissionError)
    assert "clock" in str(skewed)
    assert "credentials" not in str(skewed)
    assert isinstance(answer_error(400, "RequestTimeout", "PUT", "s3://bucket/t/x"), NotAnswered)


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidToken", "TokenRefreshRequired"])
def test_temporary_credentials_that_have_expired_are_credentials_that_are_refused(code: str) -> None:
    error = answer_error(400, code, "get_object", "s3://bucket/t/x")
    assert isinstance(error, PermissionError)
    assert f"refused ({code}): the credentials are not valid" in str(error)


@pytest.mark.parametrize("text", ['"abc"', 'W/"abc"', "abc"])
def test_an_etag_is_one_however_a_proxy_writes_it(text: str) -> None:
    assert bucket.bare_etag(text) == "abc"


class Server:
    """A bucket on a server that does, or does not, heed the condition of a put."""

    uri = "s3://bucket"

    def __init__(self, *, is_honest: bool) -> None:
        self.is_honest = is_honest
        self.keys: set[str] = set()
        self.puts = 0

    def unproved_server(self) -> str:
        return f"http://server-{self.is_honest}"

    def put(self, key: str, data: bytes, *, if_absent: bool) -> None:
        self.puts += 1
        if if_absent and self.is_honest and key in self.keys:
            raise NameTaken(key)
        self.keys.add(key)

    def delete(self, keys: Sequence[str]) -> dict[str, Exception]:
        self.keys -= set(keys)
        return {}


def once(request: Callable[[], None]) -> None:
    request()


@pytest.fixture
def _nothing_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "_PROVED", set())


@pytest.mark.usefixtures("_nothing_proved")
def test_a_server_that_ignores_the_condition_of_a_put_is_refused_each_time() -> None:
    server: Any = Server(is_honest=False)
    for _ in range(2):
        with pytest.raises(UnsupportedStore, match="server-False"):
            bucket.check_conditions(server, "t/_delta_log/", once)
    assert server.keys == set()


@pytest.mark.usefixtures("_nothing_proved")
def test_a_server_that_does_not_know_the_condition_of_a_put_is_refused_by_what_it_answers() -> None:
    server: Any = Server(is_honest=True)

    def put(key: str, data: bytes, *, if_absent: bool) -> None:
        if if_absent:
            raise answer_error(501, "NotImplemented", "put_object", key)

    server.put = put
    with pytest.raises(UnsupportedStore, match="NotImplemented"):
        bucket.check_conditions(server, "t/_delta_log/", once)


@pytest.mark.usefixtures("_nothing_proved")
def test_a_server_is_asked_once_whether_it_heeds_the_condition() -> None:
    server: Any = Server(is_honest=True)
    for _ in range(2):
        bucket.check_conditions(server, "t/_delta_log/", once)
    assert (server.puts, server.keys) == (2, set())


@pytest.mark.usefixtures("_nothing_proved")
def test_what_a_process_leaves_that_is_killed_while_it_asks_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    server: Any = Server(is_honest=True)
    monkeypatch.setattr(server, "delete", lambda keys: {})
    bucket.check_conditions(server, "t/_delta_log/", once)
    (left,) = server.keys
    assert is_leftover(left.removeprefix("t/"))


# --- Azure ----------------------------------------------------------------------------------------------------------


def test_directories_of_a_hierarchical_namespace_are_no_files() -> None:
    """As the documentation has them: empty blobs with a mark in their metadata, which Azurite keeps as any other."""
    store = open_store(azure.new_folder(), Access(storage_options=azure.options()))
    folder = split(store.root).path.strip("/")
    for directory in ("day=1", "day=1/deep"):
        azure.client().upload_blob(f"{folder}/{directory}", b"", metadata={"hdi_isfolder": "true"})
    store.put("day=1/x", b"1")
    assert [info.path for info in store.list("")] == []
    assert [info.path for info in store.list("day=1")] == ["day=1/x"]
    assert [info.path for info in store.walk()] == ["day=1/x"]
    assert store.stat("day=1") is None


def test_a_lease_of_another_is_no_lost_race() -> None:
    store = open_store(azure.new_folder(), Access(storage_options=azure.options()))
    store.put("x", b"1")
    lease = azure.client().get_blob_client(f"{split(store.root).path.strip('/')}/x").acquire_lease()
    assert store.put_if_absent("x", b"2") is False
    for call in (lambda: store.put("x", b"2"), lambda: store.delete("x")):
        with pytest.raises(OSError, match="LeaseId"):
            call()
    lease.release()
    assert store.read("x") == b"1"


@pytest.mark.parametrize("missing", ["content_range", "etag", "size", "last_modified"])
def test_an_answer_of_azure_that_lacks_a_header_is_an_error_of_the_store(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy has removed it: the SDK has None for it, or raises a ValueError."""
    held: dict[str, Any] = {"content_range": "bytes 0-0/1", "etag": "e", "size": 1, "last_modified": datetime.now(UTC)}
    answer = SimpleNamespace(**{**held, missing: None})

    class Blob:
        def download_blob(self, **asked: Any) -> Any:
            if answer.content_range is None:
                raise ValueError("Required Content-Range response header is missing or malformed.")
            return SimpleNamespace(properties=answer, readall=None)

        def get_blob_properties(self, **asked: Any) -> Any:
            return answer

    bucket = open_store("az://c/t", Access(storage_options=LAKE))._bucket  # type: ignore[attr-defined]
    monkeypatch.setattr(bucket, "_blob", lambda key: Blob())
    ask = bucket.get if missing in ("content_range", "etag") else bucket.head
    with pytest.raises(OSError, match=r"the answer lacks .*: a proxy on the way") as raised:
        ask("t/x")
    assert raised.value.errno == errno.EREMOTEIO


# --- Google Cloud Storage -------------------------------------------------------------------------------------------


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[Any]]:
    """The ranges that were sent to an upload, and the answers that it gives."""
    sent: list[str] = []
    script: list[Any] = []

    def upload(self: Any, session: Any, content_range: str, data: bytes, accepted: Any = ()) -> Any:
        sent.append(content_range)
        answer = script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return gcs._Answer(308, {"Range": f"bytes=0-{answer - 1}"} if answer else {}, b"")

    monkeypatch.setattr(gcs.GcsBucket, "_upload", upload)
    return sent, script


def test_a_part_of_which_the_service_kept_the_beginning_is_sent_on(answers: tuple[list[str], list[Any]]) -> None:
    sent, script = answers
    made = gcs.GcsBucket("bucket", Connection(lambda: None), {})
    session, part = gcs._Upload("http://upload", "t/x"), made.part_bytes
    script += [part // 2, part]
    made.put_part(session, 1, bytes(part))
    assert sent == [f"bytes 0-{part - 1}/*", f"bytes {part // 2}-{part - 1}/*"]


def test_a_part_whose_answer_was_lost_is_not_sent_twice(answers: tuple[list[str], list[Any]]) -> None:
    sent, script = answers
    made = gcs.GcsBucket("bucket", Connection(lambda: None), {})
    session, part = gcs._Upload("http://upload", "t/x"), made.part_bytes
    script += [part, NotAnswered("lost"), 2 * part]
    made.put_part(session, 1, bytes(part))
    with pytest.raises(NotAnswered):
        made.put_part(session, 2, bytes(part))
    made.put_part(session, 2, bytes(part))
    assert sent[1:] == [f"bytes {part}-{2 * part - 1}/*", "bytes */*"]


def test_of_a_batch_each_failure_is_that_of_its_own_file(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [
        f"--b\r\nContent-Type: application/http\r\nContent-ID: <response-{number}>\r\n\r\n"
        f"HTTP/1.1 {status} X\r\n\r\n{{}}\r\n"
        for number, status in ((2, 403), (0, 204), (1, 404))  # 3 is not answered
    ]
    body = f"{''.join(parts)}--b--\r\n".encode()
    answer = gcs._Answer(200, {"Content-Type": "multipart/mixed; boundary=b"}, body)
    monkeypatch.setattr(gcs.GcsBucket, "_request", lambda *rest, **more: answer)
    failures = gcs.GcsBucket("bucket", Connection(lambda: None), {}).delete(["a", "b", "c", "d"])
    assert {key: type(error) for key, error in failures.items()} == {"c": PermissionError, "d": NotAnswered}
