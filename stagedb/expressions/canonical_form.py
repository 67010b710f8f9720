"""The canonical form: equal polynomials and quotients have one text, and it is readable.

A quotient is in lowest terms, with common factors moved out of sums: `2*B*S*(H + F)/(dp*tp)`. Names are in
alphabetical order, terms in order of falling degree. `a % b` becomes `a - b*(a//b)`. Whole parts move out of `//` and
`ceil`, and `-((-a)//b)` becomes `ceil(a/b)`. `min` and `max` are flattened and sorted, without arguments that can
never be the result. All this is correct for symbols that are positive integers.
"""

from functools import lru_cache

from stagedb.expressions import fraction as algebra
from stagedb.expressions.fraction import Fraction
from stagedb.expressions.parsing import (
    MAX_NESTING,
    MAX_TOKENS,
    Call,
    DimensionError,
    Node,
    Power,
    Product,
    Sum,
    check_text,
    read,
    refuse,
)
from stagedb.expressions.printing import text_of
from stagedb.expressions.rounding import extreme, round_down, round_up
from stagedb.files import shown


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
