"""What a source's query may do where the parser is a server's (Spark Connect): judged by its tokens, and before.

Connect analyses whatever it parses, and the tree is out of reach. So each rule here holds however Spark parses the
tokens; most words of SQL may also be names. A call is a name before a parenthesis, and must be a listed function that
is built into Spark, without a qualifier. A program is run by USING and a text. The name of a relation follows FROM,
JOIN, TABLE, LATERAL, STREAM, a comma or an opening parenthesis: a name there that is no view of the source must be no
table of a catalog. No relation is a file, by a setting of the session. The invariant: a text that passes here and that
Spark can analyse passes `query_gate` too. Source: Spark 4.2, SqlBaseParser.g4; tests/security/test_query_names.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from airflow_txlog.jobs.spark.session import FILES_BY_SQL
from airflow_txlog.jobs.sql.functions import CALLS_NOTHING, TYPE_ARGUMENT, built_into_server, names_of
from airflow_txlog.jobs.sql.parsed import words
from airflow_txlog.sql.lexer import Token
from airflow_txlog.sql.sql_text import sql_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Words before a parenthesis that call nothing, besides those of an expression.
_KEYWORDS = CALLS_NOTHING | words(
    """
    cube except exclude filter from grouping group having include intersect join lateral limit minus offset on over
    pivot qualify rollup select sets tablesample union unpivot using values where within
    """
)
# Their options or types would have to be judged: one may name a file or a class.
_WITH_ARGUMENTS_TO_JUDGE = frozenset(TYPE_ARGUMENT) | {"schema_of_xml"}
_BEFORE_A_RELATION = words("from join lateral stream table")
_OPEN, _COMMA, _DOT = Token("symbol", "("), Token("symbol", ","), Token("symbol", ".")
_NAMING = ("word", "name")


class Unjudged(Exception):
    """A text that the names in it do not show to be harmless: `args[0]` says what is in it."""


def check_names(spark: SparkSession, sql: str, views: Collection[str], listed: Collection[str]) -> None:
    """Accept a statement that calls functions of `listed` only and reads `views` only.

    Asks Spark for its functions, and whether there are tables of these names. Raises Unjudged.
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
    for word, following in zip(tokens, [*tokens[1:], _OPEN], strict=True):
        if word.kind == "word" and word.text.lower() == "using" and following != _OPEN:
            raise Unjudged("USING without a list of columns")
    known = {name.lower() for name in views}
    for parts in dict.fromkeys(_relations(tokens)):
        if len(parts) == 1 and parts[0].lower() in known:
            continue
        if len(parts) > 1 and any(set(part) & set("/\\:") for part in parts):
            raise Unjudged("a name that may be the path of a file")
        if _is_table(spark, parts):
            raise Unjudged(f"the relation {'.'.join(parts)}")


def _check_calls(spark: SparkSession, tokens: Sequence[Token], listed: Collection[str]) -> None:
    calls = list(_calls(tokens))
    if not calls:
        return
    built_in = built_into_server(spark, frozenset(listed))
    others = names_of(spark, "SHOW USER FUNCTIONS")
    for before, token in calls:
        name = token.text.lower()
        is_keyword = token.kind == "word" and name in _KEYWORDS and name not in others
        is_listed = name in built_in
        # The alias of a relation, with names of its columns.
        is_alias = before.kind == "word" and before.text.lower() == "as"
        if before == _DOT or not (is_keyword or is_listed or (is_alias and name != "identifier")):
            raise Unjudged(f"the function {name}()")


def _calls(tokens: Sequence[Token]) -> Iterator[tuple[Token, Token]]:
    """Each name before a parenthesis, after what precedes it. A text may be a name too."""
    for before, token, following in zip([_OPEN, *tokens], tokens, tokens[1:], strict=False):
        if following == _OPEN and token.kind in (*_NAMING, "string"):
            yield before, token


def _relations(tokens: Sequence[Token]) -> Iterator[tuple[str, ...]]:
    """The parts of each name that may be a relation's."""
    for index, token in enumerate(tokens):
        before = tokens[index - 1] if index else _OPEN
        is_begun = before in (_OPEN, _COMMA) or (before.kind == "word" and before.text.lower() in _BEFORE_A_RELATION)
        if not is_begun or token.kind not in _NAMING:
            continue
        parts, at = [token.text], index + 1
        while tokens[at : at + 1] == [_DOT] and at + 1 < len(tokens) and tokens[at + 1].kind in _NAMING:
            parts.append(tokens[at + 1].text)
            at += 2
        if tokens[at : at + 1] != [_OPEN]:
            yield tuple(parts)


def _is_table(spark: SparkSession, parts: Sequence[str]) -> bool:
    """Whether a catalog has a table or a view of this name; also where it cannot say."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - a job without Spark imports no PySpark

    try:
        return bool(spark.catalog.tableExists(".".join("`" + part.replace("`", "``") + "`" for part in parts)))
    except PySparkException:
        return True


def _setting(spark: SparkSession, name: str, default: str) -> str:
    return str(spark.conf.get(name, default)).lower()
