"""Expressions converted to and from sympy, for code that simplifies, solves or plots them there."""

from typing import TYPE_CHECKING

from stagedb.files import shown
from stagedb.ir.expressions import Expression, ceiling, largest, number, product, smallest, symbol, total
from stagedb.ir.quotients import MAX_EXPONENT, Call, DimensionError, Node, Power, Product, Sum, read, shorten

if TYPE_CHECKING:
    import sympy


def to_sympy(expression: Expression) -> "sympy.Expr":
    """The expression in sympy, over symbols that are positive integers.

    Rounding, `min` and `max` are unevaluated: `Expression` has folded them, and sympy would fold them otherwise.
    """
    return _build(read(expression.text))


def from_sympy(expression: "sympy.Basic") -> Expression:
    """A sympy expression as ours. DimensionError for an expression that is no dimension: roots, sines, infinities."""
    import sympy

    if isinstance(expression, sympy.Symbol):
        return symbol(expression.name)
    if isinstance(expression, sympy.Rational):
        return number(int(expression.p)) / int(expression.q)
    if isinstance(expression, sympy.Pow):
        base, exponent = expression.args
        if not isinstance(exponent, sympy.Integer) or abs(int(exponent)) > MAX_EXPONENT:
            raise DimensionError(
                f"an exponent must be an integer of at most {MAX_EXPONENT}, not {shorten(str(exponent))}"
            )
        value = from_sympy(base) ** abs(int(exponent))
        return value if exponent > 0 else 1 / value
    parts = [from_sympy(part) for part in expression.args]
    if isinstance(expression, sympy.Mul):
        return product(parts)
    if isinstance(expression, sympy.Add):
        return total(parts)
    if isinstance(expression, sympy.floor):
        return parts[0] // 1
    if isinstance(expression, sympy.ceiling):
        return ceiling(parts[0])
    if isinstance(expression, sympy.Mod):
        return parts[0] - parts[1] * (parts[0] // parts[1])
    if isinstance(expression, sympy.Min):
        return smallest(*parts)
    if isinstance(expression, sympy.Max):
        return largest(*parts)
    raise DimensionError(
        f"{type(expression).__name__} is not allowed; only + - * / // % **, min, max, ceil and floor are"
    )


def _symbol(name: str) -> "sympy.Symbol":
    import sympy

    return sympy.Symbol(name, positive=True, integer=True)


def _build(node: Node) -> "sympy.Expr":
    import sympy

    match node:
        case int():
            return sympy.Integer(node)
        case str():
            return _symbol(node)
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
    raise AssertionError(f"no such node: {shown(node)}")


def _apply(operator: str, left: "sympy.Expr", right: "sympy.Expr") -> "sympy.Expr":
    import sympy

    if operator == "*":
        return left * right
    if operator == "/":
        return left / right
    return sympy.floor(left / right, evaluate=False)  # `//`: a canonical text has no `%`
