"""Fixtures about the log: checkpoints of every form, compacted commits, times, cleaned logs, vacuum, restore, …"""

from __future__ import annotations

from tests.interop.reference.workbench import Workbench, fixture

TABLE = "id BIGINT, name STRING"
EVERY_TYPE = (
    "id BIGINT, bo BOOLEAN, by TINYINT, sh SMALLINT, i INT, f FLOAT, d DOUBLE, de DECIMAL(20, 4), s STRING, bi BINARY, "
    "da DATE, ts TIMESTAMP, nested STRUCT<x: INT, y: STRUCT<z: STRING>>, li ARRAY<INT>, ma MAP<STRING, INT>"
)
EVERY_TYPE_VALUES = (
    "id, id % 2 = 0 AS bo, cast(id AS TINYINT) AS by, cast(id * 100 AS SMALLINT) AS sh, cast(id * 10000 AS INT) AS i, "
    "cast(id + 0.1 AS FLOAT) AS f, id + 0.1D AS d, cast(id + 0.1234 AS DECIMAL(20, 4)) AS de, concat('s', id) AS s, "
    "cast(concat('b', id) AS BINARY) AS bi, date_add(DATE'2024-02-28', cast(id AS INT)) AS da, "
    "TIMESTAMP'2024-02-28 12:34:56.789123' + make_interval(0, 0, 0, cast(id AS INT)) AS ts, "
    "named_struct('x', if(id % 3 = 0, NULL, cast(id AS INT)), 'y', named_struct('z', concat('z', id))) AS nested, "
    "array(cast(id AS INT), NULL) AS li, map(concat('k', id), cast(id AS INT)) AS ma"
)


@fixture
def checkpoint_classic(w: Workbench) -> None:
    """Classic checkpoints on schedule, statistics as JSON and as structs, of a table with most types."""
    w.create(EVERY_TYPE, delta__checkpointInterval="3", delta__checkpoint__writeStatsAsStruct="true")
    for start in range(0, 8, 2):
        w.fill(start, start + 2, EVERY_TYPE_VALUES)
    w.sql("DELETE FROM {t} WHERE id = 3")


@fixture
def checkpoint_statistics_as_structs_alone(w: Workbench) -> None:
    """The checkpoint has stats_parsed and partitionValues_parsed, and no JSON statistics."""
    w.create(
        EVERY_TYPE,
        "PARTITIONED BY (da)",
        delta__checkpointInterval="3",
        delta__checkpoint__writeStatsAsStruct="true",
        delta__checkpoint__writeStatsAsJson="false",
    )
    for start in range(0, 8, 2):
        w.fill(start, start + 2, EVERY_TYPE_VALUES)


@fixture
def checkpoint_without_statistics(w: Workbench) -> None:
    """The checkpoint has no statistics in either form."""
    w.create(
        TABLE,
        delta__checkpointInterval="2",
        delta__checkpoint__writeStatsAsStruct="false",
        delta__checkpoint__writeStatsAsJson="false",
    )
    w.fill(0, 3)
    w.fill(3, 6)
    w.fill(6, 9)


@fixture
def checkpoint_in_parts(w: Workbench) -> None:
    """A classic checkpoint of several files, which is all that its version has; a removed file among its actions."""
    w.create(TABLE)
    with w.settings(spark__databricks__delta__checkpoint__partSize="4"):
        for start in range(4):
            w.fill(start * 2, start * 2 + 2)
        w.sql("DELETE FROM {t} WHERE id = 5")
        w.checkpoint()
    w.fill(8, 10)


def _v2(w: Workbench, form: str) -> None:
    w.create(TABLE, "PARTITIONED BY (name)", delta__checkpointPolicy="v2", delta__checkpointInterval="4")
    options = {
        "spark__databricks__delta__checkpointV2__topLevelFileFormat": form,
        "spark__databricks__delta__checkpoint__partSize": "4",
    }
    with w.settings(**options):
        for start in range(4):
            w.fill(start * 2, start * 2 + 2, "id, concat('p', id % 2) AS name")
        w.sql("DELETE FROM {t} WHERE id = 5")
        w.fill(8, 10, "id, 'p0' AS name")
        w.fill(10, 12, "id, 'p1' AS name")
    w.forget(4)


@fixture
def checkpoint_v2_parquet(w: Workbench) -> None:
    """V2 checkpoints in Parquet with several sidecars."""
    _v2(w, "parquet")


@fixture
def checkpoint_v2_json(w: Workbench) -> None:
    """V2 checkpoints in JSON with several sidecars."""
    _v2(w, "json")


@fixture
def checkpoint_v2_with_vectors_and_domains(w: Workbench) -> None:
    """A V2 checkpoint whose sidecars hold deletion vectors, base row ids and struct statistics."""
    w.create(
        TABLE,
        "CLUSTER BY (id)",
        delta__checkpointPolicy="v2",
        delta__checkpointInterval="3",
        delta__enableDeletionVectors="true",
        delta__enableRowTracking="true",
        delta__checkpoint__writeStatsAsJson="false",
    )
    w.fill(0, 10)
    w.sql("DELETE FROM {t} WHERE id IN (2, 7)")
    w.fill(10, 14)
    w.sql("DELETE FROM {t} WHERE id = 11")
    w.forget(3)


@fixture
def log_compacted(w: Workbench) -> None:
    """Compacted commits, written by the reference's kernel; the newest overlaps the checkpoint."""
    w.create(TABLE, delta__checkpointInterval="5")
    for start in range(8):
        w.fill(start, start + 1)
        if start == 4:
            w.sql("DELETE FROM {t} WHERE id = 2")
    for first, last in ((1, 4), (6, 8)):
        _compact(w, first, last)


def _compact(w: Workbench, first: int, last: int) -> None:
    jvm = w.spark._jvm
    assert jvm is not None
    hadoop = w.spark._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
    engine = jvm.io.delta.kernel.defaults.engine.DefaultEngine.create(hadoop)
    path = jvm.io.delta.kernel.internal.fs.Path
    hook = jvm.io.delta.kernel.internal.hook.LogCompactionHook(
        path(f"file:{w.path}"), path(f"file:{w.path}/_delta_log"), first, last, 0
    )
    hook.threadSafeInvoke(engine)


@fixture
def in_commit_timestamps(w: Workbench) -> None:
    """In-commit timestamps from the first commit on."""
    w.create(TABLE, delta__enableInCommitTimestamps="true", delta__checkpointInterval="2")
    for start in range(3):
        w.fill(start, start + 1)


@fixture
def in_commit_timestamps_later(w: Workbench) -> None:
    """In-commit timestamps enabled at version 3, and a checkpoint behind it."""
    w.create(TABLE)
    w.fill(0, 1)
    w.fill(1, 2)
    w.set("delta.enableInCommitTimestamps", "true")
    w.fill(2, 3)
    w.checkpoint()
    w.fill(3, 4)


@fixture
def cleaned_log(w: Workbench) -> None:
    """The commits before the second checkpoint are gone, as after the log's retention; the first one is there yet."""
    w.create(TABLE, delta__checkpointInterval="3")
    for start in range(7):
        w.fill(start, start + 1)
    w.forget(6)


@fixture
def vacuumed(w: Workbench) -> None:
    """Older versions lost their files to a vacuum at zero retention."""
    w.create(TABLE, delta__enableDeletionVectors="false")
    w.fill(0, 4)
    w.sql("DELETE FROM {t} WHERE id = 1")
    w.sql("UPDATE {t} SET name = 'x' WHERE id = 2")
    w.sql("VACUUM {t} RETAIN 0 HOURS")


@fixture
def restored(w: Workbench) -> None:
    """Restored to an older version, and written to again; deletion vectors come back with it."""
    w.create(TABLE, delta__enableDeletionVectors="true")
    w.fill(0, 4)
    w.sql("DELETE FROM {t} WHERE id = 1")
    w.sql("DELETE FROM {t} WHERE id = 2")
    w.fill(4, 6)
    w.sql("RESTORE TABLE {t} TO VERSION AS OF 2")
    w.fill(6, 8)
    w.sql("RESTORE TABLE {t} TO VERSION AS OF 1")


@fixture
def shallow_clone(w: Workbench) -> None:
    """A clone: its files are absolute paths into another table, with deletion vectors of both tables on them."""
    source = Workbench(w.spark, w.root, w.name)
    source.path = w.folder / "source"
    source.create("id BIGINT, `pa:rt%` STRING", "PARTITIONED BY (`pa:rt%`)", delta__enableDeletionVectors="true")
    source.fill(0, 6, "id, concat('a%b ', id % 2) AS `pa:rt%`")
    source.sql("DELETE FROM {t} WHERE id = 2")
    w.path = w.folder / "clone"
    w.sql(f"CREATE TABLE {{t}} SHALLOW CLONE delta.`{source.path}`")
    w.sql("DELETE FROM {t} WHERE id = 3")
    w.fill(6, 8, "id, 'new' AS `pa:rt%`")
    # The absolute paths in a checkpoint cannot be made to follow the fixture; those in the commits can.
    for file in [*(w.path / "_delta_log").glob("*.checkpoint.parquet"), w.path / "_delta_log" / "_last_checkpoint"]:
        file.unlink(missing_ok=True)


@fixture
def overwritten(w: Workbench) -> None:
    """Overwrites: of everything, of one partition by predicate, of partitions by their values, and of the schema."""
    w.create("id BIGINT, p STRING", "PARTITIONED BY (p)")
    w.fill(0, 4, "id, concat('p', id % 2) AS p")
    frame = w.sql("SELECT 10L AS id, 'p1' AS p")
    path = str(w.path)
    frame.write.format("delta").mode("overwrite").option("replaceWhere", "p = 'p1'").save(path)
    other = w.sql("SELECT 20L AS id, 'p0' AS p")
    other.write.format("delta").mode("overwrite").option("partitionOverwriteMode", "dynamic").save(path)
    frame.write.format("delta").mode("overwrite").save(path)
    wider = w.sql("SELECT 'a' AS id, 1.5D AS v")
    wider.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)


@fixture
def user_metadata_and_applications(w: Workbench) -> None:
    """What other writers say in their commits: user metadata, application transactions, an optimize, a comment."""
    w.create("id BIGINT COMMENT 'the key', name STRING", "COMMENT 'a table of the reference'")
    frame = w.sql("SELECT 1L AS id, 'a' AS name")
    options = {"txnAppId": "load", "txnVersion": "7", "userMetadata": "by hand"}
    frame.write.format("delta").mode("append").options(**options).save(str(w.path))
    w.fill(2, 4, files=2)
    w.sql("OPTIMIZE {t} ZORDER BY (id)")
    w.sql("ALTER TABLE {t} ADD COLUMNS (born DATE COMMENT 'added later' FIRST)")
    w.sql("INSERT INTO {t} VALUES (DATE'2000-01-01', 9, 'z')")
