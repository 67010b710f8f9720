"""Exact values of dimensions, without sympy: fractions inside, whole at the end or an error that names the culprit."""

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache

from stagedb.symbols._syntax import Call, DimensionError, Name, Node, read


@lru_cache(maxsize=16384)
def symbols(text: str) -> frozenset[str]:
    """The names that a dimension uses."""
    return frozenset(_names(read(text)))


def _names(node: Node) -> Iterable[str]:
    if isinstance(node, Name):
        yield node.name
    elif isinstance(node, Call):
        for argument in node.arguments:
            yield from _names(argument)


def evaluate(text: str, env: Mapping[str, int], *, what: str = "") -> int:
    """The whole number that a dimension comes to.

    env binds symbols to integers; `what` names the tensor or operator in errors. DimensionError where a symbol has no
    value, a divisor is zero, or the result is not whole.
    """
    try:
        value = _value(read(text), env)
    except KeyError as error:
        raise DimensionError(f"{_of(what)}{text}: the symbol {error.args[0]} has no value") from None
    except ZeroDivisionError:
        raise DimensionError(f"{_of(what)}{text}: division by zero with {_bindings(text, env)}") from None
    if value.denominator != 1:
        raise DimensionError(f"{_of(what)}{text} is {value}, not whole: {_culprit(text, env)}")
    return int(value)


def evaluate_all(texts: Iterable[str], env: Mapping[str, int]) -> dict[str, int]:
    """The value of each distinct dimension."""
    return {text: evaluate(text, env) for text in texts}


def _value(node: Node, env: Mapping[str, int]) -> Fraction | int:
    if isinstance(node, int):
        return node
    if isinstance(node, Name):
        return env[node.name]
    values = [_value(argument, env) for argument in node.arguments]
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
            return Fraction(a) / b
        case "//", [a, b]:
            return a // b
        case "%", [a, b]:
            return a % b
        case "**", [a, b]:
            return Fraction(a) ** int(b)
        case "ceil", [a]:
            return math.ceil(a)
        case "floor", [a]:
            return math.floor(a)
        case "min", _:
            return min(values)
        case _:
            return max(values)


def _of(what: str) -> str:
    return f"{what}: " if what else ""


def _bindings(text: str, env: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={env[name]}" for name in sorted(symbols(text)))


def _culprit(text: str, env: Mapping[str, int]) -> str:
    """The symbols that, were they 1, would make the value whole."""
    guilty = []
    for name in sorted(symbols(text)):
        if env[name] > 1 and _whole(text, {**env, name: 1}):
            guilty.append(f"{name}={env[name]}")
    if guilty:
        return f"{' or '.join(guilty)} does not divide it (with {_bindings(text, env)})"
    return f"with {_bindings(text, env)}"


def _whole(text: str, env: Mapping[str, int]) -> bool:
    try:
        return _value(read(text), env).denominator == 1
    except ZeroDivisionError:
        return False
