"""The names and signatures of what a job leaves in the table's folder for the next try of the same task.

Any process that may write the table's folder may put files there, so a file is not trusted for its place or its name.
Only the holder of a key can compute the name of the folder, and what is read back is signed with the same key. The task
derives the key from a secret of the Airflow deployment (`hooks/work_key.py`) and gives it to the job in
`JobSpec.saved_work_key`. Without a key nothing that another process saved is trusted.

The invariant: a signature covers the table's root, the application transaction (app id and number), the kind of what is
signed, and its content, each preceded by its length, so that no two different things are signed alike. Source:
docs/decisions/saved-work.md.
"""

from __future__ import annotations

import hashlib
import hmac

from airflow_txlog.contract.job import ApplicationTransaction
from airflow_txlog.locations import PRIVATE_PREFIX

_FORMAT = "airflow_txlog saved work 1"
_FOLDER_CHARACTERS = 32


class Seal:
    """Signs what the tries of one application transaction leave for each other in one table's folder."""

    def __init__(self, key: str, root: str, application: ApplicationTransaction) -> None:
        """`root` is the table's canonical URI."""
        self._key = key.encode()
        self._of = (_FORMAT, root, application.app_id, str(application.version))

    def sign(self, kind: str, content: bytes) -> str:
        """Return the signature of some content as a thing of this kind: 64 hexadecimal digits."""
        mac = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in (*(text.encode("utf-8", "surrogateescape") for text in (*self._of, kind)), content):
            mac.update(len(part).to_bytes(8, "big"))
            mac.update(part)
        return mac.hexdigest()

    def is_signed(self, kind: str, content: bytes, signature: str) -> bool:
        return hmac.compare_digest(self.sign(kind, content).encode(), signature.encode())


def seal_of(root: str, application: ApplicationTransaction | None, key: str | None) -> Seal | None:
    """Return the seal of this work on the table at `root`; None without a transaction or a key."""
    return None if application is None or key is None else Seal(key, root, application)


def work_folder(root: str, application: ApplicationTransaction | None, key: str | None) -> str | None:
    """Return the folder, relative to the table, that all tries of this work share; None where no saved work is trusted.

    No other process can know the name and make the folder first.
    """
    seal = seal_of(root, application, key)
    return None if seal is None else folder_named(seal.sign("folder", b"")[:_FOLDER_CHARACTERS])


def first_version_note(application: ApplicationTransaction) -> str:
    """Return the path in the table of the note of what the first try met (`jobs.resume.first_version`).

    All tries of the work find it, with a key or without.
    """
    identity = f"{application.app_id}\0{application.version}"
    return f"{folder_named(hashlib.sha256(identity.encode()).hexdigest()[:16])}/first-version"


def folder_named(name: str) -> str:
    """Return a folder for what jobs leave beside a table's data, visible so that the VACUUM of any engine sweeps it."""
    return PRIVATE_PREFIX + name
