"""Rounding, minimum and maximum of fractions. They are folded where the result holds for all positive symbols."""

from stagedb.expressions import fraction as algebra
from stagedb.expressions.fraction import ONE, Fraction, Function, Polynomial, leading, over_monomial, rank
from stagedb.expressions.printing import quotient_text, text_of


def round_down(value: Fraction) -> Fraction:
    """The largest whole number that is not above the value."""
    whole, rest = _split(value)
    if not rest.above:
        return Fraction(whole, ONE)
    number = _constant(rest)
    if number is not None:
        return algebra.add(Fraction(whole, ONE), algebra.integer(number[0] // number[1]))
    if rest.above[leading(rest.above)] < 0:
        return _plus(whole, _ceil_atom(algebra.negate(rest)), -1)
    return _plus(whole, _floor_atom(rest))


def round_up(value: Fraction) -> Fraction:
    """The smallest whole number that is not below the value."""
    return algebra.negate(round_down(algebra.negate(value)))


def _plus(whole: Polynomial, function: Function, sign: int = 1) -> Fraction:
    return Fraction(algebra.plus(whole, {((function, 1),): 1}, sign), ONE)


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
        if monomial is not None and number and algebra.is_whole(monomial):
            step = {tuple(sorted(monomial)): number}
            whole = algebra.plus(whole, step)
            left = algebra.plus(left, algebra.times(step, value.below), -1)
        if term in left:
            rest[term] = left.pop(term)
    return whole, algebra.fraction(rest, value.below)


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
                return algebra.divide(inner.arguments[0], Fraction(value.below, ONE))
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
    whole = all(part.below == ONE and all(map(algebra.is_whole, part.above)) for part in kept.values())
    parts = tuple(kept[text] for text in texts)
    return algebra.atom(Function(f"{kind}({', '.join(texts)})", "min" if kind == "min" else "max", parts, whole))


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
    difference = algebra.add(one, two, -1) if kind == "max" else algebra.add(two, one, -1)
    if not (_only_symbols(difference.above) and _is_positive_whole(difference.below)):
        return False
    negative = {term for term, coefficient in difference.above.items() if coefficient < 0}
    # Every term is at least as large as its coefficient. A term that falls must be constant.
    return negative <= {()} and sum(difference.above.values()) >= 0
