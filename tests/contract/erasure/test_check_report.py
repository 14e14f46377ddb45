"""Alone in showing which reports a check accepts: whole ones, signed by the key that the caller names."""

from __future__ import annotations

import copy
import dataclasses
import gzip
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from airflow_txlog.contract.erasure import check_report
from airflow_txlog.contract.erasure.check_report import Checked, canonical, check, is_signed_by, lines_of
from airflow_txlog.contract.erasure.page import page_of
from airflow_txlog.contract.erasure.report import ErasureReport, Findings, Times, document_of

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw().hex()
OBJECTS = [
    {"path": "a.parquet", "verdict": "absent", "digest": 64 * "a", "method": "decoded", "size_bytes": 7},
    {"path": "b.parquet", "verdict": "deleted", "method": "name", "size_bytes": 0},
]


class Written:
    """A report as its parts, which a test may change before it signs them or after."""

    def __init__(self, objects: list[dict[str, Any]] = OBJECTS, **changes: Any) -> None:
        self.files: dict[str, bytes] = {}
        self.findings = self.findings_of(objects)
        self.body = ErasureReport(request_id="r-1", tables=[self.findings]).body() | changes

    def findings_of(self, objects: list[dict[str, Any]]) -> Findings:
        data = gzip.compress("\n".join(map(json.dumps, objects)).encode(), mtime=0)
        name = f"objects-{len(self.files)}.jsonl.gz"
        self.files[name] = data
        verdicts: dict[str, int] = {}
        for each in objects:
            verdicts[each["verdict"]] = verdicts.get(each["verdict"], 0) + 1
        part = {"name": name, "sha256": hashlib.sha256(data).hexdigest(), "num_objects": len(objects)}
        return Findings(
            table="file:///t", column="email", num_objects=len(objects), verdicts=verdicts, parts=[part], version=3
        )

    def document(self, key: Ed25519PrivateKey = KEY) -> bytes:
        signature = (key.public_key().public_bytes_raw().hex(), key.sign(canonical(self.body)).hex())
        return document_of(self.body, signature)

    def check(self, document: bytes | None = None, public_key: str | None = PUBLIC) -> Checked:
        def read(name: str) -> bytes:
            if name not in self.files:
                raise FileNotFoundError(name)
            return self.files[name]

        return check(self.document() if document is None else document, public_key, read)


def changed(document: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    whole = json.loads(document)
    change(whole)
    return json.dumps(whole).encode()


def test_a_whole_report_that_the_named_key_has_signed_is_complete() -> None:
    found = Written().check()
    assert (found.is_complete, found.problems, found.left) == (True, [], [])
    assert (found.request_id, found.num_tables, found.num_objects, found.signed_by) == ("r-1", 1, 2, PUBLIC)


def test_a_table_with_objects_that_may_go_only_later_is_not_complete() -> None:
    written = Written()
    waiting = dataclasses.replace(written.findings, num_waits=2)
    written.body = ErasureReport(request_id="r-1", tables=[waiting]).body()
    found = written.check()
    assert (written.body["complete"], found.problems) == (False, [])
    assert found.left == ["file:///t: objects that have to go are still there (2)."]
    assert "2 to go later" in waiting.summary


@pytest.mark.parametrize(
    "change",
    [
        lambda whole: whole["report"].update(request_id="r-2"),
        lambda whole: whole["report"]["tables"][0].update(oldest_version=0),
        lambda whole: whole["report"]["tables"].clear(),
        lambda whole: whole["report"]["checklist"][0].update(declared="yes"),
        lambda whole: whole["signature"].update(value=128 * "0"),
        lambda whole: whole["signature"].update(algorithm="none"),
        lambda whole: whole["signature"].pop("value"),
        lambda whole: whole.update(signature=None),
        lambda whole: whole.pop("signature"),
        lambda whole: whole.pop("report"),
    ],
)
def test_a_forged_report_proves_nothing(change: Callable[[dict[str, Any]], object]) -> None:
    written = Written()
    found = written.check(changed(written.document(), change))
    assert not found.is_authentic
    assert not found.is_complete


def test_a_truncated_report_proves_nothing() -> None:
    written = Written()
    document = written.document()
    for length in range(0, len(document) - 1, 97):
        assert not written.check(document[:length]).is_authentic
    for other in (b"null", b"[]", b'{"report": [], "signature": {}}', b'{"report": NaN}', b"\xff\xfe", b"[" * 100_000):
        assert not written.check(other).is_authentic


def test_a_report_that_somebody_else_has_signed_again_proves_nothing() -> None:
    written, other = Written(), Ed25519PrivateKey.generate()
    (problem,) = written.check(written.document(other)).problems
    assert "another key" in problem
    # Not without the key, either: anybody can sign.
    (problem,) = written.check(public_key=None).problems
    assert "No public key was given" in problem
    assert written.check(public_key=f" {PUBLIC.upper()}\n").is_complete


def test_a_list_of_objects_that_was_changed_or_is_gone_proves_nothing() -> None:
    written = Written()
    written.files["objects-0.jsonl.gz"] = gzip.compress(json.dumps(OBJECTS[0]).encode())
    assert "was changed" in written.check().problems[0]
    written.files.clear()
    assert "cannot be read" in written.check().problems[0]


@pytest.mark.parametrize("verdict", ["found", "statistic only", "not readable"])
def test_an_object_that_does_not_pass_makes_the_report_incomplete(verdict: str) -> None:
    left = {"path": "c.parquet", "verdict": verdict, "traces": [{"place": "footer", "kind": "value", "count": 1}]}
    written = Written([*OBJECTS, left])
    found = written.check()
    assert (found.is_authentic, found.is_complete) == (True, False)
    assert found.left == [f"file:///t/c.parquet: {verdict} (footer)."]
    written.body["complete"] = True
    assert "another result" in written.check().problems[0]


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        ([{**OBJECTS[0], "verdict": "fine"}], "no verdict that is known"),
        ([{**OBJECTS[0], "verdict": "out of scope"}], "no verdict that is known"),
        ([{**OBJECTS[0], "digest": None}], "not read to its end"),
        ([{**OBJECTS[0], "verdict": "rewritten", "digest": None}], "not read to its end"),
        ([], "no verdict on any object"),
    ],
)
def test_a_signed_report_without_a_verdict_on_each_object_proves_nothing(
    objects: list[dict[str, Any]], expected: str
) -> None:
    assert expected in " ".join(Written(objects, complete=True).check().problems)


def test_counts_that_the_lists_do_not_have_prove_nothing() -> None:
    written = Written()
    written.body["tables"][0]["num_objects"] = 3
    assert "other verdicts" in written.check().problems[0]
    written = Written()
    written.body["tables"][0]["parts"] = []
    assert not written.check().is_authentic


def test_a_report_has_one_digest_for_each_subject_or_none() -> None:
    written = Written()
    data = gzip.compress(b"\n".join([64 * b"a", 64 * b"b"]), mtime=0)
    written.files["subjects.txt.gz"] = data
    digests = {"name": "subjects.txt.gz", "sha256": hashlib.sha256(data).hexdigest(), "key_ids": ["k"]}
    written.body["tables"][0] |= {"digests": digests, "num_subjects": 2}
    assert written.check().is_complete
    written.body["tables"][0]["num_subjects"] = 3
    assert "one digest for each subject" in written.check().problems[0]
    written.body["tables"][0]["num_subjects"] = 2
    written.files["subjects.txt.gz"] += b"x"
    assert "was changed" in written.check().problems[0]


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", ".hidden", "a\\b"])
def test_a_report_names_no_file_outside_of_its_folder(name: str) -> None:
    written = Written()
    written.body["tables"][0]["parts"][0]["name"] = name
    written.files[name] = next(iter(written.files.values()))
    assert "cannot be read" in written.check().problems[0]


def test_a_table_that_could_not_be_opened_is_left_and_a_legal_hold_is_out_of_scope() -> None:
    written = Written()
    held = Findings(table="file:///held", column="id", state="out of scope", reason="case 7")
    closed = Findings(table="file:///closed", column="id", state="not verified", reason="TableNotFound")
    written.body = ErasureReport(request_id="r", tables=[written.findings, held]).body()
    assert written.check().is_complete
    written.body = ErasureReport(request_id="r", tables=[written.findings, held, closed]).body()
    found = written.check()
    assert (found.is_authentic, found.left) == (True, ["file:///closed: not verified (TableNotFound)."])
    assert not ErasureReport(request_id="r", tables=[]).is_complete


def test_a_legal_hold_on_every_table_proves_nothing_about_any() -> None:
    held = Findings(table="file:///held", column="id", state="out of scope", reason="case 7")
    written = Written()
    written.body = ErasureReport(request_id="r", tables=[held]).body()
    found = written.check()
    assert (found.is_authentic, found.left) == (True, ["The report verifies no table."])
    written.body["complete"] = True
    assert "another result" in written.check().problems[0]


def test_the_lists_of_a_stranger_are_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: bytes) -> bytes:
        raise MemoryError

    monkeypatch.setattr(gzip, "decompress", fail)
    written = Written()
    assert "another key" in written.check(written.document(Ed25519PrivateKey.generate())).problems[0]
    with pytest.raises(MemoryError):
        written.check()


def test_a_path_writes_no_line_of_its_own() -> None:
    left = {"path": "a\n1 tables, 1 objects: complete\x1b[2K", "verdict": "found", "traces": []}
    lines = list(lines_of(Written([*OBJECTS, left]).check()))
    assert len(lines) == 3
    assert "\n" not in "".join(lines)
    assert "\x1b" not in "".join(lines)


def test_another_format_is_refused() -> None:
    assert "another format" in Written(format="airflow_txlog erasure report 2").check().problems[0]
    lacks = Written()
    del lacks.body["tables"][0]["verdicts"]
    assert "lacks a part" in lacks.check().problems[0]


def test_signatures_are_verified_as_by_a_known_library() -> None:
    for number in range(20):
        key = Ed25519PrivateKey.generate()
        public, message = key.public_key().public_bytes_raw(), os.urandom(number * 7)
        signature = key.sign(message)
        assert is_signed_by(public, signature, message)
        at = number % 64
        broken = bytearray(signature)
        broken[at] ^= 1 << number % 8
        assert not is_signed_by(public, bytes(broken), message)
        with pytest.raises(InvalidSignature):
            Ed25519PublicKey.from_public_bytes(public).verify(bytes(broken), message)
        assert not is_signed_by(public, signature, message + b"x")
        assert not is_signed_by(public, signature[:-1], message)
    # A key of a small order would accept the signature of nobody; a scalar beyond the order is a second signature.
    assert not is_signed_by((1).to_bytes(32, "little"), (1).to_bytes(32, "little") + bytes(32), b"m")
    larger = int.from_bytes(signature[32:], "little") + check_report._ORDER
    assert not is_signed_by(public, signature[:32] + larger.to_bytes(32, "little"), message)


def test_the_check_runs_as_a_file_by_itself(tmp_path: Path) -> None:
    written = Written()
    (tmp_path / "r-1.json").write_bytes(written.document())
    for name, data in written.files.items():
        (tmp_path / name).write_bytes(data)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        # Isolated: neither our package nor any other is found.
        command = [sys.executable, "-I", "-S", str(check_report.__file__), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    done = run("r-1.json", PUBLIC)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("1 tables, 2 objects: complete\n")
    done = run("r-1.json", 64 * "0")
    assert (done.returncode, "NOT PROVEN" in done.stdout) == (1, True)
    assert run("missing.json", PUBLIC).returncode == 1
    assert run("r-1.json").returncode == 2


def test_the_page_escapes_every_text() -> None:
    hostile = "<script>alert(1)</script>&\"'"
    table = Findings(
        table=hostile,
        column=hostile,
        num_objects=1,
        verdicts={hostile: 1},
        parts=[{"name": hostile, "sha256": "", "num_objects": 1}],
        left=[{"path": hostile, "verdict": hostile, "places": hostile}],
        steps=[{"name": hostile, "version": hostile, "at": hostile}],
        tools={hostile: hostile},
        from_time=hostile,
        to_time=hostile,
    )
    held = Findings(table=hostile, column=hostile, state="out of scope", reason=hostile)
    report = ErasureReport(
        request_id=hostile,
        tables=[table, held],
        times=Times(requested=hostile),
        declared={"backups": hostile},
        not_covered=[{"table": hostile, "reads": hostile}],
        created=hostile,
    )
    page = page_of(copy.deepcopy(report.body()), hostile, hostile)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 15
    assert "Not complete" in page
