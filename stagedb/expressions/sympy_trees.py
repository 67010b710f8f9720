"""Expressions as sympy's, for whoever builds a graph by computing with them.

Rounding, `min` and `max` are made unevaluated: `canonical` has folded them, and sympy would do so in other ways.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

from stagedb.expressions.canonical_form import canonical
from stagedb.expressions.parsing import Call, Node, Power, Product, Sum, check_name, read

if TYPE_CHECKING:
    import sympy


@lru_cache(maxsize=4_096)
def symbol(name: str) -> "sympy.Symbol":
    """The symbol of this name: a positive integer. DimensionError if no symbol may have the name."""
    import sympy

    return sympy.Symbol(check_name(name), positive=True, integer=True)


@lru_cache(maxsize=16_384)
def parse(text: str) -> "sympy.Expr":
    """The expression that a text writes, in its canonical form: equal texts give equal expressions.

    DimensionError where `canonical` raises it; nothing in the text is ever run.
    """
    return _build(read(canonical(text)))


def _build(node: Node) -> "sympy.Expr":
    import sympy

    match node:
        case int():
            return sympy.Integer(node)
        case str():
            return symbol(node)
        case Sum(terms):
            return sympy.Add(*(_build(term) if sign > 0 else -_build(term) for sign, term in terms))
        case Product(first, rest):
            value = _build(first)
            for operator, factor in rest:
                value = _apply(operator, value, _build(factor))
            return value
        case Power(base, exponent):
            return _build(base) ** exponent
        case Call(function, arguments):
            kind = {"ceil": sympy.ceiling, "min": sympy.Min, "max": sympy.Max}[function]
            return kind(*(_build(argument) for argument in arguments), evaluate=False)
    raise AssertionError(f"no such node: {node!r}")


def _apply(operator: str, left: "sympy.Expr", right: "sympy.Expr") -> "sympy.Expr":
    import sympy

    if operator == "*":
        return left * right
    if operator == "/":
        return left / right
    return sympy.floor(left / right, evaluate=False)  # `//`: a canonical text has no `%`
