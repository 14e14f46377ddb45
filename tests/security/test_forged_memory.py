"""No saved memory counts that the tries of this very work have not signed, and no path in one leads elsewhere.

Alone in showing each way to forge; `test_saved_work` shows with whole jobs what a forged one would do.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_txlog.contract.job import ApplicationTransaction, JobSpec
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.exactly_once.transactions import Seal, work_folder
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.staged import confined
from airflow_txlog.jobs.resume.memory import COPY, Memory, Segment, rules_at
from airflow_txlog.jobs.resume.saved_work import SavedWork
from airflow_txlog.storage import LocalStore
from airflow_txlog.storage.limits import LOG_FILE
from tests.helpers.forging import OTHER_KEY, name_of, put_newest, table_folder, with_header
from tests.helpers.jobs import KEY, begin_job, rows
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

WORK = ApplicationTransaction(app_id="airflow_txlog/tests/a/b", version=3)
UUID = "0123abcd-0123-4123-8123-0123456789ab"
NAME = f"part-{'0' * 16}-{UUID}.c00000.zstd.parquet"


def context_of(
    spark: SparkSession, table: Table, *, work: ApplicationTransaction = WORK, key: str | None = KEY
) -> JobContext:
    """One try of a job that has not begun; its `steps` are empty, and its log is kept as `context.log.__self__`."""
    spec = job_spec(
        operation="delete",
        table_uri=table.uri,
        arguments={"predicate": "id = 1"},
        application=work,
        saved_work_key=key,
    )
    lines: list[str] = []
    return begin_job(spec, spark, table, lines.append)


def lines_of(context: JobContext) -> list[str]:
    lines: list[str] = context.log.__self__  # type: ignore[attr-defined]
    return lines


def staged_file(table: Table, path: str = NAME) -> StagedFile:
    location = table_folder(table) / path
    location.write_bytes(b"rows")
    return StagedFile(
        path=path,
        partition_values={},
        size_bytes=4,
        modification_time_ms=int(location.stat().st_mtime * 1000),
        num_records=1,
        stats="{}",
    )


def inputs_of(context: JobContext) -> Path:
    return table_folder(context.table) / context.inputs_folder


def save(context: JobContext, table: Table) -> Path:
    """What a try leaves behind that staged one copy; the file of its memory."""
    memory = Memory()
    memory.begin(rules_at(table.snapshot()))
    memory.add([Segment(kind=COPY, inputs=frozenset({"a.parquet"}), files=(staged_file(table),))])
    SavedWork(context).save(memory)
    (found,) = inputs_of(context).glob("memory-*")
    return found


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make_table(tmp_path / "t", rows(3))


def test_the_next_try_goes_on_from_what_the_work_has_signed(table: Table, spark: SparkSession) -> None:
    save(context_of(spark, table), table)
    context = context_of(spark, table)
    memory = SavedWork(context).load()
    assert [file.path for file in memory.staged_files()] == [NAME]
    assert lines_of(context) == ["resuming an earlier try: 0 files looked at, 1 file (4 B) staged"]


def test_saved_work_that_is_too_large_to_be_read_or_behind_a_link_is_ignored(
    table: Table, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = save(context_of(spark, table), table)
    with monkeypatch.context() as patch:
        patch.setenv(LOG_FILE.setting, str(memory.stat().st_size - 1))
        context = context_of(spark, table)
        assert SavedWork(context).load().staged_files() == []
        assert [line for line in lines_of(context) if line.startswith("ignored ") and LOG_FILE.setting in line]
        # Nor is it written down then, where no retry could read it.
        SavedWork(context).save(Memory(dropped=[staged_file(table)] * 100))
        assert list(memory.parent.glob("memory-*")) == [memory]
    moved = tmp_path / "moved"
    memory.parent.rename(moved)
    memory.parent.symlink_to(moved)
    context = context_of(spark, table)
    assert SavedWork(context).load().staged_files() == []
    assert [line for line in lines_of(context) if line.startswith("ignored ") and "symbolic link" in line]


# --- what no key signed ---------------------------------------------------------------------------------------------

Forge = Callable[[Path, bytes, Seal], None]


def truncated(memory: Path, data: bytes, own: Seal) -> None:
    memory.write_bytes(data[:-1])


def emptied(memory: Path, data: bytes, own: Seal) -> None:
    memory.write_bytes(b"")


def changed_in_place(memory: Path, data: bytes, own: Seal) -> None:
    changed = data.replace(b'"num_records":1', b'"num_records":7')
    assert len(changed) == len(data)
    assert changed != data
    memory.write_bytes(changed)


def longer_by_a_byte(memory: Path, data: bytes, own: Seal) -> None:
    memory.write_bytes(data + b"\0")


def enormous(memory: Path, data: bytes, own: Seal) -> None:
    os.truncate(memory, 1 << 40)


def signed_with_another_key(memory: Path, data: bytes, own: Seal) -> None:
    memory.unlink()
    put_newest(memory.parent, name_of(data, own), data)


def under_the_size_and_digest_of_other_bytes(memory: Path, data: bytes, own: Seal) -> None:
    memory.unlink()
    changed = with_header(data, lambda header: header["clocks"].update(now=1))
    signature = memory.stem.rsplit("-", 1)[-1]
    put_newest(memory.parent, f"{name_of(changed, own).rsplit('-', 1)[0]}-{signature}.arrow", changed)


def without_a_signature(memory: Path, data: bytes, own: Seal) -> None:
    memory.rename(memory.with_name(memory.stem.rsplit("-", 1)[0] + ".arrow"))


def no_arrow_file(memory: Path, data: bytes, own: Seal) -> None:
    memory.unlink()
    put_newest(memory.parent, name_of(b"garbage", own), b"garbage")


def of_the_release_before_signatures(memory: Path, data: bytes, own: Seal) -> None:
    digest = memory.stem.split("-")[4]
    memory.rename(memory.with_name(f"memory-{'0' * 16}-0001-{'0' * 8}-{digest}.arrow"))


@pytest.mark.parametrize(
    "forge",
    [
        truncated,
        emptied,
        changed_in_place,
        longer_by_a_byte,
        enormous,
        signed_with_another_key,
        under_the_size_and_digest_of_other_bytes,
        without_a_signature,
        no_arrow_file,
        of_the_release_before_signatures,
    ],
    ids=lambda forge: forge.__name__,
)
def test_a_memory_that_this_work_has_not_signed_is_ignored_with_a_warning(
    table: Table, spark: SparkSession, forge: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = save(context_of(spark, table), table)
    forge(memory, memory.read_bytes(), Seal(OTHER_KEY, table.uri, WORK))
    read: list[str] = []
    really = LocalStore.read

    def watched(store: LocalStore, path: str) -> bytes:
        read.append(path)
        return really(store, path)

    monkeypatch.setattr(LocalStore, "read", watched)
    context = context_of(spark, table)
    assert SavedWork(context).load() == Memory()
    (line,) = lines_of(context)
    assert line.startswith("ignored ")
    # Only what has a signed name, and the size that the name says, is opened at all.
    assert len(read) == (1 if forge is changed_in_place else 0)


@pytest.mark.parametrize(
    ("work", "place"),
    [
        (ApplicationTransaction(app_id=WORK.app_id, version=2), "t"),
        (ApplicationTransaction(app_id=WORK.app_id + "2", version=3), "t"),
        # Lengths are signed too: these two would be one text if parts were only joined.
        (ApplicationTransaction(app_id=WORK.app_id[:-1], version=3), "t"),
        (WORK, "other"),
    ],
    ids=["another number", "another task", "a shorter name", "another table"],
)
def test_a_memory_of_other_work_counts_for_nothing(
    table: Table, tmp_path: Path, spark: SparkSession, work: ApplicationTransaction, place: str
) -> None:
    other = table if place == "t" else make_table(tmp_path / place, rows(3))
    memory = save(context_of(spark, other, work=work), other)
    context = context_of(spark, table)
    inputs_of(context).mkdir()
    shutil.copy(memory, inputs_of(context))
    assert SavedWork(context).load() == Memory()
    assert len(lines_of(context)) == 1


def test_a_table_that_was_made_again_in_the_same_place_gets_nothing_of_the_old_one(
    table: Table, tmp_path: Path, spark: SparkSession
) -> None:
    save(context_of(spark, table), table)
    shutil.rmtree(tmp_path / "t" / "_delta_log")
    for path in (tmp_path / "t").glob("part-test-*"):
        path.unlink()
    again = make_table(tmp_path / "t", rows(3))
    memory = SavedWork(context_of(spark, again)).load()
    assert not memory.begin(rules_at(again.snapshot()))
    assert memory.segments == []


def test_a_job_without_a_key_finds_no_memory(table: Table, spark: SparkSession) -> None:
    memory = save(context_of(spark, table), table)
    context = context_of(spark, table, key=None)
    inputs_of(context).mkdir()
    shutil.copy(memory, inputs_of(context))
    assert SavedWork(context).load() == Memory()
    assert context.inputs_folder != context_of(spark, table, key=None).inputs_folder


# --- what the key signed, and no job of this release writes ---------------------------------------------------------

CLASS_OF = "txlog_canary_of_a_saved_schema"
_NAMED = {"type": "udt", "pyClass": f"{CLASS_OF}.Type", "serializedClass": "", "sqlType": "long"}
_ARRAY = {"type": "array", "elementType": _NAMED, "containsNull": True}
USER_DEFINED = {"type": "struct", "fields": [{"name": "a", "type": _ARRAY, "nullable": True, "metadata": {}}]}


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.update(format=2),
        lambda header: header["identity"].update(digest="0" * 64),
        lambda header: header["identity"].update(release="0.0.1"),
        lambda header: header.pop("segments"),
        lambda header: header.update(segments={"kind": 1}),
        lambda header: header.update(dropped=[5]),
        lambda header: header.update(rules=[]),
        lambda header: header["inputs"].update(source=5),
        lambda header: header["inputs"].update(source={"files": [{"path": "../f"}]}),
        lambda header: header["inputs"].update(reads_target="no"),
        lambda header: header["inputs"].update(source_schema="long"),
        lambda header: header["inputs"].update(source_schema=USER_DEFINED),
        lambda header: header.update(more=1),
        lambda header: [header],
        lambda header: header["segments"][0]["files"][0].update(path=5),
        lambda header: header["segments"][0]["files"][0].update(path=f"../outside/{NAME}"),
    ],
)
def test_a_signed_memory_of_another_form_is_ignored_too(
    table: Table, spark: SparkSession, change: Callable[[dict[str, Any]], Any]
) -> None:
    memory = save(context_of(spark, table), table)
    data = with_header(memory.read_bytes(), change)
    memory.unlink()
    put_newest(memory.parent, name_of(data, Seal(KEY, table.uri, WORK)), data)
    context = context_of(spark, table)
    assert SavedWork(context).load() == Memory()
    assert [line for line in lines_of(context) if line.startswith("ignored ")]


def test_no_class_that_a_saved_schema_names_is_imported(
    table: Table, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{CLASS_OF}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    source = {"files": [], "schema": USER_DEFINED, "parameters": []}
    memory = save(context_of(spark, table), table)
    data = with_header(memory.read_bytes(), lambda header: header["inputs"].update(source=source))
    memory.unlink()
    put_newest(memory.parent, name_of(data, Seal(KEY, table.uri, WORK)), data)
    context = context_of(spark, table)
    SavedWork(context).load()
    with contextlib.suppress(Exception):
        context.executor.stored_columns(USER_DEFINED)
    assert CLASS_OF not in sys.modules


FORMS = [
    NAME,
    NAME.replace(".zstd", ""),
    NAME.replace("c00000", "c00003-1"),
    f"a={NAME}/b=x%2520y/{NAME}",
    f"%20=1/{NAME}",
    f"zK/{NAME}",
    f"_change_data/a=1/cdc-{NAME.removeprefix('part-')}",
    f"deletion_vector_{UUID}.bin",
    f"ab/deletion_vector_{UUID}.bin",
]


@pytest.mark.parametrize("path", FORMS)
def test_a_path_that_a_job_gives_a_file_is_read_back_as_it_was(path: str) -> None:
    assert confined(StagedFile(**_FIELDS | {"path": path})).path == path
    assert confined(StagedFile(**_FIELDS | {"path": f"inputs/{path}"}), "inputs").path == f"inputs/{path}"


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "..",
        f"../{NAME}",
        f"../../outside/{NAME}",
        f"a=1/../../{NAME}",
        f"a=1/../{NAME}",
        f"./{NAME}",
        f"a=1//{NAME}",
        f"/{NAME}",
        f"/etc/{NAME}",
        f"//host/{NAME}",
        f"file:///lake/t/{NAME}",
        f"s3://bucket/{NAME}",
        f"file:{NAME}",
        f"%2e%2e/{NAME}",
        f"%2E%2E%2F{NAME}",
        f"..%2f{NAME}",
        f"a=1%2F..%2F..%2F{NAME}",
        f"a=1%2f{NAME}",
        f"%2Flake%2F{NAME}",
        f"file%3A%2F%2F/{NAME}",
        NAME.replace("-", "%2D", 1),
        f"{NAME}\0",
        f"{NAME}%00",
        f"{NAME}\n",
        f"{NAME}/",
        f"..\\{NAME}",
        f"_delta_log/{NAME}",
        f"_change_data/{NAME}",
        f"_change_data/deletion_vector_{UUID}.bin",
        f"cdc-{NAME.removeprefix('part-')}",
        f"txlog-inputs-0123/{NAME}",
        f".hidden/{NAME}",
        "_delta_log/00000000000000000000.json",
        "part-00000-c000.snappy.parquet",
        "f.parquet",
        "report.txt",
        f"{NAME}.crc",
    ],
)
def test_a_path_that_no_job_gives_a_file_is_refused(path: str) -> None:
    for folder, wrong in (("", path), ("inputs", f"inputs/{path}"), ("inputs", path)):
        with pytest.raises(ValueError, match="path"):
            confined(StagedFile(**_FIELDS | {"path": wrong}), folder)


_FIELDS: dict[str, Any] = {
    "path": NAME,
    "partition_values": {},
    "size_bytes": 4,
    "modification_time_ms": 0,
    "num_records": 1,
    "stats": "{}",
}


# --- the key --------------------------------------------------------------------------------------------------------


def test_the_folder_of_saved_work_has_a_name_that_only_the_key_gives(table: Table) -> None:
    other = ApplicationTransaction(app_id=WORK.app_id, version=4)
    names = {
        work_folder(root, work, key)
        for root in (table.uri, table.uri + "2")
        for work in (WORK, other)
        for key in (KEY, OTHER_KEY)
    }
    assert len(names) == 8
    assert all(name is not None and len(name) == len("txlog-inputs-") + 32 for name in names)
    assert work_folder(table.uri, WORK, None) is None
    assert work_folder(table.uri, None, KEY) is None


def test_the_key_is_in_no_text_of_a_spec_but_the_one_for_the_child() -> None:
    spec = job_spec(operation="truncate", table_uri="/t", saved_work_key=KEY)
    assert KEY not in f"{spec} {spec!r} {spec.to_json()} {spec.digest()} {spec.commit_tags()}"
    assert JobSpec.from_json(spec.to_json()) == spec
    assert JobSpec.from_json(spec.to_json()).saved_work_key is None
    assert JobSpec.from_json(spec.to_json(with_key=True)).saved_work_key == KEY


@pytest.mark.parametrize("key", ["", "short", KEY.upper(), KEY + "0", KEY[:-1] + "\n", 5])
def test_a_key_of_another_form_is_refused_and_not_shown(key: Any) -> None:
    with pytest.raises(InvalidJobSpec, match="saved_work_key") as caught:
        job_spec(operation="truncate", table_uri="/t", saved_work_key=key)
    assert not isinstance(key, str) or key == "" or key not in str(caught.value)
