"""Which sidecars of V2 checkpoints no checkpoint names any more.

Several checkpoints may share a sidecar, and a checkpoint's sidecars are written before the checkpoint that names them.
The invariant: in doubt it stays. One checkpoint whose sidecars cannot be told keeps all of them.
Source: protocol, "Metadata Cleanup" and "Sidecar File Information".
"""

from __future__ import annotations

from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_txlog.engine.log.names import LOG_DIRECTORY, LogKind, parse_name
from airflow_txlog.engine.store.base import FileInfo, Store

SIDECARS = f"{LOG_DIRECTORY}/_sidecars"


class _Sidecar(msgspec.Struct, frozen=True):
    path: str


class _Line(msgspec.Struct, frozen=True):
    sidecar: _Sidecar | None = None


_decoder = msgspec.json.Decoder(_Line)


def unreferenced_sidecars(store: Store, before_ms: int) -> list[FileInfo]:
    """The sidecars written before the moment that no checkpoint of the log names, whole or half written.

    Raises what reading a checkpoint raises: then nobody knows what it names, and nothing may go.
    """
    # Before the checkpoints: one that is published while we look then still shows what it names.
    sidecars = [info for info in store.list(SIDECARS) if info.modified_ms < before_ms]
    if not sidecars:
        return []
    named: set[str] = set()
    for info in store.list(LOG_DIRECTORY):
        name = parse_name(info.path)
        if name is None or not info.size_bytes:
            continue
        if name.kind in (LogKind.CLASSIC_CHECKPOINT, LogKind.V2_CHECKPOINT):
            named.update(_names(store, info.path))
    return [info for info in sidecars if info.path.rsplit("/", 1)[-1] not in named]


def _names(store: Store, path: str) -> set[str]:
    """Base names of the sidecars that a checkpoint names, as written and decoded; empty where it has none."""
    if path.endswith(".json"):
        lines = (_decoder.decode(line) for line in store.read(path).splitlines() if line.strip())
        found = [line.sidecar.path for line in lines if line.sidecar is not None]
    else:
        with store.open_input(path) as source:
            file = pq.ParquetFile(source)
            if "sidecar" not in file.schema_arrow.names:
                return set()
            column = file.read(columns=["sidecar.path"]).column("sidecar").combine_chunks()
            if not pa.types.is_struct(column.type) or column.type.get_field_index("path") < 0:
                raise pa.ArrowInvalid(f"{path} has a column sidecar without a path")
            found = [each["path"] for each in column.drop_null().to_pylist()]
    bases = {each.rsplit("/", 1)[-1] for each in found}
    return bases | {unquote(each) for each in bases}
