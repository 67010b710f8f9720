"""The canonical form: one text for equal polynomials and quotients, and readable.

A quotient is in lowest terms, its common factors drawn out of sums: `2*B*S*(H + F)/(dp*tp)`. Names stand in
alphabetical order, terms by falling degree. `a % b` becomes `a - b*(a//b)`. Whole parts are drawn out of `//` and
`ceil`, `-((-a)//b)` is `ceil(a/b)`; `min` and `max` are flattened, sorted, and rid of what can never be the answer.
All of it holds for symbols that are positive integers.
"""

from functools import lru_cache, reduce
from typing import TYPE_CHECKING

from stagedb.expressions import fraction as algebra
from stagedb.expressions.fraction import ONE, Fraction
from stagedb.expressions.parsing import (
    MAX_EXPONENT,
    Call,
    DimensionError,
    Node,
    Power,
    Product,
    Sum,
    check_name,
    check_text,
    read,
    refuse,
    shorten,
)
from stagedb.expressions.printing import text_of
from stagedb.expressions.rounding import extreme, round_down, round_up

if TYPE_CHECKING:
    import sympy


def canonical(expression: "str | int | sympy.Expr") -> str:
    """The one text of an expression, given as text, an integer or sympy's.

    Equal polynomials and quotients have one text, and the canonical form of a canonical text is itself.
    DimensionError if it is no expression, divides by zero, or is too large once it is multiplied out.
    """
    if isinstance(expression, str):
        return _of_text(expression)
    if isinstance(expression, int):
        return _of_text(str(int(expression)))
    return _of_sympy(expression)


@lru_cache(maxsize=16_384)
def _of_text(text: str) -> str:
    try:
        return _written(_of_node(read(text)))
    except DimensionError as error:
        raise error if str(error).startswith("not a dimension") else refuse(text, str(error)) from None


@lru_cache(maxsize=16_384)
def _of_sympy(expression: "sympy.Expr") -> str:
    try:
        return _written(_of_expression(expression))
    except DimensionError as error:
        raise refuse(str(expression), str(error)) from None


def _written(value: Fraction) -> str:
    text = text_of(value)
    check_text(text)
    return text


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
    raise AssertionError(f"no such node: {node!r}")


def _apply(operator: str, left: Fraction, right: Fraction) -> Fraction:
    if operator == "*":
        return algebra.multiply(left, right)
    if operator == "/":
        return algebra.divide(left, right)
    quotient = round_down(algebra.divide(left, right))
    if operator == "//":
        return quotient
    return algebra.add(left, algebra.multiply(right, quotient), -1)


def _of_expression(expression: "sympy.Basic") -> Fraction:
    import sympy

    if isinstance(expression, sympy.Symbol):
        return algebra.atom(check_name(expression.name))
    if isinstance(expression, sympy.Rational):
        return algebra.divide(algebra.integer(expression.p), algebra.integer(expression.q))
    if isinstance(expression, sympy.Pow):
        base, exponent = expression.args
        if not isinstance(exponent, sympy.Integer) or abs(int(exponent)) > MAX_EXPONENT:
            raise DimensionError(
                f"an exponent must be an integer of at most {MAX_EXPONENT}, not {shorten(str(exponent))}"
            )
        value = algebra.power(_of_expression(base), abs(int(exponent)))
        return value if exponent > 0 else algebra.divide(Fraction(ONE, ONE), value)
    parts = [_of_expression(part) for part in expression.args]
    if isinstance(expression, sympy.Mul):
        return reduce(algebra.multiply, parts)
    if isinstance(expression, sympy.Add):
        return reduce(algebra.add, parts)
    if isinstance(expression, sympy.floor):
        return round_down(parts[0])
    if isinstance(expression, sympy.ceiling):
        return round_up(parts[0])
    if isinstance(expression, sympy.Mod):
        return _apply("%", parts[0], parts[1])
    if isinstance(expression, sympy.Min | sympy.Max):
        return extreme("min" if isinstance(expression, sympy.Min) else "max", parts)
    raise DimensionError(
        f"{type(expression).__name__} is not allowed; only + - * / // % **, min, max, ceil and floor are"
    )
