"""Sign an erasure report and write it: the document, and the page for people.

The invariant: the private key stays in the task's process. A report never replaces an earlier one of its request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import mask_secret

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.contract.erasure.check_report import canonical
from airflow_txlog.contract.erasure.page import page_of
from airflow_txlog.contract.erasure.report import ErasureReport, document_of
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.hooks.connections import connection_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from airflow_txlog.hooks.txlog import TxlogHook

_SEED_DIGITS = 64


@dataclass(frozen=True, kw_only=True)
class PublishedReport:
    """The places of a written report. `public_key` is None if it is not signed."""

    uri: str
    page_uri: str
    public_key: str | None


def publish_reports(
    hook: TxlogHook, report_uri: str, reports: Iterable[ErasureReport], signing_conn_id: str | None
) -> Iterator[PublishedReport]:
    """Write reports and their pages to the folder `report_uri`, which has the lists that they name; yield each place.

    Raises InvalidJobSpec for a connection without a key.
    """
    key = None if signing_conn_id is None else signing_key(signing_conn_id)
    public = None if key is None else public_key_of(key)
    store = hook.table(report_uri).store
    for report in reports:
        body = report.body()
        signature = None if key is None or public is None else (public, key.sign(canonical(body)).hex())
        name = f"{report.request_id}-{datetime.fromisoformat(report.created):%Y%m%dT%H%M%S%f}"
        store.put(f"{name}.html", page_of(body, public, f"{name}.json").encode())
        # The document comes last: with it, everything that it names is there.
        store.put(f"{name}.json", document_of(body, signature))
        yield PublishedReport(uri=f"{store.root}/{name}.json", page_uri=f"{store.root}/{name}.html", public_key=public)


def time_of_report() -> str:
    """Return the time at which reports are created, in ISO 8601 with milliseconds."""
    return datetime.fromtimestamp(SYSTEM_CLOCK.now_ms() / 1000, UTC).isoformat(timespec="milliseconds")


def signing_key(conn_id: str) -> Ed25519PrivateKey:
    """Return the private key in a connection's password: PEM, or 64 hexadecimal digits. Raises InvalidJobSpec."""
    # Airflow has it; a worker loads it only here.
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    text = (connection_of("signing_conn_id", conn_id).password or "").strip()
    if text:
        mask_secret(text)
    try:
        if len(text) == _SEED_DIGITS:
            return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(text))
        key: object = load_pem_private_key(text.replace("\\n", "\n").encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidJobSpec(
            f"The connection {conn_id!r} has no Ed25519 key in its password. Make one by `openssl genpkey -algorithm "
            "ed25519`, and put its PEM text, or the 64 hexadecimal digits of its seed, into the password.",
            argument="signing_conn_id",
        )
    return key


def public_key_of(key: Ed25519PrivateKey) -> str:
    """Return the 64 hexadecimal digits with which anybody checks a report."""
    return key.public_key().public_bytes_raw().hex()
