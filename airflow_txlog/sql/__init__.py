"""SQL texts of authors and of tables' logs: cut into Spark's tokens, and judged by these alone.

Knows no table, no Spark and no job. Every text is cut once, by `lexer.sql_text`. A text that cannot be cut as Spark
cuts it is left to Spark.
"""
