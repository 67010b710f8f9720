"""Words of a free query that are not in the schema. A database answers nothing about them, and without an error."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from stagedb.files import nearest, question
from stagedb.store.free_queries import CLOSING, OPENING, Token, tokens
from stagedb.store.schema import LABELS, RELATIONSHIPS

_LABELS: Mapping[str, frozenset[str]] = {
    name: frozenset(row.name for row in label.properties) for label in LABELS for name in (label.name, *label.also)
}
"""Properties of each label's nodes."""

_TYPES: Mapping[str, frozenset[str]] = {
    type: frozenset(row.name for edge in RELATIONSHIPS if edge.type == type for row in edge.properties)
    for type in {edge.type for edge in RELATIONSHIPS}
}
"""Properties of each type's relationships."""

_PROPERTIES = frozenset().union(*_LABELS.values(), *_TYPES.values())


@dataclass(frozen=True)
class _Use:
    """A label, relationship type or property that a text uses.

    owners: for a property, the labels or types that its node or relationship may have; empty if it may have any.
    """

    what: str
    name: str
    owners: frozenset[str] = frozenset()

    def known(self) -> frozenset[str]:
        """The names that a store may have in this place."""
        if self.what == "label":
            return frozenset(_LABELS)
        if self.what == "relationship":
            return frozenset(_TYPES)
        kinds = [kind for owner in self.owners if (kind := _LABELS.get(owner, _TYPES.get(owner))) is not None]
        # If no store has the label itself, the sentence is about the label, and any property counts as known.
        return frozenset().union(*kinds) if self.owners and len(kinds) == len(self.owners) else _PROPERTIES


def unknown_names(text: str) -> list[str]:
    """A sentence for each label, relationship type and property of the text that no store has, with similar names.

    A property is compared with those of the labels that the text gives its node. Only properties of nodes and edges in
    a pattern count. The keys of a map, which the text or a parameter makes, are free.
    """
    return list(dict.fromkeys(_hint(use) for use in _used(text) if use.name not in use.known()))


def _hint(use: _Use) -> str:
    known = sorted(use.known())
    near = [each for each in known if each.lower() == use.name.lower()] or nearest(use.name, known, 3)
    hint = question(near, ": {}", ", ") or "; docs/data-model.md lists all names"
    if use.what == "label":
        return f"no node has the label {use.name}{hint}"
    if use.what == "relationship":
        return f"no relationship is a {use.name}{hint}"
    if use.name not in _PROPERTIES:
        owner = " or ".join(sorted(use.owners)) if use.owners and known else "node or edge"
        return f"no {owner} has the property {use.name}{hint}"
    others = [name for name, properties in _LABELS.items() if use.name in properties]
    more = f"; {', '.join(others[:4])} {'has' if len(others) == 1 else 'have'} it" if others else ""
    return f"no {' or '.join(sorted(use.owners))} has the property {use.name}{more}{hint if near else ''}"


def _used(text: str) -> Iterator[_Use]:
    """Every schema word of a text."""
    found = list(tokens(text))
    opened: list[int] = []
    bound: dict[str, frozenset[str]] = {}
    values: set[str] = set()
    labels: set[int] = set()
    for place, (token, name) in enumerate(pairwise(found)):
        if token.kind == "word" and token.text.upper() in ("AS", "YIELD"):
            # The query gives the name a new meaning here.
            bound.pop(_plain(name), None)
            values.add(_plain(name))
        elif token.text in ("[", "(", ",") and found[place + 2 : place + 3] and found[place + 2].text.upper() == "IN":
            values.add(_plain(name))
        if token.kind != "symbol":
            continue
        if token.text in OPENING:
            opened.append(place)
            after = found[place + 2].text if place + 2 < len(found) else ""
            # A map that the query makes, inside a function or a sum, is no pattern: its keys are free.
            if token.text != "{" and (after in (":", "{") or (after == ")" and _plain(name) not in values)):
                _bind(bound, _plain(name), _owners(found, place))
        elif token.text in CLOSING and opened:
            opened.pop()
        if name.kind not in ("word", "name"):
            continue
        within = opened[-1] if opened else 0
        in_map = found[within].text == "{"
        edge = found[within].text == "[" and within > 0 and found[within - 1].text == "-"
        if in_map and token.text in "{,":
            if within - 1 in labels and found[place + 2 : place + 3] and found[place + 2].text == ":":
                yield _Use("property", _plain(name), _owners(found, opened[-2]) if len(opened) > 1 else frozenset())
        elif not in_map and (token.text == ":" or (token.text in "|&" and _goes_on(found[within:place]))):
            labels.add(place + 1)
            yield _Use("relationship" if edge else "label", _plain(name))
        elif token.text == "." and place and _plain(found[place - 1]) in bound:
            yield _Use("property", _plain(name), bound[_plain(found[place - 1])])


def _bind(bound: dict[str, frozenset[str]], name: str, owners: frozenset[str]) -> None:
    """A variable is in a pattern, with these labels. One that has others elsewhere may have any of them."""
    if name not in bound:
        bound[name] = owners
    elif owners and bound[name]:
        bound[name] |= owners
    elif owners:
        bound[name] = owners


def _owners(found: Sequence[Token], opening: int) -> frozenset[str]:
    """The labels, or types, in the brackets of a node or relationship that begins here; empty if it may have any."""
    at = opening + 1
    if at < len(found) and found[at].kind in ("word", "name"):
        at += 1
    owners = set()
    while at + 1 < len(found) and found[at].text in (":", "|", "&") and found[at + 1].kind in ("word", "name"):
        owners.add(_plain(found[at + 1]))
        at += 2
    # A label expression that is no list of names, such as !Op, may match any label.
    return frozenset(owners) if at < len(found) and found[at].text in (")", "]", "{", "*", "WHERE") else frozenset()


def _goes_on(before: Sequence[Token]) -> bool:
    """Whether the tokens lead back, over names and signs alone, to the colon of a node's or edge's pattern."""
    signs = [token.text for token in before if token.kind == "symbol"]
    return len(signs) > 1 and signs[0] in "([" and signs[1] == ":" and set(signs[2:]) <= {"|", "&", ":"}


def _plain(token: Token) -> str:
    return token.text.strip("`")
