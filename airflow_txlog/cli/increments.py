"""The commands `airflow txlog incremental show` and `reset`: the watermarks of a table's consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_txlog.cli import printing
from airflow_txlog.cli.printing import ShownColumn
from airflow_txlog.cli.usage import UsageError, hook_of, uri_of
from airflow_txlog.engine import Table
from airflow_txlog.engine.commit.content.watermarks import Watermark, watermarks_of
from airflow_txlog.engine.table.changes.following import mark_at
from airflow_txlog.engine.upkeep.consumers import consumers_of, set_watermark, watermark_of
from airflow_txlog.errors import WatermarkLost
from airflow_txlog.errors.names import did_you_mean, shown_names

if TYPE_CHECKING:
    from argparse import Namespace


def show_watermarks(table: Table, args: Namespace) -> printing.Answer:
    """Show how far each consumer of a table is.

    JSON: `{"table", "version", "consumers": [{"consumer", "source", "table_id", "version", "others", "lost"}]}`.
    `lost` is the reason why a watermark does not hold, or null. One that cannot be read has null for most fields.
    """
    snapshot = table.snapshot()
    consumers: list[dict[str, Any]] = []
    known = watermarks_of(snapshot.state.domains)
    for consumer in consumers_of(snapshot):
        lost, watermark = None, known.get(consumer)
        try:
            watermark_of(snapshot, consumer)
        except WatermarkLost as error:
            lost = error.message
        consumers.append(
            {
                "consumer": consumer,
                "source": None if watermark is None else watermark.source,
                "table_id": None if watermark is None else watermark.table_id,
                "version": None if watermark is None else watermark.version,
                "others": {} if watermark is None else watermark.others,
                "lost": lost,
            }
        )

    def show() -> None:
        columns = [ShownColumn(name=name) for name in ("consumer", "version", "source", "state")]
        cells = [
            (each["consumer"], each["version"], each["source"], "holds" if each["lost"] is None else "lost")
            for each in consumers
        ]
        printing.print_rows(columns, cells)
        for each in consumers:
            if each["lost"] is not None:
                print(f"\n{each['lost']}")

    return printing.Answer({"table": table.uri, "version": snapshot.version, "consumers": consumers}, show)


def reset_watermark(table: Table, args: Namespace) -> printing.Answer:
    """Answer with `{"table", "version", "consumer", "source", "to_version"}`: the version with the new watermark."""
    tx = table.begin()
    assert tx.snapshot is not None
    known = watermarks_of(tx.snapshot.state.domains).get(args.consumer)
    if args.source is None and known is None:
        names = consumers_of(tx.snapshot)
        near = did_you_mean(args.consumer, names)
        known_names = f" The table's consumers are {shown_names(sorted(names))}." if names else ""
        raise UsageError(
            f"{table.uri} has no watermark of consumer {args.consumer!r}.{near}{known_names} For a new one, name its "
            "source with --source."
        )
    hook = hook_of(args)
    source = known.source if args.source is None and known is not None else uri_of(hook, args.source, args)
    head = hook.open(source).snapshot()
    if not -1 <= args.to_version <= head.version:
        raise UsageError(f"--to-version: {source} has the versions up to {head.version}; -1 is before the first one.")
    was = "without a watermark" if known is None else f"after version {known.version} of {known.source}"
    printing.confirm(
        f"Let consumer {args.consumer!r} of {table.uri}, now {was}, continue after version {args.to_version} of "
        f"{source}? No row of {table.uri} changes.",
        args.yes,
    )
    mark = mark_at(head.store, args.to_version)
    watermark = Watermark(source=head.uri, table_id=head.metadata.id, version=args.to_version, mark=mark)
    for note in set_watermark(tx, args.consumer, watermark):
        printing.say(note)
    version = tx.commit("RESET WATERMARK", {"consumer": args.consumer, "version": args.to_version})
    document = {
        "table": table.uri,
        "version": version,
        "consumer": args.consumer,
        "source": head.uri,
        "to_version": args.to_version,
    }
    answer = f"version {version}: consumer {args.consumer!r} continues after version {args.to_version} of {head.uri}"
    return printing.Answer(document, lambda: print(answer))
