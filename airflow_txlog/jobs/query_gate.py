"""What a source's query may do unless the operator leaves it unrestricted: compute rows from the views of the source.

The text may be templated, and with it comes whatever stands in it. Spark's SQL can run programs (`TRANSFORM … USING`),
call any static method of Java (`reflect`), read any file (`text.`/etc/passwd``), and load a class that a name, an
option or a function's argument gives; some of it as soon as the query is analysed. So the tree that Spark's parser made
is judged before anything is analysed, and as a whole: the nodes of every subquery, CTE, hint and named window. The
invariant: a relation, a function or a kind of node that is not listed here is refused, also one of a newer Spark.
Source: Spark 4.2, AstBuilder, FunctionRegistry, ResolveSQLOnFile, CallMethodViaReflection.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.jobs.session import is_classic


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Functions that compute a value of one row.
_OF_ROWS = _words(
    """
    abs acos acosh add_months aes_decrypt aes_encrypt aggregate array array_append array_compact array_contains
    array_distinct array_except array_insert array_intersect array_join array_max array_min array_position
    array_prepend array_remove array_repeat array_size array_sort array_union arrays_overlap arrays_zip ascii asin
    asinh atan atan2 atanh base64 between bigint bin binary bit_count bit_get bit_length bitmap_bit_position
    bitmap_bucket_number bitmap_count boolean bround btrim cardinality cast cbrt ceil ceiling char char_length
    character_length chr coalesce collate collation concat concat_ws contains conv convert_timezone cos cosh cot
    crc32 csc curdate current_date current_time current_timestamp current_timezone date date_add date_diff
    date_format date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart day dayname dayofmonth
    dayofweek dayofyear decimal decode degrees div double e element_at elt encode endswith equal_null exists exp
    expm1 extract factorial filter find_in_set flatten float floor forall format_number format_string from_csv
    from_json from_unixtime from_utc_timestamp get get_json_object getbit greatest hash hex hll_sketch_estimate
    hll_union hour hypot if ifnull ilike initcap instr int is_valid_utf8 is_valid_variant is_variant_null isnan
    isnotnull isnull json_array_length json_object_keys last_day lcase least left len length levenshtein like ln
    localtimestamp locate log log10 log1p log2 lower lpad ltrim luhn_check make_date make_dt_interval make_interval
    make_time make_timestamp make_timestamp_ltz make_timestamp_ntz make_valid_utf8 make_ym_interval map map_concat
    map_contains_key map_entries map_filter map_from_arrays map_from_entries map_keys map_values map_zip_with mask
    md5 minute mod monotonically_increasing_id month monthname months_between named_struct nanvl negative next_day
    now nullif nullifzero nvl nvl2 octet_length overlay parse_json parse_url pi pmod position positive pow power
    printf quarter quote radians rand randn random randstr reduce regexp regexp_count regexp_extract
    regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr repeat replace reverse right rint rlike
    round rpad rtrim schema_of_csv schema_of_json schema_of_variant sec second sentences sequence sha sha1 sha2
    shiftleft shiftright shiftrightunsigned shuffle sign signum sin sinh size slice smallint sort_array soundex
    space split split_part sqrt startswith str_to_map string struct substr substring substring_index tan tanh time
    time_bucket time_diff time_from_micros time_from_millis time_from_seconds time_to_micros time_to_millis
    time_to_seconds time_trunc timestamp timestamp_micros timestamp_millis timestamp_seconds tinyint to_binary
    to_char to_csv to_date to_json to_number to_time to_timestamp to_timestamp_ltz to_timestamp_ntz
    to_unix_timestamp to_utc_timestamp to_varchar to_variant_object transform transform_keys transform_values
    translate trim trunc try_add try_aes_decrypt try_divide try_element_at try_make_interval try_make_timestamp
    try_make_timestamp_ltz try_make_timestamp_ntz try_mod try_multiply try_parse_json try_parse_url try_subtract
    try_to_binary try_to_date try_to_number try_to_time try_to_timestamp try_url_decode try_validate_utf8
    try_variant_get typeof ucase unbase64 unhex uniform unix_date unix_micros unix_millis unix_seconds
    unix_timestamp upper url_decode url_encode uuid validate_utf8 variant_get vector_cosine_similarity
    vector_inner_product vector_l2_distance vector_norm vector_normalize weekday weekofyear when width_bucket
    xxhash64 year zeroifnull zip_with
    """
)
# Of many rows, into many rows, and what tells of the session and the place of a row.
_OF_QUERIES = _words(
    """
    and any any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate
    approx_top_k_combine approx_top_k_estimate array_agg assert_true avg bit_and bit_or bit_xor bitmap_and_agg
    bitmap_construct_agg bitmap_or_agg bool_and bool_or collect_list collect_set corr count count_if
    count_min_sketch covar_pop covar_samp cume_dist current_catalog current_database current_path current_schema
    current_user dense_rank every explode explode_outer first first_value from_xml grouping grouping_id
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
    tuple_union_theta_integer user var_pop var_samp variance vector_avg vector_sum version window window_time xpath
    xpath_boolean xpath_double xpath_float xpath_int xpath_long xpath_number xpath_short xpath_string
    """
)
# Not there, and so refused: reflect, java_method, try_reflect (any static method of Java); from_avro, to_avro,
# schema_of_avro, from_protobuf, to_protobuf (they read the file, or load the class, that an argument names).
FUNCTIONS = _OF_ROWS | _OF_QUERIES
# By the number of arguments from which on the last one is a map of options; one of them names a schema's file.
_OPTIONS_FROM = {"from_xml": 3, "schema_of_xml": 2}
_TABLE_FUNCTIONS = _words(
    """
    collations explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer range sql_keywords stack
    variant_explode variant_explode_outer
    """
)
# What Spark's parser makes of a query, besides expressions.
_NODES = _words(
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
_CATALYST = "org.apache.spark.sql.catalyst."
_EXPRESSIONS = f"{_CATALYST}expressions."
_BUILT_IN = ("", "builtin.", "system.builtin.")


def check_query(spark: SparkSession, sql: str) -> None:
    """Judges a whole statement as Spark will analyse it. Reads and runs nothing.

    Raises InvalidJobSpec for what is not listed, and Spark's own ParseException.
    """
    if not is_classic(spark):
        raise _refused("a query on Spark Connect", "Its server has the parser, so what it does cannot be seen here")
    java: Any = spark._jsparkSession
    # Spark's parser reads the settings of the session that is the thread's active one.
    SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(java)
    found = _Tree(spark, java.sessionState().sqlParser().parsePlan(sql))
    for name in sorted(set(found.classes)):
        if not (name.startswith(_EXPRESSIONS) or (name.startswith(_CATALYST) and _short(name) in _NODES)):
            raise _refused(_in_words(_short(name)), "A query may only compute rows")
    for call in found.of_class("UnresolvedFunction"):
        _check_function(_dotted(call.nameParts()), FUNCTIONS, call.arguments().size())
    for call in found.of_class("UnresolvedGenerator"):
        _check_function(call.name().unquotedString(), FUNCTIONS)
    for call in found.of_class("UnresolvedTableValuedFunction"):
        _check_function(_dotted(call.name()), _TABLE_FUNCTIONS)
    _check_relations(spark, found)


def _check_function(name: str, known: frozenset[str], num_arguments: int = 0) -> None:
    bare = name.lower().rsplit(".", 1)[-1]
    if name.lower().removesuffix(bare) not in _BUILT_IN or bare not in known:
        raise _refused(f"the function {name}()", "A query may call functions of Spark that compute a value")
    if num_arguments >= _OPTIONS_FROM.get(bare, num_arguments + 1):
        raise _refused(f"options of {name}()", "One of them names a file that is read")


def _check_relations(spark: SparkSession, found: _Tree) -> None:
    """Every name is that of a temporary view, as the source's views are, or of a query that a WITH names."""
    sessions: Any = spark._jsparkSession
    catalog = sessions.sessionState().catalog()
    named = {name for each in found.of_class("UnresolvedWith") for name in _names(each)}
    for relation in found.of_class("UnresolvedRelation"):
        parts = relation.multipartIdentifier()
        name = str(parts.head())
        is_view = parts.size() == 1 and catalog.getTempView(name).isDefined()
        # A name of a WITH counts only inside of it, and outside it would be a table's.
        is_named = parts.size() == 1 and name.lower() in named and not spark.catalog.tableExists(_quoted(name))
        if not (is_view or is_named):
            raise _refused(
                f"the relation {_dotted(parts)}",
                'A query reads what the source\'s views name: query("SELECT … FROM rows", rows=files(…)), and no file '
                "by its path and no table of a catalog",
            )


def _names(query_with: Any) -> list[str]:
    relations = query_with.cteRelations()
    return [str(relations.apply(index).productElement(0)).lower() for index in range(relations.size())]


class _Tree:
    """Every node below a parsed plan, wherever it stands: in lists, maps, tuples and options too."""

    def __init__(self, spark: SparkSession, plan: Any) -> None:
        jvm: Any = spark._jvm
        java = jvm.java.lang
        of = java.Class.forName
        handles, methods = java.invoke.MethodHandles, java.invoke.MethodType
        lookup = handles.publicLookup()
        is_instance = lookup.findVirtual(
            of("java.lang.Class"), "isInstance", methods.methodType(java.Boolean.TYPE, of("java.lang.Object"))
        )

        def function(handle: Any) -> Any:
            return java.invoke.MethodHandleProxies.asInterfaceInstance(of("scala.Function1"), handle)

        def is_a(name: str) -> Any:
            return function(is_instance.bindTo(of(name)))

        def method(owner: str, name: str, returns: str) -> Any:
            return function(lookup.findVirtual(of(owner), name, methods.methodType(of(returns))))

        itself = function(handles.identity(of("java.lang.Object")))
        parts = method("scala.Product", "productIterator", "scala.collection.Iterator")
        is_node, is_many = is_a(f"{_CATALYST}trees.TreeNode"), is_a("scala.collection.Iterable")
        # Level by level and in the JVM: a tree has thousands of parts, and each call from here takes a while.
        level = getattr(plan.children().take(0), "$colon$plus")(plan)
        nodes = level
        while not level.isEmpty():
            many = level.filter(is_many).flatMap(itself)
            level = getattr(many, "$plus$plus")(level.filterNot(is_many).filter(is_a("scala.Product")).flatMap(parts))
            nodes = getattr(nodes, "$plus$plus")(level.filter(is_node))
        self._nodes = nodes
        names = str(nodes.map(method("java.lang.Object", "getClass", "java.lang.Class")).mkString("\n"))
        self.classes = [name.removeprefix("class ") for name in names.split("\n")]

    def of_class(self, kind: str) -> list[Any]:
        return [self._nodes.apply(index) for index, name in enumerate(self.classes) if _short(name) == kind]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _short(name: str) -> str:
    """The name of a class without its package, and without what the compiler adds to an object's."""
    return name.rsplit(".", 1)[-1].split("$", 1)[0]


def _dotted(parts: Any) -> str:
    return str(parts.mkString("."))


def _in_words(kind: str) -> str:
    return {
        "ScriptTransformation": "TRANSFORM … USING, which runs a program",
        "PlanWithUnresolvedIdentifier": "IDENTIFIER()",
        "ExpressionWithUnresolvedIdentifier": "IDENTIFIER()",
    }.get(kind, kind)


def _refused(what: str, why: str) -> InvalidJobSpec:
    return InvalidJobSpec(
        f"The source's SQL holds {what}, which is refused. {why}. Where all of the text is yours, and no template puts "
        'another person\'s text into it, allow it by unrestricted=["query"]. Nothing was read.',
        argument="source",
    )
