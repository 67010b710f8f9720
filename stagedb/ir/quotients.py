"""Quotients of polynomials with integer coefficients, in lowest terms: the algebra under the canonical form.

From text to a small tree, from trees to fractions, roundings of them, and back to text, each in one form.
"""

import ast
import keyword
import re
from dataclasses import dataclass
from functools import lru_cache, reduce
from math import gcd
from typing import Literal, NamedTuple, TypeAlias

from stagedb.errors import UsageError
from stagedb.files import shown

# From text to a small tree, through Python's syntax trees and a whitelist. Nothing is ever run.
#
# The text is checked before Python's parser reads it: ASCII only (Python would convert look-alike letters to others),
# known tokens only, bounded length, digits and nesting. A chain such as `a + b + c` becomes one node, so that the
# nesting of the text bounds the depth of the tree, and its length does not.

MAX_LENGTH = 16_384
MAX_TOKENS = 6_000
MAX_DIGITS = 120
MAX_NESTING = 32
MAX_EXPONENT = 64

FUNCTIONS = frozenset({"ceil", "floor", "max", "min"})
"""Names with a meaning of their own, which no symbol may have. The canonical form writes `floor` as `//`."""

RESERVED = FUNCTIONS | frozenset(keyword.kwlist)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(r" *(?:([A-Za-z_][A-Za-z0-9_]*)|([0-9]+)(?![A-Za-z_])|(\*\*|//|[-+*/%(),])) *")


class DimensionError(UsageError):
    """An expression that cannot be read or has no whole value."""


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum in a syntax tree: each term with its sign (+1 or -1)."""

    terms: tuple[tuple[int, "Node"], ...]


@dataclass(frozen=True, slots=True)
class Product:
    """`first`, then each operator (`*`, `/`, `//`, `%`) with its right operand, from left to right."""

    first: "Node"
    rest: tuple[tuple[str, "Node"], ...]


@dataclass(frozen=True, slots=True)
class Power:
    """A base to the power of a whole number."""

    base: "Node"
    exponent: int


@dataclass(frozen=True, slots=True)
class Call:
    """A function of expressions, such as `ceil` or `max`."""

    function: str
    arguments: tuple["Node", ...]


Node: TypeAlias = int | str | Sum | Product | Power | Call
"""An integer, a symbol's name, or an operation."""

_MULTIPLICATIVE: dict[type[ast.operator], str] = {ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"}
_ADDITIVE: dict[type[ast.operator], int] = {ast.Add: 1, ast.Sub: -1}


def shorten(text: str) -> str:
    """The text as an error message shows it."""
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)"


def refuse(text: str, why: str) -> DimensionError:
    """The error for a text that is no dimension. why: what is wrong with it, in words."""
    return DimensionError(f"not a dimension: {shown(shorten(text))}: {why}")


def check_name(name: str) -> str:
    """The name, if it is allowed for a symbol. Raises DimensionError if not."""
    if not _NAME.fullmatch(name) or name.startswith("__") or name in RESERVED or len(name) > 64:
        raise DimensionError(
            f"not a symbol's name: {shown(shorten(name))}: expected a letter or _, then letters, digits and _ "
            f"(ASCII, no leading __, none of {', '.join(sorted(FUNCTIONS))}, no keyword)"
        )
    return name


def check_text(text: str) -> None:
    """Refuse text that could trouble Python's parser, or that it would read as something else. Takes linear time."""
    if len(text) > MAX_LENGTH:
        raise refuse(text, f"longer than {MAX_LENGTH} characters")
    if not text.isascii():
        raise refuse(text, "only ASCII letters, digits and operators are allowed")
    position = depth = tokens = signs = 0
    if not text.strip(" "):
        raise refuse(text, "it is empty")
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise refuse(text, f"unexpected {shown(text[position : position + 10])} at character {position + 1}")
        position = match.end()
        tokens += 1
        name, digits, operator = match.groups()
        if digits is not None and len(digits) > MAX_DIGITS:
            raise refuse(text, f"a number of more than {MAX_DIGITS} digits")
        if name is not None and name.startswith("__"):
            raise refuse(text, f"{shown(shorten(name))} is not a symbol's name")
        depth += (operator == "(") - (operator == ")")
        signs = signs + 1 if operator in ("+", "-") else 0
        if depth > MAX_NESTING or signs > 3:
            raise refuse(text, f"nested deeper than {MAX_NESTING}" if signs <= 3 else "too many signs in a row")
    if tokens > MAX_TOKENS:
        raise refuse(text, f"more than {MAX_TOKENS} names, numbers and operators")


@lru_cache(maxsize=16_384)
def read(text: str) -> Node:
    """The tree of an expression. Raises DimensionError for any other text."""
    check_text(text)
    try:
        body = ast.parse(text.strip(" "), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise refuse(text, "it cannot be read as arithmetic") from error
    return _node(body, text)


def _node(node: ast.expr, text: str) -> Node:
    match node:
        case ast.Constant(value=value) if type(value) is int:
            return value
        case ast.Name(id=name):
            if name in RESERVED:
                raise refuse(text, f"{shown(name)} is not a symbol's name")
            return name
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return Sum(((-1, _node(operand, text)),))
        case ast.BinOp(op=ast.Pow()):
            return _power(node, text)
        case ast.BinOp():
            return _chain(node, text)
        case ast.Call(func=ast.Name(id=function), args=arguments, keywords=[]):
            return _call(function, arguments, text)
    raise refuse(text, "only names, integers, + - * / // % **, min, max, ceil and floor are allowed")


def _chain(node: ast.BinOp, text: str) -> Node:
    """A left-leaning run of operators of one precedence. It is walked without recursion."""
    if type(node.op) in _ADDITIVE:
        terms: list[tuple[int, Node]] = []
        left: ast.expr = node
        while isinstance(left, ast.BinOp) and type(left.op) in _ADDITIVE:
            terms.append((_ADDITIVE[type(left.op)], _node(left.right, text)))
            left = left.left
        terms.append((1, _node(left, text)))
        return Sum(tuple(reversed(terms)))
    factors: list[tuple[str, Node]] = []
    left = node
    while isinstance(left, ast.BinOp) and type(left.op) in _MULTIPLICATIVE:
        factors.append((_MULTIPLICATIVE[type(left.op)], _node(left.right, text)))
        left = left.left
    if not factors:
        raise refuse(text, "only + - * / // % and ** are allowed between operands")
    return Product(_node(left, text), tuple(reversed(factors)))


def _power(node: ast.BinOp, text: str) -> Node:
    exponent = node.right
    if not (isinstance(exponent, ast.Constant) and type(exponent.value) is int):
        raise refuse(text, "an exponent must be an integer, written out")
    if exponent.value > MAX_EXPONENT:
        raise refuse(text, f"an exponent above {MAX_EXPONENT}")
    return Power(_node(node.left, text), exponent.value)


def _call(function: str, arguments: list[ast.expr], text: str) -> Node:
    if function not in FUNCTIONS:
        raise refuse(text, f"there is no function {shown(function)}; there are {', '.join(sorted(FUNCTIONS))}")
    if not arguments or (function in ("ceil", "floor") and len(arguments) != 1):
        raise refuse(text, f"{function} takes another number of arguments than {len(arguments)}")
    return Call(function, tuple(_node(argument, text) for argument in arguments))


@lru_cache(maxsize=16_384)
def symbols(text: str) -> frozenset[str]:
    """The names of the symbols in an expression. text: the expression."""
    found: set[str] = set()
    waiting: list[Node] = [read(text)]
    while waiting:
        match waiting.pop():
            case str() as name:
                found.add(name)
            case Sum(terms):
                waiting += [term for _, term in terms]
            case Product(first, rest):
                waiting += [first, *(factor for _, factor in rest)]
            case Power(base, _):
                waiting.append(base)
            case Call(_, arguments):
                waiting += arguments
    return frozenset(found)


# Quotients of polynomials with integer coefficients, in lowest terms: the algebra under the canonical form.
#
# This is our own code and not sympy's because it runs once for every expression of a graph. Nearly all denominators are
# single products, and a comparison of exponents finds their common factors. Only a sum in a denominator needs a
# polynomial gcd; sympy computes that one.
#
# A polynomial maps monomials to coefficients. A monomial lists its atoms with their exponents, sorted. An atom is the
# name of a symbol, or a `Function`: the text of a rounding, `min` or `max`.

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


# Fractions as text, each in one form.


def text_of(value: Fraction) -> str:
    """The text of a fraction, the same for equal values, which `read` reads back. value: the
    fraction.
    """
    if not value.above:
        return "0"
    sign, above = _factors(value.above)
    _, below = _factors(value.below)
    if len(above) == 1 and not below and sign == "":
        return above[0].removeprefix("(").removesuffix(")") if _is_wrapped(value) else above[0]
    text = sign + ("*".join(above) or "1")
    return text + (f"/{_grouped(below)}" if below else "")


def quotient_text(value: Fraction) -> str:
    """`above//below`: the whole part of a fraction."""
    sign, above = _factors(value.above)
    _, below = _factors(value.below)
    return f"{sign}{'*'.join(above) or '1'}//{_grouped(below) if below else '1'}"


def _grouped(factors: list[str]) -> str:
    return factors[0] if len(factors) == 1 else f"({'*'.join(factors)})"


def _is_wrapped(value: Fraction) -> bool:
    """Whether a factor has parentheses only among other factors: `(a + b)*c`, but `a + b`."""
    if len(value.above) > 1:
        return True
    (name, exponent), *_ = next(iter(value.above)) or (("", 0),)
    return exponent == 1 and isinstance(name, Function) and name.kind == "floor"


def _factors(polynomial: Polynomial) -> tuple[str, list[str]]:
    """Sign and factors: the integer, atoms, and the rest of a sum in parentheses. The factor 1 is left out."""
    number, shared = content(polynomial)
    if all(coefficient < 0 for coefficient in polynomial.values()):
        sign, number = "-", -number
    else:
        sign = ""
    factors = [str(abs(number))] if abs(number) != 1 else []
    factors += _atoms(shared)
    if len(polynomial) > 1:
        factors.append(f"({_sum(divide_out(polynomial, number, shared))})")
    return sign, factors


def _atoms(monomial: Monomial) -> list[str]:
    return [_atom(name) + (f"**{exponent}" if exponent > 1 else "") for name, exponent in sorted(monomial)]


def _atom(name: str) -> str:
    return f"({name})" if isinstance(name, Function) and name.kind == "floor" else str(name)


def _sum(polynomial: Polynomial) -> str:
    """Terms by falling degree, then alphabetically. A positive term comes first."""
    terms = sorted(polynomial.items(), key=lambda item: rank(item[0]))
    first = next((place for place, (_, coefficient) in enumerate(terms) if coefficient > 0), 0)
    terms.insert(0, terms.pop(first))
    text = ""
    for monomial, coefficient in terms:
        factors = ([str(abs(coefficient))] if abs(coefficient) != 1 or not monomial else []) + _atoms(monomial)
        lead = (" - " if coefficient < 0 else " + ") if text else ("-" if coefficient < 0 else "")
        text += lead + "*".join(factors)
    return text


# Rounding, minimum and maximum of fractions. They are folded where the result holds for all positive symbols.


def round_down(value: Fraction) -> Fraction:
    """The largest whole number that is not above the value."""
    whole, rest = _split(value)
    if not rest.above:
        return Fraction(whole, ONE)
    number = _constant(rest)
    if number is not None:
        return add(Fraction(whole, ONE), integer(number[0] // number[1]))
    if rest.above[leading(rest.above)] < 0:
        return _plus(whole, _ceil_atom(negate(rest)), -1)
    return _plus(whole, _floor_atom(rest))


def round_up(value: Fraction) -> Fraction:
    """The smallest whole number that is not below the value."""
    return negate(round_down(negate(value)))


def _plus(whole: Polynomial, function: Function, sign: int = 1) -> Fraction:
    return Fraction(plus(whole, {((function, 1),): 1}, sign), ONE)


def _constant(value: Fraction) -> tuple[int, int] | None:
    if set(value.above) == {()} and set(value.below) == {()}:
        return value.above[()], value.below[()]
    return None


def _split(value: Fraction) -> tuple[Polynomial, Fraction]:
    """A whole polynomial and the rest: terms that the denominator divides move out, rounded towards zero."""
    left = dict(value.above)
    head = leading(value.below)
    divisor = value.below[head]
    whole: Polynomial = {}
    rest: Polynomial = {}
    while left:
        term = min(left, key=rank)
        monomial = over_monomial(term, head)
        coefficient = left[term]
        number = abs(coefficient) // divisor * (1 if coefficient > 0 else -1)
        if monomial is not None and number and is_whole(monomial):
            step = {tuple(sorted(monomial)): number}
            whole = plus(whole, step)
            left = plus(left, times(step, value.below), -1)
        if term in left:
            rest[term] = left.pop(term)
    return whole, fraction(rest, value.below)


def _floor_atom(value: Fraction) -> Function:
    nested = _nested(value, "floor")
    return Function(quotient_text(nested), "floor", (nested,), whole=True)


def _ceil_atom(value: Fraction) -> Function:
    nested = _nested(value, "ceil")
    return Function(f"ceil({text_of(nested)})", "ceil", (nested,), whole=True)


def _nested(value: Fraction, kind: str) -> Fraction:
    """`(a//b)//c` is `a//(b*c)` for a positive whole c. The same holds for `ceil`."""
    if len(value.above) == 1 and _is_positive_whole(value.below):
        (term, coefficient), *_ = value.above.items()
        if coefficient == 1 and len(term) == 1 and term[0][1] == 1:
            inner = term[0][0]
            if isinstance(inner, Function) and inner.kind == kind:
                return divide(inner.arguments[0], Fraction(value.below, ONE))
    return value


def _is_positive_whole(polynomial: Polynomial) -> bool:
    return _only_symbols(polynomial) and all(coefficient > 0 for coefficient in polynomial.values())


def _only_symbols(polynomial: Polynomial) -> bool:
    return not any(isinstance(name, Function) for term in polynomial for name, _ in term)


def extreme(kind: str, arguments: list[Fraction]) -> Fraction:
    """The minimum or maximum: flattened, sorted, without arguments that are never the result.

    kind: `min` or `max`. arguments: one or more.
    """
    flat: dict[str, Fraction] = {}
    for argument in arguments:
        for part in _parts(kind, argument):
            flat[text_of(part)] = part
    kept = {
        text: part
        for text, part in flat.items()
        if not any(other is not part and _beats(kind, other, part) for other in flat.values())
    }
    if len(kept) == 1:
        return next(iter(kept.values()))
    texts = sorted(kept)
    whole = all(part.below == ONE and all(map(is_whole, part.above)) for part in kept.values())
    parts = tuple(kept[text] for text in texts)
    return atom(Function(f"{kind}({', '.join(texts)})", "min" if kind == "min" else "max", parts, whole))


def _parts(kind: str, value: Fraction) -> tuple[Fraction, ...]:
    if value.below == ONE and len(value.above) == 1:
        (term, coefficient), *_ = value.above.items()
        if coefficient == 1 and len(term) == 1 and term[0][1] == 1:
            name = term[0][0]
            if isinstance(name, Function) and name.kind == kind:
                return name.arguments
    return (value,)


def _beats(kind: str, one: Fraction, two: Fraction) -> bool:
    """Whether `one` is at least as extreme as `two` for all positive whole symbols. False may mean unknown."""
    difference = add(one, two, -1) if kind == "max" else add(two, one, -1)
    if not (_only_symbols(difference.above) and _is_positive_whole(difference.below)):
        return False
    negative = {term for term, coefficient in difference.above.items() if coefficient < 0}
    # Every term is at least as large as its coefficient. A term that falls must be constant.
    return negative <= {()} and sum(difference.above.values()) >= 0
