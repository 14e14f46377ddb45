"""SQL texts of authors and of tables' logs: cut into Spark's tokens, parsed into one tree, and judged from these alone.

Independent of tables, Spark and jobs. A text becomes a `SqlText` (`sql_text`), which is cut and parsed once. A text
that cannot be cut as Spark cuts it, and a part that only Spark can parse, are left to Spark.
"""
