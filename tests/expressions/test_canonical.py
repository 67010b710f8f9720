"""The canonical form: the same for equal expressions, its own fixed point, true to the values, and readable."""

import re
from collections.abc import Callable
from fractions import Fraction

import pytest
import sympy
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stagedb.ir.expressions import Expression, canonical, ceiling, evaluate, largest, number, parse, smallest, symbol
from stagedb.ir.quotients import DimensionError, symbols
from stagedb.ir.sympy_form import from_sympy, to_sympy

NAMES = ("B", "F", "KV", "S", "dp", "tp", "e_act")
names = st.sampled_from(NAMES)
environments = st.fixed_dictionaries({name: st.integers(1, 12) for name in NAMES})
polynomials = st.lists(st.tuples(st.integers(-9, 9), st.lists(names, max_size=3)), min_size=1, max_size=4)


def _combined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(parts, st.sampled_from(["+", "-", "*", "/", "//", "%"]), parts).map(
            lambda t: f"({t[0]}){t[1]}({t[2]})"
        ),
        st.tuples(st.sampled_from(["min", "max"]), parts, parts).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
        st.tuples(st.sampled_from(["ceil", "floor", "-"]), parts).map(lambda t: f"{t[0]}({t[1]})"),
        st.tuples(parts, st.integers(0, 3)).map(lambda t: f"({t[0]})**{t[1]}"),
    )


expressions = st.recursive(st.one_of(names, st.integers(0, 9).map(str)), _combined, max_leaves=8)


def written(terms: list[tuple[int, list[str]]]) -> str:
    return " + ".join("*".join([f"({number})", *factors]) for number, factors in terms)


def value(text: str, env: dict[str, int]) -> Fraction | None:
    """The exact value, whole or not; None where something is divided by zero."""
    try:
        return Fraction(evaluate(text, env))
    except DimensionError as error:
        fraction = re.search(r" is (-?[0-9]+/[0-9]+), not whole", str(error))
        if fraction:
            return Fraction(fraction[1])
        assert "divides by zero" in str(error)
        return None


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("B*S*H/(tp*dp)", "B*H*S/(dp*tp)"),
        ("S/cp/tp", "S/(cp*tp)"),
        ("2*B*S*H*F*e_act/dp/tp", "2*B*F*H*S*e_act/(dp*tp)"),
        ("(A + KV + KV)*D/tp", "D*(A + 2*KV)/tp"),
        ("x/2 + y/3", "(3*x + 2*y)/6"),
        ("(a*b + a*c)/(2*b + 2*c)", "a/2"),
        ("(a**2 - b**2)/(a - b)", "a + b"),
        ("a/(b - c) + a/(c - b)", "0"),
        ("-tp + 2", "2 - tp"),
        ("-a - b", "-(a + b)"),
        ("x**0", "1"),
        ("7//2 - 7%2 + ceil(7/2)", "6"),
        ("-7//2", "-4"),
        ("F % tp", "F - (F//tp)*tp"),
        ("(F + 2*tp)//tp", "(F//tp) + 2"),
        ("floor(B)", "B"),
        ("floor(B/tp)", "B//tp"),
        ("a//b//c", "a//(b*c)"),
        ("-((-V)//tp)", "ceil(V/tp)"),
        ("ceil(ceil(V/128)/tp)", "ceil(V/(128*tp))"),
        ("128*tp*ceil(V/(tp*128))", "128*ceil(V/(128*tp))*tp"),
        ("max(KV/tp, 1)", "max(1, KV/tp)"),
        ("max(1, tp)", "tp"),
        ("min(tp, 3, 1)", "1"),
        ("min(b, min(a, b), a, 3 + 4 - 2)", "min(5, a, b)"),
        ("max(a, a + 1, b)", "max(a + 1, b)"),
        ("min(a/2, b)//1", "min(a/2, b)//1"),
        ("(a//b)**2/c", "(a//b)**2/c"),
    ],
)
def test_forms(text: str, form: str) -> None:
    assert canonical(text) == form
    assert canonical(form) == form


@settings(deadline=None)
@given(expressions)
def test_a_canonical_text_is_its_own_form_also_by_way_of_sympy(text: str) -> None:
    try:
        form = canonical(text)
    except DimensionError:
        assume(False)
    assert canonical(form) == form
    assert str(parse(form)) == form
    assert from_sympy(to_sympy(parse(form))) == parse(form)


WRITTEN: dict[str, Callable[[Expression, Expression], Expression]] = {
    "({}) + ({})": lambda a, b: a + b,
    "({}) - ({})": lambda a, b: a - b,
    "({}) * ({})": lambda a, b: a * b,
    "({}) / ({})": lambda a, b: a / b,
    "({}) // ({})": lambda a, b: a // b,
    "min({}, {})": smallest,
    "max({}, {})": largest,
    "ceil({}) + 0*({})": lambda a, b: ceiling(a) + 0 * b,
    "3 - ({}) + 2*({})": lambda a, b: 3 - a + 2 * b,
    "7/({}) + ({})**2": lambda a, b: 7 / a + b**2,
    "-({}) + 0*({})": lambda a, b: -a + 0 * b,
}


@pytest.mark.parametrize("written", WRITTEN)
@given(one=expressions, two=expressions)
def test_computing_with_expressions_is_writing_them(written: str, one: str, two: str) -> None:
    """An operator or function gives what `canonical` makes of its text, or refuses what that refuses."""
    try:
        form = canonical(written.format(one, two))
    except DimensionError:
        form = None
    try:
        computed = str(WRITTEN[written](parse(one), parse(two)))
    except DimensionError:
        computed = None
    assert computed == form


@settings(deadline=None)
@given(expressions, environments)
def test_the_form_has_the_value_of_the_text(text: str, env: dict[str, int]) -> None:
    before = value(text, env)
    assume(before is not None)
    assert value(canonical(text), env) == before


@settings(deadline=None)
@given(expressions, environments)
def test_the_value_is_sympys(text: str, env: dict[str, int]) -> None:
    ours = value(text, env)
    assume(ours is not None)
    functions = {"min": sympy.Min, "max": sympy.Max, "ceil": sympy.ceiling, "floor": sympy.floor}
    known = {**functions, "Integer": sympy.Integer, **{name: sympy.Integer(number) for name, number in env.items()}}
    theirs = eval(re.sub(r"\b([0-9]+)\b", r"Integer(\1)", text), known)  # noqa: S307
    assert ours == Fraction(int(theirs.p), int(theirs.q))
    substituted = to_sympy(parse(text)).subs({to_sympy(symbol(name)): size for name, size in env.items()})
    assert substituted.doit() == theirs


@settings(deadline=None)
@given(polynomials, st.randoms(use_true_random=False))
def test_equal_polynomials_have_one_form(terms: list[tuple[int, list[str]]], random: object) -> None:
    form = canonical(written(terms))
    shuffled = [(number, sorted(factors, key=lambda _: random.random())) for number, factors in terms]  # type: ignore[attr-defined]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert canonical(written(shuffled)) == form
    assert str(from_sympy(sympy.expand(to_sympy(parse(written(terms)))))) == form
    assert str(from_sympy(sympy.factor(to_sympy(parse(written(terms)))))) == form


@settings(deadline=None)
@given(polynomials, polynomials, polynomials)
def test_equal_quotients_have_one_form(
    above: list[tuple[int, list[str]]], below: list[tuple[int, list[str]]], factor: list[tuple[int, list[str]]]
) -> None:
    p, q, r = (written(terms) for terms in (above, below, factor))
    assume(canonical(q) != "0" and canonical(r) != "0")
    form = canonical(f"({p})/({q})")
    assert canonical(f"(({p})*({r}))/(({q})*({r}))") == form
    assert canonical(f"({p})/({q}) + ({r})/({q}) - ({r})/({q})") == form
    assert str(parse(p) / parse(q)) == form
    assert str(from_sympy(sympy.cancel(to_sympy(parse(p)) / to_sympy(parse(q))))) == form


@settings(deadline=None)
@given(polynomials, polynomials)
def test_different_polynomials_have_different_forms(
    one: list[tuple[int, list[str]]], two: list[tuple[int, list[str]]]
) -> None:
    same = sympy.expand(to_sympy(parse(written(one))) - to_sympy(parse(written(two)))) == 0
    assert (canonical(written(one)) == canonical(written(two))) == same
    assert (parse(written(one)) == parse(written(two))) == same


@settings(deadline=None)
@given(expressions)
def test_no_symbol_appears_that_was_not_there(text: str) -> None:
    try:
        form = canonical(text)
    except DimensionError:
        assume(False)
    assert symbols(form) <= symbols(text)


def test_sympy_expressions_and_integers_have_forms() -> None:
    batch, degree = to_sympy(symbol("B")), to_sympy(symbol("tp"))
    assert str(from_sympy(batch * 2 / degree)) == "2*B/tp"
    assert str(from_sympy(sympy.Max(batch / degree, 1))) == "max(1, B/tp)"
    assert str(from_sympy(sympy.Min(batch, degree))) == "min(B, tp)"
    assert str(from_sympy(sympy.ceiling(batch / degree))) == "ceil(B/tp)"
    assert str(from_sympy(sympy.Mod(batch, degree))) == canonical("B % tp")
    assert str(from_sympy(sympy.floor(batch / degree) + sympy.Rational(1, 2))) == canonical("B//tp + 1/2")
    assert str(from_sympy(batch**-2)) == "1/B**2"
    assert str(number(12)) == "12"


@pytest.mark.parametrize(
    "expression", [sympy.sin(sympy.Symbol("x")), sympy.sqrt(sympy.Symbol("x")), sympy.pi, sympy.oo]
)
def test_other_expressions_of_sympy_are_refused(expression: sympy.Expr) -> None:
    with pytest.raises(DimensionError):
        from_sympy(expression)


@pytest.mark.parametrize(
    "text", ["1/(a - a)", "(a + b + c + d + f + g)**64", "(x**64)**2", "(" + "9" * 100 + "*x)**2", "a//0", "a % 0"]
)
def test_what_has_no_form_is_refused(text: str) -> None:
    with pytest.raises(DimensionError, match="not a dimension"):
        canonical(text)
