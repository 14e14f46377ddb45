"""The limits of a source's query, unless the operator leaves it unrestricted: it computes rows from the source's views.

The text may be templated. Spark's SQL can run programs (`TRANSFORM … USING`), call any static method of Java
(`reflect`), read any file (`text.`/etc/passwd``), and load a class that a name, an option or an argument gives, in part
as soon as the query is analysed. So the whole tree of Spark's parser is judged before anything is analysed: every
subquery, CTE, hint and named window. The invariant: a relation, a function or a kind of node that is not listed here is
refused, also one of a newer Spark.

Spark Connect analyses whatever it parses, and its tree is out of reach. There the tokens decide, by rules that hold
however Spark parses them (most words of SQL may also be names). A call is a name before a parenthesis, and must be a
listed function that is built into Spark, without a qualifier. A program is run by USING and a text. A relation's name
follows FROM, JOIN, TABLE, LATERAL, STREAM, a comma or an opening parenthesis: a name there that is no view of the
source must be no table of a catalog. No relation is a file, by a setting of the session. A text that passes there and
that Spark can analyse passes here too. Source: Spark 4.2, SqlBaseParser.g4, AstBuilder, FunctionRegistry,
ResolveSQLOnFile, CallMethodViaReflection; tests/security/test_query_names.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.jobs.spark.causes import analysis_text
from airflow_txlog.jobs.spark.session import FILES_BY_SQL, LOCAL_ONLY, is_classic
from airflow_txlog.jobs.sql.functions import (
    CALLS_NOTHING,
    CATALYST,
    EXPRESSIONS,
    FUNCTIONS,
    TYPE_ARGUMENT,
    Tree,
    UnlistedCall,
    built_into_server,
    check_calls,
    names_of,
    parser_of,
    short,
)
from airflow_txlog.sql.lexer import COMMA, DOT, OPEN, OUTSIDE, Token, neighbours, words
from airflow_txlog.sql.sql_text import sql_text

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

# Functions of many rows, functions that return many rows, and those that depend on the session or a row's place.
_OF_QUERIES = words(
    """
    and any any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate
    approx_top_k_combine approx_top_k_estimate array_agg assert_true avg bit_and bit_or bit_xor bitmap_and_agg
    bitmap_construct_agg bitmap_or_agg bool_and bool_or collect_list collect_set corr count count_if
    count_min_sketch covar_pop covar_samp cume_dist current_catalog current_database current_path current_schema
    current_timezone current_user dense_rank every explode explode_outer first first_value from_xml grouping grouping_id
    histogram_numeric hll_sketch_agg hll_union_agg in inline inline_outer input_file_block_length
    input_file_block_start input_file_name json_tuple kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float
    kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float kll_sketch_get_n_bigint kll_sketch_get_n_double
    kll_sketch_get_n_float kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double
    kll_sketch_get_quantile_float kll_sketch_get_rank_bigint kll_sketch_get_rank_double kll_sketch_get_rank_float
    kll_sketch_merge_bigint kll_sketch_merge_double kll_sketch_merge_float kll_sketch_to_string_bigint
    kll_sketch_to_string_double kll_sketch_to_string_float kurtosis lag last last_value lead listagg max max_by mean
    measure median min min_by mode not nth_value ntile or percent_rank percentile percentile_approx percentile_cont
    percentile_disc posexplode posexplode_outer raise_error rank regr_avgx regr_avgy regr_count regr_intercept
    regr_r2 regr_slope regr_sxx regr_sxy regr_syy row_number schema_of_variant_agg schema_of_xml session_user
    session_window skewness some spark_partition_id st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid st_srid
    stack std stddev stddev_pop stddev_samp string_agg sum theta_difference theta_intersection
    theta_intersection_agg theta_sketch_agg theta_sketch_estimate theta_union theta_union_agg to_xml try_avg try_sum
    tuple_difference_double tuple_difference_integer tuple_difference_theta_double tuple_difference_theta_integer
    tuple_intersection_agg_double tuple_intersection_agg_integer tuple_intersection_double
    tuple_intersection_integer tuple_intersection_theta_double tuple_intersection_theta_integer
    tuple_sketch_agg_double tuple_sketch_agg_integer tuple_sketch_estimate_double tuple_sketch_estimate_integer
    tuple_sketch_summary_double tuple_sketch_summary_integer tuple_sketch_theta_double tuple_sketch_theta_integer
    tuple_union_agg_double tuple_union_agg_integer tuple_union_double tuple_union_integer tuple_union_theta_double
    tuple_union_theta_integer user var_pop var_samp variance vector_avg vector_sum version window window_time
    """
)
# Not listed, and so refused: reflect, java_method, try_reflect (any static method of Java); from_avro, to_avro,
# schema_of_avro, from_protobuf, to_protobuf (they read the file, or load the class, that an argument names); xpath and
# its kin (they read the file or URL that the document names as its type: `<!DOCTYPE a SYSTEM "http://…">`).
QUERY_FUNCTIONS = FUNCTIONS | _OF_QUERIES
# The number of arguments from which on the last one is a map of options; one of them names a schema's file.
_OPTIONS_FROM = {"from_xml": 3, "schema_of_xml": 2}
_TABLE_FUNCTIONS = words(
    """
    collations explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer range sql_keywords stack
    variant_explode variant_explode_outer
    """
)
# The parser's nodes for a query, without those for expressions.
_NODES = words(
    """
    Aggregate Distinct Except Filter Generate GlobalLimit Intersect Join LateralJoin LocalLimit LocalRelation Offset
    OneRowRelation Pivot Project Repartition RepartitionByExpression Sample Sort SubqueryAlias Union Unpivot
    UnresolvedHint UnresolvedWith WithWindowDefinition
    MultiAlias NamedParameter UnresolvedAlias UnresolvedAttribute
    UnresolvedCollation UnresolvedExtractValue UnresolvedFunction UnresolvedGenerator UnresolvedHaving
    UnresolvedInlineTable UnresolvedOrdinal UnresolvedPipeAggregateOrdinal UnresolvedQualify UnresolvedRegex
    UnresolvedRelation UnresolvedStar UnresolvedStarExceptOrReplace UnresolvedSubqueryColumnAliases UnresolvedTVFAliases
    UnresolvedTableValuedFunction
    """
)
_WORDS = {
    "ScriptTransformation": "TRANSFORM … USING, which runs a program",
    "PlanWithUnresolvedIdentifier": "IDENTIFIER()",
    "ExpressionWithUnresolvedIdentifier": "IDENTIFIER()",
}
_BUILT_IN = ("", "builtin.", "system.builtin.")
# Words before a parenthesis that call nothing, in addition to those of an expression.
_KEYWORDS = CALLS_NOTHING | words(
    """
    cube except exclude filter from grouping group having include intersect join lateral limit minus offset on over
    pivot qualify rollup select sets tablesample union unpivot using values where within
    """
)
# Their options or types would have to be judged: one may name a file or a class.
_WITH_ARGUMENTS_TO_JUDGE = frozenset(TYPE_ARGUMENT) | {"schema_of_xml"}
_BEFORE_A_RELATION = words("from join lateral stream table")


def check_query(spark: SparkSession, sql: str, parameters: Mapping[str, Any], views: Collection[str]) -> None:
    """Judge a whole statement as Spark will analyse it. Reads and runs nothing.

    `views` are those of the source. Raises InvalidJobSpec for unlisted constructs, and Spark's own ParseException.
    """
    if not is_classic(spark):
        try:
            check_names(spark, sql, views, QUERY_FUNCTIONS | _TABLE_FUNCTIONS)
        except Unjudged as unjudged:
            why = (
                "Over Spark Connect the names in a query must show that it reads its views alone; a Spark of its own "
                '(runner="child") has the parser, and judges more'
            )
            raise _refused(str(unjudged), why, **LOCAL_ONLY) from None
        return
    found = Tree(spark, parser_of(spark).parsePlan(sql))
    for name in sorted(set(found.classes)):
        if not (name.startswith(EXPRESSIONS) or (name.startswith(CATALYST) and short(name) in _NODES)):
            raise _refused(_WORDS.get(short(name), short(name)), "A query may only compute rows")
    try:
        check_calls(spark, found, QUERY_FUNCTIONS, parameters)
    except UnlistedCall as refused:
        raise _refused(refused.what, "A query may call functions of Spark that compute a value") from None
    for call in found.of_class("UnresolvedFunction"):
        name = _dotted(call.nameParts()).lower().rsplit(".", 1)[-1]
        if call.arguments().size() >= _OPTIONS_FROM.get(name, call.arguments().size() + 1):
            raise _refused(f"options of {name}()", "One of them names a file that is read")
    for call in found.of_class("UnresolvedGenerator"):
        _check_function(call.name().unquotedString(), QUERY_FUNCTIONS)
    for call in found.of_class("UnresolvedTableValuedFunction"):
        _check_function(_dotted(call.name()), _TABLE_FUNCTIONS)
    _check_relations(spark, found)


def syntax_error(spark: SparkSession, error: PySparkException, text: str) -> str:
    """Return what Spark's parser finds wrong in the author's query, with the place in that text.

    `error`: the parser's, for a statement with the query in parentheses. No parsed text has a bound value in it.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - a job without Spark imports no PySpark

    if is_classic(spark):
        try:
            parser_of(spark).parsePlan(text)
        except PySparkException as own:
            return _without_state(analysis_text(own))
        # Only in our parentheses it does not parse.
        return "it ends with ;: leave that out" if ";" in text else "it is a statement, and a source needs a SELECT"
    # A server parses only what it then runs.
    reason = _without_state(with_own_lines(analysis_text(error)))
    line = re.search(r"\(line (\d+)", reason)
    is_after = line is not None and int(line[1]) > len(text.splitlines())
    return "Syntax error at its end" if is_after else reason


def with_own_lines(reason: str) -> str:
    """Return a message of Spark with the lines of the author's text: our statements begin one line before it."""
    return re.sub(r"\bline (\d+)(?=,? pos)", lambda found: f"line {max(int(found[1]) - 1, 1)}", reason)


def _without_state(reason: str) -> str:
    """Return a message of Spark's parser without the names of its condition: the sentence and the place."""
    return re.sub(r"^\[\w+\] |\.? SQLSTATE: \w+", "", reason)


def _check_function(name: str, known: frozenset[str]) -> None:
    bare = name.lower().rsplit(".", 1)[-1]
    if name.lower().removesuffix(bare) not in _BUILT_IN or bare not in known:
        raise _refused(f"the function {name}()", "A query may call functions of Spark that compute a value")


def _check_relations(spark: SparkSession, found: Tree) -> None:
    """Check that every name is a temporary view, as the source's views are, or a query that a WITH names."""
    sessions: Any = spark._jsparkSession
    catalog = sessions.sessionState().catalog()
    named = set()
    for each in found.of_class("UnresolvedWith"):
        relations = each.cteRelations()
        named |= {str(relations.apply(index).productElement(0)).lower() for index in range(relations.size())}
    for relation in found.of_class("UnresolvedRelation"):
        parts = relation.multipartIdentifier()
        name = str(parts.head())
        is_view = parts.size() == 1 and catalog.getTempView(name).isDefined()
        # A name of a WITH counts only inside of it; outside it would be a table.
        is_named = parts.size() == 1 and name.lower() in named and not spark.catalog.tableExists(_quoted([name]))
        if not (is_view or is_named):
            raise _refused(
                f"the relation {_dotted(parts)}",
                'A query reads what the source\'s views name: query("SELECT … FROM rows", rows=files(…)), and no file '
                "by its path and no table of a catalog",
            )


def _quoted(parts: Sequence[str]) -> str:
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def _dotted(parts: Any) -> str:
    return str(parts.mkString("."))


def _refused(what: str, why: str, **facts: Any) -> InvalidJobSpec:
    return InvalidJobSpec(
        f"The source's SQL contains {what}, which is refused. {why}. If all of the text is your own, and no template "
        'inserts another person\'s text, allow it with unrestricted=["query"]. Nothing was read.',
        argument="source",
        **facts,
    )


class Unjudged(Exception):
    """A text whose names do not prove that it is harmless: `args[0]` names the construct."""


def check_names(spark: SparkSession, sql: str, views: Collection[str], listed: Collection[str]) -> None:
    """Accept a statement that calls functions of `listed` only and reads `views` only.

    Queries Spark for its functions, and for tables of these names. Raises Unjudged.
    """
    cut = sql_text(sql)
    if cut.problem is not None:
        raise Unjudged(cut.problem)
    tokens = cut.tokens
    if _setting(spark, FILES_BY_SQL, "true") != "false":
        raise Unjudged(f"names, which may be those of files: the server keeps {FILES_BY_SQL}")
    if _setting(spark, "spark.sql.ansi.doubleQuotedIdentifiers", "false") != "false":
        raise Unjudged("names, which may be in double quotes: the session has spark.sql.ansi.doubleQuotedIdentifiers")
    _check_calls(spark, tokens, frozenset(listed) - _WITH_ARGUMENTS_TO_JUDGE)
    if any(token.word == "using" and after not in (OPEN, OUTSIDE) for _, token, after in neighbours(tokens)):
        raise Unjudged("USING without a list of columns")
    known = {name.lower() for name in views}
    for parts in dict.fromkeys(_relations(tokens)):
        if len(parts) == 1 and parts[0].lower() in known:
            continue
        if len(parts) > 1 and any(set(part) & set("/\\:") for part in parts):
            raise Unjudged("a name that may be the path of a file")
        if _is_table(spark, parts):
            raise Unjudged(f"the relation {'.'.join(parts)}")


def _check_calls(spark: SparkSession, tokens: Sequence[Token], listed: frozenset[str]) -> None:
    # A text before a parenthesis may also be a name.
    calls = [
        (before, token)
        for before, token, after in neighbours(tokens)
        if after == OPEN and (token.is_name or token.kind == "string")
    ]
    if not calls:
        return
    built_in = built_into_server(spark, listed)
    others = names_of(spark, "SHOW USER FUNCTIONS")
    for before, token in calls:
        name = token.text.lower()
        is_keyword = token.word in _KEYWORDS and name not in others
        # The alias of a relation, with names of its columns.
        is_alias = before.word == "as" and name != "identifier"
        if before == DOT or not (is_keyword or name in built_in or is_alias):
            raise Unjudged(f"the function {name}()")


def _relations(tokens: Sequence[Token]) -> Iterator[tuple[str, ...]]:
    """Yield the parts of each name that may be a relation."""
    for index, (before, token, _) in enumerate(neighbours(tokens)):
        if not token.is_name or not (before in (OPEN, COMMA, OUTSIDE) or before.word in _BEFORE_A_RELATION):
            continue
        parts, at = [token.text], index + 1
        while tokens[at : at + 1] == [DOT] and at + 1 < len(tokens) and tokens[at + 1].is_name:
            parts.append(tokens[at + 1].text)
            at += 2
        if tokens[at : at + 1] != [OPEN]:
            yield tuple(parts)


def _is_table(spark: SparkSession, parts: Sequence[str]) -> bool:
    """Return whether a catalog has a table or a view of this name; True also if that is unknown."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - a job without Spark imports no PySpark

    try:
        return bool(spark.catalog.tableExists(_quoted(parts)))
    except PySparkException:
        return True


def _setting(spark: SparkSession, name: str, default: str) -> str:
    return str(spark.conf.get(name, default)).lower()
