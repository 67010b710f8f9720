"""Dimensions: sizes, byte counts and FLOPs as exact expressions over named positive integers.

An expression is kept as text in one canonical form (`canonical`), so that a graph can be stored, compared and digested.
Our own parser reads the text back. It can do arithmetic and nothing else, because a shared database must not be able to
run code. `evaluate` is exact. Code that builds a graph computes with `Expression`s (`symbol`, `parse`). `sympy_form`
converts them to and from sympy, which the tests use as the oracle.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction as Rational
from functools import lru_cache
from operator import itemgetter
from typing import TypeAlias

from stagedb.files import shown
from stagedb.ir import quotients as algebra
from stagedb.ir.quotients import (
    MAX_NESTING,
    MAX_TOKENS,
    Call,
    DimensionError,
    Fraction,
    Node,
    Power,
    Product,
    Sum,
    check_name,
    check_text,
    extreme,
    read,
    refuse,
    round_down,
    round_up,
    shorten,
    symbols,
    text_of,
)

# The canonical form: equal polynomials and quotients have one text, and it is readable.
#
# A quotient is in lowest terms, with common factors moved out of sums: `2*B*S*(H + F)/(dp*tp)`. Names are in
# alphabetical order, terms in order of falling degree. `a % b` becomes `a - b*(a//b)`. Whole parts move out of `//` and
# `ceil`, and `-((-a)//b)` becomes `ceil(a/b)`. `min` and `max` are flattened and sorted, without arguments that can
# never be the result. All this is correct for symbols that are positive integers.


@lru_cache(maxsize=16_384)
def canonical(text: str) -> str:
    """The canonical text of an expression.

    Equal polynomials and quotients have the same text. The canonical form of a canonical text is that text. Raises
    DimensionError for what is no expression, divides by zero, or is too large after it is multiplied out.
    """
    try:
        return written(fraction_of(text))
    except DimensionError as error:
        raise error if str(error).startswith("not a dimension") else refuse(text, str(error)) from None


def written(value: Fraction) -> str:
    """The text of a quotient. Raises DimensionError if it is too long to be read back."""
    text = text_of(value)
    # Names and numbers are bounded already. A short text with few parentheses has neither too many parts nor levels.
    if len(text) > MAX_TOKENS or text.count("(") > MAX_NESTING:
        check_text(text)
    return text


def fraction_of(text: str) -> Fraction:
    """The quotient of a text. Raises DimensionError where `canonical` does."""
    return _of_node(read(text))


def _of_node(node: Node) -> Fraction:
    match node:
        case int():
            return algebra.integer(node)
        case str():
            return algebra.atom(node)
        case Sum(terms):
            total = algebra.integer(0)
            for sign, term in terms:
                total = algebra.add(total, _of_node(term), sign)
            return total
        case Product(first, rest):
            value = _of_node(first)
            for operator, factor in rest:
                value = _apply(operator, value, _of_node(factor))
            return value
        case Power(base, exponent):
            return algebra.power(_of_node(base), exponent)
        case Call("ceil", (argument,)):
            return round_up(_of_node(argument))
        case Call("floor", (argument,)):
            return round_down(_of_node(argument))
        case Call(function, arguments):
            return extreme(function, [_of_node(argument) for argument in arguments])
    raise AssertionError(f"no such node: {shown(node)}")


def _apply(operator: str, left: Fraction, right: Fraction) -> Fraction:
    if operator == "*":
        return algebra.multiply(left, right)
    if operator == "/":
        return algebra.divide(left, right)
    quotient = round_down(algebra.divide(left, right))
    if operator == "//":
        return quotient
    return algebra.add(left, algebra.multiply(right, quotient), -1)


# Expressions for computing: code that builds a graph adds, multiplies and rounds sizes as if they were numbers.
#
# An `Expression` is a quotient of polynomials in lowest terms, so two equal ones have one text. Its operators take
# integers too; `ceiling`, `smallest` and `largest` are the functions of a dimension.


class Expression:
    """A size, a count of bytes or of FLOPs, over named positive integers. It is immutable; its text is its identity.

    Results are kept: the operators of a graph, and the graphs of other plans, ask for the same ones again and again.
    Raises DimensionError if a result divides by zero or exceeds the bounds of `canonical`.
    """

    __slots__ = ("_fraction", "_hash", "_text")

    def __init__(self, fraction: Fraction) -> None:
        self._fraction = fraction
        self._hash = hash((frozenset(fraction.above.items()), frozenset(fraction.below.items())))
        self._text: str | None = None

    @property
    def text(self) -> str:
        """The canonical text of the expression."""
        if self._text is None:
            self._text = written(self._fraction)
        return self._text

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Expression({self.text})"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Expression | int):
            return self is other or self._fraction == _expression(other)._fraction
        return NotImplemented

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: "Expression | int") -> "Expression":
        return _sum(self, _expression(other))

    def __sub__(self, other: "Expression | int") -> "Expression":
        return _difference(self, _expression(other))

    def __mul__(self, other: "Expression | int") -> "Expression":
        return _product(self, _expression(other))

    def __truediv__(self, other: "Expression | int") -> "Expression":
        return _quotient(self, _expression(other))

    def __floordiv__(self, other: "Expression | int") -> "Expression":
        return Expression(round_down(_quotient(self, _expression(other))._fraction))

    def __rsub__(self, other: int) -> "Expression":
        return _difference(number(other), self)

    def __rtruediv__(self, other: int) -> "Expression":
        return _quotient(number(other), self)

    def __pow__(self, exponent: int) -> "Expression":
        return Expression(algebra.power(self._fraction, exponent))

    def __neg__(self) -> "Expression":
        return Expression(algebra.negate(self._fraction))

    __radd__ = __add__
    __rmul__ = __mul__


_KEPT = 16_384
"""How many results of an operation are kept: those of hundreds of graphs, in some 40 MB at the most."""


@lru_cache(maxsize=_KEPT)
def _sum(one: Expression, two: Expression) -> Expression:
    return Expression(algebra.add(one._fraction, two._fraction))


@lru_cache(maxsize=_KEPT)
def _difference(one: Expression, two: Expression) -> Expression:
    return Expression(algebra.add(one._fraction, two._fraction, -1))


@lru_cache(maxsize=_KEPT)
def _product(one: Expression, two: Expression) -> Expression:
    return Expression(algebra.multiply(one._fraction, two._fraction))


@lru_cache(maxsize=_KEPT)
def _quotient(one: Expression, two: Expression) -> Expression:
    return Expression(algebra.divide(one._fraction, two._fraction))


def _expression(value: Expression | int) -> Expression:
    return number(value) if isinstance(value, int) else value


@lru_cache(maxsize=4_096)
def symbol(name: str) -> Expression:
    """The symbol with this name: a positive integer. Raises DimensionError if no symbol may have the name."""
    return Expression(algebra.atom(check_name(name)))


@lru_cache(maxsize=256)
def number(value: int) -> Expression:
    """An integer as an expression. value: any integer."""
    return Expression(algebra.integer(value))


@lru_cache(maxsize=16_384)
def parse(text: str) -> Expression:
    """The expression of a text. Raises DimensionError where `canonical` does. Nothing in the text is ever run."""
    return Expression(fraction_of(canonical(text)))


def total(values: "Iterable[Expression | int]") -> Expression:
    """The sum of expressions and integers; 0 without any. values: the terms."""
    result = number(0)
    for value in values:
        result = result + value
    return result


def product(values: "Iterable[Expression | int]") -> Expression:
    """The product of expressions and integers; 1 without any. values: the factors."""
    result = number(1)
    for value in values:
        result = result * value
    return result


@lru_cache(maxsize=_KEPT)
def ceiling(value: Expression) -> Expression:
    """The smallest whole number that is not below the value."""
    return Expression(round_up(value._fraction))


def smallest(*values: Expression | int) -> Expression:
    """The minimum, folded if the result holds for all positive values of the symbols."""
    return _extreme("min", tuple(map(_expression, values)))


def largest(*values: Expression | int) -> Expression:
    """The maximum, folded if the result holds for all positive values of the symbols."""
    return _extreme("max", tuple(map(_expression, values)))


@lru_cache(maxsize=_KEPT)
def _extreme(kind: str, values: tuple[Expression, ...]) -> Expression:
    return Expression(extreme(kind, [value._fraction for value in values]))


# The exact value of an expression, without sympy: integers, and fractions where a division leaves one.

Evaluator: TypeAlias = Callable[[Mapping[str, int]], int | Rational]
"""The value of a part of an expression, from those of its symbols."""

MAX_BITS = 1 << 16
"""Bound of a power's size: text from a store must not be able to fill the memory."""


def evaluate(text: str, env: Mapping[str, int], *, what: str = "") -> int:
    """The whole value of an expression. `env` gives each symbol a positive integer.

    Raises DimensionError, which names `what`, the expression and the values of its symbols, if the text is no
    expression, a symbol has no value, the text divides by zero, or the value is not whole.
    """
    value = _checked(text, env, what)
    if isinstance(value, int):
        return value
    raise DimensionError(f"{_named(what)}{shorten(text)} is {value}, not whole: {_reason(text, env)}")


def evaluate_all(texts: Iterable[str], env: Mapping[str, int], *, what: str = "") -> dict[str, int]:
    """The value of each distinct expression; see `evaluate`.

    texts: expressions. env: the values of symbols. what: what the values are, for errors. Returns values by text.
    """
    return {text: evaluate(text, env, what=what) for text in dict.fromkeys(texts)}


def _checked(text: str, env: Mapping[str, int], what: str) -> int | Rational:
    try:
        evaluated = _evaluator(text)
    except DimensionError as error:
        raise DimensionError(f"{_named(what)}{error}") from None
    for name in symbols(text):
        value = env.get(name)
        if value is None:
            known = ", ".join(sorted(env)) or "none"
            raise DimensionError(f"{_named(what)}{shorten(text)}: {name} has no value here (those with one: {known})")
        if type(value) is not int or value < 1:
            raise DimensionError(
                f"{_named(what)}{shorten(text)}: {name} must be a positive integer, not {shown(value)}"
            )
    try:
        return evaluated(env)
    except ZeroDivisionError:
        raise DimensionError(
            f"{_named(what)}{shorten(text)} divides by zero with {_bindings(symbols(text), env)}"
        ) from None
    except OverflowError as error:
        raise DimensionError(f"{_named(what)}{shorten(text)}: {error}") from None


def _named(what: str) -> str:
    return f"{what}: " if what else ""


def _bindings(names: Iterable[str], env: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={env[name]}" for name in sorted(names)) or "no symbols"


@lru_cache(maxsize=16_384)
def _evaluator(text: str) -> Evaluator:
    return _node_evaluator(read(text))


def _node_evaluator(node: Node) -> Evaluator:
    """What evaluates a node: functions of functions are three times as fast as a walk through the tree."""
    match node:
        case int():
            return lambda env: node
        case str():
            return itemgetter(node)
        case Sum(terms):
            return _value_of_sum(tuple((sign, _node_evaluator(term)) for sign, term in terms))
        case Product(first, rest):
            return _value_of_product(
                _node_evaluator(first), tuple((operator, _node_evaluator(factor)) for operator, factor in rest)
            )
        case Power(base, exponent):
            return _power(_node_evaluator(base), exponent)
        case Call(function, arguments):
            return _call(function, tuple(map(_node_evaluator, arguments)))
    raise AssertionError(f"no such node: {shown(node)}")


def _value_of_sum(terms: Sequence[tuple[int, Evaluator]]) -> Evaluator:
    def value(env: Mapping[str, int]) -> int | Rational:
        return _whole(sum([sign * term(env) for sign, term in terms]))

    return value


def _value_of_product(first: Evaluator, rest: Sequence[tuple[str, Evaluator]]) -> Evaluator:
    def value(env: Mapping[str, int]) -> int | Rational:
        found = first(env)
        for operator, factor in rest:
            found = _applied_value(operator, found, factor(env))
        return found

    return value


def _power(base: Evaluator, exponent: int) -> Evaluator:
    def value(env: Mapping[str, int]) -> int | Rational:
        found = base(env)
        if exponent * max(found.numerator.bit_length(), found.denominator.bit_length()) > MAX_BITS:
            raise OverflowError(f"a power of more than {MAX_BITS} bits")
        return _whole(found**exponent)

    return value


def _call(function: str, arguments: Sequence[Evaluator]) -> Evaluator:
    first = arguments[0]
    match function:
        case "ceil":
            return lambda env: -(-first(env) // 1)
        case "floor":
            return lambda env: first(env) // 1
        case "min":
            return lambda env: min([argument(env) for argument in arguments])
        case "max":
            return lambda env: max([argument(env) for argument in arguments])
    raise AssertionError(f"no such function: {shown(function)}")


def _applied_value(operator: str, left: int | Rational, right: int | Rational) -> int | Rational:
    if operator == "*":
        return _whole(left * right)
    if operator == "/":
        return _divided(left, right)
    if operator == "//":
        return left // right
    return _whole(left % right)


def _divided(left: int | Rational, right: int | Rational) -> int | Rational:
    # A fraction takes ten times as long to make as an integer, and most divisions leave no rest.
    if isinstance(left, int) and isinstance(right, int) and not left % right:
        return left // right
    return _whole(Rational(left) / right)


def _whole(value: int | Rational) -> int | Rational:
    """Integers stay integers: they are faster, and their type shows that a value is whole."""
    return value if isinstance(value, int) or value.denominator != 1 else value.numerator


def _reason(text: str, env: Mapping[str, int]) -> str:
    """The divisor that does not divide, if there is one such divisor; else the values of all symbols."""
    above, slash, below = _split_quotient(text)
    if slash:
        dividend, divisor = _evaluator(above)(env), _evaluator(below)(env)
        if isinstance(dividend, int) and isinstance(divisor, int):
            faults = [name for name in sorted(symbols(below)) if dividend % env[name] != 0]
            culprit = f"{faults[0]}={env[faults[0]]}" if faults else below if below.isdigit() else f"{below}={divisor}"
            others = symbols(text) - ({above} | set(faults[:1]))
            rest = f" (with {_bindings(others, env)})" if others else ""
            return f"{culprit} does not divide {shorten(above)}={dividend}{rest}"
    return f"with {_bindings(symbols(text), env)}"


def _split_quotient(text: str) -> tuple[str, str, str]:
    """`above`, `/`, `below` of a text that is one division at its top; empty `/` for any other text."""
    depth = 0
    slashes = []
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 and character in "+-%/":
            if character != "/":
                return text, "", ""
            slashes.append(place)
    if len(slashes) != 1:
        return text, "", ""
    above, below = text[: slashes[0]].strip(), text[slashes[0] + 1 :].strip()
    if below.startswith("(") and below.find(")") == len(below) - 1:
        below = below[1:-1]
    return above, "/", below
