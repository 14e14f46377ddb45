"""Where one fixture is made: a table of its own, SQL on it, and what delta-spark then says of it."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.interop.reference.plain import kept_rows, plain, plain_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Stands for the folder in which the tables were made, wherever a log holds it as part of an absolute path.
ROOT_PLACEHOLDER = "/REFERENCE-ROOT"

HISTORY = (
    "version",
    "operation",
    "operationParameters",
    "operationMetrics",
    "readVersion",
    "isolationLevel",
    "isBlindAppend",
    "userMetadata",
    "engineInfo",
)
DETAIL = (
    "id",
    "name",
    "description",
    "partitionColumns",
    "numFiles",
    "sizeInBytes",
    "properties",
    "minReaderVersion",
    "minWriterVersion",
    "tableFeatures",
)

Maker = Callable[["Workbench"], None]
FIXTURES: dict[str, Maker] = {}


def fixture(maker: Maker) -> Maker:
    """A table called after the function that makes it; the function's first line says what it is for."""
    FIXTURES[maker.__name__] = maker
    return maker


class Workbench:
    """A fixture's folder, the table in it that the fixture is about, and the session that makes it."""

    def __init__(self, spark: SparkSession, root: Path, name: str) -> None:
        self.spark = spark
        self.name = name
        self.root = root
        self.folder = root / name / "table"
        # Inside the folder only where a fixture is made of several tables.
        self.path = self.folder

    def sql(self, statement: str, **options: str) -> DataFrame:
        """Run a statement in which `{t}` is the table, with these settings of the session (`__` is a dot)."""
        with self.settings(**options):
            return self.spark.sql(statement.replace("{t}", f"delta.`{self.path}`"))

    def create(self, columns: str, tail: str = "", **properties: str) -> None:
        """A new, empty table: its columns, what follows them, and its properties (`__` is a dot)."""
        listed = ", ".join(f"'{name.replace('__', '.')}' = '{value}'" for name, value in properties.items())
        listed = f"TBLPROPERTIES ({listed})" if listed else ""
        self.sql(f"CREATE TABLE {{t}} ({columns}) USING delta {tail} {listed}")

    def fill(self, start: int, end: int, select: str = "id, concat('n', id) AS name", files: int = 1) -> None:
        """Append the rows that `select` makes of the ids from `start` to `end`, in this many files."""
        self.sql(f"INSERT INTO {{t}} SELECT {select} FROM range({start}, {end}, 1, {files})")

    def set(self, name: str, value: str) -> None:
        self.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('{name}' = '{value}')")

    @contextlib.contextmanager
    def settings(self, **options: str) -> Iterator[None]:
        named = {name.replace("__", "."): value for name, value in options.items()}
        old = {name: self.spark.conf.get(name, None) for name in named}
        for name, value in named.items():
            self.spark.conf.set(name, value)
        try:
            yield
        finally:
            for name, former in old.items():
                if former is None:
                    self.spark.conf.unset(name)
                else:
                    self.spark.conf.set(name, former)

    def checkpoint(self) -> None:
        """Write a checkpoint of the newest version, whatever the interval says."""
        delta = self.spark._jvm.org.apache.spark.sql.delta.DeltaLog  # type: ignore[union-attr]
        log = delta.forTable(self.spark._jsparkSession, str(self.path))
        log.checkpoint(log.update(False, self.nothing(), self.nothing()), self.nothing())

    def forget(self, version: int) -> None:
        """Take away the commits before `version`, which has a checkpoint: it is then all that there is to read."""
        for earlier in range(version):
            (self.path / "_delta_log" / f"{earlier:020d}.json").unlink()

    def nothing(self) -> Any:
        return self.spark._jvm.scala.Option.empty()  # type: ignore[union-attr]

    # --- what delta-spark says ---------------------------------------------------------------------------------------

    def expected(self) -> dict[str, Any]:
        """Rows and schema of every version that can still be read, and of the newest the history and the detail."""
        versions = sorted(row.version for row in self.sql("DESCRIBE HISTORY {t}").select("version").collect())
        newest = versions[-1]
        return {
            "newest": newest,
            "table": self.path.relative_to(self.folder).as_posix(),
            "versions": {str(version): self._read(version) for version in versions},
            "history": self._rows("DESCRIBE HISTORY {t}", HISTORY),
            "detail": self._rows("DESCRIBE DETAIL {t}", DETAIL)[0],
        }

    def _rows(self, statement: str, columns: tuple[str, ...]) -> list[dict[str, Any]]:
        found = self.sql(statement).select(*columns).collect()
        return [plain(row.asDict(recursive=True)) for row in found]

    def _read(self, version: int) -> dict[str, Any]:
        try:
            frame = self.spark.read.format("delta").option("versionAsOf", version).load(str(self.path))
            return {"schema": plain_type(json.loads(frame.schema.json())), "rows": kept_rows(frame.toArrow())}
        except Exception as error:
            condition = re.search(r"\[(DELTA_\w+|FAILED_READ_FILE\.FILE_NOT_EXIST)\]", str(error))
            if condition is None:
                raise
            return {"error": condition[1]}


def keep(bench: Workbench, expected: dict[str, Any], target: Path) -> None:
    """Copy the table to `target/table`, without Hadoop's checksums and this machine's folders, and what is expected."""
    shutil.rmtree(target, ignore_errors=True)
    for source in sorted(bench.folder.rglob("*")):
        if source.is_dir() or source.name.startswith("."):
            continue
        if source.suffix == ".crc" and int(source.stem) < expected["newest"]:
            continue
        kept = target / "table" / source.relative_to(bench.folder)
        kept.parent.mkdir(parents=True, exist_ok=True)
        content = source.read_bytes()
        if source.suffix in (".json", ".crc"):
            content = content.replace(str(bench.root).encode(), ROOT_PLACEHOLDER.encode())
        elif str(bench.root).encode() in content:
            raise ValueError(f"{source} names the folder in which it was made")
        kept.write_bytes(content)
    text = json.dumps(expected, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    # One line a version keeps differences readable.
    text = text.replace('"rows":', '\n"rows":').replace('"schema":', '\n"schema":')
    (target / "expected.json").write_text(text.replace(str(bench.root), ROOT_PLACEHOLDER) + "\n")
