"""Expressions that one computes with: whoever builds a graph adds, multiplies and rounds sizes as if they were numbers.

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
    """A size, a count of bytes or of FLOPs, over named positive integers. Immutable; its text is its identity.

    Raises DimensionError where a result divides by zero or grows beyond the bounds of `canonical`.
    """

    __slots__ = ("_fraction", "_text")

    def __init__(self, fraction: Fraction) -> None:
        self._fraction = fraction
        self._text: str | None = None

    @property
    def text(self) -> str:
        """The canonical form."""
        if self._text is None:
            self._text = written(self._fraction)
        return self._text

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Expression({self.text})"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Expression | int):
            return self._fraction == _fraction(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def __add__(self, other: "Expression | int") -> "Expression":
        return Expression(algebra.add(self._fraction, _fraction(other)))

    def __sub__(self, other: "Expression | int") -> "Expression":
        return Expression(algebra.add(self._fraction, _fraction(other), -1))

    def __mul__(self, other: "Expression | int") -> "Expression":
        return Expression(algebra.multiply(self._fraction, _fraction(other)))

    def __truediv__(self, other: "Expression | int") -> "Expression":
        return Expression(algebra.divide(self._fraction, _fraction(other)))

    def __floordiv__(self, other: "Expression | int") -> "Expression":
        return Expression(round_down(algebra.divide(self._fraction, _fraction(other))))

    def __rsub__(self, other: int) -> "Expression":
        return Expression(algebra.add(_fraction(other), self._fraction, -1))

    def __rtruediv__(self, other: int) -> "Expression":
        return Expression(algebra.divide(_fraction(other), self._fraction))

    def __pow__(self, exponent: int) -> "Expression":
        return Expression(algebra.power(self._fraction, exponent))

    def __neg__(self) -> "Expression":
        return Expression(algebra.negate(self._fraction))

    __radd__ = __add__
    __rmul__ = __mul__


def _fraction(value: Expression | int) -> Fraction:
    return algebra.integer(value) if isinstance(value, int) else value._fraction


@lru_cache(maxsize=4_096)
def symbol(name: str) -> Expression:
    """The symbol of this name: a positive integer. DimensionError if no symbol may have the name."""
    return Expression(algebra.atom(check_name(name)))


@lru_cache(maxsize=256)
def number(value: int) -> Expression:
    """An integer as an expression."""
    return Expression(algebra.integer(value))


@lru_cache(maxsize=16_384)
def parse(text: str) -> Expression:
    """The expression that a text writes. DimensionError where `canonical` raises it; no text is ever run."""
    return Expression(fraction_of(canonical(text)))


def total(values: "Iterable[Expression | int]") -> Expression:
    """The sum; 0 of nothing."""
    result = number(0)
    for value in values:
        result = result + value
    return result


def product(values: "Iterable[Expression | int]") -> Expression:
    """The product; 1 of nothing."""
    result = number(1)
    for value in values:
        result = result * value
    return result


def ceiling(value: Expression) -> Expression:
    """The smallest whole number not below."""
    return Expression(round_up(value._fraction))


def smallest(*values: Expression | int) -> Expression:
    """The minimum, folded where it is known for all positive values of the symbols."""
    return Expression(extreme("min", [_fraction(value) for value in values]))


def largest(*values: Expression | int) -> Expression:
    """The maximum, folded where it is known for all positive values of the symbols."""
    return Expression(extreme("max", [_fraction(value) for value in values]))
