"""Which instances' rank and group nodes a text can reach.

These nodes are written when somebody asks for them, so a text that could reach one must be known before it runs. What
is not understood counts as one that reaches all.

A `Rank` has no relationships, and a `Group` only `HAS_GROUP`. So a text reaches them by these names, or by a node
without label that no relationship of another type leads to.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stagedb.store.cypher_tokens import CLOSING, OPENING, Token, UnclosedError, tokens

_NAMES = frozenset({"rank", "group", "has_group"})
_FUNCTIONS = frozenset(
    (
        *("abs", "avg", "ceil", "collect", "count", "date", "datetime", "elementid", "endnode", "exp", "floor", "head"),
        *("id", "isempty", "keys", "labels", "last", "length", "log", "max", "min", "nodes", "properties", "rand"),
        *("relationships", "reverse", "round", "sign", "size", "sqrt", "startnode", "stdev", "stdevp", "sum", "tail"),
        *("timestamp", "toboolean", "tofloat", "tointeger", "tolower", "tostring", "toupper", "trim", "type"),
    )
)
"""Functions whose brackets are no pattern. In those of an unknown word a single name counts as a node."""


def instances_reached(text: str, params: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Ids of the instances whose ranks and groups a text can reach; None for those of all. params: its parameters."""
    try:
        reader = _Reader([*tokens(text)])
    except UnclosedError:
        return None
    wanted = reader.parameters()
    if wanted is None:
        return None
    return tuple(sorted({id for name in wanted if isinstance(id := params.get(name), str)}))


def names_ranks(text: str) -> bool:
    """Whether a text has the label of ranks or groups, or their relationship, or what cannot be read.

    Other texts reach them only as nodes among all others.
    """
    try:
        reader = _Reader([*tokens(text)])
    except UnclosedError:
        return True
    return reader.named()


class _Reader:
    """The tokens of a text, and the end of each bracket."""

    def __init__(self, found: Sequence[Token]) -> None:
        self._found = found
        self._ends = dict(_brackets(found))
        self._starts = {end: start for start, end in self._ends.items()}

    def named(self) -> bool:
        """Whether a label or type of ranks and groups is anywhere."""
        return any(self._names(at) for at in range(len(self._found)))

    def parameters(self) -> set[str] | None:
        """The parameters with the ids of the instances that are reached; None for all instances."""
        if any(self._word(at) == "CALL" and self._word(at + 1) == "DB" for at in range(len(self._found))):
            return None
        if any(self._is_open(at) for at in range(len(self._found))):
            return None
        wanted = set()
        for at in range(len(self._found)):
            if self._names(at):
                owner = self._owner_of_relationship(at) if self._name(at) == "has_group" else self._owner_of_node(at)
                if owner is None:
                    return None
                wanted.add(owner)
        return wanted

    def _text(self, at: int) -> str:
        return self._found[at].text if 0 <= at < len(self._found) else ""

    def _word(self, at: int) -> str:
        return self._text(at).upper()

    def _name(self, at: int) -> str:
        return self._text(at).strip("`").casefold()

    def _is_name(self, at: int) -> bool:
        return 0 <= at < len(self._found) and self._found[at].kind in ("word", "name")

    def _names(self, at: int) -> bool:
        """Whether a label or a relationship's type is one of those of ranks and groups."""
        return (
            self._is_name(at)
            and self._name(at) in _NAMES
            and (self._text(at - 1) in (":", "|", "&", "!") or self._word(at - 1) == "IS")
        )

    def _owner_of_node(self, at: int) -> str | None:
        """The parameter of the instance of `(r:Rank {instance: $p})`, or of a group that is reached from `$p`'s."""
        start = at - 2 if self._text(at - 2) == "(" else at - 3
        if self._text(start) != "(" or self._text(at - 1) != ":":
            return None
        if self._text(at + 1) == "{" and (owner := self._value(at + 1, "instance")) is not None:
            return owner
        if self._text(at + 1) not in ("{", ")") and self._word(at + 1) != "WHERE":
            return None
        arrow = (self._text(start - 3), self._text(start - 2), self._text(start - 1))
        if self._name(at) != "group" or arrow != ("]", "-", ">"):
            return None
        return self._owner_of_relationship(start - 4)

    def _owner_of_relationship(self, at: int) -> str | None:
        """The parameter of the instance of `(:Instance {id: $p})-[:HAS_GROUP]->`."""
        start = at - 2 if self._text(at - 2) == "[" else at - 3
        parts = (self._text(start), self._text(at - 1), self._text(at + 1), self._text(at + 2), self._text(at + 3))
        before = (self._text(start - 2), self._text(start - 1))
        if self._name(at) != "has_group" or parts != ("[", ":", "]", "-", ">") or before != (")", "-"):
            return None
        opening = self._starts.get(start - 2)
        if opening is None:
            return None
        if start - 2 - opening == 2:
            return self._declared(self._text(opening + 1))
        return self._instance(opening)

    def _instance(self, opening: int) -> str | None:
        """The parameter of `(i:Instance {id: $p})`."""
        at = opening + (1 if self._text(opening + 1) == ":" else 2)
        if (self._text(at), self._text(at + 1), self._text(at + 2)) != (":", "Instance", "{"):
            return None
        return self._value(at + 2, "id")

    def _declared(self, variable: str) -> str | None:
        """The parameter of the instance that a variable is, if it is the same everywhere."""
        found = set()
        for at in range(len(self._found)):
            if self._text(at) != variable:
                continue
            if self._word(at - 1) in ("AS", "YIELD") or self._word(at + 1) == "IN":
                return None
            if self._text(at - 1) in ("(", "[") and self._text(at + 1) not in (")", "."):
                found.add(self._instance(at - 1))
        return found.pop() if len(found) == 1 else None

    def _value(self, opening: int, key: str) -> str | None:
        """The parameter that a key of a map has as value, itself or as the id of an instance."""
        depth = 0
        for at in range(opening, self._ends.get(opening, opening)):
            depth += (self._text(at) in OPENING) - (self._text(at) in CLOSING)
            if depth != 1 or self._text(at) != key or self._text(at + 1) != ":" or self._text(at - 1) not in ("{", ","):
                continue
            if self._found[at + 2].kind == "parameter":
                return self._text(at + 2)[1:].strip().strip("`") if self._text(at + 3) in (",", "}") else None
            if (self._text(at + 3), self._text(at + 4)) == (".", "id") and self._text(at + 5) in (",", "}"):
                return self._declared(self._text(at + 2))
        return None

    def _is_open(self, at: int) -> bool:
        """Whether a node without label is here that may be any node, or a path of relationships of any type."""
        if self._text(at) == "[" and self._text(at - 1) == "-" and not self._typed(at):
            return "*" in (self._text(at + 1), self._text(at + 2))
        end = self._ends.get(at)
        if self._text(at) != "(" or end is None:
            return False
        inside = at + 1 if self._is_name(at + 1) and self._word(at + 1) != "WHERE" else at
        if self._text(inside + 1) == ":" and end > inside + 1:
            if self._plain_names(inside + 1, end):
                return False
        elif inside + 1 != end and self._text(inside + 1) != "{" and self._word(inside + 1) not in ("WHERE", "IS"):
            return False  # an expression
        is_call = inside + 1 == end and self._is_name(at - 1) and self._word(at - 1).casefold() in _FUNCTIONS
        return not is_call and not self._joined(at, end)

    def _plain_names(self, colon: int, end: int) -> bool:
        """Whether labels are names, with `|`, `&` or `:` between them."""
        at = colon
        while at < end and self._text(at) in (":", "|", "&"):
            step = 2 if self._text(at) == "|" and self._text(at + 1) == ":" else 1
            if not self._is_name(at + step):
                return False
            at += step + 1
        return at == end or self._text(at) in ("{", "]", "*") or self._word(at) == "WHERE"

    def _typed(self, opening: int) -> bool:
        """Whether a relationship has a type, and at least one hop."""
        end = self._ends.get(opening)
        colon = opening + (1 if self._text(opening + 1) == ":" else 2)
        if end is None or self._text(colon) != ":" or not self._plain_names(colon, end):
            return False
        return not any(self._text(at) == "*" and self._text(at + 1).startswith("0") for at in range(opening, end))

    def _joined(self, start: int, end: int) -> bool:
        """Whether a relationship with a type leads to a node, or from it."""
        at = end + 1 + (self._text(end + 1) == "<")
        if self._text(at) == "-" and self._text(at + 1) == "[" and self._typed(at + 1):
            after = self._ends[at + 1] + 1
            after += 1 + (self._text(after + 1) == ">")
            if self._text(after) == "(":
                return True
        at = start - 1 - (self._text(start - 1) == ">")
        return self._text(at) == "-" and self._text(at - 1) == "]" and self._typed(self._starts.get(at - 1, at))


def _brackets(found: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """The places of each bracket's beginning and end."""
    opened: list[int] = []
    for at, token in enumerate(found):
        if token.kind == "symbol" and token.text in OPENING:
            opened.append(at)
        elif token.kind == "symbol" and token.text in CLOSING and opened:
            yield opened.pop(), at
