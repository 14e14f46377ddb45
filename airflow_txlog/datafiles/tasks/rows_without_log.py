"""What Spark's Python workers run to read files that no log names: a job's own, and those of a source.

They are scans as those of a table's files are, and differ in what a file that cannot be read amounts to: nothing is
wrong with a table, and no engine could repair one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from airflow_txlog.datafiles.tasks.plans import PlannedFile
from airflow_txlog.datafiles.tasks.scan_and_write import ScanTask
from airflow_txlog.errors import CorruptDataFile, JobError


@dataclass(frozen=True, kw_only=True)
class MaterializedTask(ScanTask):
    """A scan of the files that this job has written its source's rows to."""

    def rows_of(self, planned: PlannedFile) -> Iterator[pa.RecordBatch]:
        """The rows of one file. Raises JobError, retryable, for one that is not what the job has written."""
        try:
            yield from super().rows_of(planned)
        except CorruptDataFile as error:
            found = "is gone" if error.is_missing else "is not what the job has written"
            raise JobError(
                f"The file {planned.file.name}, in which this job keeps its source's rows, {found}. Nothing was "
                "committed. Run the job again; if this comes back, find out what deletes or changes files in the "
                "table's folder.",
                retryable=True,
            ) from error
