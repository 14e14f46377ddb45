"""The key with which the tries of one piece of work sign their saved work, derived from a deployment's secret.

The secret is the Airflow Variable `txlog_saved_work_secret`. The first task that needs it creates it: 32 random bytes,
in Airflow's database, or wherever a secrets backend has a value of that name. Airflow masks it by its name in logs and
in the UI. Invariant: the secret stays in the task's process. A job gets a key for one application transaction, in a
description that no other user can read, and its log shows neither.
Source: docs/decisions/saved-work.md.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets

from airflow.providers.common.compat.sdk import Variable, conf, mask_secret

from airflow_txlog.contract.job import ApplicationTransaction

SECRET_VARIABLE = "txlog_saved_work_secret"
_FEWEST_CHARACTERS = 32
# Each use of the secret has its own label, so no work has the key of another use, whatever its handle names.
_WORK, _RECORDS = b"airflow_txlog saved work key 1", b"airflow_txlog erasure records key 1"
_MARK = b"airflow_txlog deployment 1"

log = logging.getLogger(__name__)


def saved_work_key(application: ApplicationTransaction) -> str | None:
    """Return the key of this transaction's work; None, with a warning, without access to the secret."""
    work = f"{application.version}\0{application.app_id}".encode()
    return _key(_WORK + b"\0" + work, "the work of this job is not saved for a retry")


def records_key() -> str | None:
    """Return the key with which the erasures of this deployment sign the records of their work.

    None, with a warning, without access to the secret.
    """
    return _key(
        _RECORDS, "the records of this erasure are not signed, and those of earlier runs are left out of its report"
    )


def _key(label: bytes, without: str) -> str | None:
    """Return the key that follows from the secret for a label; None, with a warning that ends with `without`."""
    try:
        secret = _secret()
    except Exception as error:  # no Airflow behind this process, or one that does not answer or refuses
        log.warning(
            "the Variable %s can be neither read nor made (%s): %s", SECRET_VARIABLE, type(error).__name__, without
        )
        return None
    if len(secret) < _FEWEST_CHARACTERS:
        log.warning(
            "the Variable %s has fewer than %s characters and is not used: %s. Give it a long random value, or delete "
            "it to have one made.",
            SECRET_VARIABLE,
            _FEWEST_CHARACTERS,
            without,
        )
        return None
    key = hmac.new(secret.encode(), label, hashlib.sha256).hexdigest()
    mask_secret(key)
    return key


def deployment_mark() -> str | None:
    """Return the mark of this Airflow deployment in the tags of its commits; None if it is not known.

    It is `[txlog] deployment_id`, or else follows from the secret, which it does not disclose.
    """
    named = deployment_id()
    if named:
        return named
    try:
        secret = _secret()
    except Exception:  # no Airflow behind this process, or one that does not answer or refuses
        return None
    # Everybody who reads the table could guess a short one by its mark.
    is_long = len(secret) >= _FEWEST_CHARACTERS
    return hmac.new(secret.encode(), _MARK, hashlib.sha256).hexdigest()[:16] if is_long else None


def deployment_id() -> str:
    """Return the configured name of this Airflow deployment; empty if there is none."""
    return str(conf.get("txlog", "deployment_id", fallback="") or "")


def _secret() -> str:
    found = Variable.get(SECRET_VARIABLE, default=None)
    if not found:
        made = secrets.token_hex(32)
        mask_secret(made)
        Variable.set(SECRET_VARIABLE, made, description="Signs the saved work of airflow_txlog's jobs. Keep it secret.")
        # If several tasks created it at once, the last one counts.
        found = Variable.get(SECRET_VARIABLE)
    return str(found)
