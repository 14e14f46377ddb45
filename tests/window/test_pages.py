"""The pages of the stand-alone window: what they show of a table that looks like work, and of others that do not."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import pyarrow as pa
import pytest
from starlette.testclient import TestClient

from airflow_txlog.contract.job import ANNOTATION_TAG_PREFIX
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.table.schema.schema import parse_schema, schema_to_json
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType
from airflow_txlog.locations import shown
from airflow_txlog.window.answers import AnswerLimits
from airflow_txlog.window.app import Window, page_path
from airflow_txlog.window.facts import shape, version_lines
from airflow_txlog.window.markup import link
from airflow_txlog.window.site import KnownTable, StandAlone, View
from tests.helpers.paths import ROOT
from tests.window.tables import SCRIPT, Hands, append, busy_table, create, hostile_table, long_log

NOW_MS = 1_790_000_000_000


def client(*uris: str) -> TestClient:
    return TestClient(Window(StandAlone(uris), clock=Hands(NOW_MS + 86_400_000)), base_url="http://127.0.0.1")


def page(given: TestClient, name: str, **parameters: Any) -> str:
    answer = given.get(f"/{link(name, **parameters)}")
    assert answer.status_code == 200, answer.text
    return answer.text


def facts(given: TestClient, name: str, **parameters: Any) -> Any:
    return json.loads(page(given, name, **parameters, format="json"))


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> str:
    uri = str(tmp_path_factory.mktemp("window") / "orders")
    busy_table(uri, Hands(NOW_MS))
    return uri


def test_the_page_of_a_table_starts_with_its_health_and_its_numbers(orders: str) -> None:
    text = page(client(orders), "table", uri=orders)
    assert "named</span>" not in text, "the name is that of the folder"
    order = ["The table can be read, and nothing needs attention.", "<b>33,690</b> rows", "Last change", "Timeline"]
    places = [text.index(each) for each in order]
    assert places == sorted(places)


def test_the_timeline_names_operation_rows_files_duration_and_task(orders: str) -> None:
    [merge] = [
        line for line in facts(client(orders), "table", uri=orders)["timeline"]["lines"] if line["operation"] == "MERGE"
    ]
    assert merge["version"] == 28
    assert merge["rows"] == "+20 ~310 -4"
    assert (merge["files"]["added"], merge["files"]["removed"], merge["duration_ms"]) == (1, 1, 41_200)
    assert (merge["by"]["dag_id"], merge["by"]["task_id"]) == ("nightly", "merge_orders")


def test_the_charts_agree_with_a_snapshot_of_each_version(orders: str) -> None:
    """The numbers are computed backwards from the latest version; each must be that of the version itself."""
    points = facts(client(orders), "table", uri=orders)["points"]
    table = Table.open(orders)
    assert [each["version"] for each in points] == list(range(30))
    for each in points:
        snapshot = table.snapshot(each["version"])
        assert (each["totals"]["files"], each["totals"]["size_bytes"]) == (snapshot.num_files, snapshot.size_bytes)


def test_rows_before_a_commit_that_does_not_count_them_are_unknown(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), Hands(NOW_MS))
    append(table, 1, rows=10)
    tx = table.begin()
    tx.remove(tx.read_whole_table())
    tx.add(path="day=x/new.parquet", partition_values={"day": "x"}, size=5, stats='{"numRecords":7}')
    tx.commit("WRITE", {"mode": "Overwrite"}, {"numOutputRows": 7})
    rows = [each["totals"]["rows"] for each in facts(client(table.uri), "table", uri=table.uri)["points"]]
    assert rows == [None, None, 7]


def test_a_new_column_is_marked_with_its_version(orders: str) -> None:
    found = facts(client(orders), "table", uri=orders)
    assert [(each["path"], each["change"], each["version"]) for each in found["columns"]][-1] == ("shop", "added", 14)
    assert any("delta.checkpointInterval" in text for each in found["schema_changes"] for text in each["properties"])


def test_expectations_show_the_versions_whose_rows_failed(orders: str) -> None:
    [trend] = facts(client(orders), "table", uri=orders)["expectations"]
    assert trend["name"] == "positive amount"
    assert [version for version, failed in zip(trend["versions"], trend["failed"], strict=True) if failed] == [10, 19]


@pytest.mark.parametrize("name", ["a", "b", "missing"])
def test_values_of_partitions_are_those_of_a_lookup_however_the_maps_look(name: str) -> None:
    """Maps of equal keys have a quick way, which is taken only where it is right."""
    maps = pa.map_(pa.string(), pa.string())
    given = [
        [[("a", "1"), ("b", "2")], [("a", "3"), ("b", None)]],
        [[("a", "1"), ("b", "2")], [("b", "3"), ("a", "4")]],
        [[("a", "1"), ("b", "2")], [("a", "3")], [("a", "5"), ("b", "6"), ("c", "7")]],
        [[("a", "1")], None, []],
        [[], []],
        [],
        [[("a", "1"), ("a", "2")], [("b", "3"), ("b", "4")]],
    ]
    chunks = [pa.array(each, maps) for each in given]
    found = shape._values_of(pa.chunked_array([*chunks, chunks[0][1:], chunks[2][1:]], type=maps), name)
    expected = [
        dict(reversed(each)).get(name) if each else None for one in [*given, given[0][1:], given[2][1:]] for each in one
    ]
    assert found.to_pylist() == expected


def test_partitions_and_consumers_are_listed(orders: str) -> None:
    found = facts(client(orders), "table", uri=orders)
    assert {each["values"]["day"] for each in found["partitions"]["largest"]} == {
        "2026-11-24",
        "2026-11-25",
        "2026-11-26",
    }
    assert sum(each["files"] for each in found["partitions"]["largest"]) == found["totals"]["files"]
    assert [(each["consumer"], each["version"]) for each in found["consumers"]] == [("orders_by_shop", 311)]


def test_the_list_shows_signs_of_the_health_of_each_table(orders: str, tmp_path: Path) -> None:
    fresh = create(str(tmp_path / "fresh"), Hands(NOW_MS))
    rows = {row["table"]["uri"]: row["summary"] for row in facts(client(orders, fresh.uri), "")["tables"]}
    busy, new = rows[orders], rows[fresh.uri]
    assert (busy["vector_files"], busy["small_files"], busy["staged"]) == (0, 0, 0)
    assert busy["log_files"] >= 30
    assert busy["oldest_checkpoint_ms"] is not None
    assert new["oldest_checkpoint_ms"] is None
    text = page(client(orders, fresh.uri), "")
    assert "no <a" in text
    assert "checkpoint</dfn></a> yet" in text
    assert f"{busy['log_files']} files" in text


def test_a_commit_shows_the_commits_that_came_first_and_how_each_was_resolved(orders: str) -> None:
    text = page(client(orders), "commit", uri=orders, version=28)
    for each in (
        "By their partition values",
        "version 25",
        "did not start over",
    ):
        assert each in text
    found = facts(client(orders), "commit", uri=orders, version=28)
    assert [(each["line"]["version"], each["meeting"]["how"]) for each in found["between"]] == [
        (26, "disjoint_partitions"),
        (27, "disjoint_partitions"),
    ]


def test_a_predicate_is_not_shown_because_it_may_contain_values(orders: str) -> None:
    given = client(orders)
    for asked in ({}, {"format": "json"}):
        answer = given.get(f"/{link('commit', uri=orders, version=28, **asked)}").text
        assert "may contain values" in answer
        assert "s.id" not in answer


def test_statistics_of_columns_are_on_no_page(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), Hands(NOW_MS))
    tx = table.begin()
    stats = '{"numRecords":1,"minValues":{"amount":4711.25},"maxValues":{"amount":4711.25},"nullCount":{"id":0}}'
    tx.add(path="day=x/f.parquet", partition_values={"day": "x"}, size=9, stats=stats)
    tx.commit("WRITE", {"mode": "Append"})
    given = client(table.uri)
    for name, more in (("table", {}), ("commit", {"version": 1})):
        for form in ({}, {"format": "json"}):
            assert "4711" not in given.get(f"/{link(name, uri=table.uri, **more, **form)}").text


def test_hostile_names_are_text_everywhere(tmp_path: Path) -> None:
    uri = str(tmp_path / "hostile<img src=x onerror=alert(1)>")
    hostile_table(uri, Hands(NOW_MS))
    given = client(uri)
    for name, more in (("", {}), ("table", {"uri": uri}), ("commit", {"uri": uri, "version": 1})):
        text = page(given, name, **more)
        assert SCRIPT not in text
        assert "<img" not in text
        assert "canary" not in text
        assert "\u202e" not in text
        assert text.count("<script>") == 1
    assert "&lt;script&gt;" in text


def test_a_partition_is_shown_with_the_name_of_its_column_not_with_that_in_the_log(tmp_path: Path) -> None:
    table = hostile_table(str(tmp_path / "t"), Hands(NOW_MS))
    for form in ({}, {"format": "json"}):
        assert "col-0000" not in page(client(table.uri), "commit", uri=table.uri, version=1, **form)
        assert "col-0000" not in page(client(table.uri), "table", uri=table.uri, **form)


def test_a_table_of_one_commit_and_a_table_that_is_missing_have_pages(tmp_path: Path) -> None:
    table = create(str(tmp_path / "one"), Hands(NOW_MS))
    missing = str(tmp_path / "missing")
    given = client(table.uri, missing)
    assert "<b>0</b> rows" in page(given, "table", uri=table.uri)
    assert "it created the table" in page(given, "commit", uri=table.uri, version=0)
    assert given.get(f"/{link('table', uri=missing)}").status_code == 404
    assert given.get(f"/{link('commit', uri=table.uri, version=7)}").status_code == 404


def test_a_broken_table_shows_the_reason_and_its_timeline(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), Hands(NOW_MS))
    append(table, 1)
    append(table, 2)
    (tmp_path / "t" / commit_name(2)).write_text('{"commitInfo": {')
    text = page(client(table.uri), "table", uri=table.uri)
    assert "The table cannot be read" in text
    assert "unreadable" in text
    assert "CREATE TABLE" in text


def test_a_table_with_an_unknown_feature_shows_its_timeline(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), Hands(NOW_MS))
    path = tmp_path / "t" / commit_name(0)
    features = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["future"],
        "writerFeatures": ["future"],
    }
    protocol = json.dumps({"protocol": features})
    lines = [protocol if '"protocol"' in line else line for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines))
    text = page(client(table.uri), "table", uri=table.uri)
    assert "future" in text
    assert "CREATE TABLE" in text


def test_ten_thousand_commits_take_less_than_a_second_and_are_shown_in_pages(tmp_path: Path) -> None:
    uri = long_log(tmp_path / "long", 10_000)
    given = client(uri)
    # The machine may be busy, so the time of this process counts, threads included.
    started = time.process_time()
    text = page(given, "table", uri=uri)
    assert time.process_time() - started < 1.0
    assert text.count('rel="next"') == 0
    first = facts(given, "table", uri=uri)["timeline"]
    assert (first["latest"], len(first["lines"]), first["older"]) == (9_999, 100, 9_900)
    older = facts(given, "table", uri=uri, before=150)["timeline"]
    assert [older["lines"][0]["version"], older["lines"][-1]["version"], older["older"]] == [149, 50, 50]
    last = facts(given, "table", uri=uri, before=50)["timeline"]
    assert (last["lines"][-1]["version"], last["older"]) == (0, None)
    wide = facts(given, "table", uri=uri, span=1000)["points"]
    assert (wide[0]["version"], wide[-1]["version"], len(wide)) == (9_000, 9_999, 150)


def rewritten(folder: Path, version: int, change: Callable[[dict[str, Any]], object], kind: str = "commitInfo") -> None:
    """Change one kind of action in a commit, as another writer would have written it."""
    path = folder / commit_name(version)
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for each in actions:
        if kind in each:
            change(each[kind])
    path.write_text("\n".join(json.dumps(each) for each in actions))


@pytest.mark.parametrize(
    "name",
    [
        "delta.checkpointInterval",
        "delta.logRetentionDuration",
        "delta.deletedFileRetentionDuration",
        "delta.isolationLevel",
    ],
)
def test_a_property_that_cannot_be_read_is_named_and_hides_nothing_else(tmp_path: Path, name: str) -> None:
    table = create(str(tmp_path / "t"), Hands(NOW_MS))
    append(table, 1)
    rewritten(tmp_path / "t", 0, lambda metadata: metadata["configuration"].update({name: "forever"}), "metaData")
    given = client(table.uri)
    text = page(given, "table", uri=table.uri)
    assert f"The property {name} cannot be read" in text
    assert "<b>1,000</b> rows" in text
    assert f"{name} cannot be read" in page(given, "")
    page(given, "commit", uri=table.uri, version=1)


def test_texts_and_lists_of_other_writers_are_bounded(tmp_path: Path) -> None:
    """A page of such a table had 200 MB."""
    table = create(str(tmp_path / "t"), Hands(NOW_MS))
    endless = "endless " * 20_000
    many = range(3000)

    def swell(info: dict[str, Any]) -> None:
        named = dict.fromkeys(("dag_id", "task_id", "run_id", "map_label", "try_number"), endless)
        info |= {"operation": endless, "engineInfo": endless, "isolationLevel": endless}
        info["tags"] = {f"{ANNOTATION_TAG_PREFIX}{name}": text for name, text in named.items()}
        info["operationParameters"] = {f"mode{number}": endless[:1000] for number in many} | {"mode": endless}
        checks = {f"expectation.{n} {endless[:900]}.{how}": n for n in many for how in ("passed", "failed")}
        info["operationMetrics"] = {f"m{n}{endless[:900]}": n for n in many} | checks | {"numOutputRows": endless}

    def grow(metadata: dict[str, Any]) -> None:
        metadata["configuration"] |= {f"p{number} {endless[:900]}": endless[:1000] for number in many}
        metadata["name"] = metadata["description"] = endless
        schema = json.loads(metadata["schemaString"])
        schema["fields"] += [
            {
                "name": f"c{number} {endless[:900]}",
                "type": "string",
                "nullable": True,
                "metadata": {"comment": endless[:900]},
            }
            for number in range(1500)
        ]
        metadata["schemaString"] = json.dumps(schema)

    for number in range(1, 4):
        append(table, number, day=endless[:3000])
    for version in range(1, 4):
        rewritten(tmp_path / "t", version, swell)
    rewritten(tmp_path / "t", 0, grow, "metaData")
    given = client(table.uri)
    for form in ({}, {"format": "json"}):
        assert len(page(given, "", **form)) < 20_000
        assert len(page(given, "table", uri=table.uri, **form)) < 800_000
        assert len(page(given, "table", uri=table.uri, before=3, **form)) < 100_000
        assert len(page(given, "commit", uri=table.uri, version=2, **form)) < 100_000
    assert "1,503 columns, members of structs included; the first 500 are shown" in page(given, "table", uri=table.uri)


def test_versions_that_change_very_much_are_compared_in_part(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), Hands(NOW_MS))
    for number in range(60):
        tx = table.begin()
        assert tx.metadata is not None
        names = {f"my.property.{n}": f"{number} {'x' * 200}" for n in range(200)}
        tx.set_metadata(msgspec.structs.replace(tx.metadata, configuration={**tx.metadata.configuration, **names}))
        tx.commit("SET TBLPROPERTIES")
    found = facts(client(table.uri), "table", uri=table.uri)
    assert [each["version"] for each in found["schema_changes"]] == list(range(60, 40, -1))
    assert {(len(each["properties"]), each["more"]) for each in found["schema_changes"]} == {(100, 100)}
    assert "100 further changes" in page(client(table.uri), "table", uri=table.uri)


def test_a_column_beyond_those_that_are_shown_is_compared_all_the_same(tmp_path: Path) -> None:
    schema = pa.schema([(f"c{number}", pa.int64()) for number in range(700)])
    table = Table.create(str(tmp_path / "wide"), schema, clock=Hands(NOW_MS))
    tx = table.begin()
    assert tx.metadata is not None
    before = parse_schema(tx.metadata.schema_string)
    after = StructType((StructField(name="first", type=Primitive.STRING, nullable=True), *before))
    tx.set_metadata(msgspec.structs.replace(tx.metadata, schema_string=schema_to_json(after)))
    tx.commit("ADD COLUMNS")
    found = facts(client(table.uri), "table", uri=table.uri)
    assert (found["column_count"], len(found["columns"])) == (701, 500)
    assert [(each["path"], each["change"]) for each in found["columns"] if each["change"]] == [("first", "added")]
    [change] = [each for each in found["schema_changes"] if not each["is_first"]]
    assert (change["added"], change["removed"]) == (["first"], [])


def test_many_large_commits_are_decoded_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One page of a hundred such commits took 77 seconds and 2.5 GiB."""
    table = create(str(tmp_path / "t"), Hands(NOW_MS))
    for number in range(8):
        append(table, number, metrics={f"m{n}": n for n in range(100)})
    largest = max((tmp_path / "t" / commit_name(number)).stat().st_size for number in range(1, 9))
    monkeypatch.setattr(version_lines, "MOST_DECODED_AT_ONCE", 3 * largest)
    given = client(table.uri)
    for counted in (3, 6):
        lines = facts(given, "table", uri=table.uri, before=100 + counted)["timeline"]["lines"]
        assert [each["files"] is not None for each in lines[:8]] == [True] * counted + [False] * (8 - counted)
        assert all("Reload" in each["problem"] for each in lines[counted:8])
    lines = facts(given, "table", uri=table.uri, before=200)["timeline"]["lines"]
    assert [each["problem"] for each in lines] == [None] * 9


def test_a_log_that_would_fill_the_memory_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create(str(tmp_path / "t"), Hands(NOW_MS))
    for number in range(4):
        append(table, number)
    monkeypatch.setenv("TXLOG_WINDOW_LOG_BYTES", "2000")
    given = client(table.uri)
    [row] = facts(given, "")["tables"]
    assert "TXLOG_WINDOW_LOG_BYTES" in row["summary"]["note"]
    text = page(given, "table", uri=table.uri)
    assert "TXLOG_WINDOW_LOG_BYTES allows 2000" in text
    assert "CREATE TABLE" in text
    table.checkpoint()
    monkeypatch.setenv("TXLOG_WINDOW_LOG_BYTES", "100000")
    assert "<b>4,000</b> rows" in page(client(table.uri), "table", uri=table.uri)


def test_only_tables_of_the_command_line_are_opened(orders: str, tmp_path: Path) -> None:
    other = create(str(tmp_path / "other"), Hands(NOW_MS))
    given = client(orders)
    for uri in (other.uri, "/", "s3://elsewhere/t", "", f"{orders}/../other"):
        assert given.get(f"/table?{urlencode({'uri': uri})}").status_code == 404


def test_two_places_that_look_the_same_are_two_tables(tmp_path: Path) -> None:
    """A user of one of them must not get the other one, which another user has just read."""
    places = [str(tmp_path / ("x" * 200) / ("y" * 200) / name) for name in ("ours", "theirs")]
    for number, place in enumerate(places):
        table = create(place, Hands(NOW_MS))
        for _ in range(number):
            append(table, 1)
    site = StandAlone([])
    client = TestClient(Window(site), base_url="http://127.0.0.1")
    versions = []
    for place in places:
        site._view = View(tables={shown(place): KnownTable(uri=shown(place), place=place)})
        page = f"/{link('table', uri=shown(place), format='json')}"
        versions.append(client.get(page).json()["version"])
    assert shown(places[0]) == shown(places[1])
    assert versions == [0, 1]


def test_two_containers_of_one_account_do_not_look_the_same() -> None:
    names = [f"abfss://{container}@acct.dfs.core.windows.net/orders" for container in ("hr", "sales")]
    assert list(map(shown, names)) == names
    assert shown("abfss://c:canary@acct/orders?sig=canary") == "***@acct/orders?***"
    assert shown("s3://canary@bucket/t") == shown("s3://k:canary@bucket/t") == "***@bucket/t"


def test_a_slash_at_the_end_is_another_page(orders: str) -> None:
    """The relative links of the page would lead nowhere."""
    for path in ("/table/", "/table/x", "/style.css/"):
        assert client(orders).get(f"{path}?{urlencode({'uri': orders})}").status_code == 404


@pytest.mark.parametrize("query", ["version=x", "version=-1", "version=1e9", "version=" + "9" * 40, "version=²", ""])
def test_a_version_that_is_no_number_is_refused(orders: str, query: str) -> None:
    assert client(orders).get(f"/commit?{urlencode({'uri': orders})}&{query}").status_code == 400


def test_a_host_of_another_name_is_refused(orders: str) -> None:
    """A page of another site can point its own name at this machine, and its scripts could then read the answers."""
    given = TestClient(Window(StandAlone([orders])), base_url="http://lake.example.com")
    assert given.get("/").status_code == 403


@pytest.mark.parametrize(
    ("path", "root", "app_root"),
    [
        ("/table", "", ""),
        ("/txlog/table", "/txlog", ""),
        ("/airflow/txlog/table", "/airflow/txlog", "/airflow"),
        # A proxy has removed Airflow's own path.
        ("/txlog/table", "/airflow/txlog", "/airflow"),
    ],
)
def test_a_page_is_found_below_any_path(path: str, root: str, app_root: str) -> None:
    assert page_path({"path": path, "root_path": root, "app_root_path": app_root}) == "table"


def test_a_table_whose_store_refused_is_opened_anew(orders: str) -> None:
    """The credentials of its connection may have changed."""

    class Refusing(StandAlone):
        opened = 0

        def open(self, known: KnownTable) -> Table:
            self.opened += 1
            table = super().open(known)
            if self.opened == 1:

                def refuse(*args: object, **kwargs: object) -> None:
                    raise PermissionError("expired")

                table.store.list = refuse  # type: ignore[method-assign, assignment]
            return table

    site = Refusing([orders])
    given = TestClient(Window(site, limits=AnswerLimits(fresh_s=0.0)), base_url="http://127.0.0.1")
    assert given.get(f"/{link('table', uri=orders)}").status_code == 502
    assert given.get(f"/{link('table', uri=orders)}").status_code == 200
    assert given.get(f"/{link('table', uri=orders, before=0)}").status_code == 200
    assert site.opened == 2


@pytest.mark.parametrize("verb", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"])
def test_the_window_only_shows(orders: str, verb: str) -> None:
    assert client(orders).request(verb, "/table").status_code == 405


def test_every_answer_has_a_strict_policy(orders: str) -> None:
    given = client(orders)
    for path in ("/", f"/{link('table', uri=orders)}", "/style.css", "/nothing"):
        headers = given.get(path).headers
        assert headers["content-security-policy"].startswith(
            "default-src 'none'; style-src 'self'; script-src 'sha256-"
        )
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert " style=" not in given.get(path).text


@pytest.fixture(scope="module")
def served(orders: str) -> Iterator[str]:
    """The address of a window that the command serves."""
    command = [sys.executable, "-m", "airflow_txlog.window", "--table", orders, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split(" at ")[1].split()[0]
    finally:
        process.terminate()
        process.wait(20)


def test_the_command_imports_no_airflow() -> None:
    code = "import sys, airflow_txlog.window.__main__; print('airflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT).stdout == "False\n"


def test_the_command_serves_the_pages_on_this_machine(served: str, orders: str) -> None:
    import httpx

    assert served.startswith("http://127.0.0.1:")
    assert "Timeline" in httpx.get(f"{served}{link('table', uri=orders)}").text
