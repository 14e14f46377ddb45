"""Documents that a task exchanges with its job when the job's driver runs on another machine.

The documents are in a folder inside the table's, which both processes can reach and which VACUUM sweeps like saved
work. For each submission of the work (1, 2, …) the task writes `spec-1` before it submits, and the job writes
`driver-1` when it begins, with its location, and `result-1`, which names its submission. A spec without a result is
the handle of a job that may still run, and any later try of the work finds it.

Any process that may write the table may write there too, and a killed worker deletes nothing. The invariants: nothing
is read unless it is signed with the key of this work, under its name. Every document is encrypted, because arguments
may name persons; and no secret is written even so: the driver receives the key and Spark's settings through a setting
of its application (`KEY_SETTING`). Source: docs/decisions/saved-work.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from typing import Any

from airflow_txlog.contract.job import ApplicationTransaction, JobSpec
from airflow_txlog.contract.operations import Audit, Publish
from airflow_txlog.datafiles.parquet.encryption import decrypted, encrypted
from airflow_txlog.errors import JobError, LimitExceeded, OutsideTable
from airflow_txlog.exactly_once.transactions import (
    Seal,
    folder_named,
    remove_first_version_note,
    remove_saved_work,
    work_folder,
)
from airflow_txlog.storage import Access, Store, open_store

KEY_SETTING = "spark.txlog.secret"
"""The setting by which the driver can open an exchange. Spark shows no setting that is named a secret."""

_TASK = ("dag_id", "task_id", "run_id", "map_index")

# A signature of an exchange is not valid for saved work of the same key, nor the reverse.
_SIGNED_AS = ApplicationTransaction(app_id="airflow_txlog/exchange", version=1)
_FOLDER_CHARACTERS = 32
_SPEC = re.compile(r"spec-([1-9]\d{0,5})")
_SIGNATURE_CHARACTERS = 64


class Exchange:
    """The documents of one piece of work."""

    def __init__(self, store: Store, key: str) -> None:
        """`key`: 64 hexadecimal digits that only the tries of this work and their jobs have."""
        self._store = store
        self._key = key
        self._seal = Seal(key, store.root, _SIGNED_AS)
        self._encrypted_with = bytes.fromhex(self._seal.sign("encryption", b""))
        self.folder = folder_named(self._seal.sign("folder", b"")[:_FOLDER_CHARACTERS])

    def put(self, kind: str, number: int, document: Mapping[str, Any]) -> None:
        """Write a document, replacing one of its name."""
        self._store.put(*self._signed(f"{kind}-{number}", document))

    def get(self, kind: str, number: int) -> dict[str, Any] | None:
        """Return a document; None if this work has signed none. Raises JobError if it cannot be decrypted."""
        name = f"{kind}-{number}"
        try:
            found = self._store.read(f"{self.folder}/{name}")
        except (FileNotFoundError, OutsideTable, LimitExceeded):
            return None
        signature, content = found[:_SIGNATURE_CHARACTERS], found[_SIGNATURE_CHARACTERS:]
        if not self._seal.is_signed(name, content, signature.decode("latin-1")):
            return None
        # Imported here, as in the writing method: it loads Parquet, which only tasks with a remote driver need.
        document = decrypted(self._encrypted_with, content)
        if document is None:
            raise JobError(
                f"{self._store.root}/{self.folder}/{name}, which only the tries of this work and its driver read, is "
                "signed and cannot be decrypted: another build of airflow_txlog has written it. Nothing was done now. "
                "Use one build for the worker and the driver's image. If the package was upgraded between two tries, "
                "make sure that the job of the earlier try has ended, delete that folder, and clear the task."
            )
        return dict(json.loads(document))

    def last(self) -> int:
        """Return the number of the last submission; 0 if there is none."""
        names = (info.path.rpartition("/")[2] for info in self._store.list(self.folder))
        numbers = (int(found[1]) for found in map(_SPEC.fullmatch, names) if found is not None)
        return next((number for number in sorted(numbers, reverse=True) if self.get("spec", number) is not None), 0)

    def add(self, document: Mapping[str, Any]) -> int:
        """Write the spec of one more submission and return its number."""
        number = self.last() + 1
        while not self._store.put_if_absent(*self._signed(f"spec-{number}", document)):
            number += 1
        return number

    def remove(self) -> None:
        for info in self._store.list(self.folder):
            self._store.delete(info.path)
        with contextlib.suppress(FileNotFoundError):
            self._store.delete_empty_directory(self.folder)

    def handed_over(self, number: int, withheld: Mapping[str, Any]) -> str:
        """Return the value of `KEY_SETTING` for the job of a submission: a secret. `withheld` holds the fields that its
        spec omits.
        """
        return json.dumps(
            {
                "root": self._store.root,
                "access": dataclasses.asdict(self._store.access),
                "key": self._key,
                "number": number,
                "withheld": dict(withheld),
            }
        )

    def _signed(self, name: str, document: Mapping[str, Any]) -> tuple[str, bytes]:
        content = encrypted(self._encrypted_with, json.dumps(document).encode())
        return f"{self.folder}/{name}", self._seal.sign(name, content).encode() + content

    @classmethod
    def received(cls, value: str) -> tuple[Exchange, int, dict[str, Any]]:
        """Return the exchange, the submission's number and the withheld fields that `handed_over` was given."""
        given = json.loads(value)
        exchange = cls(open_store(given["root"], Access.from_json(given["access"])), given["key"])
        return exchange, int(given["number"]), dict(given["withheld"])


def exchange_of(spec: JobSpec) -> Exchange:
    """Return the exchange of the work that a spec describes: the same one for each of its tries."""
    # Without a key no other process can find the job, and it is this one's alone.
    key = spec.saved_work_key or secrets.token_hex(32)
    if isinstance(spec.operation, Audit | Publish):
        # Their key is that of the work that staged the change, which has an exchange itself.
        work = [spec.digest(), *(spec.annotations.get(name) for name in _TASK)]
        key = hmac.new(bytes.fromhex(key), json.dumps(work).encode(), hashlib.sha256).hexdigest()
    return Exchange(open_store(spec.table_uri, spec.access), key)


def forget_saved_work(spec: JobSpec) -> None:
    """Delete the rows and keys that the tries of this work have saved; VACUUM takes staged files. Raises OSError."""
    store = open_store(spec.table_uri, spec.access)
    folder = work_folder(store.root, spec.application, spec.saved_work_key)
    if folder is not None:
        remove_saved_work(store, folder)
    if spec.saved_work_key is not None:
        exchange_of(spec).remove()
    if spec.operation.counts_from_first_try and spec.application is not None:
        remove_first_version_note(store, spec.application)
