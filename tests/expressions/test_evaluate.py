"""Exact values, and errors that name what, the expression and the divisor."""

import subprocess
import sys

import pytest

from stagedb.ir.expressions import evaluate, evaluate_all
from stagedb.ir.quotients import DimensionError, symbols


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("B*S*H/(dp*tp)", 2 * 2048 * 4096 // 8),
        ("max(KV/tp, 1)*D", 256),
        ("max(1, KV/(8*tp))*D", 128),
        ("ceil(V/(128*tp))*128*tp", 128512),
        ("min(S//3, 5) + S % 3", 7),
        ("(H/3)*3", 4096),
        ("-2**2", -4),
        ("(-2)**2", 4),
        ("7 - 2 - 3", 2),
        ("H/2/2", 1024),
        ("2 - tp", -2),
        ("-7//2", -4),
        ("-7 % 3", 2),
        (str(10**100), 10**100),
    ],
)
def test_values(text: str, value: int) -> None:
    env = {"B": 2, "S": 2048, "H": 4096, "KV": 8, "D": 128, "V": 128256, "dp": 2, "tp": 4}
    result = evaluate(text, env)
    assert result == value
    assert type(result) is int


def test_a_size_that_is_not_whole_names_tensor_expression_and_degree() -> None:
    with pytest.raises(DimensionError) as caught:
        evaluate("F/tp", {"F": 14336, "tp": 3}, what="layer.ffn.w1")
    assert str(caught.value) == "layer.ffn.w1: F/tp is 14336/3, not whole: tp=3 does not divide F=14336"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("B*S/(dp*tp)", "B*S/(dp*tp) is 200/3, not whole: tp=3 does not divide B*S=400 (with B=4, S=100, dp=2)"),
        ("B/(dp*dp*dp)", "not whole: dp*dp*dp=8 does not divide B=4"),
        ("S/8", "S/8 is 25/2, not whole: 8 does not divide S=100"),
        ("S/tp + B/tp", "is 104/3, not whole: with B=4, S=100, tp=3"),
        ("max(S/tp, 1)", "is 100/3, not whole: with S=100, tp=3"),
        ("B/(S - 100)", "w: B/(S - 100) divides by zero with B=4, S=100"),
        ("B % (S - 100)", "divides by zero"),
        ("B//(dp - 2)", "divides by zero with B=4, dp=2"),
        ("B*cp", "w: B*cp: cp has no value here (those with one: B, S, dp, tp)"),
        ("B +", "w: not a dimension: 'B +'"),
        ("(((S**64)**64)**64)**64", "a power of more than"),
    ],
)
def test_errors(text: str, message: str) -> None:
    with pytest.raises(DimensionError) as caught:
        evaluate(text, {"B": 4, "S": 100, "dp": 2, "tp": 3}, what="w")
    assert message in str(caught.value)
    assert str(caught.value).startswith("w: ")


@pytest.mark.parametrize("value", [0, -1, True, 2.0])
def test_a_symbol_is_a_positive_integer(value: int) -> None:
    with pytest.raises(DimensionError, match="B must be a positive integer"):
        evaluate("B", {"B": value})


def test_all_values_at_once() -> None:
    assert evaluate_all(["B", "B*2", "B"], {"B": 3}) == {"B": 3, "B*2": 6}


def test_symbols_of_a_text() -> None:
    assert symbols("max(KV/tp, 1)*D**2 - 3 % x") == {"KV", "tp", "D", "x"}


def test_evaluation_does_not_load_sympy() -> None:
    program = (
        "import sys\n"
        "from stagedb.ir.expressions import canonical, evaluate\n"
        "from stagedb.ir.quotients import symbols\n"
        "assert evaluate('ceil(V/(128*tp))*128', {'V': 50257, 'tp': 8}) == 6400\n"
        "assert canonical('S/tp/cp') == 'S/(cp*tp)' and symbols('S') == {'S'}\n"
        "assert 'sympy' not in sys.modules, 'sympy was loaded'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
