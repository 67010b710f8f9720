"""Conditions on plans, such as `tp <= 8 and peak < 76e9`: comparisons of words and figures. Nothing is run as code."""

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import did_you_mean, shown
from stagedb.mentions import Word
from stagedb.plans.aspects import PLAN_WORDS

FIGURES = ("step", "peak", "sent", "ranks")
"""Figures of a plan: its step [ns], the bytes of its fullest rank, the bytes that a rank sends at most, its world."""

LONGEST = 1000
"""Characters of a condition."""

_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


@dataclass(frozen=True)
class Condition:
    """A condition that was parsed. names: the words and figures that it reads."""

    text: str
    names: frozenset[str]
    _tree: ast.expr

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Raises UsageError, which names what is wrong, for a text that is no condition."""
        if len(text) > LONGEST:
            raise UsageError(
                f"a condition has at most {LONGEST} characters ({Word('where')}), this one has {len(text)}"
            )
        try:
            tree = ast.parse(text.strip(), mode="eval").body
            names = frozenset(_names(tree))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise UsageError(f"{shown(text)} is no condition: {_EXAMPLE}") from None
        for name in sorted(names - {*FIGURES, *PLAN_WORDS}):
            meant = did_you_mean(name, [*FIGURES, *PLAN_WORDS], "{}", most=3, between=", ")
            hint = meant or f"it reads words of a plan, and {', '.join(FIGURES)}"
            raise UsageError(f"no word or figure of a plan is {shown(name)}: {hint} ({Word('where')})")
        _check(tree, text)
        return cls(text, names, tree)

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether it holds for a plan with these words and figures. Words that are left out have their defaults.

        values: words and figures by name.
        """
        usual = {name: PLAN_WORDS[name].default for name in self.names if name in PLAN_WORDS}
        try:
            return bool(_value(self._tree, {**usual, **values}))
        except TypeError:
            raise UsageError(f"{shown(self.text)} compares a number with a text ({Word('where')})") from None

    def may_hold(self, known: Mapping[str, Any]) -> bool:
        """Whether it may hold for some plan with these words and figures. The others are not known yet."""
        try:
            return _value_of_some(self._tree, known) is not False
        except TypeError:
            raise UsageError(f"{shown(self.text)} compares a number with a text ({Word('where')})") from None


_EXAMPLE = (
    f"{Word('where')} takes comparisons of words and figures with numbers or quoted texts, joined by and, or, not, "
    'such as "tp <= 8 and peak < 76e9"'
)


def _names(tree: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _check(node: ast.expr, text: str) -> None:
    """Raise UsageError for anything but comparisons, and, or, not, names, numbers, texts and switches."""
    match node:
        case ast.BoolOp(values=parts):
            pass
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=part):
            parts = [part]
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARED for op in ops):
            parts = [left, *others]
        case ast.Name() | ast.Constant(value=bool() | int() | float() | str()):
            parts = []
        case _:
            raise UsageError(f"{shown(text)} has {shown(ast.unparse(node))}, which is no comparison: {_EXAMPLE}")
    for part in parts:
        _check(part, text)


def _value_of_some(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """The value of a part; None if it follows from what is not known."""
    match node:
        case ast.BoolOp(op=op, values=parts):
            found = [_value_of_some(part, known) for part in parts]
            decides = isinstance(op, ast.Or)
            if any(each is not None and bool(each) is decides for each in found):
                return decides
            return None if None in found else not decides
        case ast.UnaryOp(op=ast.Not(), operand=part):
            value = _value_of_some(part, known)
            return None if value is None else not value
        case _:
            return _value(node, known) if set(_names(node)) <= known.keys() else None


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_value(part, values) for part in parts)
        case ast.BoolOp(values=parts):
            return any(_value(part, values) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=part):
            return not _value(part, values)
        case ast.UnaryOp(operand=part):
            return -_value(part, values)
        case ast.Compare(left=left, ops=ops, comparators=others):
            found = [_value(each, values) for each in (left, *others)]
            pairs = zip(ops, found[:-1], found[1:], strict=True)
            return all(_COMPARED[type(op)](before, after) for op, before, after in pairs)
        case ast.Name(id=name):
            return values[name]
        case ast.Constant(value=value):
            return value
    raise TypeError
