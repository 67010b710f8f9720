"""Words of a free query that are not in the schema. A database answers nothing about them, and without an error."""

import difflib
from collections.abc import Iterator, Sequence
from itertools import pairwise

from stagedb.store.cypher_tokens import CLOSING, OPENING, Token, tokens
from stagedb.store.schema import LABELS, RELATIONSHIPS

_LABELS = frozenset(name for label in LABELS for name in (label.name, *label.also))
_TYPES = frozenset(edge.type for edge in RELATIONSHIPS)
_OF_NODES = frozenset(row.name for label in LABELS for row in label.properties)
_PROPERTIES = _OF_NODES.union(row.name for edge in RELATIONSHIPS for row in edge.properties)


def unknown_names(text: str) -> list[str]:
    """A sentence for each label, relationship type and property of the text that no store has, with similar names.

    Only properties of nodes and edges in a pattern count. The keys of a map, which the text or a parameter makes, are
    free.
    """
    known = {"label": _LABELS, "relationship": _TYPES, "property": _PROPERTIES}
    return list(dict.fromkeys(_hint(what, name, known[what]) for what, name in _named(text) if name not in known[what]))


def _hint(what: str, name: str, known: frozenset[str]) -> str:
    near = [each for each in sorted(known) if each.lower() == name.lower()] or difflib.get_close_matches(name, known)
    hint = f": did you mean {', '.join(near)}?" if near else "; docs/data-model.md lists all names"
    has = {
        "label": "node has the label",
        "relationship": "relationship is a",
        "property": "node or edge has the property",
    }
    return f"no {has[what]} {name}{hint}"


def _named(text: str) -> Iterator[tuple[str, str]]:
    """Pairs for every schema word of a text: label, relationship type or property; and its name."""
    found = list(tokens(text))
    opened: list[int] = []
    bound: set[str] = set()
    labels: set[int] = set()
    for place, (token, name) in enumerate(pairwise(found)):
        if token.kind == "word" and token.text.upper() == "AS":
            # The query gives the name a new meaning here.
            bound.discard(_plain(name))
        if token.kind != "symbol":
            continue
        if token.text in OPENING:
            opened.append(place)
            if token.text != "{" and place + 2 < len(found) and found[place + 2].text in (":", ")", "{"):
                bound.add(_plain(name))
        elif token.text in CLOSING and opened:
            opened.pop()
        if name.kind not in ("word", "name"):
            continue
        within = opened[-1] if opened else 0
        in_map = found[within].text == "{"
        edge = found[within].text == "[" and within > 0 and found[within - 1].text == "-"
        if in_map and token.text in "{,":
            if within - 1 in labels and found[place + 2 : place + 3] and found[place + 2].text == ":":
                yield "property", _plain(name)
        elif not in_map and (token.text == ":" or (token.text in "|&" and _goes_on(found[within:place]))):
            labels.add(place + 1)
            yield "relationship" if edge else "label", _plain(name)
        elif token.text == "." and place and _plain(found[place - 1]) in bound:
            yield "property", _plain(name)


def _goes_on(before: Sequence[Token]) -> bool:
    """Whether the tokens lead back, over names and signs alone, to the colon of a node's or edge's pattern."""
    signs = [token.text for token in before if token.kind == "symbol"]
    return len(signs) > 1 and signs[0] in "([" and signs[1] == ":" and set(signs[2:]) <= {"|", "&", ":"}


def _plain(token: Token) -> str:
    return token.text.strip("`")
