"""The watermark of one consumer: read with proof that its rows are still in the table, and written with a commit.

A RESTORE by another engine keeps the domain and takes the rows. The proof is a file that the watermark's commit added
and that is live, or else the commits since then, none of which is a RESTORE to a version before it. A property of the
table notes each consumer, so that a domain that another engine lost is missed. The invariant: a consumer that is noted
or has a domain never starts from the beginning automatically.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from airflow_txlog.engine.commit.content.watermarks import WATERMARKS, Watermark, domain_of, encoded, watermarks_of
from airflow_txlog.engine.commit.transaction import Transaction
from airflow_txlog.engine.log.actions import decode_commit
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.log.paths import canonical_path
from airflow_txlog.engine.table.schema.features import missing_features, with_features
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import WatermarkLost

_FEATURE = "domainMetadata"
_NOTED = "true"


def consumers_of(snapshot: Snapshot) -> list[str]:
    """Return the consumers that the table notes or has a domain of."""
    names = {*snapshot.state.domains, *snapshot.metadata.configuration}
    return sorted(name.removeprefix(WATERMARKS) for name in names if name.startswith(WATERMARKS))


def watermark_of(snapshot: Snapshot, consumer: str) -> Watermark | None:
    """Return the consumer's watermark; None if it has never processed anything into this table.

    Raises WatermarkLost if it has, and the table does not hold the rows up to its watermark any more, or may not.
    """
    name = domain_of(consumer)
    domain = snapshot.state.domains.get(name)
    is_noted = name in snapshot.metadata.configuration
    watermark = None if domain is None else watermarks_of({name: domain}).get(consumer)
    if watermark is None and domain is not None and not domain.removed:
        raise _lost(snapshot, consumer, None, "its domain holds another text, which another program has written")
    if watermark is None and is_noted:
        raise _lost(snapshot, consumer, None, "its domain is gone, which another engine has dropped")
    if watermark is None:
        return None
    if not is_noted:
        raise _lost(snapshot, consumer, watermark, "another engine has taken the table back to before its first run")
    if watermark.added is not None:
        path = canonical_path(watermark.added, snapshot.uri)
        if snapshot.state.files.at_paths({path}).num_rows:
            return watermark
    _check_not_undone(snapshot, consumer, watermark)
    return watermark


def _check_not_undone(snapshot: Snapshot, consumer: str, watermark: Watermark) -> None:
    """Raise WatermarkLost if a commit since the watermark's is a RESTORE to a version before it, or may be."""
    domain, restores = domain_of(consumer), list[tuple[int, int | None]]()
    for version in range(snapshot.version, -1, -1):
        path = commit_name(version)
        try:
            commit = decode_commit(version, snapshot.store.read(path), path)
        except FileNotFoundError:
            raise _lost(
                snapshot,
                consumer,
                watermark,
                f"the log no longer shows the commits up to version {version}, one of which may be a RESTORE",
            ) from None
        if any(each.domain == domain for each in commit.domains):
            undone = [(at, to) for at, to in restores if to is None or to < version]
            if undone:
                at, to = undone[-1]
                before = "an earlier state" if to is None else f"version {to}"
                what = f"version {at} is a RESTORE to {before}, and the watermark is of version {version}"
                raise _lost(snapshot, consumer, watermark, what, restored_version=to)
            return
        if (commit.info or {}).get("operation") == "RESTORE":
            restores.append((version, restored_version(commit.info or {})))


def restored_version(info: Mapping[str, Any]) -> int | None:
    """Return the version that a RESTORE names, by its commitInfo; None if it names a moment."""
    parameters = info.get("operationParameters")
    text = str(parameters.get("version")) if isinstance(parameters, Mapping) else ""
    return int(text) if text.isdecimal() else None


def _lost(
    snapshot: Snapshot,
    consumer: str,
    watermark: Watermark | None,
    what: str,
    restored_version: int | None = None,
) -> WatermarkLost:
    last = "" if watermark is None else f" (version {watermark.version} of {watermark.source!r})"
    source = " --source SOURCE" if watermark is None else ""
    return WatermarkLost(
        f"{snapshot.uri}: the watermark of consumer {consumer!r}{last} does not hold: {what}. Nothing was processed. "
        "Find out which source version the table's rows correspond to, and set it with `airflow txlog incremental "
        f"reset {snapshot.uri} --consumer {consumer} --to-version N{source}`.",
        table=snapshot.uri,
        consumer=consumer,
        version=None if watermark is None else watermark.version,
        restored_version=restored_version,
    )


def set_watermark(tx: Transaction, consumer: str, watermark: Watermark) -> list[str]:
    """Let the transaction write the watermark; return what it also changes for it, once per table or consumer."""
    notes = []
    protocol, metadata, name = tx.protocol, tx.metadata, domain_of(consumer)
    assert protocol is not None
    assert metadata is not None
    if missing_features(protocol, [_FEATURE]):
        tx.set_protocol(with_features(protocol, [_FEATURE]))
        notes.append(
            f"the table gets the writer feature {_FEATURE}, which its watermarks need: engines that do not know it can "
            "read the table and no longer write to it"
        )
    if name not in metadata.configuration:
        configuration = {**metadata.configuration, name: _NOTED}
        tx.set_metadata(msgspec.structs.replace(metadata, configuration=configuration))
        notes.append(f"the table notes its consumer {consumer!r} in the property {name}")
    tx.set_domain(name, encoded(watermark))
    return notes
