"""Constructs that a predicate may not contain, in Spark or in the engine.

A condition must be one deterministic boolean expression about one row. A repeated scan, a second copy of a task and the
conflict check must all get the same answer (soundness A2), and templated text must not become a statement (B6). The
invariant: a refused construct is found in Spark's own tokens, so no reading of the tree, right or wrong, lets it
through. Spark's analysis judges the functions of Spark that are not named here.
Source: Spark 4.2, ExpressionInfo groups of the function registry.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_txlog.errors import InvalidPredicate, UnsupportedPredicate
from airflow_txlog.sql.lexer import CLOSE, OPEN, Token, neighbours, words
from airflow_txlog.sql.sql_text import SqlText

_NON_DETERMINISTIC = words(
    """rand randn random randstr uniform uuid shuffle monotonically_increasing_id spark_partition_id input_file_name
    input_file_block_start input_file_block_length aes_encrypt"""
)
# They run any static method of the JVM.
_FOREIGN_CODE = words("java_method reflect try_reflect")
_WINDOWS = words("cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number")
_GENERATORS = words(
    """explode explode_outer inline inline_outer posexplode posexplode_outer stack json_tuple variant_explode
    variant_explode_outer"""
)
_AGGREGATES = words(
    """any any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate approx_top_k_combine
    array_agg avg bit_and bit_or bit_xor bitmap_and_agg bitmap_construct_agg bitmap_or_agg bool_and bool_or collect_list
    collect_set corr count count_if count_min_sketch covar_pop covar_samp every first first_value grouping grouping_id
    histogram_numeric hll_sketch_agg hll_union_agg kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float
    kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float kurtosis last last_value listagg max max_by mean
    measure median min min_by mode percentile percentile_approx percentile_cont percentile_disc regr_avgx regr_avgy
    regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy schema_of_variant_agg skewness some std
    stddev stddev_pop stddev_samp string_agg sum theta_intersection_agg theta_sketch_agg theta_union_agg try_avg try_sum
    tuple_intersection_agg_double tuple_intersection_agg_integer tuple_sketch_agg_double tuple_sketch_agg_integer
    tuple_union_agg_double tuple_union_agg_integer var_pop var_samp variance"""
)
_REFUSED = (
    (_NON_DETERMINISTIC, "the non-deterministic function {}()", "It would answer differently each time it is asked."),
    (_FOREIGN_CODE, "the function {}()", "It calls arbitrary Java code."),
    (_AGGREGATES, "the aggregate function {}()", "A predicate is about one row."),
    (_WINDOWS, "the window function {}()", "A predicate is about one row."),
    (_GENERATORS, "the generator {}()", "A predicate is about one row."),
)
# `LIKE ANY (…)` quantifies; `any(…)` alone aggregates.
_QUANTIFIERS = frozenset(("any", "some", "all"))
_LIKES = frozenset(("like", "ilike", "rlike"))
_QUERY_WORDS = frozenset(("select", "with", "values", "from", "table"))
# A word after a column's name, not the first word of a query.
_AFTER_A_COLUMN = words("is in not between like ilike rlike regexp and or div collate")
# Words that reveal the author's intent in a text that could not be parsed.
_CLAUSES = ("union", "intersect", "except", "order", "group", "limit", "having", "where", "select", "from", "as")


def check_tokens(text: SqlText) -> None:
    """Check that the tokens hold nothing that is refused by name, and that brackets close.

    Raises InvalidPredicate or UnsupportedPredicate, naming the construct.
    """
    sql, tokens = text.sql, text.tokens
    wrong = text.unbalanced() if tokens else "it is empty"
    if wrong is not None:
        raise invalid(sql, wrong)
    for at, (before, token, after) in enumerate(neighbours(tokens)):
        if before == OPEN and token.word in _QUERY_WORDS and _begins_query(token, after, tokens[at + 1 :]):
            raise unsupported(
                sql, "a subquery", "It reads what conflict checks cannot see: join the values as a source."
            )
    for before, token, after in neighbours(tokens):
        name = token.text.lower()
        if after == OPEN and token.is_name and not (name in _QUANTIFIERS and before.text.lower() in _LIKES):
            for names, construct, why in _REFUSED:
                if name in names:
                    raise unsupported(sql, construct.format(name), why)
        if before == CLOSE and token.word == "over":
            raise unsupported(sql, "a window function", "A predicate is about one row.")


def invalid(sql: str, what: str) -> InvalidPredicate:
    """Return the error for a text that is not one boolean expression; `what` describes the fault."""
    return InvalidPredicate(
        f"The predicate {sql!r} is not one boolean SQL expression: {what}. Write a single condition such as "
        "day = :day AND name = :name; values belong in the parameters. Nothing was read.",
        predicate=sql,
    )


def unsupported(sql: str, construct: str, why: str) -> UnsupportedPredicate:
    """Return the error for valid SQL that a predicate may not contain."""
    return UnsupportedPredicate(
        f"The predicate {sql!r} holds {construct}, which may not stand in a predicate. {why} Nothing was read.",
        predicate=sql,
        construct=construct,
    )


def guess_what_failed(text: SqlText) -> str:
    """Return, for the message only, the construct that the author of an unparsable text seems to have written."""
    depth = 0
    for token in text.tokens:
        depth += (token == OPEN) - (token == CLOSE)
        if depth == 0 and token.word in _CLAUSES:
            return f"{token.text.upper()} has no place in it"
    return "it cannot be parsed"


def _begins_query(word: Token, after: Token, rest: Sequence[Token]) -> bool:
    """Return whether such a word after a parenthesis begins a query. A column may be called `from`."""
    is_column = after.word in _AFTER_A_COLUMN or (after.kind == "symbol" and after.text not in ("*", "("))
    return not is_column or (word.word == "select" and _has_from(rest))


def _has_from(tokens: Sequence[Token]) -> bool:
    """Return whether a FROM, not that of IS [NOT] DISTINCT FROM, comes before the parenthesis closes."""
    depth, words = 0, [""] * 2
    for token in tokens:
        depth += (token == OPEN) - (token == CLOSE)
        if depth < 0:
            return False
        if depth == 0 and token.word == "from" and not (words[1] == "distinct" and words[0] in ("is", "not")):
            return True
        words = [words[1], token.word]
    return False
