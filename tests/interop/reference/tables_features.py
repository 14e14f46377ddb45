"""Fixtures about table features: deletion vectors, column mapping, type widening, row tracking, constraints, …"""

from __future__ import annotations

from tests.interop.reference.workbench import Workbench, fixture

TABLE = "id BIGINT, name STRING"


@fixture
def vectors(w: Workbench) -> None:
    """Deletion vectors that grow over several deletes, then a file purged, then all of it compacted."""
    w.create(TABLE, delta__enableDeletionVectors="true")
    w.fill(0, 20)
    w.fill(20, 40)
    w.sql("DELETE FROM {t} WHERE id % 5 = 0")
    w.sql("DELETE FROM {t} WHERE id % 7 = 0")
    w.sql("UPDATE {t} SET name = 'changed' WHERE id = 3")
    w.sql("DELETE FROM {t} WHERE id < 4")
    w.sql("REORG TABLE {t} APPLY (PURGE)")
    w.sql("DELETE FROM {t} WHERE id = 39")
    w.sql("OPTIMIZE {t}")


@fixture
def vectors_partitioned(w: Workbench) -> None:
    """Deletion vectors in partitions, one of them deleted whole, and a checkpoint that holds them."""
    w.create(TABLE, "PARTITIONED BY (name)", delta__enableDeletionVectors="true")
    w.fill(0, 30, "id, concat('p ', id % 3) AS name")
    w.sql("DELETE FROM {t} WHERE id IN (4, 5, 9)")
    w.sql("DELETE FROM {t} WHERE name = 'p 2'")
    w.checkpoint()
    w.sql("DELETE FROM {t} WHERE id = 10")


@fixture
def vectors_in_random_folders(w: Workbench) -> None:
    """Data files and vectors under random prefixes; deleted, compacted and deleted again, over a checkpoint."""
    w.create(
        TABLE,
        "PARTITIONED BY (name)",
        delta__enableDeletionVectors="true",
        delta__randomizeFilePrefixes="true",
        delta__checkpointInterval="100",
    )
    w.fill(0, 60, "id, CASE id % 3 WHEN 0 THEN 'a b' WHEN 1 THEN 'c/d' END AS name")
    w.sql("DELETE FROM {t} WHERE id < 20")
    w.fill(60, 70, "id, 'a b' AS name")
    w.sql("OPTIMIZE {t}")
    w.sql("DELETE FROM {t} WHERE id % 5 = 0")
    w.checkpoint()
    w.sql("DELETE FROM {t} WHERE id % 7 = 0")


@fixture
def vectors_by_merge(w: Workbench) -> None:
    """A merge that updates, deletes and inserts with deletion vectors; a nested column beside."""
    w.create("id BIGINT, v STRUCT<a: INT, b: STRING>", delta__enableDeletionVectors="true")
    w.fill(0, 12, "id, named_struct('a', cast(id AS INT), 'b', concat('b', id)) AS v")
    w.sql(
        "MERGE INTO {t} AS t USING (SELECT id FROM range(8, 16)) AS s ON t.id = s.id "
        "WHEN MATCHED AND s.id = 9 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET t.v.a = -1 "
        "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, NULL) "
        "WHEN NOT MATCHED BY SOURCE AND t.id = 0 THEN DELETE"
    )
    w.sql("DELETE FROM {t} WHERE v.a = -1")


@fixture
def vectors_of_many_rows(w: Workbench) -> None:
    """Vectors with run, array and bitmap containers: 150,000 rows of which most, some and few are deleted."""
    w.create("id BIGINT", delta__enableDeletionVectors="true")
    # Pages of the second version hold a sequence of numbers in next to nothing.
    with w.settings(parquet__writer__version="v2"):
        w.fill(0, 150000, "id")
    w.sql("DELETE FROM {t} WHERE id BETWEEN 100 AND 65000 OR (id > 66000 AND id % 2 = 0) OR id > 131100")
    w.sql("DELETE FROM {t} WHERE id > 66000 AND id < 131000")


def _mapped(w: Workbench, mode: str) -> None:
    columns = "id BIGINT, name STRING, nest STRUCT<a: INT, deep: STRUCT<b: STRING>>, li ARRAY<STRUCT<x: INT>>, "
    columns += "ma MAP<STRING, STRUCT<y: INT>>, part STRING"
    w.create(columns, "PARTITIONED BY (part)", delta__columnMapping__mode=mode, delta__checkpointInterval="100")
    values = (
        "id, concat('n', id) AS name, "
        "named_struct('a', cast(id AS INT), 'deep', named_struct('b', concat('b', id))) AS nest, "
        "array(named_struct('x', cast(id AS INT))) AS li, map('k', named_struct('y', cast(id AS INT))) AS ma, "
        "concat('p', id % 2) AS part"
    )
    w.fill(0, 4, values)
    w.sql("ALTER TABLE {t} RENAME COLUMN name TO `full name, with = odd; chars`")
    w.sql("ALTER TABLE {t} RENAME COLUMN nest.deep.b TO renamed")
    w.sql("ALTER TABLE {t} RENAME COLUMN li.element.x TO x2")
    w.sql("ALTER TABLE {t} RENAME COLUMN part TO `the part`")
    w.sql("ALTER TABLE {t} ADD COLUMNS (extra DATE AFTER id)")
    w.fill(4, 6, values.replace("id, ", "id, DATE'2024-01-01' AS extra, ", 1))
    w.sql("ALTER TABLE {t} DROP COLUMN extra")
    w.sql("ALTER TABLE {t} DROP COLUMN nest.a")
    # The same names again are other columns: their old values must not come back.
    w.sql("ALTER TABLE {t} ADD COLUMNS (extra DATE)")
    w.sql("ALTER TABLE {t} ADD COLUMNS (nest.a INT)")
    w.checkpoint()
    w.sql("DELETE FROM {t} WHERE id = 1")


@fixture
def mapping_by_name(w: Workbench) -> None:
    """Column mapping by name: renamed, dropped and added again, nested ones too; a renamed partition column."""
    _mapped(w, "name")


@fixture
def mapping_by_id(w: Workbench) -> None:
    """Column mapping by id: the same."""
    _mapped(w, "id")


@fixture
def mapping_by_name_later(w: Workbench) -> None:
    """Column mapping switched on for a table that has files: their physical names are the old names."""
    w.create(TABLE)
    w.fill(0, 3)
    w.sql(
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', "
        "'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5')"
    )
    w.sql("ALTER TABLE {t} RENAME COLUMN name TO label")
    w.fill(3, 5, "id, concat('n', id) AS label")
    w.sql("ALTER TABLE {t} DROP COLUMN label")
    w.sql("ALTER TABLE {t} ADD COLUMNS (name STRING)")
    w.fill(5, 6)


@fixture
def mapping_with_vectors(w: Workbench) -> None:
    """Column mapping by name and deletion vectors together."""
    w.create(TABLE, delta__columnMapping__mode="name", delta__enableDeletionVectors="true")
    w.fill(0, 8)
    w.sql("DELETE FROM {t} WHERE id = 2")
    w.sql("ALTER TABLE {t} RENAME COLUMN name TO label")
    w.sql("DELETE FROM {t} WHERE label = 'n5'")


WIDENINGS = {
    "byte_short": ("TINYINT", "SMALLINT", "-128", "300"),
    "byte_int": ("TINYINT", "INT", "127", "70000"),
    "byte_long": ("TINYINT", "BIGINT", "-5", "5000000000"),
    "byte_decimal": ("TINYINT", "DECIMAL(10, 0)", "7", "1234567890"),
    "byte_double": ("TINYINT", "DOUBLE", "7", "0.5"),
    "short_int": ("SMALLINT", "INT", "-32768", "70000"),
    "short_long": ("SMALLINT", "BIGINT", "32767", "5000000000"),
    "short_decimal": ("SMALLINT", "DECIMAL(12, 2)", "9", "12.34"),
    "short_double": ("SMALLINT", "DOUBLE", "9", "1.25"),
    "int_long": ("INT", "BIGINT", "-2147483648", "5000000000"),
    "int_decimal": ("INT", "DECIMAL(20, 5)", "2147483647", "0.00001"),
    "int_double": ("INT", "DOUBLE", "2147483647", "1e300"),
    "long_decimal": ("BIGINT", "DECIMAL(24, 2)", "9223372036854775807", "0.01"),
    "float_double": ("FLOAT", "DOUBLE", "0.1", "0.1"),
    "decimal_decimal": ("DECIMAL(5, 2)", "DECIMAL(20, 6)", "999.99", "12345678901234.123456"),
    "decimal_precision": ("DECIMAL(5, 2)", "DECIMAL(30, 2)", "-999.99", "1234567890123456789.01"),
    "date_timestamp_ntz": ("DATE", "TIMESTAMP_NTZ", "2024-02-29", "2024-02-29 12:00:00.123456"),
}


@fixture
def widened(w: Workbench) -> None:
    """Every legal widening of a type, with values and statistics of both types, and a checkpoint."""
    w.create(
        ", ".join(f"{name} {old}" for name, (old, _, _, _) in WIDENINGS.items()),
        delta__enableTypeWidening="true",
        delta__feature__timestampNtz="supported",
    )

    def insert(index: int) -> None:
        values = ", ".join(f"cast('{entry[index + 2]}' AS {entry[index]})" for entry in WIDENINGS.values())
        w.sql(f"INSERT INTO {{t}} SELECT {values}")

    insert(0)
    changes = ", ".join(f"{name} TYPE {new}" for name, (_, new, _, _) in WIDENINGS.items())
    w.sql(f"ALTER TABLE {{t}} ALTER COLUMN {changes}")
    insert(1)
    w.checkpoint()


@fixture
def widened_nested(w: Workbench) -> None:
    """Types widened inside a struct, an array and a map, twice over, in a partition column, and back by restore."""
    w.create(
        "id BIGINT, s STRUCT<a: TINYINT, b: STRING>, li ARRAY<SMALLINT>, ma MAP<TINYINT, FLOAT>, p INT",
        "PARTITIONED BY (p)",
        delta__enableTypeWidening="true",
    )
    insert = (
        "INSERT INTO {t} SELECT id, named_struct('a', cast(id AS {a}), 'b', 'x'), array(cast(id AS {l})), "
        "map(cast(id AS {k}), cast(0.1 AS {v})), cast(id AS {p}) FROM range({start}, {end}, 1, 1)"
    )

    def add(a: str, li: str, k: str, v: str, p: str, start: int) -> None:
        statement = insert
        values = {"a": a, "l": li, "k": k, "v": v, "p": p, "start": str(start), "end": str(start + 2)}
        for name, value in values.items():
            statement = statement.replace("{" + name + "}", value)
        w.sql(statement)

    add("TINYINT", "SMALLINT", "TINYINT", "FLOAT", "INT", 0)
    w.sql("ALTER TABLE {t} ALTER COLUMN s.a TYPE SMALLINT")
    w.sql("ALTER TABLE {t} ALTER COLUMN li.element TYPE INT")
    w.sql("ALTER TABLE {t} ALTER COLUMN ma.key TYPE SMALLINT")
    w.sql("ALTER TABLE {t} ALTER COLUMN ma.value TYPE DOUBLE")
    w.sql("ALTER TABLE {t} ALTER COLUMN p TYPE BIGINT")
    add("SMALLINT", "INT", "SMALLINT", "DOUBLE", "BIGINT", 100)
    w.sql("ALTER TABLE {t} ALTER COLUMN s.a TYPE INT")
    add("INT", "INT", "SMALLINT", "DOUBLE", "BIGINT", 200)


@fixture
def row_tracking(w: Workbench) -> None:
    """Row tracking, with ids written into files by an update and an optimize, and its high-water mark as a domain."""
    w.create(TABLE, delta__enableRowTracking="true", delta__enableDeletionVectors="false")
    w.fill(0, 4)
    w.fill(4, 6)
    w.sql("UPDATE {t} SET name = 'changed' WHERE id = 1")
    w.sql("OPTIMIZE {t}")
    w.checkpoint()
    w.fill(6, 7)


@fixture
def row_tracking_later(w: Workbench) -> None:
    """Row tracking switched on for a table that has files, which are backfilled."""
    w.create(TABLE)
    w.fill(0, 4)
    w.set("delta.enableRowTracking", "true")
    w.fill(4, 5)


@fixture
def clustered(w: Workbench) -> None:
    """Clustering columns, kept as a domain, and an optimize by them."""
    w.create(TABLE, "CLUSTER BY (name, id)")
    w.fill(0, 8, files=2)
    w.sql("OPTIMIZE {t}")
    w.sql("ALTER TABLE {t} CLUSTER BY (id)")
    w.fill(8, 9)


@fixture
def identity_columns(w: Workbench) -> None:
    """Identity columns, always and by default."""
    w.create(
        "id BIGINT GENERATED ALWAYS AS IDENTITY (START WITH 10 INCREMENT BY 5), "
        "other BIGINT GENERATED BY DEFAULT AS IDENTITY, name STRING"
    )
    w.sql("INSERT INTO {t} (name) VALUES ('a'), ('b')")
    w.sql("INSERT INTO {t} (other, name) VALUES (77, 'c')")


@fixture
def generated_columns(w: Workbench) -> None:
    """Generated columns, one of them a partition column."""
    w.create(
        "id BIGINT, at TIMESTAMP, day DATE GENERATED ALWAYS AS (CAST(at AS DATE)), "
        "twice BIGINT GENERATED ALWAYS AS (id * 2)",
        "PARTITIONED BY (day)",
    )
    w.sql("INSERT INTO {t} (id, at) VALUES (1, TIMESTAMP'2024-05-06 07:08:09'), (2, TIMESTAMP'1999-12-31 23:59:59')")


@fixture
def constraints_and_defaults(w: Workbench) -> None:
    """A CHECK constraint, NOT NULL columns, defaults."""
    w.create(
        "id BIGINT NOT NULL, name STRING DEFAULT 'nobody', s STRUCT<a: INT NOT NULL>",
        delta__feature__allowColumnDefaults="supported",
    )
    w.sql("ALTER TABLE {t} ADD CONSTRAINT positive CHECK (id > 0)")
    w.sql("INSERT INTO {t} (id, s) VALUES (1, named_struct('a', 1))")
    w.sql("INSERT INTO {t} VALUES (2, 'two', named_struct('a', 2))")


@fixture
def change_data(w: Workbench) -> None:
    """Change data files of an update, a merge and a delete, which are no rows of the table."""
    w.create(TABLE, "PARTITIONED BY (name)", delta__enableChangeDataFeed="true", delta__enableDeletionVectors="false")
    w.fill(0, 6, "id, concat('p', id % 2) AS name")
    w.sql("UPDATE {t} SET name = 'moved' WHERE id = 1")
    w.sql("DELETE FROM {t} WHERE id = 2")
    w.sql(
        "MERGE INTO {t} AS t USING (SELECT 3L AS id UNION ALL SELECT 30L) AS s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET t.name = 'merged' WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, 'in')"
    )


@fixture
def collated(w: Workbench) -> None:
    """A string column with a collation, which the reference keeps only when told not to look at its types."""
    with w.settings(spark__databricks__delta__schema__typeCheck__enabled="false"):
        w.create("id BIGINT, name STRING COLLATE UTF8_LCASE")
        w.sql("INSERT INTO {t} VALUES (1, 'Bob'), (2, 'bob')")


@fixture
def variant(w: Workbench) -> None:
    """A variant column."""
    w.create("id BIGINT, v VARIANT")
    w.sql("INSERT INTO {t} SELECT 1, parse_json('{\"a\": [1, 2]}')")


@fixture
def geometry(w: Workbench) -> None:
    """A geometry column."""
    with w.settings(spark__databricks__delta__geo__preview__enabled="true"):
        w.create("id BIGINT, g GEOMETRY(4326)")


@fixture
def iceberg_compatible(w: Workbench) -> None:
    """A table kept readable for Iceberg, which maps its columns and writes its partition values into the files."""
    w.create(TABLE, "PARTITIONED BY (name)", delta__enableIcebergCompatV2="true", delta__columnMapping__mode="name")
    w.fill(0, 4, "id, concat('p', id % 2) AS name")


@fixture
def features_dropped(w: Workbench) -> None:
    """A feature dropped again: checkpointProtection may stay behind."""
    w.create(TABLE, delta__enableDeletionVectors="true")
    w.fill(0, 4)
    w.sql("DELETE FROM {t} WHERE id = 2")
    w.set("delta.enableDeletionVectors", "false")
    w.sql("ALTER TABLE {t} DROP FEATURE deletionVectors")
    w.fill(4, 5)
    # Its five checkpoints are as good as one.
    for checkpoint in sorted((w.path / "_delta_log").glob("*.checkpoint.parquet"))[:-1]:
        checkpoint.unlink()
