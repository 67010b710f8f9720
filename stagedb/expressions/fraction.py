"""Quotients of polynomials with integer coefficients, in lowest terms: the algebra under the canonical form.

This is our own code and not sympy's because it runs once for every expression of a graph. Nearly all denominators are
single products, and a comparison of exponents finds their common factors. Only a sum in a denominator needs a
polynomial gcd; sympy computes that one.

A polynomial maps monomials to coefficients. A monomial lists its atoms with their exponents, sorted. An atom is the
name of a symbol, or a `Function`: the text of a rounding, `min` or `max`.
"""

from functools import reduce
from math import gcd
from typing import Literal, NamedTuple

from stagedb.expressions.parsing import MAX_DIGITS, MAX_EXPONENT, DimensionError

Monomial = tuple[tuple[str, int], ...]
Polynomial = dict[Monomial, int]

MAX_TERMS = 1_000
_MAX_COEFFICIENT = 10**MAX_DIGITS

ONE: Polynomial = {(): 1}


class Fraction(NamedTuple):
    """`above / below` in lowest terms. The leading coefficient of `below` is positive."""

    above: Polynomial
    below: Polynomial


class Function(str):
    """An atom that is no symbol: a rounding, `min` or `max`, by its canonical text, which is its identity.

    arguments: what is rounded or compared. whole: its value is a whole number for all values of the symbols.
    """

    kind: Literal["floor", "ceil", "min", "max"]
    arguments: tuple[Fraction, ...]
    whole: bool

    def __new__(
        cls, text: str, kind: Literal["floor", "ceil", "min", "max"], arguments: tuple[Fraction, ...], whole: bool
    ) -> "Function":
        self = super().__new__(cls, text)
        self.kind, self.arguments, self.whole = kind, arguments, whole
        return self


def rank(monomial: Monomial) -> tuple[int, list[str]]:
    """Sort key: the leading monomial (highest degree, then alphabetical) comes first."""
    names = [name for name, exponent in monomial for _ in range(exponent)]
    return -len(names), names


def leading(polynomial: Polynomial) -> Monomial:
    """The monomial of a polynomial that comes first in the order of `rank`, without its coefficient."""
    return next(iter(polynomial)) if len(polynomial) == 1 else min(polynomial, key=rank)


def times_monomial(one: Monomial, two: Monomial) -> Monomial:
    """The product of two monomials. one, two: the exponents of each symbol are added."""
    if not one or not two:
        return one or two
    exponents = dict(one)
    for name, exponent in two:
        # The atom that is already there is kept: equal texts are equal atoms.
        exponents[name] = exponents.get(name, 0) + exponent
        if exponents[name] > MAX_EXPONENT:
            raise DimensionError(f"a dimension with an exponent above {MAX_EXPONENT}")
    return tuple(sorted(exponents.items()))


def over_monomial(above: Monomial, below: Monomial) -> Monomial | None:
    """The quotient of two monomials; None if `below` does not divide `above`."""
    if not below:
        return above
    exponents = dict(above)
    for name, exponent in below:
        left = exponents.get(name, 0) - exponent
        if left < 0:
            return None
        if left:
            exponents[name] = left
        else:
            del exponents[name]
    return tuple(exponents.items())


def _bounded(polynomial: Polynomial) -> Polynomial:
    if len(polynomial) > MAX_TERMS:
        raise DimensionError(f"a dimension of more than {MAX_TERMS} terms once it is multiplied out")
    if polynomial and max(map(abs, polynomial.values())) >= _MAX_COEFFICIENT:
        raise DimensionError(f"a dimension with a number of more than {MAX_DIGITS} digits")
    return polynomial


def plus(one: Polynomial, two: Polynomial, sign: int = 1) -> Polynomial:
    """The sum of two polynomials. sign: 1 adds `two` to `one`, -1 subtracts it."""
    total = dict(one)
    for monomial, coefficient in two.items():
        left = total.get(monomial, 0) + sign * coefficient
        if left:
            total[monomial] = left
        else:
            del total[monomial]
    return _bounded(total)


def times(one: Polynomial, two: Polynomial) -> Polynomial:
    """The product of two polynomials, `one` and `two`."""
    if len(one) * len(two) > 16 * MAX_TERMS:
        raise DimensionError(f"a dimension of more than {MAX_TERMS} terms once it is multiplied out")
    total: Polynomial = {}
    for left, a in one.items():
        for right, b in two.items():
            monomial = times_monomial(left, right)
            total[monomial] = total.get(monomial, 0) + a * b
    return _bounded({monomial: coefficient for monomial, coefficient in total.items() if coefficient})


def content(polynomial: Polynomial) -> tuple[int, Monomial]:
    """The greatest integer and monomial that divide every term. polynomial: with a term at least."""
    if len(polynomial) == 1:
        ((only, coefficient),) = polynomial.items()
        return abs(coefficient), only
    number = gcd(*polynomial.values())
    monomials = iter(polynomial)
    shared = dict(next(monomials))
    for monomial in monomials:
        if not shared:
            break
        exponents = dict(monomial)
        shared = {name: min(power, exponents[name]) for name, power in shared.items() if name in exponents}
    return number, tuple(shared.items())


def divide_out(polynomial: Polynomial, number: int, monomial: Monomial) -> Polynomial:
    """The polynomial divided by an integer and a monomial. Both must divide each of its terms.

    number: the integer, above 0. monomial: symbols with their exponents.
    """
    if number == 1 and not monomial:
        return polynomial
    result: Polynomial = {}
    for term, coefficient in polynomial.items():
        left = over_monomial(term, monomial)
        if left is None:
            raise AssertionError(f"{monomial} does not divide {term}")
        result[left] = coefficient // number
    return result


def fraction(above: Polynomial, below: Polynomial) -> Fraction:
    """The quotient of two polynomials in lowest terms.

    above, below: numerator and denominator. DimensionError if `below` is 0.
    """
    if not below:
        raise DimensionError("a dimension that divides by zero")
    if not above:
        return Fraction({}, ONE)
    if below == ONE:
        return Fraction(above, below)
    (a, m), (b, n) = content(above), content(below)
    exponents = dict(n)
    shared = tuple((name, min(power, exponents[name])) for name, power in m if name in exponents)
    number = gcd(a, b)
    above, below = divide_out(above, number, shared), divide_out(below, number, shared)
    if len(below) > 1 and len(above) > 1:
        above, below = _cancel(above, below)
    if below[leading(below)] < 0:
        above, below = {term: -c for term, c in above.items()}, {term: -c for term, c in below.items()}
    return Fraction(above, below)


def _cancel(above: Polynomial, below: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Divide two sums by their greatest common divisor."""
    from sympy import ZZ
    from sympy.polys.rings import PolyRing

    names = sorted({name for polynomial in (above, below) for term in polynomial for name, _ in term})
    places = {name: place for place, name in enumerate(names)}
    ring = PolyRing([f"x{place}" for place in range(len(names))], ZZ)

    def dense(polynomial: Polynomial) -> dict[tuple[int, ...], int]:
        rows = {}
        for term, coefficient in polynomial.items():
            row = [0] * len(names)
            for name, exponent in term:
                row[places[name]] = exponent
            rows[tuple(row)] = coefficient
        return rows

    quotients = ring.from_dict(dense(above)).cancel(ring.from_dict(dense(below)))
    one, two = (
        {
            tuple((names[place], int(exponent)) for place, exponent in enumerate(row) if exponent): int(coefficient)
            for row, coefficient in quotient.items()
        }
        for quotient in quotients
    )
    return _bounded(one), _bounded(two)


def integer(value: int) -> Fraction:
    """An integer as a fraction. value: the integer."""
    return Fraction(_bounded({(): value}) if value else {}, ONE)


def atom(name: str) -> Fraction:
    """A symbol, or a function such as a ceiling, as a fraction. name: its text."""
    return Fraction({((name, 1),): 1}, ONE)


def add(one: Fraction, two: Fraction, sign: int = 1) -> Fraction:
    """The sum of two fractions. sign: 1 adds `two` to `one`, -1 subtracts it."""
    if one.below == two.below:
        return fraction(plus(one.above, two.above, sign), one.below)
    return fraction(plus(times(one.above, two.below), times(two.above, one.below), sign), times(one.below, two.below))


def multiply(one: Fraction, two: Fraction) -> Fraction:
    """The product of two fractions, `one` and `two`."""
    if len(one.above) == len(one.below) == len(two.above) == len(two.below) == 1:
        return _product_of_terms((one.above, two.above), (one.below, two.below))
    return fraction(times(one.above, two.above), times(one.below, two.below))


def divide(one: Fraction, two: Fraction) -> Fraction:
    """`one` divided by `two`. DimensionError if `two` is 0."""
    if len(one.above) == len(one.below) == len(two.above) == len(two.below) == 1:
        return _product_of_terms((one.above, two.below), (one.below, two.above))
    return fraction(times(one.above, two.below), times(one.below, two.above))


def _product_of_terms(above: tuple[Polynomial, ...], below: tuple[Polynomial, ...]) -> Fraction:
    """The quotient of products of single terms. It is by far the most frequent one, and only adds exponents."""
    exponents: dict[str, int] = {}
    numbers = []
    for sign, polynomials in ((1, above), (-1, below)):
        number = 1
        for polynomial in polynomials:
            ((term, coefficient),) = polynomial.items()
            number *= coefficient
            for name, exponent in term:
                exponents[name] = exponents.get(name, 0) + sign * exponent
        numbers.append(number)
    shared = gcd(*numbers) if numbers[1] > 0 else -gcd(*numbers)
    if any(abs(exponent) > MAX_EXPONENT for exponent in exponents.values()):
        raise DimensionError(f"a dimension with an exponent above {MAX_EXPONENT}")
    ordered = sorted(exponents.items())
    over = tuple((name, exponent) for name, exponent in ordered if exponent > 0)
    under = tuple((name, -exponent) for name, exponent in ordered if exponent < 0)
    return Fraction(_bounded({over: numbers[0] // shared}), _bounded({under: numbers[1] // shared}))


def power(base: Fraction, exponent: int) -> Fraction:
    """A fraction to the power of a whole number. exponent: 0 or more."""
    # Powers of coprime polynomials are coprime, so that there is nothing to cancel.
    above = reduce(times, [base.above] * exponent, ONE)
    return Fraction(above, reduce(times, [base.below] * exponent, ONE))


def negate(value: Fraction) -> Fraction:
    """A fraction with the other sign."""
    return Fraction({term: -coefficient for term, coefficient in value.above.items()}, value.below)


def is_whole(term: Monomial) -> bool:
    """Whether all that a monomial multiplies has whole values: symbols, and functions such as a ceiling.

    term: the monomial.
    """
    return all(not isinstance(name, Function) or name.whole for name, _ in term)
