"""The words of Spark SQL that may be more than names.

A column may have such a name too: its place in the text decides. The invariant: no keyword of a supported Spark is
missing. Source: Spark 4.2, `sql_keywords()`, which leaves out those that share a token: SqlBaseLexer.g4.
"""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


KEYWORDS = words(
    """
    add after aggregate all alter always analyze and anti any any_value approx archive array as asc asensitive at
    atomic authorization begin bernoulli between bigint binary binding boolean both bucket buckets by byte cache
    call called cascade case cast catalog catalogs change changes char character check clear close cluster clustered
    codegen collate collation collations collection column columns comment commit compact compactions compensation
    compute concatenate condition constraint contains continue cost create cross cube current current_database
    current_date current_path current_schema current_time current_timestamp current_user cursor data database
    databases date date_add date_diff dateadd datediff day dayofyear days dbproperties dec decimal declare default
    default_path defined definer delay delete delimited desc describe deterministic dfs directories directory
    distance distinct distribute div do double drop else elseif end enforced escape escaped evolution exact except
    exchange exclude exclusive execute exists exit explain export extend extended external extract false fetch
    fields fileformat filter first float flow following for foreign format formatted found from full function
    functions generated geography geometry global grant group grouping handler having hour hours identified
    identifier identity if ignore ilike immediate import in include inclusive increment index indexes inner inpath
    input inputformat insensitive insert int integer intersect interval into invoker is items iterate join json key
    keys language last lateral lazy leading leave left level like limit lines list load local location lock locks
    logical long loop macro map matched materialized max measure merge metrics microsecond microseconds millisecond
    milliseconds minus minute minutes modifies month months msck name namespace namespaces nanosecond nanoseconds
    natural nearest next no none norely not null nulls numeric of offset on only open option options or order out
    outer outputformat over overlaps overlay overwrite partition partitioned partitions path percent pivot placing
    position preceding primary principals procedure procedures properties purge qualify quarter query range read
    reads real recordreader recordwriter recover recursion recursive reduce references refresh rely rename repair
    repeat repeatable replace reset respect restrict return returns revoke right role roles rollback rollup row rows
    schema schemas second seconds security select semi separated serde serdeproperties session_user set sets short
    show similarity single skewed smallint some sort sorted source specific sql sqlexception sqlstate start
    statistics stored stratify stream streaming string struct substr substring sync system system_path system_time
    system_version table tables tablesample target tblproperties terminated then time timediff timestamp
    timestamp_ltz timestamp_ntz timestampadd timestampdiff tinyint to touch trailing transaction transactions
    transform trim true truncate try_cast type unarchive unbounded uncache union unique unknown unlock unpivot unset
    until update use user using value values var varchar variable variant version view views void watermark week
    weeks when where while window with within without x year years zone
    """
) | words("regexp rlike temp temporary")

# Words that begin, or go on with, an expression of another form: a column of such a name is written in backquotes.
NO_CERTAIN_NAMES = words(
    """
    all and any array at between by case cast collate current_date current_path current_time current_timestamp
    current_user distinct div else end escape except exists extract false filter first following for from group
    having identifier ilike in intersect interval is last lateral like limit localtime localtimestamp map minus
    named_struct not null on or order over overlay position regexp rlike select session_user set some struct substr
    substring table then timestampadd timestampdiff trim true union unique user using values when where window with
    within x
    """
)
