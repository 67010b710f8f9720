"""One text for equal dimensions: a quotient of expanded polynomials, its symbols and terms in one order.

`//`, `%`, `ceil`, `floor`, `min` and `max` are atoms whose arguments have that form too; `a % b` is `a - b*(a//b)`.
sympy does the algebra and is imported when it is first needed, which evaluation never does.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from stagedb.symbols._syntax import DimensionError, Name, Node, read

if TYPE_CHECKING:
    import sympy


@lru_cache(maxsize=1024)
def symbol(name: str) -> sympy.Symbol:
    """The symbol of a size or a degree: a positive integer."""
    import sympy

    if not isinstance(read(name), Name):
        raise DimensionError(f"{name!r} is not a name for a symbol")
    return sympy.Symbol(name, positive=True, integer=True)


@lru_cache(maxsize=16384)
def parse(text: str) -> sympy.Expr:
    """A dimension as a sympy expression; DimensionError for anything but arithmetic over names."""
    try:
        return _expression(read(text))
    except ZeroDivisionError:
        raise DimensionError(f"the dimension {text!r} divides by zero") from None


def _expression(node: Node) -> sympy.Expr:
    import sympy

    if isinstance(node, int):
        return sympy.Integer(node)
    if isinstance(node, Name):
        return symbol(node.name)
    values = [_expression(argument) for argument in node.arguments]
    match node.function, values:
        case "neg", [a]:
            return -a
        case "+", [a, b]:
            return a + b
        case "-", [a, b]:
            return a - b
        case "*", [a, b]:
            return a * b
        case "/", [a, b]:
            return _quotient(a, b)
        case "//", [a, b]:
            return sympy.floor(_reduced(_quotient(a, b)))
        case "%", [a, b]:
            return a - b * sympy.floor(_reduced(_quotient(a, b)))
        case "**", [a, b]:
            return a**b
        case "ceil", [a]:
            return sympy.ceiling(_reduced(a))
        case "floor", [a]:
            return sympy.floor(_reduced(a))
        case "min", _:
            return sympy.Min(*map(_reduced, values))
        case _:
            return sympy.Max(*map(_reduced, values))


def _quotient(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    if _reduced(b).is_zero:
        raise ZeroDivisionError
    return a / b


@lru_cache(maxsize=16384)
def _reduced(expr: sympy.Expr) -> sympy.Expr:
    """The quotient of coprime expanded polynomials; atoms such as floor(...) count as symbols."""
    import sympy

    if expr.is_Atom:
        return expr
    functions = (sympy.floor, sympy.ceiling, sympy.Max, sympy.Min)
    atoms = {
        atom: sympy.Dummy(positive=True)
        for atom in expr.atoms(*functions)
        if not any(other is not atom and other.has(atom) for other in expr.atoms(*functions))
    }
    hidden = expr.xreplace(atoms) if atoms else expr
    if any(part.is_Add for part in sympy.preorder_traversal(hidden)):
        hidden = sympy.cancel(hidden)
    return hidden.xreplace({dummy: atom.func(*map(_reduced, atom.args)) for atom, dummy in atoms.items()})


@lru_cache(maxsize=16384)
def canonical(expr: str | sympy.Expr | int) -> str:
    """The one text of a dimension: equal dimensions have equal texts, and `canonical(canonical(x)) == canonical(x)`."""
    import sympy

    expression = parse(expr) if isinstance(expr, str) else sympy.sympify(expr, strict=True)
    return _text(_reduced(expression))


def _text(expr: sympy.Expr) -> str:
    import sympy

    numerator, denominator = sympy.fraction(sympy.together(expr) if expr.is_Add else expr)
    top, bottom = _sum(numerator), _sum(denominator)
    if bottom == "1":
        return top
    if sympy.expand(numerator).is_Add:
        top = f"({top})"
    simple = denominator.is_Symbol or denominator.is_Integer
    return f"{top}/{bottom if simple else f'({bottom})'}"


def _sum(expr: sympy.Expr) -> str:
    """An expanded polynomial with integer coefficients: terms by falling degree, then by their text."""
    import sympy

    terms = []
    for term in sympy.Add.make_args(sympy.expand(expr)):
        coefficient, rest = term.as_coeff_Mul()
        factors = sorted(_factor(*factor.as_base_exp()) for factor in sympy.Mul.make_args(rest) if factor != 1)
        degree = sum(int(factor.as_base_exp()[1]) for factor in sympy.Mul.make_args(rest) if factor != 1)
        terms.append((-degree, "*".join(factors), int(coefficient)))
    text = ""
    for _, product, coefficient in sorted(terms):
        size = abs(coefficient)
        word = product if size == 1 and product else "*".join(filter(None, (str(size), product)))
        sign = "-" if coefficient < 0 else "+"
        text += f" {sign} {word}" if text else (f"-{word}" if coefficient < 0 else word)
    return text


def _factor(base: sympy.Expr, exponent: sympy.Expr) -> str:
    import sympy

    if isinstance(base, sympy.floor):
        top, bottom = sympy.fraction(sympy.together(base.args[0]))
        word = f"floor({_text(base.args[0])})" if bottom == 1 else f"(({_sum(top)})//({_sum(bottom)}))"
    elif isinstance(base, sympy.ceiling):
        word = f"ceil({_text(base.args[0])})"
    elif isinstance(base, (sympy.Max, sympy.Min)):
        name = "max" if isinstance(base, sympy.Max) else "min"
        word = f"{name}({', '.join(sorted(map(_text, base.args)))})"
    elif base.is_Symbol:
        word = base.name
    else:
        raise DimensionError(f"{base} is not part of a dimension")
    return word if exponent == 1 else f"{word}**{int(exponent)}"
