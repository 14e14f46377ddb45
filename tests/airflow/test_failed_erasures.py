"""Alone in showing that the report on an erasure that failed, was killed, or lost a race states only what is known."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.erasure import check_report
from airflow_txlog.contract.erasure.report import NO_ROW_FOUND, Findings
from airflow_txlog.engine import Table
from airflow_txlog.engine.erasure import object_verdicts, removal
from airflow_txlog.engine.log.actions import Add
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType
from airflow_txlog.errors import ErasureIncomplete, TableError
from airflow_txlog.jobs.operations import erase as erase_job
from airflow_txlog.jobs.operations import verify_erasure
from airflow_txlog.operators import DeltaEraseOperator
from airflow_txlog.operators.erasure.erase import _with_erasure
from airflow_txlog.storage import LocalStore
from airflow_txlog.storage.base import FileInfo
from tests.engine.erasure.test_described_files import EMAIL, SUBJECT, rows, table_with_subject
from tests.engine.erasure.test_removal import VECTORS, folder_of
from tests.helpers.byte_search import holding
from tests.helpers.jobs import committed, run
from tests.helpers.rows import append

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("signer")]


def erase(tmp_path: Path, *uris: str, **given: Any) -> dict[str, Any]:
    return DeltaEraseOperator(
        task_id="erase",
        report_uri=str(tmp_path / "reports"),
        signing_conn_id="signer",
        runner="in_process",
        writer_hours=0,
        **{"tables": dict.fromkeys(uris, "user_id"), "subjects": [SUBJECT], "request_id": "r-17", **given},
    ).execute({})  # type: ignore[typeddict-item]


def report_of(uri: Any) -> dict[str, Any]:
    return dict(json.loads(Path(str(uri).removeprefix("file://")).read_text())["report"])


def test_a_table_whose_erasure_failed_after_a_delete_is_not_complete_and_the_report_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = table_with_subject(tmp_path / "users")

    def failing(*_: Any) -> None:
        raise TableError("the checkpoint differs")

    with monkeypatch.context() as patch:
        patch.setattr(removal, "replace_checkpoint", failing)
        with pytest.raises(ErasureIncomplete) as raised:
            erase(tmp_path, users.uri)
    # No object holds the number any more; the log has the e-mail.
    assert raised.value.left == {users.uri: 0}
    assert holding(tmp_path / "users", EMAIL)
    report = report_of(raised.value.facts["report"])
    (table,) = report["tables"]
    assert (report["complete"], table["state"]) == (False, "not erased")
    assert "TableError" in table["reason"]
    assert table["verdicts"]
    assert report["times"]["gone_from_latest_version"] is None
    assert not any("no erasure preceded" in text for text in report["scope"])
    assert any("has not finished were not searched" in text for text in report["scope"])
    document = Path(str(raised.value.facts["report"]).removeprefix("file://"))
    public = json.loads(document.read_text())["signature"]["public_key"]
    found = check_report.check(document.read_bytes(), public, lambda name: (document.parent / name).read_bytes())
    assert (found.problems, found.is_complete) == ([], False)
    assert "not erased: the erasure failed with TableError" in document.with_suffix(
        ".html"
    ).read_text().lower().replace("tableerror", "TableError")
    assert erase(tmp_path, users.uri)["complete"]
    assert holding(tmp_path / "users", EMAIL) == []


def test_a_table_that_is_left_alone_for_a_held_clone_is_not_complete(tmp_path: Path) -> None:
    users = table_with_subject(tmp_path / "users")
    run(None, "delete", users, predicate=f"user_id = {SUBJECT}")
    users.vacuum(0, check_retention=False)
    clone = str(tmp_path / "clone")
    committed(run(None, "clone", clone, source={"table": users.uri}, shallow=True))
    with pytest.raises(ErasureIncomplete) as raised:
        erase(tmp_path, users.uri, clone, legal_hold={clone: "case 12"})
    assert holding(tmp_path / "users", EMAIL)
    table, _ = report_of(raised.value.facts["report"])["tables"]
    assert (table["state"], "its shallow clone" in table["reason"]) == ("not erased", True)


def test_shallow_clones_are_erased_before_their_source_and_keep_the_rows_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = Table.create(str(tmp_path / "users"), rows((SUBJECT, EMAIL)).schema)
    append(users, rows((1, "bob@example.org"), (SUBJECT, EMAIL)))
    clones = [str(tmp_path / name) for name in ("one", "two")]
    for clone in clones:
        committed(run(None, "clone", clone, source={"table": users.uri}, shallow=True))
    # The rows of a clone are read with a setting alone.
    with pytest.raises(ErasureIncomplete) as raised:
        erase(tmp_path, users.uri, *clones)
    tables = report_of(raised.value.facts["report"])["tables"]
    assert [each["state"] for each in tables] == ["not erased"] * 3
    assert "was not erased, and needs its files" in tables[0]["reason"]
    connection = {"conn_type": "txlog", "extra": {"allow_absolute_paths": True}}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    assert erase(tmp_path, users.uri, *clones, txlog_conn_id="lake")["complete"]
    for uri in (users.uri, *clones):
        assert Table.open(uri, allow_absolute_paths=True).to_arrow().column("user_id").to_pylist() == [1]
    assert holding(tmp_path, EMAIL) == []


NEWER = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["later"], "writerFeatures": ["later"]}


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ("a feature of a later Delta", ["not erased", "verified", "not erased"]),
        ("a feature after a checkpoint", ["not erased", "verified", "not erased"]),
        ("a commit", ["not erased", "verified", "not erased"]),
        ("a checkpoint", ["not erased", "not erased", "not erased"]),
        ("the only commit", ["verified", "verified", "not erased"]),
        ("all", ["verified", "verified", "not erased"]),
    ],
)
def test_the_source_of_a_clone_that_cannot_be_opened_keeps_its_files(
    tmp_path: Path, damage: str, expected: list[str]
) -> None:
    users, orders = (Table.create(str(tmp_path / name), rows((1, "")).schema) for name in ("users", "orders"))
    for table in (users, orders):
        append(table, rows((1, "bob@example.org"), (SUBJECT, EMAIL)))
    clone = tmp_path / "clone"
    committed(run(None, "clone", str(clone), source={"table": users.uri}, shallow=True))
    log = clone / "_delta_log"
    if damage == "a feature after a checkpoint":
        Table.open(str(clone)).checkpoint()
        (log / f"{0:020}.json").unlink()
    if damage.startswith("a feature"):
        (log / f"{1:020}.json").write_text(json.dumps({"protocol": NEWER}))
    elif damage == "a commit":
        (log / f"{1:020}.json").write_text("no JSON")
    elif damage == "a checkpoint":
        Table.open(str(clone)).checkpoint()
        (log / f"{0:020}.json").unlink()
        (log / f"{0:020}.checkpoint.parquet").write_bytes(b"PAR1 no Parquet PAR1")
    elif damage == "the only commit":
        (log / f"{0:020}.json").write_text("no JSON")
    else:
        shutil.rmtree(clone)
    with pytest.raises(ErasureIncomplete) as raised:
        erase(tmp_path, users.uri, orders.uri, str(clone))
    tables = report_of(raised.value.facts["report"])["tables"]
    assert [each["state"] for each in tables] == expected
    left_alone = "clone cannot be opened, and may be a shallow clone that needs its files"
    for table, state, found in zip((users, orders), expected, tables, strict=False):
        assert (table.latest_version() == 1) == (state == "not erased") == (left_alone in str(found["reason"]))


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("by_link", ["the source", "the clone"])
def test_a_clone_is_known_where_it_or_the_name_of_its_source_goes_by_a_link(
    tmp_path: Path, *, by_link: str, is_held: bool
) -> None:
    users = table_with_subject(tmp_path / "users")
    version, link, clone = users.latest_version(), tmp_path / "link", str(tmp_path / "clone")
    link.symlink_to(tmp_path / "users")
    named, cloned = (str(link), users.uri) if by_link == "the source" else (users.uri, str(link))
    committed(run(None, "clone", clone, source={"table": cloned}, shallow=True))
    with pytest.raises(ErasureIncomplete) as raised:
        erase(tmp_path, named, clone, legal_hold={clone: "case 12"} if is_held else None)
    table, _ = report_of(raised.value.facts["report"])["tables"]
    assert (table["state"], "its shallow clone" in table["reason"]) == ("not erased", True)
    assert users.latest_version() == version


def test_a_clone_is_known_by_a_log_that_may_not_be_read_or_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, folder, read = table_with_subject(tmp_path / "users"), tmp_path / "clone", LocalStore.read
    committed(run(None, "clone", str(folder), source={"table": users.uri}, shallow=True))
    clone, names = Table.open(str(folder)), [users.uri, f"{users.uri}-of-others"]

    def is_refused(self: LocalStore, path: str) -> bytes:
        if self.root == clone.store.root:
            raise PermissionError(13, "not allowed")
        return read(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "read", is_refused)
        assert clone.may_be_clone_of(names) == names
    assert clone.may_be_clone_of(names) == [users.uri]
    # The path is no text of JSON, and the line ends too early.
    for commit in (folder / "_delta_log").glob("*.json"):
        commit.write_text(f'{{"add":{{"path":"{users.store.root}/a\\q.parquet","si')
    assert clone.may_be_clone_of(names) == [users.uri]


def test_a_table_under_legal_hold_is_asked_once_in_a_try_of_which_tables_it_is_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uris = [table_with_subject(tmp_path / name).uri for name in ("users", "orders", "held")]
    clone_of, asked = Table.clone_of, list[str]()

    def counted(self: Table, uris: Any) -> list[str]:
        asked.append(self.uri)
        return clone_of(self, uris)

    monkeypatch.setattr(Table, "clone_of", counted)
    assert erase(tmp_path, *uris, legal_hold={uris[2]: "case 12"})["complete"]
    assert sorted(asked) == sorted(uris)


def test_a_dropped_column_of_the_name_of_the_key_is_known_after_the_log_that_shows_it_is_cut(tmp_path: Path) -> None:
    schema = pa.schema([("user_id", pa.int64()), ("n", pa.int64())])
    table = Table.create(tmp_path / "t", schema, properties={"delta.columnMapping.mode": "name"})
    append(table, [{"user_id": each, "n": 1} for each in (1, SUBJECT, 9_000_000_000)])
    committed(run(None, "alter", table, drop_columns=["user_id"]))
    committed(run(None, "alter", table, add_columns={"user_id": "BIGINT"}))
    append(table, [{"user_id": each, "n": 2} for each in (SUBJECT, 4)])
    # The second try finds a log without the dropped column.
    for _ in range(2):
        with pytest.raises(ErasureIncomplete):
            erase(tmp_path, table.uri)
        assert len(holding(tmp_path / "t", SUBJECT)) == len(list((tmp_path / "t" / "_delta_log").glob("*.json"))) == 1
    committed(run(None, "update", Table.open(table.uri), predicate="n = 1", set={"n": "3"}))
    assert erase(tmp_path, table.uri)["complete"]
    assert holding(tmp_path / "t", SUBJECT) == []


def with_an_old_file_of_the_subject(uri: str) -> Path:
    """Bring the subject back, and delete its row. Return the file that held it, and that no version needs."""
    table = Table.open(uri)
    before = set(folder_of(table).glob("*.parquet"))
    append(table, rows((1, "bob@example.org"), (SUBJECT, EMAIL), (9_000_000_000, "carol@example.org")))
    (old,) = set(folder_of(table).glob("*.parquet")) - before
    run(None, "delete", table, predicate=None, keys={"column": "user_id", "values": [SUBJECT]})
    return old


@pytest.mark.parametrize("is_listed", [False, True], ids=["before the listing", "after the listing"])
def test_the_log_may_not_describe_a_file_that_goes_before_the_verification_opens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_listed: bool
) -> None:
    users = table_with_subject(tmp_path / "users")
    verified, verify, verdict_on = DeltaEraseOperator.verified, verify_erasure.verify, object_verdicts.verdict_on
    old: list[Path] = []

    def late(operator: DeltaEraseOperator, *given: Any) -> Any:
        old.append(with_an_old_file_of_the_subject(users.uri))
        return verified(operator, *given)

    def vacuumed(*given: Any) -> Any:
        if not is_listed:
            old[0].unlink()
        return verify(*given)

    def vacuumed_then(store: LocalStore, info: FileInfo, forms: Any) -> Any:
        if info.path == old[0].name:
            old[0].unlink(missing_ok=True)
        return verdict_on(store, info, forms)

    monkeypatch.setattr(DeltaEraseOperator, "verified", late)
    monkeypatch.setattr(verify_erasure, "verify", vacuumed)
    monkeypatch.setattr(object_verdicts, "verdict_on", vacuumed_then)
    with pytest.raises(ErasureIncomplete) as raised:
        erase(tmp_path, users.uri)
    assert not old[0].exists()
    (table,) = report_of(raised.value.facts["report"])["tables"]
    assert {(each["verdict"], "that may have held" in each["places"]) for each in table["left"]} == {
        ("statistic only", True)
    }


def test_a_file_that_comes_and_goes_during_the_verification_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = table_with_subject(tmp_path / "users")
    verify, verdict_on = verify_erasure.verify, object_verdicts.verdict_on
    old: list[Path] = []

    def late(*given: Any) -> Any:
        old.append(with_an_old_file_of_the_subject(users.uri))
        return verify(*given)

    def vacuumed(store: LocalStore, info: FileInfo, forms: Any) -> Any:
        if info.path.endswith(".parquet"):
            old[0].unlink(missing_ok=True)
        return verdict_on(store, info, forms)

    monkeypatch.setattr(verify_erasure, "verify", late)
    monkeypatch.setattr(object_verdicts, "verdict_on", vacuumed)
    with pytest.raises(ErasureIncomplete) as raised:
        erase(tmp_path, users.uri)
    assert not old[0].exists()
    assert list((raised.value.left or {}).values()) == [1]


def test_a_file_that_another_vacuum_deletes_before_the_erasure_opens_it_leaves_no_description(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = table_with_subject(tmp_path / "users", VECTORS)
    verdict_on = removal.verdict_on
    gone: list[str] = []

    def vacuumed(store: LocalStore, info: FileInfo, forms: Any, **more: bool) -> Any:
        if info.path.endswith(".parquet") and "/" not in info.path:
            gone.append(info.path)
            folder_of(users).joinpath(info.path).unlink(missing_ok=True)
        return verdict_on(store, info, forms, **more)

    monkeypatch.setattr(removal, "verdict_on", vacuumed)
    assert erase(tmp_path, users.uri)["complete"]
    assert gone
    assert holding(tmp_path / "users", EMAIL) == []


def test_an_old_probe_of_a_killed_erasure_is_deleted_and_that_of_another_task_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = table_with_subject(tmp_path / "users")
    delete = LocalStore.delete

    def killed(self: LocalStore, path: str) -> None:
        if path.startswith("txlog-write-check-"):
            raise KeyboardInterrupt
        delete(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "delete", killed)
        with pytest.raises(KeyboardInterrupt):
            erase(tmp_path, users.uri)
    (probe,) = (tmp_path / "reports").glob("txlog-write-check-*")
    # Another task may be just about to write it.
    assert erase(tmp_path, users.uri)["complete"]
    assert probe.exists()
    os.utime(probe, (1_000_000_000, 1_000_000_000))
    assert erase(tmp_path, users.uri)["complete"]
    assert not list((tmp_path / "reports").glob("txlog-write-check-*"))


class _Killed(BaseException):
    """The end of a process, which no handler stops."""


def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, where: Any, name: str, *, after: bool) -> None:
    """Erase, and be killed before a function, or after it."""
    call = getattr(where, name)

    def killed(*given: Any, **named: Any) -> Any:
        if after:
            call(*given, **named)
        raise _Killed

    with monkeypatch.context() as patch:
        patch.setattr(where, name, killed)
        with pytest.raises(_Killed):
            erase(tmp_path, uri)


def test_the_report_has_the_facts_of_a_run_that_was_killed_during_the_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = table_with_subject(tmp_path / "users", VECTORS)
    stopped(tmp_path, monkeypatch, users.uri, removal, "vacuum_table", after=True)
    texts = [gzip.decompress(each.read_bytes()) for each in (tmp_path / "reports").glob("planned-*.json.gz")]
    plans = [json.loads(text.splitlines()[0]) for text in texts]
    report = report_of(erase(tmp_path, users.uri)["report"])
    (table,) = report["tables"]
    assert (table["num_deleted_rows"], table["num_erased_objects"] > 2) == (2, True)
    assert [each["name"] for each in table["steps"]] == ["delete", "purge", "remove", "remove"]
    assert [each["at"] is None for each in table["steps"]] == [False, False, True, False]
    assert table["steps"][2]["begun"] in {each["begun"] for each in plans if each["doing"] == "remove"}
    assert report["times"]["gone_from_latest_version"] == table["steps"][1]["at"]
    assert report["times"]["gone_from_storage"] == table["steps"][3]["at"]
    # Those of the killed run, and its own commits, which the cut of the log ends.
    assert table["steps"][3]["ended_versions"].startswith("0-3, ")
    page = next((tmp_path / "reports").glob("*.html")).read_text()
    assert "Erased: 2 rows" in page
    assert "unknown, after" in page
    # A later run of the same request counts nothing twice.
    later = report_of(erase(tmp_path, users.uri)["report"])["tables"][0]
    assert later["num_deleted_rows"] == 2
    assert not list((tmp_path / "reports").glob("planned-*"))


@pytest.mark.parametrize("of", [["a"], b"\xff", "a"], ids=["lists", "bytes", "texts"])
def test_a_file_in_the_log_that_is_no_part_of_one_ends_no_erasure_and_is_reported(tmp_path: Path, of: Any) -> None:
    users = table_with_subject(tmp_path / "users")
    entry = {"path": of, "stats_parsed": "a"}
    pq.write_table(pa.table({"add": [entry]}), folder_of(users) / "_delta_log" / "x.parquet")
    with pytest.raises(ErasureIncomplete) as raised:
        erase(tmp_path, users.uri)
    (table,) = report_of(raised.value.facts["report"])["tables"]
    assert table["state"] == "verified"
    assert [(each["path"], each["verdict"]) for each in table["left"]] == [("_delta_log/x.parquet", "statistic only")]
    assert not holding(folder_of(users), EMAIL)


def test_rows_that_a_killed_run_deleted_and_did_not_note_are_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = table_with_subject(tmp_path / "users")
    stopped(tmp_path, monkeypatch, users.uri, erase_job, "delete", after=True)
    report = report_of(erase(tmp_path, users.uri)["report"])
    (table,) = report["tables"]
    assert (table["num_deleted_rows"], table["num_erased_objects"] > 2) == (None, True)
    assert [(each["name"], each["at"] is None) for each in table["steps"]] == [("delete", True), ("remove", False)]
    assert report["times"]["gone_from_latest_version"] == table["steps"][1]["at"]
    page = next((tmp_path / "reports").glob("*.html")).read_text()
    assert "Erased: an unknown number of rows, " in page


def test_a_task_that_may_have_deleted_rows_of_one_table_does_not_say_that_it_found_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, others = table_with_subject(tmp_path / "users"), table_with_subject(tmp_path / "others")
    run(None, "delete", others, predicate=f"user_id = {SUBJECT}")
    stopped(tmp_path, monkeypatch, users.uri, erase_job, "delete", after=True)
    tables = report_of(erase(tmp_path, users.uri, others.uri)["report"])["tables"]
    assert [each["num_deleted_rows"] for each in tables] == [None, 0]
    assert NO_ROW_FOUND not in next((tmp_path / "reports").glob("*.html")).read_text()


def test_a_run_that_was_killed_before_its_delete_makes_nothing_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = table_with_subject(tmp_path / "users")
    stopped(tmp_path, monkeypatch, users.uri, erase_job, "delete", after=False)
    (table,) = report_of(erase(tmp_path, users.uri)["report"])["tables"]
    assert table["num_deleted_rows"] == 2
    assert [each["name"] for each in table["steps"]] == ["delete", "remove"]


@pytest.mark.parametrize(("secret", "later"), [("short", "short"), ("s" * 40, "t" * 40)], ids=["none", "another"])
def test_without_the_secret_of_then_what_earlier_runs_of_a_request_deleted_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: str, later: str
) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_TXLOG_SAVED_WORK_SECRET", secret)
    users = table_with_subject(tmp_path / "users")
    assert report_of(erase(tmp_path, users.uri)["report"])["tables"][0]["num_deleted_rows"] == 2
    monkeypatch.setenv("AIRFLOW_VAR_TXLOG_SAVED_WORK_SECRET", later)
    again = report_of(erase(tmp_path, users.uri)["report"])["tables"][0]
    assert (again["num_deleted_rows"], again["num_erased_objects"]) == (None, None)
    other = report_of(erase(tmp_path, users.uri, request_id="r-18")["report"])["tables"][0]
    assert (other["num_deleted_rows"], other["num_erased_objects"]) == (0, 0)


@pytest.mark.parametrize("name", ["earlier runs", "earlier runs (not verified)"])
def test_unknown_runs_in_the_records_of_an_earlier_release_stay_unknown(name: str) -> None:
    """Earlier releases give them another name, and their jobs do not mention records that are not verified."""
    steps = [
        {"name": name, "version": None, "at": None, "begun": None},
        {"name": "remove", "version": 3, "at": "2026-11-01T09:00:00Z", "begun": None},
    ]
    done = {"runs": [{"requests": ["r-1"], "steps": steps}], "deleted": {}, "waits": [], "num_waits": 0}
    found = _with_erasure(Findings(table="/t", column="id"), done, "r-1")
    assert (found.num_deleted_rows, found.num_erased_objects) == (None, None)


@pytest.mark.spark
@pytest.mark.long("a CHAR column needs Spark")
def test_rows_of_whole_files_without_a_count_are_unknown(tmp_path: Path) -> None:
    code = StructField("code", Primitive.STRING, metadata={"__CHAR_VARCHAR_TYPE_STRING": "char(10)"})
    table = Table.create(tmp_path / "t", StructType((code, StructField("n", Primitive.LONG))), ["code"])
    place = folder_of(table) / "code=annalena  " / "x.parquet"
    place.parent.mkdir()
    pq.write_table(pa.table({"n": [1, 2, 3]}), place)
    tx = table.begin()
    tx.add(
        [
            Add(
                path="code=annalena%20%20/x.parquet",
                partition_values={"code": "annalena  "},
                size=place.stat().st_size,
                modification_time=1,
                data_change=True,
                stats=None,
            )
        ]
    )
    tx.commit("WRITE", {"mode": "Append"})
    given = {"tables": {table.uri: "code"}, "subjects": ["annalena"]}
    (found,) = report_of(erase(tmp_path, **given)["report"])["tables"]
    assert (found["num_deleted_rows"], found["num_erased_objects"] >= 1) == (None, True)


def test_the_steps_of_a_killed_run_for_several_requests_are_in_the_report_of_each_that_follows_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = table_with_subject(tmp_path / "users")
    several = {"subjects": None, "request_id": None, "requests": {"r-17": [SUBJECT], "r-18": [9_000_000_000]}}
    with monkeypatch.context() as patch:
        patch.setattr(erase_job, "optimize", _raise_killed)
        with pytest.raises(_Killed):
            erase(tmp_path, users.uri, **several)
    for request_id, subject in (("r-17", SUBJECT), ("r-18", 9_000_000_000)):
        (table,) = report_of(erase(tmp_path, users.uri, request_id=request_id, subjects=[subject])["report"])["tables"]
        # Of all requests of the run: both rows of the one, and all three of the other.
        assert table["num_deleted_rows"] == 5
    assert not list((tmp_path / "reports").glob("planned-*"))


def _raise_killed(*_: Any) -> None:
    raise _Killed
