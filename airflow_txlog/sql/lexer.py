"""A predicate's text cut into Spark's tokens, and the copy that sqlglot is shown.

Spark's lexer and sqlglot's disagree about literals: `'O''Brien'` is one string to Spark and the concatenation of two
to sqlglot, so a person of that name would not be found (soundness A3). So no literal reaches sqlglot: every string,
number, backquoted name and parameter is cut out here by Spark's own rules and replaced by a numbered stand-in, and
comments are left out. The invariant: where a text could be cut in two ways, it is not cut at all (`problem`), and a
string whose content two parsers could read differently carries its `doubt`.
Source: Spark 4.2, SqlBaseLexer.g4; tests/engine/table/predicate/test_differential.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache


class _Unreadable(Exception):
    """The text cannot be cut into tokens that Spark would find too; `args[0]` says at what."""


class _Uncut(_Unreadable):
    """Spark cannot cut the text either, and refuses it."""


@dataclass(frozen=True, slots=True)
class Text:
    """A string literal: its content, and why the content is doubtful, if it is."""

    value: str
    doubt: str | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """One token. `kind` is word, name (backquoted), string, number, parameter or symbol; `text` as Spark reads it."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class SqlText:
    """A text and its tokens in order, `spans` their places in it, and what it holds besides words and symbols.

    A text that cannot be cut has a `problem` and no tokens; with `is_refused`, Spark cannot cut it either.
    """

    sql: str
    tokens: Sequence[Token] = ()
    spans: Sequence[tuple[int, int]] = ()
    strings: Sequence[Text] = ()
    numbers: Sequence[str] = ()
    names: Sequence[str] = ()
    parameters: Sequence[str] = ()
    problem: str | None = None
    is_refused: bool = False
    stand_in: str = ""

    def string(self, stand_in: str) -> Text | None:
        """The string that a stand-in stands for, or None where it is none of ours: a parser may make literals up."""
        number = _number_after(_STRING_MARK, stand_in)
        return self.strings[number] if number is not None and number < len(self.strings) else None

    def number(self, stand_in: str) -> str | None:
        """The digits of a numeric stand-in, or None."""
        number = int(stand_in) - _NUMBER_MARK if stand_in.isdecimal() else -1
        return self.numbers[number] if 0 <= number < len(self.numbers) else None

    def name(self, stand_in: str) -> str | None:
        """The quoted name that a stand-in stands for, or None."""
        number = _number_after(_NAME_MARK, stand_in)
        return self.names[number] if number is not None and number < len(self.names) else None

    def parameter(self, stand_in: str) -> str | None:
        """The parameter's name, or None."""
        number = _number_after(_PARAMETER_MARK, stand_in)
        return self.parameters[number] if number is not None and number < len(self.parameters) else None

    def calls(self) -> list[str]:
        """Lower-case names of everything that stands before an opening parenthesis, keywords included."""
        pairs = zip(self.tokens, self.tokens[1:], strict=False)
        return [this.text.lower() for this, following in pairs if this.kind in _NAMING and following == _OPENING]

    def has_star(self) -> bool:
        """Whether a `*` multiplies nothing: after an opening parenthesis, a comma or a dot, or at the start."""
        befores = [_OPENING, *self.tokens]
        return any(
            token == _STAR and before.kind == "symbol" and before.text in ("(", ",", ".")
            for before, token in zip(befores, self.tokens, strict=False)
        )

    def words(self) -> set[str]:
        """Everything that could name a column, in lower case.

        With the content of double-quoted strings: a session may be set to read those as names.
        """
        named = {token.text.lower() for token in self.tokens if token.kind in _NAMING}
        return named | {text.value.lower() for text in self.strings if text.doubt == DOUBLE_QUOTED}


def _number_after(mark: str, stand_in: str) -> int | None:
    digits = stand_in.removeprefix(mark)
    return int(digits) if stand_in.startswith(mark) and digits.isdecimal() else None


# Stand-ins are unlike anything that a parser would put into a tree by itself.
_STRING_MARK = "txlog string "
_NAME_MARK = "txlog name "
_PARAMETER_MARK = "txlog_parameter_"
_NUMBER_MARK = 700_000_000_000

_NAMING = ("word", "name")
_OPENING, _STAR = Token("symbol", "("), Token("symbol", "*")

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
# `a ISNULL` is a null test to sqlglot and the alias ISNULL to Spark.
_ALIAS_TO_SPARK = ("isnull", "notnull")
# The characters of a text that is kept after it was cut: an IN list may have megabytes of them.
_MOST_REMEMBERED = 20_000


def has_half_of_a_character(text: str) -> bool:
    """Whether a text has a lone surrogate, which UTF-8 cannot hold."""
    return not text.isascii() and _LONE.search(text) is not None


def sql_text(sql: str) -> SqlText:
    """Return the text cut into tokens; a text that was asked for lately is cut only once."""
    return _cut(sql) if len(sql) <= _MOST_REMEMBERED else _cut.__wrapped__(sql)


@lru_cache(maxsize=64)
def _cut(sql: str) -> SqlText:
    # A Spark that substitutes replaces ${name} in the whole text, strings included, before it reads anything.
    if "${" in sql:
        return SqlText(sql, problem="variable substitution `${…}`")
    if has_half_of_a_character(sql):
        return SqlText(sql, problem="half of a character, a lone surrogate")
    return _Lexer(sql).run()


def statement_text(sql: str) -> SqlText:
    """Return a whole statement of a session that substitutes no variables: hints are cut like the rest."""
    return _Lexer(sql, has_hints=True).run()


def quoted_hint(texts: Iterable[str], name: str) -> str:
    """What to do where one of the texts has `':name'` in quotes, as a sentence for a message; empty where none has."""
    if any(string.value == f":{name}" for text in texts for string in sql_text(text).strings):
        return f" A parameter in quotes is a text: write :{name} without quotes."
    return ""


class _Lexer:
    def __init__(self, sql: str, *, has_hints: bool = False) -> None:
        self.sql = sql
        self.has_hints = has_hints
        self.position = 0
        self.tokens: list[Token] = []
        self.spans: list[tuple[int, int]] = []
        self.strings: list[Text] = []
        self.numbers: list[str] = []
        self.names: list[str] = []
        self.parameters: list[str] = []
        self.pieces: list[str] = []

    def run(self) -> SqlText:
        try:
            self._cut_all()
        except _Unreadable as error:
            return SqlText(self.sql, problem=str(error), is_refused=isinstance(error, _Uncut))
        return SqlText(
            self.sql,
            self.tokens,
            self.spans,
            self.strings,
            self.numbers,
            self.names,
            self.parameters,
            stand_in="".join(self.pieces),
        )

    def _cut_all(self) -> None:
        while self.position < len(self.sql):
            self._step()
        self._doubt_neighbours()
        for token, following in zip(self.tokens, [*self.tokens[1:], Token("end", "")], strict=False):
            if token.kind == "word" and token.text.lower() in _ALIAS_TO_SPARK and following != _OPENING:
                raise _Unreadable(f"the alias {token.text}")

    def _step(self) -> None:
        sql, at = self.sql, self.position
        character = sql[at]
        if (found := _SPACE.match(sql, at)) is not None:
            self._advance(found.end(), " ")
        elif sql.startswith("--", at):
            found = _LINE_COMMENT.match(sql, at)
            self._advance(len(sql) if found is None else found.end(), " ")
        elif self.has_hints and sql.startswith("/*+", at):
            self.tokens.append(Token("symbol", "/*+"))
            self._advance(at + 3, " ")
        elif sql.startswith("/*", at):
            self._advance(_end_of_block_comment(sql, at), " ")
        elif (found := _RAW_STRING.match(sql, at)) is not None:
            self._string(found.end(), Text(found[0][2:-1], "a raw string"))
        elif (found := _PREFIXED_STRING.match(sql, at)) is not None:
            self._string(_end_of_string(sql, found.end()), Text("", f"the prefixed string {character}'…'"))
        elif character in "'\"":
            end = _end_of_string(sql, at)
            self._string(end, _text(sql[at:end]))
        elif character == "`":
            found = _NAME.match(sql, at)
            if found is None:
                # Spark also knows a name without a character.
                raise (_Unreadable if "`" in sql[at + 1 :] else _Uncut)("a backquote without its partner")
            self._name(found.end(), found[1].replace("``", "`"), "name")
        elif (found := _number(sql, at)) is not None:
            self._number(found)
        elif (found := _WORD.match(sql, at)) is not None:
            self._word(found)
        elif not sql.startswith("::", at) and (found := _PARAMETER.match(sql, at)) is not None:
            self._parameter(found)
        elif (found := _SYMBOL.match(sql, at)) is not None:
            self.tokens.append(Token("symbol", found[0]))
            self._advance(found.end(), found[0])
        else:
            raise (_Uncut if character in _UNKNOWN_TO_SPARK else _Unreadable)(f"the character {character!r}")

    def _advance(self, end: int, piece: str) -> None:
        if len(self.tokens) > len(self.spans):
            self.spans.append((self.position, end))
        self.position = end
        self.pieces.append(piece)

    def _string(self, end: int, text: Text) -> None:
        self.tokens.append(Token("string", text.value))
        self.strings.append(text)
        self._advance(end, f"'{_STRING_MARK}{len(self.strings) - 1}'")

    def _name(self, end: int, name: str, kind: str) -> None:
        self.tokens.append(Token(kind, name))
        self.names.append(name)
        self._advance(end, f"`{_NAME_MARK}{len(self.names) - 1}`")

    def _word(self, found: re.Match[str]) -> None:
        # A word that begins with a digit and is no number names a column to Spark (0x1F), and a number to sqlglot.
        if found[0][0].isdigit():
            self._name(found.end(), found[0], "word")
        else:
            self.tokens.append(Token("word", found[0]))
            self._advance(found.end(), found[0])

    def _number(self, found: re.Match[str]) -> None:
        end = found.end()
        glued = found[0][0] == "." and self.position > 0 and re.match(r"[\w)\]`'\"]", self.sql[self.position - 1])
        if glued or re.match(r"[\w.]", self.sql[end : end + 1]):
            raise _Unreadable(f"the number {found[0]} and what stands beside it")
        self.tokens.append(Token("number", found[0]))
        self.numbers.append(found[0])
        self._advance(end, str(_NUMBER_MARK + len(self.numbers) - 1))

    def _parameter(self, found: re.Match[str]) -> None:
        self.tokens.append(Token("parameter", found[1]))
        self.parameters.append(found[1])
        self._advance(found.end(), f":{_PARAMETER_MARK}{len(self.parameters) - 1}")

    def _doubt_neighbours(self) -> None:
        """Strings side by side are one literal to Spark; neither piece may be taken for the whole."""
        number = -1
        previous = ""
        for token in self.tokens:
            if token.kind == "string":
                number += 1
                if previous == "string":
                    for beside in (number - 1, number):
                        self.strings[beside] = Text(self.strings[beside].value, "a string in several pieces")
            previous = token.kind


def _text(literal: str) -> Text:
    content = literal[1:-1]
    if literal[0] == '"':
        return Text(content, DOUBLE_QUOTED)
    if "'" in content:
        return Text(content, "a string with a doubled quote")
    return Text(content, "a string with a backslash" if "\\" in content else None)


def _end_of_string(sql: str, at: int) -> int:
    found = _STRING.match(sql, at)
    if found is None:
        raise _Uncut("a string without its closing quote")
    return found.end()


def _end_of_block_comment(sql: str, at: int) -> int:
    """Comments nest. A hint is none, and has no place in an expression."""
    depth, here = 0, at
    while here < len(sql):
        if sql.startswith("/*", here):
            if sql.startswith("/*+", here):
                raise _Unreadable("a hint")
            depth, here = depth + 1, here + 2
        elif sql.startswith("*/", here):
            depth, here = depth - 1, here + 2
            if depth == 0:
                return here
        else:
            here += 1
    raise _Uncut("a comment that is not closed")


def _number(sql: str, at: int) -> re.Match[str] | None:
    """The number at `at`, when the longest token there is one: `1L` is a number and `1LIKE` a name."""
    dotted = _DOTTED_NUMBER.match(sql, at) or _EXPONENT_NUMBER.match(sql, at)
    word = _WORD.match(sql, at)
    if dotted is not None and (word is None or dotted.end() >= word.end()):
        return dotted
    return word if word is not None and _PLAIN_NUMBER.fullmatch(word[0]) else None
