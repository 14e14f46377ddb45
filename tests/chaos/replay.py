"""The replay of a source's commits by plain Spark, and the change rows that an increment has brought of them.

The journal has what each commit was meant to do: the rows by their keys, or the version that it restored. Spark makes
the rows of every version of it, without this package, without Delta, and without the source's files. The change rows
are as delta-rs reads them. Each version of the source must have, in sum, exactly the change rows that it made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIELDS = "version long, id long, is_deleted boolean, name string, extra string"


@dataclass
class Journal:
    """What the commits of one table were meant to do, by their versions."""

    rows: list[tuple[int, int, bool, str | None, str | None]] = field(default_factory=list)
    restores: dict[int, int] = field(default_factory=dict)
    columns: dict[str, int] = field(default_factory=dict)
    """The versions that added columns."""
    last: int = 0

    def put(self, version: int, key: int, name: str, extra: str | None = None) -> None:
        """Note a row that is new, or a new name of one. `extra` is a column in which it has the value 7."""
        self.rows.append((version, key, False, name, extra))

    def delete(self, version: int, key: int) -> None:
        self.rows.append((version, key, True, None, None))

    def effective(self) -> list[tuple[int, list[int]]]:
        """Return each version with the versions whose work it has."""
        found: list[tuple[int, list[int]]] = [(0, [0])]
        for version in range(1, self.last + 1):
            restored = self.restores.get(version)
            found.append((version, [*found[-1][1], version] if restored is None else found[restored][1]))
        return found

    def lasting_columns(self) -> list[str]:
        """Return the columns that no restore has dropped.

        A range is read with the columns of its last version, so the others are not compared.
        """
        versions = self.effective()
        return sorted(
            name for name, added in self.columns.items() if all(added in work for _, work in versions[added:])
        )


@dataclass(frozen=True, kw_only=True)
class Compared:
    """How many versions were compared, those with more changes than they made, and those with fewer, with the rows."""

    versions: int
    doubled: dict[int, str]
    skipped: dict[int, str]
    is_whole: bool
    """Whether all change rows together are the rows of the last version."""


def compare(spark: SparkSession, journal: Journal, changes: pa.Table, last: int, folder: Path) -> Compared:
    """Compare the change rows of versions up to `last` with the replay. `folder` is for files that Spark reads."""
    pq.write_table(changes, folder)
    columns = journal.lasting_columns()
    found = _signed(spark.read.parquet(str(folder)), columns)
    replayed = rows_of_versions(spark, journal, columns).cache()
    replayed.createOrReplaceTempView("replayed")
    found.createOrReplaceTempView("found")
    first = spark.sql("SELECT coalesce(min(version), 0) FROM found").first()[0]
    # The first of them are all rows of one version.
    expected = spark.sql(
        f"""SELECT version, row, sum(sign) AS number FROM (
            SELECT version, row, 1 AS sign FROM replayed WHERE version BETWEEN {first} AND {last}
            UNION ALL
            SELECT version + 1, row, -1 FROM replayed WHERE version BETWEEN {first} AND {last} - 1
        ) GROUP BY version, row HAVING sum(sign) <> 0"""
    )
    expected.createOrReplaceTempView("expected")
    wrong = spark.sql(
        """SELECT version, max(abs(coalesce(f.number, 0)) > abs(coalesce(e.number, 0))) AS is_more,
            to_json(collect_list(struct(row, e.number AS wanted, f.number AS found))) AS rows
        FROM (SELECT version, row, sum(sign) AS number FROM found GROUP BY version, row HAVING sum(sign) <> 0) f
        FULL JOIN expected e USING (version, row)
        WHERE coalesce(f.number, 0) <> coalesce(e.number, 0) GROUP BY version ORDER BY version"""
    ).collect()
    left = spark.sql(
        f"""SELECT row, sum(sign) FROM (
            SELECT row, sign FROM found UNION ALL SELECT row, -1 FROM replayed WHERE version = {last}
        ) GROUP BY row HAVING sum(sign) <> 0"""
    )
    return Compared(
        versions=last - first + 1,
        doubled={version: rows for version, is_more, rows in wrong if is_more},
        skipped={version: rows for version, is_more, rows in wrong if not is_more},
        is_whole=left.isEmpty(),
    )


def rows_of_versions(spark: SparkSession, journal: Journal, columns: list[str]) -> DataFrame:
    """Return the rows of every version, as JSON texts."""
    versions = spark.createDataFrame(journal.effective(), "version long, effective array<long>")
    versions.createOrReplaceTempView("versions")
    spark.createDataFrame(journal.rows, FIELDS).createOrReplaceTempView("journal")
    extra = "".join(f", max(IF(extra = '{name}', 7L, NULL)) AS {name}" for name in columns)
    return spark.sql(
        f"""SELECT version, {_row(columns)} AS row FROM (
            SELECT v.version, id, max_by(name, j.version) AS name, max_by(is_deleted, j.version) AS is_deleted{extra}
            FROM (SELECT version, explode(effective) AS at FROM versions) v JOIN journal j ON j.version = v.at
            GROUP BY v.version, id
        ) WHERE NOT is_deleted"""
    )


def _signed(changes: DataFrame, columns: list[str]) -> DataFrame:
    """Return the change rows: version, row and +1 or -1."""
    present = {*changes.columns}
    missing = [f"CAST(NULL AS BIGINT) AS {name}" for name in columns if name not in present]
    return changes.selectExpr("*", *missing).selectExpr(
        "_commit_version AS version",
        f"{_row(columns)} AS row",
        "CASE WHEN _change_type IN ('insert', 'update_postimage') THEN 1"
        " WHEN _change_type IN ('delete', 'update_preimage') THEN -1 END AS sign",
    )


def _row(columns: list[str]) -> str:
    # Without values that are null, so that a new column changes no row.
    return f"to_json(struct({', '.join(['id', 'name', *columns])}))"
