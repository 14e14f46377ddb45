"""The watermarks of incremental consumers: how far each has processed its source, kept in the target's log.

The domain `txlog.incremental.<consumer>` of the target holds the watermark. The commit that writes the rows of a range
also writes the domain, so the two cannot disagree. A domain does not expire, as application transactions do. A RESTORE
keeps domains, so ours rewinds the watermarks (`rewound`), and a consumer looks for a RESTORE by another engine
(`upkeep.consumers`). The invariant: two commits that write one domain conflict, so a range is committed once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import Annotated

import msgspec

from airflow_txlog.engine.log.actions import DomainMetadata
from airflow_txlog.engine.log.names import MAX_VERSION

WATERMARKS = "txlog.incremental."
"""The start of the names of the domains, and of the properties that note their consumers."""


TOMBSTONES = "airflow_txlog/tombstones/"
"""The start of the application transactions that name the tombstones of applied changes."""
NO_TOMBSTONES = 0
"""The number, or a lower one, of such a transaction after a restore to a version without tombstones."""


class Watermark(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How far a consumer has processed its source. A field of a newer release is ignored."""

    source: str
    """The URI of the source, or whatever text another program has written: lines of a log escape it."""
    table_id: str
    """The id of the source in its metadata: a table that is recreated gets another one."""
    version: Annotated[int, msgspec.Meta(ge=-1, le=MAX_VERSION)]
    """The last version of the source whose changes are processed; -1 for none."""
    mark: str | None = None
    """The mark of that version's commit, which differs in another log; None if it is not known."""
    added: str | None = None
    """A file that the watermark's commit added: while it is live, no RESTORE has undone the commit."""
    others: dict[str, int] = msgspec.field(default_factory=dict)
    """The versions at which the other tables of the query were read, by URI."""


def domain_of(consumer: str) -> str:
    """Return the name of the domain that holds the consumer's watermark, and of the property that notes it."""
    return WATERMARKS + consumer


def encoded(watermark: Watermark) -> str:
    """Return the text of the domain."""
    return msgspec.json.encode(watermark, order="deterministic").decode()


def watermarks_of(domains: Mapping[str, DomainMetadata]) -> dict[str, Watermark]:
    """Return the watermarks by consumer, without the domains that hold none: any writer of the log may write them."""
    found = {}
    for name in sorted(domains):
        if name.startswith(WATERMARKS) and not domains[name].removed:
            with contextlib.suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
                found[name.removeprefix(WATERMARKS)] = msgspec.json.decode(domains[name].configuration, type=Watermark)
    return found


def rewound(
    now: Mapping[str, DomainMetadata], then: Mapping[str, DomainMetadata], consumers: Collection[str] | None = None
) -> list[DomainMetadata]:
    """Return the domains that give these consumers (None: all) the watermarks of an earlier version of the table.

    A commit that takes the table's rows back to that version writes them too. `now` and `then` are the domains of the
    latest and of the earlier version; a consumer that had no watermark loses its present one.
    """
    names = {name for name in (*now, *then) if name.startswith(WATERMARKS)}
    if consumers is not None:
        names &= set(map(domain_of, consumers))
    found = []
    for name in sorted(names):
        before, after = now.get(name), then.get(name)
        if after is not None and after != before:
            found.append(after)
        elif after is None and before is not None:
            found.append(DomainMetadata(domain=name, configuration=before.configuration, removed=True))
    return found


def rewound_text(domains: Collection[DomainMetadata], now: Mapping[str, DomainMetadata]) -> list[str]:
    """Return a line for people on each watermark that `domains` rewind."""
    before = watermarks_of(now)
    after = watermarks_of({each.domain: each for each in domains})
    lines = []
    for domain in domains:
        consumer = domain.domain.removeprefix(WATERMARKS)
        was, will = before.get(consumer), after.get(consumer)
        known = will or was
        unread = "the start" if domain.removed else "a text that is no watermark"
        lines.append(
            f"the watermark of consumer {consumer!r} goes back "
            + ("" if was is None else f"from version {was.version} ")
            + f"to {unread if will is None else f'version {will.version}'}"
            + ("" if known is None else f" of {known.source!r}")
        )
    return lines
