"""The datasets of a task with their facets for OpenLineage's listener, from the operation and its result alone.

Imported only for that listener, since it needs Airflow's provider for OpenLineage. The invariant: a facet holds names,
counts, versions and the author's SQL, and never the value of a parameter or a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    DatasetFacet,
    InputDatasetFacet,
    JobFacet,
    OutputDatasetFacet,
    RunFacet,
    column_lineage_dataset,
    data_quality_assertions_dataset,
    dataset_version_dataset,
    datasource_dataset,
    input_statistics_input_dataset,
    lifecycle_state_change_dataset,
    output_statistics_output_dataset,
    schema_dataset,
    sql_job,
    storage_dataset,
    symlinks_dataset,
)

from airflow_txlog.contract.job import JobResult, Lineage
from airflow_txlog.contract.operations import (
    Clone,
    Convert,
    Delete,
    LimitedOperation,
    Operation,
    QuerySource,
    SourceOperation,
    Truncate,
    Update,
    Write,
)
from airflow_txlog.contract.wording import expectation_counts
from airflow_txlog.lineage.assignments import copied_columns
from airflow_txlog.lineage.datasets import DatasetName, dataset_name, datasets_read, sizes_read

# A merge counts the rows that it copies among those of its output.
_ROWS = ("numOutputRows", "numUpdatedRows", "numCopiedRows")
_BYTES = ("numOutputBytes", "numTargetBytesAdded", "numAddedBytes")
_FILES = ("numFiles", "numTargetFilesAdded", "numAddedFiles")


def lineage_of(
    operation: Operation | None,
    table_uri: str | None,
    result: JobResult | None,
    failed: Mapping[str, Mapping[str, int]] | None = None,
    symlinks: Mapping[str, tuple[str, str]] | None = None,
) -> OperatorLineage[Any, Any]:
    """Return the lineage of one try of a task. None: not known, or no result yet.

    `failed`: the counts of the expectations that have failed the try. `symlinks`: the catalog's names, by the
    places of tables.
    """
    operation = None if operation is None else operation.acting
    lineage = (None if result is None else result.details.lineage) or Lineage()
    read = {} if operation is None else datasets_read(operation, lineage.versions)
    sizes, rows = sizes_read(operation, lineage.sizes), _rows_read(operation, result, len(read))
    known = {dataset_name(uri): DatasetName(*name) for uri, name in (symlinks or {}).items()}
    outputs = []
    if table_uri is not None:
        name = dataset_name(table_uri)
        facets, output_facets = _known(name) | _symlink(name, known), {}
        if operation is not None and result is not None:
            facets |= _of_table(operation, table_uri, result, lineage)
            output_facets = _statistics(result)
        outputs.append(OutputDataset(*name, facets=facets, outputFacets=output_facets))
    if isinstance(operation, LimitedOperation) and operation.appends_to is not None:
        name = dataset_name(operation.appends_to)
        outputs.append(OutputDataset(*name, facets=_known(name)))
    inputs = [
        InputDataset(
            *name, facets=_version(version) | _symlink(name, known), inputFacets=_size_read(sizes.get(name, {}), rows)
        )
        for name, version in read.items()
    ]
    judged = failed or (expectation_counts(result.metrics) if result is not None else {})
    if table_uri is not None and judged:
        # OpenLineage has assertions on inputs alone.
        inputs.append(InputDataset(*dataset_name(table_uri), inputFacets=_assertions(judged)))
    return OperatorLineage(
        inputs=inputs,
        outputs=outputs,
        run_facets={} if result is None else {"txlog": _run_facet(result)},
        job_facets={} if operation is None or table_uri is None else _sql(operation, dataset_name(table_uri)),
    )


def _symlink(name: DatasetName, symlinks: Mapping[DatasetName, DatasetName]) -> dict[str, DatasetFacet]:
    if name not in symlinks:
        return {}
    namespace, table = symlinks[name]
    identifier = symlinks_dataset.Identifier(namespace=namespace, name=table, type="TABLE")
    return {"symlinks": symlinks_dataset.SymlinksDatasetFacet(identifiers=[identifier])}


def _known(name: DatasetName) -> dict[str, DatasetFacet]:
    return {
        "storage": storage_dataset.StorageDatasetFacet(storageLayer="delta", fileFormat="parquet"),
        "dataSource": datasource_dataset.DatasourceDatasetFacet(name=name.namespace, uri=_path(name)),
    }


def _of_table(operation: Operation, table_uri: str, result: JobResult, lineage: Lineage) -> dict[str, DatasetFacet]:
    facets = _version(None if result.version is None else str(result.version))
    if lineage.columns:
        listed = [
            schema_dataset.SchemaDatasetFacetFields(name=name, type=kind, ordinal_position=number)
            for number, (name, kind) in enumerate(lineage.columns.items(), 1)
        ]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields=listed)
    if result.status != "committed":
        return facets
    change = _lifecycle(operation, result)
    if change is not None:
        named = lifecycle_state_change_dataset.LifecycleStateChange(change)
        facets["lifecycleStateChange"] = lifecycle_state_change_dataset.LifecycleStateChangeDatasetFacet(named)
    copied = copied_columns(operation, table_uri, lineage)
    if copied:
        fields = {column: _copied(origins) for column, origins in copied.items()}
        facets["columnLineage"] = column_lineage_dataset.ColumnLineageDatasetFacet(fields=fields)
    return facets


def _version(version: str | None) -> dict[str, DatasetFacet]:
    if version is None:
        return {}
    return {"version": dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=version)}


def _rows_read(operation: Operation | None, result: JobResult | None, num_inputs: int) -> int | None:
    """Return the rows of the only input if all were the operation's source; only Spark knows those of a query."""
    match operation:
        case SourceOperation(source=QuerySource()):
            return None
        case Write():
            counted = "numOutputRows"
        case SourceOperation():
            counted = "numSourceRows"
        case _:
            return None
    if result is None or result.status != "committed" or num_inputs != 1:
        return None
    return result.metrics.get(counted)


def _size_read(size: Mapping[str, int], rows: int | None) -> dict[str, InputDatasetFacet]:
    """Return the size of an input, with the job's count of rows if the input has none."""
    found = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
        rowCount=size.get("rows", rows), size=size.get("bytes"), fileCount=size.get("files")
    )
    is_known = any(number is not None for number in (found.rowCount, found.size, found.fileCount))
    return {"inputStatistics": found} if is_known else {}


def _assertions(judged: Mapping[str, Mapping[str, int]]) -> dict[str, InputDatasetFacet]:
    found = [
        data_quality_assertions_dataset.Assertion(assertion=name, success=counts["failed"] == 0)
        for name, counts in judged.items()
    ]
    return {"dataQualityAssertions": data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(found)}


def _lifecycle(operation: Operation, result: JobResult) -> str | None:
    if isinstance(operation, Truncate):
        return "TRUNCATE"
    if isinstance(operation, Convert):
        return "CREATE"
    if not isinstance(operation, Write | Clone):
        return None
    if result.read_version is None:
        return "CREATE"
    if isinstance(operation, Clone):
        return "OVERWRITE"
    parts = (operation.replace_where, operation.replace_using, operation.partition_predicate)
    is_whole = all(part is None for part in parts)
    return "OVERWRITE" if operation.mode == "overwrite" and is_whole else None


def _copied(origins: Iterable[tuple[str, str]]) -> column_lineage_dataset.Fields:
    unchanged = column_lineage_dataset.Transformation(type="DIRECT", subtype="IDENTITY")
    return column_lineage_dataset.Fields(
        inputFields=[
            column_lineage_dataset.InputField(*dataset_name(uri), field=column, transformations=[unchanged])
            for uri, column in sorted(origins)
        ]
    )


def _statistics(result: JobResult) -> dict[str, OutputDatasetFacet]:
    """Return the rows, copied ones included, the bytes and the files of the commit; nothing if it wrote no files."""
    metrics = result.metrics
    size_bytes = next((metrics[name] for name in _BYTES if name in metrics), None)
    if result.status != "committed" or size_bytes is None:
        return {}
    rows = [metrics[name] for name in _ROWS if name in metrics]
    return {
        "outputStatistics": output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=sum(rows) if rows else None,
            size=size_bytes,
            fileCount=next((metrics[name] for name in _FILES if name in metrics), None),
        )
    }


def _run_facet(result: JobResult) -> Any:
    return RunFacet().with_additional_properties(
        operation=result.operation,
        status=result.status,
        readVersion=result.read_version,
        version=result.version,
        metrics=dict(result.metrics),
    )


def _sql(operation: Operation, table: DatasetName) -> dict[str, JobFacet]:
    """Return the statement of the operation, or of its source, as its author wrote it: `:name` for a value."""
    where = " AND ".join(
        f"({text})"
        for text in (getattr(operation, "partition_predicate", None), getattr(operation, "predicate", None))
        if text is not None
    )
    match operation:
        case SourceOperation(source=QuerySource(sql=sql)):
            query = sql
        case Delete(keys=None):
            query = f"DELETE FROM delta.`{_path(table)}`{where and f' WHERE {where}'}"
        case Update():
            assigned = ", ".join(f"{column} = {text}" for column, text in operation.set.items())
            query = f"UPDATE delta.`{_path(table)}` AS {operation.target_alias} SET {assigned}"
            query += where and f" WHERE {where}"
        case _:
            return {}
    return {"sql": sql_job.SQLJobFacet(query=query, dialect="spark")}


def _path(name: DatasetName) -> str:
    return name.name if name.namespace == "file" else f"{name.namespace}/{name.name.lstrip('/')}"
