"""From text to a small tree, through Python's syntax trees and a whitelist. Nothing is ever run.

The text is checked before Python's parser reads it: ASCII only (Python would convert look-alike letters to others),
known tokens only, bounded length, digits and nesting. A chain such as `a + b + c` becomes one node, so that the nesting
of the text bounds the depth of the tree, and its length does not.
"""

import ast
import keyword
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from stagedb.errors import UsageError
from stagedb.files import shown

MAX_LENGTH = 16_384
MAX_TOKENS = 6_000
MAX_DIGITS = 120
MAX_NESTING = 32
MAX_EXPONENT = 64

FUNCTIONS = frozenset({"ceil", "floor", "max", "min"})
"""Names with a meaning of their own, which no symbol may have. The canonical form writes `floor` as `//`."""

RESERVED = FUNCTIONS | frozenset(keyword.kwlist)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(r" *(?:([A-Za-z_][A-Za-z0-9_]*)|([0-9]+)(?![A-Za-z_])|(\*\*|//|[-+*/%(),])) *")


class DimensionError(UsageError):
    """An expression that cannot be read or has no whole value."""


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum in a syntax tree: each term with its sign (+1 or -1)."""

    terms: tuple[tuple[int, "Node"], ...]


@dataclass(frozen=True, slots=True)
class Product:
    """`first`, then each operator (`*`, `/`, `//`, `%`) with its right operand, from left to right."""

    first: "Node"
    rest: tuple[tuple[str, "Node"], ...]


@dataclass(frozen=True, slots=True)
class Power:
    """A base to the power of a whole number."""

    base: "Node"
    exponent: int


@dataclass(frozen=True, slots=True)
class Call:
    """A function of expressions, such as `ceil` or `max`."""

    function: str
    arguments: tuple["Node", ...]


Node: TypeAlias = int | str | Sum | Product | Power | Call
"""An integer, a symbol's name, or an operation."""

_MULTIPLICATIVE: dict[type[ast.operator], str] = {ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"}
_ADDITIVE: dict[type[ast.operator], int] = {ast.Add: 1, ast.Sub: -1}


def shorten(text: str) -> str:
    """The text as an error message shows it."""
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)"


def refuse(text: str, why: str) -> DimensionError:
    """The error for a text that is no dimension. why: what is wrong with it, in words."""
    return DimensionError(f"not a dimension: {shown(shorten(text))}: {why}")


def check_name(name: str) -> str:
    """The name, if it is allowed for a symbol. Raises DimensionError if not."""
    if not _NAME.fullmatch(name) or name.startswith("__") or name in RESERVED or len(name) > 64:
        raise DimensionError(
            f"not a symbol's name: {shown(shorten(name))}: expected a letter or _, then letters, digits and _ "
            f"(ASCII, no leading __, none of {', '.join(sorted(FUNCTIONS))}, no keyword)"
        )
    return name


def check_text(text: str) -> None:
    """Refuse text that could trouble Python's parser, or that it would read as something else. Takes linear time."""
    if len(text) > MAX_LENGTH:
        raise refuse(text, f"longer than {MAX_LENGTH} characters")
    if not text.isascii():
        raise refuse(text, "only ASCII letters, digits and operators are allowed")
    position = depth = tokens = signs = 0
    if not text.strip(" "):
        raise refuse(text, "it is empty")
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise refuse(text, f"unexpected {shown(text[position : position + 10])} at character {position + 1}")
        position = match.end()
        tokens += 1
        name, digits, operator = match.groups()
        if digits is not None and len(digits) > MAX_DIGITS:
            raise refuse(text, f"a number of more than {MAX_DIGITS} digits")
        if name is not None and name.startswith("__"):
            raise refuse(text, f"{shown(shorten(name))} is not a symbol's name")
        depth += (operator == "(") - (operator == ")")
        signs = signs + 1 if operator in ("+", "-") else 0
        if depth > MAX_NESTING or signs > 3:
            raise refuse(text, f"nested deeper than {MAX_NESTING}" if signs <= 3 else "too many signs in a row")
    if tokens > MAX_TOKENS:
        raise refuse(text, f"more than {MAX_TOKENS} names, numbers and operators")


@lru_cache(maxsize=16_384)
def read(text: str) -> Node:
    """The tree of an expression. Raises DimensionError for any other text."""
    check_text(text)
    try:
        body = ast.parse(text.strip(" "), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise refuse(text, "it cannot be read as arithmetic") from error
    return _node(body, text)


def _node(node: ast.expr, text: str) -> Node:
    match node:
        case ast.Constant(value=value) if type(value) is int:
            return value
        case ast.Name(id=name):
            if name in RESERVED:
                raise refuse(text, f"{shown(name)} is not a symbol's name")
            return name
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return Sum(((-1, _node(operand, text)),))
        case ast.BinOp(op=ast.Pow()):
            return _power(node, text)
        case ast.BinOp():
            return _chain(node, text)
        case ast.Call(func=ast.Name(id=function), args=arguments, keywords=[]):
            return _call(function, arguments, text)
    raise refuse(text, "only names, integers, + - * / // % **, min, max, ceil and floor are allowed")


def _chain(node: ast.BinOp, text: str) -> Node:
    """A left-leaning run of operators of one precedence. It is walked without recursion."""
    if type(node.op) in _ADDITIVE:
        terms: list[tuple[int, Node]] = []
        left: ast.expr = node
        while isinstance(left, ast.BinOp) and type(left.op) in _ADDITIVE:
            terms.append((_ADDITIVE[type(left.op)], _node(left.right, text)))
            left = left.left
        terms.append((1, _node(left, text)))
        return Sum(tuple(reversed(terms)))
    factors: list[tuple[str, Node]] = []
    left = node
    while isinstance(left, ast.BinOp) and type(left.op) in _MULTIPLICATIVE:
        factors.append((_MULTIPLICATIVE[type(left.op)], _node(left.right, text)))
        left = left.left
    if not factors:
        raise refuse(text, "only + - * / // % and ** are allowed between operands")
    return Product(_node(left, text), tuple(reversed(factors)))


def _power(node: ast.BinOp, text: str) -> Node:
    exponent = node.right
    if not (isinstance(exponent, ast.Constant) and type(exponent.value) is int):
        raise refuse(text, "an exponent must be an integer, written out")
    if exponent.value > MAX_EXPONENT:
        raise refuse(text, f"an exponent above {MAX_EXPONENT}")
    return Power(_node(node.left, text), exponent.value)


def _call(function: str, arguments: list[ast.expr], text: str) -> Node:
    if function not in FUNCTIONS:
        raise refuse(text, f"there is no function {shown(function)}; there are {', '.join(sorted(FUNCTIONS))}")
    if not arguments or (function in ("ceil", "floor") and len(arguments) != 1):
        raise refuse(text, f"{function} takes another number of arguments than {len(arguments)}")
    return Call(function, tuple(_node(argument, text) for argument in arguments))


@lru_cache(maxsize=16_384)
def symbols(text: str) -> frozenset[str]:
    """The names of the symbols in an expression. text: the expression."""
    found: set[str] = set()
    waiting: list[Node] = [read(text)]
    while waiting:
        match waiting.pop():
            case str() as name:
                found.add(name)
            case Sum(terms):
                waiting += [term for _, term in terms]
            case Product(first, rest):
                waiting += [first, *(factor for _, factor in rest)]
            case Power(base, _):
                waiting.append(base)
            case Call(_, arguments):
                waiting += arguments
    return frozenset(found)
