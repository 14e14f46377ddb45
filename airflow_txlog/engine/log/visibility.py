"""Which paths in a table's folder are the table's own, and which are what other tools keep beside its data."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_txlog.datafiles.partitioning import hive_directory


class Visibility:
    """Which paths under the root are the table's own: hidden is what other tools keep beside the data, the log first.

    `_change_data` and `_delta_index` are the table's, and a directory of a partition column that begins with "_".
    """

    def __init__(self, partition_columns: Iterable[str], *, has_iceberg: bool = False) -> None:
        """`has_iceberg`: other engines keep Iceberg's metadata of the table in the folder `metadata`."""
        # The directory of a partition has the column's name as it is, or as Hive escapes it.
        columns = list(partition_columns)
        escaped = (hive_directory([column], ["x"]).removesuffix("x") for column in columns)
        self._has_iceberg = has_iceberg
        self._shown = ("_change_data", "_delta_index", *(f"{column}=" for column in columns), *escaped)

    def is_visible(self, path: str) -> bool:
        if self._has_iceberg and path.partition("/")[0] == "metadata":
            return False
        # Nearly every path, and there may be millions.
        if "/_" not in path and "/." not in path and not path.startswith(("_", ".")):
            return True
        return not any(part.startswith(("_", ".")) and not part.startswith(self._shown) for part in path.split("/"))
