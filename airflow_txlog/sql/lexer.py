"""Spark's lexer: a SQL text as tokens, and the words that may be more than names.

Other lexers disagree with Spark's about literals. `'O''Brien'` is one string to Spark and two concatenated strings to
others, so a person of that name would not be found (soundness A3). The invariants: a text that could be cut in two ways
is not cut at all (`Unreadable`). A string that two parsers could read differently carries its `doubt`. No keyword of
a supported Spark is missing. A column may be named like a keyword: its place in the text decides. Source: Spark 4.2,
SqlBaseLexer.g4 and `sql_keywords()`, which omits keywords that share a token;
tests/engine/table/predicate/test_differential.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace


class Unreadable(Exception):
    """The text cannot be cut into the tokens that Spark would find; `args[0]` names the obstacle."""


class Uncut(Unreadable):
    """Spark cannot cut the text either, and refuses it."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token. `kind` is word, name (in backquotes), string, number, parameter or symbol; `text` is as Spark sees it.

    `doubt` is the reason why two parsers may read a string differently.
    """

    kind: str
    text: str
    doubt: str | None = None

    @property
    def word(self) -> str:
        """The keyword that it may be, in lower case; empty for a token of another kind."""
        return self.text.lower() if self.kind == "word" else ""

    @property
    def symbol(self) -> str:
        """The text of a symbol; empty for a token of another kind."""
        return self.text if self.kind == "symbol" else ""

    @property
    def is_name(self) -> bool:
        """Whether it may name something: a word, or a name in backquotes."""
        return self.kind in ("word", "name")


OPEN, CLOSE, DOT, COMMA = (Token("symbol", text) for text in "().,")
OUTSIDE = Token("outside", "")
"""The token before the first one of a text and after its last."""


def neighbours(tokens: Sequence[Token]) -> Iterator[tuple[Token, Token, Token]]:
    """Yield each token between the one before it and the one after it."""
    return zip([OUTSIDE, *tokens], tokens, [*tokens[1:], OUTSIDE], strict=False)


DOUBLE_QUOTED = "a double-quoted string"
_LONE = re.compile("[\ud800-\udfff]")
_SPACE = re.compile(r"[ \t\r\n]+")
_LINE_COMMENT = re.compile(r"--(?:\\\n|[^\r\n])*")
_RAW_STRING = re.compile(r"[rR](?:'[^']*'|\"[^\"]*\")")
# A one-letter word before a string is Spark's typed literal (X'1F') or something that only other dialects know (N'x').
_PREFIXED_STRING = re.compile(r"[A-Za-z]\s*(?='|\")")
_STRING = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"", re.DOTALL)
_NAME = re.compile(r"`((?:[^`]|``)+)`")
_DOTTED_NUMBER = re.compile(r"(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?(?:BD|D|F)?", re.IGNORECASE | re.ASCII)
_EXPONENT_NUMBER = re.compile(r"\d+[eE][+-]?\d+(?:BD|D|F)?", re.IGNORECASE | re.ASCII)
_WORD = re.compile(r"\w+", re.ASCII)
_PLAIN_NUMBER = re.compile(r"\d+(?:L|S|Y|BD|D|F)?", re.IGNORECASE | re.ASCII)
_PARAMETER = re.compile(r":[ \t\r\n]*([A-Za-z_]\w*)", re.ASCII)
_SYMBOL = re.compile(r"<=>|<>|<=|>=|!=|==|\|\||->|=>|::|[()\[\],.+\-*/%&|^~<>=!:]")
# Characters of no token of an expression; a query may end in a semicolon, or hold a pipe in braces.
_UNKNOWN_TO_SPARK = "@#{}$;"
# `a ISNULL` is a null test to others and the alias ISNULL to Spark.
_ALIAS_TO_SPARK = ("isnull", "notnull")


def has_half_of_a_character(text: str) -> bool:
    """Return whether a text has a lone surrogate, which UTF-8 cannot hold."""
    return not text.isascii() and _LONE.search(text) is not None


class Lexer:
    """Cuts one text. With `has_hints`, hints are cut like the rest."""

    def __init__(self, sql: str, *, has_hints: bool = False) -> None:
        self.sql = sql
        self.has_hints = has_hints
        self.position = 0
        self.tokens: list[Token] = []
        self.spans: list[tuple[int, int]] = []

    def run(self) -> tuple[list[Token], list[tuple[int, int]]]:
        """Return the tokens and their places in the text.

        Raises Unreadable for a text that Spark would refuse to cut or that could be cut in two ways.
        """
        while self.position < len(self.sql):
            self._step()
        self._doubt_neighbours()
        for _, token, following in neighbours(self.tokens):
            if token.word in _ALIAS_TO_SPARK and following != OPEN:
                raise Unreadable(f"the alias {token.text}")
        return self.tokens, self.spans

    def _step(self) -> None:
        sql, at = self.sql, self.position
        character = sql[at]
        if (found := _SPACE.match(sql, at)) is not None:
            self.position = found.end()
        elif sql.startswith("--", at):
            found = _LINE_COMMENT.match(sql, at)
            self.position = len(sql) if found is None else found.end()
        elif self.has_hints and sql.startswith("/*+", at):
            self._token(at + 3, Token("symbol", "/*+"))
        elif sql.startswith("/*", at):
            self.position = _end_of_block_comment(sql, at)
        elif (found := _RAW_STRING.match(sql, at)) is not None:
            self._token(found.end(), Token("string", found[0][2:-1], "a raw string"))
        elif (found := _PREFIXED_STRING.match(sql, at)) is not None:
            self._token(_end_of_string(sql, found.end()), Token("string", "", f"the prefixed string {character}'…'"))
        elif character in "'\"":
            end = _end_of_string(sql, at)
            self._token(end, _string(sql[at:end]))
        elif character == "`":
            found = _NAME.match(sql, at)
            if found is None:
                # Spark also allows an empty name.
                raise (Unreadable if "`" in sql[at + 1 :] else Uncut)("a backquote without its partner")
            self._token(found.end(), Token("name", found[1].replace("``", "`")))
        elif (found := _number(sql, at)) is not None:
            self._check_alone(found)
            self._token(found.end(), Token("number", found[0]))
        elif (found := _WORD.match(sql, at)) is not None:
            self._token(found.end(), Token("word", found[0]))
        elif not sql.startswith("::", at) and (found := _PARAMETER.match(sql, at)) is not None:
            self._token(found.end(), Token("parameter", found[1]))
        elif (found := _SYMBOL.match(sql, at)) is not None:
            self._token(found.end(), Token("symbol", found[0]))
        else:
            raise (Uncut if character in _UNKNOWN_TO_SPARK else Unreadable)(f"the character {character!r}")

    def _token(self, end: int, token: Token) -> None:
        self.tokens.append(token)
        self.spans.append((self.position, end))
        self.position = end

    def _check_alone(self, found: re.Match[str]) -> None:
        glued = found[0][0] == "." and self.position > 0 and re.match(r"[\w)\]`'\"]", self.sql[self.position - 1])
        if glued or re.match(r"[\w.]", self.sql[found.end() : found.end() + 1]):
            raise Unreadable(f"the number {found[0]} and what stands beside it")

    def _doubt_neighbours(self) -> None:
        for at, (before, token, after) in enumerate([*neighbours(self.tokens)]):
            if token.kind == "string" and "string" in (before.kind, after.kind):
                self.tokens[at] = replace(token, doubt="a string in several pieces")


def _string(literal: str) -> Token:
    content = literal[1:-1]
    if literal[0] == '"':
        return Token("string", content, DOUBLE_QUOTED)
    if "'" in content:
        return Token("string", content, "a string with a doubled quote")
    return Token("string", content, "a string with a backslash" if "\\" in content else None)


def _end_of_string(sql: str, at: int) -> int:
    found = _STRING.match(sql, at)
    if found is None:
        raise Uncut("a string without its closing quote")
    return found.end()


def _end_of_block_comment(sql: str, at: int) -> int:
    """Return the end of a comment, which may contain comments. Raises Unreadable for a hint."""
    depth, here = 0, at
    while here < len(sql):
        if sql.startswith("/*", here):
            if sql.startswith("/*+", here):
                raise Unreadable("a hint")
            depth, here = depth + 1, here + 2
        elif sql.startswith("*/", here):
            depth, here = depth - 1, here + 2
            if depth == 0:
                return here
        else:
            here += 1
    raise Uncut("a comment that is not closed")


def _number(sql: str, at: int) -> re.Match[str] | None:
    """Return the number at `at` if it is the longest token there: `1L` is a number and `1LIKE` a name."""
    dotted = _DOTTED_NUMBER.match(sql, at) or _EXPONENT_NUMBER.match(sql, at)
    word = _WORD.match(sql, at)
    if dotted is not None and (word is None or dotted.end() >= word.end()):
        return dotted
    return word if word is not None and _PLAIN_NUMBER.fullmatch(word[0]) else None


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

# Words that begin or continue another form of expression: a column of such a name is written in backquotes.
NO_CERTAIN_NAMES = words(
    """
    all and any array between by case cast collate current_date current_path current_time current_timestamp
    current_user distinct div else end escape except exists extract false filter following for from having
    identifier ilike in intersect interval is lateral like localtime localtimestamp map minus named_struct not null
    on or over overlay regexp rlike select session_user set some struct substr substring table then timestampadd
    timestampdiff trim true union user using values when where window with within
    """
)
