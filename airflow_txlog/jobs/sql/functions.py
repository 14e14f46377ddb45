"""The limits of a SQL text: it may use operators, and call listed functions of Spark that compute a value of one row.

A text is written by an author, or is in the table's log, which every writer of the table can write. Three checks each
refuse everything that they do not know. Before Spark analyses a text, its parser's tree may hold only the classes and
functions that are listed here: analysis itself already loads the class that `reflect` names, evaluates the argument of
IDENTIFIER() and instantiates a type that `from_json` is given as JSON. If the parser is on a server (Connect), the
names in the text decide, and a text that cannot be cut into tokens is refused. After analysis, every expression must be
Spark's own: a name without parentheses may have become a variable or the session's user, and the session may have
replaced a listed function.

The invariants: an unlisted function is refused, also one of a newer Spark; and a `Tree` has every node of a parsed
text, in lists, maps, tuples, hints and options too. Source: Spark 4.2, FunctionRegistry, AstBuilder,
ExprUtils.evalTypeExpr, LiteralFunctionResolution.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from airflow_txlog.errors import UnsupportedPredicate
from airflow_txlog.errors.names import did_you_mean
from airflow_txlog.jobs.spark.session import LOCAL_ONLY
from airflow_txlog.sql.lexer import DOT, KEYWORDS, OPEN, OUTSIDE, neighbours, words
from airflow_txlog.sql.sql_text import sql_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Not listed, and so refused: functions that run code (reflect), read files or their names (input_file_name,
# from_protobuf, from_xml by its schema option), depend on the session (current_user, version), put values into an error
# (raise_error, assert_true), follow a document (xpath), or do not compute on one row. Spark's analysis refuses
# nondeterministic functions in conditions.
FUNCTIONS = words(
    """
    if coalesce ifnull nullif nullifzero nvl nvl2 nanvl zeroifnull equal_null isnull isnotnull isnan between when
    like ilike rlike regexp regexp_like greatest least typeof

    bigint binary boolean cast date decimal double float int smallint string time timestamp tinyint

    abs acos acosh asin asinh atan atan2 atanh bin bround cbrt ceil ceiling conv cos cosh cot csc degrees div e exp
    expm1 factorial floor hex hypot ln log log10 log1p log2 mod negative pi pmod positive pow power radians rint round
    sec sign signum sin sinh sqrt tan tanh try_add try_divide try_mod try_multiply try_subtract unhex width_bucket
    monotonically_increasing_id rand randn random randstr shuffle uniform uuid
    bit_count bit_get getbit shiftleft shiftright shiftrightunsigned bitmap_bit_position bitmap_bucket_number
    bitmap_count

    ascii base64 bit_length btrim char char_length character_length chr collate collation concat concat_ws contains
    decode elt encode endswith find_in_set format_number format_string initcap instr is_valid_utf8 lcase left len length
    levenshtein locate lower lpad ltrim luhn_check make_valid_utf8 mask octet_length overlay position printf quote
    regexp_count regexp_extract regexp_extract_all regexp_instr regexp_replace regexp_substr repeat replace reverse
    right rpad rtrim sentences soundex space split split_part startswith substr substring substring_index to_binary
    to_char to_number to_varchar translate trim try_to_binary try_to_number try_validate_utf8 ucase unbase64 upper
    validate_utf8 parse_url try_parse_url try_url_decode url_decode url_encode
    crc32 hash md5 sha sha1 sha2 xxhash64 aes_encrypt aes_decrypt try_aes_decrypt

    add_months convert_timezone curdate current_date current_time current_timestamp date_add date_diff
    date_format date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart day dayname dayofmonth
    dayofweek dayofyear extract from_unixtime from_utc_timestamp hour last_day localtimestamp make_date make_dt_interval
    make_interval make_time make_timestamp make_timestamp_ltz make_timestamp_ntz make_ym_interval minute month monthname
    months_between next_day now quarter second time_bucket time_diff time_from_micros time_from_millis time_from_seconds
    time_to_micros time_to_millis time_to_seconds time_trunc timestamp_micros timestamp_millis timestamp_seconds to_date
    to_time to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp to_utc_timestamp trunc try_make_interval
    try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz try_to_date try_to_time try_to_timestamp unix_date
    unix_micros unix_millis unix_seconds unix_timestamp weekday weekofyear year

    aggregate array array_append array_compact array_contains array_distinct array_except array_insert array_intersect
    array_join array_max array_min array_position array_prepend array_remove array_repeat array_size array_sort
    array_union arrays_overlap arrays_zip cardinality element_at exists filter flatten forall get map map_concat
    map_contains_key map_entries map_filter map_from_arrays map_from_entries map_keys map_values map_zip_with
    named_struct reduce sequence size slice sort_array str_to_map struct transform transform_keys transform_values
    try_element_at zip_with
    vector_cosine_similarity vector_inner_product vector_l2_distance vector_norm vector_normalize

    from_csv from_json get_json_object json_array_length json_object_keys schema_of_csv schema_of_json to_csv to_json
    is_valid_variant is_variant_null parse_json schema_of_variant to_variant_object try_parse_json try_variant_get
    variant_get hll_sketch_estimate hll_union
    """
)
# The position of the argument that is a type. Spark takes it as DDL, or else as JSON, in which a user-defined type
# names a class that Spark then instantiates.
TYPE_ARGUMENT = {"from_csv": 1, "from_json": 1, "from_xml": 1, "variant_get": 2, "try_variant_get": 2}
_GIVES_A_TYPE = ("schema_of_csv", "schema_of_json", "schema_of_xml")

# The parser's nodes for names, literals and operators, without calls.
_PARSED = words(
    """
    Add Alias And Between BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CaseWhen Cast Coalesce Collate Concat
    CreateNamedStruct CurrentDate CurrentTime CurrentTimestamp Divide EqualNullSafe EqualTo Extract GreaterThan
    GreaterThanOrEqual ILike In IntegralDivide IsNotNull IsNotUnknown IsNull IsUnknown LambdaFunction LessThan
    LessThanOrEqual Like LikeAll LikeAny Literal LocalTimestamp Lower Multiply NamePlaceholder NamedArgumentExpression
    NamedParameter Not NotLikeAll NotLikeAny Or Overlay RLike Remainder SemiStructuredExtract ShiftLeft ShiftRight
    ShiftRightUnsigned StringLocate StringTrim StringTrimLeft StringTrimRight Substring Subtract TimestampAdd
    TimestampDiff UnaryMinus UnaryPositive UnresolvedAttribute UnresolvedCollation UnresolvedExtractValue
    UnresolvedFunction UnresolvedNamedLambdaVariable
    """
)
_SUBQUERIES = words("Exists InSubquery LateralSubquery ListQuery ScalarSubquery")
_WINDOWS = words("WindowExpression UnresolvedWindowExpression")
# Expressions without arguments that an analysed text may hold: columns, constants, clocks, random values.
_LEAVES = words(
    """
    AttributeReference Literal NamedLambdaVariable CurrentDate CurrentTime CurrentTimeZone CurrentTimestamp
    LocalTimestamp Now Uuid MonotonicallyIncreasingID Pi EulerNumber CreateArray CreateMap CreateNamedStruct Concat
    CommonExpressionRef ResolvedCollation
    """
)
# Expressions in Spark's own packages that run other people's code.
_FOREIGN = words(
    """
    ApplyFunctionExpression CallMethodViaReflection PythonUDAF PythonUDF PythonUDTF SQLFunctionExpression
    SQLScalarFunction ScalaUDF TransformExpression TryReflect
    """
)
# The nodes below our filter: the relation, but none that a SQL function of the session would insert.
_RELATIONS = ("SubqueryAlias", "Join")
# Words before an opening parenthesis that call nothing, including type names with a length.
CALLS_NOTHING = words(
    """all and any as by case distinct else escape for from in interval is not or some then timestampadd timestampdiff
    try_cast varchar"""
)
# The release that has all functions listed here and in `query_gate`.
_LISTED_OF = (4, 2)
# Words that begin a query; two of them run a program by USING.
_QUERIES = words("from select table values with")

_OTHER_ROWS = "It reads what conflict checks cannot see: join it as a source."
UNLISTED = (
    "It may call only functions of Spark that compute a value from values of one row, as docs/operators/shared.md "
    "lists them. Compute anything else in the source's query."
)


def check_parsed(spark: SparkSession, text: str, parameters: Mapping[str, Any]) -> None:
    """Check by the tree of a classic session's parser that the text has only what is listed here. Analyses nothing.

    `parameters` are the ones that may be bound. Raises UnsupportedPredicate, and Spark's own error if the text is not
    one expression.
    """
    found = Tree(spark, parser_of(spark).parseExpression(text))
    for name in found.classes:
        kind = short(name)
        if kind in _SUBQUERIES:
            raise unsupported(text, "a subquery", _OTHER_ROWS)
        if kind in _WINDOWS:
            raise unsupported(text, "a window function", "It may look at one row only.")
        if kind == "UnresolvedStar":
            raise unsupported(text, "a star", "Name the columns that are meant.")
        if kind == "ExpressionWithUnresolvedIdentifier":
            raise unsupported(text, "IDENTIFIER()", "Write the name itself.")
        if name.startswith(f"{EXPRESSIONS}aggregate."):
            raise unsupported(text, "an aggregate function", "It may look at one row only.")
        if not name.startswith(CATALYST) or kind not in _PARSED:
            raise unsupported(text, kind, UNLISTED)
    try:
        check_calls(spark, found, FUNCTIONS, parameters)
    except UnlistedCall as call:
        raise unsupported(text, call.what, call.why) from None


class UnlistedCall(Exception):
    """A call that `check_calls` refuses: its description, and the reason."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what)
        self.what = what
        self.why = why


def check_calls(spark: SparkSession, found: Tree, listed: frozenset[str], parameters: Mapping[str, Any]) -> None:
    """Check that a parsed tree calls only listed functions that are built into this Spark. Raises UnlistedCall.

    `parameters` are the ones that may be bound.
    """
    calls = found.of_class("UnresolvedFunction")
    known = _built_in(spark._jvm) if calls else frozenset()
    for call in calls:
        name = call.nameParts().mkString(".").lower()
        bare = name.removeprefix("system.").removeprefix("builtin.")
        if bare not in listed or bare not in known:
            raise UnlistedCall(f"the function {name}()", UNLISTED)
        if bare in TYPE_ARGUMENT and not _has_plain_type(spark, call, TYPE_ARGUMENT[bare], parameters):
            raise UnlistedCall(f"a type for {name}() that is not a plain text", "Write the type as SQL writes it.")


def check_named(text: str, built_in: Collection[str]) -> None:
    """Check the names in a text if the parser is out of reach; types may not be given as text.

    `built_in` are the functions of the server's own Spark: a catalog may have a function of another listed name.
    Raises UnsupportedPredicate, also for a text that cannot be cut into tokens. A local Spark may accept it.
    """
    cut = sql_text(text)
    if cut.problem is not None:
        raise unsupported(text, cut.problem, "Whether it calls a function cannot be seen.", **LOCAL_ONLY)
    allowed = CALLS_NOTHING | ((FUNCTIONS - set(TYPE_ARGUMENT)) & set(built_in))
    for before, token, following in neighbours(cut.tokens):
        if following is OUTSIDE:
            break
        name = token.text.lower()
        # Whatever follows: the author writes a column of that name in backquotes.
        if token.word == "using" or (before in (OPEN, OUTSIDE) and token.word in _QUERIES):
            raise unsupported(text, "a subquery", _OTHER_ROWS, **LOCAL_ONLY)
        is_call = following == OPEN and (token.is_name or token.kind == "string")
        # A name with a qualifier may be a catalog's function.
        if is_call and (name not in allowed or before == DOT):
            raise unsupported(text, f"the function {name}()", UNLISTED, **LOCAL_ONLY)


@lru_cache(maxsize=4)
def built_into_server(spark: SparkSession, listed: frozenset[str]) -> frozenset[str]:
    """Return which of the listed functions are built into a Spark whose registry is out of reach."""
    major, minor = spark.version.split(".")[:2]
    return listed if (int(major), int(minor)) >= _LISTED_OF else listed & names_of(spark, "SHOW SYSTEM FUNCTIONS")


def names_of(spark: SparkSession, statement: str) -> frozenset[str]:
    """Return the names that a SHOW FUNCTIONS lists, without qualifiers and in lower case."""
    return frozenset(str(row[0]).rsplit(".", 1)[-1].lower() for row in spark.sql(statement).collect())


def check_listed(text: str) -> None:
    """Raise UnsupportedPredicate for a call of an unlisted function in a text that any parser cuts alike.

    Does not call Spark. A keyword before a parenthesis may be no call.
    """
    for name in sql_text(text).calls():
        if name not in FUNCTIONS | CALLS_NOTHING | KEYWORDS:
            raise unsupported(text, f"the function {name}()", f"{UNLISTED}{did_you_mean(name, FUNCTIONS)}")


def check_analysed(spark: SparkSession, filtered: Any, text: str) -> None:
    """Check that every expression of an analysed filter, a plan node of a classic session, is Spark's own.

    Raises UnsupportedPredicate.
    """
    if filtered.child().nodeName() not in _RELATIONS:
        raise unsupported(text, "a function of the session", UNLISTED)
    condition = filtered.condition()
    every = classes_of(spark, condition.map(_functions(spark._jvm).itself))
    foreign = [name for name in every if not name.startswith(EXPRESSIONS) or short(name) in _FOREIGN]
    foreign += [name for name in classes_of(spark, condition.collectLeaves()) if short(name) not in _LEAVES]
    if foreign:
        raise unsupported(text, f"the expression {short(foreign[0])}", UNLISTED)


def unsupported(text: str, construct: str, why: str, **facts: Any) -> UnsupportedPredicate:
    """Return the error for valid SQL that a text may not contain."""
    return UnsupportedPredicate(
        f"The text {text!r} holds {construct}, which may not stand here. {why} Nothing was read.",
        predicate=text,
        construct=construct,
        **facts,
    )


def _has_plain_type(spark: SparkSession, call: Any, place: int, parameters: Mapping[str, Any]) -> bool:
    """Return whether the type argument of a call is a text in SQL's own words, and neither JSON nor a sample's type."""
    arguments = call.arguments()
    if any(short(name) == "NamedArgumentExpression" for name in classes_of(spark, arguments)):
        return False
    if arguments.size() <= place:
        return True
    given = arguments.apply(place)
    kind = short(given.getClass().getName())
    if kind == "UnresolvedFunction":
        return given.nameParts().mkString(".").lower() in _GIVES_A_TYPE
    if kind == "NamedParameter":
        return "{" not in str(parameters.get(given.name(), ""))
    return kind == "Literal" and "{" not in str(given.value())


@lru_cache(maxsize=1)
def _built_in(jvm: Any) -> frozenset[str]:
    """Return the functions that are built into this Spark, whatever the session has added or replaced."""
    # Since Spark 4.2 their names begin with the namespace system.builtin.
    names = jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.builtin().listFunction().mkString(" ")
    return frozenset(name.rsplit(".", 1)[-1] for name in str(names).split(" "))


CATALYST = "org.apache.spark.sql.catalyst."
EXPRESSIONS = f"{CATALYST}expressions."


def short(name: str) -> str:
    return name.rsplit(".", 1)[-1].split("$", 1)[0]


def parser_of(spark: SparkSession) -> Any:
    java: Any = spark._jsparkSession
    # The parser uses the functions of the thread's active session.
    type(spark)._get_j_spark_session_class(spark._jvm).setActiveSession(java)
    return java.sessionState().sqlParser()


class Tree:
    """A node (of a plan or an expression) and every node below it; `classes` has their full names in the same order.

    The JVM walks it, by method handles: a tree has thousands of parts, and each call into the JVM takes a while.
    """

    def __init__(self, spark: SparkSession, root: Any) -> None:
        via = _functions(spark._jvm)
        level = getattr(root.children().take(0), "$colon$plus")(root)
        nodes = level
        while not level.isEmpty():
            many = level.filter(via.is_many).flatMap(via.itself)
            level = getattr(many, "$plus$plus")(level.filterNot(via.is_many).filter(via.is_product).flatMap(via.parts))
            nodes = getattr(nodes, "$plus$plus")(level.filter(via.is_node))
        self._nodes = nodes
        self.classes = classes_of(spark, nodes)

    def of_class(self, kind: str) -> list[Any]:
        return [self._nodes.apply(index) for index, name in enumerate(self.classes) if short(name) == kind]


def classes_of(spark: SparkSession, sequence: Any) -> list[str]:
    lines = str(sequence.map(_functions(spark._jvm).class_of).mkString("\n"))
    return [line.removeprefix("class ") for line in lines.split("\n")]


@dataclass(frozen=True, kw_only=True)
class _Functions:
    itself: Any
    class_of: Any
    parts: Any
    is_node: Any
    is_many: Any
    is_product: Any


@lru_cache(maxsize=1)
def _functions(jvm: Any) -> _Functions:
    """Return the methods, made once for each JVM: that takes dozens of calls into it."""
    java = jvm.java.lang
    of = java.Class.forName
    handles, methods = java.invoke.MethodHandles, java.invoke.MethodType
    lookup = handles.publicLookup()
    instance_of = lookup.findVirtual(
        of("java.lang.Class"), "isInstance", methods.methodType(java.Boolean.TYPE, of("java.lang.Object"))
    )

    def function(handle: Any) -> Any:
        return java.invoke.MethodHandleProxies.asInterfaceInstance(of("scala.Function1"), handle)

    def is_a(name: str) -> Any:
        return function(instance_of.bindTo(of(name)))

    def method(owner: str, name: str, returns: str) -> Any:
        return function(lookup.findVirtual(of(owner), name, methods.methodType(of(returns))))

    return _Functions(
        itself=function(handles.identity(of("java.lang.Object"))),
        class_of=method("java.lang.Object", "getClass", "java.lang.Class"),
        parts=method("scala.Product", "productIterator", "scala.collection.Iterator"),
        is_node=is_a(f"{CATALYST}trees.TreeNode"),
        is_many=is_a("scala.collection.Iterable"),
        is_product=is_a("scala.Product"),
    )
