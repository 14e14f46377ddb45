"""The commands `airflow txlog erasure verify`, `digest` and `public-key`: reports, their people, and their key."""

from __future__ import annotations

import dataclasses
import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from airflow_txlog.cli import printing
from airflow_txlog.cli.usage import hook_of, uri_of
from airflow_txlog.contract.erasure.check_report import Checked, check, lines_of
from airflow_txlog.engine.erasure.digests import DigestKey, digests_of_texts
from airflow_txlog.errors import InvalidInput, LedgerKeyMissing
from airflow_txlog.hooks.digest_keys import digest_keys
from airflow_txlog.hooks.erasure.published_report import public_key_of, signing_key

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_txlog.hooks.txlog import TxlogHook

_NO_GZIP = (gzip.BadGzipFile, zlib.error)


def verify_report(args: Namespace) -> printing.Answer:
    """Check erasure reports. `problems`: why a report proves nothing. `left`: the objects that do not pass.

    JSON: `{"is_authentic", "is_complete", "reports": [{"report", "request_id", "is_authentic", "is_complete",
    "signed_by", "num_tables", "num_objects", "problems", "left"}]}`. The first two are true if they are of every
    report.
    """
    hook, key = hook_of(args), args.public_key
    if key is None and args.signing_conn_id is not None:
        key = public_key_of(signing_key(args.signing_conn_id))
    found = [_checked(hook, uri_of(hook, each, args), key) for each in args.reports]
    documents = [
        {
            "report": place,
            "is_authentic": each.is_authentic,
            "is_complete": each.is_complete,
            **dataclasses.asdict(each),
        }
        for place, each in found
    ]
    is_complete = all(each.is_complete for _, each in found)

    def show() -> None:
        for place, each in found:
            if len(found) > 1:
                print(f"{place}:")
            for line in lines_of(each):
                print(line)
        if len(found) > 1:
            print(f"{sum(each.is_complete for _, each in found)} of {len(found)} reports are complete")

    is_authentic = all(each.is_authentic for _, each in found)
    document = {"is_authentic": is_authentic, "is_complete": is_complete, "reports": documents}
    return printing.Answer(document, show, has_failed=not is_complete)


def _checked(hook: TxlogHook, uri: str, key: str | None) -> tuple[str, Checked]:
    """Return the place of a report, and the result of its check. That it cannot be read is a problem of this report."""
    folder, _, name = uri.rpartition("/")
    store = hook.table(folder).store

    def content(name: str) -> bytes:
        with store.open_input(name) as source:
            return bytes(source.read())

    place = f"{store.root}/{name}"
    try:
        document = content(name)
    except OSError as error:
        reason = f"{type(error).__name__}: {error.strerror}" if error.strerror else type(error).__name__
        return place, Checked(problems=[f"The report cannot be read ({reason})."])
    return place, check(document, key, content)


def show_public_key(args: Namespace) -> printing.Answer:
    """Print the public key of a signer, with which anybody checks its reports. JSON: `{"public_key"}`."""
    key = public_key_of(signing_key(args.signing_conn_id))
    return printing.Answer({"public_key": key}, lambda: print(key))


def digest_subjects(args: Namespace) -> printing.Answer:
    """Compare values from standard input, one a line, with the digests of subjects in a report. Print no value.

    JSON: `{"report", "request_id", "subjects": [{"line", "digest", "tables"}]}`. `tables`: those in which the report
    covers the value as a subject. Fails unless each value is a subject of a table. It does not check the signature.

    Raises InvalidInput for a report without digests or a file that is no report, and LedgerKeyMissing for one with
    digests by other keys.
    """
    hook = hook_of(args)
    folder, _, name = uri_of(hook, args.report, args).rpartition("/")
    store = hook.table(folder).store
    with _damage_named(f"{store.root}/{name}"), store.open_input(name) as source:
        body = json.loads(source.read())["report"]
        _check_has_digests(body["tables"])
    values = [line for line in sys.stdin.read().splitlines() if line]
    keys = [DigestKey.of(text, "a key of the ledger") for text in digest_keys(args.key_conn_id)]

    def lines_of_list(name: str) -> Sequence[str]:
        with store.open_input(name) as source:
            return gzip.decompress(source.read()).decode().splitlines()

    with _damage_named(f"{store.root}/{name}"):
        tables = {
            table["table"]: _held(table["digests"], values, args.type, keys, lines_of_list) for table in body["tables"]
        }
    digests = digests_of_texts(values, args.type, keys)
    found: list[dict[str, Any]] = [
        {"line": at + 1, "digest": digest, "tables": [name for name, held in tables.items() if held[at]]}
        for at, digest in enumerate(digests)
    ]

    hint = None if any(each["tables"] for each in found) else _hint_of_type(values, args.type)

    def show() -> None:
        for each in found:
            there = f"a subject of this report in {', '.join(each['tables'])}"
            print(f"line {each['line']}: {each['digest']}, {there if each['tables'] else 'not in this report'}")
        if hint is not None:
            print(hint)

    document = {"report": f"{store.root}/{name}", "request_id": body.get("request_id"), "subjects": found}
    return printing.Answer(document, show, has_failed=not all(each["tables"] for each in found))


@contextmanager
def _damage_named(report: str) -> Iterator[None]:
    """Raise InvalidInput if what is read is no report, or one of its lists is damaged."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError, EOFError, *_NO_GZIP) as error:
        raise InvalidInput(
            f"{report}: this is no report of an erasure, or a list that it names is damaged ({type(error).__name__}). "
            "Nothing was compared. `airflow txlog erasure verify` names the part."
        ) from None


def _check_has_digests(tables: Sequence[Mapping[str, Any]]) -> None:
    if any(each["digests"] is not None for each in tables):
        return
    if any(each["num_subjects"] for each in tables):
        raise InvalidInput(
            "This report holds no digests of its subjects: it was made without a ledger, so it cannot show whether it "
            "covers a person. Nothing was compared. Name a ledger in the connection of the next erasure."
        )
    raise InvalidInput(
        "This report holds no digests of its subjects, because none of its tables was verified: it covers no person. "
        "Nothing was compared. `airflow txlog erasure verify` names the reasons."
    )


def _hint_of_type(values: Sequence[str], kind: str) -> str | None:
    """Return the type that the values also look like, if they were compared as texts; None otherwise."""
    if kind != "text" or not values:
        return None
    for other in ("number", "date"):
        with suppress(InvalidInput):
            digests_of_texts(values, other, [])
            return f"The values were compared as texts. If the column holds {other}s, add --type {other}."
    return None


def _held(
    listed: Mapping[str, Any] | None,
    values: Sequence[str],
    kind: str,
    keys: Sequence[DigestKey],
    read: Callable[[str], Sequence[str]],
) -> list[bool]:
    """Return for each value whether a table's list has its digest. A report of before a new key has older digests."""
    if listed is None:
        return [False] * len(values)
    chain = keys[: len(listed["key_ids"])]
    if [each.id for each in chain] != listed["key_ids"]:
        raise LedgerKeyMissing(
            f"The report has digests by the keys {', '.join(listed['key_ids'])}, and the connection has "
            f"{', '.join(each.id for each in keys)}. Nothing was compared. Name the connection of the ledger's key as "
            "--key-conn-id.",
            ledger=None,
            key_ids=listed["key_ids"],
        )
    known = set(read(listed["name"]))
    return [each in known for each in digests_of_texts(values, kind, chain)]
