"""Expressions for computing: code that builds a graph adds, multiplies and rounds sizes as if they were numbers.

An `Expression` is a quotient of polynomials in lowest terms, so two equal ones have one text. Its operators take
integers too; `ceiling`, `smallest` and `largest` are the functions of a dimension.
"""

from collections.abc import Iterable
from functools import lru_cache

from stagedb.expressions import fraction as algebra
from stagedb.expressions.canonical_form import canonical, fraction_of, written
from stagedb.expressions.fraction import Fraction
from stagedb.expressions.parsing import check_name
from stagedb.expressions.rounding import extreme, round_down, round_up


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
