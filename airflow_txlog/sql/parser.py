"""The parser of SQL expressions, by Spark's grammar: from tokens to an `Expression`.

Precedence, keywords and literals are Spark's. A construct with a special grammar (INTERVAL, a
lambda, the arguments of EXTRACT) is read only to find its end, and is `Opaque`. `CASE x WHEN y` becomes
`CASE WHEN x = y`. The invariant: a text is read as Spark reads it, or not at all (`NoExpression`). A word that could be
a keyword is never taken for a name if Spark could decide otherwise.
Source: Spark 4.2, SqlBaseParser.g4 (booleanExpression, predicate, valueExpression, primaryExpression);
tests/engine/table/predicate/test_differential.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from airflow_txlog.sql.expression import (
    Call,
    Cast,
    Expression,
    Literal,
    Name,
    Opaque,
    Parameter,
    is_deeper,
)
from airflow_txlog.sql.intervals import UNITS, plain_interval
from airflow_txlog.sql.lexer import OPEN, OUTSIDE, Token, words

# Operators between two values, and how tightly they bind.
_LEVELS = {
    **dict.fromkeys(("=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>"), 0),
    "|": 1,
    "^": 2,
    "&": 3,
    **dict.fromkeys(("+", "-", "||"), 4),
    **dict.fromkeys(("*", "/", "%", "div"), 5),
}
_SPELLINGS = {"==": "=", "<>": "!="}
# A plus before a text converts it to a number.
_SIGNS = {"+": "positive", "-": "negate", "~": "~"}
# Words that begin no operand.
_CONNECTING = words(
    "and or not in is between like ilike rlike regexp div when then else escape as union intersect except collate"
)
_ALSO_CALLED = words("between like ilike rlike regexp")
_LIKES = {"like": "like", "ilike": "ilike", "rlike": "rlike", "regexp": "rlike"}
_QUANTIFIERS = ("any", "some", "all")
_QUERIES = ("select", "values", "with", "table")
# Literals that are a word and a text.
_TYPED = words("date time timestamp timestamp_ltz timestamp_ntz")
# A function of a type's name is a cast to that type.
_CASTS = words("boolean tinyint smallint int bigint float double date timestamp string binary")
# Their first argument may be a unit of time, unless there are two.
_WITH_UNITS = words("timestampadd timestampdiff timediff dateadd datediff date_add date_diff")
_MOST_DEPTH = 50
# Trees are evaluated, compared and sent to tasks by recursion, which Python limits. A chain of one operator is a level
# for each operand.
_MOST_LEVELS = 100
_CLOSINGS = {"(": ")", "[": "]"}


class NoExpression(Exception):
    """The tokens are not one expression, or not one that this parser reads."""


def parse(tokens: Sequence[Token]) -> Expression:
    """Return the expression that the tokens form. Raises NoExpression."""
    parser = _Parser(tokens)
    found = parser.expression()
    if parser.at < len(tokens) or is_deeper(found, _MOST_LEVELS):
        raise NoExpression
    return found


class _Parser:
    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0

    # --- conditions ---------------------------------------------------------------------------------------------

    def expression(self) -> Expression:
        self.depth += 1
        if self.depth > _MOST_DEPTH:
            raise NoExpression
        found = self._chain("or", lambda: self._chain("and", self._negation))
        self.depth -= 1
        return found

    def _chain(self, word: str, operand: Callable[[], Expression]) -> Expression:
        start = self.at
        operands = [operand()]
        while self._takes(word):
            operands.append(operand())
        return operands[0] if len(operands) == 1 else Call(word, tuple(operands), (start, self.at))

    def _negation(self) -> Expression:
        start, negated = self.at, False
        while self._takes("not") or self._takes_symbol("!"):
            negated = not negated
            if self.at - start > _MOST_DEPTH:
                raise NoExpression
        found = self._predicate()
        return Call("not", (found,), (start, self.at)) if negated else found

    def _predicate(self) -> Expression:
        start = self.at
        operand = self._value()
        negated = self._takes("not")
        if negated and self._word() == "is":
            raise NoExpression
        found = self._test(operand, start)
        if found is None:
            if negated:
                raise NoExpression
            return operand
        return Call("not", (found,), (start, self.at)) if negated else found

    def _test(self, operand: Expression, start: int) -> Expression | None:
        if self._takes("in"):
            return Call("in", (operand, *self._arguments()), (start, self.at))
        if self._takes("between"):
            # Otherwise it is a column of that name.
            is_symmetric = self._word() == "symmetric" and self._word(1) != "and" and self._level(1) < 0
            self.at += is_symmetric
            low = self._value()
            self._needs("and")
            high = self._value()
            if is_symmetric:
                return Opaque("BETWEEN with symmetric", (start, self.at), (operand, low, high))
            return Call("between", (operand, low, high), (start, self.at))
        for word, operator in _LIKES.items():
            if self._takes(word):
                return self._like(operator, operand, start)
        return self._is(operand, start) if self._takes("is") else None

    def _like(self, operator: str, operand: Expression, start: int) -> Expression:
        if self._word() in _QUANTIFIERS and self._next(1).symbol == "(":
            quantifier = self._word()
            self.at += 1
            self._skip()
            return Opaque(f"{operator.upper()} {quantifier.upper()}", (start, self.at), (operand,))
        pattern = self._value()
        if not self._takes("escape"):
            return Call(operator, (operand, pattern), (start, self.at))
        if self._next().kind != "string":
            raise NoExpression
        self.at += 1
        return Opaque("LIKE with ESCAPE", (start, self.at), (operand, pattern))

    def _is(self, operand: Expression, start: int) -> Expression:
        negated = self._takes("not")
        word = self._word()
        self.at += 1
        if word in ("null", "true", "false", "unknown"):
            found: Expression = Call(f"is {word}", (operand,), (start, self.at))
        elif word == "distinct":
            self._needs("from")
            other = self._value()
            found, negated = Call("<=>", (operand, other), (start, self.at)), not negated
        else:
            raise NoExpression
        return Call("not", (found,), (start, self.at)) if negated else found

    # --- values -------------------------------------------------------------------------------------------------

    def _value(self, lowest: int = 0) -> Expression:
        start = self.at
        left = self._signed()
        while (level := self._level()) >= lowest:
            operator = self._next().text.lower()
            self.at += 1
            right = self._value(level + 1)
            left = Call(_SPELLINGS.get(operator, operator), (left, right), (start, self.at))
        return left

    def _level(self, ahead: int = 0) -> int:
        token = self._next(ahead)
        return _LEVELS.get(token.symbol or token.word, -1)

    def _signed(self) -> Expression:
        start, following = self.at, self._next(1)
        operator = _SIGNS.get(self._next().symbol)
        if operator is None:
            return self._with_rest(self._primary(), start)
        self.at += 1
        if following.kind == "number" and operator != "~":
            self.at += 1
            text = following.text if operator == "positive" else f"-{following.text}"
            return self._with_rest(Literal("number", text, (start, self.at)), start)
        self.depth += 1
        if self.depth > _MOST_DEPTH:
            raise NoExpression
        operand = self._signed()
        self.depth -= 1
        return Call(operator, (operand,), (start, self.at))

    def _with_rest(self, found: Expression, start: int) -> Expression:
        """Return the value with the suffixes that follow it: an index, a member, a type, a collation."""
        for _ in range(_MOST_DEPTH):
            if self._next().symbol == "[":
                self._skip()
                found = Opaque("an element in brackets", (start, self.at), (found,))
            elif self._takes_symbol("."):
                self._needs_name()
                found = Opaque("a member of an expression", (start, self.at), (found,))
            elif self._takes_symbol("::"):
                found = Cast(found, self._type(), (start, self.at))
            elif self._takes("collate"):
                self._needs_name()
                while self._takes_symbol("."):
                    self._needs_name()
                found = Opaque("COLLATE", (start, self.at), (found,))
            else:
                return found
        raise NoExpression

    def _primary(self) -> Expression:
        token, start = self._next(), self.at
        match token.kind:
            case "string":
                while self._next().kind == "string":
                    self.at += 1
                return Literal("string", token.text, (start, self.at), token.doubt)
            case "number":
                self.at += 1
                return Literal("number", token.text, (start, self.at))
            case "parameter":
                self.at += 1
                return Parameter(token.text, (start, self.at))
            case "name":
                return self._named()
            case "word" if self._is_operand(token.word):
                return self._begun_by(token.word)
            case "symbol" if token == OPEN:
                return self._in_parentheses()
        raise NoExpression

    def _is_operand(self, word: str) -> bool:
        return word not in _CONNECTING or (word in _ALSO_CALLED and self._next(1).symbol == "(")

    def _in_parentheses(self) -> Expression:
        start = self.at
        self.at += 1
        # Unless a comparison follows, such a word begins a query.
        if self._word() in _QUERIES and _LEVELS.get(self._next(1).text, -1) != 0:
            raise NoExpression
        found = self.expression()
        if self._next().symbol == ",":
            members = [found]
            while self._takes_symbol(","):
                members.append(self.expression())
            self._needs_symbol(")")
            return Opaque("a tuple", (start, self.at), tuple(members))
        self._needs_symbol(")")
        return replace(found, span=(start, self.at))

    def _begun_by(self, word: str) -> Expression:
        start, following = self.at, self._next(1)
        if word in ("null", "true", "false"):
            self.at += 1
            return Literal("null" if word == "null" else "boolean", word, (start, self.at))
        if word == "case":
            return self._case()
        if word in ("cast", "try_cast") and following == OPEN:
            return self._cast()
        if word == "interval" and (following.kind in ("string", "number", "parameter") or self._is_signed_unit()):
            return self._interval()
        if following.kind == "string":
            if word not in _TYPED:
                raise NoExpression
            self.at += 1
            return Cast(self._primary(), word, (start, self.at))
        return self._named()

    def _named(self) -> Expression:
        start = self.at
        parts = [self._needs_name()]
        while self._next().symbol == "." and self._next(1).is_name:
            self.at += 1
            parts.append(self._needs_name())
        if self._next().symbol == "." and self._next(1).symbol == "*":
            self.at += 2
            return Opaque("a star", (start, self.at))
        if self._next().symbol != "(":
            return Name(tuple(parts), (start, self.at))
        return self._call(".".join(part.text for part in parts).lower(), start)

    def _call(self, name: str, start: int) -> Expression:
        opened, depth = self.at, self.depth
        try:
            arguments: tuple[Expression, ...] | None = self._arguments(may_be_empty=True)
            if name in _WITH_UNITS and arguments is not None and len(arguments) != 2:
                arguments = None
        except NoExpression:
            arguments = None
        if arguments is None:
            # A lambda, a star, DISTINCT, a named argument, or words between the arguments.
            self.at, self.depth = opened, depth
            self._skip()
            return Opaque(f"the function {name}()", (start, self.at))
        if name in _CASTS and len(arguments) == 1:
            return Cast(arguments[0], name, (start, self.at))
        return Call(f"{name}()", arguments, (start, self.at))

    def _arguments(self, *, may_be_empty: bool = False) -> tuple[Expression, ...]:
        self._needs_symbol("(")
        if may_be_empty and self._takes_symbol(")"):
            return ()
        if self._word() in _QUERIES and self._next(1).kind != "symbol":
            raise NoExpression
        found = [self._argument()]
        while self._takes_symbol(","):
            found.append(self._argument())
        self._needs_symbol(")")
        return tuple(found)

    def _argument(self) -> Expression:
        # A list may have thousands of literals.
        is_literal = self._next().kind in ("number", "string") and self._next(1).symbol in (",", ")")
        return self._primary() if is_literal else self.expression()

    def _case(self) -> Expression:
        start = self.at
        self.at += 1
        subject = None if self._word() == "when" else self.expression()
        self._needs("when")
        parts: list[Expression] = []
        while True:
            at, test = self.at, self.expression()
            parts.append(test if subject is None else Call("=", (subject, test), (at, self.at)))
            self._needs("then")
            parts.append(self.expression())
            if not self._takes("when"):
                break
        end = (self.at, self.at)
        parts.append(self.expression() if self._takes("else") else Literal("null", "null", end))
        self._needs("end")
        return Call("case", tuple(parts), (start, self.at))

    def _cast(self) -> Expression:
        start = self.at
        self.at += 2
        operand = self.expression()
        self._needs("as")
        target = self._type()
        if self._takes_symbol(")"):
            return Cast(operand, target, (start, self.at))
        # A type with members.
        self.at = start + 1
        self._skip()
        return Opaque("a cast", (start, self.at), (operand,))

    def _is_signed_unit(self) -> bool:
        return self._next(1).symbol == "-" and self._next(2).kind in ("number", "string") and (self._word(3) in UNITS)

    def _interval(self) -> Expression:
        start = self.at
        self.at += 1
        while self._next().kind in ("string", "number", "parameter") or self._next().symbol == "-":
            self.at += 1
            while self._word() in UNITS:
                self.at += 1
            if self._next().symbol == "-" and self._word(2) not in UNITS:
                break
        span = (start, self.at)
        return plain_interval(self.tokens[start + 1 : self.at], span) or Opaque("INTERVAL", span)

    def _type(self) -> str:
        """Return a type's name with its lengths, in lower case. A type with members is not read."""
        if self._next().kind != "word":
            raise NoExpression
        name = self._needs_name().text.lower()
        if self._next().symbol == "(":
            start = self.at
            self._skip()
            name += "".join(token.text for token in self.tokens[start : self.at])
        return name

    # --- tokens -------------------------------------------------------------------------------------------------

    def _next(self, ahead: int = 0) -> Token:
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else OUTSIDE

    def _word(self, ahead: int = 0) -> str:
        return self._next(ahead).word

    def _takes(self, word: str) -> bool:
        if self._word() == word:
            self.at += 1
            return True
        return False

    def _takes_symbol(self, text: str) -> bool:
        if self._next().symbol == text:
            self.at += 1
            return True
        return False

    def _needs(self, word: str) -> None:
        if not self._takes(word):
            raise NoExpression

    def _needs_symbol(self, text: str) -> None:
        if not self._takes_symbol(text):
            raise NoExpression

    def _needs_name(self) -> Token:
        token = self._next()
        if not token.is_name:
            raise NoExpression
        self.at += 1
        return token

    def _skip(self) -> None:
        open_ones: list[str] = []
        while self.at < len(self.tokens):
            symbol = self._next().symbol
            self.at += 1
            if symbol in _CLOSINGS:
                open_ones.append(_CLOSINGS[symbol])
            elif symbol in (")", "]"):
                if open_ones.pop() != symbol:
                    raise NoExpression
                if not open_ones:
                    return
        raise NoExpression
