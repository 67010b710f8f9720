"""YAML (or JSON) read strictly: every value has its file, line and key, so that an error can name them."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import yaml

from stagedb.errors import UsageError
from stagedb.files import compose, did_you_mean
from stagedb.systems.system import Number

_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,25}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][+-]?[0-9]{1,2})?")
_INFINITE = (".inf", ".Inf", ".INF")
_LONGEST_TEXT = 2000


@dataclass(frozen=True)
class Value:
    """A node of a document, with its place: file, key, and the line of its key."""

    node: yaml.Node
    where: str
    key: str
    line: int

    def wrong(self, takes: str) -> UsageError:
        """The error for a value that is not allowed. It names the value, its place, and `takes`, what is allowed."""
        return UsageError(f"{self._place}: {self.key or 'it'} is {self._description}: it takes {takes}")

    def refused(self, why: str) -> UsageError:
        """The error for a value that is refused for another reason than its type.

        why: the reason, in words.
        """
        return UsageError(f"{self._place}: {why}")

    @property
    def is_null(self) -> bool:
        """Whether the value is open: `null`, `~`, or empty."""
        return self.node.tag == "tag:yaml.org,2002:null"

    def mapping(self, required: Iterable[str], optional: Iterable[str] = ()) -> "dict[str, Value]":
        """The values by key: all the required keys, and no others than these and the optional ones."""
        needed = tuple(required)
        known = (*needed, *optional)
        found = self.free_mapping(f"a mapping with {', '.join(known)}")
        for name, value in found.items():
            if name not in known:
                hint = did_you_mean(name, known)
                raise value.refused(f"unknown key {value.key}{hint}; allowed here: {', '.join(known)}")
        missing = [name for name in needed if name not in found]
        if missing:
            raise self.refused(f"{self.key or 'the system'} has no {', '.join(missing)}")
        return found

    def free_mapping(self, takes: str) -> "dict[str, Value]":
        """The values of a mapping by key. The keys are free: short printable texts, each once.

        takes: what the error names as allowed.
        """
        if not isinstance(self.node, yaml.MappingNode):
            raise self.wrong(takes)
        found: dict[str, Value] = {}
        for key, node in self.node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise Value(key, self.where, self.key, _line(key)).wrong("texts as keys")
            name = str(key.value)
            if len(name) > 60 or not name.isprintable():
                raise Value(key, self.where, self.key, _line(key)).wrong(takes)
            value = Value(node, self.where, f"{self.key}.{name}" if self.key else name, _line(key))
            if name in found:
                raise value.refused(f"{value.key} appears twice")
            found[name] = value
        return found

    def items(self, takes: str) -> "list[Value]":
        """The values of a list with at least one value. takes: what the error names as allowed."""
        if not isinstance(self.node, yaml.SequenceNode) or not self.node.value:
            raise self.wrong(takes)
        return [Value(node, self.where, f"{self.key}[{at}]", _line(node)) for at, node in enumerate(self.node.value)]

    def text(self, takes: str, right: Callable[[str], bool] = bool) -> str:
        """A printable text. takes: what the error names as allowed. right: whether a text is allowed."""
        value = self._scalar
        is_text = self.node.tag == "tag:yaml.org,2002:str"
        if value is None or not is_text or not 0 < len(value) <= _LONGEST_TEXT or not value.isprintable():
            raise self.wrong(takes)
        if not right(value):
            raise self.wrong(takes)
        return value

    def choice(self, words: Sequence[str]) -> str:
        """One of the given words; a UsageError names these."""
        return self.text(f"one of {', '.join(words)}", lambda text: text in words)

    def number(self, takes: str, right: Callable[[Number], bool], *, infinite: bool = False) -> Number:
        """A number exactly as it is written.

        takes: what the error names as allowed. right: whether a number is allowed. infinite: `.inf` is allowed.
        """
        text = self._scalar or ""
        if infinite and text in _INFINITE:
            return math.inf
        # A quoted number is a text.
        value = None if getattr(self.node, "style", None) else exact(text)
        if value is None or not right(value):
            raise self.wrong(takes)
        if Fraction(repr(float(value))) != value:
            raise self.refused(f"{self.key} is {text}: at most 15 digits are kept, and it has more")
        return value

    def integer(self, takes: str, least: int, most: int = 1 << 40) -> int:
        """A whole number from `least` to `most`. takes: what the error names as allowed."""
        return int(self.number(takes, lambda value: value == int(value) and least <= value <= most))

    @property
    def _scalar(self) -> str | None:
        return str(self.node.value) if isinstance(self.node, yaml.ScalarNode) else None

    @property
    def _place(self) -> str:
        return f"{self.where}, line {self.line}"

    @property
    def _description(self) -> str:
        if isinstance(self.node, yaml.MappingNode):
            return "a mapping"
        if isinstance(self.node, yaml.SequenceNode):
            return "a list" if self.node.value else "an empty list"
        text = str(self.node.value)
        return "nothing" if self.is_null else ascii(text[:60])


def exact(text: str) -> Fraction | None:
    """The number that a text writes, with bounded length and size; None for other texts."""
    return Fraction(text) if _NUMBER.fullmatch(text) else None


def read_value(text: str, where: str) -> Value:
    """The document of a text.

    where: the file's name, for errors. UsageError, which names file and line, if it is not YAML, or is empty.
    """
    node = compose(text, where)
    if node is None:
        raise UsageError(f"{where} is empty")
    return Value(node, where, "", _line(node))


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
