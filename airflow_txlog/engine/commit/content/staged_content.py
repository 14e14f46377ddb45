"""The content of a transaction before its commit, as data that another process can take up.

The actions are those of the log. What the transaction read decides its conflicts: predicates with the values of their
constants, and paths. It is written apart, because a constant may be a person's, and a reader of the staged rows needs
none of it. The invariant: a transaction that takes the content commits, and conflicts, as the first one would have.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from airflow_txlog.engine.commit.content.attempt import ReadSet
from airflow_txlog.engine.log.actions import Add, Cdc, DomainMetadata, Metadata, Protocol, Remove
from airflow_txlog.engine.table.predicate import Predicate
from airflow_txlog.sql.expression import Call, Column, Expression, Literal, Opaque, Values

_Node: TypeAlias = list[Any]


class StagedContent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The changes of a transaction, without row ids and timestamps, which its commit assigns."""

    adds: list[Add]
    removes: list[Remove]
    changes: list[Cdc]
    metadata: Metadata | None
    protocol: Protocol | None
    domains: list[DomainMetadata]
    keeps_row_ids: bool


class _Predicate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sql: str
    tree: _Node
    columns: list[str] | None


class _Reads(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `ReadSet`. Application ids are not in it: the transaction that commits reads its own."""

    predicates: list[_Predicate]
    matched: list[str]
    unmatched: dict[str, int | None]
    whole_table: bool


def encode_reads(reads: ReadSet) -> bytes:
    """Return what a transaction read, as bytes."""
    plain = _Reads(
        predicates=[
            _Predicate(
                sql=each.sql,
                tree=_encoded(each.tree),
                columns=None if each.columns is None else sorted(each.columns),
            )
            for each in reads.predicates
        ],
        matched=sorted(reads.paths - reads.unmatched.keys()),
        unmatched=dict(reads.unmatched),
        whole_table=reads.whole_table,
    )
    return msgspec.msgpack.encode(plain)


def decode_reads(data: bytes) -> ReadSet:
    """Return what `encode_reads` was given, without application ids. Raises msgspec.MsgspecError or ValueError."""
    plain = msgspec.msgpack.decode(data, type=_Reads)
    return ReadSet(
        predicates=tuple(
            Predicate(each.sql, _decoded(each.tree), None if each.columns is None else frozenset(each.columns))
            for each in plain.predicates
        ),
        paths=frozenset(plain.matched) | plain.unmatched.keys(),
        whole_table=plain.whole_table,
        unmatched=plain.unmatched,
    )


def _encoded(node: Expression) -> _Node:
    match node:
        case Call(operator, operands):
            return ["call", operator, [_encoded(each) for each in operands]]
        case Column(name):
            return ["column", name]
        case Literal(kind, text):
            return ["literal", kind, text]
        case Opaque(what):
            return ["opaque", what]
        case Values(array):
            sink = pa.BufferOutputStream()
            batch = pa.RecordBatch.from_arrays([array], names=["values"])
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            return ["values", sink.getvalue().to_pybytes()]
    raise TypeError(f"no node of a bound predicate: {node!r}")


def _decoded(node: _Node) -> Expression:
    match node:
        case ["call", str(operator), list(operands)]:
            return Call(operator, tuple(_decoded(each) for each in operands))
        case ["column", str(name)]:
            return Column(name)
        case ["literal", str(kind), str(text)]:
            return Literal(kind, text)
        case ["opaque", str(what)]:
            return Opaque(what)
        case ["values", bytes(data)]:
            with pa.ipc.open_stream(data) as reader:
                return Values(reader.read_next_batch().column(0))
    raise ValueError("no node of a staged predicate")
