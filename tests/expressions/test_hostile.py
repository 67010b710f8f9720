"""Text that is not arithmetic is refused before anything could run or grow."""

import keyword

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.errors import UsageError
from stagedb.ir.expressions import canonical, evaluate, parse, symbol
from stagedb.ir.quotients import MAX_LENGTH, MAX_NESTING, DimensionError, symbols

HOSTILE = {
    "import": "__import__('os')",
    "import, no quotes": "__import__(os)",
    "dunder name": "__class__",
    "attribute": "a.b",
    "attribute of a number": "1 .real",
    "call of a name": "print(a)",
    "call of a call": "max(a, b)(c)",
    "call of a parenthesis": "(max)(a, b)(c)",
    "keyword argument": "max(a, key=b)",
    "starred": "max(*a)",
    "double starred": "max(**a)",
    "no argument": "max()",
    "two to ceil": "ceil(a, b)",
    "function as a symbol": "max + 1",
    "lambda": "lambda: 1",
    "walrus": "(a := 1)",
    "assignment": "a = 1",
    "comparison": "a < b",
    "boolean": "a and b",
    "not": "not a",
    "invert": "~a",
    "plus sign": "+a",
    "condition": "a if b else c",
    "membership": "a in b",
    "true": "True",
    "none": "None",
    "f-string": "f'{a}'",
    "string": "'a'",
    "index": "a[0]",
    "tuple": "a, b",
    "empty tuple": "()",
    "list": "[a]",
    "comprehension": "max(a for a in b)",
    "set": "{a}",
    "await": "await a",
    "yield": "(yield a)",
    "float": "1.5",
    "exponent float": "1e9",
    "complex": "2j",
    "hexadecimal": "0x10",
    "underscored": "1_000",
    "leading zero": "012",
    "ellipsis": "...",
    "matrix product": "a @ b",
    "shift": "1 << 99",
    "comment": "a # b",
    "newline": "a\n+ b",
    "semicolon": "a; b",
    "continuation": "a \\\n + b",
    "null": "a\0",
    "empty": "",
    "blank": "  ",
    "two names": "a b",
    "open": "(a",
    "closed": "a)",
    "operator alone": "*",
    "look-alike letter": "ſ",  # NFKC: s
    "look-alike name": "𝐇*2",  # NFKC: H
    "cyrillic": "Н/tp",  # looks like a Latin H
    "full-width digit": "１",
    "no-break space": "a\u00a0+ b",
    "symbolic exponent": "a**b",
    "negative exponent": "a**-1",
    "huge power": "9**999999999",
    "tower": "9**9**9**9**9",
    "tower in parentheses": "((9**64)**64)**64**64",
    "long tower": "**".join("2" * 1_000),
    "long number": "9" * 5_000,
    "long name chain": "+".join(["a"] * 100_000),
    "deep": "(" * 100_000 + "a" + ")" * 100_000,
    "deep within the length": "(" * 4_000 + "a" + ")" * 4_000,
    "deep calls": "max(" * (MAX_NESTING + 1) + "a" + ")" * (MAX_NESTING + 1),
    "signs": "-" * 10_000 + "a",
    "spaced signs": "- " * 4_000 + "a",
    "only open": "(" * MAX_LENGTH,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_is_refused(text: str) -> None:
    for function in (parse, canonical, symbols, lambda text: evaluate(text, {"a": 1, "b": 1, "c": 1, "H": 1})):
        with pytest.raises(DimensionError, match="not a dimension") as caught:
            function(text)
        assert len(str(caught.value)) < 400


def test_the_error_is_one_of_usage() -> None:
    assert issubclass(DimensionError, UsageError)


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        names = symbols(text)
    except DimensionError:
        return
    assert text.isascii()
    assert all(name.isidentifier() and not keyword.iskeyword(name) for name in names)


@settings(deadline=None)
@given(st.text(alphabet="ab1(),+-*/% maxceil_", max_size=60))
def test_nearly_arithmetic_is_read_or_refused(text: str) -> None:
    try:
        canonical(text)
    except DimensionError as error:
        assert "not a dimension" in str(error)


@pytest.mark.parametrize("name", ["max", "ceil", "lambda", "__x", "a-b", "", "1a", "Н", "a b", "x" * 100])
def test_a_symbol_may_not_have_any_name(name: str) -> None:
    with pytest.raises(DimensionError, match="not a symbol's name"):
        symbol(name)


def test_long_sums_are_read_with_any_stack() -> None:
    text = " + ".join(["a"] * 1_000)

    def at_depth(depth: int) -> int:
        return at_depth(depth - 1) if depth else evaluate(text, {"a": 2})

    assert canonical(text) == "1000*a"
    assert at_depth(400) == 2_000


def test_nesting_up_to_the_bound_is_read() -> None:
    assert canonical("(" * MAX_NESTING + "a" + ")" * MAX_NESTING) == "a"
