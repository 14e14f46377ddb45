"""The names of table properties: those that Delta or this package knows, as they are spelled.

The invariant: engines look a property up by its exact name, so one that Delta does not know, or in another case, would
silently do nothing, as would one without its prefix. Source: delta-spark 4.4, DeltaConfigs.validateConfigurations.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_txlog.engine.table.schema.column_mapping import MAX_ID_PROPERTY
from airflow_txlog.engine.table.schema.features import FEATURE_PREFIX
from airflow_txlog.engine.table.schema.rules import CONSTRAINT_PREFIX
from airflow_txlog.errors import InvalidProperty
from airflow_txlog.errors.names import did_you_mean

PREFIX = "delta."
OWN_PREFIX = "txlog."


def _words(text: str) -> list[str]:
    return text.split()


_SETTABLE = _words(
    "appendOnly autoOptimize autoOptimize.autoCompact autoOptimize.optimizeWrite castIcebergTimeType "
    "checkpoint.partSize checkpoint.writeStatsAsJson checkpoint.writeStatsAsStruct checkpointInterval "
    "checkpointPolicy checkpointRetentionDuration columnMapping.mode compatibility.symlinkFormatManifest.enabled "
    "dataSkippingNumIndexedCols dataSkippingStatsColumns dataSkippingStringPrefixLength "
    "deletedFileRetentionDuration dropFeatureTruncateHistory.retentionDuration enableChangeDataFeed "
    "enableDeletionVectors enableExpiredLogCleanup enableFullRetentionRollback enableIcebergCompatV1 "
    "enableIcebergCompatV2 enableIcebergCompatV3 enableInCommitTimestamps enableRowTracking enableTypeWidening "
    "enableVariantShredding ignoreIcebergBucketPartition ignoreProtocolDefaults isolationLevel "
    "logRetentionDuration parquet.compression.codec parquet.format.version randomizeFilePrefixes "
    "randomPrefixLength sampleRetentionDuration setTransactionRetentionDuration targetFileSize "
    "tuneFileSizesForRewrites universalFormat.enabledFormats universalFormat.iceberg.atomicConversion.supported "
    "writePartitionColumnsToParquet"
)

# The properties that a table keeps by itself, and the argument that changes them.
KEPT_BY_TABLE: dict[str, str] = {
    MAX_ID_PROPERTY: "it grows with the columns",
    "delta.inCommitTimestampEnablementVersion": "set delta.enableInCommitTimestamps",
    "delta.inCommitTimestampEnablementTimestamp": "set delta.enableInCommitTimestamps",
    "delta.rowTracking.materializedRowIdColumnName": "set delta.enableRowTracking",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "set delta.enableRowTracking",
    "delta.rowTrackingSuspended": 'write drop_features=["rowTracking"]',
    "delta.requireCheckpointProtectionBeforeVersion": "the engine that dropped a feature needs it",
    "delta.minReaderVersion": "write add_features",
    "delta.minWriterVersion": "write add_features",
    "txlog.sharedFolder": "it protects files that were there before the table",
}
# Facts about one table's log: a new table that gets the properties of another one begins without them.
_OF_ONE_LOG = {
    "delta.minReaderVersion",
    "delta.minWriterVersion",
    "delta.inCommitTimestampEnablementVersion",
    "delta.inCommitTimestampEnablementTimestamp",
    "delta.requireCheckpointProtectionBeforeVersion",
}
_OURS = ("txlog.trustStatistics",)
NAMES = {name.lower(): name for name in [*(PREFIX + name for name in _SETTABLE), *KEPT_BY_TABLE, *_OURS]}
# Databricks has aliases for this one.
NAMES["delta.enablechangedatacapture"] = "delta.enableChangeDataFeed"


_WITHOUT_PREFIX = {lower.partition(".")[2]: name for lower, name in NAMES.items()}


def check_has_prefix(name: str, table: str) -> None:
    """Raise InvalidProperty for a name of Delta's or ours without its prefix; any other name is the user's own."""
    known = _WITHOUT_PREFIX.get(name.lower())
    if known is not None:
        raise InvalidProperty(
            f"{table}: the property {name} would do nothing: its name is {known}. Nothing was changed. Write {known}.",
            table=table,
            name=name,
        )


def spelled(name: str, table: str) -> str:
    """Return the property's name as Delta spells it. Raises InvalidProperty, with the nearest one, if it is unknown."""
    known = NAMES.get(name.lower())
    if known is None:
        raise InvalidProperty(
            f"{table}: the property {name} is not known.{did_you_mean(name, list(NAMES.values()))} Check its spelling. "
            "Nothing was changed.",
            table=table,
            name=name,
        )
    return known


def of_new_table(properties: Mapping[str, str], table: str) -> dict[str, str]:
    """Return the properties of a new table under their names as Delta spells them.

    Names without a prefix of Delta's or ours, features and constraints stay as they are. The facts about one log are
    left out: the protocol follows from the features in use. Raises InvalidProperty for a name that is unknown or given
    twice.
    """
    found: dict[str, str] = {}
    for name, value in properties.items():
        lower, known = name.lower(), name
        if lower.startswith(FEATURE_PREFIX):
            known = FEATURE_PREFIX + name[len(FEATURE_PREFIX) :]
        elif lower.startswith((PREFIX, OWN_PREFIX)) and not lower.startswith(CONSTRAINT_PREFIX):
            known = spelled(name, table)
        else:
            check_has_prefix(name, table)
        if known in found:
            raise InvalidProperty(
                f"{table}: the property {known} is given twice: once is enough. Nothing was changed.",
                table=table,
                name=known,
            )
        found[known] = value
    return {name: value for name, value in found.items() if name not in _OF_ONE_LOG}
