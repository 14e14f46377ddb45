"""The commands of `airflow txlog` and their arguments.

Every start of the `airflow` command imports this module, so it imports nothing else of this package until a command
runs. `commands` implements the commands.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

if TYPE_CHECKING:
    from argparse import Namespace


def _arg(*flags: str, **settings: Any) -> Arg:
    return Arg(flags, **settings)  # type: ignore[no-untyped-call]


_TABLE = _arg(
    "table",
    metavar="TABLE",
    help="The table: a path, a URI, with --conn-id a name below the connection's base folder, or with "
    "--catalog-conn-id a name in the catalog",
)
_CONN_ID = _arg("--conn-id", metavar="ID", help="A connection of type txlog; TABLE is a name below its base folder")
_CATALOG = _arg(
    "--catalog-conn-id", metavar="ID", help="A connection of a catalog; TABLE is a name there, such as sales.orders"
)
_JSON = _arg("--json", dest="as_json", action="store_true", help="Print one JSON document")
_COMMON = (_TABLE, _CONN_ID, _CATALOG, _JSON)
_VERSION = _arg("--version", dest="table_version", type=int, metavar="N", help="A version of the table")
_TIMESTAMP = _arg(
    "--timestamp", metavar="TIME", help="A time: ISO-8601 (UTC without a zone) or milliseconds since the epoch"
)
_YES = _arg("-y", "--yes", action="store_true", help="Do not wait for confirmation, even on a terminal")


def _limit(default: int | None) -> Arg:
    shown = "all" if default is None else str(default)
    return _arg("--limit", type=_whole_number, default=default, metavar="N", help=f"At most N (default: {shown})")


def _whole_number(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError("a whole number from 0 on")
    return number


_whole_number.__name__ = "whole number"  # the name in argparse's messages

_PREDICATE = (
    _arg("--where", metavar="PREDICATE", help="List only files that may contain a matching row; SQL"),
    _arg(
        "--param",
        action="append",
        default=[],
        dest="params",
        metavar="NAME=VALUE",
        help="A parameter :NAME of the predicate. VALUE is JSON or else a string; compared with a string column it "
        "is always a string. May be repeated",
    ),
)
_VACUUM = (
    _arg(
        "--retention-hours",
        type=float,
        metavar="H",
        help="How long removed files are kept (default: the table's delta.deletedFileRetentionDuration)",
    ),
    _arg("--no-check-retention", action="store_true", help="Allow a retention below the table's own"),
    _arg(
        "--orphan-retention-hours",
        type=float,
        metavar="H",
        help="How long a file that no commit references is kept (default: 168, at least 24)",
    ),
    _arg(
        "--mode",
        choices=("full", "lite"),
        default="full",
        help="lite: use the log since the last vacuum, without a listing",
    ),
    _arg(
        "--inventory",
        metavar="FILE",
        help="Instead of a listing: a .parquet or .csv of path, modificationTime, size, isDir",
    ),
    _arg("--include-foreign", action="store_true", help="Also delete unrelated files in a shared folder"),
    _arg(
        "--parallelism",
        type=_whole_number,
        default=8,
        metavar="N",
        help="The number of concurrent deletions (default: 8)",
    ),
    _arg("-n", "--dry-run", action="store_true", help="Delete nothing, only list the files"),
    _YES,
)
_NAME, _PAIR = "NAME", "NAME=VALUE"


def _each(flag: str, field: str, metavar: str, help: str) -> Arg:
    return _arg(flag, action="append", default=[], dest=field, metavar=metavar, help=f"{help}. May be repeated")


_ALTER = (
    _each("--set-property", "set_properties", _PAIR, "Set a table property; comment=TEXT is the table's comment"),
    _each("--unset-property", "unset_properties", _NAME, "Remove a table property"),
    _each("--add-feature", "add_features", _NAME, "Add a table feature and switch it on"),
    _each("--drop-feature", "drop_features", _NAME, "Drop a table feature"),
    _each("--add-column", "add_columns", "NAME=TYPE", "Add a column, or a member of a struct (address.zip=STRING)"),
    _each("--rename-column", "rename_columns", "OLD=NEW", "Rename a column or a member"),
    _each("--drop-column", "drop_columns", _NAME, "Drop a column or a member"),
    _each("--change-type", "change_types", "NAME=TYPE", "Give a column a wider type"),
    _each("--set-comment", "set_comments", "NAME=TEXT", "Comment on a column; an empty TEXT takes the comment away"),
    _each("--set-not-null", "set_not_null", _NAME, "Forbid null in a column, once no row has one"),
    _each("--drop-not-null", "drop_not_null", _NAME, "Allow null in a column"),
    _each("--add-constraint", "add_constraints", "NAME=SQL", "Add a CHECK constraint, once it is true of every row"),
    _each("--drop-constraint", "drop_constraints", _NAME, "Drop a CHECK constraint"),
    _each("--sync-identity", "sync_identity", _NAME, "Number later rows of an identity column beyond all that exist"),
    _arg(
        "--cluster-by",
        metavar="NAMES",
        help="The clustering columns, separated by commas; an empty string ends the clustering",
    ),
    _arg("--allow-reader-upgrade", action="store_true", help="Allow a change that older engines cannot read"),
    _YES,
)
_UPKEEP = (
    _arg("--purge-above", type=float, default=0.05, metavar="SHARE", help="Purge above this fraction of deleted rows"),
    _arg("--vacuum", choices=("lite", "full", "none"), default="lite", help="Like vacuum --mode (default: lite)"),
    _arg("--max-bytes", type=_whole_number, metavar="N", help="The maximum to rewrite in all tables together"),
    _arg("--max-minutes", type=float, metavar="M", help="Start no step after this many minutes"),
    _arg("-n", "--dry-run", action="store_true", help="Do nothing, only list the due steps"),
    _YES,
)
_TRACES = (
    _arg("--column", required=True, metavar="NAME", help="The column of the values, or a member: address.mail"),
    _arg("--values", required=True, metavar="FILE", help="A file with one value on each line; -: standard input"),
)
_CHECK_REPORT = (
    _arg("reports", nargs="+", metavar="REPORT", help="JSON documents: paths, URIs, or with --conn-id names"),
    _arg("--public-key", metavar="KEY", help="The controller's public key: 64 hexadecimal digits"),
    _arg("--signing-conn-id", metavar="ID", help="Instead of --public-key: the connection with the private key"),
)
_ROLLBACK = (
    _arg("others", nargs="*", metavar="TABLE", help="More tables or folders"),
    _arg("--run-id", required=True, metavar="RUN", help="The run whose commits are undone"),
    _arg("--dag-id", required=True, metavar="DAG", help="The DAG of the run"),
    _arg("-n", "--dry-run", action="store_true", help="Change nothing, only print the plan"),
    _YES,
)


def get_cli_commands() -> list[GroupCommand]:
    """Return the commands that Airflow adds to its own (`cli` in the provider's description)."""
    restore = (
        _VERSION,
        _TIMESTAMP,
        _arg("--ignore-missing", action="store_true", help="Restore the remaining files if some are missing"),
        _YES,
    )
    convert = (
        _arg("--partition-schema", metavar="COLUMNS", help='The columns in folder names: "day DATE, shop STRING"'),
        _arg("-n", "--dry-run", action="store_true", help="Commit nothing, only check the folder"),
        _YES,
    )
    clone = (
        _arg("--from", dest="source", required=True, metavar="SOURCE", help="The table to clone, in the form of TABLE"),
        _VERSION,
        _TIMESTAMP,
        _arg("--shallow", action="store_true", help="Copy no data: the clone reads the files of SOURCE"),
        _arg("--replace", action="store_true", help="Replace the rows of an existing TABLE"),
        _each("--set-property", "set_properties", _PAIR, "A property of the clone, instead of the one of SOURCE"),
        _YES,
    )
    history = (
        _limit(20),
        _arg("--check", action="store_true", help="Also report problems of the table, with advice"),
        _arg("--wide", action="store_true", help="Shorten nothing, however narrow the terminal is"),
        _arg("--met", action="store_true", help="Show which commits each one met and why they did not stop it"),
    )
    return [
        GroupCommand(
            name="txlog",
            help="Inspect and maintain Delta tables",
            subcommands=(
                _command("history", "List the commits in the log, newest first", *history),
                _command("files", "List the live data files", *_PREDICATE, _VERSION, _TIMESTAMP, _limit(100)),
                _command("snapshot", "Show one version: schema, partitioning, properties, size", _VERSION, _TIMESTAMP),
                _command("vacuum", "Delete data files that no kept version needs", *_VACUUM),
                _command("checkpoint", "Write a checkpoint of the latest version, and clean the log"),
                _command("alter", "Change properties, features, columns, constraints or clustering", *_ALTER),
                _command("upkeep", "Run the due maintenance of a table, or of all tables of a folder", *_UPKEEP),
                _command("convert", "Convert a folder of Parquet files into a table, without moving data", *convert),
                _command("clone", "Create or update a table as a clone of another one, shallow or deep", *clone),
                _command("staged", "List the staged changes that wait for publication"),
                _command(
                    "traces", "Find objects that still contain a value, also in deleted rows and the log", *_TRACES
                ),
                _command("restore", "Restore an earlier version", *restore),
                _incremental(),
                _ledger(),
                _erasure(),
                _catalog(),
                _command("rollback", "Undo the commits of a run, on all tables or on none", *_ROLLBACK),
            ),
        )
    ]


def _ledger() -> GroupCommand:
    key = _arg("--key-conn-id", required=True, metavar="ID", help="The connection whose password is the newest key")
    return GroupCommand(
        name="ledger",
        help="The ledger of erased subjects, which no restore, clone or refresh brings back",
        subcommands=(
            _command("create", "Create an empty ledger, unless it exists", of="ledger"),
            _command("show", "The erasures in a ledger: requests, tables, columns and keys", of="ledger"),
            _command("check", "Find rows of erased subjects in a table, by the ledger of --conn-id", of="ledger"),
            _command("rotate", "Digest all subjects once more, by the newest key", key, _YES, of="ledger"),
        ),
    )


def _incremental() -> GroupCommand:
    reset = (
        _arg("--consumer", required=True, metavar="NAME", help="The consumer whose watermark is set"),
        _arg("--to-version", type=int, required=True, metavar="N", help="The last processed version; -1: none"),
        _arg("--source", metavar="SOURCE", help="The source, in the form of TABLE (default: the watermark's)"),
        _YES,
    )
    return GroupCommand(
        name="incremental",
        help="The watermarks of incremental tasks: the last processed versions of their sources",
        subcommands=(
            _command("show", "The consumers of a table and their watermarks", of="incremental"),
            _command("reset", "Set the watermark of a consumer; no row changes", *reset, of="incremental"),
        ),
    )


def _catalog() -> GroupCommand:
    name = _arg("table", metavar="TABLE", help="The name of the table in the catalog, such as sales.orders")
    location = _arg("--location", metavar="URI", help="The place of a table that the catalog does not have yet")
    given = (name, _CONN_ID, _CATALOG, _JSON)
    return GroupCommand(
        name="catalog",
        help="The entries of tables in a catalog",
        subcommands=(
            ActionCommand(
                name="sync",
                help="Register a table, or write its columns and properties into its entry",
                func=_run("catalog sync"),
                args=(*given, location),
            ),
            ActionCommand(
                name="check",
                help="Compare the entry of a table with the table",
                func=_run("catalog check"),
                args=given,
            ),
        ),
    )


def _erasure() -> GroupCommand:
    digest = (
        _arg("report", metavar="REPORT", help="The JSON document: a path, a URI, or with --conn-id a name"),
        _arg("--key-conn-id", required=True, metavar="ID", help="The connection whose password is the newest key"),
        _arg("--type", choices=("text", "number", "date"), default="text", help="The type of the values"),
    )
    signer = _arg("--signing-conn-id", required=True, metavar="ID", help="The connection with the private key")
    return GroupCommand(
        name="erasure",
        help="Reports on the erasure of personal data",
        subcommands=(
            ActionCommand(
                name="verify",
                help="Check that reports are signed and unchanged, and that every object in them passes",
                func=_run("erasure verify"),
                args=(*_CHECK_REPORT, _CONN_ID, _JSON),
            ),
            ActionCommand(
                name="digest",
                help="Check that people, given one a line on standard input, are the subjects of a report",
                func=_run("erasure digest"),
                args=(*digest, _CONN_ID, _JSON),
            ),
            ActionCommand(
                name="public-key",
                help="Print the public key of a signer, with which anybody checks its reports",
                func=_run("erasure public-key"),
                args=(signer, _CONN_ID, _JSON),
            ),
        ),
    )


def _command(name: str, help: str, *args: Arg, of: str = "") -> ActionCommand:
    return ActionCommand(name=name, help=help, func=_run(f"{of} {name}".lstrip()), args=(*_COMMON, *args))


def _run(name: str) -> Callable[..., None]:
    return partial(_lazily, name)


def _lazily(name: str, args: Namespace) -> None:
    from airflow_txlog.process.arrow_memory import spare_memory

    spare_memory()
    # It imports Arrow.
    from airflow_txlog.cli.commands import run

    run(name, args)
