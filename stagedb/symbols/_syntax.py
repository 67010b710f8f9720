"""The grammar of dimensions: names, integers, `+ - * / // %`, small integer powers, `min max ceil floor`."""

import ast
import re
from dataclasses import dataclass
from functools import lru_cache

from stagedb.errors import UsageError

FUNCTIONS = {"min": 2, "max": 2, "ceil": 1, "floor": 1}
"""Functions and how many arguments they take at least; `ceil` and `floor` take exactly one."""

_LONGEST, _DEEPEST, _DIGITS, _POWER = 8000, 60, 30, 16
_ALPHABET = re.compile(r"[A-Za-z0-9_+\-*/%(), ]*")


class DimensionError(UsageError):
    """A dimension that cannot be read, or has no whole value for a plan."""


@dataclass(frozen=True)
class Name:
    """A symbol."""

    name: str


@dataclass(frozen=True)
class Call:
    """An operator or a function of parsed arguments: `+ - * / // % **`, `neg`, `min`, `max`, `ceil`, `floor`."""

    function: str
    arguments: tuple["Node", ...]


Node = int | Name | Call

_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
}


@lru_cache(maxsize=16384)
def read(text: str) -> Node:
    """The tree of a dimension; DimensionError where it is anything but arithmetic over names."""
    _refuse_early(text)
    try:
        return _node(ast.parse(text.strip(), mode="eval").body, text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _bad(text, "is not an expression over names and integers") from error


def _refuse_early(text: str) -> None:
    """What could cost time or stack is refused before Python's parser sees it."""
    if len(text) > _LONGEST:
        raise _bad(text, f"is longer than {_LONGEST} characters")
    if not _ALPHABET.fullmatch(text):
        raise _bad(text, "has characters other than ASCII letters, digits, _ + - * / % ( ) and ,")
    depth = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth > _DEEPEST:
            raise _bad(text, f"nests deeper than {_DEEPEST}")
    if re.search(r"[+\-] *[+\-] *[+\-]", text):
        raise _bad(text, "has a run of signs")


def _node(node: ast.expr, text: str) -> Node:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            if value >= 10**_DIGITS:
                raise _bad(text, f"has an integer of more than {_DIGITS} digits")
            return value
        case ast.Name(id=name):
            if name in FUNCTIONS or "__" in name:
                raise _bad(text, f"uses {name!r} as a symbol")
            return Name(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return Call("neg", (_node(operand, text),))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            if not (isinstance(right, ast.Constant) and isinstance(right.value, int) and 0 <= right.value <= _POWER):
                raise _bad(text, f"has a power that is not an integer from 0 to {_POWER}")
            return Call("**", (_node(left, text), right.value))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return Call(_OPERATORS[type(op)], (_node(left, text), _node(right, text)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            least = FUNCTIONS[name]
            if len(args) < least or (least == 1 and len(args) != 1):
                raise _bad(text, f"gives {name} {len(args)} arguments")
            return Call(name, tuple(_node(arg, text) for arg in args))
    raise _bad(text, "has something that is not arithmetic over names and integers")


def _bad(text: str, reason: str) -> DimensionError:
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    return DimensionError(f"the dimension {shown!r} {reason}")
