"""Fractions as text, each in one form."""

from stagedb.expressions.fraction import Fraction, Function, Monomial, Polynomial, content, divide_out, rank


def text_of(value: Fraction) -> str:
    """The text of a fraction, the same for equal values, which `stagedb.expressions.parsing` reads back. value: the
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
