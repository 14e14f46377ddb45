"""Predicates in Spark SQL: read into a tree, applied to files for pruning and conflicts, and to rows.

Spark is the authority on rows. The engine reads one closed grammar (`reading`) and treats the rest as unknown.
"""

from airflow_txlog.engine.table.predicate.binding import plain_condition
from airflow_txlog.engine.table.predicate.pruning import FileQuestion, may_hold_match, partitions_of, rows_matching
from airflow_txlog.engine.table.predicate.tree import Predicate

__all__ = ["FileQuestion", "Predicate", "may_hold_match", "partitions_of", "plain_condition", "rows_matching"]
