"""Data files whose columns have a former, narrower type, found in their footers: a reader must widen their values.

Source: protocol, "Type Widening"; delta-spark, TypeWidening.numFilesRequiringRewrite.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from airflow_txlog.datafiles.parquet.physical import FileFields, inner_fields
from airflow_txlog.datafiles.parquet.reading import DataFile, open_data_file
from airflow_txlog.datafiles.tasks.small_files import KnownForms
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.log.paths import canonical_path
from airflow_txlog.errors import UnsupportedFeature
from airflow_txlog.jobs.context import LogContext
from airflow_txlog.storage.base import side_by_side


def check_present_types(context: LogContext, snapshot: Snapshot) -> None:
    """Raise UnsupportedFeature if a live file holds a column in another type than the table has now."""
    store, schema = context.store, snapshot.schema
    files = snapshot.files().select(["path", "size"]).to_pylist()
    forms: KnownForms[bool] = KnownForms(reads_ends=True)

    def is_former(given: dict[str, object]) -> bool:
        path = canonical_path(str(given["path"]), snapshot.uri)
        file = DataFile(store=store, path=path, size_bytes=int(str(given["size"])))
        known = forms.find(file)
        if known is not None:
            return known.facts
        with open_data_file(file) as parquet:
            found = _are_former(parquet.schema_arrow, schema)
            if forms.wants_more:
                forms.learn(parquet, found)
            return found

    answers = side_by_side(is_former, files) if store.is_remote else map(is_former, files)
    count = sum(answers)
    if count:
        raise UnsupportedFeature(
            f'{snapshot.uri}: the feature "typeWidening" is in use: {count} of {len(files)} files hold former types of '
            "their columns. Nothing was changed. Rewrite the files (DeltaOptimizeOperator with zorder_by; for a "
            "clustered table, alter it by cluster_by=[] first), and drop it then.",
            table=snapshot.uri,
            feature="typeWidening",
            needed_to="drop",
        )


def _are_former(held: Sequence[pa.Field], wanted: Iterable[pa.Field]) -> bool:
    """Return whether a field of a file has another type than the table's, at any depth."""
    fields, members = FileFields(held), list(held)
    found = ((fields.find(field), field) for field in wanted)
    return any(_is_former(members[at].type, field.type) for at, field in found if at is not None)


def _is_former(held: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_dictionary(held):
        held = held.value_type
    if pa.types.is_struct(wanted) and pa.types.is_struct(held):
        return _are_former(list(held), list(wanted))
    if pa.types.is_nested(wanted) and pa.types.is_nested(held):
        pairs = zip(inner_fields(held), inner_fields(wanted), strict=False)
        return any(_is_former(one.type, other.type) for one, other in pairs)
    for is_kind in (pa.types.is_integer, pa.types.is_floating):
        if is_kind(wanted):
            return not is_kind(held) or bool(held.bit_width < wanted.bit_width)
    if pa.types.is_decimal(wanted):
        return not pa.types.is_decimal(held) or (held.precision, held.scale) != (wanted.precision, wanted.scale)
    return bool(pa.types.is_timestamp(wanted) and not pa.types.is_timestamp(held))
