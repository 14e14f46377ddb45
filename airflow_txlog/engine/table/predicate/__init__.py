"""Predicates in Spark SQL: read, asked of files for pruning and conflicts, and evaluated on rows.

Spark decides rows; the engine reads one closed grammar and says unknown to the rest. Reading is `reading` over
`sql`, `names`, `leaves`, `constants` and `coercion`; what comes out is `tree`; it is asked of files by `pruning` and of
rows by `rows`.
"""

from airflow_txlog.engine.table.predicate.plain import why_not_plain
from airflow_txlog.engine.table.predicate.pruning import FileQuestion, may_hold_match, partitions_of, rows_matching
from airflow_txlog.engine.table.predicate.tree import Predicate

__all__ = [
    "FileQuestion",
    "Predicate",
    "may_hold_match",
    "partitions_of",
    "rows_matching",
    "why_not_plain",
]
